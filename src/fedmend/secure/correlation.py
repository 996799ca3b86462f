"""Spearman's rank correlation between the columns of two parties (FedPSG-PUM, process I).

    found = rank_correlation(fed, "bank", "telco")
    found.matrix            # bank's columns x telco's columns
    found.strengths         # one number per column of telco: how well bank's columns speak of it
    found.order             # telco's columns, strongest first

Default: exact inner products of centred integer ranks: for m observed values the average rank r of
each becomes 2r - (m + 1), an integer with mean zero, so that rho is an inner product over two norms
and equals ``scipy.stats.spearmanr``, ties included. Numbers, ordinal and binary columns give one
column of ranks; a nominal column gives one per category (the ranks of its 0/1 indicator).
``protocol="published"`` is the paper's own protocol with its slips: the coordinator sees every
difference of ranks, and ties bias the result.

Missing cells drop a row out of the pairs concerned:

``missing="own-ranks"`` (default)
    Every column is ranked once, among its own observed rows; masks, ranks and squared ranks meet
    under encryption, and rho is the correlation of those ranks over the rows complete in the pair
    (``pandas``: ``frame.rank().corr()``). No party learns where the other has gaps.
``missing="pairwise"``
    Ranks are made anew within the complete rows of every pair, as scipy does with
    ``nan_policy="omit"``. Ranks within a pair depend on the other side's gaps, so the two parties
    tell each other *which rows miss a value*: kind ``row``, which a default policy refuses.

Where nothing is missing the two are the same. The paper has no rule: in its protocol a missing cell
has the middle rank, and all rows count. A column without two different values has no
correlation: NaN, no strength, last in the order.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from fedmend._parameters import Rules, at_least, check_values, one_of
from fedmend.data.schema import numbers
from fedmend.errors import AlignmentError, CryptoError
from fedmend.federation.bound import declare
from fedmend.federation.federation import Each, Federation, WorkerGroup
from fedmend.federation.rows import frequent, varies_in_few
from fedmend.federation.site import Site
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.secure.channel import introduce
from fedmend.secure.columns import (
    Columns,
    ColumnsWorker,
    IntegerColumns,
    Progress,
    category_codes,
    column_provider,
    hold_columns,
    listed,
    stacked,
)
from fedmend.secure.inner_product import PRODUCT_WORKERS, Mode, ProductSession

logger = logging.getLogger(__name__)

Protocol = Literal["inner-product", "published"]
Strength = Literal["max-abs", "mean", "mean-abs"]
Missing = Literal["own-ranks", "pairwise"]
MAX_CATEGORIES = 32
FEWEST_ROWS = 10
RULES: Rules = {
    "protocol": one_of(get_args(Protocol)),
    "mode": one_of(get_args(Mode)),
    "strength": one_of(get_args(Strength)),
    "missing": one_of(get_args(Missing)),
    **dict.fromkeys(("max_categories", "min_rows"), at_least(2)),
}


# ---------------------------------------------------------------------------------- the party


def centred_ranks(values: np.ndarray, present: np.ndarray | None = None) -> np.ndarray:
    """2r - (m + 1) for the m values present (int64); 0 for the others.

    >>> centred_ranks(np.array([10.0, 30.0, 20.0, 20.0]))
    array([-3,  3,  0,  0])
    """
    from scipy.stats import rankdata

    seen = slice(None) if present is None else present
    ranks = np.zeros(len(values), dtype=np.int64)
    doubled = 2 * rankdata(values[seen])  # average ranks end in .0 or .5
    ranks[seen] = doubled.astype(np.int64) - (len(doubled) + 1)
    return ranks


def rank_bounds(rows: int) -> dict[str, int]:
    """The largest centred rank and sum of squares among `rows` rows: those without ties."""
    return {"bound": max(1, rows - 1), "square_sum": max(1, rows * (rows * rows - 1) // 3)}


@dataclass(frozen=True, repr=False)
class Rankable:
    """One column that can be ranked: values by order, where present, and whose it is."""

    name: str
    owner: str
    values: np.ndarray
    present: np.ndarray

    @property
    def whole(self) -> bool:
        return bool(self.present.all())


def rankable_columns(
    worker: ColumnsWorker, names: Sequence[str] | None, max_categories: int
) -> list[Rankable]:
    """The party's scalar features at the aligned rows, nominal ones as indicators."""
    result: list[Rankable] = []
    for name in worker.chosen(names):
        result += _of_column(worker, name, max_categories)
    return [_without_few(column, worker.site.rows.least) for column in result]


