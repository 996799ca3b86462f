"""`fedmend bench pages`: every table that has a file of results, made anew from it.

A page keeps such a table between ``<!-- made: NAME -->`` and ``<!-- made: end -->``; what people
wrote around it stays. Nothing is measured. A page without a mark says that its measurements were
not kept.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedmend._files import write_whole
from fedmend.errors import ConfigError
from fedmend_bench.cells import Kept
from fedmend_bench.completion.runs import OURS, PAPER, TRAINED
from fedmend_bench.flow import one_sided, world
from fedmend_bench.flow.files import all_lines
from fedmend_bench.generators import table as generators
from fedmend_bench.harness import BenchResult
from fedmend_bench.inc import crowds
from fedmend_bench.inc.batched import CLEAN, TABLE_METHODS
from fedmend_bench.inc.data import HUMAN, TABLE_KINDS
from fedmend_bench.inc.runs import Finding
from fedmend_bench.inc.table import human_rows, noise_rows
from fedmend_bench.risa import search
from fedmend_bench.risa.table import paper_table
from fedmend_bench.sage.curves import MARKS, Curve, add_curves, read_curves
from fedmend_bench.sage.data import paper_accuracy
from fedmend_bench.sage.tables import CANDIDATES, Cell, summary, taken
from fedmend_bench.tabular import table as tabular
from fedmend_bench.tabular import three
from fedmend_bench.tabular.table import main_metric

NAME = "pages"
HELP = "the tables of results pages, made anew from the files of results; measures nothing"

RESULTS = Path(__file__).parents[1] / "results"
MADE = re.compile(r"(<!-- made: ([\w-]+) -->\n).*?(<!-- made: end -->)", re.DOTALL)
CIFAR, SEARCH, THREE = "sage-cifar10.csv", "risa-search.jsonl", "risa-three-parties.jsonl"
ALONE, MADE_ROWS, KEEL = "sage-tables.jsonl", "generators.jsonl", "keel.jsonl"
FLOW, ONE_SIDED, NUMBERS = "flow.jsonl", "one-sided.jsonl", "numbers.jsonl"
COMPLETED, TORN, CROWDS = "fedpsg-pum.jsonl", "three-torn.jsonl", "inc-crowds.jsonl"
FORETOLD, NOISY = "preflight.jsonl", "inc.jsonl"
BASES = {"FlexMatch+SAGE": "FedAvg+FlexMatch", "FedDB+SAGE": "FedDB", "FedDure+SAGE": "FedDure"}
VARIANTS = ["EM soft", "InC bayes", "InC product", "InC product hard", "InC crossfit"]
STAGES = ["InC initialise only", "InC row", "InC row correct only"]
STAGES += ["InC product", "InC product correct only"]
"""Of InC: the methods of two tables."""
SHARES = (1, 10, 20, 30, 40, 50)
"""Of overlap, in the paper's tables of RISA."""
ROUNDS = (1, 5, 10, 20, 30, 50, 75, 100, 150, 200, 250, 300)


def run(
    quick: bool = False, *, results: str | None = None, curves: str | None = None
) -> BenchResult:
    """Write the tables of all pages; a row each, and whether it is as it was.

    results: the folder of pages and files. curves: a folder of `fedmend bench sage`, whose curves
    are taken into the file of CIFAR-10's rounds first.
    """
    folder = RESULTS if results is None else Path(results)
    if curves is not None:
        add_curves(folder / CIFAR, Path(curves))
    rows = []
    summary = folder.parents[1] / "docs" / "benchmarks.md"
    for page in [*sorted(folder.glob("*.md")), *([summary] if summary.is_file() else [])]:
        before = page.read_text(encoding="utf-8")
        text = MADE.sub(
            lambda found: f"{found[1]}\n{_make(found[2], folder)}\n\n{found[3]}", before
        )
        if text != before:
            write_whole(page, text)
        tables = [found[2] for found in MADE.finditer(text)]
        if page.name == "tabular.md":
            file = str(folder / "tabular.jsonl")
            tabular.run(part="page", folder=file, page=str(page))
            text, tables = page.read_text(encoding="utf-8"), [*tables, "all"]
        if tables:
            same = "as it was" if text == before else "changed"
            rows.append({"page": page.name, "tables": ", ".join(tables), "": same})
    return BenchResult(NAME, rows)


