"""The parties of a federation.toml: their tables read, and test rows set aside by their ids."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedmend.data import read, read_sql
from fedmend.data.encode import NUMBERS, LabelEncoder
from fedmend.data.readers import MISSING_MARKS
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, FedmendWarning, ReadError
from fedmend.federation import Party
from fedmend.flow.config import Config, PartySettings
from fedmend.flow.config.references import look_up
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
        if one_truth(config) and settings.label is not None and test.label is not None:
            require_known_classes(train, test, settings.name)
        policy = settings.policy.build()
        parties.append(Party(settings.name, train, policy=policy, test=test))
    return parties


def read_party(config: File, party: PartySettings) -> tuple[Table, Table | None]:
    """A party's table, and its test table where it has one; errors and warnings name the party."""
    try:
        with warnings_of(party.name):
            train = _read(config, party, party.data, party.sql, party.label)
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


def require_known_classes(train: Table, test: Table, party: str) -> None:
    """No class may have all of its labels among the test rows."""
    assert train.label is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedmendWarning)  # `check` and the training say it
        encoder = LabelEncoder().fit(train.y, train.schema[train.label], party=party)
    if encoder.task == "regression":
        return
    counts = test.y.value_counts()
    unseen = [each for each in counts.index.tolist() if each not in encoder.classes_]
    if unseen:
        rest = f" (and {len(unseen) - 1} more classes)" if len(unseen) > 1 else ""
        raise DataError(
            f"all labels of this class are among the test rows{rest}, so that it cannot be learnt",
            party=party,
            column=train.label,
            value=unseen[0],
            mend="leave the labels of rare classes empty, join them with another class, or give "
            "every party a test table",
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
