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
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from fedmend.errors import DataError

Kind = Literal["continuous", "integer", "ordinal", "binary", "nominal", "image", "tensor"]
KINDS: tuple[str, ...] = get_args(Kind)
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
        _check_kind(self.name, self.kind)
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
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Column:
        """The column that :meth:`to_dict` described."""
        parts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**parts)


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
    _check_kind(name, kind)
    if kind in BLOCKS:
        raise DataError(
            f"kind {kind!r} needs an array per row, not one cell",
            column=name,
            mend="pass it in blocks={name: array of shape (rows, ...)}",
        )
    return _forced(name, series, kind)


def _check_kind(name: str, kind: str) -> None:
    if kind not in KINDS:
        raise DataError(
            "unknown kind of column", column=name, value=kind, mend=f"use one of {', '.join(KINDS)}"
        )


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
    sort, dtype, declared = value_class(name, series), dtype_name(series), _declared(series)
    if dtype == "category[ordered]":
        return Column(name, "ordinal", categories=declared, dtype=dtype)
    if sort == "empty":
        return Column(name, "continuous", dtype=dtype)
    if sort == "bool":
        return Column(name, "binary", categories=(False, True), dtype=dtype)
    if declared is not None:
        if len(declared) == 2:
            return Column(name, "binary", categories=tuple(sorted(declared)), dtype=dtype)
        return Column(name, "nominal", categories=declared, dtype=dtype)
    if sort == "text" or series.iloc[:1000].nunique() <= 2:
        categories = sorted_distinct(series, at_most=None if sort == "text" else 2)
        if categories is not None and len(categories) == 2:
            return Column(name, "binary", categories=categories, dtype=dtype)
        if sort == "text":
            return Column(name, "nominal", categories=categories, dtype=dtype)
    # pandas turns whole numbers with a missing cell into floats
    whole = sort == "int" or (bool(series.isna().any()) and first_fraction(series) is None)
    return Column(name, "integer" if whole else "continuous", dtype=dtype)


def _declared(series: pd.Series) -> tuple[Any, ...] | None:
    """The categories of a categorical dtype, in their order."""
    if not isinstance(series.dtype, pd.CategoricalDtype):
        return None
    return tuple(python_scalar(value) for value in series.dtype.categories)


def _forced(name: str, series: pd.Series, kind: str) -> Column:
    sort, dtype = value_class(name, series), dtype_name(series)
    if kind in NUMERIC:
        if sort in ("text", "bool"):
            raise DataError(
                f"cannot be {kind}: it holds {describe_types(series)} values",
                column=name,
                value=_culprit(series, "numbers"),
                mend="correct the cell or empty it; or leave the kind out, or make it nominal",
            )
        if kind == "integer" and sort == "float":
            _reject_fraction(name, series, "cannot be integer: it holds a value with a fraction")
        return Column(name, kind, dtype=dtype)  # type: ignore[arg-type]
    categories = _declared(series)
    has_order = dtype == "category[ordered]"
    if categories is None:
        categories = sorted_distinct(series) or ()
    elif kind != "nominal" and not has_order:
        categories = tuple(sorted(categories))
    if kind == "binary" and sort == "bool":
        categories = (False, True)
    if kind == "binary" and len(categories) > 2:
        raise DataError(
            f"cannot be binary: it holds {len(categories)} different values",
            column=name,
            value=list(categories[:3]),
            mend="make it nominal, ordinal or integer",
        )
    if kind == "ordinal" and sort == "text" and not has_order:
        raise DataError(
            "cannot be ordinal: the order of its strings is not known",
            column=name,
            value=list(categories[:3]),
            mend="give the values from low to high, e.g. kinds={column: ['low', 'mid', 'high']}",
        )
    return Column(name, kind, categories=categories, dtype=dtype)  # type: ignore[arg-type]


def _reject_fraction(name: str, series: pd.Series, problem: str) -> None:
    fraction = first_fraction(series)
    if fraction is not None:
        mend = "make it continuous, or round the values"
        raise DataError(problem, column=name, value=fraction, mend=mend)


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
        problem = "an integer column holds a value with a fraction"
        _reject_fraction(column.name, series, problem)


def check_type(column: Column, series: pd.Series, later: bool = False) -> None:
    """Raise :class:`DataError` where numbers became strings, or the other way round.

    later: of rows that come after training, where 12 and "12" are one category.
    """
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
        expected = expected or (later and known_as_written(series, column.categories or ()))
    if not expected:
        raise DataError(
            f"the type changed: expected {known} for kind {column.kind!r}, "
            f"got {describe_types(series)} values",
            column=column.name,
            value=_culprit(series, known),
            mend="read the column with the same type as before",
        )


def written_otherwise(series: pd.Series, categories: Sequence[Any]) -> bool:
    """Whether these are numbers and the categories text, or the other way round."""
    present = series.notna().to_numpy()
    if not categories or not present.any():
        return False
    pair = (series.iloc[int(present.argmax())], categories[0])
    text = [isinstance(each, str) for each in pair]
    number = [isinstance(each, _NUMBERS) and not isinstance(each, _BOOLS) for each in pair]
    return text[0] != text[1] and number[0] != number[1]


def plainly(value: Any) -> str:
    """As one would write it: 12 for 12, 12.0 and "12"."""
    if isinstance(value, str):
        return value
    whole = isinstance(value, int | np.integer) or float(value).is_integer()
    return str(int(value)) if whole else repr(float(value))


def known_as_written(series: pd.Series, categories: Sequence[Any]) -> bool:
    """Numbers may be codes where some category is one; text where some of it is a known number."""
    if not written_otherwise(series, categories):
        return False
    if isinstance(categories[0], str):
        return bool(pd.to_numeric(pd.Series(categories), errors="coerce").notna().any())
    known = {plainly(each) for each in categories}
    return any(plainly(each) in known for each in series.dropna().unique())


def _culprit(series: pd.Series, known: str) -> Any:
    """The first value that is not what was expected: of text among numbers no number."""
    present = series.dropna()
    if known == "numbers":
        strange = present[pd.to_numeric(present, errors="coerce").isna()]
        present = strange if len(strange) else present
    return python_scalar(present.iloc[0])


# --- raw values --------------------------------------------------------------------

_CLASSES = {
    "string": "text",
    "integer": "int",
    "floating": "float",
    "mixed-integer-float": "float",
    "boolean": "bool",
}
_NUMBERS, _BOOLS = (int, float, np.number), (bool, np.bool_)
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
    """The name :func:`fedmend.data.encode.from_numbers` gives the dtype back from."""
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
    present = series.dropna()
    # To pandas a text ends at its first null character: it would take "a" and "a\0" for one.
    found = dict.fromkeys(present) if present.dtype == object else present.unique()
    if at_most is not None and len(found) > at_most:
        return None
    return tuple(sorted(python_scalar(value) for value in found))
