"""A party's table: unique ids, typed columns, at most one label.

A :class:`Table` is immutable: every method that changes something returns a new one.
Missing cells stay what they are (``None``, ``NaN``, ``pd.NA``); nothing is filled here.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend._html import html_table
from fedmend._suggest import one_of_these
from fedmend.data.schema import (
    Column,
    KindSpec,
    Schema,
    check_values,
    dtype_name,
    infer_column,
    numbers,
    python_scalar,
)
from fedmend.errors import DataError, FedmendWarning

_INT64 = np.iinfo(np.int64)


class Table:
    """Rows of one party: ids, columns with kinds, blocks (images, tensors) and a label.

    >>> table = Table([7, 8, 9], {"age": [31, 45, 52], "default": ["no", "yes", "no"]},
    ...               label="default")
    >>> table.schema["age"].kind, table.schema["default"].kind
    ('integer', 'binary')
    >>> len(table.take([0, 2])), table.feature_names
    (2, ['age'])

    Of a data frame, name the column of ids, or let the rows be numbered: ``Table(frame, id="id")``.
    """

    def __init__(
        self,
        ids: Any,
        columns: pd.DataFrame | Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        schema: Schema | None = None,
        kinds: Mapping[str, KindSpec] | None = None,
        label: str | None = None,
        blocks: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        if isinstance(ids, pd.DataFrame):
            ids, columns = _ids_and_columns(ids, columns, id, label)
        elif id is not None:
            raise DataError(
                "id= names a column of a data frame, and ids are given",
                column=id,
                mend="Table(frame, id=…), or Table(ids, columns)",
            )
        self.ids = check_ids(ids, id)
        self.frame = _as_frame(columns, len(self.ids))
        self.blocks = _as_blocks(blocks, len(self.ids), self.frame)
        if schema is None:
            schema = _infer_schema(self.frame, self.blocks, kinds or {})
        else:
            _conform(schema, self.frame, self.blocks, kinds)
        self.schema = schema
        self.label = label
        if label is not None:
            self._require_label(label)
        _warn_all_missing(self)

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
        table.ids, table.schema, table.label = ids, schema, label
        table.frame, table.blocks = frame, blocks
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
        return cls(df, id=id, label=label, kinds=kinds)

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

    def _repr_html_(self) -> str:
        """For notebooks: the columns and what they are; no cell, so that it may be shown."""
        rows = [
            [
                each["name"] + (" (label)" if each["label"] else ""),
                each["kind"],
                each["missing"],
                each["distinct"] if each["shape"] is None else "×".join(map(str, each["shape"])),
            ]
            for each in self.describe()
        ]
        return html_table(["column", "kind", "missing", "different values"], rows, title=repr(self))

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
        picked = _positions(picked.reshape(-1))
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
                value=python_scalar(pd.Series(ids)[pd.Series(ids).duplicated()].iloc[0]),
                mend="take each row once",
            )
        frame = self.frame.take(picked).reset_index(drop=True)
        blocks = {name: values[picked] for name, values in self.blocks.items()}
        return Table._trusted(ids, self.schema, self.label, frame, blocks)

    def blanked(self, rows: np.ndarray) -> Table:
        """The same rows with nothing known of those where `rows` is true (blocks hold zeros)."""
        frame = self.frame.mask(np.repeat(rows[:, None], self.frame.shape[1], axis=1))
        blocks = {name: values.copy() for name, values in self.blocks.items()}
        for values in blocks.values():
            values[rows] = 0
        return Table._trusted(self.ids, self.schema, self.label, frame, blocks)

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
            self._require_label(name)
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
        return [
            {
                "name": name,
                "kind": column.kind,
                "missing": int(missing[name]),
                "distinct": None if column.is_block else int(self.frame[name].nunique()),
                "shape": None if column.shape is None else list(column.shape),
                "label": name == self.label,
            }
            for name, column in self.schema.items()
        ]

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

    def _require_label(self, name: str) -> None:
        self._require(name)
        if self.schema[name].is_block:
            raise DataError("a block cannot be the label", column=name, mend="name a scalar column")


class Excerpt(Table):
    """A few rows of a table that is asked about again and again.

    Columns are taken when somebody looks at them; an encoder encodes the `whole` once.
    """

    def __init__(self, whole: Table, rows: np.ndarray) -> None:
        self.whole, self.rows = whole, rows
        self.ids, self.schema, self.label = whole.ids[rows], whole.schema, whole.label
        if len(np.unique(rows)) != len(rows):
            whole.take(rows)  # refuses, in words

    def __getattr__(self, name: str) -> Any:
        if name not in ("frame", "blocks"):
            raise AttributeError(name)
        taken = self.whole.take(self.rows)
        self.frame, self.blocks = taken.frame, taken.blocks
        return getattr(taken, name)

    def take(self, rows: Any) -> Table:
        return Excerpt(self.whole, self.rows[np.asarray(rows)])


def _positions(rows: np.ndarray) -> np.ndarray:
    """Whole numbers as int64, however they came."""
    wrong = rows[rows != np.floor(rows)] if rows.dtype.kind == "f" else rows
    try:
        if rows.dtype.kind != "f" or not len(wrong):
            return rows.astype(np.int64, copy=False)
    except (TypeError, ValueError):
        pass
    raise DataError(
        "row positions must be whole numbers",
        value=python_scalar(wrong[0]),
        mend="take rows by position, or by a mask of True and False",
    )


def _ids_and_columns(
    frame: pd.DataFrame, columns: Any, id: str | None, label: str | None
) -> tuple[Any, pd.DataFrame]:
    """A frame's column of ids, or numbers from 0 on, and its other columns."""
    if columns is not None:
        raise DataError(
            "a data frame and further columns are given",
            mend="Table(frame, id=…), or Table(ids, columns)",
        )
    reject_doubled(list(frame.columns))
    index = [name for name in frame.index.names if name is not None]
    if id is None:
        if index:
            warnings.warn(
                f"the index of the data frame ({', '.join(map(str, index))}) is left out, and rows "
                "are numbered from 0. Mend: frame.reset_index(), and id= names the column of ids",
                FedmendWarning,
                stacklevel=3,
            )
        return np.arange(len(frame)), frame
    reject_index(frame, id)
    require_name(id, list(frame.columns), "id column")
    if id == label:
        raise DataError("the id cannot be the label too", column=id, mend="name two columns")
    return frame[id], frame.drop(columns=[id])


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


