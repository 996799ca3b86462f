"""What a column is: its kind, its categories and the type it came in.

The kind decides how a column is encoded, imputed, generated and reported:

==============  ==============================================================
``continuous``  real numbers
``integer``     whole numbers that count or measure
``ordinal``     a few values with an order (school grades)
``binary``      two values
``nominal``     a few values without an order (strings, codes)
``image``       a block: one array of C x H x W per row
``tensor``      a block: one array of any other shape per row
==============  ==============================================================

Kinds are inferred by :func:`infer_column` and can always be given instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedmend.data._values import (
    describe_types,
    dtype_name,
    first_fraction,
    python_scalar,
    reject_infinite,
    sorted_distinct,
    value_class,
)
from fedmend.errors import DataError

__all__ = [
    "KINDS",
    "Column",
    "Kind",
    "KindSpec",
    "Schema",
    "check_type",
    "check_values",
    "infer_column",
]

Kind = Literal["continuous", "integer", "ordinal", "binary", "nominal", "image", "tensor"]
KINDS: tuple[str, ...] = (
    "continuous",
    "integer",
    "ordinal",
    "binary",
    "nominal",
    "image",
    "tensor",
)
CATEGORICAL = ("ordinal", "binary", "nominal")
NUMERIC = ("continuous", "integer")
BLOCKS = ("image", "tensor")

KindSpec = str | Sequence[Any]
"""A kind's name or, for an ordinal column, its categories from low to high."""


