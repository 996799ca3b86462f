"""Spearman's rank correlation between the columns of two parties (FedPSG-PUM, process I).

    found = rank_correlation(fed, "bank", "telco")
    found.matrix            # bank's columns x telco's columns
    found.strengths         # one number per column of telco: how well bank's columns speak of it
    found.order             # telco's columns, strongest first

Default: exact inner products of centred integer ranks, so that the result equals
``scipy.stats.spearmanr``, ties included. ``protocol="published"`` is the paper's own protocol with
its slips: the coordinator sees every difference of ranks, and ties bias the result.

Missing cells drop a row out of the pairs concerned:

``missing="own-ranks"`` (default)
    Every column is ranked once, among its own observed rows; masks, ranks and squared ranks meet
    under encryption, and rho is the correlation of those ranks over the rows complete in the pair
    (``pandas``: ``frame.rank().corr()``). No party learns where the other has gaps.
``missing="pairwise"``
    Ranks are made anew within the complete rows of every pair, as scipy does with
    ``nan_policy="omit"``. Ranks within a pair depend on the other side's gaps, so the two parties
    tell each other *which rows miss a value*: kind ``row``, which a default policy refuses.

Where nothing is missing the two are the same. A column without two different values has no
correlation: NaN, no strength, last in the order.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedmend.errors import AlignmentError, ConfigError, DataError
from fedmend.federation.bound import declare
from fedmend.federation.federation import Crew, Each, Federation
from fedmend.secure.channel import introduce
from fedmend.secure.columns import Columns
from fedmend.secure.inner_product import PRODUCT_WORKERS, Mode, ProductSession
from fedmend.secure.ranks import MAX_CATEGORIES, RankWorker

__all__ = ["RankCorrelation", "rank_correlation"]

logger = logging.getLogger(__name__)

Strength = Literal["max-abs", "mean", "mean-abs"]
Progress = Callable[[str, int, int], None]
LEAST_ROWS = 10


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rho of A's columns (rows) with B's (columns), and what follows from it.

    matrix, p_values: per pair of columns; for a nominal column, of its strongest indicator.
    strengths: per column of B; order: B's columns, strongest first.
    n: aligned rows. counts: rows complete in each pair.
    indicators: rho at the level of indicators (``column#category number``).
    missing: ``none`` where no cell was missing, else how missing cells were handled.
    """

    matrix: pd.DataFrame
    strengths: pd.Series
    p_values: pd.DataFrame
    n: int
    order: list[str]
    counts: pd.DataFrame
    indicators: pd.DataFrame
    missing: str


def rank_correlation(
    fed: Federation,
    a: str,
    b: str,
    *,
    columns_a: Sequence[str] | None = None,
    columns_b: Sequence[str] | None = None,
    protocol: Literal["inner-product", "published"] = "inner-product",
    mode: Mode = "bfv",
    strength: Strength = "max-abs",
    missing: Literal["own-ranks", "pairwise"] = "own-ranks",
    max_categories: int = MAX_CATEGORIES,
    min_rows: int = LEAST_ROWS,
    key_bits: int = 2048,
    progress: Progress | None = None,
) -> RankCorrelation:
    """Spearman's rho between all features of party `a` and all features of party `b`.

    strength: ``max-abs`` (one good predictor is enough), ``mean-abs``, or ``mean`` (published: of
    *signed* rho, in which +0.8 and -0.8 cancel).
    max_categories: a nominal column gives indicators for so many of its most frequent values.
    min_rows: fewer aligned rows are refused, and pairs with fewer complete rows are NaN, because
    a correlation of a handful of rows tells much about each of them.
    """
    _check_options(protocol, mode, strength, missing, max_categories, min_rows)
    run = f"rank-correlation-{secrets.token_hex(8)}"
    names = Each({a: _names(columns_a), b: _names(columns_b)})
    with fed.workers(
        RankWorker, parties=[a, b], run=run, names=names, max_categories=max_categories
    ) as crew:
        try:
            work = _Work(fed, crew, a, b, mode, run, key_bits, progress)
            _check_rows(work, min_rows)
            if protocol == "published":
                rho, counts = _published(work)
            elif missing == "pairwise" and work.gaps:
                rho, counts = _pairwise(work)
            else:
                rho, counts = _own_ranks(work)
        finally:
            crew.forget()
    rho[counts < min_rows] = np.nan
    return _summary(work, rho, counts, strength, missing)