def _make(name: str, folder: Path) -> str:
    if name not in TABLES:
        raise ConfigError(f"there is no table {name!r}. Mend: one of {', '.join(TABLES)}")
    file, make = TABLES[name]
    return make(folder / file)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _short(value: float, digits: int) -> str:
    """Without the nought before the point."""
    return f"{value:.{digits}f}".removeprefix("0")


# ---------------------------------------------------------------------------------- RISA


def _searched(file: Path, data: Sequence[str], overlaps: Sequence[float], rows: int) -> str:
    """Means ± standard deviations on fresh draws, by the choice that held-out rows made.

    In brackets the paper's.
    """
    kept = {search.Trial(**line["cell"]): line["found"]["value"] for line in Kept.at(file).all()}

    def scores(cells: Sequence[search.Trial]) -> dict[search.Trial, float]:
        return {cell: kept[cell] for cell in cells}

    told = {cell.method for cell in kept if cell.data in data}
    methods = [each for each in search.spaces(data[0]) if each in told]
    table = search.searched(data, methods, overlaps, 6, rows, scores)
    places = [(name, f"{share:g}") for name in data for share in overlaps]
    found = {(row["data"], row["method"]): row for row in table}
    theirs = paper_table()
    best = {
        (name, share): max(methods, key=lambda each: found[name, each][f"{share} %"])
        for name, share in places
    }
    lines = []
    for method in methods:
        cells = [f"`{method.replace(' ', '.')}`" if method.endswith("()") else method]
        for name, share in places:
            row = found[name, method]
            mark = "**" if best[name, share] == method else ""
            paper = theirs.get((name, method.removesuffix(" paper()"), float(share)))
            beside = "" if paper is None else f" ({paper:.1f})"
            cells.append(f"{mark}{row[f'{share} %']:.1f}{mark} ± {row[f'± {share}']:.1f}{beside}")
        lines.append(cells)
    shown = {name: name.capitalize() for name in data} | {"cifar10": "CIFAR-10"}
    return _markdown(["", *(f"{shown[name]} {share} %" for name, share in places)], lines)


def _three_torn(file: Path) -> str:
    """AUC of rows known to all, to one partner, and to the label party; bold: the best of ours."""
    lines = [{**line["cell"], **line["found"]} for line in Kept.at(file).all()]
    rows: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for row in three.summary(lines):
        rows.setdefault((row["data"], row["share, %"]), {})[row["method"]] = row
    table = []
    for (name, share), found in sorted(rows.items()):
        best = {
            known: max(found[each][known] for each in three.METHODS if each != three.LEFT_JOIN)
            for known in three.KNOWN
        }
        cells = [f"{name.capitalize()}, {share:g} %"]
        for method in three.METHODS:
            told = []
            for known in three.KNOWN:
                value = found[method][known]
                shown = _short(value, 4)
                ours = method != three.LEFT_JOIN and value == best[known]
                told.append(f"**{shown}**" if ours else shown)
            cells.append(" / ".join(told))
        table.append(cells)
    return _markdown(["", *three.METHODS], table)


def _curves(file: Path, numeric: bool) -> str:
    """What twice the overlap is worth, foretold and really; errors of numbers as they are."""
    rows, inside = [], {"score": 0, "gain": 0}
    lines = [line["found"] for line in Kept.at(file).all() if line["found"]["part"] == "curve"]
    lines = [line for line in lines if (line["metric"] == "rmse") == numeric]
    lines.sort(key=lambda line: (line["dataset"], line["seed"]))

    def shown(value: float) -> str:
        return f"{value:,.{0 if value > 1000 else 2}f}" if numeric else _short(value, 3)

    def gained(value: float) -> str:
        return f"{100 * value:.1f} %".replace("-", "−") if numeric else _signed(value)

    for line in lines:
        inside["score"] += line["inside"]
        inside["gain"] += line["gain inside"]
        rows.append(
            [
                line["dataset"],
                str(line["seed"]),
                *(shown(line[key]) for key in ("now", "really now", "twice")),
                f"{shown(line['from'])} to {shown(line['to'])}",
                shown(line["really twice"]),
                gained(line["gain"]),
                f"{gained(line['gain from'])} to {gained(line['gain to'])}",
                gained(line["real gain"]),
            ]
        )
    off = statistics.mean(abs(line["gain"] - line["real gain"]) for line in lines)
    what, held = "RMSE" if numeric else "AUC", "80 % interval"
    head = ["set", "seed", f"{what} now, foretold", "really", "with twice the rows, foretold"]
    table = _markdown([*head, held, "really", "gain, foretold", held, "really"], rows)
    told = f"{off:.1%}".replace("%", " %") if numeric else _short(off, 4)
    of = f"of {len(lines)}"
    return (
        f"{table}\n\nThe foretold gain is off by {told} on average; the real gain is within its "
        f"interval in {inside['gain']} {of}, the real score in {inside['score']} {of}."
    )


