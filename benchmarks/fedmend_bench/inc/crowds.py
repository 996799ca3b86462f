"""InC by default beside Dawid–Skene and the majority: `fedmend bench inc -o crowds=bank,labelme`.
And what votes alone cost among many annotators: `fedmend bench inc -o part=crowd`.

Two parties share the columns, annotators of mixed quality have votes only; all methods see the same
rows and votes. Tables have three annotators of all rows (93, 85 and 71 % right), ten of 40 % of
the rows each or thirty of 20 % (55 to 90 % right, drawn); LabelMe has its own 59.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import time
import warnings
from collections.abc import Callable, Sequence
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
GIVEN = {"labelme": 59, "text": 203}
"""Crowds that have their own number of annotators: human ones, and a made one that reads texts."""
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
        columns = np.random.default_rng([seed, 5]).permutation(self.train.columns)
        parties = []
        for party in range(2):
            own = sorted(columns[party::2])
            tables = [
                Table(np.arange(len(each)), each[own].reset_index(drop=True))
                for each in (self.train, self.test)
            ]
            parties.append(Party(f"f{party}", tables[0], test=tables[1], policy=everything))
        fed = Federation(*parties, *voters(self.votes, everything), seed=seed)
        know(fed, together(len(self.y)))
        tested = fed.only("f0", "f1").on("test")
        know(tested, together(len(self.y_test)))
        return fed, tested


def voters(votes: np.ndarray, policy: Policy) -> list[Party]:
    """Annotators who have votes [n, K] and nothing else."""
    named = np.array([*(f"class {number:02}" for number in range(votes.max() + 1)), None])
    parties = []
    for number, said in enumerate(votes.T):
        if (said >= 0).any():
            frame = pd.DataFrame({"y": named[said]})
            table = Table(np.arange(len(said)), frame, label="y", kinds={"y": "nominal"})
            parties.append(Party(f"n{number:02}", table, policy=policy))
    return parties


def world_of(cell: Cell) -> World:
    if cell.data in GIVEN:
        return _labelme() if cell.data == "labelme" else _text(cell)
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


def _text(cell: Cell, columns: int = 300, votes: int = 5) -> World:
    """Two classes by some of many sparse columns; everybody votes on few rows, and errs."""
    rng = np.random.default_rng([cell.seed, 13])
    rows, people = cell.rows + cell.test, GIVEN["text"]
    seen = rng.random((rows, columns)) < rng.uniform(0.005, 0.06, columns)
    words = pd.DataFrame(seen * rng.uniform(0.5, 1.5, seen.shape)).add_prefix("x")
    score = words.to_numpy() @ (rng.normal(size=columns) * (rng.random(columns) < 0.3))
    y = (score - score.mean() + 0.5 * score.std() * rng.normal(size=rows) > 0).astype(np.int64)
    said, right = np.full((cell.rows, people), -1), rng.uniform(0.55, 0.95, people)
    for row in range(cell.rows):
        who = rng.choice(people, votes, replace=False)
        said[row, who] = y[row] ^ (rng.random(votes) >= right[who])
    return World(words[: cell.rows], words[cell.rows :], y[: cell.rows], y[cell.rows :], said)


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
    first_seed: int = 0,
    test: int = 3000,
    folder: str | Path | None = None,
) -> tuple[list[dict[str, Any]], list[Bar]]:
    """A line for each world and method, and whether InC is below another beyond chance."""
    lines, bars = [], []
    for name, count in itertools.product(names, counts):
        if name in GIVEN and count != counts[0]:
            continue
        many = GIVEN.get(name, count)
        wanted = range(first_seed, first_seed + seeds)
        cells = [Cell(name, many, seed, rows, test) for seed in wanted]
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


# ------------------------------------------------------------------ many annotators, votes alone

Labelled = tuple[np.ndarray, int]
"""The likeliest class of every row, and how many rounds of EM it took (0: it is no EM)."""


def made_crowd(rows: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two even classes, and votes [rows, count] as crowds have them: few annotators give most.

    Some four to five votes a row; everybody gives 12 at least, of which 60 to 95 % are right.
    """
    rng = np.random.default_rng([seed, count, 11])
    y = rng.integers(0, 2, rows)
    votes = np.full((rows, count), -1)
    shares = rng.pareto(1.0, count) + 0.2
    for annotator, share in enumerate(shares / shares.sum()):
        given = rng.permutation(rows)[: max(12, round(4.4 * rows * share))]
        wrong = rng.random(len(given)) >= rng.uniform(0.6, 0.95)
        votes[given, annotator] = y[given] ^ wrong
    return y, votes


def _ours(method: type[CrowdEstimator], secure: str, votes: np.ndarray, seed: int) -> Any:
    policy = Policy(allow=frozenset(KINDS)) if secure == "none" else Policy()
    fed = Federation(*voters(votes, policy), seed=seed)
    know(fed, together(len(votes)))

    def fit() -> Labelled:
        model = method(secure=secure).fit(fed)
        return model.posterior_.argmax(1), getattr(model, "iterations_", 0)

    return fit


def _crowd_kit(name: str, votes: np.ndarray) -> Any:
    aggregation = importlib.import_module("crowdkit.aggregation")
    rows, people = np.nonzero(votes >= 0)
    table = pd.DataFrame({"task": rows, "worker": people, "label": votes[rows, people]})

    def fit() -> Labelled:
        model = getattr(aggregation, name)().fit(table)
        labels = model.labels_.reindex(range(len(votes)), fill_value=0)
        return labels.to_numpy(), len(getattr(model, "loss_history_", ()))

    return fit


def votes_alone(rows: int, seeds: int, count: int = 203) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Processor seconds of `fit`, rounds and labels that are right, beside crowd-kit's.

    crowd-kit, which knows all votes, is measured where it is installed.
    """
    lines: dict[str, list[tuple[float, int, float]]] = {}
    for seed in range(-1, seeds):  # the first, smaller one loads what is loaded once
        size, people = (rows, count) if seed >= 0 else (100, 12)
        y, votes = made_crowd(size, people, abs(seed))
        fits: dict[str, Callable[[], Labelled]] = {
            "Dawid–Skene, masks": _ours(EM, "masks", votes, abs(seed)),
            "Dawid–Skene, none": _ours(EM, "none", votes, abs(seed)),
            "majority, masks": _ours(MJ, "masks", votes, abs(seed)),
        }
        if importlib.util.find_spec("crowdkit"):
            fits["Dawid–Skene, crowd-kit"] = _crowd_kit("DawidSkene", votes)
            fits["majority, crowd-kit"] = _crowd_kit("MajorityVote", votes)
        for name, fit in fits.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FedmendWarning)
                began = time.process_time()
                labels, rounds = fit()
            spent = time.process_time() - began
            if seed >= 0:
                found = (spent, rounds, float((labels == y).mean()))
                lines.setdefault(name, []).append(found)
    table: list[dict[str, Any]] = [
        {
            "method": name,
            "cpu seconds": float(np.mean([each[0] for each in found])),
            "least": min(each[0] for each in found),
            "rounds": float(np.mean([each[1] for each in found])),
            "labels right": float(np.mean([each[2] for each in found])),
            "seeds": len(found),
        }
        for name, found in lines.items()
    ]
    right = {line["method"]: line["labels right"] for line in table}
    best = max(value for name, value in right.items() if name != "Dawid–Skene, masks")
    label = "labels right, Dawid–Skene with masks, beside the best of the others"
    return table, [Bar.at_least(label, right["Dawid–Skene, masks"], round(best - 0.002, 4))]
