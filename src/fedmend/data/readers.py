"""Tables from CSV, Parquet and Excel files, with an error for each way they can be wrong.

CSV cells that are empty or read ``NA``, ``N/A``, ``n/a``, ``#N/A``, ``NaN``, ``nan``, ``null`` or
``NULL`` are missing (``missing=`` changes the list). Ids such as ``007`` stay strings. A Parquet
file that :meth:`Table.to_parquet` wrote gives its id, label, kinds and blocks back.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import gzip
import importlib.util
import io
import json
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedmend.data.schema import KindSpec, Schema, dtype_name, infer_column
from fedmend.data.table import Table, check_ids, reject_doubled, reject_index, require_name
from fedmend.data.writers import APOSTROPHES, METADATA_KEY, unprotected
from fedmend.errors import DataError, FedmendWarning, ReadError

if TYPE_CHECKING:
    import pyarrow as pa

MISSING_MARKS: tuple[str, ...] = (*("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL"),)
_SUFFIXES = (".csv", ".csv.gz", ".parquet", ".xlsx")
_ROW_NUMBERS = re.compile(r"__index_level_\d+__")
_CHUNK = 1 << 20
_BLOCK = 1 << 26
_WHOLE_NUMBER = r"^-?(0|[1-9][0-9]{0,17})(\.0*)?$"
_EXACT_IN_FLOAT = 2**53


@dataclass(frozen=True)
class _Wanted:
    """What is to be read of a file: columns None is all; id and label are read anyway."""

    id: str | None
    label: str | None
    kinds: Mapping[str, KindSpec]
    columns: Sequence[str] | None
    drop: Sequence[str]

    def names(self, id: str | None, label: str | None) -> list[str] | None:
        """The columns that are asked for, in order."""
        if self.columns is None:
            return None
        needed = (id, *self.columns, label)
        return list(dict.fromkeys(name for name in needed if name is not None))


def read(
    path: str | Path | pd.DataFrame,
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
    """The table in a ``.csv``, ``.csv.gz``, ``.parquet`` or ``.xlsx`` file, or in a data frame.

    Of an Excel file the first sheet is read, by openpyxl where that is installed.
    ``columns`` names those to read (id and label are read anyway), ``drop`` those to leave out;
    ``kinds`` overrides what a column is taken for. ``encoding``, ``delimiter``, ``decimal`` and
    ``missing`` concern CSV only. Without ``id`` the rows are numbered from 0.
    """
    columns = [columns] if isinstance(columns, str) else columns
    wanted = _Wanted(id, label, kinds or {}, columns, [drop] if isinstance(drop, str) else drop)
    for name in wanted.drop:
        if name in (id, label):
            raise DataError("the id and the label cannot be dropped", column=name, mend="keep it")
    if isinstance(path, pd.DataFrame):
        if id is not None:
            reject_index(path, id)
        return Table(_wanted_columns(path, wanted), id=id, label=label, kinds=kinds)
    if not isinstance(path, str | os.PathLike):
        raise DataError(
            f"neither the path of a file nor a pandas data frame: {type(path).__name__}",
            mend="pd.DataFrame(values, columns=[…]) of an array, or the path of a file",
        )
    file = Path(path)
    suffix = next((s for s in _SUFFIXES if file.name.lower().endswith(s)), None)
    if suffix is None:
        raise ReadError(
            f"{file}: unknown kind of file",
            value=file.suffix or file.name,
            mend="save it as CSV"
            if file.suffix.lower() in (".xls", ".ods", ".numbers")
            else f"use one of {', '.join(_SUFFIXES)}",
        )
    raw = file_bytes(file)
    try:
        if suffix == ".parquet":
            return _from_parquet(file, raw, wanted)
        if suffix == ".xlsx":
            frame = _wanted_columns(first_sheet(file, raw, missing), wanted)
            return Table(frame, id=id, label=label, kinds=kinds)
        text = _utf8(file, _unpacked(file, raw), encoding)
        arrow = _CSV(file, text, delimiter, decimal, list(missing)).table(wanted)
        return Table.from_frame(to_frame(arrow), id=id, label=label, kinds=kinds)
    except ReadError:
        raise
    except DataError as error:
        error.problem += f" [{file.name}]"
        raise


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


def _wanted_columns(frame: pd.DataFrame, wanted: _Wanted) -> pd.DataFrame:
    """The columns of a frame that are asked for."""
    reject_doubled(list(frame.columns))
    asked = wanted.names(wanted.id, wanted.label)
    for name in (*wanted.drop, *(asked or ())):
        require_name(name, list(frame.columns), "column")
    kept = list(frame.columns) if asked is None else asked
    return frame[[name for name in kept if name not in wanted.drop]]


# --- Excel --------------------------------------------------------------------------


def first_sheet(file: Path, raw: bytes, missing: Sequence[str] = MISSING_MARKS) -> pd.DataFrame:
    """The first sheet of an Excel file; its first line names the columns."""
    if importlib.util.find_spec("openpyxl") is None:
        raise ReadError(
            f"{file}: an Excel file, and openpyxl, which reads those, is not installed",
            mend="save it as CSV, or pip install 'fedmend[excel]'",
        )
    try:
        with pd.ExcelFile(io.BytesIO(raw), engine="openpyxl") as book:
            # As objects, since text that looks like a number is text: 007 is an id.
            frame = book.parse(0, dtype=object, keep_default_na=False, na_values=list(missing))
            sheets = [str(name) for name in book.sheet_names]
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise ReadError(
            f"{file}: not a whole Excel file ({error})", mend="open it and save it as CSV"
        ) from error
    if len(sheets) > 1:
        warnings.warn(
            f"{file.name}: the sheet {sheets[0]!r} was read, and not {', '.join(sheets[1:4])}. "
            "Mend: save the sheet that you mean as CSV, if it is another",
            FedmendWarning,
            stacklevel=3,
        )
    if not len(frame):
        raise ReadError(f"{file}: the sheet {sheets[0]!r} has no rows", mend="check the file")
    return frame.infer_objects().rename(columns=str)


# --- CSV ----------------------------------------------------------------------------


def _unpacked(file: Path, raw: bytes) -> bytes:
    if file.suffix.lower() != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise ReadError(
            f"{file}: not a whole gzip file ({error})",
            mend="check that it was copied completely, or drop the .gz from its name",
        ) from error


def _utf8(file: Path, raw: bytes, encoding: str) -> bytes:
    """The bytes as UTF-8; raises with the place of the first byte that is not ``encoding``."""
    try:
        canonical = codecs.lookup(encoding).name
    except LookupError:
        raise ReadError(
            f"{file}: there is no encoding {encoding!r}", mend="try 'utf-8', 'latin-1' or 'cp1252'"
        ) from None
    decoder = codecs.getincrementaldecoder(canonical)()
    parts: list[bytes] = []
    for start in range(0, len(raw), _CHUNK):
        held = len(decoder.getstate()[0])
        chunk = raw[start : start + _CHUNK]
        try:
            text = decoder.decode(chunk, final=start + _CHUNK >= len(raw))
        except UnicodeDecodeError as error:
            place = start - held + error.start
            raise ReadError(
                f"{file}: not {canonical}: byte 0x{raw[place]:02x} at offset {place}",
                mend=_encoding_mend(raw, canonical),
            ) from None
        if canonical != "utf-8":
            parts.append(text.encode("utf-8"))
    return raw if canonical == "utf-8" else b"".join(parts)


def _encoding_mend(raw: bytes, tried: str) -> str:
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "read it with encoding='utf-16'"
    other = "cp1252" if tried != "cp1252" else "utf-8"
    return f"read it with the encoding it was saved in, e.g. encoding={other!r} or 'latin-1'"


@dataclass(frozen=True)
class _CSV:
    """A CSV file's text, as UTF-8, and how it is written."""

    file: Path
    text: bytes
    delimiter: str
    decimal: str
    missing: list[str]

    def table(self, wanted: _Wanted) -> pa.Table:
        """The wanted columns; the id column as int64 or string, leading zeros kept."""
        import pyarrow as pa

        if not self.text.strip():
            raise ReadError(f"{self.file}: the file is empty", mend="check how it was made")
        written = self._header()
        header = [unprotected(name) for name in written]
        for dropped in wanted.drop:
            self._require(dropped, header, "column (named in drop)")
        asked = wanted.names(wanted.id, wanted.label)
        names = [n for n in (header if asked is None else asked) if n not in wanted.drop]
        for what, name in (("id column", wanted.id), ("label column", wanted.label)):
            if name is not None:
                self._require(name, header, what)
        for name in names:
            self._require(name, header, "column")
            if not name:
                raise DataError(
                    f"column {header.index(name) + 1} has no name (pandas writes its row index so, "
                    "and a delimiter at the end of each line makes one)",
                    mend="name it, or leave it out: drop = ['']",
                )
            if header.count(name) > 1:
                raise DataError(
                    "two columns have this name", column=name, mend="rename one of them"
                )
        in_order = {name for name, kind in wanted.kinds.items() if _are_texts(kind)}
        codes = {wanted.id, *(n for n, kind in wanted.kinds.items() if kind == "nominal")}
        as_text = in_order | codes
        as_written = dict(zip(header, written, strict=True))
        textual = {as_written[name] for name in names if name in as_text}
        table = self._parse([as_written[name] for name in names], textual).rename_columns(names)
        if table.num_rows == 0:
            raise ReadError(
                f"{self.file}: the file has a header but no rows", mend="check how it was made"
            )
        for place, name in enumerate(names):
            kind = table.schema.types[place]
            if pa.types.is_binary(kind):
                problem = f"{self.file}: bytes instead of text"
                raise ReadError(problem, column=name, mend="set encoding=")
            if pa.types.is_string(kind):
                table = table.set_column(place, name, _unprotected(table[name]))
            if name in codes:
                table = table.set_column(place, name, _numbers_unless_zeros_lead(table[name]))
        return table

    def _header(self) -> list[str]:
        lines = io.TextIOWrapper(io.BytesIO(self.text), encoding="utf-8-sig", newline="")
        try:
            return next(row for row in csv.reader(lines, delimiter=self.delimiter) if row)
        except (csv.Error, StopIteration, TypeError) as error:
            raise ReadError(
                f"{self.file}: the header cannot be read ({error})",
                mend="check the delimiter (one character) and the quotes of the first line",
            ) from None

    def _require(self, name: str, header: list[str], what: str) -> None:
        other = next((c for c in ";\t|," if len(header) == 1 and c in header[0]), None)
        if other is not None and other != self.delimiter and name not in header:
            raise DataError(
                f"there is no such {what}; the header is one cell that holds {other!r}",
                column=name,
                mend=f"read it with delimiter={other!r}, or write it with {self.delimiter!r}",
            )
        require_name(name, header, what)

    def _parse(self, names: list[str], textual: set[str], threads: bool = True) -> pa.Table:
        import pyarrow as pa
        from pyarrow import csv as pc

        bad: list[Any] = []

        def first_bad(row: Any) -> str:
            bad.append(row)
            return "error"

        try:
            return pc.read_csv(
                pa.BufferReader(self.text),
                # A row must fit into a block; a column's type is that of all blocks together.
                read_options=pc.ReadOptions(
                    use_threads=threads, block_size=min(len(self.text) + 1, _BLOCK)
                ),
                parse_options=pc.ParseOptions(
                    delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=first_bad
                ),
                convert_options=pc.ConvertOptions(
                    include_columns=names,
                    decimal_point=self.decimal,
                    column_types=dict.fromkeys(textual, pa.string()),
                    null_values=self.missing,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid as error:
            if bad and threads:
                # Rows are counted only when one thread reads them.
                return self._parse(names, textual, threads=False)
            if bad:
                row = bad[0]
                raise ReadError(
                    f"{self.file}: row {row.number} has {row.actual_columns} cells, "
                    f"the header {row.expected_columns}",
                    mend="correct that row (a delimiter inside a cell needs quotes around it)",
                ) from None
            raise ReadError(
                f"{self.file}: cannot be read as CSV ({error})",
                mend="correct the file, or save as Parquet",
            ) from error


def _unprotected(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without the apostrophes that keep a spreadsheet from running a cell."""
    import pyarrow.compute as pc

    if pc.any(pc.match_substring(column, "'")).as_py():
        for written in APOSTROPHES:
            column = pc.replace_substring_regex(column, written, r"\1\2")
    return column


def _are_texts(kind: KindSpec) -> bool:
    """Whether these are an ordinal column's categories, as text: so are its cells, then."""
    return not isinstance(kind, str) and all(isinstance(each, str) for each in kind)


def _numbers_unless_zeros_lead(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """int64 where every present value is a whole number written without leading zeros."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(column)
    if not pc.all(pc.match_substring_regex(trimmed, _WHOLE_NUMBER)).as_py():
        return trimmed
    return pc.replace_substring_regex(trimmed, r"\.0*$", "").cast(pa.int64())


# --- Parquet ------------------------------------------------------------------------


def _from_parquet(file: Path, raw: bytes, wanted: _Wanted) -> Table:
    arrow = parquet_table(file, raw)
    for name in wanted.drop:
        require_name(name, arrow.column_names, "column (named in drop)")
    arrow = arrow.drop_columns(list(wanted.drop))
    notes, noted = _notes(file, arrow)
    id = wanted.id if wanted.id is not None else notes.get("id")
    label = wanted.label if wanted.label is not None else notes.get("label")
    label = None if label in wanted.drop else label
    names = wanted.names(wanted.id, wanted.label)
    for needed in [id, label, *(names or [])]:
        if needed is not None:
            require_name(needed, arrow.column_names, "column")
    if names is not None:
        label = label if label in names else None
        arrow = arrow.select(wanted.names(id, wanted.label))
    if arrow.num_rows == 0:
        raise ReadError(f"{file}: the file has columns but no rows", mend="check how it was made")
    frame, blocks = to_frame(arrow), _blocks(arrow, notes)
    ids = np.arange(len(frame)) if id is None else check_ids(frame.pop(id), id)
    if noted is None:
        return Table(ids, frame, kinds=wanted.kinds, label=label, blocks=blocks)
    schema = _noted(noted, frame, blocks, wanted.kinds)
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


# --- Arrow --------------------------------------------------------------------------


def to_frame(table: pa.Table) -> pd.DataFrame:
    """The scalar columns as a data frame; fixed-size lists (blocks) are left out.

    Decimals become floats. Whole numbers with missing cells become floats, as pandas has it,
    unless a float could not hold them.
    """
    import pyarrow as pa

    exact = [field.name for field in table.schema if _needs_nullable(table, field)]
    columns, names = [], []
    for field in table.schema:
        if pa.types.is_fixed_size_list(field.type):
            continue
        column = table[field.name]
        typname = (field.metadata or {}).get(b"ADBC:postgresql:typname")
        if isinstance(field.type, pa.BaseExtensionType):
            column = column.cast(field.type.storage_type)
        is_number = pa.types.is_decimal(field.type) or typname == b"numeric"
        if is_number or pa.types.is_null(field.type):
            column = column.cast(pa.float64())
        columns.append(column)
        names.append(field.name)
    if not columns:
        return pd.DataFrame(index=pd.RangeIndex(table.num_rows))
    plain = pa.table(columns, names=names)
    pandas_notes = (table.schema.metadata or {}).get(b"pandas")
    if pandas_notes is not None:
        plain = plain.replace_schema_metadata({b"pandas": pandas_notes})
    try:
        frame: pd.DataFrame = plain.to_pandas()
    except (TypeError, ValueError):  # pandas' notes may name types that only their writer knew
        frame = plain.replace_schema_metadata(None).to_pandas()
    for name in exact:
        whole = "UInt64" if pa.types.is_unsigned_integer(plain.schema.field(name).type) else "Int64"
        frame[name] = pd.array(plain[name].to_pylist(), dtype=whole)
    return frame


def _needs_nullable(table: pa.Table, field: pa.Field) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_integer(field.type) or table[field.name].null_count == 0:
        return False
    edges = pc.min_max(table[field.name]).as_py()
    return edges["max"] is not None and max(abs(edges["max"]), abs(edges["min"])) > _EXACT_IN_FLOAT