def _crowds(file: Path) -> str:
    """Of every crowd and method, means over seeds, and how far InC is ahead of the others."""
    found: dict[tuple[str, int], list[dict[str, dict[str, float]]]] = {}
    for line in Kept.at(file).all():
        crowd = line["cell"]["data"], line["cell"]["annotators"]
        found.setdefault(crowd, []).append(line["found"])
    rows = []
    for (name, count), draws in found.items():
        for method in crowds.METHODS:
            own = {
                what: statistics.mean(each[method][what] for each in draws)
                for what in crowds.MEASURES
            }
            cells = [f"{name.capitalize()}, {count}" if method == "InC" else "", method]
            for what, digits in (("auc", 4), ("log_loss", 3), ("labels right", 3)):
                cells.append(_short(own[what], digits))
            for what in ("auc", "log_loss"):
                gains = [each["InC"][what] - each[method][what] for each in draws]
                cells.append("" if method == "InC" else _gained(gains))
            rows.append([*cells, f"{own['cpu seconds']:.1f}"])
    head = ["data, annotators", "method", "AUC", "log loss", "labels right"]
    return _markdown([*head, "InC's AUC less this", "its log loss less this", "CPU s"], rows)


def _noisy(file: Path, told: Sequence[str], beside: bool = True, **asked: Sequence[Any]) -> str:
    """Accuracy, labels that are right, or both, by method and setting; in brackets the paper's.

    asked: what the batches may have in these fields. What they all have is no column.
    """
    found: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    settings: list[str] = []
    for line in Kept.at(file).all():
        cell = line["cell"]
        if any(cell[key] not in allowed for key, allowed in asked.items()):
            continue
        of = cell["data"], cell["model"], cell["kind"]
        settings = cell["settings"]
        for row in noise_rows(*of, Finding.of(line["found"]), beside=beside):
            if row["of"] in told:
                method = row["method"].replace(" (", " (/ " if len(told) > 1 else " (")
                if len(told) > 1 and method == CLEAN:
                    method += " (/ ceiling)"
                found.setdefault((*of, method), {})[row["of"]] = row
    head = [("data", "model", "noise", "method")[at] for at in _differing(found)]
    lines = []
    for key, rows in found.items():
        cells = [key[at] for at in _differing(found)]
        for setting in settings:
            values = [_short(rows[what][setting], 3) for what in told]
            paper = rows[told[0]].get(f"{setting}, paper")
            cells.append(" / ".join(values) + (f" ({_short(paper, 3)})" if paper else ""))
        lines.append(cells)
    return _markdown([*head, *settings], lines)


def _differing(keys: Iterable[tuple[str, ...]]) -> list[int]:
    """The places at which not all keys have the same."""
    return [at for at, values in enumerate(zip(*keys, strict=True)) if len(set(values)) > 1]


def _human(file: Path) -> str:
    """Accuracy / labels that are right, by model and method."""
    lines: dict[str, dict[str, str]] = {}
    for line in Kept.at(file).all():
        cell = line["cell"]
        if cell["kind"] == HUMAN:
            for row in human_rows(cell["data"], cell["model"], Finding.of(line["found"])):
                shown = f"{_short(row['accuracy'], 3)} / {_short(row['corrected'], 3)}"
                lines.setdefault(cell["model"], {})[row["method"]] = shown
    head = ["model", *next(iter(lines.values()))]
    head[head.index(CLEAN)] = f"{CLEAN} (/ ceiling)"
    return _markdown(head, [[model, *cells.values()] for model, cells in lines.items()])


