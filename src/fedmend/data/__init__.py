"""Tables, column kinds, files, encoders, torn scenarios and named data sets."""

from __future__ import annotations

from fedmend.data import datasets, scenario
from fedmend.data.encode import Encoded, Encoder, LabelEncoder
from fedmend.data.readers import read
from fedmend.data.schema import KINDS, Column, Kind, Schema, infer_column
from fedmend.data.sql import read_sql
from fedmend.data.table import Table

__all__ = [
    "KINDS",
    "Column",
    "Encoded",
    "Encoder",
    "Kind",
    "LabelEncoder",
    "Schema",
    "Table",
    "datasets",
    "infer_column",
    "read",
    "read_sql",
    "scenario",
]