# --- ids ---------------------------------------------------------------------------


def check_ids(ids: Any, column: str | None = None) -> np.ndarray:
    """The ids as int64 or as an object array of strings; `column` is where they were read.

    Missing, duplicate, fractional or mixed ids raise :class:`DataError`.
    """
    try:
        return _checked_ids(ids)
    except DataError as error:
        error.column = column
        raise


def _checked_ids(ids: Any) -> np.ndarray:
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


# --- parts, checked before they are put together ----------------------------------


def require_name(name: str, known: Sequence[Any], what: str) -> None:
    if name not in known:
        mend = one_of_these(str(name), map(str, known), "columns", most=20)
        raise DataError(f"there is no such {what}", column=str(name), mend=mend)


def reject_index(frame: pd.DataFrame, id: str) -> None:
    """Raise where the ids are the frame's index."""
    if id in frame.index.names and id not in frame.columns:
        raise DataError(
            "this is the index of the data frame, not a column",
            column=id,
            mend=f"read(frame.reset_index(), id={id!r})",
        )


def _as_frame(columns: pd.DataFrame | Mapping[str, Any] | None, n_rows: int) -> pd.DataFrame:
    if columns is None:
        return pd.DataFrame(index=pd.RangeIndex(n_rows))
    if isinstance(columns, pd.DataFrame):
        frame = columns.copy()
        frame.index = pd.RangeIndex(len(frame))
    else:
        sizes = {name: _length(name, values) for name, values in columns.items()}
        wrong = [name for name, size in sizes.items() if size != n_rows]
        if wrong:
            raise DataError(
                f"{sizes[wrong[0]]} values for {n_rows} ids",
                column=str(wrong[0]),
                mend="give one value for each id",
            )
        frame = pd.DataFrame(
            {name: _bare(name, values) for name, values in columns.items()},
            index=pd.RangeIndex(n_rows),
        )
    if len(frame) != n_rows:
        raise DataError(f"{len(frame)} rows for {n_rows} ids", mend="give one id for each row")
    _check_names(list(frame.columns))
    for name, dtype in frame.dtypes.items():
        if isinstance(dtype, pd.SparseDtype):  # Parquet, and half of pandas, have no such columns
            frame[name] = np.asarray(frame[name])
        elif dtype.kind in "mM" and bool(frame[name].isna().all()):
            frame[name] = np.nan  # of no kind, and without a date to refuse
        elif str(dtype).startswith("dictionary<"):  # Arrow's word for categories
            frame[name] = frame[name].astype(object).astype("category")
        elif pd.api.types.is_float_dtype(dtype) and not isinstance(dtype, np.dtype):
            # Nullable floats tell NaN, the result of 0/0 say, from a missing cell; here it is one.
            frame[name] = frame[name].mask(np.isnan(numbers(frame[name])))
    return frame


