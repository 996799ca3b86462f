"""A party's columns and labels as arrays a model can use, and back to the original values.

Fitted on one party only: means, scales and lists of categories never leave it. Numbers
are standardised, missing cells become 0 (the mean) with a mask beside them, nominal
columns become codes (0 missing, 1..k the categories, k+1 never seen), blocks float arrays.

The way back is exact for binary, ordinal and nominal columns, and for integer columns
within ``2**23`` of their mean (``2**52`` with ``dtype="float64"``); continuous columns come
back to the precision of the dtype.

Whoever else learns from cells (generators, completion) takes them as one float64 number each,
by :func:`as_numbers` and :func:`from_numbers`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.schema import (
    Column,
    Schema,
    check_type,
    naming,
    numbers,
    plainly,
    python_scalar,
    sorted_distinct,
    written_otherwise,
)
from fedmend.data.table import Excerpt, Table, retyped
from fedmend.errors import DataError, FedmendWarning, NotFitted

MISSING, UNSEEN = -1, -2


# --- one cell, one number -----------------------------------------------------------


def as_numbers(column: Column, series: pd.Series) -> np.ndarray:
    """A fresh float64 array: values, or positions among the categories; NaN for all else."""
    if column.is_numeric:
        return np.array(numbers(series), dtype=np.float64)
    at = positions(series, column.categories or ())
    return np.where(at < 0, np.nan, at.astype(np.float64))


def from_numbers(column: Column, values: np.ndarray) -> pd.Series:
    """The way back from `as_numbers`, in the column's own type: NaN and inf are missing cells.

    Numbers between the values of an integer or categorical column go to the nearest one.
    """
    absent = ~np.isfinite(values)
    if column.is_numeric:
        return pd.Series(_whole_or_real(column, values, absent), name=column.name)
    last = max(len(column.categories or ()) - 1, 0)
    at = np.clip(np.rint(np.where(absent, 0.0, values)), 0, last).astype(np.int64)
    return pd.Series(_categories_at(column, np.where(absent, MISSING, at)), name=column.name)


def positions(series: pd.Series, categories: tuple[Any, ...]) -> np.ndarray:
    """Where each value stands in ``categories``; -1 for missing cells, -2 for other values."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        declared = pd.Series(series.dtype.categories)
        of_declared = np.append(positions(declared, categories), MISSING)
        return of_declared[series.cat.codes.to_numpy()]
    found = np.full(len(series), UNSEEN, dtype=np.int64)
    absent = series.isna().to_numpy()
    # without a value a column may be of any type: a reader cannot know that it held text
    if categories and not absent.all():
        found = _indexer(series, categories)
        found[found < 0] = UNSEEN
    found[absent] = MISSING
    return found


def _indexer(series: pd.Series, categories: tuple[Any, ...]) -> np.ndarray:
    if written_otherwise(series, categories):
        # Of the codes 12 and A1 a file may hold the first alone, and be read as numbers.
        codes, distinct = pd.factorize(series, use_na_sentinel=True)
        index = pd.Index([plainly(value) for value in categories], dtype=object)
        found = index.get_indexer(pd.Index([plainly(value) for value in distinct], dtype=object))
        return np.append(found, UNSEEN)[codes].astype(np.int64)
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


def _categories_at(column: Column, at: np.ndarray) -> Any:
    """The values at these positions of the column's categories; below 0 is missing."""
    categories, absent = list(column.categories or ()), at < 0
    if column.dtype.startswith("category"):
        dtype = pd.CategoricalDtype(categories, ordered=column.dtype == "category[ordered]")
        return pd.Categorical.from_codes(np.where(absent, -1, at), dtype=dtype)
    target = pd.api.types.pandas_dtype(column.dtype)
    if isinstance(target, np.dtype) and target.kind in "biu" and not absent.any():
        return np.array(categories, dtype=target)[at]
    pool = np.empty(len(categories) + 1, dtype=object)
    pool[:-1], pool[-1] = categories, None
    return _cast(pool[np.where(absent, len(categories), at)], absent, column.dtype)


