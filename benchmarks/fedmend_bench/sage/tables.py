"""`fedmend bench sage-tables`: whether pseudo-labels pay on small tables, and who would have known.

Five clients with few labels, or labels at two of them, or at one party that has nothing else ("the
server"). Beside FedAvg, FixMatch and SAGE stand a client alone, and what held-out labelled rows
would have chosen, as ``auto`` does: the simplest within a standard error of the best over folds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedmend.data.crowds import client_rows
from fedmend.methods.horizontal.networks import NetSpec
from fedmend.methods.horizontal.rounds import Pool
from fedmend.methods.horizontal.views import TableViews
from fedmend_bench import datasets
from fedmend_bench.harness import Bar, BenchResult
from fedmend_bench.options import chosen
from fedmend_bench.sage.methods import estimator_of
from fedmend_bench.sage.simulator import Simulator, simulator_of

NAME = "sage-tables"
HELP = "few labels on small tables: FedAvg, FixMatch, SAGE, a client alone, and a choice by folds"

LABELLED: dict[str, float | int] = {
    "digits": 10,
    "letter": 10,
    "adult": 0.06,
    "bank": 0.06,
    "credit": 0.06,
}
"""Labels of each class, or their share of the rows."""
WHERE = ("every", "some", "server")
# Rows of a table that are drawn from, that clients share, and to test on.
POOL, ROWS, TEST, TEST_OF_DIGITS = 8000, 1600, 1000, 450
CLIENTS, FOLDS, WARMUP = 5, 4, 4
ARMS = {
    "FedAvg": ("FedAvg", 0),
    "FixMatch": ("FixMatch-LPL", 0),
    "SAGE": ("SAGE", 0),
    "FixMatch, warm-up": ("FixMatch-LPL", WARMUP),
    "SAGE, warm-up": ("SAGE", WARMUP),
}
CANDIDATES = ("FedAvg", "FixMatch, warm-up", "SAGE, warm-up")


@dataclass(frozen=True)
class Share:
    """A client's rows: those with a label, those without, and none of the test's."""

    name: str
    labelled: np.ndarray
    rest: np.ndarray


@dataclass(frozen=True)
class Tables:
    """Standardised columns and labels of all rows, the clients' shares, and test rows."""

    values: np.ndarray
    y: np.ndarray
    shares: list[Share]
    test: np.ndarray

    def train(self, name: str, shares: Sequence[Share], rounds: int, seed: int) -> Simulator:
        """An arm's common model after all rounds."""
        method, warmup = ARMS[name]
        options = {"rounds": rounds, "seed": seed}
        if warmup:
            options["warmup"] = warmup
        estimator = estimator_of(method, "default", **options)
        views = TableViews(torch.from_numpy(self.values), noise=0.3, drop=0.4)
        pools = [
            Pool(
                views,
                self.y,
                labelled=each.labelled,
                unlabelled=np.concatenate([each.labelled, each.rest]),
                truth=self.y,
                name=each.name,
            )
            for each in shares
            if len(each.labelled) + len(each.rest)
        ]
        classes = int(self.y.max()) + 1
        net = NetSpec("mlp", classes=classes, numeric=self.values.shape[1], hidden=(64,))
        simulator = simulator_of(estimator, pools, net, device="cpu")
        while simulator.round < rounds:
            simulator.run_round()
        return simulator

    def accuracy(self, simulator: Simulator, rows: np.ndarray) -> float:
        views = TableViews(torch.from_numpy(self.values[rows]))
        return simulator.accuracy(views, self.y[rows])


def run(
    quick: bool = False,
    *,
    data: str | Sequence[str] | None = None,
    where: str | Sequence[str] = "every",
    alpha: float | Sequence[float] = 0.5,
    labelled: float | int | None = None,
    rounds: int = 20,
    seed: int | Sequence[int] = (0, 1, 2),
) -> BenchResult:
    """Train every arm on every table, split and seed; a line each is the mean over seeds.

    labelled: labels of each class, or their share of the rows; by default few (`LABELLED`).
    """
    if quick:
        data, rounds, seed = "digits", 6, 0
    names = chosen("data", data or list(LABELLED), LABELLED)
    places = chosen("where", where, dict.fromkeys(WHERE))
    alphas = alpha if isinstance(alpha, Sequence) else [alpha]
    seeds = seed if isinstance(seed, Sequence) else [seed]
    result, ahead = BenchResult(NAME, [], []), list[float]()
    for place, name, each in itertools.product(places, names, alphas):
        labels = LABELLED[name] if labelled is None else labelled
        found = [_arms(world_of(name, float(each), labels, place, s), rounds, s) for s in seeds]
        means = {arm: fmean(one[arm] for one in found) for arm in found[0]}
        result.rows.append({"labels at": place, "data": name, "alpha": each, **means})
        ahead += [one["chosen"] - one["FedAvg"] for one in found]
    error = stdev(ahead) / math.sqrt(len(ahead)) if len(ahead) > 1 else 0.0
    behind = "the choice's accuracy less FedAvg's, and two standard errors"
    result.bars.append(Bar.at_least(behind, fmean(ahead) + 2 * error, 0.0))
    return result


