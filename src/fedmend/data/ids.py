"""Row ids: whole numbers or strings, present and unique."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedmend.data._values import python_scalar
from fedmend.errors import DataError

__all__ = ["check_ids"]

_INT64 = np.iinfo(np.int64)


def check_ids(ids: Any) -> np.ndarray:
    """The ids as int64 or as an object array of strings.

    Missing, duplicate, fractional or mixed ids raise :class:`DataError`.
    """
    if getattr(ids, "ndim", 1) != 1:
        raise DataError(
            f"ids of shape {tuple(ids.shape)}", mend="give one id for each row, in one dimension"
        )
    series = pd.Series(ids.array if isinstance(ids, (pd.Series, pd.Index)) else ids)
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype)
    _reject_missing(series)
    checked = _typed(series)
    _reject_duplicates(checked)
    return checked


def _reject_missing(series: pd.Series) -> None:
    absent = series.isna()
    if series.dtype == object or isinstance(series.dtype, pd.StringDtype):
        absent = absent | (series == "").fillna(False).astype(bool)
    if absent.any():
        places = np.flatnonzero(absent.to_numpy()) + 1
        which = ", ".join(map(str, places[:5])) + (", …" if len(places) > 5 else "")
        also = series[~absent].duplicated().sum()
        more = f", and {int(also)} of the others have one that occurred before" if also else ""
        raise DataError(
            f"missing id in {len(places)} {'row' if len(places) == 1 else 'rows'} "
            f"(counted from 1: {which}){more}",
            mend="give every row an id of its own, or drop those rows",
        )


def _typed(series: pd.Series) -> np.ndarray:
    if len(series) == 0:
        is_text = series.dtype == object or isinstance(series.dtype, pd.StringDtype)
        return np.empty(0, dtype=object if is_text else np.int64)
    sort = pd.api.types.infer_dtype(series, skipna=False)
    if sort == "string":
        return series.to_numpy(dtype=object)
    if sort == "integer":
        return _whole(series)
    if sort in ("floating", "mixed-integer-float"):
        values = series.to_numpy(dtype=np.float64)
        broken = ~np.isfinite(values) | (values != np.floor(values))
        if broken.any():
            raise DataError(
                "an id is not a whole number",
                value=float(values[broken.argmax()]),
                mend="use whole numbers or strings as ids",
            )
        return _whole(series)
    types = list(dict.fromkeys(type(python_scalar(value)).__name__ for value in series))
    examples = [python_scalar(value) for value in series.drop_duplicates().iloc[:2]]
    if len(types) > 1:
        first = {type(python_scalar(value)).__name__: python_scalar(value) for value in series}
        raise DataError(
            f"ids of mixed types: {types[0]} and {types[1]}",
            value=[first[types[0]], first[types[1]]],
            mend="make all ids whole numbers or all strings",
        )
    raise DataError(
        f"ids of type {types[0]}",
        value=examples[0],
        mend="use whole numbers or strings as ids, e.g. frame[id].astype(str)",
    )


def _whole(series: pd.Series) -> np.ndarray:
    largest, smallest = int(series.max()), int(series.min())
    if largest > _INT64.max or smallest < _INT64.min:
        raise DataError(
            "an id does not fit into 64 bits",
            value=largest if largest > _INT64.max else smallest,
            mend="read the ids as strings",
        )
    return series.to_numpy(dtype=np.int64)


def _reject_duplicates(ids: np.ndarray) -> None:
    series = pd.Series(ids)
    repeated = series[series.duplicated()].unique()
    if len(repeated):
        shown = [python_scalar(value) for value in repeated[:5]]
        raise DataError(
            f"duplicate id: {len(repeated)} "
            f"{'id occurs' if len(repeated) == 1 else 'ids occur'} more than once",
            value=shown[0] if len(repeated) == 1 else shown,
            mend="keep one row per id (in pandas: drop_duplicates), or name another id column",
        )
