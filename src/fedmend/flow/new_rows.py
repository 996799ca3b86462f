"""New rows as the model expects them: read by its own columns, with all that is wrong named.

The kinds of columns come from the party's part of the model (its schema), so that a file of one
row, or one with a column left empty, is read as the training table was.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.encode import UNSEEN, positions
from fedmend.data.readers import read
from fedmend.data.schema import Column, KindSpec, Schema, value_class
from fedmend.data.table import Table
from fedmend.errors import DataError, FedmendWarning
from fedmend.flow.config import PartySettings
from fedmend.flow.config.sniffing import looked_at
from fedmend.flow.reading import csv_form
from fedmend.report.amounts import counted

VALUES_NAMED = 5


def read_rows(path: Path, party: PartySettings, schema: Schema | None) -> Table:
    """The rows of a file; errors name the party."""
    try:
        with _empty_columns_are_fine():
            form = csv_form(party) | {"drop": _to_drop(path, party, schema)}
            head = read(path, id=party.id, **form)
            kinds = _kinds(head.names, party, schema)
            table = read(path, id=party.id, kinds=kinds, **form) if kinds else head
        return _checked(table, party, schema)
    except DataError as error:
        raise error.at(party.name) from error


@contextmanager
def _empty_columns_are_fine() -> Iterator[None]:
    """A column may be empty in a few new rows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "column .* cells are missing", FedmendWarning)
        yield


def _to_drop(path: Path, party: PartySettings, schema: Schema | None) -> list[str]:
    """The columns of a file that are not read: whatever is in them can do no harm."""
    try:
        header = looked_at(path).header
    except (OSError, ValueError):
        return []  # the reader says what is wrong with the file
    if party.id is not None and party.id not in header:
        return [name for name in party.drop if name in header]
    return _unused(header, party, schema)


def _unused(names: Sequence[str], party: PartySettings, schema: Schema | None) -> list[str]:
    """What the model has no use for; columns that nobody expected are noted.

    Labels are what is asked for; where the rows have them all the same, they are no columns.
    """
    expected = [name for name in (party.label, *party.drop) if name is not None and name in names]
    if schema is None:
        return expected
    known = {*schema, *expected, party.id}
    extra = [name for name in names if name not in known]
    if extra:
        _note(party.name, f"the model knows no {_named(extra)}: not used")
    return [*expected, *extra]


def rows_of_records(
    records: Sequence[Mapping[str, Any]], party: PartySettings, schema: Schema | None
) -> Table:
    """Rows given as values by name, as JSON has them."""
    try:
        if not records:
            raise DataError("no rows", mend="give at least one")
        frame = pd.DataFrame([dict(each) for each in records])
        if party.id is not None and party.id not in frame:
            raise DataError("a row has no id", column=party.id, mend="name it in every row")
        frame = frame.drop(columns=_unused([str(name) for name in frame], party, schema))
        kinds = _kinds([str(name) for name in frame if name != party.id], party, schema)
        with _empty_columns_are_fine():
            table = Table.from_frame(frame, id=party.id, kinds=kinds)
        return _checked(table, party, schema)
    except DataError as error:
        raise error.at(party.name) from error


def _kinds(
    names: Sequence[str], party: PartySettings, schema: Schema | None
) -> dict[str, KindSpec]:
    """What the columns are: as the model learnt them, or as the party's settings say."""
    kinds: dict[str, KindSpec] = {
        name: kind for name, kind in (party.kinds or {}).items() if name in names
    }
    for name, column in schema.items() if schema else ():
        if name not in names or column.is_block:
            continue
        kind = _kind(column)
        if kind is None:
            kinds.pop(name, None)
        else:
            kinds[name] = kind
    return kinds


def _kind(column: Column) -> KindSpec | None:
    """What new values of a column are read as; None where they say it themselves."""
    if column.kind == "ordinal" and column.categories:
        return list(column.categories)
    if column.kind == "integer":  # a fraction among whole numbers is a number to every model
        return "continuous"
    if column.kind != "binary":
        return column.kind
    # Two values in training may be more, or one, in new rows.
    told = column.categories or ("",)
    if all(isinstance(each, (bool, np.bool_)) for each in told):
        return None  # read as nominal they would be text
    numbers = all(isinstance(each, (int, float, np.number)) for each in told)
    return "continuous" if numbers else "nominal"


def _checked(table: Table, party: PartySettings, schema: Schema | None) -> Table:
    if schema is None:
        return table
    _lacking(table, schema)
    for name, column in schema.items():
        if not column.is_block and _kind(column) is None:
            _true_or_false(name, table.frame[name])
    _unseen(table, schema, party.name)
    return table


def _lacking(table: Table, schema: Schema) -> None:
    lacking = [name for name in schema if name not in table.names]
    if lacking:
        others = f" (and {len(lacking) - 1} more)" if lacking[1:] else ""
        raise DataError(
            f"the model needs this column and the rows lack it{others}",
            column=lacking[0],
            mend="add it under this name; its cells may be empty",
        )


def _true_or_false(name: str, values: pd.Series) -> None:
    if value_class(name, values) == "text":
        raise DataError(
            "must be true or false, as in training",
            column=name,
            value=values.dropna().iloc[0],
            mend="write TRUE or FALSE, or leave the cell empty",
        )


def _unseen(table: Table, schema: Schema, party: str) -> None:
    """Say which categories the model has never met; it takes them for unknown."""
    for name, column in schema.items():
        if column.is_block or column.is_numeric or not column.categories:
            continue
        at = positions(table.frame[name], column.categories) == UNSEEN
        if at.any():
            values = table.frame[name][at].unique().tolist()
            _note(
                party,
                f"column {name!r} has {_named(values)} in {counted(int(at.sum()), 'row')}, which "
                "the model has never seen: taken for unknown",
            )


def _note(party: str, words: str) -> None:
    warnings.warn(f"party {party!r}: {words}", FedmendWarning, stacklevel=4)


def _named(values: Sequence[Any]) -> str:
    shown = ", ".join(repr(each) for each in values[:VALUES_NAMED])
    return f"{shown} and {len(values) - VALUES_NAMED} more" if len(values) > VALUES_NAMED else shown
