"""The parties of a federation.toml: their tables read, and test rows set aside by their ids."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedmend.data import read, read_sql
from fedmend.data.encode import NUMBERS, LabelEncoder
from fedmend.data.readers import MISSING_MARKS
from fedmend.data.schema import check_type
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, FedmendWarning, ReadError
from fedmend.federation import Party
from fedmend.flow.config import Config, PartySettings
from fedmend.flow.config.references import look_up
from fedmend.flow.config.settings import WEIGHTS
from fedmend.secure.identifiers import RULES

# Whoever has more than this wrong has the wrong file.
PROBLEMS_OF_A_TABLE = 20
_KIND_OF_LABEL = {"binary": "binary", "multiclass": "nominal"} | dict.fromkeys(
    NUMBERS, "continuous"
)


class File(Protocol):
    """The file in which a party stands: its paths are relative to it."""

    def at(self, path: str) -> Path: ...

    @property
    def labellers(self) -> list[str]: ...


def read_parties(config: Config) -> list[Party]:
    """Every party with its training and its test table."""
    parties = []
    for settings in config.party:
        if settings.data is None and settings.sql is None:
            raise ConfigError(
                f"party[{settings.name}] has no table here. Mend: --engine flare asks the parties, "
                'or add data = "file.csv"',
                source=str(config.source),
            )
        train, test = read_party(config, settings)
        if test is None:
            train, test = set_aside(config, train)
        else:
            for problem in problems_of_test(config, settings, train, test):
                raise problem
        if one_truth(config) and settings.label is not None and test.label is not None:
            require_known_classes(train, test, settings)
        policy = settings.policy.build()
        parties.append(Party(settings.name, train, policy=policy, test=test))
    if config.horizontal:
        parts = [{each.name: each.tables[part] for each in parties} for part in ("train", "test")]
        for problem in classes_of_tests_alone(config, *parts):
            raise problem
    return parties


def read_party(config: File, party: PartySettings) -> tuple[Table, Table | None]:
    """A party's table, and its test table where it has one; errors and warnings name the party."""
    try:
        with warnings_of(party.name):
            if party.label is not None:  # of an empty label there is more to say than of a column
                empty = rf"column {re.escape(repr(party.label))}: all .* cells are missing"
                warnings.filterwarnings("ignore", empty, FedmendWarning)
            train = _read(config, party, party.data, party.sql, party.label)
            if party.label is not None and train.y.isna().all():
                alone = config.labellers == [party.name]
                more = "" if alone else " and learns from those of others"
                warnings.warn(
                    f"label {party.label!r}: all {len(train):,} cells are empty, so that this "
                    f"party has no labels{more}. Mend, if it has some: name their column",
                    FedmendWarning,
                    stacklevel=2,
                )
            test = None
            if party.has_test:
                # Where several label, their labels may be missing at test time.
                needed = party.label if len(config.labellers) == 1 else None
                test = _read(config, party, party.test, party.test_sql, needed)
                if needed is None and party.label in test.names:
                    test = test.with_label(party.label)
    except DataError as error:
        raise error.at(party.name) from error
    return train, test


@contextmanager
def warnings_of(party: str) -> Iterator[None]:
    """Fedmend's warnings of what is done here name the party."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        if issubclass(each.category, FedmendWarning):
            message = str(each.message)
            told = message if f"party {party!r}" in message else f"party {party!r}, {message}"
            warnings.warn(told, each.category, stacklevel=4)
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def all_problems(config: File, party: PartySettings) -> list[DataError]:
    """Everything that is wrong with a party's table: it is read on without what was named."""
    found: list[DataError] = []
    named: set[str] = set()
    for _ in range(2 * PROBLEMS_OF_A_TABLE):
        try:
            read_party(config, party)
            break
        except DataError as error:
            name = error.column
            if name not in named:
                found.append(error)
            if name is None or isinstance(error, ReadError) or len(found) == PROBLEMS_OF_A_TABLE:
                break
            if name == party.id and party.sql is not None:
                break
            named.add(name)
            party = _without(party, name)
    return found


