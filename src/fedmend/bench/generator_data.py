"""The tables of ``fedmend bench generators``: rows to learn from, other rows, rows with gaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmend.data.datasets import load
from fedmend.data.table import Table
from fedmend.generate.given import quiet

__all__ = ["GAPS", "PATTERNS", "Data", "prepared"]

PATTERNS = ("20%", "block")
_TEST_ROWS = 10_000
_GAP_ROWS = 2_000
_BLOCKS = 5
GAPS = f"{_GAP_ROWS} rows, {_BLOCKS} blocks"


@dataclass(frozen=True)
class Data:
    """One data set: rows to learn from, other real rows, and some of these with gaps."""

    name: str
    train: Table
    test: Table
    whole: Table
    gaps: dict[str, np.ndarray]  # pattern -> bool (rows of whole, columns)

    def torn(self, pattern: str) -> Table:
        """The whole rows with the cells of that pattern missing."""
        gaps = self.gaps[pattern]
        cells = {
            name: _nullable(self.whole.frame[name]).mask(pd.Series(gaps[:, position]))
            for position, name in enumerate(self.whole.names)
        }
        with quiet():
            return Table(self.whole.ids, cells, schema=self.whole.schema, label=self.whole.label)

    @property
    def other(self) -> pd.DataFrame:
        """As many other real rows as there are to learn from, if there are as many."""
        return self.test.frame.iloc[: self.train.n_rows].reset_index(drop=True)


def prepared(name: str, rows: int, seed: int, quick: bool = False) -> Data:
    """A data set by name, its rows drawn by the seed; ``quick`` has fewer rows with gaps."""
    table = _without_gaps(load(name))
    rng = np.random.default_rng(seed)
    order = rng.permutation(table.n_rows)
    rows = min(rows, table.n_rows // 2)
    test = table.take(order[rows : rows + _TEST_ROWS])
    whole = test.take(np.arange(min(200 if quick else _GAP_ROWS, test.n_rows)))
    gaps = {
        "20%": rng.random((whole.n_rows, len(whole.names))) < 0.2,
        "block": _blocks(whole, rng),
    }
    return Data(name, table.take(order[:rows]), test, whole, gaps)


def _blocks(table: Table, rng: np.random.Generator) -> np.ndarray:
    """Half of the features missing: one half in the first fifth of the rows, others in the next.

    A single half would leave it to chance which columns are judged: of Credit's, one category.
    """
    gaps = np.zeros((table.n_rows, len(table.names)), dtype=bool)
    features = [n for n, name in enumerate(table.names) if name != table.label]
    for rows in np.array_split(np.arange(table.n_rows), _BLOCKS):
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