def _three_parties(file: Path) -> str:
    """Of rows known to all, and in brackets of rows of the label party alone."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in Kept.at(file).all():
        found.setdefault((line["found"]["method"], line["found"]["data"]), []).append(line["found"])
    methods, data = (list(dict.fromkeys(key[at] for key in found)) for at in (0, 1))

    def mean(method: str, name: str, key: str = "value") -> float:
        return statistics.mean(each[key] for each in found[method, name])

    best = {name: max(methods, key=lambda each: mean(each, name)) for name in data}
    lines = []
    for method in sorted(methods, key=lambda each: mean(each, data[0])):
        cells = [method]
        for name in data:
            mark = "**" if best[name] == method else ""
            spread = statistics.stdev(each["value"] for each in found[method, name])
            alone = mean(method, name, "label party's side")
            cells.append(
                f"{mark}{mean(method, name):.1f}{mark} ± {_short(spread, 1)} ({alone:.1f})"
            )
        lines.append(cells)
    return _markdown(["", *(name.capitalize() for name in data)], lines)


# ---------------------------------------------------------------------------------- tables


def _signed(value: float, digits: int = 4) -> str:
    return ("−" if value < 0 else "+") + _short(abs(value), digits)


def _gains(values: tabular.Values, method: str) -> list[float]:
    """`auto`'s AUC (of numbers R²) less a method's, draw by draw."""
    ours, theirs = values[tabular.AUTO], values[method]
    return [main_metric(ours[s]) - main_metric(theirs[s]) for s in ours if s in theirs]


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def _gained(values: Sequence[float]) -> str:
    """Mean ± standard error."""
    return f"{_signed(statistics.mean(values))} ± {_short(_spread(values), 4)}"


def _found(file: Path) -> dict[tabular.Place, tabular.Values]:
    return tabular.spread([line["cell"] | line["found"] for line in Kept.at(file).all()])


def _sets(file: Path) -> str:
    """How good `auto` is and, in brackets, how far from the best of what there is without it."""
    found = _found(file)
    kinds = sorted({place[2:] for place in found}, key=lambda kind: (kind[0], kind[1]))
    lines: dict[str, list[str]] = {}
    for rows, data in sorted({place[:2] for place in found}):
        cells = lines.setdefault(data, [data.removeprefix("keel-")])
        for kind in kinds:
            values = found[(rows, data, *kind)]
            gains = {name: _gains(values, name) for name in tabular.ALTERNATIVES}
            gain = min(gains.values(), key=statistics.mean)
            own = statistics.mean(main_metric(each) for each in values[tabular.AUTO].values())
            cells.append(f"{_short(own, 3)} ({_gained(gain)})")
    head = [f"{share:g} % {known}" for share, known in kinds]
    return _markdown(["", *head], list(lines.values()))


def _beside(file: Path, metric: str) -> str:
    """`auto` less each method: the mean over sets and overlaps, and where it is behind."""
    found = _found(file)
    lines = []
    for method in tabular.METHODS:
        if method == tabular.AUTO or not any(method in values for values in found.values()):
            continue
        cells = [method]
        for known in ("both", "one"):
            places = [v for place, v in found.items() if place[3] == known and method in v]
            gains = [_gains(values, method) for values in places]
            if not gains:  # what needs both sides says nothing of rows that one knows
                cells += ["–", "–"]
                continue
            means = [statistics.mean(gain) for gain in gains]
            behind = sum(mean < -tabular.WITHIN for mean in means)
            surely = sum(statistics.mean(g) + 2 * _spread(g) < -tabular.WITHIN for g in gains)
            cells += [_gained(means), f"{behind} ({surely}) of {len(means)}"]
        lines.append(cells)
    head = [f"{what}, {known}" for known in ("both", "one") for what in (metric, "behind")]
    return _markdown(["`auto` less", *head], lines)


# ---------------------------------------------------------------------------------- generators

_SCORES = ("shapes", "pairs", "AUC", "dcr", "dcr share")
_GAPS = ("20% RMSE", "20% acc", "block RMSE", "block acc")


def _generated(file: Path, data: str) -> str:
    """Means over seeds, of the AUC with its standard deviation."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in Kept.at(file).all():
        if line["cell"]["data"] == data:
            found.setdefault(line["cell"]["method"], []).append(line["found"])
    methods = [*generators.REFERENCES, *sorted(found.keys() - {*generators.REFERENCES})]
    lines = []
    for method in methods:
        cells = [method, str(len(found[method]))]
        for key in (*_SCORES, *_GAPS):
            values = [row[key] for row in found[method] if row.get(key) is not None]
            told = _short(statistics.mean(values), 3) if values else "–"
            if key == "AUC" and len(values) > 1:
                told += f" ± {_short(statistics.stdev(values), 3)}"
            cells.append(told)
        lines.append(cells)
    return _markdown(["", "seeds", *_SCORES, *_GAPS], lines)