def _whole_or_real(column: Column, values: np.ndarray, absent: np.ndarray) -> Any:
    """Numbers in the column's type; whole, and within the type's range, where it is integer."""
    dtype = column.dtype
    plain = dtype.lower().removesuffix("[pyarrow]")
    has_whole_type = plain.startswith(("int", "uint"))
    if column.kind == "integer" or has_whole_type:
        values = np.rint(np.where(absent, 0.0, values))
    if has_whole_type:
        limits = np.iinfo(plain)
        top = np.nextafter(float(limits.max) + 1.0, 0.0) if limits.bits == 64 else limits.max
        values = np.clip(values, limits.min, top).astype(limits.dtype)
    if dtype == "object" or dtype.startswith("category"):
        cells = values.astype(object)
        if column.kind == "integer":
            cells[:] = [int(value) for value in values]  # of Python, which has no largest
        cells[absent] = None
        return cells if dtype == "object" else pd.Categorical(cells, ordered=dtype != "category")
    return _cast(values, absent, dtype)


def _cast(values: np.ndarray, absent: np.ndarray, dtype: str) -> Any:
    """``values`` as ``dtype``, or as its nullable sister when a missing cell needs one."""
    if dtype == "object":
        return values
    target: Any = pd.api.types.pandas_dtype(dtype)
    if isinstance(target, np.dtype):
        if target.kind == "f":
            return np.where(absent, np.nan, values).astype(target)
        if not absent.any():
            return values.astype(target)
        name = target.name.replace("uint", "UInt") if target.kind == "u" else None
        target = "boolean" if target.kind == "b" else name or target.name.capitalize()
    cells = pd.Series(values, dtype=object)
    cells[absent] = None
    return cells.astype(target).array


# --- a party's features -------------------------------------------------------------


@dataclass
class Encoded:
    """Arrays of n rows.

    **Shape**: ``numeric`` and ``missing`` [n, p], ``codes`` [n, q], ``blocks`` [n, ...] each;
    ``cardinalities`` holds k + 2 for each code column.
    """

    numeric: np.ndarray
    missing: np.ndarray
    codes: np.ndarray
    blocks: dict[str, np.ndarray] = field(default_factory=dict)
    cardinalities: tuple[int, ...] = ()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.numeric)

    def __len__(self) -> int:
        return len(self.numeric)

    def take(self, rows: Any) -> Encoded:
        """These rows, by position or mask; a row may be taken more than once."""
        return Encoded(
            self.numeric[rows],
            self.missing[rows],
            self.codes[rows],
            {name: block[rows] for name, block in self.blocks.items()},
            self.cardinalities,
        )

    def onehot(self) -> np.ndarray:
        """``numeric`` and one indicator per category, for linear models; blocks are left out.

        A missing or never seen category has no indicator set.
        **Shape**: [n, p + sum of k].
        """
        if len(self.cardinalities) != self.codes.shape[1]:
            raise DataError(
                f"{len(self.cardinalities)} cardinalities for {self.codes.shape[1]} code columns",
                mend="make Encoded with cardinalities=encoder.cardinalities",
            )
        indicators = [
            codes[:, None] == np.arange(1, cardinality - 1)
            for codes, cardinality in zip(self.codes.T, self.cardinalities, strict=True)
        ]
        return np.concatenate([self.numeric, *indicators], axis=1, dtype=self.numeric.dtype)


@dataclass(frozen=True)
class _Scaled:
    """A column that is encoded as one standardised number."""

    column: Column
    mean: float
    scale: float
    had_missing: bool

    @classmethod
    def fit(cls, column: Column, series: pd.Series) -> _Scaled:
        values = as_numbers(column, series)
        absent = np.isnan(values)
        had_missing = bool(absent.any())
        present = values[~absent] if had_missing else values
        if len(present) == 0:
            return cls(column, 0.0, 1.0, had_missing)
        low, high = float(present.min()), float(present.max())
        # halves and a unit range keep sums and squares of huge or tiny values finite
        reach = high / 2 - low / 2
        if reach < np.finfo(np.float64).tiny:
            return cls(column, low, 1.0, had_missing)
        unit = (present / 2 - low / 2) / reach
        mean = low + 2 * float(unit.mean()) * reach
        return cls(column, mean, 2 * float(unit.std()) * reach, had_missing)


_OPTIONS = {
    "ordinal": ("numeric", "codes"),
    "binary": ("numeric", "codes"),
    "unseen": ("unknown", "error"),
    "missing_indicator": (False, True),
    "dtype": ("float32", "float64"),
}


