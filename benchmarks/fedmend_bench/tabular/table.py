"""`fedmend bench tabular`: is what a run gives by default at least as good as plain boosting?

Eight tables, torn as in `fedmend bench risa`: the label party has `rows` training rows (fewer where
the set has fewer), of which a share is known to its partner; the partner has its side of as many
rows, the others under ids that cannot be linked. Every seed draws training and test rows and the
tear anew, the same for all methods. The same `test` rows are scored twice: known to both parties,
and to the label party only.

Ours have the settings of a run without any, networks of the RISA benchmark those they have there,
scikit-learn's in the clear its own. Every cell (set, method, overlap, seed) is a line of
`folder`/cells.jsonl; what has a line is not measured again, and several processes may share one.

    OMP_NUM_THREADS=1 fedmend bench tabular -o folder=runs/tabular -o processes=16 -o minutes=9
    fedmend bench tabular -o part=page -o folder=benchmarks/results/tabular.jsonl \
        -o page=benchmarks/results/tabular.md
"""

from __future__ import annotations

import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmend.errors import ConfigError, FedmendWarning
from fedmend.methods import registry
from fedmend_bench import datasets
from fedmend_bench.cells import Kept, run_cells
from fedmend_bench.clear import CLEAR
from fedmend_bench.harness import Bar, BenchResult
from fedmend_bench.options import chosen, listed, numbered
from fedmend_bench.risa import methods as risa_methods
from fedmend_bench.risa.data import ALONE, LABELS, load_sides, tear
from fedmend_bench.risa.methods import ANY_OVERLAP, Size, fit
from fedmend_bench.risa.runs import start
from fedmend_bench.tabular.page import shown, write_page
from fedmend_bench.tabular.speed import speed
from fedmend_bench.tabular.three import three

NAME = "tabular"
HELP = "auto, trees and networks beside boosting in the clear, on eight torn tables"

SETS = ("adult", "credit", "bank", "gmsc", "criteo-tiny", "covertype", "letter", "sensorless")
KEEL = tuple(datasets.KEEL)
"""Tables on which nothing was ever chosen."""
NUMBERS = tuple(datasets.NUMBERS)
AUTO, LEFT_JOIN = "auto", "GBDT left join"
OURS = {
    AUTO: "auto",
    "SecureBoost": "boosting",
    "LocalTrees": "local-trees",
    "RISA": "risa",
    "Local": "local",
    "VFL": "vfl",
    "LocalVFL": "local-vfl",
}
"""By their names in a file."""
BASELINES = tuple(name for name in risa_methods.BASELINES if name not in OURS)
BASELINES = tuple(name for name in BASELINES if name not in risa_methods.ONLY_IMAGES)
METHODS = (*OURS, *BASELINES, *CLEAR)
GROUPS = {"ours": tuple(OURS), "baselines": BASELINES, "clear": tuple(CLEAR)}
ALTERNATIVES = ("LocalTrees", "Local", LEFT_JOIN)
"""What the label party has without `auto`; the last only if nothing had to be kept private."""
WITHIN = 0.003
WHOLE = 40_000
"""No table that has a target has as many training rows: all of them are taken."""
TARGETS = {("adult", 10): 0.915, ("adult", 50): 0.924}
TARGETS |= {("credit", 1): 0.743, ("credit", 10): 0.771, ("credit", 50): 0.779}
"""AUC of SecureBoost of rows known to both, promised for the whole tables."""
FIRST_SEED = 30
"""Nothing was chosen on these draws."""


@dataclass(frozen=True)
class Cell:
    """One method on one draw. overlap: in percent. rows, test: at most so many."""

    data: str
    method: str
    overlap: float
    seed: int
    rows: int
    test: int