def _figure(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _generator_bars(file: Path) -> str:
    """What the means over seeds promise, without packages of others, which have one seed."""
    rows = generators.means([line["found"] for line in Kept.at(file).all()])
    lines = [
        [bar.name, _figure(bar.value), str(bar.target), "yes" if bar.holds else "**no**"]
        for bar in generators.bars_of(rows)
    ]
    return _markdown(["bar, means over seeds", "measured", "target", "holds"], lines)


# ---------------------------------------------------------------------------------- FedPSG-PUM


def _as_published(where: str, file: Path) -> str:
    """FedPSG-PUM and `paper()`, and the difference: mean ± standard error over seeds."""
    found: dict[tuple[str, float], dict[str, dict[int, dict[str, float]]]] = {}
    for line in Kept.at(file).all():
        for row in line["found"] if line["cell"]["where"] == where else ():
            values = found.setdefault((row["data"], row["missing"]), {})
            values.setdefault(row["method"], {})[row["seed"]] = row
    trained = any(name.startswith(TRAINED) for values in found.values() for name in values)
    told = {key: how for key, how in _PUBLISHED.items() if trained or how[1] != TRAINED}
    lines = []
    for (data, missing), values in sorted(found.items()):
        seeds = sorted(set.intersection(*(set(each) for each in values.values())))
        cells = [data.capitalize(), _short(missing, 1), str(len(seeds))]
        for key, (_, before, digits) in told.items():
            pair = [[values[before + name][s][key] for s in seeds] for name in (OURS, PAPER)]
            ours, paper = (_short(statistics.mean(each), digits) for each in pair)
            apart = [mine - its for mine, its in zip(*pair, strict=True)]
            error = _short(_spread(apart), digits)
            cells.append(f"{ours} / {paper}")
            cells.append(f"{_signed(statistics.mean(apart), digits)} ± {error}")
        lines.append(cells)
    names = [name for title, _, _ in told.values() for name in (title, "difference")]
    return _markdown(["", "missing", "seeds", *names], lines)


_PUBLISHED = {
    "rmse": ("RMSE", "", 3),
    "accuracy": ("accuracy of classes", "", 3),
    "macro_f1": ("macro-F1", "", 3),
    "auc": ("AUC of the joint model", TRAINED, 4),
}


# ---------------------------------------------------------------------------------- the flow


def _flow(overlap: float, file: Path) -> str:
    """Every line of both sets: AUC in percent, and what the whole command took."""
    kept = [line["cell"]["shape"] | line["cell"] | line["found"] for line in Kept.at(file).all()]
    told = [row for row in kept if row["overlap"] == overlap]
    costs = ("cpu", "mb", "messages")
    found = {
        (row["data"], row["line"]): row
        for row in world.summary(told, (world.BOTH, world.BANK_ALONE, *costs))
    }
    sets = sorted({data for data, _ in found}, reverse=True)
    named = [line for line in all_lines() if (sets[0], line.name) in found]
    best = {
        (data, key): max(found[data, line.name][key] for line in named if not line.mended)
        for data in sets
        for key in (world.BOTH, world.BANK_ALONE)
    }
    lines = []
    for line in named:
        own = {data: found[data, line.name] for data in sets}
        cells = [f"{line.name} (`{line.recipe}`)" if line.recipe else line.name]
        for data, row in own.items():
            for key, error in ((world.BOTH, f" ± {row['se']:.1f}"), (world.BANK_ALONE, "")):
                mark = "**" if row[key] == best[data, key] else ""
                cells.append(f"{mark}{row[key]:.1f}{mark}{error}")
        for cost in costs:
            values = [row[cost] for row in own.values()]
            cells.append("" if None in values else " / ".join(f"{value:,.0f}" for value in values))
        lines.append(cells)
    kinds = [f"{name.capitalize()}, {known}" for name in sets for known in ("both", "bank alone")]
    return _markdown(["", *kinds, "processor seconds", "MB", "messages"], lines)


_KNOWN = dict(zip(one_sided.KINDS, ("both", "the label party", "its partner"), strict=True))
_ABSENT = {"–": "", "fill": ", absent side at its mean", "guess": ", absent side guessed"}


def _one_sided(file: Path) -> str:
    """AUC / log loss, means over seeds."""
    rows = one_sided.means([line["cell"] | line["found"] for line in Kept.at(file).all()])
    sets = list(dict.fromkeys(row["set"] for row in rows))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        key = _KNOWN[row["known to"]], row["method"] + _ABSENT[row["absent side"]]
        shown = f"{_short(row['auc'], 3)} / {_short(row['log loss'], 3)}"
        lines.setdefault(key, {})[row["set"]] = shown
    told = [[*key, *(cells[name] for name in sets)] for key, cells in lines.items()]
    return _markdown(["known to", "", *(name.capitalize() for name in sets)], told)


# ---------------------------------------------------------------------------------- SAGE


def _percent(share: float | None, digits: int = 2) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f}"


