"""What the tests of protocols share: small federations, ears at the coordinator, uniformity."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare

from fedmend.data.table import Table
from fedmend.errors import CryptoError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party

NAMES = ("bank", "telco", "shop", "clinic")


def people(start: int, stop: int) -> list[str]:
    return [f"person {number:05d}" for number in range(start, stop)]


def with_ids(*lists, policies=None, **options) -> Federation:
    """Parties with these ids (or tables), not aligned."""
    tables = [
        ids
        if isinstance(ids, Table)
        else Table(
            np.asarray(ids, object) if len(ids) else np.empty(0, object), {"x": range(len(ids))}
        )
        for ids in lists
    ]
    named = zip(NAMES, tables, strict=False)
    parties = (Party(name, table, policy=(policies or {}).get(name)) for name, table in named)
    return Federation(*parties, strict=True, **options)


def aligned(
    left, right, *, names=("a", "b"), policy=None, kinds=(None, None), label=None, rows=None
):
    """Two tables of the same people, the right one stored backwards; arrays are numeric columns."""
    n, frames, kinds = len(left), [], list(kinds)
    for at, (side, prefix) in enumerate(((left, "x"), (right, "y"))):
        if not isinstance(side, pd.DataFrame):
            side = pd.DataFrame(np.asarray(side)).rename(columns=f"{prefix}{{}}".format)
            if side.dtypes.map(lambda dtype: dtype.kind).eq("f").any():
                kinds[at] = dict.fromkeys(side, "continuous")
        frames.append(side)
    tables = [
        Table(np.arange(n), frames[0], kinds=kinds[0], label=label),
        Table(np.arange(n), frames[1].iloc[::-1].reset_index(drop=True), kinds=kinds[1]),
    ]
    fed = Federation(
        *(Party(name, each, policy=policy) for name, each in zip(names, tables, strict=True)),
        strict=True,
    )
    order = np.arange(n) if rows is None else np.asarray(rows)
    for name, positions in zip(names, (order, n - 1 - order), strict=True):
        fed.engine.sites[name].alignments["train"] = Alignment(positions, np.array([], int))
    fed.note_alignment(AlignmentCounts(len(order), dict.fromkeys(names, n - len(order))))
    return fed


def overheard(fed: Federation) -> list[tuple]:
    """Every (sender, receiver, call, kind, value) that crosses from now on, as it passes."""
    seen, cross = [], fed.engine._cross

    def spy(*crossing):
        seen.append(crossing[:5])
        return cross(*crossing)

    fed.engine._cross = spy
    return seen


def leaves(value) -> Iterator:
    """All that is in nested lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        yield value
        return
    for each in value:
        yield from leaves(each)


def assert_uniform(values, bits=None) -> None:
    """The top and the bottom byte of words of so many bits (by default all that they have)."""
    flat = np.asarray(values).reshape(-1)
    bits = bits or 8 * flat.dtype.itemsize
    words = flat.astype(np.uint64)
    for byte in (words & np.uint64(255), words >> np.uint64(bits - 8)):
        counts = np.bincount(byte.astype(np.int64), minlength=256)
        assert len(counts) == 256 and chisquare(counts).pvalue > 1e-6


@contextmanager
def unread(cause: str, party: str = "", sender: str = "") -> Iterator[None]:
    """A message that is refused for `cause`, of which the error itself says nothing."""
    with pytest.raises(CryptoError) as caught:
        yield
    said = re.fullmatch(
        r"party '(\w+)' could not read a message from '(\w+)'; the cause is in its own log\. "
        r"Mend: start the protocol anew; if it happens again, look at who carries the messages",
        str(caught.value),
    )
    assert said is not None, str(caught.value)
    assert party in ("", said[1]) and sender in ("", said[2])
    assert re.search(cause, str(caught.value.__cause__))
