"""The fleets of `fedmend bench inc`: one for each data set, model and kind of noise.

With a folder to keep them in, each fleet's outcomes become a file of their own when it is done
(`cells`): a run that was cut short goes on with the fleets that are missing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.errors import ConfigError
from fedmend_bench.cells import run_cells
from fedmend_bench.inc import crowds as inc_crowds
from fedmend_bench.inc.data import Problem, draw_votes, load_problem, make_worlds
from fedmend_bench.inc.fleet import RECIPES, MethodFleet, Outcome, Recipe, count_groups
from fedmend_bench.inc.networks import Fleet, FleetShape
from fedmend_bench.simulation import wait

MODELS: dict[str, dict[str, Any]] = {
    "lr": {"embedding": 16, "top": ()},
    "mlp": {"embedding": 16, "top": (32,)},
    "mlp-wide": {"embedding": 32, "top": (64,)},
}
HUMAN = "human"
CROWD_METHOD = "InC crossfit"
"""Trained on human votes beside the chosen methods: few votes are what it is for."""


@dataclass(frozen=True)
class Plan:
    """One fleet: what it trains on, and how. `kind` is "human" where the votes are."""

    data: str
    model: str
    kind: str
    methods: tuple[str, ...]
    settings: tuple[str, ...]
    seeds: int
    epochs: int
    rows: int | None = None
    sheets: int | None = None

    def recipes(self) -> dict[str, Recipe]:
        return {method: RECIPES[method] for method in self.methods}


@dataclass(frozen=True)
class Finding:
    """What came out of a fleet, its seconds, and how many draws of votes were thrown away."""

    outcomes: list[Outcome]
    seconds: float
    redrawn: int
    device: str


def finding(plan: Plan, device: str, keep: str | Path | None = None) -> Finding:
    """Train the fleet, or take what an earlier run kept of it."""
    train = partial(_humans if plan.kind == HUMAN else _noisy, device=device)
    (found,) = run_cells(lambda plan: asdict(train(plan)), [plan], keep)
    if "failed" in found:
        raise ConfigError(f"{plan.data}, {plan.model}, {plan.kind}: {found['failed']}")
    outcomes = [
        Outcome(
            each["method"],
            each["setting"],
            np.asarray(each["accuracy"]),
            np.asarray(each["correction"]),
        )
        for each in found.pop("outcomes")
    ]
    return Finding(outcomes, **found)


@lru_cache(maxsize=1)
def _problem(name: str, rows: int | None) -> Problem:
    return load_problem(name, rows)


def _noisy(plan: Plan, device: str) -> Finding:
    """A data set with noise put on: one fleet on a GPU, on a CPU seed after seed.

    A CPU has no use for larger arrays, and its caches have none for arrays of all seeds.
    """
    problem = _problem(plan.data, plan.rows)
    began = time.perf_counter()
    together = plan.seeds if device.startswith("cuda") else 1
    parts = [
        _fleet(plan, problem, list(range(first, min(first + together, plan.seeds))), device)
        for first in range(0, plan.seeds, together)
    ]
    outcomes = _joined([part for part, _ in parts])
    redrawn = sum(again for _, again in parts)
    return Finding(outcomes, _seconds_since(began, device), redrawn, device)


def _fleet(
    plan: Plan, problem: Problem, seeds: list[int], device: str
) -> tuple[list[Outcome], int]:
    """What comes out for these seeds, and how many draws of votes were thrown away."""
    worlds = make_worlds(problem, seeds, device)
    drawn = [
        [draw_votes(y, problem.classes, setting, plan.kind, seed) for setting in plan.settings]
        for seed, y in zip(seeds, worlds.y_train, strict=True)
    ]
    votes = np.stack([np.stack([votes for votes, _ in each]) for each in drawn])
    recipes = plan.recipes()
    fleet = Fleet(
        FleetShape(worlds.columns, problem.classes, (), **MODELS[plan.model]),
        worlds.train,
        count_groups(recipes, len(plan.settings)),
        batch_size=max(2, worlds.train.shape[1] // 100),
        seeds=[(0, seed) for seed in seeds],
    )
    runs = MethodFleet(fleet, votes, worlds.y_train, plan.settings, recipes, seed=seeds[0])
    runs.train(plan.epochs)
    redrawn = sum(again for each in drawn for _, again in each)
    return runs.outcomes(worlds.test, worlds.y_test), redrawn


def _joined(parts: Sequence[list[Outcome]]) -> list[Outcome]:
    """Outcomes of different seeds, method by method and setting by setting."""
    return [
        replace(
            same[0],
            accuracy=np.concatenate([each.accuracy for each in same]),
            correction=np.concatenate([each.correction for each in same]),
        )
        for same in zip(*parts, strict=True)
    ]


def _humans(plan: Plan, device: str) -> Finding:
    """Human votes; a seed is another start and order of rows."""
    problem = _crowd(plan.data, device, plan.rows, plan.sheets)
    began = time.perf_counter()
    recipes: Mapping[str, Recipe] = plan.recipes() | {CROWD_METHOD: RECIPES[CROWD_METHOD]}
    fleet = Fleet(
        FleetShape(problem.columns, problem.classes, (), **MODELS[plan.model]),
        problem.train.expand(plan.seeds, -1, -1),
        count_groups(recipes, 1),
        batch_size=max(50, len(problem.train) // 100),
        seeds=[(0, seed) for seed in range(plan.seeds)],
    )
    runs = MethodFleet(
        fleet,
        _repeated(problem.votes, plan.seeds)[:, None],
        _repeated(problem.y_train, plan.seeds),
        [HUMAN],
        recipes,
    )
    runs.train(plan.epochs)
    outcomes = runs.outcomes(
        problem.test.expand(plan.seeds, -1, -1), _repeated(problem.y_test, plan.seeds)
    )
    return Finding(outcomes, _seconds_since(began, device), 0, device)


@lru_cache(maxsize=1)
def _crowd(name: str, device: str, rows: int | None, sheets: int | None) -> inc_crowds.CrowdProblem:
    if name == "labelme":
        return inc_crowds.labelme(device)
    return inc_crowds.cifar10n(device, rows, sheets=sheets)


def _repeated(values: np.ndarray, times: int) -> np.ndarray:
    return np.broadcast_to(values, (times, *values.shape)).copy()


def _seconds_since(began: float, device: str) -> float:
    wait(device)
    return time.perf_counter() - began


def plans(
    data: Sequence[str],
    models: Sequence[str],
    kinds: Sequence[str],
    crowds: Sequence[str],
    *,
    sheets: int | None = None,
    **settings: Any,
) -> list[Plan]:
    """Data set by data set, model by model; human votes have a kind of their own."""
    return [
        Plan(name, model, kind, **settings, sheets=sheets if name == "cifar10n" else None)
        for name in data
        for model in models
        for kind in ((HUMAN,) if name in crowds else kinds)
    ]