def _without(party: PartySettings, name: str) -> PartySettings:
    """The party as if it had not named this column; dropped, or no longer if it is not there."""
    absent = name in party.drop
    return party.model_copy(
        update={
            "drop": [each for each in party.drop if each != name] + ([] if absent else [name]),
            "id": None if name == party.id else party.id,
            "label": None if name == party.label else party.label,
            "kinds": {each: kind for each, kind in party.kinds.items() if each != name},
        }
    )


def _read(
    config: File, party: PartySettings, data: str | None, sql: str | None, label: str | None
) -> Table:
    kinds = dict(party.kinds)
    if party.task is not None and label is not None:
        # Whoever looks at the table alone takes the label for what the file says it is.
        kinds.setdefault(label, _KIND_OF_LABEL[party.task])
    how: dict[str, Any] = {"id": party.id, "label": label, "kinds": kinds, "drop": party.drop}
    if data is not None:
        file = look_up(data, "data" if data == party.data else "test")
        with file.as_written():
            return read(config.at(file.text), **how, **csv_form(party))
    if party.id is None:
        raise DataError("a query needs an id column", mend='add id = "column" to the party')
    assert sql is not None and party.uri is not None
    address = look_up(party.uri, "uri")
    uri = address.text
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        uri = f"sqlite:///{config.at(uri.removeprefix('sqlite:///')).resolve()}"
    with address.as_written():
        return read_sql(sql, uri=uri, **how)


def csv_form(party: PartySettings) -> dict[str, Any]:
    """How a party's CSV files are written, for the reader."""
    form = {"encoding": party.encoding, "delimiter": party.delimiter, "decimal": party.decimal}
    if party.missing is None:
        return form
    # What stands for nothing besides the usual; an empty list says that nothing but nothing does.
    usual = MISSING_MARKS if party.missing else ("",)
    return {**form, "missing": [*usual, *(each for mark in party.missing for each in _spelt(mark))]}


def _spelt(mark: str) -> list[str]:
    """A mark of empty cells; a whole number as columns with fractions write it, too."""
    whole = mark.lstrip("-").isdecimal()
    return [mark, *(mark + rest for rest in (".0", ".00", ",0", ",00"))] if whole else [mark]


def set_aside(config: Config, table: Table) -> tuple[Table, Table]:
    """Training and test rows of a party that has no test table."""
    return split_by_id(table, config.test_share, config.run.all_seeds[0])


def one_truth(config: Config) -> bool:
    """Whether one party's classes are all there are: nobody else labels, nothing is a number."""
    numbers = any(method.params.get("task") in NUMBERS for method in config.method)
    return len(config.labellers) == 1 and not config.horizontal and not numbers


def problems_of_test(
    config: Config, party: PartySettings, train: Table, test: Table
) -> Iterator[DataError]:
    """What is wrong with a test table of a party's own, beside its training table."""
    weights = {str(each.params[WEIGHTS]) for each in config.method if WEIGHTS in each.params}
    # Where several label, nobody needs to label the test rows but the reference.
    spared = weights | {party.label if len(config.labellers) > 1 else None}
    absent = [each for each in train.names if each not in test.names and each not in spared]
    if absent:
        yield DataError(
            "the test table lacks this column of the training table",
            party=party.name,
            column=", ".join(absent[:5]),
            mend="give both tables the same columns",
        )
    yield from _other_types(party, train, test)
    if party.label is None or "evaluate" in config.run.leave_out:
        return
    alone = config.labellers == [party.name]
    if alone and test.label is not None and test.y.isna().all():
        yield DataError(
            f"there are no test labels: none of the {len(test):,} rows of the test table has one",
            party=party.name,
            column=party.label,
            mend="fill this column of the test table, leave test out, so that a share of the rows "
            'is set aside, or run.leave_out = ["evaluate"]',
        )
    _, same, rows = seen_in_training(config, party, train, test)
    if 2 * same > rows:
        yield DataError(
            f"{same:,} of its {rows:,} labelled test rows are its training rows, with the same ids "
            "and cells: their scores would say nothing about new rows",
            party=party.name,
            mend="give the test table rows that are not in the training table, or leave test out "
            "at every party, so that a share of the rows is set aside",
        )


def _other_types(party: PartySettings, train: Table, test: Table) -> Iterator[DataError]:
    """Columns whose test values no model of the training table could read."""
    for name, column in train.schema.items():
        if name in test.frame and name != train.label and not column.is_block:
            try:
                check_type(column, test.frame[name], later=True)
            except DataError as error:
                error.problem += " in the test table"
                error.mend = "correct this cell of the test table, or empty it"
                yield error.at(party.name)