class _Work:
    """What the steps share: both parties' facts, and how a product of theirs is asked for."""

    def __init__(
        self,
        fed: Federation,
        crew: Crew,
        a: str,
        b: str,
        mode: Mode,
        run: str,
        key_bits: int,
        progress: Progress | None,
    ) -> None:
        self.fed, self.crew, self.a, self.b, self.mode, self.run = fed, crew, a, b, mode, run
        self.key_bits, self.progress = key_bits, progress
        facts = crew.describe()
        self.facts_a: dict[str, Any] = facts[a]
        self.facts_b: dict[str, Any] = facts[b]
        self.rows: int = self.facts_a["rows"]

    @property
    def gaps(self) -> bool:
        return any(self.facts_a["patterns"]) or any(self.facts_b["patterns"])

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.facts_a["names"]), len(self.facts_b["names"])

    def columns(self, party: str, key: str) -> Columns:
        """Arrays that the party's RankWorker has left."""
        return Columns(party, "state", {"key": f"{self.run}/{key}"})

    def session(self, party: str, key: str) -> ProductSession:
        other = self.b if party == self.a else self.a
        return ProductSession(
            self.fed,
            self.columns(party, key),
            other,
            mode=self.mode,
            key_bits=self.key_bits,
            progress=self.progress,
        )

    def products(self, party: str, key: str, other_key: str) -> np.ndarray:
        """Exact products of what `party` left under `key` with what the other left."""
        with self.session(party, key) as session:
            values = session.products(self.columns(session.parties[1], other_key))
        return np.asarray(values).astype(object)  # Python integers: the formulas stay exact


# ---------------------------------------------------------------------------------- protocols


def _own_ranks(work: _Work) -> tuple[np.ndarray, np.ndarray]:
    norms = work.crew.own_ranks(work.gaps)
    ab = work.products(work.a, "ranks", "ranks")
    p, q = work.shape
    gaps_a = np.array([bool(at) for at in work.facts_a["patterns"]], dtype=bool)
    gaps_b = np.array([bool(at) for at in work.facts_b["patterns"]], dtype=bool)
    # Over the rows complete in a pair: sums of ranks, of their squares, and the count.
    sum_a, sum_b = _zeros(p, q), _zeros(p, q)
    square_a = np.repeat(_column(norms[work.a]), q, axis=1)
    square_b = np.repeat(_column(norms[work.b]), p, axis=1).T
    counts = np.repeat(_column(work.facts_a["observed"]), q, axis=1)
    counts[:, gaps_b] = np.array(work.facts_b["observed"], dtype=object)[gaps_b][None, :]
    if gaps_b.any():
        met = work.products(work.a, "moments+masks", "masks")
        sum_a[:, gaps_b], square_a[:, gaps_b] = met[:p], met[p : 2 * p]
        counts[np.ix_(gaps_a, gaps_b)] = met[2 * p :]
    if gaps_a.any():
        met = work.products(work.b, "moments", "masks")
        sum_b[gaps_a], square_b[gaps_a] = met[:q].T, met[q:].T
    return _correlations(ab, sum_a, sum_b, square_a, square_b, counts)


