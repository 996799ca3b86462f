"""Real columns as integers, and covariances from exact integer products with a stated bound.

A column is standardised at its party (mean 0, deviation 1 over the aligned rows), multiplied by
2^bits and rounded. The products are exact, so rounding is the only error. With d = 2^-(bits+1)
the error of one cell, and sum |z| <= n for a standardised column, a sum of n products is off by at
most n (2 d + d^2), whatever the data; a covariance by that times both deviations over n - ddof.

Standardising also makes the bounds public: |z| <= sqrt(n) and sum z^2 = n need no look at the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedmend.data.encode import as_numbers
from fedmend.data.schema import NUMERIC
from fedmend.errors import ConfigError, DataError
from fedmend.federation.bound import declare
from fedmend.federation.federation import Each, Federation
from fedmend.federation.rows import varies_in_few
from fedmend.federation.site import Site
from fedmend.federation.worker import exposed
from fedmend.secure.columns import (
    Columns,
    ColumnsWorker,
    IntegerColumns,
    Progress,
    column_provider,
    listed,
)
from fedmend.secure.inner_product import LIMIT_BITS, Mode, ProductSession

MAX_BITS = 30
Missing = Literal["refuse", "mean"]


def encode(values: np.ndarray, bits: int) -> np.ndarray:
    """round(value * 2^bits) as int64; each cell is off by 2^-(bits+1) at most.

    >>> encode(np.array([0.5, -0.3]), 4)
    array([ 8, -5])
    """
    if not 0 <= bits <= MAX_BITS:
        raise ConfigError(f"bits must lie in 0 … {MAX_BITS}, got {bits}")
    scaled = np.rint(np.asarray(values, dtype=np.float64) * float(1 << bits))
    if not np.isfinite(scaled).all() or (scaled.size and np.abs(scaled).max() >= 2.0**62):
        raise DataError(
            f"a value has no fixed-point form with {bits} bits",
            mend="standardise the column, use fewer bits, or drop infinite values",
        )
    return scaled.astype(np.int64)


def product_error(rows: int, bits: int) -> float:
    """Bound on the error of a sum of `rows` products of two standardised columns."""
    cell = 0.5 ** (bits + 1)
    # Standardising and rescaling in float64 adds a few units in the last place of each term.
    return rows * (2 * cell + cell * cell + 64 * np.finfo(float).eps)


def standard_bounds(rows: int, bits: int) -> tuple[int, int]:
    """Largest magnitude and sum of squares of an encoded standardised column."""
    scale = 1 << bits
    # ||round(s z)|| <= s ||z|| + sqrt(n) / 2 with ||z||^2 = n; a little room for float64.
    square_sum = math.ceil(rows * (scale + 0.5) ** 2 * (1 + 1e-9)) + 1
    return math.isqrt(square_sum) + 1, square_sum


def fitting_bits(rows: int, mode: str) -> int:
    """The most bits with which products of `rows` rows stay within the mode's limit."""
    for bits in range(MAX_BITS, -1, -1):
        if standard_bounds(rows, bits)[1].bit_length() <= LIMIT_BITS[mode]:
            return bits
    raise DataError(f"{rows} rows are too many for mode {mode!r}", mend="use mode='dealer'")


# ---------------------------------------------------------------------------------- the party


@dataclass(frozen=True, repr=False)
class _Standardised:
    """Columns with mean 0 and deviation 1, or all zero where they are constant: [p, n]."""

    values: np.ndarray
    names: tuple[str, ...]
    means: np.ndarray
    deviations: np.ndarray


def standardised(
    worker: ColumnsWorker, names: Sequence[str] | None, missing: Missing
) -> _Standardised:
    """Numeric, ordinal and binary columns at the aligned rows (ordinal and binary as codes)."""
    chosen = worker.chosen(names, *NUMERIC, "ordinal", "binary")
    rows = [_real(worker, name, missing) for name in chosen]
    values = np.stack(rows) if rows else np.zeros((0, len(worker.alignment.aligned)))
    means = values.mean(axis=1)
    values = values - means[:, None]
    deviations = np.sqrt((values * values).mean(axis=1))
    if not np.isfinite(deviations).all():
        column = chosen[int(np.argmin(np.isfinite(deviations)))]
        problem = "its variance is not a number that float64 can hold"
        raise worker.wrong(column, problem, "scale the column down")
    # What is left of a constant column after subtracting its mean is rounding, not variation.
    constant = deviations <= 1e-13 * np.abs(means)
    least = worker.site.rows.least  # in which only a few rows differ is taken for constant, too
    few = np.array([varies_in_few(row, least) for row in rows], dtype=bool)
    constant, means[few] = constant | few, np.nan  # beside the others' value it would be theirs
    deviations[constant] = 0.0
    values[constant] = 0.0
    values /= np.where(deviations > 0, deviations, 1.0)[:, None]
    return _Standardised(values, tuple(chosen), means, deviations)


def _real(worker: ColumnsWorker, name: str, missing: Missing) -> np.ndarray:
    values, column = worker.aligned_column(name), worker.table.schema[name]
    if column.kind == "nominal":
        mend = "name other columns, or use indicators"
        raise worker.wrong(name, "is nominal and has no real values", mend)
    numbers = as_numbers(column, values)
    gaps = np.isnan(numbers)
    if gaps.any():
        if missing == "refuse" or gaps.all():
            problem = "has missing cells among the aligned rows"
            mend = "fill them, name other columns, or missing='mean'"
            raise worker.wrong(name, problem, mend, int(gaps.sum()))
        enough = (~gaps).sum() >= worker.site.rows.least
        numbers = np.where(gaps, numbers[~gaps].mean(), numbers) if enough else np.zeros(len(gaps))
    return numbers