def run(
    quick: bool = False,
    *,
    part: str = "table",
    sets: Any = SETS,
    methods: Any = "all",
    overlap: Any = (1, 10, 50),
    seeds: Any = 5,
    rows: int = 6_000,
    test: int = 4_000,
    processes: int = 1,
    minutes: float | None = None,
    folder: str | None = None,
    page: str | None = None,
) -> BenchResult:
    """Measure what has no line yet, and show all that was asked for.

    part: "table"; "page", which measures nothing and shows every line of the folder (or of a
    .jsonl file in its place); "speed", SecureBoost beside scikit-learn; "three", two partners, each
    of whom knows people of its own (overlap: the share that one knows). methods: names, or the
    groups ours, baselines and clear. overlap: in percent. seeds: how many, or which. minutes: no
    cell is begun that would end later. page: a file whose tables, between two marks, are written
    anew.
    """
    (part,) = chosen("part", part, ("table", "page", "speed", "three"))
    if part == "speed":
        table, bars = speed(quick)
        return BenchResult(NAME, table, bars)
    if part == "three":
        shares, wanted = [float(each) for each in listed(overlap)], numbered(seeds, FIRST_SEED)
        names = ["breast-cancer"] if quick else _sets(sets)
        how = {"folder": folder, "processes": processes, "minutes": minutes}
        return BenchResult(NAME, three(names, shares, wanted, rows, test, **how))
    if part == "page":
        if folder is None:
            raise ConfigError("part=page shows lines that are there. Mend: -o folder=…")
        lines = [line["cell"] | line["found"] for line in Kept.at(folder).all()]
    else:
        names = _sets(sets)
        asked = _asked(methods)
        shares = [float(each) for each in listed(overlap)]
        if quick:
            names, asked, shares, seeds = ["breast-cancer"], _quick(asked), [30.0], [0, 1]
        for share in shares:
            if not 0 < share < 100:
                raise ConfigError(f"an overlap is a percentage between 0 and 100, got {share:g}")
        wanted = numbered(seeds, FIRST_SEED)
        cells = _cells(names, asked, shares, wanted, rows, test)
        measured = run_cells(measure, cells, folder, processes, start, minutes, _seconds)
        lines = [vars(cell) | each for cell, each in zip(cells, measured, strict=True) if each]
    bars = _quick_bars(lines) if quick else promises(lines)
    if page is not None:
        write_page(Path(page), spread(lines), bars, METHODS)
    return BenchResult(NAME, summary(lines), bars)


def _sets(sets: Any) -> list[str]:
    """Names of data sets; keel is all of that repository's, numbers all whose label is one."""
    groups = {"keel": KEEL, "numbers": NUMBERS}
    names = chosen("sets", sets, (*SETS, "breast-cancer", *groups, *KEEL, *NUMBERS))
    return [name for each in names for name in groups.get(each, (each,))]


def _asked(methods: Any) -> list[str]:
    """Names of methods, groups opened; `auto` only where there is one."""
    names = chosen("methods", methods, [*GROUPS, *METHODS])
    opened = dict.fromkeys(name for each in names for name in GROUPS.get(each, (each,)))
    return [name for name in opened if name != AUTO or OURS[AUTO] in registry.METHODS]


def _quick(methods: Iterable[str]) -> list[str]:
    return [name for name in methods if name in (*OURS, *CLEAR)]


def _cells(
    names: Sequence[str],
    methods: Sequence[str],
    shares: Sequence[float],
    seeds: Sequence[int],
    rows: int,
    test: int,
) -> list[Cell]:
    """Seed by seed, so that whoever stops early has whole tables; in each the longest first."""
    cells = dict.fromkeys(
        Cell(name, method, shares[0] if method in ANY_OVERLAP else share, seed, rows, test)
        for name, method, share, seed in itertools.product(names, methods, shares, seeds)
        if name not in NUMBERS or _tells_numbers(method)
    )
    return sorted(cells, key=lambda cell: (cell.seed, -_seconds(cell)))


def _tells_numbers(method: str) -> bool:
    if method in OURS:
        return not registry.METHODS[OURS[method]].classes_only
    return method.startswith("GBDT")