def _pairwise(work: _Work) -> tuple[np.ndarray, np.ndarray]:
    a, b = work.a, work.b
    introduce(work.crew)
    boxes = {a: work.crew[a].share_patterns(b), b: work.crew[b].share_patterns(a)}
    work.crew.take_patterns(Each({a: boxes[b], b: boxes[a]}), Each({a: b, b: a}))
    patterns_a = np.array(work.facts_a["patterns"], dtype=int)
    patterns_b = np.array(work.facts_b["patterns"], dtype=int)
    rho, counts = np.full(work.shape, np.nan), np.zeros(work.shape, dtype=np.int64)
    for one in np.unique(patterns_a):
        for other in np.unique(patterns_b):
            at = np.ix_(patterns_a == one, patterns_b == other)
            norms_a = work.crew[a].ranks_within(int(one), int(other))
            norms_b = work.crew[b].ranks_within(int(other), int(one))
            count = work.crew[a].complete_rows(int(one), int(other))
            ab = work.products(a, "ranks", "ranks")
            zero = _zeros(*ab.shape)
            square_a = np.repeat(_column(norms_a), ab.shape[1], axis=1)
            square_b = np.repeat(_column(norms_b), ab.shape[0], axis=1).T
            rho[at], counts[at] = _correlations(
                ab, zero, zero, square_a, square_b, zero + max(1, count)
            )
            counts[at] = count
    return rho, counts


def _published(work: _Work) -> tuple[np.ndarray, np.ndarray]:
    if work.gaps:
        raise DataError(
            "the published protocol has no rule for missing cells",
            mend="protocol='inner-product', or name columns without missing cells",
        )
    norms = work.crew.own_ranks(work.gaps)
    work.mode = "published"
    ab = work.products(work.a, "ranks", "ranks")
    squares = _column(norms[work.a]) + _column(norms[work.b]).T - 2 * ab
    n = work.rows
    # The ranks are doubled, so their squared differences are four times the published ones.
    rho = 1 - 6 * (squares / 4) / (n * (n * n - 1))
    return rho.astype(float), np.full(work.shape, n)