@column_provider("fixed-point")
def fixed_point_columns(
    worker: ColumnsWorker,
    bits: int,
    names: Sequence[str] | None = None,
    missing: Missing = "refuse",
) -> IntegerColumns:
    """Standardised real columns times 2^bits, rounded."""
    standard = standardised(worker, names, missing)
    max_abs, square_sum = standard_bounds(len(worker.alignment.aligned), int(bits))
    return IntegerColumns(encode(standard.values, int(bits)), standard.names, max_abs, square_sum)


class CovarianceWorker(ColumnsWorker):
    """Tells the deviations that turn standardised products back into covariances."""

    def __init__(
        self,
        site: Site,
        scope: str = "train",
        *,
        names: Sequence[str] | None = None,
        missing: Missing = "refuse",
    ) -> None:
        super().__init__(site, scope)
        self._standard = standardised(self, names, missing)

    @exposed(kind="statistic")
    def moments(self) -> dict[str, Any]:
        return {
            "rows": self._standard.values.shape[1],
            "names": list(self._standard.names),
            "means": self._standard.means,
            "deviations": self._standard.deviations,
        }

    @exposed(kind="statistic")
    def own_block(self) -> np.ndarray:
        """Sums of products among this party's own standardised columns."""
        values = self._standard.values
        return values @ values.T


# ---------------------------------------------------------------------------------- coordinator


@dataclass(frozen=True)
class Covariance:
    """Covariances and, cell by cell, a bound on how far rounding can have moved them.

    rows, columns: mean and deviation (divisor n) of the columns on either side.
    bits: of the fixed-point form.
    """

    values: pd.DataFrame
    error_bound: pd.DataFrame
    rows: pd.DataFrame
    columns: pd.DataFrame
    n: int
    bits: int
    ddof: int

    def correlations(self) -> pd.DataFrame:
        """Pearson's; NaN for constant columns."""
        scale = np.outer(self.rows["deviation"], self.columns["deviation"])
        rho = np.full(self.values.shape, np.nan)
        np.divide(self.values * ((self.n - self.ddof) / self.n), scale, out=rho, where=scale > 0)
        return pd.DataFrame(rho, index=self.values.index, columns=self.values.columns)


def covariance(
    fed: Federation,
    a: str,
    b: str,
    *,
    columns_a: Sequence[str] | None = None,
    columns_b: Sequence[str] | None = None,
    mode: Mode = "bfv",
    bits: int | None = None,
    ddof: int = 1,
    joint: bool = False,
    missing: Missing = "refuse",
    progress: Progress | None = None,
) -> Covariance:
    """Covariances between A's (rows) and B's (columns) real columns over the aligned rows.

    bits: of the fixed-point form; None takes as many as the mode can carry.
    joint: the whole matrix over both parties' columns (named ``party.column``), with each party's
    own block computed by itself, as ridge regression needs it.
    missing: ``refuse``, or ``mean`` to put a column's own mean into its gaps.
    """
    if missing not in ("refuse", "mean"):
        raise ConfigError(f"missing must be 'refuse' or 'mean', got {missing!r}")
    names = {a: listed(columns_a), b: listed(columns_b)}
    with fed.workers(
        CovarianceWorker, parties=[a, b], names=Each(names), missing=missing
    ) as workers:
        moments = workers.moments()
        own = workers.own_block() if joint else {}
    n = moments[a]["rows"]
    if n <= ddof:
        raise DataError(f"{n} rows have no covariance with ddof={ddof}", mend="more rows")
    bits = fitting_bits(n, mode) if bits is None else bits
    sides = {
        party: Columns(
            party, "fixed-point", {"bits": bits, "names": names[party], "missing": missing}
        )
        for party in (a, b)
    }
    with ProductSession(fed, sides[a], b, mode=mode, progress=progress) as session:
        products = np.asarray(session.products(sides[b]), dtype=np.float64)
    sums = products / float(1 << (2 * bits))
    errors = np.full(sums.shape, product_error(n, bits))
    rows, columns = (_moments(moments[party]) for party in (a, b))
    if joint:
        rounding = n * 64 * np.finfo(float).eps
        sums = np.block([[own[a], sums], [sums.T, own[b]]])
        within = [np.full(own[party].shape, rounding) for party in (a, b)]
        errors = np.block([[within[0], errors], [errors.T, within[1]]])
        named = [table.rename(f"{party}.{{}}".format) for party, table in ((a, rows), (b, columns))]
        rows = columns = pd.concat(named)
    scale = np.outer(rows["deviation"], columns["deviation"]) / (n - ddof)
    labels: dict[str, Any] = {"index": rows.index, "columns": columns.index}
    return Covariance(
        values=pd.DataFrame(sums * scale, **labels),
        error_bound=pd.DataFrame(errors * scale, **labels),
        rows=rows,
        columns=columns,
        n=n,
        bits=bits,
        ddof=ddof,
    )


def _moments(told: dict[str, Any]) -> pd.DataFrame:
    columns = {"mean": told["means"], "deviation": told["deviations"]}
    return pd.DataFrame(columns, index=told["names"])


declare("products", CovarianceWorker)
