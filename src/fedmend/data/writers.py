"""Tables to CSV and Parquet files, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedmend._files import beside
from fedmend.data.spreadsheets import write_frame
from fedmend.errors import DataError

if TYPE_CHECKING:
    from fedmend.data.table import Table

__all__ = ["METADATA_KEY", "write_csv", "write_parquet"]

METADATA_KEY = b"fedmend"


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

    arrow = pa.Table.from_pandas(_with_ids(table, id), preserve_index=False)
    for name, values in table.blocks.items():
        size = int(np.prod(values.shape[1:]))
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        arrow = arrow.append_column(name, pa.FixedSizeListArray.from_arrays(flat, size))
    notes: dict[str, Any] = {"id": id, "label": table.label, "schema": table.schema.to_dict()}
    metadata = dict(arrow.schema.metadata or {}) | {METADATA_KEY: json.dumps(notes).encode()}
    with _atomic(path) as unfinished:
        pq.write_table(arrow.replace_schema_metadata(metadata), unfinished, compression="zstd")


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
