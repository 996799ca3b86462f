"""What FedPSG-PUM may be told: choices of its arguments, presets, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from fedmend.generate import generators
from fedmend.learn.columns.board import ORDINAL
from fedmend.learn.columns.targets import MODES
from fedmend.methods.selftrain import SelfTraining
from fedmend.methods.vfpum import FAMILIES
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
        "generator": tuple(generators()),
        "strength": STRENGTHS,
        "protocol": PROTOCOLS,
        "correlation_mode": CORRELATION_MODES,
        "mode": MODES,
        "ordinal": ORDINAL,
    }
    found += [
        f"{name} must be one of {', '.join(known)}, however: {given[name]!r}"
        for name, known in choices.items()
        if given[name] not in known
    ]
    least, tau = given["min_skill"], given["tau"]
    if least is not None and not least <= 1:
        found.append(f"min_skill must be 1 at most, or None, however: {least}")
    if not families or not set(families) <= set(FAMILIES) or len(set(families)) < len(families):
        found.append(
            f"model must be one or several of {', '.join(FAMILIES)}, however: {given['model']!r}"
        )
    if isinstance(tau, str):
        if tau not in ("significance", "cv"):
            found.append(f"tau must be a number, 'significance' or 'cv', however: {tau!r}")
    elif not -1 <= tau <= 1:
        found.append(f"tau must lie in [-1, 1], however: {tau}")
    if not 0 < given["level"] < 1:
        found.append(f"level must lie in (0, 1), however: {given['level']}")
    if given["draws"] < 1:
        found.append(f"draws must be at least 1, however: {given['draws']}")
    return found
