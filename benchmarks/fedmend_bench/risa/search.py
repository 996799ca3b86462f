"""`fedmend bench risa -o search=6`: every method has as many trials of its own settings.

A fifth of a table is set aside, once for all seeds, and nothing is chosen by it. Of the rest each
draw takes training rows, and held-out rows by which trials are judged: all at one overlap, then the
two best at the others, on further draws. The better mean is fitted on fresh draws and looked at
once on the fifth. Trial 0 is what the method has elsewhere in this benchmark. Halves of digits are
columns of pixels here, so that a hundred networks fit into an hour.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmend.data.table import Table
from fedmend_bench.cells import run_cells
from fedmend_bench.risa.data import IMAGES, LABELS, Sides, load_sides, tear
from fedmend_bench.risa.methods import Size, make
from fedmend_bench.risa.runs import start

__all__ = ["SEARCHED", "Trial", "measured", "searched"]

FIFTH, DRAWS, FRESH = 100, (20, 21, 22), (5, 6, 7)
"""Seeds: of the fifth that is tested, of the draws to choose by, and of those that are reported."""
FINALISTS = 2
NETWORK: dict[str, Sequence[Any]] = {
    "lr": (3e-4, 1e-3, 3e-3, 1e-2),
    "batch_size": (128, 256),
    "epochs": (10, 20, 40),
    "weight_decay": (0.0, 1e-4, 1e-3),
}
SEARCHED: dict[str, dict[str, Sequence[Any]]] = {
    "Local": NETWORK,
    "VFL": NETWORK,
    "LocalVFL": NETWORK,
    "RandomMatch": NETWORK,
    "SSLVFL": NETWORK
    | {"pretrain_epochs": (3, 6), "temperature": (0.1, 0.5), "corruption": (0.3, 0.6)},
    "SFHTL": NETWORK
    | {
        "epochs": (10, 20),
        "pretrain_epochs": (0, 5),
        "threshold": (0.8, 0.9, 0.95),
        "map_weight": (0.1, 1.0),
        "pseudo_weight": (0.1, 1.0),
    },
    "FedCVT": NETWORK
    | {
        "epochs": (10, 20),
        "temperature": (0.1, 0.3, 0.7),
        "weights": ((0.1, 0.01, 1.0, 0.1), (0.1, 0.01, 100.0, 0.1), (0.01, 0.001, 0.1, 0.01)),
        "thresholds": ((0.8, 0.7, 0.7), (0.95, 0.9, 0.9)),
    },
    "FewShotVFL": NETWORK
    | {
        "batch_size": (16, 32, 64),
        "local_updates": (100, 200, 400),
        "threshold": (0.8, 0.95),
        "corruption": (0.3, 0.6),
        "rounds": (1, 2),
    },
    "AbsentMean": NETWORK,
    "AbsentConcat": NETWORK | {"drop": (0.1, 0.3, 0.5)},
    "RISA": NETWORK,
    "RISA paper()": NETWORK
    | {
        "epochs": (10, 20),
        "threshold": (0.6, 0.7, 0.8, 0.9, 0.95),
        "final_threshold": (0.1, 0.3, 0.6, 0.9),
        "select_every": (2, 5, 10),
    },
}


@dataclass(frozen=True)
class Trial:
    """One fit. settings: what is changed, as JSON. test: scored by the fifth, not held-out rows."""

    data: str
    method: str
    overlap: float
    seed: int
    settings: str
    rows: int
    test: bool


def trials(method: str, count: int) -> list[str]:
    """Settings as JSON; the first changes nothing.

    >>> trials("VFL", 1)
    ['{}']
    """
    rng = np.random.default_rng([7, *method.encode()])
    found = {"{}": None}
    while len(found) < count:
        space = SEARCHED[method].items()
        drawn = {name: values[int(rng.integers(len(values)))] for name, values in space}
        found[json.dumps(drawn)] = None
    return list(found)


def measure(trial: Trial) -> dict[str, Any]:
    """Fit one trial; its score in per cent."""
    sides = drawn_sides(trial)
    world = tear(sides, trial.overlap / 100, trial.seed)
    model = make(trial.method, Size(False, world.overlap, trial.rows), trial.seed)
    changed = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in json.loads(trial.settings).items()
    }
    began = time.process_time()
    model.set_params(**changed).fit(world.fed)
    score = model.evaluate(world.fed.on("test"))["accuracy" if trial.data in IMAGES else "auc"]
    return {"value": 100 * score, "seconds": time.process_time() - began}


def drawn_sides(trial: Trial) -> Sides:
    """The draw of a seed: training rows, and those to score by."""
    whole = load_sides(trial.data, FIFTH, None, None)
    order = np.random.default_rng([trial.seed, 31]).permutation(len(whole.train[LABELS]))
    count = min(trial.rows, len(order) * 4 // 5)
    train = _rows(whole.train, order[:count])
    test = whole.test if trial.test else _rows(whole.train, order[count:][: 2 * trial.rows])
    return Sides(trial.data, _columns(train), _columns(test))


def _rows(tables: Mapping[str, Table], rows: np.ndarray) -> dict[str, Table]:
    return {name: table.take(rows) for name, table in tables.items()}


def _columns(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Pixels of images as columns of their own; tables as they are."""
    found = dict(tables)
    for name, table in tables.items():
        for block, pixels in table.blocks.items():
            flat = pixels.reshape(len(table), -1).astype(float)
            columns = {f"{block}{place}": flat[:, place] for place in range(flat.shape[1])}
            frame = table.frame.assign(**columns)
            kinds = {str(each): table.schema[each].kind for each in table.frame.columns}
            found[name] = Table(table.ids, frame, kinds=kinds, label=table.label)
    return found


def measured(
    cells: Sequence[Trial], folder: str | None = None, processes: int = 1
) -> dict[Trial, float]:
    """The score of every trial; of those with a line in the folder, from there."""
    found = run_cells(measure, cells, folder, processes, start)
    # A trial whose training fails has lost.
    lost = {"value": -math.inf}
    return {cell: (lost | each)["value"] for cell, each in zip(cells, found, strict=True)}


def searched(
    data: Sequence[str],
    methods: Iterable[str],
    overlaps: Sequence[float],
    count: int,
    rows: int,
    scores: Callable[[Sequence[Trial]], dict[Trial, float]] = measured,
) -> list[dict[str, Any]]:
    """A row for every method: mean and spread on fresh draws at every overlap, and its choice."""
    first, *others = sorted(overlaps, key=lambda share: abs(share - 10))
    further = [(others or [first])[number % max(1, len(others))] for number in range(2)]
    table = []
    for name in data:
        for method in methods:

            def at(settings: str, share: float, seed: int, test: bool = False) -> Trial:
                return Trial(name, method, share, seed, settings, rows, test)  # noqa: B023

            begun = scores([at(each, first, DRAWS[0]) for each in trials(method, count)])
            best = sorted(begun, key=begun.__getitem__, reverse=True)[:FINALISTS]
            means = {}
            for cell in best:
                more = [at(cell.settings, *place) for place in zip(further, DRAWS[1:], strict=True)]
                means[cell.settings] = statistics.mean([begun[cell], *scores(more).values()])
            choice = max(means, key=means.__getitem__)
            row: dict[str, Any] = {"data": name, "method": method}
            for share in overlaps:
                seen = scores([at(choice, share, seed, test=True) for seed in FRESH])
                row[f"{share:g} %"] = statistics.mean(seen.values())
                row[f"± {share:g}"] = statistics.stdev(seen.values())
            table.append(row | {"held out": means[choice], "chosen": choice})
    return table
