"""Times, sizes and scores in words; estimates in one figure, because they have no more."""

from __future__ import annotations

__all__ = ["about", "in_bytes", "in_time", "score_text"]


def about(seconds: float) -> str:
    """``about 20 s``, or ``under 1 s``."""
    took = in_time(seconds)
    return took if took.startswith("under") else f"about {took}"


def in_time(seconds: float) -> str:
    """``20 s``, ``3 min``, ``2 h``"""
    for limit, unit, size in ((100, "s", 1), (6000, "min", 60)):
        if seconds < limit:
            return f"{_one_figure(seconds / size)} {unit}"
    return f"{_one_figure(seconds / 3600)} h"


def in_bytes(size: float) -> str:
    """``50 MB``"""
    for limit, unit in ((1e6, "kB"), (1e9, "MB"), (1e12, "GB")):
        if size < limit:
            return f"{_one_figure(size / limit * 1000)} {unit}"
    return f"{_one_figure(size / 1e12)} TB"


def _one_figure(value: float) -> str:
    if value < 1:
        return "under 1"
    digits = len(str(int(value))) - 1
    return f"{round(value / 10**digits) * 10**digits:,}"


def score_text(value: float) -> str:
    """A score as people read it: ``0.836``, and an error in euros ``1,162.4``."""
    size = abs(value)
    if size < 10:
        return f"{value:.3f}"
    return f"{value:,.2f}" if size < 100 else f"{value:,.1f}" if size < 10_000 else f"{value:,.0f}"
