"""Tables to CSV and Parquet files, written whole or not at all.

Whoever opens a CSV file in a spreadsheet must find no cell taken for a formula. Ids, classes and
names of columns are somebody's text, and a spreadsheet runs ``=cmd|…`` as soon as the file is
opened. A text that it would take for a formula gets an apostrophe in front, one that is a number
stays a number. Another locale's spreadsheet begins a new cell at ``;`` or a tab, which quotes do
not hinder behind the first cell, so the same holds behind those. `read` takes exactly these
apostrophes off again: fedmend's own files come back as they were. Parquet needs none.

    >>> [protected(text) for text in ("=1+1", "-5", "-5 to 0", "'=x", "a;=x", "plain")]
    ["'=1+1", '-5', "'-5 to 0", "''=x", "a;'=x", 'plain']
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedmend._files import beside
from fedmend.errors import DataError

if TYPE_CHECKING:
    from fedmend.data.table import Table

METADATA_KEY = b"fedmend"

# The wide forms are taken for the four signs where text is written in Chinese or Japanese.
_SIGNS = "=+@＝＋－＠-"
_CUTS = r";|\t\r\n"
APOSTROPHES = (r"(^)'('* *[\t\r\n])", rf"(^|[{_CUTS}])'('* *[{_SIGNS}])")
"""What `protected` put in, without which the two groups remain; in the words of RE2, too."""

_FORMULA = re.compile(rf"(?:^|(?<=[{_CUTS}]))(?='* *[{_SIGNS}])|^(?='* *[\t\r\n])")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:[.,][0-9]+)*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?")


def protected(text: str) -> str:
    """A cell or a column's name as it is written."""
    is_number = _NUMBER.fullmatch(text) is not None
    # Behind a cut even a number gets one: what follows it there is the rest of the line.
    return _FORMULA.sub(lambda at: "" if not at.start() and is_number else "'", text)


def unprotected(text: str) -> str:
    """The text that `protected` wrote."""
    if "'" in text:
        for written in APOSTROPHES:
            text = re.sub(written, r"\1\2", text)
    return text


def write_frame(frame: pd.DataFrame, path: Any, **form: Any) -> None:
    """Write a frame without its index; `form` is that of `DataFrame.to_csv`."""
    columns = [_protected_column(frame.iloc[:, at]) for at in range(frame.shape[1])]
    names = [protected(str(name)) for name in frame.columns]
    texts = [text for column in columns for text in column.unique() if isinstance(text, str)]
    # pandas leaves a lone CR unquoted, at which readers begin a line.
    loose = any("\r" in text for text in (*names, *texts))
    safe = frame.iloc[:, :0].assign(**{str(at): column for at, column in enumerate(columns)})
    form["quoting"] = csv.QUOTE_NONNUMERIC if loose else csv.QUOTE_MINIMAL
    safe.to_csv(path, index=False, header=names, **form)


def _protected_column(column: pd.Series) -> pd.Series:
    words = {text: protected(text) for text in column.unique() if isinstance(text, str)}
    if all(text == word for text, word in words.items()):
        return column
    return column.astype(object).map(lambda cell: words.get(cell, cell))


def write_csv(table: Table, path: str | Path, id: str) -> None:
    """Ids first, then the columns in order; missing cells are empty, formulas disarmed."""
    if table.blocks:
        raise DataError(
            "image and tensor blocks have no place in CSV",
            column=next(iter(table.blocks)),
            mend="use to_parquet, or numpy.savez(path, **table.blocks) beside the other columns",
        )
    frame = _with_ids(table, id)
    # By the name of the file itself: that of the unfinished one says nothing. No date goes in.
    packed: Any = {"method": "gzip", "mtime": 0} if str(path).lower().endswith(".gz") else None
    with _atomic(path) as unfinished:
        write_frame(frame, unfinished, compression=packed)


def write_parquet(table: Table, path: str | Path, id: str) -> None:
    """Ids, columns and blocks (as fixed-size lists), with schema and label as metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = _with_ids(table, id)
    try:
        arrow = pa.Table.from_pandas(frame, preserve_index=False)
    except OverflowError:
        raise DataError(
            "Parquet has no whole numbers beyond 64 bits",
            column=str(next(name for name in frame if any(map(_beyond_64_bits, frame[name])))),
            mend="use to_csv, or make the column text or floats",
        ) from None
    for name, values in table.blocks.items():
        size = int(np.prod(values.shape[1:]))
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        arrow = arrow.append_column(name, pa.FixedSizeListArray.from_arrays(flat, size))
    notes: dict[str, Any] = {"id": id, "label": table.label, "schema": table.schema.to_dict()}
    metadata = dict(arrow.schema.metadata or {}) | {METADATA_KEY: json.dumps(notes).encode()}
    with _atomic(path) as unfinished:
        pq.write_table(arrow.replace_schema_metadata(metadata), unfinished, compression="zstd")


def _beyond_64_bits(cell: Any) -> bool:
    return isinstance(cell, int) and not -(2**63) <= cell < 2**64


def _with_ids(table: Table, id: str) -> pd.DataFrame:
    if id in table.names:
        raise DataError(
            "a column has the name meant for the ids",
            column=id,
            mend="give another name: to_csv(path, id=...) or to_parquet(path, id=...)",
        )
    return pd.concat([pd.Series(table.ids, name=id), table.frame], axis=1)


@contextmanager
def _atomic(path: str | Path) -> Iterator[str]:
    try:
        with beside(path) as unfinished:
            yield str(unfinished)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error})",
            mend="check that the folder is there, may be written to, and has room",
        ) from error