def _without_few(column: Rankable, least: int) -> Rankable:
    """A column in which only a few rows differ, or are there, is taken for a constant one."""
    seen = column.values[column.present]
    if len(seen) >= least and not varies_in_few(seen, least):
        return column
    rows = len(column.values)
    return replace(column, values=np.zeros(rows, np.int8), present=np.ones(rows, bool))


def _of_column(worker: ColumnsWorker, name: str, max_categories: int) -> list[Rankable]:
    values, column = worker.aligned_column(name), worker.table.schema[name]
    if not column.is_categorical:
        return [Rankable(name, name, _numbers(values), values.notna().to_numpy())]
    codes = category_codes(values, column)
    known = codes >= 0
    if column.kind != "nominal":
        return [Rankable(name, name, codes, known)]
    enough = frequent(codes, len(column.categories or ()), worker.site.rows.least)
    counts = np.bincount(codes[known], minlength=len(column.categories or ()))
    commonest = sorted(sorted(enough, key=lambda code: -counts[code])[:max_categories])
    return [
        Rankable(f"{name}#{code}", name, (codes == code).astype(np.int8), known)
        for code in commonest
    ]


def _numbers(values: pd.Series) -> np.ndarray:
    # Whole numbers stay whole: as floats, large ones that differ would become ties.
    if pd.api.types.is_integer_dtype(values.dtype) and not values.hasnans:
        unsigned = pd.api.types.is_unsigned_integer_dtype(values.dtype)
        return values.to_numpy(dtype=np.uint64 if unsigned else np.int64)
    return numbers(values)


@column_provider("centred-ranks")
def centred_rank_columns(
    worker: ColumnsWorker,
    names: Sequence[str] | None = None,
    max_categories: int = MAX_CATEGORIES,
) -> IntegerColumns:
    """Centred integer ranks of columns without missing cells, for products of one's own."""
    columns = rankable_columns(worker, names, max_categories)
    for column in columns:
        if not column.whole:
            mend = "fill them, name other columns, or use rank_correlation, which handles them"
            raise worker.wrong(column.owner, "has missing cells", mend)
    rows = len(worker.alignment.aligned)
    values = stacked([centred_ranks(column.values) for column in columns], rows)
    return IntegerColumns(values, tuple(each.name for each in columns), *rank_bounds(rows).values())


