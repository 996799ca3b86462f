"""Questions about raw values that schema, table and encoder all ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd

from fedmend.errors import DataError

__all__ = [
    "describe_types",
    "dtype_name",
    "first_fraction",
    "naming",
    "numbers",
    "python_scalar",
    "reject_infinite",
    "sorted_distinct",
    "value_class",
]

_CLASSES = {
    "string": "text",
    "integer": "int",
    "floating": "float",
    "mixed-integer-float": "float",
    "boolean": "bool",
}
_DATES = {"datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period"}


@contextmanager
def naming(party: str | None) -> Iterator[None]:
    """Whatever :class:`DataError` is raised inside names the party, where one is known."""
    try:
        yield
    except DataError as error:
        if party is not None:
            error.at(party)
        raise


def python_scalar(value: Any) -> Any:
    """A numpy scalar as the Python scalar it stands for."""
    return value.item() if isinstance(value, np.generic) else value


def dtype_name(series: pd.Series) -> str:
    """The name :mod:`fedmend.data.restore` gives the dtype back from."""
    dtype = series.dtype
    if isinstance(dtype, pd.StringDtype) and dtype.na_value is pd.NA:
        return f"string[{dtype.storage}]"
    if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
        return "category[ordered]"
    return str(dtype)


def value_class(name: str, series: pd.Series) -> str:
    """``bool``, ``int``, ``float``, ``text`` or ``empty`` (no value present).

    Dates, mixed types and anything else without a kind raise :class:`DataError`.
    """
    if bool(series.isna().all()):
        return "empty"
    values: Any = series
    if isinstance(series.dtype, pd.CategoricalDtype):
        values = series.dtype.categories
    if pd.api.types.is_bool_dtype(values.dtype):
        return "bool"
    if pd.api.types.is_integer_dtype(values.dtype):
        return "int"
    if pd.api.types.is_float_dtype(values.dtype):
        return "float"
    inferred = pd.api.types.infer_dtype(values, skipna=True)
    return _CLASSES.get(inferred) or _reject(name, values, inferred)


def _reject(name: str, values: Any, inferred: str) -> str:
    present = pd.Series(values).dropna()
    seen = python_scalar(present.iloc[0])
    if inferred in _DATES:
        raise DataError(
            "dates and times have no kind",
            column=name,
            value=str(seen),
            mend="make it a number (days since a start date, month, age), or leave it out: "
            f"drop = [{name!r}]",
        )
    types = list(dict.fromkeys(type(value) for value in present))
    if len(types) > 1:
        examples = [next(v for v in present if type(v) is kind) for kind in types[:2]]
        raise DataError(
            f"mixed types: {types[0].__name__} and {types[1].__name__}",
            column=name,
            value=[python_scalar(value) for value in examples],
            mend="make all values numbers or all strings, e.g. frame[column].astype(str)",
        )
    raise DataError(
        f"values of type {types[0].__name__} have no kind",
        column=name,
        value=seen,
        mend="convert them to numbers, strings or booleans, or drop the column",
    )


def describe_types(series: pd.Series) -> str:
    """The name of the Python type of the first present value."""
    return type(python_scalar(series.dropna().iloc[0])).__name__


def numbers(series: pd.Series) -> np.ndarray:
    """The values as float64, missing cells as NaN."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype if not series.isna().any() else object)
    if pd.api.types.is_object_dtype(series.dtype):
        return pd.to_numeric(series).to_numpy(dtype=np.float64, na_value=np.nan)
    return series.to_numpy(dtype=np.float64, na_value=np.nan)


def first_fraction(series: pd.Series) -> float | None:
    """The first value that is not a whole number, if there is one."""
    values = numbers(series)
    values = values[~np.isnan(values)]
    broken = values != np.floor(values)
    return float(values[broken.argmax()]) if broken.any() else None


def reject_infinite(name: str, series: pd.Series) -> None:
    """Raise :class:`DataError` if a numeric column holds inf or -inf."""
    dtype = series.dtype
    if pd.api.types.is_float_dtype(dtype):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    elif pd.api.types.is_object_dtype(dtype) and pd.api.types.infer_dtype(series, skipna=True) in (
        "floating",
        "mixed-integer-float",
    ):
        values = numbers(series)
    else:
        return
    infinite = np.isinf(values)
    if infinite.any():
        raise DataError(
            f"infinite value in {int(infinite.sum())} of {len(values)} rows",
            column=name,
            value=float(values[infinite.argmax()]),
            mend="replace it by a missing cell (NaN) or by the largest value that makes sense",
        )


def sorted_distinct(series: pd.Series, at_most: int | None = None) -> tuple[Any, ...] | None:
    """The distinct present values in order; None if there are more than ``at_most``."""
    found = series.dropna().unique()
    if at_most is not None and len(found) > at_most:
        return None
    return tuple(sorted(python_scalar(value) for value in found))
