"""Tables, column kinds, files, encoders, torn scenarios and named data sets."""

from __future__ import annotations

from fedmend.data.schema import KINDS, Column, Kind, Schema, infer_column
from fedmend.data.table import Table

__all__ = ["KINDS", "Column", "Kind", "Schema", "Table", "infer_column"]