def _correlations(
    ab: np.ndarray,
    sum_a: np.ndarray,
    sum_b: np.ndarray,
    square_a: np.ndarray,
    square_b: np.ndarray,
    counts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Pearson's formula on exact sums; NaN where a column has no two values among the rows."""
    rho = np.full(ab.shape, np.nan)
    for at in np.ndindex(ab.shape):
        n = counts[at]
        above = n * ab[at] - sum_a[at] * sum_b[at]
        below = (n * square_a[at] - sum_a[at] ** 2, n * square_b[at] - sum_b[at] ** 2)
        if min(below) > 0:
            rho[at] = max(-1.0, min(1.0, float(above) / math.sqrt(below[0]) / math.sqrt(below[1])))
    return rho, counts.astype(np.int64)


def _column(values: Sequence[int]) -> np.ndarray:
    return np.array(list(values), dtype=object)[:, None]


def _zeros(rows: int, columns: int) -> np.ndarray:
    return np.zeros((rows, columns), dtype=object)


# ---------------------------------------------------------------------------------- summary


def _summary(
    work: _Work, rho: np.ndarray, counts: np.ndarray, strength: Strength, missing: str
) -> RankCorrelation:
    names = work.facts_a["names"], work.facts_b["names"]
    owners = work.facts_a["owners"], work.facts_b["owners"]
    columns = list(dict.fromkeys(owners[0])), list(dict.fromkeys(owners[1]))
    # First A's indicators, then B's: per block the entry of largest magnitude, with its sign.
    rows, row_at = _strongest(rho, owners[0], columns[0])
    flipped, column_at = _strongest(rows.T, owners[1], columns[1])
    matrix = flipped.T
    chosen = column_at.T  # per pair of columns: the position of B's indicator
    picked = np.take_along_axis(row_at, chosen, axis=1)  # and of A's
    complete = counts[picked, chosen] if counts.size else np.zeros(matrix.shape, dtype=np.int64)
    strengths = _strengths(rows, owners[1], columns[1], strength)
    order = strengths.sort_values(ascending=False, kind="stable", na_position="last")
    logger.info(
        "rank correlation of %s and %s: %d x %d columns, %d rows",
        work.a,
        work.b,
        *matrix.shape,
        work.rows,
    )
    return RankCorrelation(
        matrix=pd.DataFrame(matrix, index=columns[0], columns=columns[1]),
        strengths=strengths,
        p_values=pd.DataFrame(_p_values(matrix, complete), index=columns[0], columns=columns[1]),
        n=work.rows,
        order=[str(name) for name in order.index],
        counts=pd.DataFrame(complete, index=columns[0], columns=columns[1]),
        indicators=pd.DataFrame(rho, index=names[0], columns=names[1]),
        missing=missing if work.gaps else "none",
    )


def _strongest(
    rho: np.ndarray, owners: Sequence[str], columns: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Per column the row of largest magnitude among its indicators, and which one it was."""
    values = np.full((len(columns), rho.shape[1]), np.nan)
    positions = np.zeros((len(columns), rho.shape[1]), dtype=np.int64)
    for at, column in enumerate(columns):
        own = np.array([index for index, owner in enumerate(owners) if owner == column])
        block = rho[own]
        best = np.where(np.isnan(block), -1.0, np.abs(block)).argmax(axis=0)
        positions[at] = own[best]
        values[at] = np.take_along_axis(block, best[None, :], axis=0)[0]
    return values, positions


def _strengths(
    rows: np.ndarray, owners: Sequence[str], columns: Sequence[str], strength: Strength
) -> pd.Series:
    """Per column of B: aggregate over A's columns, then the strongest of its indicators."""
    per_indicator = np.array([_aggregate(column[~np.isnan(column)], strength) for column in rows.T])
    best, _ = _strongest(per_indicator.reshape(-1, 1), owners, columns)
    return pd.Series(best[:, 0], index=list(columns), dtype=float, name=f"strength ({strength})")


def _aggregate(values: np.ndarray, strength: Strength) -> float:
    if not len(values):
        return math.nan
    if strength == "mean":
        return float(values.mean())
    magnitudes = np.abs(values)
    return float(magnitudes.max() if strength == "max-abs" else magnitudes.mean())


def _p_values(rho: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Two-sided, by Student's t with n - 2 degrees of freedom, as scipy's default."""
    from scipy.stats import t as student

    freedom = (counts - 2).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = rho * np.sqrt((freedom / ((rho + 1.0) * (1.0 - rho))).clip(0))
        return np.where(freedom > 0, 2 * student.sf(np.abs(statistic), freedom), np.nan)


# ---------------------------------------------------------------------------------- checks


def _names(columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else list(columns)


def _check_rows(work: _Work, min_rows: int) -> None:
    rows = work.facts_a["rows"], work.facts_b["rows"]
    if rows[0] != rows[1]:
        raise AlignmentError(
            f"{work.a!r} has {rows[0]} aligned rows and {work.b!r} {rows[1]}. Mend: align again"
        )
    if rows[0] < min_rows:
        raise AlignmentError(
            f"{rows[0]} aligned rows are too few for a correlation that tells nothing about "
            f"single rows. Mend: align more rows, or set min_rows (now {min_rows})"
        )


def _check_options(
    protocol: str, mode: str, strength: str, missing: str, max_categories: int, min_rows: int
) -> None:
    admitted = {
        "protocol": (protocol, ("inner-product", "published")),
        "mode": (mode, ("bfv", "dealer", "published", "plain")),
        "strength": (strength, ("max-abs", "mean", "mean-abs")),
        "missing": (missing, ("own-ranks", "pairwise")),
    }
    problems = [
        f"{option} must be one of {', '.join(values)}, got {given!r}"
        for option, (given, values) in admitted.items()
        if given not in values
    ]
    for option, given, least in (
        ("max_categories", max_categories, 2),
        ("min_rows", min_rows, 2),
    ):
        if given < least:
            problems.append(f"{option} must be at least {least}, got {given}")
    if problems:
        raise ConfigError(problems)


declare("correlation", RankWorker, *PRODUCT_WORKERS.values(), providers=["state"], named_only=True)
