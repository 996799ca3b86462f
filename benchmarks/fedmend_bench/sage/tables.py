"""`fedmend bench sage-tables`: whether pseudo-labels pay on small tables, and who would have known.

Five clients with few labels, or labels at two of them, or at one party that has nothing else ("the
server"). Beside FedAvg, FixMatch and SAGE stand a client alone, and the default: what ``auto``
takes on held-out labelled rows, of parties that have enough of them in a fold to tell anything.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedmend.data.crowds import client_rows
from fedmend.federation.policy import Policy
from fedmend.learn.metrics import auc, softmax
from fedmend.methods.auto.folds import simplest
from fedmend.methods.horizontal.length import UNJUDGED, Judges, held_out, losses_of
from fedmend.methods.horizontal.networks import NetSpec
from fedmend.methods.horizontal.rounds import Pool
from fedmend.methods.horizontal.views import TableViews
from fedmend.report.record import main_metric
from fedmend_bench import datasets
from fedmend_bench.cells import run_cells
from fedmend_bench.harness import Bar, BenchResult
from fedmend_bench.options import chosen
from fedmend_bench.sage.methods import estimator_of
from fedmend_bench.sage.simulator import Simulator, simulator_of

NAME = "sage-tables"
HELP = "few labels on small tables: FedAvg, FixMatch, SAGE, a client alone, and auto's choice"

DATA = ("digits", "letter", "adult", "bank", "credit")
# Labels of each class where there are many classes, else of all rows.
OF_A_CLASS, OF_ALL = {"digits": 10, "letter": 10}, 96
WHERE = ("every", "some", "server")
# Rows of a table that are drawn from, and to test on.
POOL, TEST, TEST_OF_DIGITS = 8000, 1000, 450
CLIENTS = 5
CANDIDATES = {"FedAvg": "FedAvg", "FixMatch": "FixMatch-LPL", "SAGE": "SAGE"}
"""As ``auto`` has them for horizontal federations, the simplest first."""


@dataclass(frozen=True)
class Cell:
    """A table dealt out in a way, and a seed of all of it."""

    data: str
    where: str
    alpha: float
    labelled: float
    rows: int
    rounds: int
    warmup: int
    folds: int
    seed: int
    patience: int | None = None


@dataclass(frozen=True)
class Share:
    """A client's rows: those with a label, those without, and none of the test's."""

    name: str
    labelled: np.ndarray
    rest: np.ndarray
    own_test: np.ndarray

    def without(self, rows: np.ndarray) -> Share:
        return replace(self, labelled=np.setdiff1d(self.labelled, rows))


@dataclass(frozen=True)
class Model:
    """A common model, and how far it is to be believed."""

    simulator: Simulator
    temperature: float = 1.0

    def probabilities(self, views: TableViews) -> np.ndarray:
        said = self.simulator.probabilities(views).double().cpu().numpy()
        return softmax(np.log(np.maximum(said, 1e-12)) / self.temperature)


@dataclass(frozen=True)
class Tables:
    """Standardised columns and labels of all rows, the clients' shares, and test rows."""

    values: np.ndarray
    y: np.ndarray
    shares: list[Share]
    test: np.ndarray

    def train(
        self,
        name: str,
        shares: Sequence[Share],
        cell: Cell,
        judging: Mapping[str, np.ndarray] | None = None,
    ) -> Model:
        """A candidate's common model, trained for as long as held-out rows say, then on all rows.

        judging: rows to hold out instead, by client, where a model is to be compared, not kept.
        """
        if cell.patience is None:
            return Model(_rounds(self._begun(name, shares, cell), cell.rounds))
        held = judging or {each.name: self._drawn(each, cell) for each in shares}
        held = {name: rows for name, rows in held.items() if len(rows) >= Policy().min_rows}
        if not held:
            rounds = min(cell.rounds, UNJUDGED)
            return Model(_rounds(self._begun(name, shares, cell), rounds))
        out = np.concatenate(list(held.values()))
        simulator = self._begun(name, [each.without(out) for each in shares], cell)
        views = TableViews(torch.from_numpy(self.values[out]))
        classes, judges, best = int(self.y.max()) + 1, Judges(cell.patience), simulator.weights
        while simulator.round < cell.rounds and not judges.out_of_patience:
            simulator.run_round()
            said = simulator.probabilities(views).double().cpu().numpy()
            if judges.hear(losses_of(said, np.eye(classes)[self.y[out]])):
                best = simulator.weights.clone()
        length = judges.length
        if judging is not None:
            simulator.weights = best
        else:
            simulator = _rounds(self._begun(name, shares, cell), length.rounds)
        return Model(simulator, length.temperature)

    def _drawn(self, share: Share, cell: Cell) -> np.ndarray:
        """The labelled rows that a client holds out."""
        drawn = np.random.default_rng([cell.seed, 98]).random(len(self.y))[share.labelled]
        return share.labelled[held_out(drawn, Policy().min_rows, self.y[share.labelled])]

    def _begun(self, name: str, shares: Sequence[Share], cell: Cell) -> Simulator:
        options = {"rounds": cell.rounds, "seed": cell.seed}
        if name != "FedAvg":
            options["warmup"] = cell.warmup
        estimator = estimator_of(CANDIDATES[name], "default", **options)
        views = TableViews(torch.from_numpy(self.values))
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
        return simulator_of(estimator, pools, net, device="cpu")

    def scores(self, model: Model, rows: np.ndarray) -> dict[str, float]:
        """Accuracy, AUC and log loss on some rows."""
        said = model.probabilities(TableViews(torch.from_numpy(self.values[rows])))
        right = float((said.argmax(1) == self.y[rows]).mean())
        lost = -np.log(np.maximum(said[np.arange(len(rows)), self.y[rows]], 1e-12)).mean()
        return {"accuracy": right, "auc": auc(self.y[rows], said), "log_loss": float(lost)}

    def own(self, model: Model, share: Share) -> float:
        """How many of a client's own test rows are right."""
        rows = share.own_test
        return len(rows) * self.scores(model, rows)["accuracy"] if len(rows) else 0.0


