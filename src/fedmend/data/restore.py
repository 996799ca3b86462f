"""From category positions and numbers back to original values and pandas types.

:func:`positions` and :func:`restore` are each other's inverse for categorical columns;
:func:`restore_numbers` rounds, clips and casts numbers to the type they came in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.schema import Column

__all__ = ["MISSING", "UNSEEN", "positions", "restore", "restore_numbers"]

MISSING = -1
UNSEEN = -2


def positions(series: pd.Series, categories: tuple[Any, ...]) -> np.ndarray:
    """Where each value stands in ``categories``; -1 for missing cells, -2 for other values."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        declared = pd.Series(series.dtype.categories)
        of_declared = np.append(positions(declared, categories), MISSING)
        return of_declared[series.cat.codes.to_numpy()]
    if not categories:
        found = np.full(len(series), UNSEEN, dtype=np.int64)
    else:
        found = _indexer(series, categories)
        found[found < 0] = UNSEEN
    found[series.isna().to_numpy()] = MISSING
    return found


def _indexer(series: pd.Series, categories: tuple[Any, ...]) -> np.ndarray:
    kind = series.dtype.kind if isinstance(series.dtype, np.dtype) else "O"
    all_int = all(isinstance(value, int) for value in categories)
    if kind in "biu" and all_int:
        values = series.to_numpy()
        if kind == "b":
            values = values.astype(np.int64)
        index = pd.Index(np.array([int(value) for value in categories]))
    elif kind == "f":
        values = series.to_numpy(dtype=np.float64)
        index = pd.Index(np.array(categories, dtype=np.float64))
    else:
        values = series.astype(object).to_numpy()
        index = pd.Index(categories, dtype=object)
    return index.get_indexer(pd.Index(values)).astype(np.int64)


def restore(column: Column, at: np.ndarray) -> pd.Series:
    """The values at these positions of the column's categories; below 0 is missing."""
    categories = list(column.categories or ())
    absent = at < 0
    if column.dtype.startswith("category"):
        dtype = pd.CategoricalDtype(categories, ordered=column.dtype == "category[ordered]")
        codes = np.where(absent, -1, at)
        return pd.Series(pd.Categorical.from_codes(codes, dtype=dtype), name=column.name)
    target = pd.api.types.pandas_dtype(column.dtype)
    if isinstance(target, np.dtype) and target.kind in "biu" and not absent.any():
        return pd.Series(np.array(categories, dtype=target)[at], name=column.name)
    pool = np.empty(len(categories) + 1, dtype=object)
    pool[:-1] = categories
    pool[-1] = None
    values = pool[np.where(absent, len(categories), at)]
    return pd.Series(_cast(values, absent, column.dtype), name=column.name)


def restore_numbers(column: Column, values: np.ndarray, absent: np.ndarray) -> pd.Series:
    """Numbers in the column's type; whole, and within the type's range, where it is integer."""
    absent = absent | ~np.isfinite(values)
    if column.kind == "integer" or _is_whole_dtype(column.dtype):
        values = np.rint(np.where(absent, 0.0, values))
        if _is_whole_dtype(column.dtype):
            limits = np.iinfo(_numpy_name(column.dtype))
            top = np.nextafter(float(limits.max) + 1.0, 0.0) if limits.bits == 64 else limits.max
            values = np.clip(values, limits.min, top).astype(limits.dtype)
    dtype = column.dtype
    if dtype == "object":
        python: Any = values.astype(np.int64) if column.kind == "integer" else values
        values = python.astype(object)
        values[absent] = None
    elif dtype.startswith("category"):
        present = values.astype(np.int64) if column.kind == "integer" else values
        cells = pd.Series(present).where(~absent)
        ordered = dtype == "category[ordered]"
        return pd.Series(pd.Categorical(cells, ordered=ordered), name=column.name)
    return pd.Series(_cast(values, absent, dtype), name=column.name)


def _cast(values: np.ndarray, absent: np.ndarray, dtype: str) -> Any:
    """``values`` as ``dtype``, or as its nullable sister when a missing cell needs one."""
    if dtype == "object":
        return values
    target = pd.api.types.pandas_dtype(dtype)
    if not isinstance(target, np.dtype):
        cells = pd.Series(values, dtype=object)
        cells[absent] = None
        return cells.astype(target).array
    if target.kind == "f":
        numeric = np.where(absent, np.nan, values).astype(target)
        return numeric
    if not absent.any():
        return values.astype(target)
    cells = pd.Series(values, dtype=object)
    cells[absent] = None
    return cells.astype(pd.api.types.pandas_dtype(_nullable(target))).array


def _nullable(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "b":
        return "boolean"
    return dtype.name.replace("uint", "UInt") if dtype.kind == "u" else dtype.name.capitalize()


def _numpy_name(dtype: str) -> str:
    return dtype.lower().removesuffix("[pyarrow]")


def _is_whole_dtype(dtype: str) -> bool:
    return _numpy_name(dtype).startswith(("int", "uint"))