def _groups(curves: Sequence[Curve]) -> list[list[Curve]]:
    """Runs that differ in their seed only."""
    found: dict[tuple[str, float], list[Curve]] = {}
    for curve in sorted(curves, key=lambda c: (c.alpha != 0.5, c.alpha, c.method != "SAGE")):
        found.setdefault((curve.method, curve.alpha), []).append(curve)
    return list(found.values())


def _last_ten(curve: Curve, key: str = "accuracy") -> float | None:
    return curve.late(key) if curve.whole else None


def _averaged(group: Sequence[Curve], tell: Callable[[Curve], float | None]) -> str:
    """Mean ± standard error over seeds, where all of them can tell."""
    values = [tell(curve) for curve in group]
    known = [100 * value for value in values if value is not None]
    if len(known) < len(group):
        return ""
    error = statistics.stdev(known) / math.sqrt(len(known))
    return f"**{statistics.mean(known):.2f} ± {_short(error, 2)}**"


def _last(curve: Curve, key: str = "accuracy") -> float | None:
    return curve.rounds[-1].get(key)


def _best(curve: Curve, key: str = "accuracy") -> float:
    return max(curve.figures(key, slice(None)))


def _standing(file: Path, key: str) -> str:
    """Every run's last and best round and its last ten, and means over seeds."""
    told = [partial(tell, key=key) for tell in (_last, _best, _last_ten)]
    lines = []
    for group in _groups(read_curves(file)):
        method, alpha = group[0].method, group[0].alpha
        paper = paper_accuracy("cifar10", alpha)
        for curve in group:
            last, best, ten = (tell(curve) for tell in told)
            reached = [
                each["round"] for each in curve.rounds if each.get(key, 0) >= paper["SAGE"] / 100
            ]
            top = next(each["round"] for each in curve.rounds if each.get(key) == best)
            line = [
                method + (" (one seed)" if len(group) == 1 else ""),
                f"{alpha:g}",
                str(curve.seed),
                str(curve.rounds[-1]["round"]),
                _percent(last),
                f"{_percent(best)} ({top})",
                _percent(ten),
                str(reached[0]) if reached and curve.whole else "–",
            ]
            if key == "accuracy":
                line += [_percent(curve.averaged.get("5")), str(paper.get(method, "–"))]
            lines.append(line)
        if len(group) > 1:
            means = [_averaged(group, tell) for tell in told]
            line = [f"**{method}, mean ± s.e.**", f"{alpha:g}", f"{len(group)} seeds", "", *means]
            lines.append(line + [""] * (len(lines[-1]) - len(line)))
    head = ["", "alpha", "seed", "rounds", "last, %", "best, % (round)", "mean of the last ten, %"]
    head.append("first at the paper's figure for SAGE")
    if key == "accuracy":
        head += ["mean over five rounds, last, %", "paper"]
    return _markdown(head, lines)


