"""Annotators who err, and clients with the same columns, different people and uneven classes.

Labelled and unlabelled rows are dealt out to clients separately, so that classes are uneven across
clients *and* inside each of them (SAGE, §5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.table import Table, blanked
from fedmend.errors import DataError

_MOST_DRAWS = 1000


def annotators(
    y: Any,
    *,
    rates: Sequence[float | Sequence[float]] | None = None,
    kind: str = "symmetric",
    transition: Any = None,
    missing: float = 0.0,
    n_classes: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """What each of K annotators says about each row; -1 where one gave no answer.

    ``rates`` holds each annotator's error rate. ``symmetric``: any wrong class is as likely;
    ``pair-flip``: class c is mistaken for c+1 (the last for the first); ``asymmetric``: the
    rate differs by class, and each class has its own likely confusions, both drawn around
    the annotator's rate (a rate per class may be given instead of one). ``transition``
    replaces both: a matrix C x C of P(said | true), or one for each annotator, K x C x C.
    Rows whose ``y`` is -1 get no answers; ``missing`` is the share of further answers not given.

    **Shape**: y [n] class numbers from 0, result [n, K] int64.
    """
    truth = np.asarray(y)
    if truth.ndim != 1 or truth.dtype.kind not in "iu":
        raise DataError(
            f"class numbers are needed, not {truth.dtype} of shape {truth.shape}",
            mend="LabelEncoder().fit(table.y, table.schema[table.label]).transform(table.y)",
        )
    truth = truth.astype(np.int64)
    classes = n_classes if n_classes is not None else int(truth.max(initial=-1)) + 1
    if classes < 2 or (truth >= classes).any() or (truth < -1).any():
        raise DataError(
            f"class numbers must lie in -1..{classes - 1} with at least two classes",
            value=int(truth.max(initial=-1)),
            mend="number the classes from 0 and give n_classes",
        )
    if not 0 <= missing <= 1:
        raise DataError("missing must be a share between 0 and 1", value=missing, mend="e.g. 0.3")
    rng = np.random.default_rng(seed)
    if transition is not None:
        matrices = _given(transition, rates, classes)
    elif rates is not None:
        matrices = transitions(rates, classes, kind=kind, rng=rng)
    else:
        raise DataError("neither rates nor a transition is given", mend="e.g. rates=[0.1, 0.3]")
    said = np.full((len(truth), len(matrices)), -1, dtype=np.int64)
    known = np.flatnonzero(truth >= 0)
    for annotator, matrix in enumerate(matrices):
        up_to = matrix.cumsum(axis=1)[truth[known]]
        draw = rng.random((len(known), 1))
        said[known, annotator] = np.minimum((draw >= up_to).sum(axis=1), classes - 1)
        silent = rng.random(len(known)) < missing
        said[known[silent], annotator] = -1
    return said


def transitions(
    rates: Sequence[float | Sequence[float]],
    n_classes: int,
    *,
    kind: str = "symmetric",
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """P(said | true) of every annotator. **Shape**: [K, C, C], rows sum to 1."""
    if kind not in ("symmetric", "pair-flip", "asymmetric"):
        raise DataError(
            f"unknown kind of annotator {kind!r}", mend="use symmetric, pair-flip or asymmetric"
        )
    drawn = rng if rng is not None else np.random.default_rng(0)
    result = np.zeros((len(rates), n_classes, n_classes))
    for annotator, rate in enumerate(rates):
        per_class = _rates_per_class(rate, n_classes, kind, drawn)
        wrong = np.ones((n_classes, n_classes)) / (n_classes - 1)
        if kind == "pair-flip":
            wrong = np.roll(np.eye(n_classes), 1, axis=1)
        elif kind == "asymmetric" and n_classes > 2:
            wrong = drawn.dirichlet(np.ones(n_classes - 1), size=n_classes)
            wrong = np.stack([np.insert(row, c, 0.0) for c, row in enumerate(wrong)])
        result[annotator] = per_class[:, None] * wrong
        np.fill_diagonal(result[annotator], 1.0 - per_class)
    return result


def _rates_per_class(
    rate: float | Sequence[float], n_classes: int, kind: str, rng: np.random.Generator
) -> np.ndarray:
    given = np.asarray(rate, dtype=np.float64)
    if given.shape not in ((), (n_classes,)) or not ((given >= 0) & (given <= 1)).all():
        raise DataError(
            f"an error rate must be a number between 0 and 1, or one for each of {n_classes} "
            "classes",
            value=rate,
            mend="e.g. rates=[0.1, 0.3] or, per class, rates=[[0.1, 0.4, 0.2]]",
        )
    if given.shape == () and kind == "asymmetric":
        # between half and one and a half times the rate, the mean over classes being the rate
        spread = rng.uniform(0.5, 1.5, size=n_classes)
        return np.minimum(given * spread / spread.mean(), 1.0)
    return np.broadcast_to(given, (n_classes,)).copy()


def _given(transition: Any, rates: Any, classes: int) -> np.ndarray:
    matrices = np.asarray(transition, dtype=np.float64)
    if matrices.ndim == 2:
        count = len(rates) if rates is not None else 1
        matrices = np.repeat(matrices[None], count, axis=0)
    good_shape = matrices.ndim == 3 and matrices.shape[1:] == (classes, classes)
    if not good_shape or (matrices < 0).any() or not np.allclose(matrices.sum(axis=2), 1.0):
        raise DataError(
            f"a transition must be {classes} x {classes} (or K of them), not negative, rows "
            "summing to 1",
            value=tuple(matrices.shape),
            mend="row c holds the probabilities of what is said when the truth is c",
        )
    return matrices


def dirichlet_clients(
    y: Any,
    n_clients: int,
    alpha: float,
    *,
    seed: int = 0,
    min_rows: int = 1,
    style: str = "plain",
) -> list[np.ndarray]:
    """Rows dealt to clients with uneven classes; every row goes to one client.

    ``plain``: for each class, the clients' shares are drawn from Dirichlet(alpha), and all is
    drawn again until every client has ``min_rows``. ``paired`` (the split of SAGE's authors,
    milder): the shuffled rows are cut into n/2 chunks, each shared by two clients with
    Dirichlet shares per class, neither below half the mean size; the lists are then joined and
    cut again into equal parts.
    """
    labels = np.asarray(y)
    if n_clients < 1 or alpha <= 0 or n_clients * max(min_rows, 0) > len(labels):
        raise DataError(
            f"{len(labels)} rows cannot be dealt to {n_clients} clients of at least {min_rows} "
            f"with alpha {alpha}",
            mend="use at least one client, alpha > 0, and fewer clients or a smaller min_rows",
        )
    rng = np.random.default_rng(seed)
    if style == "plain":
        return _plain_clients(labels, n_clients, alpha, rng, min_rows)
    if style == "paired":
        return _paired_clients(labels, n_clients, alpha, rng)
    raise DataError(f"unknown style {style!r}", mend="use 'plain' or 'paired'")


def _plain_clients(
    labels: np.ndarray, n_clients: int, alpha: float, rng: np.random.Generator, min_rows: int
) -> list[np.ndarray]:
    members = [np.flatnonzero(labels == value) for value in np.unique(labels)]
    for _ in range(_MOST_DRAWS):
        parts: list[list[np.ndarray]] = [[] for _ in range(n_clients)]
        for rows in members:
            shares = rng.dirichlet(np.full(n_clients, alpha))
            cuts = np.round(shares.cumsum()[:-1] * len(rows)).astype(int)
            for client, piece in enumerate(np.split(rng.permutation(rows), cuts)):
                parts[client].append(piece)
        if min(sum(map(len, pieces)) for pieces in parts) >= min_rows:
            return [rng.permutation(np.concatenate(pieces)) for pieces in parts]
    raise DataError(
        f"no draw in {_MOST_DRAWS} gave every one of {n_clients} clients {min_rows} rows at "
        f"alpha {alpha}",
        mend="use a larger alpha, a smaller min_rows or fewer clients",
    )


def _paired_clients(
    labels: np.ndarray, n_clients: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    if n_clients % 2:
        raise DataError(
            "the paired style needs an even number of clients",
            value=n_clients,
            mend="use an even number, or style='plain'",
        )
    lists: list[np.ndarray] = []
    for chunk in np.array_split(rng.permutation(len(labels)), n_clients // 2):
        lists += _share_chunk(labels, chunk, alpha, rng)
    return np.array_split(np.concatenate(lists), n_clients)


def _share_chunk(
    labels: np.ndarray, chunk: np.ndarray, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """Two clients' rows of one chunk; one that has reached the mean size gets no more."""
    mean_size = len(chunk) / 2
    for _ in range(_MOST_DRAWS):
        pair: list[list[np.ndarray]] = [[], []]
        for value in np.unique(labels[chunk]):
            rows = rng.permutation(chunk[labels[chunk] == value])
            room = np.array([sum(map(len, side)) < mean_size for side in pair], dtype=float)
            shares = rng.dirichlet([alpha, alpha]) * room
            shares = shares / shares.sum() if shares.sum() > 0 else np.array([0.5, 0.5])
            cut = int(shares[0] * len(rows))
            pair[0].append(rows[:cut])
            pair[1].append(rows[cut:])
        sides = [np.concatenate(side) for side in pair]
        if min(map(len, sides)) >= mean_size / 2:
            return sides
    raise DataError(
        f"no draw in {_MOST_DRAWS} gave both clients of a chunk half the mean size at "
        f"alpha {alpha}",
        mend="use a larger alpha or style='plain'",
    )


# --- clients with few labels --------------------------------------------------------


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
            drawn = int(np.random.SeedSequence([seed, 7, number]).generate_state(1)[0])
            parts = dirichlet_clients(codes[pool], n_clients, alpha, seed=drawn, style=style)
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
        name: blanked(
            table.take(part.all), [table.label], np.arange(len(part.all)) >= len(part.labelled)
        )
        for name, part in zip(names, parts, strict=True)
    }
