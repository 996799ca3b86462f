"""What `fedmend bench sage` trains, in order: a plan of units, each resumable, most wanted first.

A plan is worked off in one process, so that images are read and kernels compiled once. A sitting at
a GPU ends anywhere: units that are finished are skipped the next time, the one it ended in goes on.

    [[unit]]
    method = "FixMatch-LPL"
    rounds = 100
    alpha = 0.5               # may be left out, as may
    dataset = "cifar10"
    seed = 0
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError
from fedmend_bench.sage.data import DATASETS
from fedmend_bench.sage.methods import METHODS

__all__ = ["PLANS", "Unit", "read_plan"]


@dataclass(frozen=True)
class Unit:
    """So many rounds of a method on a data set, dealt out with this alpha and seed."""

    method: str
    rounds: int
    alpha: float = 0.5
    dataset: str = "cifar10"
    seed: int = 0


def _default() -> list[Unit]:
    """The paper's Table 1 as far as its order of interest goes; 30 rounds where few must do."""
    rivals = [Unit("SAGE", 300), Unit("FixMatch-LPL", 100), Unit("FixMatch-GPL", 100)]
    ablation = ("CPG only", "CDSC only")
    # Those that train on labelled rows only take a fifth of the time.
    cheap = ("FedAvg", "FedProx", "FedAvg-SL")
    others = ("FedProx+FixMatch", "FedAvg+FlexMatch", "FedLabel", "FedDB")
    # More than one pass a step.
    slow = ("FedMatch", "FedLoke", "FedDure")
    plugins = ("FlexMatch+SAGE", "FedDB+SAGE", "FedDure+SAGE")
    fashion = [
        Unit(name, 10, dataset="fashion-mnist") for name in ("SAGE", "FixMatch-LPL", "FedAvg")
    ]
    first = [Unit(name, 30) for name in (*ablation, *cheap, *others)]
    alphas = [Unit("SAGE", rounds, alpha) for rounds in (25, 100) for alpha in (0.1, 1.0)]
    rest = [Unit(name, 30) for name in slow]
    extra = [Unit(name, 30) for name in plugins]
    fixed = [Unit(name, 30) for name in METHODS if name.startswith("lambda ")]
    return [*rivals, *first, *fashion, *rest, *alphas[:2], *extra, *alphas[2:], *fixed]


def _quick() -> list[Unit]:
    """Every method for two rounds on digits: does each run?"""
    return [Unit(name, 2, dataset="digits") for name in METHODS]


PLANS = {"default": _default, "quick": _quick}


def read_plan(plan: str) -> list[Unit]:
    """A plan by its name, or out of a TOML file."""
    if plan in PLANS:
        return PLANS[plan]()
    path = Path(plan)
    if not path.is_file():
        raise ConfigError(
            f"plan = {plan!r} is no file and no plan: {did_you_mean(plan, PLANS)}. "
            "Mend: name one of them, or a TOML file of [[unit]] tables"
        )
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}. Mend: see docs/sage.md for an example") from error
    units = values.get("unit")
    if not isinstance(units, list) or not units:
        raise ConfigError(f"{path} has no unit. Mend: begin each with a line [[unit]]")
    problems = [
        f"{path}, unit {number}: {what}"
        for number, unit in enumerate(units, 1)
        for what in _problems({"alpha": 0.5, "dataset": "cifar10", "seed": 0} | unit)
    ]
    if problems:
        raise ConfigError(problems)
    return [Unit(**unit) for unit in units]


def _problems(unit: Mapping[str, Any]) -> list[str]:
    known = [each.name for each in fields(Unit)]
    found = [f"there is no {key!r}: {did_you_mean(key, known)}" for key in unit if key not in known]
    for key, choices in (("method", METHODS), ("dataset", DATASETS)):
        if unit.get(key) not in choices:
            found.append(f"{key} = {unit.get(key)!r}: {did_you_mean(str(unit.get(key)), choices)}")
    for key, kinds, least in (("rounds", int, 1), ("alpha", (int, float), 1e-9), ("seed", int, 0)):
        value = unit.get(key)
        if isinstance(value, bool) or not isinstance(value, kinds) or value < least:
            found.append(f"{key} must be a number from {least:g}, got {value!r}")
    return found