def _rounds(simulator: Simulator, rounds: int) -> Simulator:
    while simulator.round < rounds:
        simulator.run_round()
    return simulator


def run(
    quick: bool = False,
    *,
    data: str | Sequence[str] | None = None,
    where: str | Sequence[str] = "every",
    alpha: float | Sequence[float] = 0.5,
    labelled: float | int | None = None,
    rows: int = 1600,
    rounds: int = 50,
    patience: int | None = 10,
    warmup: int = 0,
    folds: int = 4,
    seed: int | Sequence[int] = (0, 1, 2, 3, 4),
    processes: int = 1,
    folder: str | None = None,
) -> BenchResult:
    """Train every candidate on every table, split and seed; a line each is the mean over seeds.

    labelled: labels of each class, or their share of the rows; by default few (`OF_ALL`). rounds,
    patience: as the estimators have them; without patience all rounds are trained. warmup: rounds
    before pseudo-labels; ``auto`` has none by itself. folds: ``auto`` has five, and at least
    two where its time is up; 0 compares nothing, and FedAvg alone is trained.
    """
    if quick:
        data, rows, rounds, seed = "digits", 800, 6, (0, 1)
    names = chosen("data", data or list(DATA), dict.fromkeys(DATA))
    places = chosen("where", where, dict.fromkeys(WHERE))
    alphas = alpha if isinstance(alpha, Sequence) else [alpha]
    seeds = seed if isinstance(seed, Sequence) else [seed]
    cells = [
        Cell(name, place, float(each), share, rows, rounds, warmup, folds, int(number), patience)
        for place, name, each in itertools.product(places, names, alphas)
        for share in [float(OF_A_CLASS.get(name, OF_ALL / rows) if labelled is None else labelled)]
        for number in seeds
    ]
    found = run_cells(measure, cells, folder, processes)
    lines = [(cell, told) for cell, told in zip(cells, found, strict=True) if "failed" not in told]
    return BenchResult(NAME, summary(lines), bars_of(lines))


def measure(cell: Cell) -> dict[str, Any]:
    """Test rows: a client alone, and every candidate. Held-out rows: every candidate, by fold."""
    world = world_of(cell)
    labelled = [each for each in world.shares if len(each.labelled)]
    alone = {each.name: world.train("FedAvg", [each], cell) for each in labelled}
    names = CANDIDATES if cell.folds else ["FedAvg"]
    trained = {name: world.train(name, world.shares, cell) for name in names}
    tested = [each for each in labelled if len(each.own_test)]
    return {
        "labels": [len(each.labelled) for each in world.shares],
        "alone": [world.scores(model, world.test) for model in alone.values()],
        "own rows": sum(len(each.own_test) for each in tested),
        "alone, own": sum(world.own(alone[each.name], each) for each in tested),
        "test": {name: world.scores(model, world.test) for name, model in trained.items()},
        "own": {
            name: sum(world.own(model, each) for each in tested) for name, model in trained.items()
        },
        "folds": _folds(world, cell),
    }


def _folds(world: Tables, cell: Cell) -> dict[str, list[dict[str, float]]]:
    """Every candidate's scores of held-out labelled rows, of parties that may tell of them.

    Nothing where no party has enough: then ``auto`` does not compare.
    """
    rng = np.random.default_rng([cell.seed, 99])
    orders = [rng.permutation(each.labelled) for each in world.shares]
    orders = [order[np.argsort(world.y[order], kind="stable")] for order in orders]
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in CANDIDATES}
    for number in range(cell.folds):
        parts = [order[number :: cell.folds] for order in orders]
        judging = [part for part in parts if len(part) >= Policy().min_rows]
        if not judging:
            break
        held = np.concatenate(parts)
        kept = [each.without(held) for each in world.shares]
        # Rounds are counted by another fold, as a run does it.
        other = {
            each.name: order[(1 if number == 0 else 0) :: cell.folds]
            for each, order in zip(world.shares, orders, strict=True)
        }
        for name, values in scores.items():
            model = world.train(name, kept, cell, other)
            values.append(world.scores(model, np.concatenate(judging)))
    return scores