def _in_short(file: Path) -> str:
    """Long runs of the paper's Table 1, for the page of all benchmarks."""
    lines = []
    for group in _groups(read_curves(file)):
        rounds = min(curve.rounds[-1]["round"] for curve in group)
        method, alpha = group[0].method, group[0].alpha
        paper = paper_accuracy("cifar10", alpha).get(method)
        if rounds >= 200 and paper is not None:
            told = [
                _averaged(group, tell) if len(group) > 1 else _percent(tell(group[0]))
                for tell in (_best, _last)
            ]
            lines.append([method, f"{alpha:g}", str(len(group)), str(rounds), *told, str(paper)])
    head = ["", "alpha", "seeds", "rounds", "best, %", "last, %", "paper, 300 rounds"]
    return _markdown(head, lines)


def _by_round(file: Path) -> str:
    """Accuracy in per cent, labels right and rows used, round by round."""
    lines = []
    for group in _groups(read_curves(file)):
        for curve in group:
            at = {each["round"]: each for each in curve.rounds}
            cells = []
            for number in ROUNDS:
                entry = at.get(number)
                if entry is None:
                    cells.append("–")
                    continue
                shares = [
                    "–" if entry.get(key) is None else _short(entry[key], 2)
                    for key in ("pseudo_accuracy", "utilisation")
                ]
                cells.append(f"{_percent(entry['accuracy'], 1)} ({shares[0]}, {shares[1]})")
            marks = [curve.reached(mark) if curve.whole else None for mark in MARKS]
            name = f"{curve.method}, {curve.alpha:g}, {curve.seed}"
            lines.append([name, *cells, " / ".join(str(each or "–") for each in marks)])
    head = [f"{100 * mark:.0f}" for mark in MARKS]
    return _markdown(["round", *map(str, ROUNDS), f"first at {' / '.join(head)} %"], lines)


def _plug_ins(file: Path) -> str:
    """A baseline, and it with SAGE, after as many rounds as the shorter of both has."""
    runs = {(each.method, each.alpha, each.seed): each for each in read_curves(file)}
    lines = []
    for (method, alpha, seed), curve in runs.items():
        base = runs.get((BASES.get(method, ""), alpha, seed))
        if base is None:
            continue
        rounds = min(len(base.rounds), len(curve.rounds))
        pairs = zip(curve.accuracies[:rounds], base.accuracies[:rounds], strict=True)
        ahead = sum(mine > its for mine, its in pairs)
        for each, beside in ((base, ""), (curve, f"{ahead} of {rounds}")):
            shares = [each.late(key, rounds) for key in ("pseudo_accuracy", "utilisation")]
            accuracies = each.accuracies[:rounds]
            told = accuracies[-1], max(accuracies), each.late("accuracy", rounds)
            line = [each.method, str(rounds), *map(_percent, told), beside]
            lines.append(line + [_short(share or 0.0, 2) for share in shares])
    head = ["", "rounds", "last, %", "best, %", "mean of the last ten, %", "ahead in"]
    return _markdown([*head, "right", "used"], lines)


def _few_labels(file: Path, rounds: int) -> str:
    """Small tables: every candidate, and what ``auto`` takes; rounds: of each, at most."""
    rows = summary([line for line in _few(file) if line[0].rounds == rounds and line[0].folds])
    told = []
    for row in rows:
        row["alpha"] = f"{row['alpha']:g}"
        values = [row[name] for name in _FEW]
        told.append([_short(each, 3) if isinstance(each, float) else str(each) for each in values])
    return _markdown(list(_FEW.values()), told)


def _few(file: Path) -> list[tuple[Cell, dict[str, Any]]]:
    return [(Cell(**line["cell"]), line["found"]) for line in Kept.at(file).all()]