def _arms(world: Tables, rounds: int, seed: int) -> dict[str, float]:
    """Accuracies on the test rows: of a client alone, of every arm, and of the one folds choose."""
    alone = [
        world.accuracy(world.train("FedAvg", [each], rounds, seed), world.test)
        for each in world.shares
        if len(each.labelled)
    ]
    trained = {name: world.train(name, world.shares, rounds, seed) for name in ARMS}
    found = {name: world.accuracy(model, world.test) for name, model in trained.items()}
    return {"alone": fmean(alone), **found, "chosen": found[_chosen(world, rounds, seed)]}


def _chosen(world: Tables, rounds: int, seed: int) -> str:
    """The first of the candidates within a standard error of the best, on held-out labels."""
    rng = np.random.default_rng([seed, 99])
    orders = [rng.permutation(each.labelled) for each in world.shares]
    scores: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for number in range(FOLDS):
        held = np.concatenate([order[number::FOLDS] for order in orders])
        kept = [replace(each, labelled=np.setdiff1d(each.labelled, held)) for each in world.shares]
        for name, values in scores.items():
            values.append(world.accuracy(world.train(name, kept, rounds, seed), held))
    best = max(scores.values(), key=fmean)
    for name, values in scores.items():
        behind = [top - own for top, own in zip(best, values, strict=True)]
        if fmean(behind) <= stdev(behind) / math.sqrt(FOLDS):
            return name
    raise AssertionError("the best is within an error of itself")


def world_of(name: str, alpha: float, labelled: float | int, where: str, seed: int) -> Tables:
    """A table dealt out to five clients; a quarter of what has no label is kept out."""
    x, y = _columns(name)
    rng = np.random.default_rng([seed, 77])
    order, tested = rng.permutation(len(y)), TEST_OF_DIGITS if name == "digits" else TEST
    test, train = order[:tested], order[tested:][:ROWS]
    spread = x[train].std(0)
    values = (x - x[train].mean(0)) / np.where(spread > 0, spread, 1)
    values = np.clip(values, -8, 8).astype(np.float32)
    shares = []
    for number, part in enumerate(
        client_rows(y[train], CLIENTS, alpha, labelled=labelled, seed=seed)
    ):
        rest = rng.permutation(train[np.setdiff1d(part.all, part.labelled)])
        shares.append(Share(f"c{number}", train[part.labelled], rest[len(rest) // 4 :]))
    return Tables(values, y, _moved(shares, where), test)


def _moved(shares: list[Share], where: str) -> list[Share]:
    """Labels at all clients, at the first two only, or at a party that has nothing else."""
    none = np.zeros(0, np.int64)
    if where == "some":
        bare = [
            replace(each, labelled=none, rest=np.concatenate([each.rest, each.labelled]))
            for each in shares[2:]
        ]
        return shares[:2] + bare
    if where == "server":
        every = np.concatenate([each.labelled for each in shares])
        return [*(replace(each, labelled=none) for each in shares), Share("server", every, none)]
    return shares


def _columns(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers, and a column for each category; classes from 0 on."""
    table = datasets.load(name)
    if name != "digits":
        drawn = np.random.default_rng(0).permutation(len(table))[:POOL]
        table = table.take(np.sort(drawn))
    frame: Any = table.frame.drop(columns=[table.label])
    numbers = frame.select_dtypes("number")
    others = frame.drop(columns=numbers.columns)
    parts = [numbers.fillna(numbers.mean())]
    if others.shape[1]:
        parts.append(pd.get_dummies(others.astype(str)))
    y = pd.factorize(table.y, sort=True)[0].astype(np.int64)
    return pd.concat(parts, axis=1).to_numpy(np.float32), y
