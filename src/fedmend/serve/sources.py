"""Where a party takes the columns of people it is asked about: from its own source, by their ids.

A table in memory (a file, or the party's table); a parameterised query; an address of its own. Who
the people are that can be asked about is read once, when the service starts.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.schema import Schema
from fedmend.data.sql import query_rows
from fedmend.data.table import Excerpt, Table
from fedmend.deploy.party_file import PartyFile
from fedmend.errors import DataError, Refused
from fedmend.flow.config import PartySettings
from fedmend.flow.config.references import look_up
from fedmend.flow.new_rows import read_rows, rows_of_records
from fedmend.flow.reading import File, read_party
from fedmend.secure.identifiers import RULES, normalised

MAX_ANSWER_BYTES = 64_000_000
URL_SECONDS = 10.0
DAY = 86_400.0
FEW = 32
"""Ids that are looked up one by one: making an index of them would take longer."""


class People:
    """Everybody whose columns this party can give, in memory.

    normalise: the rule of the alignment, by which they are found by their ids here too.
    """

    def __init__(self, table: Table, party: str = "", normalise: str = "exact") -> None:
        self.table = table
        self._rule = None if normalise == "exact" else RULES[normalise]
        keys = table.ids
        if self._rule is not None:
            keys = np.array(normalised(table.ids, normalise, party), dtype=object)
        self._index = pd.Index(keys)

    @property
    def ids(self) -> np.ndarray:
        return self.table.ids

    def keys(self, ids: list[Any]) -> list[Any]:
        """The same of one person, however its id is written."""
        return ids if self._rule is None else [self._rule(each) for each in ids]

    def places(self, ids: list[Any]) -> np.ndarray:
        """Where these ids stand, -1 where nobody is called so."""
        keys = self.keys(ids)
        if len(keys) <= FEW:
            return np.array([self._place(each) for each in keys], np.int64)
        try:
            return np.asarray(self._index.get_indexer(pd.Index(keys)))
        except TypeError:  # ids of another type than all of ours
            return np.full(len(ids), -1)

    def _place(self, each: Any) -> int:
        try:
            return int(self._index.get_loc(each))
        except (KeyError, TypeError):
            return -1

    def rows(self, places: np.ndarray) -> tuple[Table, np.ndarray]:
        """The rows of people at these places, and which of them could not be had."""
        return Excerpt(self.table, places), np.zeros(0, np.int64)


class OnDemand(People):
    """Columns that are looked up when somebody is asked about: by a query, or at an address."""

    def __init__(self, table: Table, file: PartyFile, schema: Schema) -> None:
        super().__init__(table.select([]), file.name, file.serve.normalise)
        self._file, self._schema = file, schema

    def rows(self, places: np.ndarray) -> tuple[Table, np.ndarray]:
        ids = self.ids[places].tolist()
        try:
            found = self._asked(ids)
        except (DataError, OSError, ValueError) as error:
            raise Refused(
                self._file.name,
                f"its own source of columns does not answer ({type(error).__name__})",
                "its log says more",
            ) from error
        by_id = {row[self._file.id]: row for row in found}
        lacking = [at for at, each in enumerate(ids) if each not in by_id]
        empty = dict.fromkeys(self._schema)
        records = [by_id.get(each, empty) | {self._file.id: each} for each in ids]
        return rows_of_records(records, self._file, self._schema), np.array(lacking, np.int64)

    def _asked(self, ids: list[Any]) -> list[dict[Any, Any]]:
        how = self._file.serve
        if how.sql is not None:
            place = look_up(str(self._file.uri), "uri")
            with place.as_written():
                return query_rows(how.sql, ids, uri=place.text)
        body = json.dumps({"ids": ids}).encode()
        asked = urllib.request.Request(
            str(how.url), body, {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(asked, timeout=URL_SECONDS) as answer:
            content = json.loads(answer.read(MAX_ANSWER_BYTES))
        rows = content.get("rows") if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"{how.url} did not answer with rows")
        return [row for row in rows if self._file.id in row]


def people_of(place: File, party: PartySettings, schema: Schema | None) -> Table:
    """The columns of everybody in a party's table, as the model knows them; no labels."""
    if party.data is None:
        return read_party(place, party)[0].features
    where = look_up(party.data, "data")
    with where.as_written():
        return read_rows(place.at(where.text), party, schema)


def source_of(file: PartyFile, schema: Schema | None) -> People:
    """The source that a party's [serve] names."""
    how = file.serve
    if how.rows is not None:
        table = read_rows(file.at(how.rows), file, schema)
        return People(table, file.name, how.normalise)
    people = people_of(file, file, schema)
    if schema is not None and (how.sql is not None or how.url is not None):
        return OnDemand(people, file, schema)
    return People(people, file.name, how.normalise)


class Quota:
    """How often each person may be asked about by somebody in a day; None is as often as asked."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._day = 0
        self._asked: Counter[tuple[str, Any]] = Counter()

    def over(self, asker: str, people: list[Any]) -> list[Any]:
        """Those of these people that this asker gets nothing about today; the others count."""
        if self.most is None:
            return []
        today = int(time.time() // DAY)
        if today != self._day:
            self._day = today
            self._asked.clear()
        over = [each for each in people if self._asked[asker, each] >= self.most]
        refused = set(over)
        self._asked.update((asker, each) for each in people if each not in refused)
        return over