class Encoder:
    """Fit on one party's features, transform any table with the same columns.

    ``ordinal`` and ``binary`` say whether these kinds become numbers or codes;
    ``unseen`` whether a category that was not there in ``fit`` becomes code k+1 (missing,
    where the column is a number) or an error; ``missing_indicator`` adds a 0/1 number
    for every numeric column that had missing cells in ``fit``.

    >>> table = Table([1, 2, 3], {"age": [20, 30, 40], "city": ["Ulm", "Bonn", "Kiel"]})
    >>> encoder = Encoder().fit(table)
    >>> encoder.transform(table).codes.tolist()
    [[3], [1], [2]]
    >>> encoder.inverse(encoder.transform(table)).frame["city"].tolist()
    ['Ulm', 'Bonn', 'Kiel']
    """

    def __init__(
        self,
        *,
        ordinal: str = "numeric",
        binary: str = "numeric",
        unseen: str = "unknown",
        missing_indicator: bool = False,
        dtype: str = "float32",
    ) -> None:
        self.ordinal = ordinal
        self.binary = binary
        self.unseen = unseen
        self.missing_indicator = missing_indicator
        self.dtype = dtype
        for name, allowed in _OPTIONS.items():
            if getattr(self, name) not in allowed:
                raise DataError(
                    f"Encoder option {name}={getattr(self, name)!r} is not known",
                    mend=f"use one of {', '.join(map(repr, allowed))}",
                )
        self._schema: Schema | None = None
        self._whole: tuple[Table, Encoded] | None = None

    # --- fitting -----------------------------------------------------------------

    def fit(self, table: Table, rows: Any = None) -> Encoder:
        """Learn means, scales and categories from the features (of these rows only)."""
        fitted_on = table.features if rows is None else table.features.take(rows)
        self._schema = fitted_on.schema
        self._scaled: list[_Scaled] = []
        self._coded: dict[str, tuple[Any, ...]] = {}
        self._blocks: dict[str, BlockScaler] = {}
        coded = {"nominal": "codes", "ordinal": self.ordinal, "binary": self.binary}
        for name, column in fitted_on.schema.items():
            if column.is_block:
                self._blocks[name] = BlockScaler.fit(column, fitted_on.blocks[name])
            elif coded.get(column.kind) == "codes":
                self._coded[name] = _known_categories(column, fitted_on.frame[name])
            else:
                self._scaled.append(_Scaled.fit(column, fitted_on.frame[name]))
        return self

    def _fitted(self) -> Schema:
        if self._schema is None:
            raise NotFitted("this Encoder is not fitted. Mend: call fit(table) first")
        return self._schema

    @property
    def schema(self) -> Schema:
        """The columns that were there in ``fit``, without the label."""
        return self._fitted()

    @property
    def numeric_names(self) -> list[str]:
        """Names of the columns of ``Encoded.numeric``; indicators are ``missing(name)``."""
        self._fitted()
        names = [scaled.column.name for scaled in self._scaled]
        return names + [f"missing({names[index]})" for index in self._indicated()]

    @property
    def code_names(self) -> list[str]:
        """Names of the columns of ``Encoded.codes``."""
        self._fitted()
        return list(self._coded)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """k + 2 per code column: the categories, missing, and never seen."""
        self._fitted()
        return tuple(len(categories) + 2 for categories in self._coded.values())

    @property
    def block_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row's value, per block."""
        self._fitted()
        return {name: block.column.shape or () for name, block in self._blocks.items()}

    def _indicated(self) -> list[int]:
        if not self.missing_indicator:
            return []
        return [index for index, scaled in enumerate(self._scaled) if scaled.had_missing]

    # --- there -------------------------------------------------------------------

    def transform(self, table: Table, party: str | None = None) -> Encoded:
        """The table's arrays; its label and any further column are not looked at."""
        if isinstance(table, Excerpt) and not self._blocks:
            if self._whole is None or self._whole[0] is not table.whole:
                self._whole = table.whole, self.transform(table.whole, party)
            return self._whole[1].take(table.rows)
        with naming(party):
            for column in self._fitted().values():
                check_same(column, table)
            numeric, missing = self._numeric(table)
            codes = self._codes(table)
        blocks = {
            name: scaler.transform(table.blocks[name], self.dtype)
            for name, scaler in self._blocks.items()
        }
        return Encoded(numeric, missing, codes, blocks, self.cardinalities)

    def _numeric(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        indicated = self._indicated()
        n, p = table.n_rows, len(self._scaled)
        # No row of a training is so far out, and products of three such numbers are still finite.
        farthest = float(np.finfo(self.dtype).max) ** 0.3
        # columns are contiguous while they are filled, rows when they are read
        by_column = np.zeros((p + len(indicated), n), dtype=self.dtype)
        absent = np.zeros((p + len(indicated), n), dtype=bool)
        for index, scaled in enumerate(self._scaled):
            series = table.frame[scaled.column.name]
            values = as_numbers(scaled.column, series)
            if scaled.column.is_categorical:
                self._reject_unseen(scaled.column, series, np.isnan(values) & series.notna())
            np.isnan(values, out=absent[index])
            with np.errstate(over="ignore"):  # what is too large for a number is clipped, too
                values -= scaled.mean
                values /= scaled.scale
            by_column[index] = np.clip(values, -farthest, farthest)
            by_column[index, absent[index]] = 0
        by_column[p:] = absent[indicated]
        return np.ascontiguousarray(by_column.T), np.ascontiguousarray(absent.T)

    def _codes(self, table: Table) -> np.ndarray:
        codes = np.zeros((table.n_rows, len(self._coded)), dtype=np.int64)
        for index, (name, categories) in enumerate(self._coded.items()):
            at = positions(table.frame[name], categories)
            self._reject_unseen(self.schema[name], table.frame[name], at == UNSEEN)
            at[at == UNSEEN] = len(categories)
            codes[:, index] = at + 1
        return codes

    def _reject_unseen(self, column: Column, series: pd.Series, rows: Any) -> None:
        if self.unseen == "error" and rows.any():
            raise DataError(
                f"a value that was not there in training, in {int(rows.sum())} rows",
                column=column.name,
                value=python_scalar(series.iloc[int(rows.argmax())]),
                mend="correct it, train on rows that have it, or use Encoder(unseen='unknown')",
            )

    # --- and back ----------------------------------------------------------------

    def inverse(self, encoded: Encoded, ids: Any = None) -> Table:
        """The table these arrays stand for, in the original values and types.

        Numbers between the values of an integer, ordinal or binary column go to the nearest
        one; never seen categories come back as missing cells. Without ``ids`` the rows are
        numbered from 0.
        """
        schema = self._fitted()
        self._check_arrays(encoded)
        series: dict[str, pd.Series] = {}
        for index, scaled in enumerate(self._scaled):
            values = encoded.numeric[:, index].astype(np.float64) * scaled.scale + scaled.mean
            values[encoded.missing[:, index]] = np.nan
            series[scaled.column.name] = from_numbers(scaled.column, values)
        for index, (name, seen) in enumerate(self._coded.items()):
            # positions among the seen categories, as positions among all the column's categories
            place = {value: at for at, value in enumerate(schema[name].categories or ())}
            pool = np.array([np.nan, *(place[value] for value in seen), np.nan])
            codes = encoded.codes[:, index].clip(0, len(seen) + 1)
            series[name] = from_numbers(schema[name], pool[codes])
        frame = pd.DataFrame(
            {name: series[name] for name in schema if name in series},
            index=pd.RangeIndex(encoded.n_rows),
        )
        blocks = {name: s.inverse(encoded.blocks[name]) for name, s in self._blocks.items()}
        made = Table._trusted(
            np.arange(encoded.n_rows), retyped(schema, frame), None, frame, blocks
        )
        return made if ids is None else made.with_ids(ids)

    def empty_table(self) -> Table:
        """A table of the columns this encoder knows, without a row."""
        width = len(self.numeric_names)
        blocks = {
            name: np.zeros((0, *shape), dtype=self.dtype)
            for name, shape in self.block_shapes.items()
        }
        return self.inverse(
            Encoded(
                np.zeros((0, width), dtype=self.dtype),
                np.zeros((0, width), dtype=bool),
                np.zeros((0, len(self._coded)), dtype=np.int64),
                blocks,
            )
        )

    def _check_arrays(self, encoded: Encoded) -> None:
        found = (encoded.numeric.shape[1], encoded.codes.shape[1], sorted(encoded.blocks))
        expected = (len(self.numeric_names), len(self._coded), sorted(self._blocks))
        if found != expected or encoded.missing.shape != encoded.numeric.shape:
            raise DataError(
                f"arrays of {found[0]} numbers, {found[1]} codes and blocks {found[2]} do not "
                f"belong to an encoder of {expected[0]} numbers, {expected[1]} codes and "
                f"blocks {expected[2]}",
                mend="use the encoder that made them",
            )

    # --- keeping -----------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values; :meth:`from_dict` gives an equal encoder back."""
        return {
            "schema": self._fitted().to_dict(),
            "options": {name: getattr(self, name) for name in _OPTIONS},
            "scaled": [
                [scaled.column.name, scaled.mean, scaled.scale, scaled.had_missing]
                for scaled in self._scaled
            ],
            "coded": {name: list(categories) for name, categories in self._coded.items()},
            "blocks": {name: scaler.to_dict() for name, scaler in self._blocks.items()},
        }

    def to_json(self) -> bytes:
        """The same as one value: of thousands of columns they are more than a file may have."""
        return json.dumps(self.to_dict()).encode()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | bytes) -> Encoder:
        """The encoder that :meth:`to_dict` described, or :meth:`to_json`."""
        given: Mapping[str, Any] = json.loads(values) if isinstance(values, bytes) else values
        encoder = cls(**given["options"])
        schema = Schema.from_dict(given["schema"])
        encoder._schema = schema
        encoder._scaled = [
            _Scaled(schema[name], float(mean), float(scale), bool(had))
            for name, mean, scale, had in given["scaled"]
        ]
        encoder._coded = {name: tuple(found) for name, found in given["coded"].items()}
        encoder._blocks = {
            name: BlockScaler.from_dict(schema[name], stored)
            for name, stored in given["blocks"].items()
        }
        return encoder


