"""Batched runs of `fedmend bench inc`: a batch for each data set, model and kind of noise.

With a folder to keep them in, each batch's outcomes become a file of their own when it is done
(`cells`): a benchmark that was cut short goes on with those that are missing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.errors import ConfigError
from fedmend_bench.cells import run_cells
from fedmend_bench.inc.batched import SPECS, BatchedMethods, Outcome, count_groups
from fedmend_bench.inc.data import HUMAN, Worlds, human_worlds, load_problem, make_worlds
from fedmend_bench.inc.networks import BatchedNetworks, NetworkShape
from fedmend_bench.simulation import wait

MODELS: dict[str, dict[str, Any]] = {
    "lr": {"embedding": 16, "top": ()},
    "mlp": {"embedding": 16, "top": (32,)},
    "mlp-wide": {"embedding": 32, "top": (64,)},
}
CROWD_METHOD = "InC crossfit"
"""Trained on human votes beside the chosen methods: few votes are what it is for."""


@dataclass(frozen=True)
class Plan:
    """One batch of runs: what it trains on, and how. `kind` is "human" where the votes are."""

    data: str
    model: str
    kind: str
    methods: tuple[str, ...]
    settings: tuple[str, ...]
    seeds: int
    epochs: int
    rows: int | None = None
    sheets: int | None = None
    labelled: float = 1.0


@dataclass(frozen=True)
class Finding:
    """What came out of a batch, its seconds, and how many draws of votes were thrown away."""

    outcomes: list[Outcome]
    seconds: float
    redrawn: int
    device: str

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Finding:
        """As a line of a file has it."""
        measured = ("accuracy", "correction")
        outcomes = [
            Outcome(**each | {name: np.asarray(each[name]) for name in measured})
            for each in kept["outcomes"]
        ]
        return cls(outcomes, kept["seconds"], kept["redrawn"], kept["device"])


def finding(plan: Plan, device: str, folder: str | Path | None = None) -> Finding:
    """Train the batch, or take what an earlier run kept of it."""
    (found,) = run_cells(lambda plan: asdict(_trained(plan, device)), [plan], folder)
    if "failed" in found:
        raise ConfigError(f"{plan.data}, {plan.model}, {plan.kind}: {found['failed']}")
    return Finding.of(found)


def _trained(plan: Plan, device: str) -> Finding:
    """All seeds at once on a GPU and with human votes; else seed after seed on a CPU.

    A CPU has no use for larger arrays, and its caches have none for arrays of all seeds.
    """
    seeds = list(range(plan.seeds))
    if plan.kind == HUMAN:
        worlds = human_worlds(plan.data, plan.seeds, device, plan.rows, plan.sheets)
        plan = replace(plan, methods=tuple(dict.fromkeys((*plan.methods, CROWD_METHOD))))
        plan = replace(plan, settings=(HUMAN,))
        began = time.perf_counter()
        parts = [_batch(plan, worlds, seeds, batch_size=max(50, worlds.train.shape[1] // 100))]
        redrawn = 0
    else:
        problem = load_problem(plan.data, plan.rows)
        began = time.perf_counter()
        parts, redrawn = [], 0
        for some in [seeds] if device.startswith("cuda") else [[seed] for seed in seeds]:
            worlds = make_worlds(problem, some, plan.settings, plan.kind, device, plan.labelled)
            size = max(2, worlds.train.shape[1] // 100)
            parts.append(_batch(plan, worlds, some, batch_size=size))
            redrawn += worlds.redrawn
    wait(device)
    return Finding(_joined(parts), time.perf_counter() - began, redrawn, device)


def _batch(plan: Plan, worlds: Worlds, seeds: Sequence[int], *, batch_size: int) -> list[Outcome]:
    """All methods and settings in these worlds, side by side."""
    specs = {method: SPECS[method] for method in plan.methods}
    networks = BatchedNetworks(
        NetworkShape(worlds.columns, worlds.classes, (), **MODELS[plan.model]),
        worlds.train,
        count_groups(specs, len(plan.settings)),
        batch_size=batch_size,
        seeds=[(0, seed) for seed in seeds],
    )
    runs = BatchedMethods(
        networks, worlds.votes, worlds.y_train, plan.settings, specs, seed=seeds[0]
    )
    runs.train(plan.epochs)
    return runs.outcomes(worlds.test, worlds.y_test)


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
