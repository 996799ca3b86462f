"""Process I of FedPSG-PUM: which of B's columns are strong, and which of A's may tell of them.

**The threshold tau** parts B's strong columns from its weak ones: the critical value of the rank
correlation, or what cross-validation finds.

**A's columns that stay within what they were on the aligned rows.** A model knows what a column
means where it has seen its values. Where A's other rows are of another time, say, columns such as
an interest rate or the month lie wholly elsewhere, and whatever was learnt from them about B's
columns leads anywhere. Without them, what A's other columns say of B's still holds, unless these
have changed as well: a column that stays within but is distributed in another way may only have
stood for the time. Whether it still leads the right way, A can try on its own columns. This happens
at A, by its own columns alone; `linear.AsideModels` makes use of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from fedmend.data.encode import positions
from fedmend.data.schema import numbers
from fedmend.data.table import Table
from fedmend.methods.boosting.bins import bin_categories, bin_numbers

MAX_BEYOND = 0.25  # of a column's range, on average, from where on it is left out
MIN_BEYOND = 0.01  # from where on its lines end with the aligned rows
MAX_ERROR = 0.75  # of the mean's squared error, where columns lead the right way
KS_CRITICAL = 1.63  # of a Kolmogorov-Smirnov distance, at a level of 0.01
BINS, MIN_BIN_ROWS = 16, 10  # of a column that lies elsewhere, and aligned rows in each


# ---------------------------------------------------------------------------------- tau


def critical_rho(rho: np.ndarray, rows: int, level: float) -> float:
    """The |rho| that separates significant from other pairs, after Holm's correction.

    Holm goes through the pairs from the largest |rho| down and compares the p-value of the i-th
    with level / (pairs - i); the critical value is that of the first that fails.
    """
    from scipy.stats import t as student

    sizes = np.sort(np.abs(rho[~np.isnan(rho)]))[::-1]
    freedom = rows - 2
    if not len(sizes) or freedom < 1:
        return 1.0
    quantiles = student.isf(level / (2 * np.arange(len(sizes), 0, -1)), freedom)
    critical = quantiles / np.sqrt(freedom + quantiles**2)
    failing = np.flatnonzero(sizes < critical)
    return float(critical[failing[0]] if len(failing) else critical[-1])


def cv_threshold(strengths: pd.Series, errors: Mapping[str, Mapping[str, float]]) -> float:
    """The tau with the least summed error: predicted above it, the mean or mode below.

    Errors are in units of what the mean or the mode does wrong, so that columns are comparable.
    """
    gains = {}
    for name in strengths.index:
        found = dict(errors.get(name, {}))
        mean = found.pop("mean", 0.0)
        gains[name] = 1.0 - min(found.values()) / mean if found and mean > 0 else 0.0
    order = strengths.dropna().sort_values(ascending=False)
    sums = np.cumsum([gains[name] for name in order.index])
    if not len(sums) or sums.max() <= 0:
        return 1.0
    last = int(sums.argmax())
    below = float(order.iloc[last + 1]) if last + 1 < len(order) else -1.0
    # Halfway to the next one, so that rounding decides nothing.
    return (float(order.iloc[last]) + below) / 2


# ---------------------------------------------------------------------------------- A's columns


def columns_within(table: Table, aligned: int, most: float = MAX_BEYOND) -> list[str]:
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


def columns_changed(table: Table, aligned: int, most: float = MAX_BEYOND) -> list[str]:
    """The features that are distributed in another way on the first `aligned` rows and the others.

    By a distance above `most`, and above what chance makes of so few rows. Not blocks.
    """
    others = len(table) - aligned
    if not aligned or not others:
        return []
    least = max(most, KS_CRITICAL * np.sqrt(1 / aligned + 1 / others))
    return [
        name
        for name in table.feature_names
        if name not in table.blocks and distance(_codes(table, name), aligned) > least
    ]


def lead_right(table: Table, aligned: int, names: list[str], left_out: list[str]) -> bool:
    """Whether columns that changed say the right thing of those left out, which A can see.

    A ridge regression on their bins over the aligned rows predicts every number that is left out,
    on the other rows and within the range of the aligned ones, clearly better than the mean does.
    Without such a number nobody knows.
    """
    bins, right = bins_of(table, aligned, names), []
    centred = bins - bins[:aligned].mean(axis=0)
    gram = centred[:aligned].T @ centred[:aligned] + np.eye(bins.shape[1])
    for name in left_out:
        column = _codes(table, name)
        known = column[:aligned]
        seen = ~np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), bool)
        if not seen.all() or known.min() == known.max():
            continue
        weights = np.linalg.solve(gram, centred[:aligned].T @ (known - known.mean()))
        told = known.mean() + centred[aligned:] @ weights
        off = (told.clip(known.min(), known.max()) - column[aligned:]) ** 2
        right.append(off.mean() <= MAX_ERROR * ((known.mean() - column[aligned:]) ** 2).mean())
    return bool(right) and all(right)


def held_within(columns: np.ndarray, aligned: int, least: float = MIN_BEYOND) -> np.ndarray:
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


def distance(column: np.ndarray, aligned: int) -> float:
    """How differently the aligned rows and the others are distributed, from 0 to 1.

    Numbers: Kolmogorov and Smirnov's distance. Categories: half the summed differences of their
    shares. Missing numbers do not count, missing categories are one.

    >>> distance(np.array([1.0, 2.0, 2.0, 3.0]), 2)
    0.5
    >>> distance(np.array([0, 1, 1, -1]), 2)
    0.5
    """
    known, others = column[:aligned], column[aligned:]
    if column.dtype.kind == "i":
        most = int(column.max()) + 2
        shares = [
            np.bincount(np.maximum(part, -1) + 1, minlength=most) / len(part)
            for part in (known, others)
        ]
        return float(np.abs(shares[0] - shares[1]).sum() / 2)
    known, others = known[~np.isnan(known)], others[~np.isnan(others)]
    if not len(known) or not len(others):
        return 0.0
    values = np.concatenate([known, others])
    below = [
        np.searchsorted(np.sort(part), values, side="right") / len(part) for part in (known, others)
    ]
    return float(np.abs(below[0] - below[1]).max())


def bins_of(table: Table, aligned: int, names: list[str]) -> np.ndarray:
    """These columns as indicators, one for every bin that some aligned rows have and some not.

    **Shape** [n, bins] of float64; bins of numbers at quantiles of the aligned rows.
    """
    made, first = [], np.arange(aligned)
    for name in names:
        codes = _codes(table, name)
        if codes.dtype.kind == "i":
            binned = bin_categories(np.maximum(codes, -1), MIN_BIN_ROWS, first)
        else:
            binned = bin_numbers(codes, BINS, MIN_BIN_ROWS, first)
        made += [binned.codes == code for code in range(binned.bins + binned.missing)]
    varied = [each for each in made if 0 < each[:aligned].sum() < aligned]
    return np.stack(varied, axis=1).astype(np.float64) if varied else np.zeros((len(table), 0))


def _codes(table: Table, name: str) -> np.ndarray:
    column, series = table.schema[name], table.frame[name]
    if column.is_categorical:
        return np.asarray(positions(series, column.categories or ()), dtype=np.int64)
    return numbers(series)