class RankWorker(ColumnsWorker):
    """The party's half of `rank_correlation`: leaves integer arrays in the site's state.

    run: a word that sets the arrays of this run apart; they are dropped by `forget`.
    """

    conversation = "rank correlation"

    def __init__(
        self,
        site: Site,
        scope: str = "train",
        *,
        run: str,
        names: Sequence[str] | None = None,
        max_categories: int = MAX_CATEGORIES,
    ) -> None:
        super().__init__(site, scope)
        self._run = run
        self._columns = rankable_columns(self, names, max_categories)
        # The patterns of missing cells that occur; the first one: none is missing.
        whole = np.ones(len(self.alignment.aligned), dtype=bool)
        masks = {each.tobytes(): each for each in (whole, *(c.present for c in self._columns))}
        self._masks = list(masks.values())
        self._patterns = [list(masks).index(each.present.tobytes()) for each in self._columns]
        self._other_masks: list[np.ndarray] = []

    @exposed(kind="count")
    def describe(self) -> dict[str, Any]:
        """Names, the columns they belong to, and their patterns of missing cells (0: none)."""
        return {
            "rows": len(self.alignment.aligned),
            "names": [column.name for column in self._columns],
            "owners": [column.owner for column in self._columns],
            "patterns": self._patterns,
            "observed": [int(column.present.sum()) for column in self._columns],
        }

    @exposed(kind="statistic")
    def own_ranks(self, gaps: bool) -> list[int]:
        """Rank every column among its own observed rows; gives the sums of squares.

        gaps: some column of either party has missing cells, so masks and squares are needed too.
        """
        ranks = self._ranks(self._columns, self._masks[0])
        self._leave("ranks", ranks)
        if gaps:
            gappy = [each.present.astype(np.int64) for each in self._columns if not each.whole]
            masks = stacked(gappy, ranks.shape[1])
            self._leave("masks", masks)
            self._leave("moments", np.concatenate([ranks, ranks * ranks]))
            self._leave("moments+masks", np.concatenate([ranks, ranks * ranks, masks]))
        return _square_sums(ranks)

    @exposed(kind="row")
    def share_patterns(self, to: str) -> Sealed:
        """Which rows miss a value, pattern by pattern, for the other party (sealed)."""
        packed = [np.packbits(mask) for mask in self._masks]
        return self.seal(packed, to=to, kind="row")

    @exposed(kind="control", takes={"sealed": "row"})
    def take_patterns(self, sealed: Sealed, sender: str) -> None:
        rows = len(self.alignment.aligned)
        masks = []
        for packed in self.open(sealed, sender=sender, kind="row"):
            if not isinstance(packed, np.ndarray) or len(packed) != -(-rows // 8):
                raise CryptoError(f"the patterns of {sender!r} are not about {rows} rows")
            masks.append(np.unpackbits(packed, count=rows).astype(bool))
        self._other_masks = masks

    @exposed(kind="statistic")
    def ranks_within(self, own: int, other: int) -> list[int]:
        """Rank the columns of one pattern among rows complete on both sides; sums of squares."""
        if not 0 <= other < len(self._other_masks):
            raise CryptoError(f"there is no pattern {other} of the other party")
        some = zip(self._columns, self._patterns, strict=True)
        ranks = self._ranks([c for c, pattern in some if pattern == own], self._other_masks[other])
        self._leave("ranks", ranks)
        return _square_sums(ranks)

    @exposed(kind="count")
    def complete_rows(self, own: int, other: int) -> int:
        """How many rows have a value under both patterns."""
        return int((self._masks[own] & self._other_masks[other]).sum())

    @exposed(kind="control")
    def forget(self) -> None:
        """Drop the arrays of this run."""
        for key in [key for key in self.site.state if key.startswith(f"{self._run}/")]:
            del self.site.state[key]

    def _ranks(self, columns: Sequence[Rankable], within: np.ndarray) -> np.ndarray:
        rows = [centred_ranks(each.values, each.present & within) for each in columns]
        return stacked(rows, len(within))

    def _leave(self, key: str, values: np.ndarray) -> None:
        """With bounds that follow from the number of rows alone."""
        bounds = rank_bounds(len(self.alignment.aligned))
        if key == "masks":
            bounds = {"bound": 1}
        elif key != "ranks":
            most = bounds["bound"] ** 2
            bounds = {"bound": most, "square_sum": most * bounds["square_sum"]}
        hold_columns(self.site, f"{self._run}/{key}", values, **bounds)


def _square_sums(ranks: np.ndarray) -> list[int]:
    # n (n² - 1) / 3 fits int64 up to n = 3 million, beyond which products are refused anyway.
    return [int(row @ row) for row in ranks]


# ---------------------------------------------------------------------------------- coordinator


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
    protocol: Protocol = "inner-product",
    mode: Mode | None = None,
    strength: Strength = "max-abs",
    missing: Missing = "own-ranks",
    max_categories: int = MAX_CATEGORIES,
    min_rows: int = FEWEST_ROWS,
    key_bits: int = 2048,
    progress: Progress | None = None,
) -> RankCorrelation:
    """Spearman's rho between all features of party `a` and all features of party `b`.

    protocol: ``published`` is the paper's rho, which is biased where there are ties, and without a
    `mode` its messages too; another mode gives the same value. mode: ``bfv`` otherwise.
    strength: ``max-abs`` (one good predictor is enough), ``mean-abs``, or ``mean`` (published: of
    *signed* rho, in which +0.8 and -0.8 cancel).
    max_categories: a nominal column gives indicators for so many of its most frequent values.
    min_rows: fewer aligned rows are refused, and pairs with fewer complete rows are NaN, because
    a correlation of a handful of rows tells much about each of them.
    """
    mode = mode or ("published" if protocol == "published" else "bfv")
    check_values(SimpleNamespace(**locals()), RULES)
    run = f"rank-correlation-{secrets.token_hex(8)}"
    names = Each({a: listed(columns_a), b: listed(columns_b)})
    with fed.workers(
        RankWorker, parties=[a, b], run=run, names=names, max_categories=max_categories
    ) as workers:
        try:
            work = _Work(fed, workers, a, b, mode, run, key_bits, progress, workers.describe())
            _check_rows(work, min_rows)
            if protocol == "published":
                rho, counts = _published(work)
            elif missing == "pairwise" and work.gaps:
                rho, counts = _pairwise(work)
            else:
                rho, counts = _own_ranks(work)
        finally:
            workers.forget()
    rho[counts < min_rows] = np.nan
    rule = "middle-rank" if protocol == "published" else missing
    return _summary(work, rho, counts, strength, rule)


