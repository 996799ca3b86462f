"""Columns as small bin numbers, and the finite list of cuts a tree can choose from.

A numeric, ordinal or binary column has ordered bins at quantiles of its own values; a nominal one a
bin per category, rare ones together; missing cells are a bin of their own. A *cut* sends some bins
to the left: the first t bins, with or without the missing ones, or one category alone. Cuts are
numbered over all columns, in an order that follows from the *layout* (kinds and numbers of bins),
so two parties agree on a number without a name, a value or an edge.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csc_array, csr_array

from fedmend.data.encode import as_numbers, check_same
from fedmend.data.schema import Column
from fedmend.data.table import Table

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


@dataclass(frozen=True, repr=False)
class ColumnBins:
    """A column in bins that are fitted once, for rows that come later too.

    ends: of numbers, and of ordered categories by their position, upper ends of all bins but the
    last. frequent: of a nominal column the positions of categories with a bin of their own; the
    others share one if `rare`. fill: the bin of missing cells where these are too few to have their
    own (which cells of people that the party does not know have, too), else -1.
    """

    column: Column
    ends: np.ndarray
    frequent: np.ndarray
    rare: bool
    fill: int

    @classmethod
    def fit(cls, column: Column, series: pd.Series, most: int, least: int) -> ColumnBins:
        """At most `most` bins, of `least` rows or more each."""
        none: np.ndarray = np.zeros(0, np.int64)
        values = as_numbers(column, series)
        seen = values[~np.isnan(values)]
        missing = len(values) - len(seen)
        few = 0 < missing < least
        if column.kind == "nominal":
            counts = np.bincount(seen.astype(np.int64), minlength=1)
            frequent = np.flatnonzero(counts >= max(least, 1))
            rare = bool(counts.sum() - counts[frequent].sum() >= max(least, 1))
            fill = int(np.argmax(counts[frequent])) if few and len(frequent) else -1
            return cls(column, none.astype(np.float64), frequent, rare, fill)
        ends = _edges(np.sort(seen), most, least).astype(np.float64)
        fill = int(np.searchsorted(ends, np.median(seen))) if few and len(seen) else -1
        return cls(column, ends, none, False, fill)

    @property
    def bins(self) -> int:
        if self.column.kind == "nominal":
            return max(1, len(self.frequent) + self.rare)
        return len(self.ends) + 1

    @property
    def layout(self) -> list[Any]:
        """Of every column somebody's cell may be missing: whom the party does not know."""
        return [NOMINAL if self.column.kind == "nominal" else ORDERED, self.bins, True]

    def codes(self, series: pd.Series) -> np.ndarray:
        """Bin numbers int16 [n]; `bins` where a cell is missing, or of no known category."""
        values = as_numbers(self.column, series)
        absent = np.isnan(values)
        if self.column.kind != "nominal":
            found = np.searchsorted(self.ends, np.where(absent, 0.0, values), side="left")
        else:
            at = np.where(absent, -1, values).astype(np.int64)
            found = np.searchsorted(self.frequent, at)
            own = np.isin(at, self.frequent)
            found = np.where(own, found, len(self.frequent) if self.rare else self.bins)
        return np.where(absent, self.fill if self.fill >= 0 else self.bins, found).astype(np.int16)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        return {
            "column": self.column.to_dict(),
            "ends": self.ends.tolist(),
            "frequent": self.frequent.tolist(),
            "rare": self.rare,
            "fill": self.fill,
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> ColumnBins:
        ends, frequent = np.array(saved["ends"], np.float64), np.array(saved["frequent"], np.int64)
        return cls(Column.from_dict(saved["column"]), ends, frequent, saved["rare"], saved["fill"])


def bin_table(table: Table, most: int, least: int) -> list[ColumnBins]:
    """Bins of all columns with one value a row that can be cut anywhere."""
    fitted = (
        ColumnBins.fit(table.schema[name], table.frame[name], most, least)
        for name in table.feature_names
        if name not in table.blocks
    )
    return [each for each in fitted if each.bins > 1]


def codes_of(columns: Sequence[ColumnBins], table: Table) -> np.ndarray:
    """The bin numbers of a table's rows, int16 [columns, n]; refuses columns of another type."""
    for each in columns:
        check_same(each.column, table)
    found = [each.codes(table.frame[each.column.name]) for each in columns]
    return np.stack(found) if found else np.zeros((0, len(table)), np.int16)


class CutTable:
    """All cuts of columns with these layouts.

    Of every column all bins are summed but the last, which follows from the total: `stored` bins.
    What a cut sends to the left is a run of stored bins, and the last bin where it takes the rest.
    """

    def __init__(self, layouts: Sequence[Sequence[Any]]) -> None:
        self.layouts = [(str(kind), int(bins), bool(missing)) for kind, bins, missing in layouts]
        widths = [bins + missing - 1 for _, bins, missing in self.layouts]
        starts = np.cumsum([0, *widths])
        self._starts, self.stored = starts, int(starts[-1])
        self.bounds = [(int(at), int(to)) for at, to in itertools.pairwise(starts)]
        runs = [
            (number, *run) for number, layout in enumerate(self.layouts) for run in _runs(*layout)
        ]
        found = np.array(runs, dtype=np.int64).reshape(-1, 4).T
        self.columns, self._begins, self._ends = found[0], found[1], found[2]
        self._rest = found[3].astype(bool)
        self._first, self._last = starts[:-1][self.columns], starts[1:][self.columns]
        self._from, self._to = self._first + self._begins, self._first + self._ends
        # Cuts whose next one differs from them in where missing cells go, and in nothing else.
        twins = (found[:3, 1:] == found[:3, :-1]).all(0) & ~self._rest[:-1]
        self.twins = np.flatnonzero(twins)

    def __len__(self) -> int:
        return len(self.columns)

    def told_apart(self, codes: np.ndarray) -> np.ndarray:
        """The cuts without those that differ from another only in where nobody goes.

        codes: bin numbers [columns, n]. Where no row is in a column's last bin, that is any that
        takes it to the left.
        """
        unused = ~(codes == np.diff(self._starts)[:, None]).any(1)
        return np.flatnonzero(~(self._rest & unused[self.columns]))

    def lefts(self, sums: np.ndarray, totals: np.ndarray, cuts: np.ndarray) -> np.ndarray:
        """Sums on the left of these cuts, int64 [nodes, cuts], from those of the stored bins."""
        so_far = np.zeros((len(sums), self.stored + 1), dtype=np.int64)
        np.cumsum(sums, axis=1, out=so_far[:, 1:])
        out = so_far.take(self._to[cuts], 1) - so_far.take(self._from[cuts], 1)
        rest = self._rest[cuts]
        if rest.any():
            ends = so_far.take(self._starts, 1)
            last_bins = totals[:, None] - (ends[:, 1:] - ends[:, :-1])  # one of every column
            out += last_bins.take(self.columns[cuts], 1) * rest
        return np.asarray(out)

    def goes_left(self, cut: int, codes: np.ndarray) -> np.ndarray:
        """Which rows go left, from the bin numbers [columns, n]."""
        own = codes[self.columns[cut]]
        inside = (own >= self._begins[cut]) & (own < self._ends[cut])
        if self._rest[cut]:
            inside |= own == self._last[cut] - self._first[cut]
        return np.asarray(inside)

    def missing_left(self, cut: int) -> bool:
        """Where a cut sends missing cells, of a column that has a bin for them."""
        return bool(self._rest[cut])

    def indicators(self, codes: np.ndarray) -> csr_array:
        """Zeros and ones [n, stored] of the stored bins, from the bin numbers [columns, n]."""
        firsts, lasts = np.array(self.bounds, dtype=np.int32).reshape(-1, 2).T
        own = (lasts - firsts) > codes.T
        ends = np.concatenate([[0], np.cumsum(own.sum(1))])
        places = (codes.T + firsts)[own]
        ones = np.ones(len(places), np.uint32)
        return csr_array((ones, places, ends), shape=(codes.shape[1], self.stored))

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


@dataclass(frozen=True, repr=False)
class LeftToAsk:
    """Which sums are still to be asked for where the sides of some cuts are known.

    Bins that no known cut tells apart are a class. Whoever knows the sides knows the class of each
    row, and sums of classes; of a class all bins but one are asked for, and that one follows.
    asked, following: numbers of stored bins. rows: whose class a bin of `following` stands for.

    **Shape** rows, zeros and ones [following, n]; together [following, asked].
    """

    asked: np.ndarray
    following: np.ndarray
    rows: csc_array
    together: csc_array

    @classmethod
    def of(cls, table: CutTable, known: Mapping[int, np.ndarray], rows: int = 0) -> LeftToAsk:
        """known: by each such cut, which rows go left; `rows`: how many of them count."""
        asked, following, classes, pairs = [], [], [], []
        cuts = np.array(sorted(known), dtype=np.int64)
        for number, (first, last) in enumerate(table.bounds):
            bins = np.arange(last - first + 1)
            here = cuts[table.columns[cuts] == number][:, None]
            sides = (bins >= table._begins[here]) & (bins < table._ends[here])
            sides |= table._rest[here] & (bins == last - first)
            told = np.array([known[int(cut)][:rows] for cut in here[:, 0]], bool)
            sides = np.hstack([sides, told.reshape(len(here), rows)])
            blank = np.zeros((1, sides.shape[1]), bool)
            bits = np.packbits(np.concatenate([blank, sides]), axis=0).T.copy()
            label = np.unique(bits.view(f"V{bits.shape[1]}"), return_inverse=True)[1].reshape(-1)
            own = label[: len(bins)]
            follows = np.full(len(bins), -1)  # for each class
            follows[own] = first + bins
            follows[own[-1]] = -1  # the last bin is not stored: it follows from the total
            asked.append(first + np.flatnonzero(follows[own[:-1]] != first + bins[:-1]))
            following.append(follows[follows >= 0])
            classes.append(follows[label[len(bins) :]])
            pairs.append(follows[own[asked[-1] - first]])
        every = np.sort(np.concatenate(following))
        of_rows, of_bins = np.stack(classes, axis=1), np.concatenate(pairs)[:, None]
        return cls(np.concatenate(asked), every, _ones(of_rows, every).T, _ones(of_bins, every).T)

    def complete(self, sums: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Sums of all stored bins [k, stored], from those asked for and the numbers [k, n]."""
        out = np.zeros((len(sums), len(self.asked) + len(self.following)), np.int64)
        out[:, self.asked] = sums
        out[:, self.following] = (self.rows @ numbers.T - self.together @ sums.T).T
        return out


def _ones(places: np.ndarray, among: np.ndarray) -> csr_array:
    """int64 [n, among]: for each row ones at its places (-1 for none)."""
    own = places >= 0
    ends = np.concatenate([[0], np.cumsum(own.sum(1))])
    at = np.searchsorted(among, places[own])
    return csr_array((np.ones(len(at), np.int64), at, ends), shape=(len(places), len(among)))


def _runs(kind: str, bins: int, missing: bool) -> list[tuple[int, int, bool]]:
    """Of every cut of a column the first bin it sends left, the one after the last of them, and
    whether the last bin of all (of missing cells, if there are any) goes with them."""
    codes = bins + missing
    if kind == NOMINAL:
        alone = [(code, code + 1, False) for code in range(codes - 1)]
        return [*alone, (0, 0, True)] if codes > 2 else alone
    cuts = []
    for last in range(1, bins):
        cuts.append((0, last, False))
        if missing:
            cuts.append((0, last, True))
    return [*cuts, (0, 0, True)] if missing else cuts
