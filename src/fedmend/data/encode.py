"""A party's columns as arrays a model can use, and back to the original values.

Fitted on one party only: means, scales and lists of categories never leave it. Numbers
are standardised, missing cells become 0 (the mean) with a mask beside them, nominal
columns become codes (0 missing, 1..k the categories, k+1 never seen), blocks float arrays.

The way back is exact for binary, ordinal and nominal columns, and for integer columns
within ``2**23`` of their mean (``2**52`` with ``dtype="float64"``); continuous columns come
back to the precision of the dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data._parts import retyped
from fedmend.data._values import naming, numbers, python_scalar
from fedmend.data.blocks import BlockScaler
from fedmend.data.encoded import Encoded
from fedmend.data.ids import check_ids
from fedmend.data.labels import LabelEncoder
from fedmend.data.restore import MISSING, UNSEEN, positions, restore, restore_numbers
from fedmend.data.schema import Column, Schema, check_type
from fedmend.data.table import Table
from fedmend.errors import DataError, NotFitted

__all__ = ["Encoded", "Encoder", "LabelEncoder"]


@dataclass(frozen=True)
class _Scaled:
    """A column that is encoded as one standardised number."""

    column: Column
    mean: float
    scale: float
    had_missing: bool


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
        _check_option("ordinal", ordinal, ("numeric", "codes"))
        _check_option("binary", binary, ("numeric", "codes"))
        _check_option("unseen", unseen, ("unknown", "error"))
        _check_option("dtype", dtype, ("float32", "float64"))
        self.ordinal = ordinal
        self.binary = binary
        self.unseen = unseen
        self.missing_indicator = missing_indicator
        self.dtype = dtype
        self._schema: Schema | None = None

    # --- fitting -----------------------------------------------------------------

    def fit(self, table: Table, rows: Any = None) -> Encoder:
        """Learn means, scales and categories from the features (of these rows only)."""
        fitted_on = table.features if rows is None else table.features.take(rows)
        self._schema = fitted_on.schema
        self._scaled: list[_Scaled] = []
        self._coded: dict[str, tuple[Any, ...]] = {}
        self._blocks: dict[str, BlockScaler] = {}
        for name, column in fitted_on.schema.items():
            if column.is_block:
                self._blocks[name] = BlockScaler.fit(column, fitted_on.blocks[name])
            elif self._is_coded(column):
                self._coded[name] = _known_categories(column, fitted_on.frame[name])
            else:
                self._scaled.append(_fit_scaled(column, fitted_on.frame[name]))
        return self

    def _is_coded(self, column: Column) -> bool:
        chosen = {"nominal": "codes", "ordinal": self.ordinal, "binary": self.binary}
        return chosen.get(column.kind) == "codes"

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
        schema = self._fitted()
        with naming(party):
            for column in schema.values():
                _check_same(column, table)
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
        # columns are contiguous while they are filled, rows when they are read
        by_column = np.zeros((p + len(indicated), n), dtype=self.dtype)
        absent = np.zeros((p + len(indicated), n), dtype=bool)
        for index, scaled in enumerate(self._scaled):
            values = self._as_numbers(scaled.column, table.frame[scaled.column.name])
            np.isnan(values, out=absent[index])
            values -= scaled.mean
            values /= scaled.scale
            by_column[index] = values
            if absent[index].any():
                by_column[index, absent[index]] = 0
        for offset, index in enumerate(indicated):
            by_column[p + offset] = absent[index]
        return np.ascontiguousarray(by_column.T), np.ascontiguousarray(absent.T)

    def _as_numbers(self, column: Column, series: pd.Series) -> np.ndarray:
        """A fresh float64 array: values, or positions among the categories; NaN is missing."""
        if column.is_numeric:
            return np.array(numbers(series), dtype=np.float64)
        at = positions(series, column.categories or ())
        self._reject_unseen(column, series, at)
        return np.where(at < 0, np.nan, at.astype(np.float64))

    def _codes(self, table: Table) -> np.ndarray:
        codes = np.zeros((table.n_rows, len(self._coded)), dtype=np.int64)
        for index, (name, categories) in enumerate(self._coded.items()):
            at = positions(table.frame[name], categories)
            self._reject_unseen(self._fitted()[name], table.frame[name], at)
            at[at == UNSEEN] = len(categories)
            codes[:, index] = at + 1
        return codes

    def _reject_unseen(self, column: Column, series: pd.Series, at: np.ndarray) -> None:
        if self.unseen == "error" and (at == UNSEEN).any():
            rows = at == UNSEEN
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
            absent = encoded.missing[:, index]
            series[scaled.column.name] = _from_numbers(scaled.column, values, absent)
        for index, (name, categories) in enumerate(self._coded.items()):
            at = encoded.codes[:, index] - 1
            at = np.where((at < 0) | (at >= len(categories)), MISSING, at)
            series[name] = _from_codes(schema[name], categories, at)
        frame = pd.DataFrame(
            {name: series[name] for name in schema if name in series},
            index=pd.RangeIndex(encoded.n_rows),
        )
        blocks = {name: s.inverse(encoded.blocks[name]) for name, s in self._blocks.items()}
        checked = np.arange(encoded.n_rows) if ids is None else check_ids(ids)
        if len(checked) != encoded.n_rows:
            raise DataError(
                f"{len(checked)} ids for {encoded.n_rows} rows", mend="give one id for each row"
            )
        return Table._trusted(checked, retyped(schema, frame), None, frame, blocks)

    def empty_table(self) -> Table:
        """A table of the columns this encoder knows, without a row."""
        width = len(self.numeric_names)
        numbers = np.zeros((0, width), dtype=self.dtype)
        codes = np.zeros((0, len(self._coded)), dtype=np.int64)
        blocks = {
            name: np.zeros((0, *shape), dtype=self.dtype)
            for name, shape in self.block_shapes.items()
        }
        return self.inverse(Encoded(numbers, np.zeros((0, width), dtype=bool), codes, blocks))

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
        schema = self._fitted()
        return {
            "options": {
                "ordinal": self.ordinal,
                "binary": self.binary,
                "unseen": self.unseen,
                "missing_indicator": self.missing_indicator,
                "dtype": self.dtype,
            },
            "schema": schema.to_dict(),
            "scaled": [
                [scaled.column.name, scaled.mean, scaled.scale, scaled.had_missing]
                for scaled in self._scaled
            ],
            "coded": {name: list(categories) for name, categories in self._coded.items()},
            "blocks": {name: scaler.to_dict() for name, scaler in self._blocks.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Encoder:
        """The encoder that :meth:`to_dict` described."""
        encoder = cls(**values["options"])
        schema = Schema.from_dict(values["schema"])
        encoder._schema = schema
        encoder._scaled = [
            _Scaled(schema[name], float(mean), float(scale), bool(had))
            for name, mean, scale, had in values["scaled"]
        ]
        encoder._coded = {name: tuple(found) for name, found in values["coded"].items()}
        encoder._blocks = {
            name: BlockScaler.from_dict(schema[name], stored)
            for name, stored in values["blocks"].items()
        }
        return encoder


def _check_option(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise DataError(
            f"Encoder option {name}={value!r} is not known",
            mend=f"use one of {', '.join(repr(option) for option in allowed)}",
        )


def _known_categories(column: Column, series: pd.Series) -> tuple[Any, ...]:
    """The categories that were seen, in the schema's order; all of them where an order is known."""
    categories = column.categories or ()
    if column.kind == "ordinal":
        return categories
    seen = np.unique(positions(series, categories))
    return tuple(categories[index] for index in seen if index >= 0)


