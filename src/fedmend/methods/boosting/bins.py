"""Columns as small bin numbers, and the finite list of cuts a tree can choose from.

A numeric, ordinal or binary column has ordered bins at quantiles of its own values; a nominal one a
bin per category, rare ones together; missing cells are a bin of their own. A *cut* sends some bins
to the left: the first t bins, with or without the missing ones, or one category alone. Cuts are
numbered over all columns, in an order that follows from the *layout* (kinds and numbers of bins),
so two parties agree on a number without a name, a value or an edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Binned", "CutTable", "bin_categories", "bin_numbers"]

ORDERED, NOMINAL = "ordered", "nominal"


@dataclass(frozen=True, repr=False)
class Binned:
    """One column: bin numbers 0 … bins-1 per row, `bins` itself where the cell is missing."""

    kind: str
    bins: int
    missing: bool
    codes: np.ndarray

    @property
    def layout(self) -> list[Any]:
        return [self.kind, self.bins, self.missing]


def bin_numbers(
    values: np.ndarray, most: int, least: int = 1, fitted_on: np.ndarray | None = None
) -> Binned:
    """Float64 [n] (NaN: missing) into at most `most` bins of `least` rows or more.

    fitted_on: rows whose values set the edges (all by default). Missing cells, if fewer than
    `least`, count as the median.
    """
    seen = values if fitted_on is None else values[fitted_on]
    seen = np.sort(seen[~np.isnan(seen)])
    edges = _edges(seen, most, least)
    absent = np.isnan(values)
    if 0 < absent.sum() < least and len(seen):
        values, absent = np.where(absent, seen[len(seen) // 2], values), np.zeros_like(absent)
    codes = np.searchsorted(edges, np.where(absent, 0.0, values), side="left")
    codes[absent] = len(edges) + 1
    return Binned(ORDERED, len(edges) + 1, bool(absent.any()), codes.astype(np.int16))


def _edges(seen: np.ndarray, most: int, least: int) -> np.ndarray:
    """Upper ends of all bins but the last; a value equal to one still belongs to its bin."""
    distinct, counts = np.unique(seen, return_counts=True)
    room = max(least, 1 if len(distinct) <= most else -(-len(seen) // most))
    ends, gathered, left = [], 0, len(seen)
    for value, count in zip(distinct, counts, strict=True):
        gathered, left = gathered + count, left - count
        if gathered >= room and left >= max(least, 1):
            ends.append(value)
            gathered = 0
    return np.array(ends)


def bin_categories(
    codes: np.ndarray, least: int = 1, fitted_on: np.ndarray | None = None
) -> Binned:
    """Category numbers [n] (-1: missing); those with fewer than `least` rows share one bin.

    Missing cells, if fewer than `least`, go with the rare ones; and so does the rarest of the
    others, if the rare ones together are still fewer; without any other, all missing cells do.
    """
    seen = codes if fitted_on is None else codes[fitted_on]
    absent = codes < 0
    counts = np.bincount(seen[seen >= 0], minlength=int(codes.max(initial=-1)) + 1)
    frequent = np.flatnonzero(counts >= max(least, 1))
    few = 0 < int(absent.sum()) < least
    rare = ~absent & np.isin(codes, frequent, invert=True) | (absent & few)
    if 0 < rare.sum() < least and len(frequent):
        rarest = frequent[np.argmin(counts[frequent])]
        frequent = frequent[frequent != rarest]
        rare |= codes == rarest
    elif 0 < rare.sum() < least:
        rare |= absent
    found = np.searchsorted(frequent, codes).astype(np.int16)
    bins = len(frequent) + bool(rare.any())
    found[rare] = len(frequent)
    missing = absent & ~rare
    found[missing] = bins
    return Binned(NOMINAL, max(bins, 1), bool(missing.any()), found)


class CutTable:
    """All cuts of columns with these layouts.

    Of every column all bins are summed but the last, which follows from the total: `stored` bins.
    `matrix` [cuts, stored + 1] makes the sums on the left of every cut from the stored bins' sums
    and, in the last place, the total.
    """

    def __init__(self, layouts: Sequence[Sequence[Any]]) -> None:
        self.layouts = [(str(kind), int(bins), bool(missing)) for kind, bins, missing in layouts]
        self.bounds: list[tuple[int, int]] = []  # of each column's stored bins
        self.column: list[int] = []  # of each cut
        self._lefts: list[np.ndarray] = []  # of each cut: which codes go left
        start = 0
        for number, (kind, bins, missing) in enumerate(self.layouts):
            codes = bins + missing
            self.bounds.append((start, start + codes - 1))
            start += codes - 1
            for left in _lefts(kind, bins, missing):
                self.column.append(number)
                self._lefts.append(left)
        self.stored = start
        self._place_plain_cuts()
        self.columns = np.array(self.column, dtype=np.int64)
        self.matrix = np.zeros((len(self.column), start + 1))
        for cut, (number, left) in enumerate(zip(self.column, self._lefts, strict=True)):
            first, last = self.bounds[number]
            # the last bin is the total less all others
            self.matrix[cut, first:last] = left[:-1] - 1.0 * left[-1]
            self.matrix[cut, -1] = float(left[-1])

    def _place_plain_cuts(self) -> None:
        """Of cuts that send the first bins of a column to the left: where these begin and end."""
        plain, begins, ends = [], [], []
        for cut, number in enumerate(self.column):
            kind, _, missing = self.layouts[number]
            if kind == ORDERED and not missing:
                first = self.bounds[number][0]
                plain.append(cut)
                begins.append(first)
                ends.append(first + int(self._lefts[cut].sum()))
        self._plain = np.array(plain, dtype=np.int64)
        self._begins, self._ends = np.array(begins, np.int64), np.array(ends, np.int64)
        self._others = np.setdiff1d(np.arange(len(self.column)), self._plain)

    def __len__(self) -> int:
        return len(self.column)

    def lefts(self, sums: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """Sums on the left of every cut, int64 [nodes, cuts], from those of the stored bins.

        Exact, since all sums are below 2^46.
        """
        out = np.empty((len(sums), len(self)), dtype=np.int64)
        so_far = np.zeros((len(sums), self.stored + 1), dtype=np.int64)
        np.cumsum(sums, axis=1, out=so_far[:, 1:])
        out[:, self._plain] = so_far[:, self._ends] - so_far[:, self._begins]
        if len(self._others):
            whole = np.concatenate([sums, totals[:, None]], axis=1).astype(np.float64)
            out[:, self._others] = (whole @ self.matrix[self._others].T).astype(np.int64)
        return out

    def goes_left(self, cut: int, codes: np.ndarray) -> np.ndarray:
        """Which rows go left, from the bin numbers [columns, n]."""
        side: np.ndarray = self._lefts[cut][codes[self.column[cut]]]
        return side

    def indicators(self, codes: np.ndarray) -> np.ndarray:
        """float64 [n, stored] of the stored bins, from the bin numbers [columns, n]."""
        out = np.zeros((codes.shape[1], self.stored))
        for number, (first, last) in enumerate(self.bounds):
            rows = np.flatnonzero(codes[number] < last - first)
            out[rows, first + codes[number, rows]] = 1.0
        return out

    def sums(
        self, codes: np.ndarray, rows: np.ndarray, slot: np.ndarray, slots: int, weights: np.ndarray
    ) -> np.ndarray:
        """Sums of `weights` per stored bin and slot: float64 [slots, stored].

        rows: the rows that count; slot, weights: for each of them.
        """
        out = np.zeros((slots, self.stored))
        for number, (first, last) in enumerate(self.bounds):
            width = last - first + 1
            place = slot * width + codes[number, rows]
            found = np.bincount(place, weights, minlength=slots * width).reshape(slots, width)
            out[:, first:last] = found[:, :-1]
        return out


def _lefts(kind: str, bins: int, missing: bool) -> list[np.ndarray]:
    """Per cut, for every code (the missing bin last), whether it goes left."""
    codes = bins + missing
    cuts = []
    if kind == NOMINAL:
        for code in range(codes if codes > 2 else codes - 1):
            cuts.append(np.arange(codes) == code)
        return cuts
    for last in range(bins - 1):
        cuts.append(np.arange(codes) <= last)
        if missing:
            cuts.append((np.arange(codes) <= last) | (np.arange(codes) == bins))
    if missing:
        cuts.append(np.arange(codes) == bins)
    return cuts
