"""Tables from CSV and Parquet files and from SQL queries.

CSV cells that are empty or read ``NA``, ``N/A``, ``n/a``, ``#N/A``, ``NaN``, ``nan``, ``null`` or
``NULL`` are missing (``missing=`` changes the list). Ids such as ``007`` stay strings. A Parquet
file that :meth:`Table.to_parquet` wrote gives its id, label, kinds and blocks back.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedmend.data._csv import parse_csv
from fedmend.data._parts import reject_doubled, require_name
from fedmend.data._values import dtype_name
from fedmend.data.arrow import to_frame
from fedmend.data.ids import check_ids
from fedmend.data.schema import KindSpec, Schema, infer_column
from fedmend.data.sql import read_sql
from fedmend.data.table import Table
from fedmend.data.writers import METADATA_KEY
from fedmend.errors import DataError, ReadError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MISSING_MARKS", "file_bytes", "parquet_table", "read", "read_sql"]

MISSING_MARKS: tuple[str, ...] = (*("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL"),)
_SUFFIXES = (".csv", ".csv.gz", ".parquet")
_ROW_NUMBERS = re.compile(r"__index_level_\d+__")


def read(
    path: str | Path,
    *,
    id: str | None = None,
    label: str | None = None,
    kinds: Mapping[str, KindSpec] | None = None,
    columns: Sequence[str] | str | None = None,
    drop: Sequence[str] | str = (),
    encoding: str = "utf-8",
    delimiter: str = ",",
    decimal: str = ".",
    missing: Sequence[str] = MISSING_MARKS,
) -> Table:
    """The table in a ``.csv``, ``.csv.gz`` or ``.parquet`` file.

    ``columns`` names those to read (id and label are read anyway), ``drop`` those to leave out;
    ``kinds`` overrides what a column is taken for. ``encoding``, ``delimiter``, ``decimal`` and
    ``missing`` concern CSV only. Without ``id`` the rows are numbered from 0.
    """
    file = Path(path)
    columns = [columns] if isinstance(columns, str) else columns
    drop = [drop] if isinstance(drop, str) else drop
    for name in drop:
        if name in (id, label):
            raise DataError("the id and the label cannot be dropped", column=name, mend="keep it")
    wanted = None if columns is None else _wanted(columns, id, label)
    suffix = next((s for s in _SUFFIXES if file.name.lower().endswith(s)), None)
    if suffix is None:
        raise ReadError(
            f"{file}: unknown kind of file",
            value=file.suffix or file.name,
            mend=f"use one of {', '.join(_SUFFIXES)}",
        )
    raw = file_bytes(file)
    try:
        if suffix == ".parquet":
            return _from_parquet(file, raw, id, label, kinds or {}, wanted, drop)
        as_text = {name for name, kind in (kinds or {}).items() if kind == "nominal"}
        form = (encoding, delimiter, decimal, list(missing))
        arrow = parse_csv(file, raw, id, label, wanted, drop, as_text, *form)
        return Table.from_frame(to_frame(arrow), id=id, label=label, kinds=kinds)
    except ReadError:
        raise
    except DataError as error:
        error.problem += f" [{file.name}]"
        raise


def _wanted(columns: Sequence[str], id: str | None, label: str | None) -> list[str]:
    return list(dict.fromkeys([*([id] if id else []), *columns, *([label] if label else [])]))


def file_bytes(file: Path) -> bytes:
    """The file's contents; whatever goes wrong is a :class:`ReadError` that says so."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        near = sorted(p.name for p in file.parent.glob("*") if p.name.lower().endswith(_SUFFIXES))
        hint = f"; the folder holds {', '.join(near[:5])}" if near else ""
        raise ReadError(f"{file}: there is no such file", mend=f"check the path{hint}") from None
    except IsADirectoryError:
        raise ReadError(f"{file}: this is a folder, not a file", mend="name a file in it") from None
    except PermissionError:
        raise ReadError(
            f"{file}: no permission to read it",
            mend="give this user the right to read the file and its folder",
        ) from None
    except OSError as error:
        raise ReadError(
            f"{file}: cannot be read ({error.strerror or error})", mend="check the file and disk"
        ) from error


