"""Cells that come from outside: known columns to `sample` from, gaps that `impute` fills."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd

from fedmend._suggest import did_you_mean
from fedmend.data.schema import Schema
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, FedmendWarning

__all__ = ["Given", "fill", "given_rows", "quiet"]

Given = Mapping[str, Any] | pd.DataFrame | Table


@contextmanager
def quiet() -> Iterator[None]:
    """Tables made here may have columns without any value; their sources have said so already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedmendWarning)
        yield


def given_rows(given: Given, n: int | None, schema: Schema) -> tuple[np.ndarray, pd.DataFrame]:
    """Ids and checked cells of the known columns."""
    if isinstance(given, Table):
        ids, columns, rows = given.ids, given.frame, given.n_rows
    else:
        columns, rows = _given_frame(given, n)
        ids = np.arange(rows)
    if n is not None and n != rows:
        raise DataError(
            f"{rows} rows are given for n={n}", mend="leave n out, or give one value for all rows"
        )
    for name in columns.columns:
        if name not in schema:
            raise DataError(
                "the generator knows no such column",
                column=str(name),
                mend=did_you_mean(str(name), schema.names),
            )
    with quiet():
        checked = Table(ids, columns, schema=schema.select(columns.columns))
    return ids, checked.frame


def _given_frame(
    given: Mapping[str, Any] | pd.DataFrame, n: int | None
) -> tuple[pd.DataFrame, int]:
    if isinstance(given, pd.DataFrame):
        return given.reset_index(drop=True), len(given)
    lists = {name: values for name, values in given.items() if not _is_single(values)}
    sizes = {name: len(values) for name, values in lists.items()}
    rows = next(iter(sizes.values()), n)
    if rows is None:
        raise ConfigError("given holds single values only. Mend: say how many rows: sample(n, …)")
    for name, size in sizes.items():
        if size != rows:
            raise DataError(
                f"{size} values are given for {rows} rows",
                column=name,
                mend="give one value, or one for each row",
            )
    columns = {
        name: pd.Series([values] * rows) if name not in lists else pd.Series(values).array
        for name, values in given.items()
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(rows)), rows


def _is_single(values: Any) -> bool:
    return isinstance(values, str | bytes) or not hasattr(values, "__len__")


def fill(series: pd.Series, holes: np.ndarray, cells: Any) -> pd.Series:
    """The series with the cells put into its holes; its dtype stays unless it had no value."""
    cells = pd.Series(cells)
    if holes.all():
        return cells
    filled = series.copy()
    if isinstance(series.dtype, pd.CategoricalDtype):
        known = series.dtype.categories
        fresh = [value for value in cells.dropna().unique() if value not in known]
        filled = filled.cat.add_categories(fresh) if fresh else filled
        cells = cells.astype(object)
    else:
        cells = cells.astype(series.dtype)
    filled[holes] = cells.array
    return filled