def _counted(file: Path) -> str:
    """AUC / log loss where rounds are counted by held-out rows, beside all fifty of FedAvg's."""
    found = {cell: told for cell, told in _few(file) if cell.rounds == FIFTY}
    groups: dict[tuple[str, str], list[dict[str, dict[str, float]]]] = {}
    for cell, told in found.items():
        whole = found.get(replace(cell, patience=None, folds=0))
        if cell.patience is None or whole is None:
            continue
        columns = {"FedAvg, all 50 rounds": whole["test"]["FedAvg"], **told["test"]}
        columns["`auto`"] = told["test"][taken(told)]
        groups.setdefault((cell.where, cell.data), []).append(columns)
    rows = []
    for (where, data), each in groups.items():
        cells = [where, data, str(len(each))]
        for name in each[0]:
            values = [
                _short(statistics.mean(one[name][what] for one in each), 3)
                for what in ("auc", "log_loss")
            ]
            cells.append(" / ".join(values))
        gains = [one["`auto`"]["auc"] - one["FedAvg, all 50 rounds"]["auc"] for one in each]
        rows.append([*cells, _gained(gains)])
    names = next(iter(groups.values()))[0]
    head = ["labels at", "data", "seeds", *names, "`auto`'s AUC less all 50 rounds'"]
    return _markdown(head, rows)


FIFTY = 50
_FEW = {
    name: name for name in ("labels at", "data", "alpha", "labels", "seeds", "alone", *CANDIDATES)
} | {
    "default less FedAvg": "`auto` less FedAvg, points",
    "default less alone": "less alone",
    "default less alone, own rows": "on a client's own rows",
    "FedAvg left": "FedAvg left, of the seeds",
}


_BOTH = ("accuracy", "corrected")
_MAIN: dict[str, Any] = {
    "methods": [list(TABLE_METHODS)],
    "kind": TABLE_KINDS,
    "labelled": [1.0],
}


TABLES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "risa-search": (SEARCH, lambda file: _searched(file, ("adult", "credit"), (1, 10, 50), 3000)),
    "risa-search-digits": (SEARCH, lambda file: _searched(file, ("digits",), (10, 50), 1000)),
    "risa-search-images": (SEARCH, lambda file: _searched(file, ("cifar10",), SHARES, 50000)),
    "risa-three-parties": (THREE, _three_parties),
    "three-torn": (TORN, _three_torn),
    "inc-crowds": (CROWDS, _crowds),
    **{
        f"inc-{data}{beside}": (NOISY, partial(_noisy, told=[told], data=[data], **_MAIN))
        for data in ("letter", "covertype", "sensorless")
        for beside, told in (("", "accuracy"), ("-labels", "corrected"))
    },
    "inc-variants": (NOISY, partial(_noisy, told=_BOTH, beside=False, methods=[VARIANTS])),
    "inc-stages": (NOISY, partial(_noisy, told=_BOTH, beside=False, methods=[STAGES])),
    "inc-rows": (NOISY, partial(_noisy, told=_BOTH, beside=False, kind=["instance"])),
    "inc-part": (NOISY, partial(_noisy, told=_BOTH, beside=False, labelled=[0.5])),
    "inc-human": (NOISY, _human),
    "preflight-curves": (FORETOLD, partial(_curves, numeric=False)),
    "preflight-numbers": (FORETOLD, partial(_curves, numeric=True)),
    "keel-sets": (KEEL, _sets),
    "keel-methods": (KEEL, partial(_beside, metric="AUC")),
    "numbers-sets": (NUMBERS, _sets),
    "numbers-methods": (NUMBERS, partial(_beside, metric="R²")),
    "generators-adult": (MADE_ROWS, lambda file: _generated(file, "adult")),
    "generators-bank": (MADE_ROWS, lambda file: _generated(file, "bank")),
    "generators-credit": (MADE_ROWS, lambda file: _generated(file, "credit")),
    "generators-bars": (MADE_ROWS, _generator_bars),
    "fedpsg-pum-paper": (COMPLETED, partial(_as_published, "random")),
    "fedpsg-pum-paper-last": (COMPLETED, partial(_as_published, "last")),
    "flow": (FLOW, partial(_flow, 0.1)),
    "flow-half": (FLOW, partial(_flow, 0.5)),
    "one-sided": (ONE_SIDED, _one_sided),
    "sage-tables": (ALONE, partial(_few_labels, rounds=FIFTY)),
    "sage-tables-counted": (ALONE, _counted),
    "sage-tables-twenty": (ALONE, partial(_few_labels, rounds=20)),
    "sage-runs": (CIFAR, lambda file: _standing(file, "accuracy")),
    "sage-published": (CIFAR, lambda file: _standing(file, "accuracy_published")),
    "sage-by-round": (CIFAR, _by_round),
    "sage-plug-ins": (CIFAR, _plug_ins),
    "sage-in-short": (CIFAR, _in_short),
}