def _fit_scaled(column: Column, series: pd.Series) -> _Scaled:
    if column.is_numeric:
        values = numbers(series)
    else:
        at = positions(series, column.categories or ())
        values = np.where(at < 0, np.nan, at)
    absent = np.isnan(values)
    had_missing = bool(absent.any())
    present = values[~absent] if had_missing else values
    if len(present) == 0:
        return _Scaled(column, 0.0, 1.0, had_missing)
    low, high = float(present.min()), float(present.max())
    # halves and a unit range keep sums and squares of huge or tiny values finite
    reach = high / 2 - low / 2
    if reach < np.finfo(np.float64).tiny:
        return _Scaled(column, low, 1.0, had_missing)
    unit = (present / 2 - low / 2) / reach
    mean = low + 2 * float(unit.mean()) * reach
    return _Scaled(column, mean, 2 * float(unit.std()) * reach, had_missing)


def _check_same(column: Column, table: Table) -> None:
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
        check_type(column, table.frame[name])


def _from_numbers(column: Column, values: np.ndarray, absent: np.ndarray) -> pd.Series:
    if column.is_numeric:
        return restore_numbers(column, values, absent)
    count = len(column.categories or ())
    absent = absent | ~np.isfinite(values)
    at = np.clip(np.rint(np.where(absent, 0.0, values)), 0, max(count - 1, 0)).astype(np.int64)
    return restore(column, np.where(absent, MISSING, at))


def _from_codes(column: Column, seen: tuple[Any, ...], at: np.ndarray) -> pd.Series:
    """Positions among the seen categories, as positions among all the column's categories."""
    place = {value: index for index, value in enumerate(column.categories or ())}
    pool = np.array([*(place[value] for value in seen), MISSING], dtype=np.int64)
    return restore(column, pool[at])
