"""InC by default beside Dawid–Skene and the majority: `fedmend bench inc -o crowds=bank,labelme`.

Two parties share the columns, annotators of mixed quality have votes only; all methods see the same
rows and votes. Tables have three annotators of all rows (93, 85 and 71 % right), ten of 40 % of
the rows each or thirty of 20 % (55 to 90 % right, drawn); LabelMe has its own 59.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.crowds import annotators
from fedmend.data.encode import LabelEncoder
from fedmend.data.table import Table
from fedmend.errors import FedmendWarning
from fedmend.federation import KINDS, Federation, Party, Policy
from fedmend.learn import metrics
from fedmend.methods.annotators.baselines import EM, MJ
from fedmend.methods.annotators.estimator import CrowdEstimator
from fedmend.methods.annotators.inc import InC
from fedmend_bench import datasets
from fedmend_bench.cells import run_cells
from fedmend_bench.harness import Bar
from fedmend_bench.simulation import know, together

METHODS: dict[str, type[CrowdEstimator]] = {"InC": InC, "EM": EM, "MJ": MJ}
TABLES = ("bank", "adult", "credit", "covertype", "letter", "sensorless", "breast-cancer")
SILENT = {3: 0.0, 10: 0.6, 30: 0.8}
"""How many annotators, and the share of rows of which each of them says nothing."""
MEASURES = ("auc", "accuracy", "log_loss", "labels right", "cpu seconds")


@dataclass(frozen=True)
class Cell:
    """One world; its numbers follow from what is named here. Of human votes there is one draw."""

    data: str
    annotators: int
    seed: int
    rows: int
    test: int


@dataclass(frozen=True)
class World:
    """The columns of training and test rows, what is true of them, and what annotators say."""

    train: pd.DataFrame
    test: pd.DataFrame
    y: np.ndarray
    y_test: np.ndarray
    votes: np.ndarray

    def federations(self, seed: int) -> tuple[Federation, Federation]:
        """All parties with the training rows, and the two with columns with the test rows."""
        everything = Policy(allow=frozenset(KINDS))  # nobody is hidden from in a simulation
        named = np.array([*(f"class {number:02}" for number in range(self.y.max() + 1)), None])
        columns = np.random.default_rng([seed, 5]).permutation(self.train.columns)
        parties = []
        for party in range(2):
            own = sorted(columns[party::2])
            tables = [
                Table(np.arange(len(each)), each[own].reset_index(drop=True))
                for each in (self.train, self.test)
            ]
            parties.append(Party(f"f{party}", tables[0], test=tables[1], policy=everything))
        for number, said in enumerate(self.votes.T):
            if (said >= 0).any():
                frame = pd.DataFrame({"y": named[said]})
                table = Table(np.arange(len(said)), frame, label="y", kinds={"y": "nominal"})
                parties.append(Party(f"n{number:02}", table, policy=everything))
        fed = Federation(*parties, seed=seed)
        know(fed, together(len(self.y)))
        tested = fed.only("f0", "f1").on("test")
        know(tested, together(len(self.y_test)))
        return fed, tested


def world_of(cell: Cell) -> World:
    if cell.data == "labelme":
        return _labelme()
    options = {"classes": (1, 2)} if cell.data == "covertype" else {}
    table = datasets.load(cell.data, **options)
    encoder = LabelEncoder("multiclass").fit(table.y, table.schema[str(table.label)])
    rng = np.random.default_rng([cell.seed, cell.annotators, 7])
    order = rng.permutation(len(table))[: cell.rows + cell.test]
    frame, y = table.frame[table.feature_names].iloc[order], encoder.transform(table.y)[order]
    rates = [0.07, 0.15, 0.29] if cell.annotators == 3 else rng.uniform(0.1, 0.45, cell.annotators)
    votes = annotators(
        y[: cell.rows],
        rates=list(rates),
        missing=SILENT[cell.annotators],
        n_classes=len(encoder.classes_),
        seed=int(rng.integers(2**31)),
    )
    return World(frame[: cell.rows], frame[cell.rows :], y[: cell.rows], y[cell.rows :], votes)


def _labelme() -> World:
    parts = datasets.load("labelme"), datasets.load("labelme", split="test")
    frames = [pd.DataFrame(part.blocks["features"].astype(float)).add_prefix("x") for part in parts]
    y, y_test = (part.y.to_numpy(np.int64) for part in parts)
    votes = datasets.human_labels("labelme")
    return World(frames[0], frames[1], y, y_test, votes)


def measure(cell: Cell) -> dict[str, dict[str, float]]:
    """Per method metrics of test rows, and the share of training rows with the right label."""
    world = world_of(cell)
    fed, tested = world.federations(cell.seed)
    found = {}
    for name, method in METHODS.items():
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedmendWarning)
            # The same labels bit for bit as with masks, which only cost time here.
            model = method(secure="none").fit(fed)
        spent = time.process_time() - began
        told = metrics.classification(world.y_test, model.predict_proba(tested))
        right = float((model.posterior_.argmax(1) == world.y).mean())
        found[name] = told | {"labels right": right, "cpu seconds": spent}
    return found


def compare(
    names: Sequence[str],
    counts: Sequence[int],
    *,
    seeds: int,
    rows: int,
    test: int = 3000,
    folder: str | Path | None = None,
) -> tuple[list[dict[str, Any]], list[Bar]]:
    """A line for each world and method, and whether InC is below another beyond chance."""
    lines, bars = [], []
    for name, count in itertools.product(names, counts):
        if name == "labelme" and count != counts[0]:
            continue
        many = 59 if name == "labelme" else count
        cells = [Cell(name, many, seed, rows, test) for seed in range(seeds)]
        found = [each for each in run_cells(measure, cells, folder) if "failed" not in each]
        for method in METHODS:
            line: dict[str, Any] = {"data": name, "annotators": many, "method": method}
            for what in MEASURES:
                values = np.array([each[method][what] for each in found])
                line[what] = float(values.mean())
                if what == "auc":
                    line["s.e."] = float(values.std(ddof=1) / np.sqrt(len(values)))
            lines.append(line | {"seeds": len(found)})
        for other in ("EM", "MJ"):
            behind = np.array([each[other]["auc"] - each["InC"]["auc"] for each in found])
            chance = 2 * float(behind.std(ddof=1)) / np.sqrt(len(behind))
            label = f"{name}, {many} annotators: AUC behind {other}, within two standard errors"
            bars.append(Bar.at_most(label, float(behind.mean()), round(chance, 4)))
    return lines, bars
