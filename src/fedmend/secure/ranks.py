"""Ranks as integers, at the party: average ranks with ties, doubled and centred.

For m observed values the average rank r of each becomes 2r - (m + 1): an integer, with mean zero,
so that Spearman's rho is an inner product over two norms, exactly, ties included. Numbers, ordinal
and binary columns give one column of ranks; a nominal column gives one per category (the ranks of
its 0/1 indicator).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedmend.errors import CryptoError, DataError
from fedmend.federation.rows import frequent, varies_in_few
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.secure.columns import (
    ColumnsWorker,
    IntegerColumns,
    category_codes,
    column_provider,
    hold_columns,
)

if TYPE_CHECKING:
    from fedmend.federation.site import Site

__all__ = ["RankWorker", "Rankable", "centred_ranks", "rank_bounds"]

MAX_CATEGORIES = 32


def centred_ranks(values: np.ndarray, present: np.ndarray | None = None) -> np.ndarray:
    """2r - (m + 1) for the m values present (int64); 0 for the others.

    >>> centred_ranks(np.array([10.0, 30.0, 20.0, 20.0]))
    array([-3,  3,  0,  0])
    """
    ranks = np.zeros(len(values), dtype=np.int64)
    seen = values if present is None else values[present]
    if len(seen) == 0:
        return ranks
    order = np.argsort(seen, kind="stable")
    ordered = seen[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    ends = np.append(starts[1:], len(seen))
    # A group of ties at positions start+1 .. end has 2r = start + 1 + end.
    doubled = np.empty(len(seen), dtype=np.int64)
    doubled[order] = np.repeat(starts + 1 + ends, ends - starts)
    ranks[slice(None) if present is None else present] = doubled - (len(seen) + 1)
    return ranks


def rank_bounds(rows: int) -> dict[str, int]:
    """The largest centred rank and sum of squares among `rows` rows: those without ties."""
    return {"bound": max(1, rows - 1), "square_sum": max(1, rows * (rows * rows - 1) // 3)}


@dataclass(frozen=True, repr=False)
class Rankable:
    """One column that can be ranked: values by order, where present, and whose it is."""

    name: str
    owner: str
    values: np.ndarray
    present: np.ndarray | None  # None: all


def rankable_columns(
    worker: ColumnsWorker, names: Sequence[str] | None, max_categories: int
) -> list[Rankable]:
    """The party's scalar features at the aligned rows, nominal ones as indicators."""
    chosen = list(names) if names is not None else worker.scalar_features()
    result: list[Rankable] = []
    for name in chosen:
        result += _of_column(worker, name, max_categories)
    return [_without_few(column, worker.site.rows.least) for column in result]


def _without_few(column: Rankable, least: int) -> Rankable:
    """A column in which only a few rows differ, or are there, is taken for a constant one."""
    seen = column.values if column.present is None else column.values[column.present]
    if len(seen) >= least and not varies_in_few(seen, least):
        return column
    return replace(column, values=np.zeros(len(column.values), np.int8), present=None)


def _of_column(worker: ColumnsWorker, name: str, max_categories: int) -> list[Rankable]:
    values, column = worker.aligned_column(name), worker.table.schema[name]
    if not column.is_categorical:
        missing = values.isna().to_numpy()
        present = ~missing if missing.any() else None
        return [Rankable(name, name, _numbers(values, present), present)]
    codes = category_codes(values, column)
    known = codes >= 0
    present = None if known.all() else known
    if column.kind != "nominal":
        return [Rankable(name, name, codes, present)]
    enough = frequent(codes, len(column.categories or ()), worker.site.rows.least)
    counts = np.bincount(codes[known], minlength=len(column.categories or ()))
    commonest = sorted(sorted(enough, key=lambda code: -counts[code])[:max_categories])
    return [
        Rankable(f"{name}#{code}", name, (codes == code).astype(np.int8), present)
        for code in commonest
    ]


def _numbers(values: pd.Series, present: np.ndarray | None) -> np.ndarray:
    # Whole numbers stay whole: as floats, large ones that differ would become ties.
    if present is None and pd.api.types.is_unsigned_integer_dtype(values.dtype):
        return values.to_numpy(dtype=np.uint64)
    if present is None and pd.api.types.is_integer_dtype(values.dtype):
        return values.to_numpy(dtype=np.int64)
    return values.to_numpy(dtype=np.float64, na_value=np.nan)


@column_provider("centred-ranks")
def centred_rank_columns(
    worker: ColumnsWorker,
    names: Sequence[str] | None = None,
    max_categories: int = MAX_CATEGORIES,
) -> IntegerColumns:
    """Centred integer ranks of columns without missing cells, for products of one's own."""
    columns = rankable_columns(worker, names, max_categories)
    for column in columns:
        if column.present is not None:
            raise DataError(
                "has missing cells",
                party=worker.site.name,
                column=column.owner,
                mend="fill them, name other columns, or use rank_correlation, which handles them",
            )
    rows = len(worker.alignment.aligned)
    values = _stack([centred_ranks(column.values) for column in columns], rows)
    bounds = rank_bounds(rows)
    return IntegerColumns(
        values, tuple(column.name for column in columns), bounds["bound"], bounds["square_sum"]
    )


# ---------------------------------------------------------------------------------- the party


