"""The tables of ``fedmend bench generators``: rows to learn from, other rows, rows with gaps."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmend.data.datasets import load
from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.generate.given import quiet

__all__ = ["GAPS", "PATTERNS", "Data", "Gaps", "gap_measures", "prepared"]

PATTERNS = ("20%", "block")
GAPS = "2000x5"
_TEST_ROWS = 10_000
_QUICK_GAPS = 200


@dataclass(frozen=True)
class Gaps:
    """A way to judge filled gaps: in how many rows, and how many halves of the columns."""

    rows: int
    blocks: int

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.blocks} blocks"

    def patterns(self, first: bool) -> tuple[str, ...]:
        """What the patterns are called; those of the first way have plain names."""
        return PATTERNS if first else tuple(f"{p} ({self.rows}x{self.blocks})" for p in PATTERNS)


def gap_measures(text: str) -> tuple[Gaps, ...]:
    """``"2000x5"``: 2,000 rows, five halves of the columns; several with commas between."""
    parts = [part.strip().split("x") for part in text.split(",")]
    if not all(len(part) == 2 and all(p.isdecimal() and int(p) for p in part) for part in parts):
        raise ConfigError(f"gaps must be ROWSxBLOCKS, such as {GAPS}, got gaps={text!r}")
    return tuple(Gaps(int(rows), int(blocks)) for rows, blocks in parts)


@dataclass(frozen=True)
class Data:
    """One data set: rows to learn from, other real rows, and the gaps to make in some of these."""

    name: str
    train: Table
    test: Table
    gaps: dict[str, np.ndarray]  # pattern -> bool (as many of the other rows, columns)

    def whole(self, pattern: str) -> Table:
        """The rows in which that pattern makes gaps, before it does."""
        return self.test.take(np.arange(len(self.gaps[pattern])))

    def torn(self, pattern: str) -> Table:
        """The whole rows with the cells of that pattern missing."""
        whole, gaps = self.whole(pattern), self.gaps[pattern]
        cells = {
            name: _nullable(whole.frame[name]).mask(pd.Series(gaps[:, position]))
            for position, name in enumerate(whole.names)
        }
        with quiet():
            return Table(whole.ids, cells, schema=whole.schema, label=whole.label)

    @property
    def other(self) -> pd.DataFrame:
        """As many other real rows as there are to learn from, if there are as many."""
        return self.test.frame.iloc[: self.train.n_rows].reset_index(drop=True)


def prepared(
    name: str,
    rows: int,
    seed: int,
    quick: bool = False,
    measures: tuple[Gaps, ...] = gap_measures(GAPS),
) -> Data:
    """A data set by name, its rows drawn by the seed; ``quick`` has fewer rows with gaps."""
    table = _without_gaps(load(name))
    rng = np.random.default_rng(seed)
    order = rng.permutation(table.n_rows)
    rows = min(rows, table.n_rows // 2)
    test = table.take(order[rows : rows + _TEST_ROWS])
    gaps: dict[str, np.ndarray] = {}
    for measure in measures:
        count = min(_QUICK_GAPS if quick else measure.rows, test.n_rows)
        names = measure.patterns(first=measure is measures[0])
        drawn = _drawn(test.take(np.arange(count)), measure.blocks, copy.deepcopy(rng))
        gaps |= dict(zip(names, drawn, strict=True))
    return Data(name, table.take(order[:rows]), test, gaps)


def _drawn(table: Table, blocks: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A fifth of all cells; and half of the features, other halves in each part of the rows.

    A single half leaves it to chance which columns are judged: of Credit's, one category. It is
    drawn first, as it was while it was the measure, so that its figures can be had again.
    """
    shape = (table.n_rows, len(table.names))
    single = _halves(table, 1, rng) if blocks == 1 else None
    cells = rng.random(shape) < 0.2
    return cells, _halves(table, blocks, rng) if single is None else single


def _halves(table: Table, blocks: int, rng: np.random.Generator) -> np.ndarray:
    gaps = np.zeros((table.n_rows, len(table.names)), dtype=bool)
    features = [n for n, name in enumerate(table.names) if name != table.label]
    for rows in np.array_split(np.arange(table.n_rows), blocks):
        gaps[np.ix_(rows, rng.permutation(features)[: len(features) // 2])] = True
    return gaps


def _without_gaps(table: Table) -> Table:
    """A missing category becomes the category "?", so that all methods learn from the same."""
    frame = table.frame.copy()
    for name in frame.columns[frame.isna().any()]:
        frame[name] = frame[name].astype(object).fillna("?").astype("category")
    return Table(table.ids, frame, label=table.label, kinds=_kinds(table, frame))


def _kinds(table: Table, frame: pd.DataFrame) -> dict[str, str]:
    untouched = [n for n in table.names if frame[n].dtype == table.frame[n].dtype]
    return {n: table.schema[n].kind for n in untouched if table.schema[n].kind != "ordinal"}


def _nullable(series: pd.Series) -> pd.Series:
    if pd.api.types.is_bool_dtype(series.dtype):
        return series.astype("boolean")
    return series.astype("float64") if pd.api.types.is_integer_dtype(series.dtype) else series
