"""The tables of ``fedmend bench generators``: rows to learn from, other rows, rows with gaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.generate.base import quiet
from fedmend_bench.datasets import load

__all__ = ["GAPS", "Data", "gap_measure", "prepared"]

GAPS = "2000x5"
_TEST_ROWS = 10_000
_QUICK_GAPS = 200


def gap_measure(text: str) -> tuple[int, int]:
    """How filled gaps are judged: ``"2000x5"`` is in 2,000 rows, by five halves of the columns."""
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"gaps must be ROWSxBLOCKS, such as {GAPS}, got gaps={text!r}")
    return int(parts[0]), int(parts[1])


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


def prepared(name: str, rows: int, seed: int, quick: bool = False, gaps: str = GAPS) -> Data:
    """A data set by name, its rows drawn by the seed; ``quick`` has fewer rows with gaps."""
    table = _without_gaps(load(name))
    rng = np.random.default_rng(seed)
    order = rng.permutation(table.n_rows)
    rows = min(rows, table.n_rows // 2)
    test = table.take(order[rows : rows + _TEST_ROWS])
    judged, blocks = gap_measure(gaps)
    torn = test.take(np.arange(min(_QUICK_GAPS if quick else judged, test.n_rows)))
    # A fifth of all cells; and half of the features, other halves in each part of the rows: a
    # single half leaves it to chance which columns are judged.
    drawn = {"20%": rng.random((torn.n_rows, len(torn.names))) < 0.2}
    drawn["block"] = _halves(torn, blocks, rng)
    return Data(name, table.take(order[:rows]), test, drawn)


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