def _known_categories(column: Column, series: pd.Series) -> tuple[Any, ...]:
    """The categories that were seen, in the schema's order; all of them where an order is known."""
    categories = column.categories or ()
    if column.kind == "ordinal":
        return categories
    seen = np.unique(positions(series, categories))
    return tuple(categories[index] for index in seen if index >= 0)


def check_same(column: Column, table: Table) -> None:
    """Raise where the column is absent or its values changed type since ``fit``."""
    name = column.name
    table._require(name)
    found = table.schema[name]
    if column.is_block or found.is_block:
        if (column.is_block, column.shape) != (found.is_block, found.shape):
            raise DataError(
                f"was {column.kind} of shape {column.shape}, "
                f"is {found.kind} of shape {found.shape}",
                column=name,
                mend="give the block the shape it had in training",
            )
    elif found != column:
        check_type(column, table.frame[name], later=True)


# --- blocks --------------------------------------------------------------------------

_ROWS_AT_ONCE = 4096
_IN_CACHE = 512


@dataclass(frozen=True)
class BlockScaler:
    """Images and tensors as standardised float arrays, and back.

    Mean and scale per channel, the first axis of one row's value: a block of plain vectors is
    standardised feature by feature. ``uint8`` images are brought to 0..1 first.
    """

    column: Column
    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, column: Column, values: np.ndarray) -> BlockScaler:
        """Means and standard deviations of the channels."""
        blank = cls(column, np.zeros(1), np.ones(1))
        mean, scale = (blank._of_bytes if values.dtype == np.uint8 else blank._of_numbers)(values)
        negligible = scale <= 1e-12 * np.abs(mean)
        return cls.from_dict(column, {"mean": mean, "scale": np.where(negligible, 1.0, scale)})

    def _of_numbers(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """In two passes over a few thousand rows at a time."""
        axes, channels = (0, *range(2, values.ndim)), values.shape[1]
        count = max(values.size // channels, 1)
        mean = sum((c.sum(axes) for c in self._chunks(values)), np.zeros(channels)) / count
        centre = mean.reshape(-1, *[1] * (values.ndim - 2))
        squares = (np.square(c - centre).sum(axes) for c in self._chunks(values))
        return mean, np.sqrt(sum(squares, np.zeros(channels)) / count)

    def _of_bytes(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same from how often each of the 256 values occurs: exact, and a tenth of the work."""
        levels, moments = np.arange(256) / self._unit, []
        for channel in range(values.shape[1]):
            counts = np.zeros(256, np.int64)
            for start in range(0, len(values), _ROWS_AT_ONCE):
                part = values[start : start + _ROWS_AT_ONCE, channel]
                counts += np.bincount(part.reshape(-1), minlength=256)
            share = counts / max(counts.sum(), 1)
            mean = levels @ share
            moments.append((mean, np.sqrt(np.square(levels - mean) @ share)))
        means, scales = np.array(moments).T
        return means, scales

    def transform(self, values: np.ndarray, dtype: str) -> np.ndarray:
        """**Shape**: [n, ...] to [n, ...]."""
        out = np.empty(values.shape, dtype=dtype)
        if values.dtype == np.uint8 and out.dtype == np.float32:
            # One multiplication and one subtraction per value, in the precision that is asked for.
            factor = (1.0 / (self._unit * self.scale)).astype(np.float32)
            offset = (self.mean / self.scale).astype(np.float32)
            for start in range(0, len(values), _IN_CACHE):
                part = out[start : start + _IN_CACHE]
                part[...] = values[start : start + _IN_CACHE]
                part *= factor
                part -= offset
            return out
        for start, chunk in enumerate(self._chunks(values)):
            at = start * _ROWS_AT_ONCE
            out[at : at + len(chunk)] = (chunk - self.mean) / self.scale
        return out

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """The block in its original type; whole-number types are rounded and clipped."""
        target = np.dtype(self.column.dtype)
        out = np.empty(values.shape, dtype=target)
        for start in range(0, len(values), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            plain = (values[part].astype(np.float64) * self.scale + self.mean) * self._unit
            if target.kind in "iu":
                limits = np.iinfo(target)
                plain = np.clip(np.rint(plain), limits.min, limits.max)
            elif target.kind == "b":
                plain = plain > 0.5
            out[part] = plain.astype(target)
        return out

    @property
    def _unit(self) -> float:
        return 255.0 if self.column.kind == "image" and self.column.dtype == "uint8" else 1.0

    def _chunks(self, values: np.ndarray) -> Iterator[np.ndarray]:
        for start in range(0, len(values), _ROWS_AT_ONCE):
            yield values[start : start + _ROWS_AT_ONCE].astype(np.float64) / self._unit

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        return {"mean": self.mean.reshape(-1).tolist(), "scale": self.scale.reshape(-1).tolist()}

    @classmethod
    def from_dict(cls, column: Column, values: Mapping[str, Any]) -> BlockScaler:
        """The scaler that :meth:`to_dict` described."""
        keep = (-1, *([1] * (len(column.shape or ()) - 1)))
        mean, scale = np.asarray(values["mean"], float), np.asarray(values["scale"], float)
        return cls(column, mean.reshape(keep), scale.reshape(keep))


# --- labels --------------------------------------------------------------------------

TASKS = ("auto", "binary", "multiclass", "regression", "count")
NUMBERS = ("regression", "count")
"""Tasks whose label is a number, with an error and not a class to get wrong."""
MOST_CLASSES = 30
"""Whole numbers with more distinct values than this are a regression target."""


def as_written(value: Any) -> Any:
    """A class as people wrote it: whole numbers became fractions where a label was missing."""
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


class LabelEncoder:
    """Class numbers 0..C-1 or standardised targets; missing labels become -1 or NaN.

    ``task="auto"``: binary, nominal and ordinal columns are classes; an integer column is
    classes if it has at most 30 distinct values with two rows each on average; all else
    is regression. ``"count"``: numbers from 0 on; what else follows from counting is the method's.
    least: rows that the least and the largest number to be told rest on.

    >>> y = pd.Series(["no", "yes", None], name="default")
    >>> encoder = LabelEncoder().fit(y, Column("default", "binary", ("no", "yes"), dtype="object"))
    >>> encoder.task, encoder.transform(y).tolist()
    ('binary', [0, 1, -1])
    """

    def __init__(self, task: str = "auto", *, dtype: str = "float32", least: int = 1) -> None:
        if task not in TASKS:
            raise DataError(f"unknown task {task!r}", mend=f"use one of {', '.join(TASKS)}")
        self._asked = task
        self._least = least
        self.dtype = dtype
        self.task = task
        self.classes_: list[Any] = []
        self.mean_ = 0.0
        self.scale_ = 1.0
        self.span_ = (-np.inf, np.inf)
        self.column_: Column | None = None

    def fit(self, series: pd.Series, column: Column, party: str | None = None) -> LabelEncoder:
        """Learn the task, and the classes or the mean and scale, from the labels present."""
        with naming(party):
            self._fit(series, column)
        return self

    def _fit(self, series: pd.Series, column: Column) -> None:
        if column.is_block:
            raise DataError("a block cannot be the label", column=column.name, mend="name a column")
        check_type(column, series)
        if bool(series.isna().all()):
            raise DataError(
                f"all {len(series)} labels are missing",
                column=column.name,
                mend="give at least two rows of different classes a label, or name another column",
            )
        task = self._asked if self._asked != "auto" else _infer_task(series, column)
        if task in NUMBERS:
            self._fit_regression(series, column)
            task = "regression"
        else:
            task = self._fit_classes(series, column, task)
        self.task = task
        self.column_ = column

    def _fit_regression(self, series: pd.Series, column: Column) -> None:
        if not column.is_numeric and isinstance((column.categories or ("",))[0], (str, bool)):
            raise DataError(
                f"a {column.kind} column of {type((column.categories or ('',))[0]).__name__} "
                "values cannot be a regression target",
                column=column.name,
                value=(column.categories or (None,))[0],
                mend="use task='auto', or name a column of numbers",
            )
        values = numbers(series)
        values = values[~np.isnan(values)]
        if self._asked == "count" and values.min() < 0:
            raise DataError(
                "a count cannot be negative",
                column=column.name,
                value=python_scalar(values.min()),
                mend='task = "regression", or correct the label',
            )
        if values.min() == values.max():
            raise DataError(
                "the label has one value only, so there is nothing to learn",
                column=column.name,
                value=python_scalar(values[0]),
                mend="add rows of other values, or check how the file was read and filtered",
            )
        self.mean_ = float(values.mean())
        scale = float(values.std())
        self.scale_ = scale if np.isfinite(scale) and scale > 0 else 1.0
        ends = np.sort(values)
        self.span_ = float(ends[: self._least].mean()), float(ends[-self._least :].mean())
        self.classes_ = []

    def _fit_classes(self, series: pd.Series, column: Column, task: str) -> str:
        seen = sorted_distinct(series) or ()
        if column.categories is not None:
            found, listed = set(seen), set(column.categories)
            known = [value for value in column.categories if value in found]
            seen = (*known, *(value for value in seen if value not in listed))
        if len(seen) == 1:
            raise DataError(
                "the label has one class only, so there is nothing to learn",
                column=column.name,
                value=seen[0],
                mend="add rows of another class, or check how the file was read and filtered",
            )
        if task == "binary" and len(seen) > 2:
            raise DataError(
                f"the task is binary, but the label has {len(seen)} classes",
                column=column.name,
                value=list(seen[:5]),
                mend="use task='multiclass' or task='auto'",
            )
        self.classes_ = list(seen)
        return "binary" if len(seen) == 2 and self._asked == "auto" else task

    def transform(self, series: pd.Series, party: str | None = None) -> np.ndarray:
        """int64 class numbers (-1: no label) or standardised floats (NaN: no label)."""
        column = self._fitted()
        with naming(party):
            check_type(column, series, later=True)
            if self.task == "regression":
                return ((numbers(series) - self.mean_) / self.scale_).astype(self.dtype)
            at = positions(series, tuple(self.classes_))
            if (at == UNSEEN).any():
                raise DataError(
                    "a label that was not there in training",
                    column=column.name,
                    value=python_scalar(series.iloc[int((at == UNSEEN).argmax())]),
                    mend=f"the known classes are {self.classes_[:10]}; correct or drop those rows",
                )
        return at

    def inverse(self, array: np.ndarray) -> np.ndarray:
        """Original values: classes in their own type, targets as float64 in original units.

        Class number -1 gives None.
        """
        column = self._fitted()
        values = np.asarray(array)
        if self.task == "regression":
            return values.astype(np.float64) * self.scale_ + self.mean_
        values = values.astype(np.int64)
        if values.size and (values.min() < -1 or values.max() >= len(self.classes_)):
            raise DataError(
                f"class numbers must lie in 0..{len(self.classes_) - 1}",
                column=column.name,
                value=int(values.max() if values.max() >= len(self.classes_) else values.min()),
                mend="use the encoder the numbers came from",
            )
        pool = np.empty(len(self.classes_) + 1, dtype=object)
        pool[:-1], pool[-1] = self.classes_, None
        found = pool[values]
        if isinstance(self.classes_[0], str) or (values == -1).any():
            return found
        kept = np.dtype(column.dtype) if column.dtype in np.sctypeDict else None
        return found.astype(kept if kept is not None else type(self.classes_[0]))

    def told(self, outputs: np.ndarray) -> np.ndarray:
        """What a network says of numbers, in their own units and within what training rows had.

        Where a cell is far out, a network goes on in a straight line, and errs by as much. The ends
        are means of the `least` smallest and largest labels: nobody's own, as a leaf of a tree.
        """
        return np.clip(self.inverse(outputs), *self.span_)

    def _fitted(self) -> Column:
        if self.column_ is None:
            raise NotFitted("this LabelEncoder is not fitted. Mend: call fit(series, column) first")
        return self.column_

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values; :meth:`from_dict` gives an equal encoder back."""
        return {
            "asked": self._asked,
            "dtype": self.dtype,
            "column": self._fitted().to_dict(),
            "task": self.task,
            "classes": list(self.classes_),
            "mean": self.mean_,
            "scale": self.scale_,
            "span": list(self.span_) if self.task == "regression" else None,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LabelEncoder:
        """The encoder that :meth:`to_dict` described."""
        encoder = cls(values["asked"], dtype=values["dtype"])
        encoder.task = values["task"]
        encoder.classes_ = list(values["classes"])
        encoder.mean_, encoder.scale_ = float(values["mean"]), float(values["scale"])
        if values.get("span"):  # models of before have none
            encoder.span_ = float(values["span"][0]), float(values["span"][1])
        encoder.column_ = Column.from_dict(values["column"])
        return encoder


def _infer_task(series: pd.Series, column: Column) -> str:
    if column.is_categorical:
        return "multiclass"
    if column.kind != "integer":
        return "regression"
    distinct, present = int(series.nunique()), int(series.notna().sum())
    if distinct > min(MOST_CLASSES, max(present // 2, 1)):
        return "regression"
    if looks_counted(numbers(series)):
        warnings.warn(
            f"column {column.name!r}: {distinct} whole numbers that look like counts are taken for "
            "classes without order. Mend: task='count' (or 'regression'; 'multiclass' if they are "
            "classes)",
            FedmendWarning,
            stacklevel=2,
        )
    return "multiclass"


# Of fewer different values any order of frequencies may rise and fall once by chance.
FEWEST_COUNTED = 6


def looks_counted(values: Any) -> bool:
    """Whether whole numbers are probably counts: many small ones, ever fewer of the larger.

    Classes that were given numbers have frequencies in any order; counts begin at 0 or 1, leave out
    hardly a number, and their frequencies rise and fall once.

    >>> looks_counted([0] * 30 + [1] * 40 + [2] * 20 + [3] * 9 + [4] * 3 + [5])
    True
    >>> looks_counted([0, 1, 2, 3, 4, 5] * 20)
    False
    """
    found = np.asarray(values, dtype=np.float64)
    found = found[~np.isnan(found)]
    if not len(found) or found.min() < 0 or found.min() > 1 or found.max() > 1000:
        return False
    often = np.bincount(found.astype(np.int64))[int(found.min()) :]
    if (often > 0).sum() < FEWEST_COUNTED or often[-1] > 0.2 * often.max():
        return False
    top = int(often.argmax())
    rising, falling = np.diff(often[: top + 1]), -np.diff(often[top:])
    # By as much as two Poisson draws may differ, the order may be broken.
    slack = 2 * np.sqrt(often[:-1] + often[1:] + 1)
    return bool((np.concatenate([rising, falling]) >= -slack).all())