@dataclass
class _Work:
    """What the steps share: both parties' facts, and how a product of theirs is asked for."""

    fed: Federation
    workers: WorkerGroup
    a: str
    b: str
    mode: Mode
    run: str
    key_bits: int
    progress: Progress | None
    facts: dict[str, dict[str, Any]]

    def each(self, fact: str) -> tuple[Any, Any]:
        return self.facts[self.a][fact], self.facts[self.b][fact]

    @property
    def gaps(self) -> bool:
        return any(map(any, self.each("patterns")))

    def products(self, party: str, key: str, other_key: str) -> np.ndarray:
        """Exact products of what `party`'s RankWorker left under `key` with what the other left."""
        fixed, changing = (
            Columns(name, "state", {"key": f"{self.run}/{which}"})
            for name, which in ((party, key), (self.b if party == self.a else self.a, other_key))
        )
        options: dict[str, Any] = {"key_bits": self.key_bits, "progress": self.progress}
        with ProductSession(self.fed, fixed, changing.party, mode=self.mode, **options) as session:
            values = session.products(changing)
        return np.asarray(values).astype(object)  # Python integers: the formulas stay exact


# ---------------------------------------------------------------------------------- protocols


def _own_ranks(work: _Work) -> tuple[np.ndarray, np.ndarray]:
    norms = work.workers.own_ranks(work.gaps)
    ab = work.products(work.a, "ranks", "ranks")
    p, q = ab.shape
    gaps_a, gaps_b = (np.array(patterns, dtype=bool) for patterns in work.each("patterns"))
    observed_a, observed_b = work.each("observed")
    # Over the rows complete in a pair: sums of ranks, of their squares, and the count.
    sum_a, sum_b = _zeros(p, q), _zeros(p, q)
    square_a, square_b = sum_a + _column(norms[work.a]), sum_b + _column(norms[work.b]).T
    counts = _zeros(p, q) + _column(observed_a)
    counts[:, gaps_b] = np.array(observed_b, dtype=object)[gaps_b]
    if gaps_b.any():
        met = work.products(work.a, "moments+masks", "masks")
        sum_a[:, gaps_b], square_a[:, gaps_b] = met[:p], met[p : 2 * p]
        counts[np.ix_(gaps_a, gaps_b)] = met[2 * p :]
    if gaps_a.any():
        met = work.products(work.b, "moments", "masks")
        sum_b[gaps_a], square_b[gaps_a] = met[:q].T, met[q:].T
    return _correlations(ab, sum_a, sum_b, square_a, square_b, counts), counts.astype(np.int64)


