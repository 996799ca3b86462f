"""What tables in pages of results are made of: cells as text, rows as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

Tables = dict[str, tuple[str, Callable[[Path], str]]]
"""Of a table's mark: the file of results it is made of, and how."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def short(value: float, digits: int) -> str:
    """Without the nought before the point."""
    return f"{value:.{digits}f}".removeprefix("0")


def signed(value: float, digits: int = 4) -> str:
    return ("−" if value < 0 else "+") + short(abs(value), digits)


def percent(share: float | None, digits: int = 2) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f}"


def spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def gained(values: Sequence[float]) -> str:
    """Mean ± standard error."""
    return f"{signed(statistics.mean(values))} ± {short(spread(values), 4)}"
