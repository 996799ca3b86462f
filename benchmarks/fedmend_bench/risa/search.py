"""`fedmend bench risa -o search=6`: every method has as many trials of its own settings.

A fifth of a table is set aside, once for all seeds, and nothing is chosen by it. Of the rest each
draw takes training rows, and held-out rows by which trials are judged: all at one overlap, then the
two best at the least and the most, on further draws. The better mean is fitted on fresh draws and
looked at once on the fifth. Trial 0 is what the method has elsewhere in this benchmark. Halves of
digits are columns of pixels here, so that a hundred networks fit into an hour; those of CIFAR-10
are images, whose own test rows take the place of the fifth, and fresh fits have all rows.
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
from fedmend.split.config import resolve_device
from fedmend_bench.cells import run_cells
from fedmend_bench.risa.data import IMAGES, LABELS, Sides, load_sides, tear
from fedmend_bench.risa.methods import Size, make
from fedmend_bench.risa.runs import start

__all__ = ["Trial", "measured", "searched", "spaces"]

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
# What a method has on images goes by its rows and by how many overlap: so these are factors of it.
FACTORS: dict[str, Sequence[Any]] = {
    "×lr": (0.25, 0.5, 1, 2),
    "×weight_decay": (0.25, 1, 2.5),
    "×epochs": (0.67, 1, 1.5),
}
ON_IMAGES: dict[str, dict[str, Sequence[Any]]] = {
    method: FACTORS | {name: values for name, values in space.items() if name not in NETWORK}
    for method, space in SEARCHED.items()
    if not method.startswith("Absent")
}
ON_IMAGES |= {
    "SSLVFL": FACTORS | {"pretrain_epochs": (6, 15, 30), "temperature": (0.1, 0.5)},
    "FewShotVFL": {
        "×lr": FACTORS["×lr"],
        "×weight_decay": FACTORS["×weight_decay"],
        "×local_updates": (1, 2, 3),
        "top": ((), (256,)),
        "batch_size": (64, 128),
        "threshold": (0.8, 0.95),
        "rounds": (1, 2),
    },
    "AbsentMean shared": FACTORS | {"share_every": (5, 10)},
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


def spaces(data: str) -> dict[str, dict[str, Sequence[Any]]]:
    """What is searched of every method on such data."""
    return ON_IMAGES if data == "cifar10" else SEARCHED


def trials(data: str, method: str, count: int) -> list[str]:
    """Settings as JSON; the first changes nothing.

    >>> trials("adult", "VFL", 1)
    ['{}']
    """
    rng = np.random.default_rng([7, *method.encode()])
    found = {"{}": None}
    while len(found) < count:
        space = spaces(data)[method].items()
        drawn = {name: values[int(rng.integers(len(values)))] for name, values in space}
        found[json.dumps(drawn)] = None
    return list(found)


def measure(trial: Trial) -> dict[str, Any]:
    """Fit one trial; its score in per cent."""
    sides = drawn_sides(trial)
    device = str(resolve_device("auto")) if sides.is_image else "cpu"
    world = tear(sides, trial.overlap / 100, trial.seed, device)
    size = Size(sides.is_image, world.overlap, trial.rows, device=device)
    model = set_trial(make(trial.method, size, trial.seed), trial.settings)
    began = time.process_time()
    model.fit(world.fed)
    score = model.evaluate(world.fed.on("test"))["accuracy" if trial.data in IMAGES else "auc"]
    return {"value": 100 * score, "seconds": time.process_time() - began}


def set_trial(model: Any, settings: str) -> Any:
    """The method with a trial's settings; those marked × are factors of what it has."""
    changed = {}
    for name, value in json.loads(settings).items():
        if name.startswith("×"):
            name = name.removeprefix("×")
            had = getattr(model, name)
            value = round(had * value) if isinstance(had, int) else had * value
        changed[name] = tuple(value) if isinstance(value, list) else value
    return model.set_params(**changed)


def drawn_sides(trial: Trial) -> Sides:
    """The draw of a seed: training rows, and those to score by."""
    whole = load_sides(trial.data, FIFTH, None, None)
    order = np.random.default_rng([trial.seed, 31]).permutation(len(whole.train[LABELS]))
    count = trial.rows if trial.test else min(trial.rows, len(order) * 4 // 5)
    train = _rows(whole.train, order[:count])
    test = whole.test if trial.test else _rows(whole.train, order[count:][: 2 * trial.rows])
    if trial.data == "cifar10":
        return Sides(trial.data, train, test)
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
    first = min(overlaps, key=lambda share: abs(share - 10))
    others = sorted(share for share in overlaps if share != first) or [first]
    further = (others[0], others[-1])
    table = []
    for name in data:
        for method in (each for each in methods if each in spaces(name)):

            def at(settings: str, share: float, seed: int, test: bool = False) -> Trial:
                return Trial(name, method, share, seed, settings, rows, test)  # noqa: B023

            begun = scores([at(each, first, DRAWS[0]) for each in trials(name, method, count)])
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