# Of 6,000 rows of two classes, on a busy core. What grows a tree for each class takes longer.
_SECONDS = {"SecureBoost": 4, "LocalTrees": 3, "RISA": 9, "Local": 3, "VFL": 2, "LocalVFL": 5}
_SECONDS |= {"FedCVT": 12, "SFHTL": 8, "FewShotVFL": 8, "SSLVFL": 4}
_CLASSES = {"covertype": 7, "letter": 26, "sensorless": 11}
_CLASSES |= {name: size[2] - (size[2] == 2) for name, size in datasets.KEEL.items()}


def _seconds(cell: Cell) -> float:
    """What it is thought to take: for the order, and for what can still be begun."""
    if cell.method == AUTO:
        # All candidates on two folds at least, on more within its budget, and once on all rows.
        once = sum(_seconds(replace(cell, method=name)) for name in OURS if name != AUTO)
        return max(1.7 * once, min(6 * once, 120)) + once
    trees = cell.method in ("SecureBoost", "LocalTrees") or cell.method.startswith("GBDT")
    known, _ = datasets.NUMBERS.get(cell.data, (cell.data, ""))
    rows = min(cell.rows, 0.8 * datasets.info(known).rows)
    each = _CLASSES.get(cell.data, 1) if trees else 1
    return _SECONDS.get(cell.method, 2) * each * (rows + 1_000) / 7_000


# ---------------------------------------------------------------------------------- one cell


def measure(cell: Cell) -> dict[str, Any]:
    """Fit and score one method; seconds are the processor's."""
    sides = load_sides(cell.data, cell.seed, cell.rows, cell.test)
    world = tear(sides, cell.overlap / 100, cell.seed)
    if cell.method in OURS:
        model = registry.make(OURS[cell.method], _told(cell), cell.seed)
    else:
        size = Size(False, world.overlap, len(sides.train[LABELS]))
        model = risa_methods.make(cell.method, size, cell.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedmendWarning)
        began = time.process_time()
        fit(model, world)
        found: dict[str, Any] = {"seconds": round(time.process_time() - began, 2)}
        found["both"] = _scored(model.evaluate(world.fed.on("test"), rows="aligned"))
        if CLEAR.get(cell.method, ("", ""))[1] not in ("aligned", "joined"):
            found["one"] = _scored(model.evaluate(world.fed.on(ALONE), rows=LABELS))
    if hasattr(model, "chosen_"):
        found["chosen"] = str(model.chosen_)
    return found


def _told(cell: Cell) -> dict[str, Any]:
    """Few whole numbers are taken for classes unless a file says what they are."""
    return {"task": "regression"} if cell.data in NUMBERS else {}


def _scored(scores: dict[str, float]) -> dict[str, float]:
    names = ("r2", "rmse", "mae") if "r2" in scores else ("auc", "accuracy", "log_loss")
    return {name: round(scores[name], 5) for name in names}


def main_metric(scores: dict[str, float]) -> float:
    """AUC, or of numbers R²: what tables show and bars compare."""
    return scores["r2"] if "r2" in scores else scores["auc"]


# ---------------------------------------------------------------------------------- results

Place = tuple[int, str, float, str]
"""Rows, set, overlap, and who knows the row ("both", or "one")."""
Values = dict[str, dict[int, dict[str, float]]]
"""By method and seed, the scores."""


def spread(lines: Iterable[dict[str, Any]]) -> dict[Place, Values]:
    """The scores by where they were measured; what a party does alone stands for all overlaps."""
    done = [line for line in lines if "failed" not in line]
    shares: dict[tuple[int, str], set[float]] = {}
    for line in done:
        shares.setdefault((line["rows"], line["data"]), set()).add(line["overlap"])
    found: dict[Place, Values] = {}
    for line in done:
        where = line["rows"], line["data"]
        for share in shares[where] if line["method"] in ANY_OVERLAP else [line["overlap"]]:
            for known in ("both", "one"):
                if known in line:
                    values = found.setdefault((*where, share, known), {})
                    values.setdefault(line["method"], {})[line["seed"]] = line[known]
    return dict(sorted(found.items(), key=lambda item: (-item[0][0], _place(item[0][1]), item[0])))


