"""What FedPSG-PUM may be told: choices of its arguments, presets, and what is wrong with them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from fedmend._suggest import did_you_mean
from fedmend.generate import make
from fedmend.generate.registry import class_of, known_generators
from fedmend.methods.completion.board import ORDINAL
from fedmend.methods.completion.self_training import SelfTraining
from fedmend.methods.completion.targets import MODES
from fedmend.methods.completion.vfpum import FAMILIES, family_of
from fedmend.secure.correlation import Strength
from fedmend.secure.inner_product import Mode

__all__ = ["GENERATOR", "PAPER", "problems"]

ORDERS = ("predict-first", "generate-first")
DIRECTIONS = ("a-to-b", "both")
ROW_ORDERS = ("auto", "secret", "seeded")
STRENGTHS: tuple[str, ...] = get_args(Strength)
PROTOCOLS = ("inner-product", "published")
CORRELATION_MODES: tuple[str, ...] = get_args(Mode)
# A's columns say next to nothing of weak columns: longer training adds nothing to them.
GENERATOR: dict[str, dict[str, Any]] = {"vae": {"epochs": 30}}
PAPER: dict[str, Any] = {
    "strength": "mean",
    "tau": 0.0,
    "protocol": "published",
    "model": "linear",
    "linear": {"alpha": 0.1},
    "beyond": True,
    "rounds": 5,
    "alpha": 0.0,
    "k": 0.25,
    "confidence": "published",
    "generator": "ctgan",
    "condition": False,
    "min_skill": None,
}


def problems(given: Mapping[str, Any], families: Sequence[str], how: SelfTraining) -> list[str]:
    """All that is wrong with the arguments of `FedPSGPUM`; `families`: its models by name."""
    found = how.problems()
    choices: dict[str, tuple[str, ...]] = {
        "direction": DIRECTIONS,
        "order": ORDERS,
        "row_order": ROW_ORDERS,
        "generator": tuple(known_generators()),
        "strength": STRENGTHS,
        "protocol": PROTOCOLS,
        "correlation_mode": CORRELATION_MODES,
        "mode": MODES,
        "ordinal": ORDINAL,
    }
    found += [
        f"{name} must be one of {', '.join(known)}, got {given[name]!r}"
        for name, known in choices.items()
        if given[name] not in known
    ]
    least, tau = given["min_skill"], given["tau"]
    if least is not None and not least <= 1:
        found.append(f"min_skill must be 1 at most, or None, got {least}")
    if not families or not set(families) <= set(FAMILIES) or len(set(families)) < len(families):
        found.append(
            f"model must be one or several of {', '.join(FAMILIES)}, got {given['model']!r}"
        )
    if isinstance(tau, str):
        if tau not in ("significance", "cv"):
            found.append(f"tau must be a number, 'significance' or 'cv', got {tau!r}")
    elif not -1 <= tau <= 1:
        found.append(f"tau must lie in [-1, 1], got {tau}")
    if not 0 < given["level"] < 1:
        found.append(f"level must lie in (0, 1), got {given['level']}")
    if given["draws"] < 1:
        found.append(f"draws must be at least 1, got {given['draws']}")
    return found + _wrong_arguments(given, families)


def _wrong_arguments(given: Mapping[str, Any], families: Sequence[str]) -> list[str]:
    """What is wrong with arguments that are handed on: it would be told after hours of training."""
    found = []
    for family in set(families) & set(FAMILIES):
        known = inspect.signature(family_of(family)).parameters
        found += [
            f"{family}: there is no argument {name!r}: {did_you_mean(name, _settings(known))}"
            for name in given[family] or {}
            if name not in _settings(known)
        ]
    if given["generator"] in known_generators() and given["generator_params"]:
        known_params = class_of(given["generator"]).parameter_names()
        wrong = [name for name in given["generator_params"] if name not in known_params]
        found += [
            f"generator_params: {given['generator']} has no parameter {name!r}: "
            f"{did_you_mean(name, known_params)}"
            for name in wrong
        ]
        if not wrong:
            found += [
                f"generator_params: {problem}"
                for problem in make(given["generator"], **given["generator_params"])._problems()
            ]
    return found


def _settings(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Arguments that are a family's own, not those that all of them are given."""
    own = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    return [*own, "beyond", "mode", "ordinal"]