@dataclass(frozen=True)
class Column:
    """One column's name, kind and what is needed to give back its original values.

    >>> Column("grade", "ordinal", categories=("low", "mid", "high"), dtype="object").is_categorical
    True
    """

    name: str
    kind: Kind
    categories: tuple[object, ...] | None = None
    shape: tuple[int, ...] | None = None
    dtype: str = "float64"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DataError(
                "unknown kind of column",
                column=self.name,
                value=self.kind,
                mend=f"use one of {', '.join(KINDS)}",
            )
        if self.is_categorical and self.categories is None:
            raise DataError(
                f"kind {self.kind!r} needs categories",
                column=self.name,
                mend="give categories=(...), an empty tuple if no value is known",
            )
        if self.kind == "binary" and len(self.categories or ()) > 2:
            raise DataError(
                f"a binary column has at most two values, not {len(self.categories or ())}",
                column=self.name,
                mend="make it nominal",
            )
        if self.is_block and self.shape is None:
            raise DataError(
                f"kind {self.kind!r} needs the shape of one row's value",
                column=self.name,
                mend="give shape=(...)",
            )

    @property
    def is_categorical(self) -> bool:
        """Ordinal, binary or nominal: the values are a known, finite list."""
        return self.kind in CATEGORICAL

    @property
    def is_numeric(self) -> bool:
        """Continuous or integer."""
        return self.kind in NUMERIC

    @property
    def is_block(self) -> bool:
        """Image or tensor: an array per row instead of a cell."""
        return self.kind in BLOCKS

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values; :meth:`from_dict` gives the same column back."""
        return {
            "name": self.name,
            "kind": self.kind,
            "categories": None if self.categories is None else list(self.categories),
            "shape": None if self.shape is None else list(self.shape),
            "dtype": self.dtype,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Column:
        """The column that :meth:`to_dict` described."""
        categories, shape = values.get("categories"), values.get("shape")
        return cls(
            name=values["name"],
            kind=values["kind"],
            categories=None if categories is None else tuple(categories),
            shape=None if shape is None else tuple(int(size) for size in shape),
            dtype=values.get("dtype", "float64"),
        )


class Schema(Mapping[str, Column]):
    """The columns of a table, in order; immutable."""

    def __init__(self, columns: Iterable[Column] = ()) -> None:
        self._columns: dict[str, Column] = {}
        for column in columns:
            if column.name in self._columns:
                raise DataError(
                    "two columns have this name", column=column.name, mend="rename one of them"
                )
            self._columns[column.name] = column

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return list(self._columns.values()) == list(other._columns.values())

    def __hash__(self) -> int:
        return hash(tuple(self._columns.values()))

    def __repr__(self) -> str:
        inside = ", ".join(f"{column.name}: {column.kind}" for column in self._columns.values())
        return f"Schema({inside})"

    @property
    def names(self) -> list[str]:
        """Column names, in order."""
        return list(self._columns)

    def of_kind(self, *kinds: str) -> list[str]:
        """Names of the columns of these kinds, in order."""
        return [column.name for column in self._columns.values() if column.kind in kinds]

    def select(self, names: Iterable[str]) -> Schema:
        """The schema of these columns, in the order asked for."""
        return Schema(self._columns[name] for name in names)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        return {"columns": [column.to_dict() for column in self._columns.values()]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Schema:
        """The schema that :meth:`to_dict` described."""
        return cls(Column.from_dict(column) for column in values["columns"])


def infer_column(name: str, values: pd.Series | np.ndarray, kind: KindSpec | None = None) -> Column:
    """The column these values make, of the given kind or of the kind they look like.

    ``kind`` may be a kind's name or the ordered list of an ordinal column's values.
    Raises :class:`DataError` where the values cannot be of that kind.
    """
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return _infer_block(name, values, kind)
    series = values if isinstance(values, pd.Series) else pd.Series(values)
    reject_infinite(name, series)
    if kind is None:
        return _guess(name, series)
    if not isinstance(kind, str):
        return _ordinal(name, series, tuple(python_scalar(value) for value in kind))
    if kind not in KINDS:
        raise DataError(
            "unknown kind of column", column=name, value=kind, mend=f"use one of {', '.join(KINDS)}"
        )
    if kind in BLOCKS:
        raise DataError(
            f"kind {kind!r} needs an array per row, not one cell",
            column=name,
            mend="pass it in blocks={name: array of shape (rows, ...)}",
        )
    return _forced(name, series, kind)


def _infer_block(name: str, values: np.ndarray, kind: KindSpec | None) -> Column:
    if values.dtype.kind not in "buif":
        raise DataError(
            f"a block must hold numbers, not {values.dtype}",
            column=name,
            mend="convert it to a float or integer array",
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(
            "a block may not hold NaN or inf",
            column=name,
            value=float(values[~np.isfinite(values)][0]),
            mend="fill or drop those rows before making the table",
        )
    shape = tuple(int(size) for size in values.shape[1:])
    looks_like_image = len(shape) == 3 and shape[0] in (1, 3, 4) and values.dtype == np.uint8
    chosen = kind if kind is not None else ("image" if looks_like_image else "tensor")
    if chosen not in BLOCKS or (chosen == "image" and len(shape) != 3):
        raise DataError(
            f"rows of shape {shape} cannot be of kind {chosen!r}",
            column=name,
            mend="an image block is (rows, channels, height, width); anything else is a tensor",
        )
    return Column(name, chosen, shape=shape, dtype=str(values.dtype))  # type: ignore[arg-type]


def _guess(name: str, series: pd.Series) -> Column:
    dtype = dtype_name(series)
    if isinstance(series.dtype, pd.CategoricalDtype) and series.dtype.ordered:
        value_class(name, series)
        declared = tuple(python_scalar(value) for value in series.dtype.categories)
        return Column(name, "ordinal", categories=declared, dtype=dtype)
    sort = value_class(name, series)
    if sort == "empty":
        return Column(name, "continuous", dtype=dtype)
    if sort == "bool":
        return Column(name, "binary", categories=(False, True), dtype=dtype)
    if isinstance(series.dtype, pd.CategoricalDtype):
        declared = tuple(python_scalar(value) for value in series.dtype.categories)
        if len(declared) == 2:
            return Column(name, "binary", categories=tuple(sorted(declared)), dtype=dtype)
        return Column(name, "nominal", categories=declared, dtype=dtype)
    if sort == "text" or series.iloc[:1000].nunique() <= 2:
        categories = sorted_distinct(series, at_most=None if sort == "text" else 2)
        if categories is not None and len(categories) == 2:
            return Column(name, "binary", categories=categories, dtype=dtype)
        if sort == "text":
            return Column(name, "nominal", categories=categories, dtype=dtype)
    if sort == "int":
        return Column(name, "integer", dtype=dtype)
    # pandas turns whole numbers with a missing cell into floats
    whole = bool(series.isna().any()) and first_fraction(series) is None
    return Column(name, "integer" if whole else "continuous", dtype=dtype)


def _forced(name: str, series: pd.Series, kind: str) -> Column:
    sort, dtype = value_class(name, series), dtype_name(series)
    if kind in NUMERIC:
        if sort in ("text", "bool"):
            raise DataError(
                f"cannot be {kind}: it holds {describe_types(series)} values",
                column=name,
                value=python_scalar(series.dropna().iloc[0]),
                mend="leave the kind out, make it nominal, or convert the values to numbers",
            )
        fraction = first_fraction(series) if kind == "integer" and sort == "float" else None
        if fraction is not None:
            raise DataError(
                "cannot be integer: it holds a value with a fraction",
                column=name,
                value=fraction,
                mend="make it continuous, or round the values",
            )
        return Column(name, kind, dtype=dtype)  # type: ignore[arg-type]
    if isinstance(series.dtype, pd.CategoricalDtype):
        declared = tuple(python_scalar(value) for value in series.dtype.categories)
        keeps_order = kind == "nominal" or bool(series.dtype.ordered)
        categories = declared if keeps_order else tuple(sorted(declared))
    else:
        categories = sorted_distinct(series) or ()
    if kind == "binary":
        if sort == "bool":
            categories = (False, True)
        if len(categories) > 2:
            raise DataError(
                f"cannot be binary: it holds {len(categories)} different values",
                column=name,
                value=list(categories[:3]),
                mend="make it nominal, ordinal or integer",
            )
    has_order = isinstance(series.dtype, pd.CategoricalDtype) and bool(series.dtype.ordered)
    if kind == "ordinal" and sort == "text" and not has_order:
        raise DataError(
            "cannot be ordinal: the order of its strings is not known",
            column=name,
            value=list(categories[:3]),
            mend="give the values from low to high, e.g. kinds={column: ['low', 'mid', 'high']}",
        )
    return Column(name, kind, categories=categories, dtype=dtype)  # type: ignore[arg-type]


def _ordinal(name: str, series: pd.Series, order: tuple[object, ...]) -> Column:
    value_class(name, series)
    present = sorted_distinct(series) or ()
    unknown = [value for value in present if value not in order]
    if unknown or len(set(order)) != len(order):
        raise DataError(
            "the order given for this column "
            + ("lacks a value it holds" if unknown else "names a value twice"),
            column=name,
            value=unknown[0] if unknown else list(order),
            mend="list every value once, from low to high",
        )
    return Column(name, "ordinal", categories=order, dtype=dtype_name(series))


def check_values(column: Column, series: pd.Series) -> None:
    """Raise :class:`DataError` where values cannot belong to ``column``.

    Values outside the categories pass: what a never seen category means is for the
    encoder to say, not for the table.
    """
    check_type(column, series)
    if column.kind == "integer" and pd.api.types.is_float_dtype(series.dtype):
        fraction = first_fraction(series)
        if fraction is not None:
            raise DataError(
                "an integer column holds a value with a fraction",
                column=column.name,
                value=fraction,
                mend="round the values or make the column continuous",
            )


def check_type(column: Column, series: pd.Series) -> None:
    """Raise :class:`DataError` where numbers became strings, or the other way round."""
    reject_infinite(column.name, series)
    sort = value_class(column.name, series)
    if sort == "empty" or (column.is_categorical and not column.categories):
        return
    if column.is_numeric:
        known, expected = "numbers", sort in ("int", "float")
    else:
        # Not which ones: an error crosses to the coordinator.
        was_text = isinstance((column.categories or ("",))[0], str)
        known, expected = "text" if was_text else "numbers", was_text == (sort == "text")
    if not expected:
        raise DataError(
            f"the type changed: expected {known} for kind {column.kind!r}, "
            f"got {describe_types(series)} values",
            column=column.name,
            value=python_scalar(series.dropna().iloc[0]),
            mend="read the column with the same type as before",
        )
