"""Times, sizes, shares and scores in words; estimates in one figure: they have no more."""

from __future__ import annotations

__all__ = [
    "about",
    "human_bytes",
    "human_seconds",
    "in_bytes",
    "in_time",
    "percent",
    "score_text",
]


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


def human_bytes(size: int) -> str:
    """``5.2 MB``: decimal units, three figures at most."""
    if size < 1000:
        return f"{size} B"
    number = float(size)
    for unit in ("kB", "MB", "GB", "TB"):
        number /= 1000
        if number < 999.5 or unit == "TB":
            break
    return f"{number:.1f} {unit}" if number < 99.95 else f"{number:.0f} {unit}"


def human_seconds(seconds: float) -> str:
    """``1.4 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def percent(share: float) -> str:
    """A share as people read it: ``80 %``, ``0.4 %``, ``under 0.1 %``."""
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def score_text(value: float) -> str:
    """A score as people read it: ``0.836``, and an error in euros ``1,162.4``."""
    size = abs(value)
    if size < 10:
        return f"{value:.3f}"
    return f"{value:,.2f}" if size < 100 else f"{value:,.1f}" if size < 10_000 else f"{value:,.0f}"
