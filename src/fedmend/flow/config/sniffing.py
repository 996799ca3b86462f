"""How a CSV file is written: its encoding, delimiter and decimal sign, read off its first lines."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmend.data.writers import unprotected

_BROKEN = (EOFError, zlib.error, csv.Error)
_READ = 1 << 22
_LINES = 200
_FOR_A_SPREADSHEET = re.compile(r"\ufeff?sep=.\s", re.IGNORECASE)
_COMMA_NUMBER = re.compile(r"\s*-?\d+,\d+\s*")
_POINT_NUMBER = re.compile(r"\s*-?\d+\.\d+\s*")
_THOUSANDS = re.compile(r"\s*-?[1-9]\d{0,2}[.,]\d{3}\s*")


@dataclass(frozen=True)
class Written:
    """header: the names of the columns. The rest as a [[party]] of a federation.toml says it.

    blocks: columns that hold an image or tensor a row. id, label: where the file itself says so.
    """

    header: list[str]
    encoding: str = "utf-8"
    delimiter: str = ","
    decimal: str = "."
    blocks: tuple[str, ...] = ()
    id: str | None = None
    label: str | None = None

    @property
    def unusual(self) -> dict[str, str]:
        """What has to be said of the file, as it is not the default."""
        usual = Written([])
        return {
            name: getattr(self, name)
            for name in ("encoding", "delimiter", "decimal")
            if getattr(self, name) != getattr(usual, name)
        }


def looked_at(file: Path) -> Written:
    """The columns of a table and how it is written.

    ValueError where it cannot be read; ReadError, with a mend, of an Excel file.
    """
    name = file.name.lower()
    if name.endswith(".parquet"):
        return _noted(file)
    if name.endswith(".xlsx"):
        from fedmend.data.readers import file_bytes, first_sheet

        return Written(list(first_sheet(file, file_bytes(file)).columns))
    if not name.endswith((".csv", ".csv.gz")):
        raise ValueError(f"unknown kind of file {file.suffix!r}")
    try:
        return _written(file)
    except _BROKEN as error:
        raise ValueError(str(error)) from error


def _noted(file: Path) -> Written:
    """A Parquet file, of which fedmend's own say what is the id and what the label."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fedmend.data.writers import METADATA_KEY

    schema = pq.read_schema(file)
    blocks = tuple(each.name for each in schema if pa.types.is_fixed_size_list(each.type))
    notes = json.loads((schema.metadata or {}).get(METADATA_KEY, b"{}"))
    told = {key: notes.get(key) for key in ("id", "label")}
    return Written(list(schema.names), blocks=blocks, **told)


def _written(file: Path) -> Written:
    with _opened(file) as stream:
        raw = stream.read(_READ)
    encoding = _encoding(raw)
    text = codecs.getincrementaldecoder(_without_mark(encoding))().decode(raw)
    # With their ends, and at these only: a quoted name or cell may go on in the next line.
    lines = list(itertools.islice(io.StringIO(text, newline=""), _LINES + 1))
    if len(raw) == _READ:
        lines = lines[:-1] or lines
    if not any(line.strip() for line in lines):
        raise ValueError("the file is empty")
    if _FOR_A_SPREADSHEET.match(text):
        first = lines[0].rstrip()
        raise ValueError(f"its first line is {first!r}, for a spreadsheet: remove that line")
    delimiter = _delimiter(lines)
    rows = list(csv.reader(lines, delimiter=delimiter))
    header = [unprotected(name) for name in next(row for row in rows if row)]
    return Written(header, encoding, delimiter, _decimal(rows[1:], delimiter))


def csv_lines(file: Path, how: Written) -> Iterator[dict[str, str]]:
    """The rows of a file as dicts by column, one after the other, as far as it can be read."""
    lacking = dict.fromkeys(how.header, "")
    with _opened(file) as stream, contextlib.suppress(*_BROKEN):
        encoding = _without_mark(how.encoding)
        text = io.TextIOWrapper(stream, encoding=encoding, errors="replace", newline="")
        rows = (row for row in csv.reader(text, delimiter=how.delimiter) if row)
        next(rows)  # the header; empty lines may stand before it
        for row in rows:
            yield lacking | dict(zip(how.header, map(unprotected, row), strict=False))


def mostly_alike(headers: Sequence[Sequence[str]]) -> bool:
    """Whether tables have most of their columns in common, be it that some are named otherwise."""
    common = set.intersection(*map(set, headers))
    return len(common) >= 0.5 * max(len(header) for header in headers) and len(common) > 2


def _opened(file: Path) -> Any:
    return gzip.open(file, "rb") if file.name.lower().endswith(".gz") else file.open("rb")


def _encoding(raw: bytes) -> str:
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    try:
        # The last character may be cut in two where only the beginning was read.
        codecs.getincrementaldecoder("utf-8")().decode(raw, final=len(raw) < _READ)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _without_mark(encoding: str) -> str:
    return "utf-8-sig" if encoding == "utf-8" else encoding


def _delimiter(lines: Sequence[str]) -> str:
    """The sign that cuts all lines into equally many cells, the most there are."""
    best, most = ",", 1
    for sign in ",;\t|":
        counts = {len(row) for row in csv.reader(lines, delimiter=sign) if row}
        if len(counts) == 1 and max(counts) > most:
            best, most = sign, max(counts)
    if most == 1:
        # Lines of unequal length: the header decides, and the reader names the line.
        best = max(",;\t|", key=lambda sign: lines[0].count(sign))
    return best


def _decimal(rows: Sequence[Sequence[str]], delimiter: str) -> str:
    cells = [cell for row in rows for cell in row]
    # Of 1.234 and 0,42 in one file the first is a thousand, however many there are of it.
    sure = [cell for cell in cells if not _THOUSANDS.fullmatch(cell)]
    for some in (sure, cells):
        commas = sum(bool(_COMMA_NUMBER.fullmatch(cell)) for cell in some)
        points = sum(bool(_POINT_NUMBER.fullmatch(cell)) for cell in some)
        if commas or points:
            break
    # Between commas a "1,234" in quotes is as likely a thousand.
    return "," if delimiter != "," and commas > points else "."
