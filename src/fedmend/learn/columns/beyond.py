"""Which of A's columns stay within what they were on the aligned rows, on the rows only A has.

A model knows what a column means where it has seen its values. Where A's other rows are of another
time, say, columns such as an interest rate or the month lie wholly elsewhere, and whatever was
learnt from them about B's columns leads anywhere. Without them, what A's other columns say of B's
still holds. Everything here happens at A, by its own columns alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmend.data.restore import positions

if TYPE_CHECKING:
    from fedmend.data.table import Table

__all__ = ["beyond", "columns_within", "held_within"]

MOST = 0.25
LEAST = 0.01


def columns_within(table: Table, aligned: int, most: float = MOST) -> list[str]:
    """The features that lie at most so far, on average, beyond the first `aligned` rows.

    Blocks always stay; if nothing else would, all columns do.
    """
    others = len(table) - aligned
    if not aligned or not others:
        return list(table.feature_names)
    stay = [
        name
        for name in table.feature_names
        if name in table.blocks or beyond(_codes(table, name), aligned).mean() <= most
    ]
    return stay or list(table.feature_names)


def held_within(columns: np.ndarray, aligned: int, least: float = LEAST) -> np.ndarray:
    """Columns of numbers that lie beyond their first rows by `least` on average end where these do.

    Less than that are single rows, of which every table has some.

    **Shape**: columns [n, d], and so the result.
    """
    held = columns.copy()
    for at in range(columns.shape[1]):
        column = columns[:, at]
        if aligned < len(column) and beyond(column, aligned).mean() > least:
            held[:, at] = column.clip(column[:aligned].min(), column[:aligned].max())
    return held


def beyond(column: np.ndarray, aligned: int) -> np.ndarray:
    """How far the other rows lie beyond the aligned ones, from 0 to 1. **Shape** [others].

    Numbers: the distance from the range of the aligned values, in units of that range. Categories
    (numbers of them, as integers): 1 where no aligned row has it. A missing number is not beyond.

    >>> beyond(np.array([0.0, 10.0, 5.0, 12.0, -40.0]), 2).tolist()
    [0.0, 0.2, 1.0]
    >>> beyond(np.array([0, 1, 1, 2]), 2).tolist()
    [0.0, 1.0]
    """
    known, others = column[:aligned], column[aligned:]
    if column.dtype.kind == "i":
        return np.where(np.isin(others, known), 0.0, 1.0)
    seen = known[~np.isnan(known)]
    if not len(seen):
        return np.where(np.isnan(others), 0.0, 1.0)
    low, high = float(seen.min()), float(seen.max())
    excess = np.nan_to_num(np.maximum(low - others, others - high)).clip(0.0)
    if high == low:
        return np.where(excess > 0, 1.0, 0.0)
    return (excess / (high - low)).clip(0.0, 1.0)


def _codes(table: Table, name: str) -> np.ndarray:
    column, series = table.schema[name], table.frame[name]
    if column.is_categorical:
        return np.asarray(positions(series, column.categories or ()), dtype=np.int64)
    return series.to_numpy(dtype=np.float64, na_value=np.nan)