def _pairwise(work: _Work) -> tuple[np.ndarray, np.ndarray]:
    a, b = work.a, work.b
    introduce(work.workers)
    messages = {a: work.workers[a].share_patterns(b), b: work.workers[b].share_patterns(a)}
    work.workers.take_patterns(Each({a: messages[b], b: messages[a]}), Each({a: b, b: a}))
    patterns_a, patterns_b = (np.array(patterns, dtype=int) for patterns in work.each("patterns"))
    rho = np.full((len(patterns_a), len(patterns_b)), np.nan)
    counts = np.zeros(rho.shape, dtype=np.int64)
    for one in np.unique(patterns_a):
        for other in np.unique(patterns_b):
            at = np.ix_(patterns_a == one, patterns_b == other)
            square_a = _column(work.workers[a].ranks_within(int(one), int(other)))
            square_b = _column(work.workers[b].ranks_within(int(other), int(one))).T
            counts[at] = count = work.workers[a].complete_rows(int(one), int(other))
            ab = work.products(a, "ranks", "ranks")
            zero = _zeros(*ab.shape)
            rho[at] = _correlations(
                ab, zero, zero, zero + square_a, zero + square_b, zero + max(1, count)
            )
    return rho, counts


def _published(work: _Work) -> tuple[np.ndarray, np.ndarray]:
    norms = work.workers.own_ranks(False)
    ab = work.products(work.a, "ranks", "ranks")
    squares = _column(norms[work.a]) + _column(norms[work.b]).T - 2 * ab
    n = work.each("rows")[0]
    # The ranks are doubled, so their squared differences are four times the published ones.
    rho = 1 - 6 * (squares / 4) / (n * (n * n - 1))
    return rho.astype(float), np.full(ab.shape, n)


def _correlations(
    ab: np.ndarray,
    sum_a: np.ndarray,
    sum_b: np.ndarray,
    square_a: np.ndarray,
    square_b: np.ndarray,
    counts: np.ndarray,
) -> np.ndarray:
    """Pearson's formula on exact sums; NaN where a column has no two values among the rows."""
    above = counts * ab - sum_a * sum_b
    below = counts * square_a - sum_a**2, counts * square_b - sum_b**2
    varies = (below[0] > 0) & (below[1] > 0)
    rho = np.full(ab.shape, np.nan)
    # To floats only now: the sums were exact.
    norms = [np.sqrt(each[varies].astype(float)) for each in below]
    rho[varies] = (above[varies].astype(float) / norms[0] / norms[1]).clip(-1.0, 1.0)
    return rho


def _column(values: Sequence[int]) -> np.ndarray:
    return np.array(list(values), dtype=object)[:, None]


def _zeros(rows: int, columns: int) -> np.ndarray:
    return np.zeros((rows, columns), dtype=object)


# ---------------------------------------------------------------------------------- summary


def _summary(
    work: _Work, rho: np.ndarray, counts: np.ndarray, strength: Strength, missing: str
) -> RankCorrelation:
    names, owners = work.each("names"), work.each("owners")
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
    rows_used = work.each("rows")[0]
    logger.info(
        "rank correlation of %s and %s: %s columns, %d rows", work.a, work.b, rho.shape, rows_used
    )
    return RankCorrelation(
        matrix=pd.DataFrame(matrix, *columns),
        strengths=strengths,
        p_values=pd.DataFrame(_p_values(matrix, complete), *columns),
        n=rows_used,
        order=[str(name) for name in order.index],
        counts=pd.DataFrame(complete, *columns),
        indicators=pd.DataFrame(rho, *names),
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


def _check_rows(work: _Work, min_rows: int) -> None:
    rows = work.each("rows")
    if rows[0] != rows[1]:
        raise AlignmentError(
            f"{work.a!r} has {rows[0]} aligned rows and {work.b!r} {rows[1]}. Mend: align again"
        )
    if rows[0] < min_rows:
        raise AlignmentError(
            f"{rows[0]} aligned rows are too few for a correlation that tells nothing about "
            f"single rows. Mend: align more rows, or set min_rows (now {min_rows})"
        )


declare("correlation", RankWorker, *PRODUCT_WORKERS, providers=["state"], named_only=True)
