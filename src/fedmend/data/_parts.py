"""The parts of a table, checked before they are put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedmend._suggest import closest
from fedmend.data._values import dtype_name, numbers
from fedmend.data.schema import Column, KindSpec, Schema, check_values, infer_column
from fedmend.errors import DataError

__all__ = [
    "as_blocks",
    "as_frame",
    "blanked",
    "conform",
    "infer_schema",
    "reject_doubled",
    "require_name",
    "retyped",
]


def require_name(name: str, known: Sequence[Any], what: str) -> None:
    if name not in known:
        names = [str(column) for column in known]
        shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        near = closest(str(name), names)
        raise DataError(
            f"there is no such {what}",
            column=str(name),
            mend=(f"did you mean {near!r}? " if near else "")
            + f"the columns are: {shown or '(none)'}",
        )


def as_frame(columns: pd.DataFrame | Mapping[str, Any] | None, n_rows: int) -> pd.DataFrame:
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
        if pd.api.types.is_float_dtype(dtype) and not isinstance(dtype, np.dtype):
            # Nullable floats tell NaN, the result of 0/0 say, from a missing cell; here it is one.
            frame[name] = frame[name].mask(np.isnan(numbers(frame[name])))
    return frame


def _length(name: str, values: Any) -> int:
    # An array of no dimension has a length by name only.
    if (
        isinstance(values, (str, bytes))
        or getattr(values, "ndim", 1) == 0
        or (not hasattr(values, "__len__"))
    ):
        raise DataError(
            "one value is not a column",
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


def as_blocks(
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


def infer_schema(
    frame: pd.DataFrame, blocks: dict[str, np.ndarray], kinds: Mapping[str, KindSpec]
) -> Schema:
    for name in kinds:
        require_name(name, [*frame.columns, *blocks], "column (named in kinds)")
    columns = [infer_column(name, frame[name], kinds.get(name)) for name in frame.columns]
    columns += [infer_column(name, values, kinds.get(name)) for name, values in blocks.items()]
    return Schema(columns)


def conform(
    schema: Schema,
    frame: pd.DataFrame,
    blocks: dict[str, np.ndarray],
    kinds: Mapping[str, KindSpec] | None,
) -> Schema:
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
    return schema


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


def blanked(series: pd.Series, lost: np.ndarray) -> pd.Series:
    """The series with missing cells; whole numbers and booleans become their nullable type."""
    if not lost.any():
        return series
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biu":
        series = series.convert_dtypes(convert_string=False, convert_floating=False)
    return series.mask(lost, None) if series.dtype == object else series.mask(lost)
