"""Errors as they travel: what a pipe between processes or a copy makes of them."""

from __future__ import annotations

import copy
from multiprocessing import Pipe

import pytest

from fedmend import errors
from fedmend.errors import (
    AlignmentError,
    ConfigError,
    CryptoError,
    DataError,
    FedmendError,
    MissingExtra,
    NotFitted,
    PartyAbsent,
    PartyFailed,
    ReadError,
    Refused,
    ResumeError,
    TooFewCommon,
    TooFewRows,
    WireError,
)

EXAMPLES: list[FedmendError] = [
    FedmendError("something"),
    DataError("is empty", party="bank", column="age", value=-1, mend="fill it"),
    ReadError("no such file", mend="name another"),
    ConfigError(["epochs is 0", "seed is 'x'"], source="federation.toml"),
    AlignmentError("no common ids. Mend: align(fed)"),
    Refused("telco", "rows do not leave", "ask for a sum"),
    TooFewCommon("telco", "the intersection has 3 rows", "find more"),
    TooFewRows("telco", "a mean would rest on fewer than 5 of its rows", "ask about more"),
    WireError("cut off"),
    PartyFailed("bank", "Rank.sums", ValueError("nan")),
    PartyAbsent("bank", "it was killed", "Rank.sums"),
    CryptoError("altered"),
    NotFitted("fit first"),
    ResumeError("another run's"),
    MissingExtra("tenseal", "he", "encryption"),
]


def test_there_is_an_example_of_every_error() -> None:
    named = {getattr(errors, name) for name in errors.__all__}
    assert {kind for kind in named if issubclass(kind, FedmendError)} == set(map(type, EXAMPLES))


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_at_the_other_end(error: FedmendError) -> None:
    error.add_note("also: telco")
    here, there = Pipe()
    here.send(error)
    for found in (there.recv(), copy.copy(error)):
        assert type(found) is type(error)
        assert str(found) == str(error)
        assert vars(found) == vars(error)
        assert found.exit_code == error.exit_code
