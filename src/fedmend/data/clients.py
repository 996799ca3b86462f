"""Clients with the same columns and different people: few labels, and classes unevenly spread.

Labelled and unlabelled rows are dealt out separately, so that classes are uneven across clients
*and* inside each of them (SAGE, §5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data._parts import blanked, retyped
from fedmend.data.crowds import dirichlet_clients
from fedmend.data.table import Table
from fedmend.errors import DataError

__all__ = ["ClientRows", "client_names", "client_rows", "labelled_rows", "split_clients"]


@dataclass(frozen=True)
class ClientRows:
    """One client's rows, as positions in the table they came from."""

    labelled: np.ndarray
    unlabelled: np.ndarray

    @property
    def all(self) -> np.ndarray:
        return np.concatenate([self.labelled, self.unlabelled])


def client_names(n_clients: int) -> list[str]:
    """``client-01`` …, as wide as their number needs."""
    width = max(2, len(str(n_clients)))
    return [f"client-{number:0{width}d}" for number in range(1, n_clients + 1)]


def labelled_rows(y: Any, labelled: float | int, *, seed: int = 0) -> np.ndarray:
    """Rows that keep their label, the same number of each class.

    ``labelled``: so many rows of each class if a whole number, else that share of each class (at
    least one row). Rows without a label are never among them.
    """
    values = pd.Series(y).reset_index(drop=True)
    whole = isinstance(labelled, (int, np.integer)) and not isinstance(labelled, bool)
    if labelled <= 0 or (not whole and labelled > 1):
        raise DataError(
            "labelled must be a whole number of rows per class, or a share of them",
            value=labelled,
            mend="e.g. 500, or 0.1",
        )
    rng = np.random.default_rng([seed, 5])
    found = []
    for value in sorted(
        values.dropna().unique().tolist(), key=lambda each: (str(type(each)), each)
    ):
        rows = rng.permutation(np.flatnonzero((values == value).fillna(False).to_numpy(bool)))
        count = int(labelled) if whole else max(1, round(float(labelled) * len(rows)))
        if count > len(rows):
            raise DataError(
                f"class {value!r} has {len(rows)} rows, fewer than {count}",
                value=labelled,
                mend="ask for fewer rows per class, or for a share",
            )
        found.append(rows[:count])
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def client_rows(
    y: Any,
    n_clients: int,
    alpha: float | None,
    *,
    labelled: float | int = 0.1,
    style: str = "plain",
    seed: int = 0,
) -> list[ClientRows]:
    """Which rows every client has, with and without label.

    ``alpha``: the smaller, the more uneven the classes; None deals rows out evenly. ``style``:
    ``plain`` or ``paired`` (the split of SAGE's authors; see :func:`dirichlet_clients`).
    """
    values = pd.Series(y).reset_index(drop=True)
    kept = labelled_rows(values, labelled, seed=seed)
    rest = np.setdiff1d(np.arange(len(values)), kept)
    codes = pd.factorize(values)[0]
    pools = []
    for number, pool in enumerate((kept, rest)):
        if alpha is None:
            order = np.random.default_rng([seed, 6, number]).permutation(len(pool))
            parts = np.array_split(order, n_clients)
        else:
            parts = dirichlet_clients(
                codes[pool], n_clients, alpha, seed=_derived(seed, number), style=style
            )
        pools.append([pool[part] for part in parts])
    return [ClientRows(one, other) for one, other in zip(*pools, strict=True)]


def split_clients(
    table: Table,
    clients: int | Sequence[str],
    *,
    alpha: float | None = 0.5,
    labelled: float | int = 0.1,
    style: str = "plain",
    seed: int = 0,
) -> dict[str, Table]:
    """One table dealt out by rows: each client has all columns, and few of its rows a label.

    The people of one client are unknown to all others. See :func:`client_rows`.
    """
    names = client_names(clients) if isinstance(clients, int) else list(clients)
    if len(set(names)) != len(names) or not names:
        raise DataError("clients must have different names", value=names, mend="e.g. 5, or a list")
    if table.label is None:
        raise DataError("the table has no label to deal out", mend="table.with_label(column)")
    parts = client_rows(table.y, len(names), alpha, labelled=labelled, style=style, seed=seed)
    return {
        name: _with_few_labels(table.take(part.all), len(part.labelled))
        for name, part in zip(names, parts, strict=True)
    }


def _with_few_labels(table: Table, first: int) -> Table:
    """The table with labels on its first rows only."""
    lost = np.arange(table.n_rows) >= first
    frame = table.frame.copy()
    frame[table.label] = blanked(frame[table.label], lost)
    schema = retyped(table.schema, frame)
    return Table._trusted(table.ids, schema, table.label, frame, table.blocks)


def _derived(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, 7, number]).generate_state(1)[0])