def _place(name: str) -> int:
    return SETS.index(name) if name in SETS else len(SETS)


def summary(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for every set and method: AUC or R², mean ± standard error, of both kinds of rows."""
    table: dict[tuple[int, str, str], dict[str, Any]] = {}
    for (rows, data, share, known), values in spread(lines).items():
        for method in sorted(values, key=METHODS.index):
            row = table.setdefault((rows, data, method), {"data": data, "method": method})
            told = [main_metric(each) for each in values[method].values()]
            row["seeds"] = max(row.get("seeds", 0), len(told))
            row[f"{share:g} % {known}"] = shown(told)
    for (rows, data, method), row in table.items():
        own = [
            line["seconds"]
            for line in lines
            if (line["rows"], line["data"], line["method"]) == (rows, data, method)
            and "failed" not in line
        ]
        row |= {"cpu s": round(statistics.mean(own), 1), "rows at most": rows}
    failed = [
        {"data": line["data"], "method": line["method"], "failed": line["failed"]}
        for line in lines
        if "failed" in line
    ]
    order = sorted(table, key=lambda key: (-key[0], _place(key[1]), METHODS.index(key[2])))
    return [table[key] for key in order] + failed


def promises(lines: Sequence[dict[str, Any]]) -> list[Bar]:
    """`auto` against what the label party has without it, draw by draw; and the targets."""
    bars, gains = [], []
    for (rows, data, share, known), values in spread(lines).items():
        if not {AUTO, *ALTERNATIVES} <= set(values):
            continue
        means = {name: _mean(values[name], values[AUTO]) for name in ALTERNATIVES}
        best = max(means, key=means.__getitem__)
        gain = _mean(values[AUTO], values[best]) - _mean(values[best], values[AUTO])
        gains.append(gain)
        at = f"{data}, {rows:,} rows, {share:g} %, {known}"
        bars.append(Bar.at_least(f"{at}: auto over {best}", round(gain, 4), -WITHIN))
    if gains:
        bars.append(Bar.at_least("auto over the best, mean", round(statistics.mean(gains), 4), 0))
    for (rows, data, share, known), values in spread(lines).items():
        target = TARGETS.get((data, int(share)))
        if known == "both" and target and "SecureBoost" in values and rows >= WHOLE:
            mean = _mean(values["SecureBoost"], values["SecureBoost"])
            name = f"{data}, all rows, {share:g} %: AUC of SecureBoost"
            bars.append(Bar.at_least(name, round(mean, 4), target))
    return bars


def _mean(scores: dict[int, dict[str, float]], beside: dict[int, dict[str, float]]) -> float:
    """Over the seeds that both have."""
    common = [main_metric(each) for seed, each in scores.items() if seed in beside]
    return statistics.mean(common) if common else float("nan")


def _quick_bars(lines: Sequence[dict[str, Any]]) -> list[Bar]:
    """Ours are the same kind of trees as scikit-learn's, of the same rows."""
    bars = []
    pairs: list[tuple[str, str, Callable[[str], bool]]] = [
        ("SecureBoost", LEFT_JOIN, lambda known: True),
        ("LocalTrees", "GBDT own columns", lambda known: known == "one"),
        (AUTO, LEFT_JOIN, lambda known: True),
    ]
    for (_, data, share, known), values in spread(lines).items():
        for ours, theirs, fits in pairs:
            if ours in values and theirs in values and fits(known):
                gain = _mean(values[ours], values[theirs]) - _mean(values[theirs], values[ours])
                name = f"{data}, {share:g} %, {known}: {ours} over {theirs}"
                bars.append(Bar.at_least(name, round(gain, 4), -0.02))
    return bars