def _from_parquet(
    file: Path,
    raw: bytes,
    id: str | None,
    label: str | None,
    kinds: Mapping[str, KindSpec],
    wanted: list[str] | None,
    drop: Sequence[str],
) -> Table:
    arrow = parquet_table(file, raw)
    for name in drop:
        require_name(name, arrow.column_names, "column (named in drop)")
    arrow = arrow.drop_columns(list(drop))
    notes, noted = _notes(file, arrow)
    id = id if id is not None else notes.get("id")
    label = label if label is not None else notes.get("label")
    for needed in [id, label, *(wanted or [])]:
        if needed is not None:
            require_name(needed, arrow.column_names, "column")
    if wanted is not None:
        label = label if label in wanted else None
        arrow = arrow.select(_wanted(wanted, id, None))
    if arrow.num_rows == 0:
        raise ReadError(f"{file}: the file has columns but no rows", mend="check how it was made")
    frame, blocks = to_frame(arrow), _blocks(arrow, notes)
    ids = np.arange(len(frame)) if id is None else _ids(frame.pop(id), id)
    if noted is None:
        return Table(ids, frame, kinds=kinds, label=label, blocks=blocks)
    schema = _noted(noted, frame, blocks, kinds)
    return Table(ids, frame, schema=schema, label=label, blocks=blocks)


def _notes(file: Path, arrow: pa.Table) -> tuple[dict[str, Any], Schema | None]:
    """What :meth:`Table.to_parquet` noted beside the columns, and their schema."""
    raw = (arrow.schema.metadata or {}).get(METADATA_KEY)
    if raw is None:
        return {}, None
    try:
        notes: dict[str, Any] = json.loads(raw)
        return notes, Schema.from_dict(notes["schema"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReadError(
            f"{file}: its notes on kinds and label are damaged ({error!r})",
            mend="write it again with to_parquet, or without fedmend's metadata",
        ) from error


def parquet_table(file: Path, raw: bytes) -> pa.Table:
    """The Arrow table in the bytes of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not raw:
        raise ReadError(f"{file}: the file is empty", mend="check how it was made")
    try:
        table = pq.ParquetFile(pa.BufferReader(raw)).read()
    except (pa.ArrowInvalid, OSError) as error:
        raise ReadError(
            f"{file}: not a whole Parquet file ({str(error).splitlines()[0]})",
            mend="check that it was copied completely and has the right suffix",
        ) from error
    reject_doubled(table.column_names)
    return _without_index(table)


def _without_index(table: pa.Table) -> pa.Table:
    """A named index of pandas as a column like the others; row numbers, which have no name, go."""
    metadata = dict(table.schema.metadata or {})
    if b"pandas" not in metadata:
        return table
    notes = json.loads(metadata[b"pandas"])
    metadata[b"pandas"] = json.dumps({**notes, "index_columns": []}).encode()
    numbers = [name for name in table.column_names if _ROW_NUMBERS.fullmatch(name)]
    return table.drop_columns(numbers).replace_schema_metadata(metadata)


def _ids(series: pd.Series, name: str) -> np.ndarray:
    try:
        return check_ids(series)
    except DataError as error:
        error.column = name
        raise


def _blocks(arrow: pa.Table, notes: dict[str, Any]) -> dict[str, np.ndarray]:
    """Columns of fixed-size lists, in the shape that was noted when they were written."""
    import pyarrow as pa

    shapes = {c["name"]: c["shape"] for c in notes.get("schema", {}).get("columns", [])}
    found = {}
    for field in arrow.schema:
        if pa.types.is_fixed_size_list(field.type):
            flat = arrow[field.name].combine_chunks().flatten()
            if flat.null_count or len(flat) != arrow.num_rows * field.type.list_size:
                raise DataError(
                    "a block may not have missing rows or values",
                    column=field.name,
                    mend="fill or drop those rows",
                )
            shape = shapes.get(field.name) or [field.type.list_size]
            found[field.name] = flat.to_numpy(zero_copy_only=False).reshape(-1, *shape)
    return found


def _noted(
    schema: Schema,
    frame: pd.DataFrame,
    blocks: Mapping[str, np.ndarray],
    kinds: Mapping[str, KindSpec],
) -> Schema:
    """The stored schema of the columns that were read, with overrides on top."""
    for name in kinds:
        require_name(name, [*frame.columns, *blocks], "column (named in kinds)")
    columns = []
    for name in [*(n for n in schema if n in frame or n in blocks)]:
        if name in kinds:
            values = blocks[name] if name in blocks else frame[name]
            columns.append(infer_column(name, values, kinds[name]))
        elif name in blocks:
            columns.append(schema[name])
        else:
            columns.append(dataclasses.replace(schema[name], dtype=dtype_name(frame[name])))
    return Schema(columns)
