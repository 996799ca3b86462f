"""``fedmend check``: every problem of a federation's tables, found before anything is trained.

Each table is read on its own. That the parties share rows is looked at here only because whoever
runs `check` has all the files at hand; a run finds it out by private set intersection.
"""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING

from fedmend.data.table import Table
from fedmend.errors import DataError, FedmendError, FedmendWarning
from fedmend.reading import read_party
from fedmend.secure.identifiers import RULES, describe_ids

if TYPE_CHECKING:
    from fedmend.config import Config, PartySettings

__all__ = ["Findings", "check_data"]


class Findings:
    """Problems stop a run; notes do not."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.tables: dict[str, Table] = {}


def check_data(config: Config) -> Findings:
    """Read every table of a federation.toml, and list what is wrong with them."""
    found = Findings()
    for party in config.party:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FedmendWarning)
            _check_party(config, party, found)
        found.notes += [
            f"party {party.name!r}: {each.message}"
            for each in caught
            if issubclass(each.category, FedmendWarning)
        ]
    if len(found.tables) == len(config.party):
        _check_overlap(config, found)
    _check_device(config, found)
    return found


def _check_party(config: Config, party: PartySettings, found: Findings) -> None:
    try:
        train, test = read_party(config, party)
    except FedmendError as error:
        found.problems.append(str(error))
        return
    found.tables[party.name] = train
    if not train.feature_names:
        found.notes.append(f"party {party.name!r} has no columns besides id and label")
    if party.label is not None:
        _check_label(train, party.name, found)
    if test is not None:
        _check_same_columns(train, test, party.name, found)


def _check_label(table: Table, party: str, found: Findings) -> None:
    from fedmend.data.labels import LabelEncoder

    assert table.label is not None
    try:
        LabelEncoder().fit(table.y, table.schema[table.label], party=party)
    except DataError as error:
        found.problems.append(str(error.at(party)))


def _check_same_columns(train: Table, test: Table, party: str, found: Findings) -> None:
    absent = [name for name in train.names if name not in test.names]
    if absent:
        error = DataError(
            "the test table lacks this column of the training table",
            party=party,
            column=", ".join(absent[:5]),
            mend="give both tables the same columns",
        )
        found.problems.append(str(error))


def _check_overlap(config: Config, found: Findings) -> None:
    if config.align.mode == "same-order":
        sizes = {name: len(table) for name, table in found.tables.items()}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{name} {rows:,}" for name, rows in sizes.items())
            found.problems.append(
                f'align.mode = "same-order", but the tables differ in their rows: {told}. '
                'Mend: mode = "ecdh"'
            )
        return
    rule = config.align.normalise
    ids = {
        name: {RULES[rule](each) for each in table.ids.tolist()}
        for name, table in found.tables.items()
    }
    for one, two in itertools.combinations(ids, 2):
        if not ids[one] & ids[two]:
            styles = " and ".join(describe_ids(found.tables[name].ids) for name in (one, two))
            found.problems.append(
                f"parties {one!r} and {two!r} share no id ({styles}; compared as "
                f"align.normalise = {rule!r} says). Mend: name the columns that hold the same ids"
                + (', or normalise = "text"' if rule == "exact" else "")
            )


def _check_device(config: Config, found: Findings) -> None:
    if config.run.device == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        found.problems.append(
            f"run.device = {config.run.device!r}, but there is no such device here. "
            'Mend: device = "cpu"'
        )