def _length(name: str, values: Any) -> int:
    unordered = isinstance(values, (set, frozenset, Mapping))
    # An array of no dimension has a length by name only.
    if (
        isinstance(values, (str, bytes))
        or getattr(values, "ndim", 1) == 0
        or not hasattr(values, "__len__")
        or unordered
    ):
        raise DataError(
            f"a {type(values).__name__} is not a column"
            if unordered
            else "one value is not a column",
            column=str(name),
            value=values,
            mend="give a list or an array, one value for each id",
        )
    return len(values)


def _bare(name: str, values: Any) -> Any:
    """The values without their index, which would otherwise be matched to row numbers."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        raise DataError(
            f"an array of shape {values.shape} is not a column of cells",
            column=str(name),
            mend="pass it in blocks=",
        )
    return values.array if isinstance(values, (pd.Series, pd.Index)) else values


def _check_names(names: list[Any]) -> None:
    for position, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise DataError(
                f"column {position + 1} has no usable name: names are non-empty strings",
                value=name,
                mend="rename it, or leave it out",
            )
    reject_doubled(names)


def reject_doubled(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError("two columns have this name", column=name, mend="rename one of them")
        seen.add(name)


def _as_blocks(
    blocks: Mapping[str, np.ndarray] | None, n_rows: int, frame: pd.DataFrame
) -> dict[str, np.ndarray]:
    arrays = {name: np.asarray(values) for name, values in (blocks or {}).items()}
    for name, values in arrays.items():
        if values.ndim < 2 or len(values) != n_rows:
            raise DataError(
                f"a block of shape {values.shape} for {n_rows} ids",
                column=name,
                mend=f"give an array of shape ({n_rows}, ...), one entry per row",
            )
    _check_names([*frame.columns, *arrays])
    return arrays


def _infer_schema(
    frame: pd.DataFrame, blocks: dict[str, np.ndarray], kinds: Mapping[str, KindSpec]
) -> Schema:
    for name in kinds:
        require_name(name, [*frame.columns, *blocks], "column (named in kinds)")
    columns = [infer_column(name, frame[name], kinds.get(name)) for name in frame.columns]
    columns += [infer_column(name, values, kinds.get(name)) for name, values in blocks.items()]
    return Schema(columns)


def _conform(
    schema: Schema,
    frame: pd.DataFrame,
    blocks: dict[str, np.ndarray],
    kinds: Mapping[str, KindSpec] | None,
) -> None:
    if kinds:
        raise DataError("both schema and kinds are given", mend="give one of the two")
    present = [*frame.columns, *blocks]
    for name in present:
        require_name(name, schema.names, "column in the schema")
    for name in schema:
        require_name(name, present, "column in the values")
    for name, column in schema.items():
        if column.is_block != (name in blocks):
            raise DataError(
                f"the schema says {column.kind!r}, the values say otherwise",
                column=name,
                mend="pass image and tensor columns in blocks=, all others in columns",
            )
        if column.is_block:
            _check_block(column, blocks)
        else:
            check_values(column, frame[name])


def retyped(schema: Schema, frame: pd.DataFrame) -> Schema:
    """The schema with the types the values have now (a missing cell may change an int's)."""
    return Schema(
        column if column.is_block else dataclasses.replace(column, dtype=dtype_name(frame[name]))
        for name, column in schema.items()
    )


def _check_block(column: Column, blocks: dict[str, np.ndarray]) -> None:
    found = infer_column(column.name, blocks[column.name], column.kind)
    if found.shape != column.shape:
        raise DataError(
            f"rows of shape {found.shape}, but the schema says {column.shape}",
            column=column.name,
            mend="reshape the block",
        )


def blanked(table: Table, columns: Iterable[str], lost: np.ndarray) -> Table:
    """The table with cells missing; whole numbers and booleans become their nullable type.

    lost: in which rows. **Shape** [n] of bool.
    """
    frame = table.frame.copy()
    for name in columns if lost.any() else ():
        series = frame[name]
        if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biu":
            series = series.convert_dtypes(convert_string=False, convert_floating=False)
        frame[name] = series.mask(lost, None) if series.dtype == object else series.mask(lost)
    return Table._trusted(table.ids, retyped(table.schema, frame), table.label, frame, table.blocks)
