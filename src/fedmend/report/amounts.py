"""Numbers, names and lists as people write them, without more figures than they can use."""

from __future__ import annotations

from collections.abc import Sequence

from fedmend.learn.metrics import pretty as pretty
from fedmend.learn.metrics import score_text as score_text

UNTOLD = "–"
METRIC_WORDS = {
    "auc": "AUC: of two rows of different classes, how often the one is put before the other as it "
    "should be; 0.5 is chance, 1 never errs.",
    "accuracy": "Accuracy: the share of rows whose class is right.",
    "f1": "F1: how well each class is found without others in it, all classes alike; 1 is best.",
    "log_loss": "Log loss: how surprising the true class is to the method; less is better, 0 best.",
    "rmse": "RMSE: how far predictions are off, in the label's own units, far ones counting more.",
    "mae": "MAE: how far predictions are off on average, in the label's own units.",
    "r2": "R²: the share of the label's ups and downs that is foreseen; 1 is all, 0 none.",
}
"""What the metrics say, for people who have not met them."""


def listed(names: Sequence[str], most: int | None = None) -> str:
    """``a``, ``a and b``, ``a, b and c``; of more than `most` the first ones and how many more."""
    if most is not None and len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, columns padded to their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def counted(count: int, noun: str) -> str:
    """``1 column``, ``12 columns``"""
    return f"{count:,} {noun}{'s' * (count != 1)}"


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
    return "under 1" if value < 1 else f"{round(value, 1 - len(str(int(value)))):,.0f}"


def human_bytes(size: float) -> str:
    """``5.2 MB``: decimal units, three figures at most."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= (999.5 if units[0] != "B" else 1000) and units[1:]:
        size, units = size / 1000, units[1:]
    return f"{size:.{1 if size < 99.95 and units[0] != 'B' else 0}f} {units[0]}"


def human_seconds(seconds: float) -> str:
    """``1.4 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def percent(share: float | None) -> str:
    """A share as people read it: ``80 %``, ``0.4 %``, ``99.7 %``, ``under 0.1 %``; none a dash.

    What is less than all, or more than nothing, does not read as that.
    """
    if share is None:
        return UNTOLD
    if 0 < share < 0.001:
        return "under 0.1 %"
    if 0.995 <= round(share, 9) < 1:
        return f"{100 * share:.1f} %" if share < 0.9995 else "over 99.9 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"