def seen_in_training(
    config: Config, party: PartySettings, train: Table, test: Table
) -> tuple[int, int, int]:
    """How many labelled test rows have the ids of labelled training rows, how many of these have
    the same cells, too, and how many labelled test rows there are.

    The same people at a later time are a fair test; the same rows are none. Clients with the same
    columns may number the rows of each file from 0 on, so there only the same rows count.
    """
    if train.label is None or test.label is None or party.id is None:
        return 0, 0, 0
    test = test.take(test.y.notna().to_numpy())
    rule = RULES[config.align.normalise]
    known = np.flatnonzero(train.y.notna().to_numpy())
    place = {rule(train.ids[at]): at for at in known.tolist()}
    where = [place.get(rule(each), -1) for each in test.ids.tolist()]
    asked = [at for at, found in enumerate(where) if found >= 0]
    columns = [name for name in train.frame.columns if name in test.frame.columns]
    one, two = (
        frame[columns].iloc[rows].astype(object).reset_index(drop=True)
        for frame, rows in ((train.frame, [where[at] for at in asked]), (test.frame, asked))
    )
    same = int((one.eq(two) | (one.isna() & two.isna())).all(axis=1).sum())
    return (same if config.horizontal else len(asked)), same, len(test)


def require_known_classes(train: Table, test: Table, settings: PartySettings) -> None:
    """No class may be among the test rows alone."""
    assert train.label is not None
    party = settings.name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedmendWarning)  # `check` and the training say it
        encoder = LabelEncoder().fit(train.y, train.schema[train.label], party=party)
    if encoder.task == "regression":
        return
    counts = test.y.value_counts()
    unseen = [each for each in counts.index.tolist() if each not in encoder.classes_]
    if unseen:
        rest = f" (and {len(unseen) - 1} more classes)" if len(unseen) > 1 else ""
        if settings.has_test:
            known = ", ".join(repr(each) for each in encoder.classes_[:5])
            raise DataError(
                f"labels of the test table that no training row has; those have {known}",
                party=party,
                column=train.label,
                value=unseen[0] if len(unseen) == 1 else unseen[:5],
                mend="write the classes alike in both tables, give the training table rows of "
                "these, or leave these test labels empty",
            )
        raise DataError(
            f"all labels of this class are among the test rows{rest}, so that it cannot be learnt",
            party=party,
            column=train.label,
            value=unseen[0],
            mend="leave the labels of rare classes empty, join them with another class, or give "
            "every party a test table",
        )


def classes_of_tests_alone(
    config: Config, train: Mapping[str, Table], test: Mapping[str, Table]
) -> Iterator[DataError]:
    """Classes that no client has a training row of, though some client has test rows."""
    known = {each for table in train.values() if table.label for each in table.y.dropna().unique()}
    for party in config.party:
        if party.name in test and test[party.name].label is not None:
            found = test[party.name].y.dropna().unique().tolist()
            unseen = [each for each in found if each not in known]
            if known and unseen:
                yield DataError(
                    "all labels of this class are among the test rows"
                    + (f" (and {len(unseen) - 1} more classes)" if len(unseen) > 1 else "")
                    + ", so that no client can learn it",
                    party=party.name,
                    column=party.label,
                    value=unseen[0],
                    mend="leave the labels of rare classes empty, join them with another class, or "
                    "give every party a test table"
                    if not party.has_test
                    else "write the classes alike at all parties, or leave these test labels empty",
                )


def split_by_id(table: Table, share: float, seed: int) -> tuple[Table, Table]:
    """Training and test rows, decided by each id alone.

    Every party takes the same people aside without a word to the others, because the same id
    falls on the same side everywhere, however it is written.
    """
    plainest = RULES["number"]
    marks = [
        hashlib.blake2b(plainest(each), digest_size=8, key=b"test rows %d" % seed).digest()
        for each in table.ids.tolist()
    ]
    aside = np.array([int.from_bytes(mark, "big") < share * 2**64 for mark in marks], dtype=bool)
    return table.take(~aside), table.take(aside)