def taken(found: Mapping[str, Any]) -> str:
    """The candidate that ``auto`` takes on these folds."""
    folds = found["folds"]
    if not folds["FedAvg"]:
        return "FedAvg"
    metric = main_metric([], [scores for values in folds.values() for scores in values])
    values = [[each[metric] for each in folds[name]] for name in CANDIDATES]
    return list(CANDIDATES)[simplest(values)]


# ---------------------------------------------------------------- what it says


def summary(lines: Sequence[tuple[Cell, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each table and split: accuracies, means over seeds."""
    groups: dict[Cell, list[Mapping[str, Any]]] = {}
    for cell, found in lines:
        groups.setdefault(replace(cell, seed=0), []).append(found)
    return [_row(cell, found) for cell, found in groups.items()]


def _row(cell: Cell, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names, trained = [taken(each) for each in found], found[0]["test"]
    apart = [_apart(each, name) for each, name in zip(found, names, strict=True)]
    own = [_apart_own(each, name) for each, name in zip(found, names, strict=True)]
    return {
        "labels at": cell.where,
        "data": cell.data,
        "alpha": cell.alpha,
        "labels": round(fmean(sum(each["labels"]) for each in found)),
        "seeds": len(found),
        "compared": sum(bool(each["folds"]["FedAvg"]) for each in found),
        "alone": fmean(fmean(one["accuracy"] for one in each["alone"]) for each in found),
        **{name: fmean(each["test"][name]["accuracy"] for each in found) for name in trained},
        "default less FedAvg": points(apart),
        "default less alone": points(
            each["test"][name]["accuracy"] - fmean(one["accuracy"] for one in each["alone"])
            for each, name in zip(found, names, strict=True)
        ),
        "default less alone, own rows": points(own) if cell.where != "server" else "–",
        "FedAvg left": sum(name != "FedAvg" for name in names),
    }  # fmt: skip


def _apart(found: Mapping[str, Any], name: str) -> float:
    return float(found["test"][name]["accuracy"] - found["test"]["FedAvg"]["accuracy"])


def _apart_own(found: Mapping[str, Any], name: str) -> float:
    rows = found["own rows"]
    return float((found["own"][name] - found["alone, own"]) / rows) if rows else 0.0


def points(given: Iterable[float]) -> str:
    """Percentage points, mean ± standard error."""
    shares = list(given)
    if not any(shares):
        return "0"
    error = stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan
    return f"{100 * fmean(shares):+.1f} ± {100 * error:.1f}".replace("-", "−")


def bars_of(lines: Sequence[tuple[Cell, Mapping[str, Any]]]) -> list[Bar]:
    """The default is behind neither FedAvg nor a client alone, but for what is chance."""
    named = [(found, taken(found)) for _, found in lines]
    told = {
        "FedAvg's": [_apart(*each) for each in named],
        "a client's alone on its own rows": [
            _apart_own(*each) for each in named if each[0]["own rows"]
        ],
    }
    bars = []
    for whose, values in told.items():
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        what = f"the default's accuracy less {whose}, and two standard errors"
        bars.append(Bar.at_least(what, fmean(values) + 2 * error, 0.0))
    return bars


# ---------------------------------------------------------------- the rows


def world_of(cell: Cell) -> Tables:
    """A table dealt out to five clients; a quarter of what has no label is for their own tests."""
    x, y = _columns(cell.data)
    rng = np.random.default_rng([cell.seed, 77])
    order, tested = rng.permutation(len(y)), TEST_OF_DIGITS if cell.data == "digits" else TEST
    test, train = order[:tested], order[tested:][: cell.rows]
    spread = x[train].std(0)
    values = (x - x[train].mean(0)) / np.where(spread > 0, spread, 1)
    values = np.clip(values, -8, 8).astype(np.float32)
    labelled = cell.labelled if cell.labelled < 1 else int(cell.labelled)
    parts = client_rows(y[train], CLIENTS, cell.alpha, labelled=labelled, seed=cell.seed)
    shares = []
    for number, part in enumerate(parts):
        rest = rng.permutation(train[np.setdiff1d(part.all, part.labelled)])
        kept, own = rest[len(rest) // 4 :], rest[: len(rest) // 4]
        shares.append(Share(f"c{number}", train[part.labelled], kept, own))
    return Tables(values, y, _moved(shares, cell.where), test)


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
        server = Share("server", every, none, none)
        return [*(replace(each, labelled=none) for each in shares), server]
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
