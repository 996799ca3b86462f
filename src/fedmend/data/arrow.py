"""Arrow tables as data frames, with whole numbers kept exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["to_frame"]

_EXACT_IN_FLOAT = 2**53


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
    frame: pd.DataFrame = plain.to_pandas()
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
