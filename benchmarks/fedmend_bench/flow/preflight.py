"""What `fedmend check` foretells, beside what came of it: costs of methods, and twice the overlap.

Part ``cost`` trains every method with its default settings and compares seconds and bytes with the
estimate. Part ``curve`` fits the learning curve on n shared rows, then trains on twice as many and
scores both on people who were in neither.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from fedmend.data import scenario
from fedmend.data.encode import LabelEncoder
from fedmend.data.table import Table
from fedmend.errors import FedmendWarning
from fedmend.federation import Federation, Party
from fedmend.federation.engines.local import LocalEngine
from fedmend.methods import costs, registry
from fedmend.preflight import curve
from fedmend.secure.align import align
from fedmend_bench import datasets
from fedmend_bench.cells import run_cells
from fedmend_bench.harness import Bar, BenchResult
from fedmend_bench.options import chosen, listed, numbered

HELP = "pre-flight: estimated costs and the worth of twice the overlap, beside what came of it"

DATASETS = ("bank", "credit", "adult")
VERTICAL = {"local": "Local", "vfl": "VFL", "local-vfl": "LocalVFL", "ssl-vfl": "SSLVFL"}
VERTICAL |= {"risa": "RISA", "fedpsg-pum": "FedPSGPUM"}
VERTICAL |= {"local-trees": "LocalTrees", "boosting": "SecureBoost", "auto": "Auto"}
CROWD = {"inc": "InC", "majority": "MJ", "dawid-skene": "EM"}
HORIZONTAL = {"sage": "SAGE", "fedavg": "FedAvg", "fedprox": "FedProx", "fixmatch": "FixMatch"}
METHODS = VERTICAL | CROWD | HORIZONTAL
LABELLERS, CLIENTS = 3, 5
ERRORS = (0.1, 0.2, 0.35)
SCORED, REALLY = 3000, 8


@dataclass(frozen=True)
class Cell:
    """One measurement. parties, overlap: of costs, where parties have other columns."""

    part: str
    dataset: str
    rows: int
    method: str = ""
    seed: int = 0
    parties: int = 2
    overlap: float = 0.3


def run(
    *,
    quick: bool = False,
    parts: str = "cost,curve",
    sets: str = ",".join(DATASETS),
    rows: str = "600,2400,9600",
    methods: str = ",".join(METHODS),
    seeds: int = 3,
    first_seed: int = 100,
    parties: int = 2,
    overlap: float = 0.3,
    processes: int = 1,
    folder: str | None = None,
) -> BenchResult:
    """All cells, those kept in the folder taken from there."""
    names, sizes = listed(sets), [int(each) for each in listed(rows)]
    asked = chosen("parts", parts, ("cost", "curve"))
    wanted = chosen("methods", methods, METHODS)
    if quick:
        # Of 160 rows a client may have fewer than a policy's 10.
        names, sizes, seeds = ["breast-cancer"], [220], 1
    curves = product(numbered(seeds, first_seed), sizes, names if "curve" in asked else ())
    costly = product(sizes, wanted, names if "cost" in asked else ())
    cells = [Cell("curve", name, size, seed=seed) for seed, size, name in curves]
    cells += [
        Cell("cost", name, size, method, first_seed, parties, overlap)
        for size, method, name in costly
    ]
    found = run_cells(run_cell, cells, folder, processes)
    return BenchResult("preflight", found, _bars(found, quick=quick))


def run_cell(cell: Cell) -> dict[str, Any]:
    """The measurement of one cell, as a row of the table."""
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedmendWarning)
        return _curve_row(cell) if cell.part == "curve" else _cost_row(cell)


# ---------------------------------------------------------------- tables


def _load(name: str) -> Table:
    """A data set, or as "set:column" with another column as its label."""
    name, _, label = name.partition(":")
    table = datasets.load(name)
    return table.with_label(label) if label else table


def _sample(name: str, rows: int, seed: int) -> Table:
    table = _load(name)
    chosen = np.random.default_rng(seed).permutation(len(table))[:rows]
    return table.take(np.sort(chosen))


def _sides(table: Table, parties: int = 2) -> dict[str, Table]:
    """Columns dealt out in turn, labels at the bank."""
    names = ["bank", "telco", *(f"party-{number}" for number in range(3, parties + 1))]
    columns = {name: table.feature_names[at::parties] for at, name in enumerate(names)}
    return scenario.split_columns(table, columns, label_party="bank")


def _federation(tables: dict[str, Table], seed: int, align_by: str = "ecdh") -> Federation:
    fed = Federation(*(Party(name, table) for name, table in tables.items()), seed=seed)
    if align_by:
        align(fed, mode=align_by)
    return fed


# ---------------------------------------------------------------- the worth of overlap


def _curve_row(cell: Cell) -> dict[str, Any]:
    """Twice the overlap as foretold from n rows, and as it is."""
    whole = _load(cell.dataset)
    n, scored = cell.rows, min(SCORED, max(100, len(whole) - 2 * cell.rows))
    table = _sample(cell.dataset, 2 * n + scored, cell.seed)
    order = np.random.default_rng([cell.seed, 1]).permutation(len(table))
    sides = _sides(table.take(order))
    first = {name: each.take(np.arange(n)) for name, each in sides.items()}
    few = _federation(first, cell.seed, "same-order")
    began = time.process_time()
    found = curve.learning_curve(few, seed=cell.seed)
    seconds = time.process_time() - began
    everyone = _federation(sides, cell.seed, "same-order")
    rng = np.random.default_rng([cell.seed, 2])
    now = found.now.rows
    scores: dict[int, list[float]] = {now: [], 2 * now: []}
    for repeat in range(REALLY):
        drawn = rng.permutation(len(table))
        held, pool = np.sort(drawn[:scored]), drawn[scored:]
        for size, got in scores.items():
            seed = [cell.seed, repeat, size]
            fitted = curve.fit_and_score(
                everyone, ["bank", "telco"], "bank", pool[:size], held, seed
            )
            got.append(fitted[found.metric])
    real = {size: float(np.mean(got)) for size, got in scores.items()}
    # Errors of numbers are compared as shares of what they are now: every label has its own units.
    numeric = found.metric == "rmse"
    gain = (real[now] - real[2 * now]) / real[now] if numeric else real[2 * now] - real[now]
    unit = found.now.score if numeric else 1.0
    return {
        "part": "curve",
        "dataset": cell.dataset,
        "metric": found.metric,
        "rows": now,
        "seed": cell.seed,
        "now": found.now.score,
        "really now": real[now],
        "twice": found.twice.score,
        "really twice": real[2 * now],
        "from": found.twice.low,
        "to": found.twice.high,
        "inside": found.twice.low <= real[2 * now] <= found.twice.high,
        "gain": found.gain[0] / unit,
        "gain from": found.gain[1] / unit,
        "gain to": found.gain[2] / unit,
        "real gain": gain,
        "gain inside": found.gain[1] / unit <= max(0.0, gain) <= found.gain[2] / unit,
        "sizes": " ".join(str(point.rows) for point in found.points),
        "scores": " ".join(f"{point.score:.4f}" for point in found.points),
        "seconds": seconds,
        "noise of the real gain": _noise(scores, now),
    }


def _noise(scores: dict[int, list[float]], now: int) -> float:
    """The standard error of the real gain over its repeats."""
    gains = np.array(scores[2 * now]) - np.array(scores[now])
    return float(gains.std(ddof=1) / np.sqrt(len(gains)))


# ---------------------------------------------------------------- costs


def _cost_row(cell: Cell) -> dict[str, Any]:
    fed, method = _scene(cell)
    facts = facts_of(fed, horizontal=cell.method in HORIZONTAL)
    foretold = registry.estimate(cell.method, facts)
    # Processor time of this one thread: what it takes where nothing else runs.
    crossed, began = fed.ledger.total_bytes(), time.process_time()
    method().fit(fed)
    seconds, size = time.process_time() - began, fed.ledger.total_bytes() - crossed
    return {
        "part": "cost",
        "dataset": cell.dataset,
        "method": cell.method,
        "rows": cell.rows,
        "seconds": seconds,
        "foretold s": foretold.seconds,
        "bytes": size,
        "foretold bytes": foretold.bytes,
        "parties": facts.parties,
        "seconds ratio": seconds / foretold.seconds,
        "bytes ratio": size / foretold.bytes if foretold.bytes else None,
    }


def _scene(cell: Cell) -> tuple[Federation, Callable[[], Any]]:
    """A federation torn as the method mends it, and the method with its default settings."""
    import fedmend

    method = getattr(fedmend, METHODS[cell.method])
    table = _sample(cell.dataset, cell.rows, cell.seed)
    if cell.method in HORIZONTAL:
        parties = scenario.split_clients(table, CLIENTS, labelled=0.1, seed=cell.seed)
        return _federation(parties, cell.seed, ""), method
    if cell.method in CROWD:
        return _federation(_labellers(table, cell.seed), cell.seed), method
    sides = _sides(table, cell.parties)
    if cell.overlap < 1:
        sides = scenario.tear(sides, overlap=cell.overlap, label_party="bank", seed=cell.seed)
    return _federation(sides, cell.seed), method


def _labellers(table: Table, seed: int) -> dict[str, Table]:
    """Two sides of columns and three parties that label, each with errors of its own."""
    label = str(table.label)
    values = table.y.unique().tolist()
    sides = _sides(table)
    tables = {name: each.features for name, each in sides.items()}
    rng = np.random.default_rng([seed, 3])
    for number, error in enumerate(ERRORS[:LABELLERS]):
        said = table.y.to_numpy(copy=True)
        wrong = rng.random(len(said)) < error
        others = {value: [each for each in values if each != value] for value in values}
        said[wrong] = [others[value][rng.integers(len(others[value]))] for value in said[wrong]]
        frame = table.frame[[label]].assign(**{label: said})
        tables[f"labeller-{number + 1}"] = Table(table.ids, frame, label=label)
    return tables


def _bars(rows: Sequence[dict[str, Any]], *, quick: bool = False) -> list[Bar]:
    """quick: of so few rows what a method takes to begin with, which is foretold worse, is more."""
    bars: list[Bar] = []
    most_seconds, most_bytes = (2.5, 1.75) if quick else (2.0, 1.5)
    rows = [row for row in rows if "failed" not in row]
    cost = [row for row in rows if row["part"] == "cost"]
    if cost:
        off = [_times(row["seconds ratio"]) for row in cost]
        bars.append(
            Bar.at_most("seconds, off by a factor of (median)", float(np.median(off)), most_seconds)
        )
        bytes_off = [_times(row["bytes ratio"]) for row in cost if row["bytes ratio"]]
        if bytes_off:
            middle = float(np.median(bytes_off))
            bars.append(Bar.at_most("bytes, off by a factor of (median)", middle, most_bytes))
    curves = [row for row in rows if row["part"] == "curve"]
    for of, limit in (("classes", 0.01), ("numbers, as a share of the error", 0.02)):
        some = [row for row in curves if (row.get("metric") == "rmse") == (of != "classes")]
        if some:
            mean = float(np.mean([abs(row["gain"] - row["real gain"]) for row in some]))
            bars.append(Bar.at_most(f"gain of twice the overlap, mean error ({of})", mean, limit))
    for what, key in (("gain", "gain inside"), ("score", "inside")):
        # An interval of 80 % misses once in five by design: fewer curves say nothing of it.
        if len(curves) >= 5:
            inside = float(np.mean([row[key] for row in curves]))
            bars.append(Bar.at_least(f"{what} within its 80 % interval", inside, 0.6))
    return bars


def _times(ratio: float) -> float:
    return max(ratio, 1 / ratio)


def facts_of(fed: Federation, *, horizontal: bool = False) -> costs.Facts:
    """From what the parties tell of their tables anyway."""
    roster, engine = fed.roster, fed.engine
    assert isinstance(engine, LocalEngine)
    labellers = tuple(name for name, each in roster.items() if each["labelled"])
    return costs.Facts(
        {name: int(each["rows"]) for name, each in roster.items()},
        {name: int(each["features"]) for name, each in roster.items()},
        labellers,
        None if horizontal or not fed.is_aligned else fed.alignment.aligned,
        classes=max(_classes(engine.site(name).tables["train"]) for name in labellers),
        numeric={name: _numbers(engine.site(name).tables["train"]) for name in roster},
    )


def _classes(table: Table) -> int:
    """How many the label has; 1 for a number, or where all rows here are of one class."""
    if table.y.nunique() < 2:
        return 1
    found = LabelEncoder("auto").fit(table.y, table.schema[str(table.label)])
    return len(found.classes_) or 1


def _numbers(table: Table) -> int:
    return sum(table.schema[name].is_numeric for name in table.feature_names)
