"""CSV bytes to an Arrow table, with an error of its own for each way they can be wrong."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend.data._parts import require_name
from fedmend.data.spreadsheets import APOSTROPHES, unprotected
from fedmend.errors import DataError, ReadError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["parse_csv"]

_CHUNK = 1 << 20
_BLOCK = 1 << 26
_WHOLE_NUMBER = r"^-?(0|[1-9][0-9]{0,17})(\.0*)?$"


def parse_csv(
    file: Path,
    raw: bytes,
    id: str | None,
    label: str | None,
    wanted: list[str] | None,
    drop: Collection[str],
    as_text: Collection[str],
    encoding: str,
    delimiter: str,
    decimal: str,
    missing: list[str],
) -> pa.Table:
    """The wanted columns; the id column as int64 or string, leading zeros kept."""
    import pyarrow as pa

    text = _utf8(file, _unpacked(file, raw), encoding)
    if not text.strip():
        raise ReadError(f"{file}: the file is empty", mend="check how it was made")
    written = _header(file, text, delimiter)
    header = [unprotected(name) for name in written]
    for dropped in drop:
        _require(dropped, header, "column (named in drop)", delimiter)
    names = [name for name in (header if wanted is None else wanted) if name not in drop]
    for what, name in (("id column", id), ("label column", label)):
        if name is not None:
            _require(name, header, what, delimiter)
    for name in names:
        _require(name, header, "column", delimiter)
    _check_header(header, names)
    textual = {name for name in names if name == id or name in as_text}
    as_written = dict(zip(header, written, strict=True))
    table = _parse(
        file,
        text,
        [as_written[name] for name in names],
        {as_written[name] for name in textual},
        delimiter,
        decimal,
        missing,
    ).rename_columns(names)
    if table.num_rows == 0:
        raise ReadError(f"{file}: the file has a header but no rows", mend="check how it was made")
    for place, name in enumerate(names):
        if pa.types.is_string(table.schema.types[place]):
            table = table.set_column(place, name, _unprotected(table[name]))
        if name in textual:
            table = table.set_column(place, name, _numbers_unless_zeros_lead(table[name]))
    binary = [field.name for field in table.schema if pa.types.is_binary(field.type)]
    if binary:
        raise ReadError(f"{file}: bytes instead of text", column=binary[0], mend="set encoding=")
    return table


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


def _header(file: Path, text: bytes, delimiter: str) -> list[str]:
    lines = io.TextIOWrapper(io.BytesIO(text), encoding="utf-8-sig", newline="")
    try:
        return next(row for row in csv.reader(lines, delimiter=delimiter) if row)
    except (csv.Error, StopIteration, TypeError) as error:
        raise ReadError(
            f"{file}: the header cannot be read ({error})",
            mend="check the delimiter (one character) and the quotes of the first line",
        ) from None


def _require(name: str, header: list[str], what: str, delimiter: str) -> None:
    other = next((c for c in ";\t|," if len(header) == 1 and c in header[0]), None)
    if other is not None and other != delimiter and name not in header:
        raise DataError(
            f"there is no such {what}; the header is one cell that holds {other!r}",
            column=name,
            mend=f"read it with delimiter={other!r}",
        )
    require_name(name, header, what)


def _check_header(header: list[str], names: list[str]) -> None:
    for name in names:
        if not name:
            raise DataError(
                f"column {header.index(name) + 1} has no name (pandas writes its row index so, and "
                "a delimiter at the end of each line makes one)",
                mend="name it, or leave it out: drop = ['']",
            )
        if header.count(name) > 1:
            raise DataError("two columns have this name", column=name, mend="rename one of them")


def _parse(
    file: Path,
    text: bytes,
    names: list[str],
    textual: Collection[str],
    delimiter: str,
    decimal: str,
    missing: list[str],
    *,
    threads: bool = True,
) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv as pc

    bad: list[Any] = []

    def first_bad(row: Any) -> str:
        bad.append(row)
        return "error"

    try:
        return pc.read_csv(
            pa.BufferReader(text),
            # A row must fit into a block; a column's type is that of all blocks together.
            read_options=pc.ReadOptions(use_threads=threads, block_size=min(len(text) + 1, _BLOCK)),
            parse_options=pc.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=first_bad
            ),
            convert_options=pc.ConvertOptions(
                include_columns=names,
                decimal_point=decimal,
                column_types=dict.fromkeys(textual, pa.string()),
                null_values=missing,
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        if bad and threads:
            # Rows are counted only when one thread reads them.
            form = (file, text, names, textual, delimiter, decimal, missing)
            return _parse(*form, threads=False)
        if bad:
            row = bad[0]
            raise ReadError(
                f"{file}: row {row.number} has {row.actual_columns} cells, "
                f"the header {row.expected_columns}",
                mend="correct that row (a delimiter inside a cell needs quotes around the cell)",
            ) from None
        raise ReadError(
            f"{file}: cannot be read as CSV ({error})", mend="correct the file, or save as Parquet"
        ) from error


def _unprotected(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without the apostrophes that keep a spreadsheet from running a cell."""
    import pyarrow.compute as pc

    if pc.any(pc.match_substring(column, "'")).as_py():
        for written in APOSTROPHES:
            column = pc.replace_substring_regex(column, written, r"\1\2")
    return column


def _numbers_unless_zeros_lead(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """int64 where every present value is a whole number written without leading zeros."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(column)
    if not pc.all(pc.match_substring_regex(trimmed, _WHOLE_NUMBER)).as_py():
        return trimmed
    return pc.replace_substring_regex(trimmed, r"\.0*$", "").cast(pa.int64())
