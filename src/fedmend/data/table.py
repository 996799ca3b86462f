"""A party's table: unique ids, typed columns, at most one label.

A :class:`Table` is immutable: every method that changes something returns a new one.
Missing cells stay what they are (``None``, ``NaN``, ``pd.NA``); nothing is filled here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data._parts import (
    as_blocks,
    as_frame,
    conform,
    infer_schema,
    reject_doubled,
    require_name,
)
from fedmend.data.ids import check_ids
from fedmend.data.schema import KindSpec, Schema
from fedmend.errors import DataError, FedmendWarning

__all__ = ["Table"]


class Table:
    """Rows of one party: ids, columns with kinds, blocks (images, tensors) and a label.

    >>> table = Table([7, 8, 9], {"age": [31, 45, 52], "default": ["no", "yes", "no"]},
    ...               label="default")
    >>> table.schema["age"].kind, table.schema["default"].kind
    ('integer', 'binary')
    >>> len(table.take([0, 2])), table.feature_names
    (2, ['age'])
    """

    def __init__(
        self,
        ids: Any,
        columns: pd.DataFrame | Mapping[str, Any] | None = None,
        *,
        schema: Schema | None = None,
        kinds: Mapping[str, KindSpec] | None = None,
        label: str | None = None,
        blocks: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        checked = check_ids(ids)
        frame = as_frame(columns, len(checked))
        arrays = as_blocks(blocks, len(checked), frame)
        if schema is None:
            schema = infer_schema(frame, arrays, kinds or {})
        else:
            schema = conform(schema, frame, arrays, kinds)
        self._fill(checked, schema, label, frame, arrays)
        if label is not None:
            self._require(label)
            if schema[label].is_block:
                raise DataError(
                    "a block cannot be the label", column=label, mend="name a scalar column"
                )
        _warn_all_missing(self)

    def _fill(
        self,
        ids: np.ndarray,
        schema: Schema,
        label: str | None,
        frame: pd.DataFrame,
        blocks: dict[str, np.ndarray],
    ) -> None:
        self.ids = ids
        self.schema = schema
        self.label = label
        self.frame = frame
        self.blocks = blocks

    @classmethod
    def _trusted(
        cls,
        ids: np.ndarray,
        schema: Schema,
        label: str | None,
        frame: pd.DataFrame,
        blocks: dict[str, np.ndarray],
    ) -> Table:
        """A table of parts that were checked before: no inference, no copies."""
        table = cls.__new__(cls)
        table._fill(ids, schema, label, frame, blocks)
        return table

    @classmethod
    def from_frame(
        cls,
        df: pd.DataFrame,
        id: str | None = None,
        label: str | None = None,
        kinds: Mapping[str, KindSpec] | None = None,
    ) -> Table:
        """A table from a data frame; without an ``id`` column, rows are numbered from 0."""
        if not isinstance(df, pd.DataFrame):
            raise DataError(
                f"a data frame of pandas is needed, not a {type(df).__name__}",
                mend="convert it: frame.to_pandas(), or pandas.DataFrame(values)",
            )
        reject_doubled(list(df.columns))
        if id is None:
            return cls(np.arange(len(df)), df, label=label, kinds=kinds)
        require_name(id, list(df.columns), "id column")
        if id == label:
            raise DataError("the id cannot be the label too", column=id, mend="name two columns")
        try:
            ids = check_ids(df[id])
        except DataError as error:
            error.column = id
            raise
        return cls(ids, df.drop(columns=[id]), label=label, kinds=kinds)

    # --- shape -------------------------------------------------------------------

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def names(self) -> list[str]:
        """All columns, label and blocks included."""
        return self.schema.names

    @property
    def feature_names(self) -> list[str]:
        """All columns but the label; blocks included."""
        return [name for name in self.schema if name != self.label]

    @property
    def features(self) -> Table:
        """The table without its label."""
        return self.select(self.feature_names)

    @property
    def y(self) -> pd.Series:
        """The label column."""
        if self.label is None:
            raise DataError(
                "this table has no label", mend="name one: read(..., label=...) or with_label(name)"
            )
        return self.frame[self.label]

    def __repr__(self) -> str:
        label = f", label {self.label!r}" if self.label else ""
        return f"Table({self.n_rows} rows, {len(self.feature_names)} features{label})"

    # --- parts -------------------------------------------------------------------

    def take(self, rows: Any) -> Table:
        """These rows, by position (or a boolean mask), in the order given."""
        picked = np.asarray(rows)
        if picked.dtype == bool:
            if picked.shape != self.ids.shape:
                raise DataError(
                    f"a mask of {picked.size} rows for a table of {self.n_rows}",
                    mend="give one True or False for each row",
                )
            picked = np.flatnonzero(picked)
        if picked.dtype.kind == "f" and (picked != np.floor(picked)).any():
            raise DataError(
                "row positions must be whole numbers",
                value=float(picked[picked != np.floor(picked)][0]),
                mend="take rows by position, or by a mask of True and False",
            )
        picked = picked.astype(np.int64, copy=False).reshape(-1)
        if picked.size and (picked.min() < -self.n_rows or picked.max() >= self.n_rows):
            raise DataError(
                f"row positions must lie in 0..{self.n_rows - 1}",
                value=int(picked.max() if picked.max() >= self.n_rows else picked.min()),
                mend="take rows by position, not by id",
            )
        ids = self.ids[picked]
        if len(pd.unique(ids)) != len(ids):
            raise DataError(
                "a row is taken twice, so its id would not be unique",
                value=pd.Series(ids)[pd.Series(ids).duplicated()].iloc[0],
                mend="take each row once",
            )
        frame = self.frame.take(picked).reset_index(drop=True)
        blocks = {name: values[picked] for name, values in self.blocks.items()}
        return Table._trusted(ids, self.schema, self.label, frame, blocks)

    def select(self, names: Iterable[str] | str) -> Table:
        """These columns, in the order given; the label stays one only when named."""
        wanted = [names] if isinstance(names, str) else list(names)
        for name in wanted:
            self._require(name)
        scalars = [name for name in wanted if name not in self.blocks]
        return Table._trusted(
            self.ids,
            self.schema.select(wanted),
            self.label if self.label in wanted else None,
            self.frame[scalars],
            {name: self.blocks[name] for name in wanted if name in self.blocks},
        )

    def drop(self, names: Iterable[str] | str) -> Table:
        """All columns but these."""
        unwanted = [names] if isinstance(names, str) else list(names)
        for name in unwanted:
            self._require(name)
        return self.select(name for name in self.names if name not in unwanted)

    def with_label(self, name: str | None) -> Table:
        """The same columns with another label, or with none (the column stays)."""
        if name is not None:
            self._require(name)
            if self.schema[name].is_block:
                raise DataError(
                    "a block cannot be the label", column=name, mend="name a scalar column"
                )
        return Table._trusted(self.ids, self.schema, name, self.frame, self.blocks)

    def with_ids(self, ids: Any) -> Table:
        """The same rows under other ids."""
        checked = check_ids(ids)
        if len(checked) != self.n_rows:
            raise DataError(
                f"{len(checked)} ids for {self.n_rows} rows", mend="give one id for each row"
            )
        return Table._trusted(checked, self.schema, self.label, self.frame, self.blocks)

    def with_columns(
        self,
        columns: pd.DataFrame | Mapping[str, Any] | None = None,
        *,
        kinds: Mapping[str, KindSpec] | None = None,
        blocks: Mapping[str, np.ndarray] | None = None,
    ) -> Table:
        """Columns or blocks added, or put in the place of those of the same name."""
        new = Table(self.ids, columns, kinds=kinds, blocks=blocks)
        if self.label in new.blocks:
            raise DataError(
                "a block cannot be the label", column=self.label, mend="with_label(None) first"
            )
        both = {name: self.schema[name] for name in self.names} | dict(new.schema)
        kept = [n for n in self.frame.columns if n not in new.schema]
        frame = pd.concat([self.frame[kept], new.frame], axis=1)
        arrays = {n: b for n, b in self.blocks.items() if n not in new.schema} | new.blocks
        order = [name for name in both if name in frame.columns]
        return Table._trusted(self.ids, Schema(both.values()), self.label, frame[order], arrays)

    # --- looking -----------------------------------------------------------------

    def missing(self) -> pd.Series:
        """Number of missing cells per column (blocks have none)."""
        counts = self.frame.isna().sum()
        return counts.reindex(self.names, fill_value=0).astype(np.int64)

    def describe(self) -> list[dict[str, Any]]:
        """Per column: name, kind, missing cells, distinct values, whether it is the label.

        Holds no value of any row, so it may be shown.
        """
        missing = self.missing()
        rows: list[dict[str, Any]] = []
        for name, column in self.schema.items():
            distinct = None if column.is_block else int(self.frame[name].nunique())
            rows.append(
                {
                    "name": name,
                    "kind": column.kind,
                    "missing": int(missing[name]),
                    "distinct": distinct,
                    "shape": None if column.shape is None else list(column.shape),
                    "label": name == self.label,
                }
            )
        return rows

    def equals(self, other: Table) -> bool:
        """Same ids, schema, label and values, in the same order."""
        return (
            isinstance(other, Table)
            and self.ids.dtype == other.ids.dtype
            and np.array_equal(self.ids, other.ids)
            and self.schema == other.schema
            and self.label == other.label
            and self.frame.equals(other.frame)
            and all(np.array_equal(b, other.blocks[n]) for n, b in self.blocks.items())
        )

    # --- writing -----------------------------------------------------------------

    def to_csv(self, path: str | Path, id: str = "id") -> None:
        """Write a CSV file, whole or not at all. Kinds and blocks have no place in CSV."""
        from fedmend.data.writers import write_csv

        write_csv(self, path, id)

    def to_parquet(self, path: str | Path, id: str = "id") -> None:
        """Write a Parquet file that remembers kinds, label, id and blocks."""
        from fedmend.data.writers import write_parquet

        write_parquet(self, path, id)

    def _require(self, name: str) -> None:
        require_name(name, self.names, "column")


def _warn_all_missing(table: Table) -> None:
    if table.n_rows == 0:
        return
    for name in table.frame.columns:
        if bool(table.frame[name].isna().all()):
            warnings.warn(
                f"column {name!r}: all {table.n_rows} cells are missing; it is kept as "
                f"{table.schema[name].kind} and carries no information. Mend: drop it, or check "
                "how the file was read",
                FedmendWarning,
                stacklevel=3,
            )
