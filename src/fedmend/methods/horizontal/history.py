"""Rounds of a horizontal federation as entries of a history: what is known of each, per client."""

from __future__ import annotations

import math
from typing import Any

from fedmend.methods.horizontal.local_methods import LocalMethod
from fedmend.methods.horizontal.rounds import RoundReport

__all__ = ["entry_of", "told_of"]


def entry_of(report: RoundReport, method: LocalMethod, warmup: int = 0) -> dict[str, Any]:
    """A round's report as an entry of the history; what is not known is None.

    A round of the warm-up makes no pseudo-labels, and tells nothing of them.
    """
    known: tuple[str, ...] = ()
    if report.number > warmup:
        known += ("utilisation", "pseudo_accuracy") if method.uses_unlabelled else ()
        known += ("confidence_gap",) if method.uses_world else ()
    return {
        "round": report.number,
        "clients": list(report.clients),
        "loss": _known(report.loss),
        **{key: _known(getattr(report, key)) for key in known},
        "per_client": [_plain(each, known) for each in report.per_client],
    }


def _plain(facts: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    facts = facts | {
        "loss": facts["loss_labelled"] + facts["loss_unlabelled"],
        "confidence_gap": facts["gap"],
    }
    names = ("client", "rows", "steps", "loss", "loss_labelled", "loss_unlabelled", *known)
    if "confidence_gap" in known:
        names += ("confidence_local", "confidence_world")
    return {name: _known(facts[name]) for name in names}


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def told_of(entry: dict[str, Any]) -> dict[str, float]:
    """What is shown of a round while it goes on."""
    names = ("loss", "utilisation", "accuracy")
    return {name: entry[name] for name in names if entry.get(name) is not None}