class RankWorker(ColumnsWorker):
    """The party's half of `rank_correlation`: leaves integer arrays in the site's state.

    run: a word that sets the arrays of this run apart; they are dropped by `forget`.
    """

    conversation = "rank correlation"

    def __init__(
        self,
        site: Site,
        scope: str = "train",
        *,
        run: str,
        names: Sequence[str] | None = None,
        max_categories: int = MAX_CATEGORIES,
    ) -> None:
        super().__init__(site, scope)
        self._run = run
        self._columns = rankable_columns(self, names, max_categories)
        self._masks, self._patterns = _distinct_masks(self._columns)
        self._other_masks: list[np.ndarray] = []

    @exposed(kind="count")
    def describe(self) -> dict[str, Any]:
        """Names, the columns they belong to, and their patterns of missing cells (0: none)."""
        return {
            "rows": len(self.alignment.aligned),
            "names": [column.name for column in self._columns],
            "owners": [column.owner for column in self._columns],
            "patterns": self._patterns,
            "observed": [
                len(self.alignment.aligned) if column.present is None else int(column.present.sum())
                for column in self._columns
            ],
        }

    @exposed(kind="statistic")
    def own_ranks(self, gaps: bool) -> list[int]:
        """Rank every column among its own observed rows; gives the sums of squares.

        gaps: some column of either party has missing cells, so masks and squares are needed too.
        """
        ranks = self._ranks(range(len(self._columns)), None)
        self._leave("ranks", ranks)
        if gaps:
            masks = self._presences([c for c in self._columns if c.present is not None])
            self._leave("masks", masks)
            self._leave("moments", np.concatenate([ranks, ranks * ranks]))
            self._leave("moments+masks", np.concatenate([ranks, ranks * ranks, masks]))
        return _square_sums(ranks)

    @exposed(kind="row")
    def share_patterns(self, to: str) -> Sealed:
        """Which rows miss a value, pattern by pattern, for the other party (sealed)."""
        packed = [np.packbits(mask) for mask in self._masks]
        return self.seal(packed, to=to, kind="row")

    @exposed(kind="control", takes={"box": "row"})
    def take_patterns(self, box: Sealed, sender: str) -> None:
        rows = len(self.alignment.aligned)
        masks = []
        for packed in self.open(box, sender=sender, kind="row"):
            if not isinstance(packed, np.ndarray) or len(packed) != -(-rows // 8):
                raise CryptoError(f"the patterns of {sender!r} are not about {rows} rows")
            masks.append(np.unpackbits(packed, count=rows).astype(bool))
        self._other_masks = masks

    @exposed(kind="statistic")
    def ranks_within(self, own: int, other: int) -> list[int]:
        """Rank the columns of one pattern among rows complete on both sides; sums of squares."""
        at = [index for index, pattern in enumerate(self._patterns) if pattern == own]
        if not 0 <= other <= len(self._other_masks):
            raise CryptoError(f"there is no pattern {other} of the other party")
        ranks = self._ranks(at, self._other_masks[other - 1] if other else None)
        self._leave("ranks", ranks)
        return _square_sums(ranks)

    @exposed(kind="count")
    def complete_rows(self, own: int, other: int) -> int:
        """How many rows have a value under both patterns."""
        mask = np.ones(len(self.alignment.aligned), dtype=bool)
        if own:
            mask &= self._masks[own - 1]
        if other:
            mask &= self._other_masks[other - 1]
        return int(mask.sum())

    @exposed(kind="control")
    def forget(self) -> None:
        """Drop the arrays of this run."""
        for key in [key for key in self.site.state if key.startswith(f"{self._run}/")]:
            del self.site.state[key]

    def _ranks(self, at: Sequence[int], also: np.ndarray | None) -> np.ndarray:
        rows = []
        for column in (self._columns[index] for index in at):
            present = column.present
            if also is not None:
                present = also if present is None else present & also
            rows.append(centred_ranks(column.values, present))
        return _stack(rows, len(self.alignment.aligned))

    def _presences(self, columns: list[Rankable]) -> np.ndarray:
        rows = [column.present.astype(np.int64) for column in columns if column.present is not None]
        return _stack(rows, len(self.alignment.aligned))

    def _leave(self, key: str, values: np.ndarray) -> None:
        """With bounds that follow from the number of rows alone."""
        bounds = rank_bounds(len(self.alignment.aligned))
        if key == "masks":
            bounds = {"bound": 1}
        elif key != "ranks":
            most = bounds["bound"] ** 2
            bounds = {"bound": most, "square_sum": most * bounds["square_sum"]}
        hold_columns(self.site, f"{self._run}/{key}", values, **bounds)


def _distinct_masks(columns: list[Rankable]) -> tuple[list[np.ndarray], list[int]]:
    """The masks that occur, and for each column the number of its own (from 1; 0: none missing)."""
    masks: list[np.ndarray] = []
    numbers: dict[bytes, int] = {}
    patterns = []
    for column in columns:
        number = 0
        if column.present is not None:
            number = numbers.setdefault(column.present.tobytes(), len(masks) + 1)
            if number > len(masks):
                masks.append(column.present)
        patterns.append(number)
    return masks, patterns


def _square_sums(ranks: np.ndarray) -> list[int]:
    # n (n² - 1) / 3 fits int64 up to n = 3 million, beyond which products are refused anyway.
    return [int(row @ row) for row in ranks]


def _stack(rows: list[np.ndarray], count: int) -> np.ndarray:
    return np.stack(rows) if rows else np.zeros((0, count), dtype=np.int64)
