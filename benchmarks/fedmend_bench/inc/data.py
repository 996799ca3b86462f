"""Data of `fedmend bench inc`: tables dealt out to four parties, and annotators who err."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch
from torch import Tensor

from fedmend.data import datasets
from fedmend.data.crowds import annotators
from fedmend.data.encode import LabelEncoder
from fedmend.errors import ConfigError

PARTIES = 4
SPANS = {
    "low-small": (0.1, 0.2),
    "median-small": (0.3, 0.4),
    "median-large": (0.2, 0.5),
    "high-large": (0.3, 0.6),
}
KINDS = ("symmetric", "pair-flip")
SPARED = 0.05
"""The error rate of the classes a pair-flipping annotator mostly gets right."""
PAPER_NAMES = {"letter": "Letter", "covertype": "Covtype", "sensorless": "Sensorless"}


@dataclass(frozen=True)
class Problem:
    """A table of numbers and its classes."""

    name: str
    features: np.ndarray
    labels: np.ndarray
    classes: int


def load_problem(name: str, rows: int | None = None) -> Problem:
    """A named data set; `rows` keeps a random part of it. Covertype is classes 1 and 2."""
    options = {"classes": (1, 2)} if name == "covertype" else {}
    table = datasets.load(name, **options)
    labels = LabelEncoder("multiclass").fit(table.y, table.schema[str(table.label)])
    features = table.frame[table.feature_names].to_numpy(np.float32)
    y = labels.transform(table.y)
    if rows is not None and rows < len(y):
        kept = np.random.default_rng(0).permutation(len(y))[:rows]
        features, y = features[kept], y[kept]
    return Problem(name, features, y, len(labels.classes_))


@dataclass(frozen=True)
class Worlds:
    """Several draws of training rows (80 %) and of the columns' owners.

    **Shape** train [R, N, F], test [R, M, F], columns in the order of the parties.
    """

    train: Tensor
    test: Tensor
    y_train: np.ndarray
    y_test: np.ndarray
    columns: tuple[int, ...]


def make_worlds(problem: Problem, seeds: Sequence[int], device: str = "cpu") -> Worlds:
    """Every seed draws its own split; columns are standardised on its training rows."""
    n, width = problem.features.shape
    trained = int(0.8 * n)
    parts = np.array_split(np.arange(width), PARTIES)
    train, test, y_train, y_test = [], [], [], []
    for seed in seeds:
        rng = np.random.default_rng([seed, 11])
        order, columns = rng.permutation(n), rng.permutation(width)
        rows, rest = order[:trained], order[trained:]
        values = problem.features[:, columns]
        mean, spread = values[rows].mean(0), values[rows].std(0)
        scaled = (values - mean) / np.where(spread > 0, spread, 1.0)
        train.append(torch.from_numpy(scaled[rows]).to(device))
        test.append(torch.from_numpy(scaled[rest]).to(device))
        y_train.append(problem.labels[rows])
        y_test.append(problem.labels[rest])
    return Worlds(
        torch.stack(train),
        torch.stack(test),
        np.stack(y_train),
        np.stack(y_test),
        tuple(len(part) for part in parts),
    )


def draw_votes(
    y: np.ndarray, classes: int, setting: str, kind: str, seed: int
) -> tuple[np.ndarray, int]:
    """Four parties' labels [n, K], and how many draws were thrown away.

    Thrown away are draws in which the parties together are no better than chance: then classes
    swap, whatever the method. Pair-flip: half of the classes are mistaken for the next one at a
    rate of the setting's span, the others at 5 %.
    """
    low, high = SPANS[setting]
    for redrawn in range(1000):
        rng = np.random.default_rng(
            [seed, sorted(SPANS).index(setting), KINDS.index(kind), redrawn]
        )
        rates: list[float | list[float]]
        if kind == "symmetric":
            rates = list(rng.uniform(low, high, PARTIES))
        else:
            rates = [_flipping(rng, classes, low, high) for _ in range(PARTIES)]
        votes = annotators(
            y, rates=rates, kind=kind, n_classes=classes, seed=int(rng.integers(2**32))
        )
        if (votes == y[:, None]).mean() > 1 / classes:
            return votes, redrawn
    raise ConfigError(f"no draw of {setting} beats chance with {classes} classes")


def _flipping(rng: np.random.Generator, classes: int, low: float, high: float) -> list[float]:
    rates = np.full(classes, SPARED)
    chosen = rng.permutation(classes)[: classes // 2]
    rates[chosen] = rng.uniform(low, high, len(chosen))
    return rates.tolist()


def paper_table(metric: str, dataset: str, model: str) -> dict[tuple[str, str], float]:
    """The paper's numbers by (method, setting); empty where it has none."""
    text = resources.files("fedmend_bench").joinpath("paper", "inc.csv").read_text("utf-8")
    found: dict[tuple[str, str], float] = {}
    for row in csv.DictReader(text.splitlines()):
        same = (row["metric"], row["dataset"], row["model"])
        if same == (metric, PAPER_NAMES.get(dataset), model.upper()):
            found |= {(row["method"], setting): float(row[setting]) for setting in SPANS}
    return found
