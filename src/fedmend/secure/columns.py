"""What all products have in common: the columns a party brings, who makes them, and two shares.

A product is asked for by *naming* a provider that is installed at the party; no values and no
code travel. Providers for plain integers, category indicators and arrays held in a site's state
are here; ranks (`ranks.py`) and fixed-point columns (`fixed_point.py`) register theirs, and so
can any room above:

    @column_provider("residuals")
    def residuals(worker, key, bound): ...

Columns that a worker of the party has made are left with :func:`hold_columns` and asked for by
``Columns(party, "state", {"key": …})``.

A provider states bounds from which everybody computes the largest possible product: the largest
magnitude of a value, the largest sum of squares of a column and, where it is known to be less than
rows times the first, the largest sum of magnitudes. They must follow from public facts (the number
of rows, a setting), never from the data, because they leave the party. Where somebody else names
the bound of a column, there are only so many tries (`bounds.py`).

Whatever the protocol, it ends with the fixed and the changing party each holding an array of
uniform numbers (a share); together, and with the coordinator's own part where it has one, they add
up to the products modulo a power of two. Only then is decided who learns the products: the
coordinator, or one of the two parties.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from fedmend.data.encode import positions
from fedmend.data.schema import CATEGORICAL, Column
from fedmend.errors import ConfigError, CryptoError, DataError, Refused
from fedmend.federation.federation import WorkerGroup
from fedmend.federation.rows import Asked, frequent, varies_in_few
from fedmend.federation.site import Site
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.secure.bounds import admit_bound
from fedmend.secure.channel import SealingWorker
from fedmend.secure.keys import KEY_BYTES, mask_stream

Progress = Callable[[str, int, int], None]
Provider = Callable[..., "IntegerColumns"]
_PROVIDERS: dict[str, Provider] = {}


@dataclass(frozen=True)
class Columns:
    """Which columns of a party take part: a provider by its name, and the provider's settings.

    >>> Columns("bank", "integers", {"names": ["age"], "bound": 200}).party
    'bank'
    """

    party: str
    provider: str = "integers"
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class IntegerColumns:
    """int64 values [columns, rows] in the common order of the aligned rows, and their bounds.

    own: products of them are for this party alone, which lets no share of one out. closed: for one
    of the two parties, and not for the coordinator: they may be of some rows only.
    """

    values: np.ndarray
    names: tuple[str, ...]
    max_abs: int
    square_sum: int
    abs_sum: int | None = None  # rows times max_abs, if nothing less is known
    own: bool = field(default=False, kw_only=True)
    closed: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        values = self.values
        if values.dtype != np.int64 or values.ndim != 2 or len(values) != len(self.names):
            raise DataError(
                f"columns must be int64 [{len(self.names)}, rows], got {values.dtype} "
                f"{list(values.shape)}",
                mend="correct the provider",
            )
        if values.size == 0:
            return
        # Column by column: one fits the cache, all of them do not.
        for name, column in zip(self.names, values, strict=True):
            self._check_bounds(name, column)

    def _check_bounds(self, name: str, column: np.ndarray) -> None:
        # The value itself stays here: an error crosses to the coordinator.
        seen, problem = max(int(column.max()), -int(column.min())), ""
        if seen > self.max_abs:
            problem = f"a value is larger than the bound {self.max_abs} that was agreed on"
        elif self.rows * seen * seen > self.square_sum:
            floats = column.astype(np.float64)
            if floats @ floats > self.square_sum * (1 + 1e-9):
                problem = f"a sum of squares is larger than the bound {self.square_sum}"
        if self.abs_sum is not None and int(np.abs(column).sum()) > self.abs_sum:
            problem = f"a sum of magnitudes is larger than the bound {self.abs_sum}"
        if problem:
            mend = "give a larger bound, or scale the column down"
            raise DataError(problem, column=name, mend=mend)

    @property
    def rows(self) -> int:
        return int(self.values.shape[1])

    def facts(self) -> dict[str, Any]:
        """What everybody may know: sizes, names, and bounds that follow from public facts."""
        return {
            "rows": self.rows,
            "names": list(self.names),
            "max_abs": self.max_abs,
            "square_sum": self.square_sum,
            "abs_sum": self.rows * self.max_abs if self.abs_sum is None else self.abs_sum,
        }


def largest_product(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """No inner product of the two sides' columns is larger in magnitude (from their facts)."""
    by_values = min(one["max_abs"] * other["abs_sum"], one["abs_sum"] * other["max_abs"])
    by_norms = math.isqrt(one["square_sum"] * other["square_sum"])
    return int(min(by_values, by_norms))


# ---------------------------------------------------------------------------------- registry


def column_provider(name: str) -> Callable[[Provider], Provider]:
    """Register a function ``(worker, **settings) -> IntegerColumns`` under a name."""

    def register(provider: Provider) -> Provider:
        known = _PROVIDERS.setdefault(name, provider)
        if known.__qualname__ != provider.__qualname__:
            raise ConfigError(f"two column providers are named {name!r}. Mend: rename one")
        return provider

    return register


class ColumnsWorker(SealingWorker):
    """Base of the workers that multiply columns: makes them, and counts what all must know."""

    def provide(self, provider: str, settings: Mapping[str, Any]) -> IntegerColumns:
        bound = self.site.bound
        if bound is not None:
            bound.admit_provider(self.site.name, provider)
        make = _PROVIDERS.get(provider)
        if make is None:
            raise ConfigError(
                f"party {self.site.name!r} has no column provider {provider!r}. Mend: use one of "
                + ", ".join(sorted(_PROVIDERS))
            )
        aligned, rows = self.alignment.aligned, len(self.alignment.aligned)
        # Positions outside the table are no rows of it but numbers that a protocol counts by
        # (axes, say); the rows behind them were aligned, and let in, before.
        if ((aligned >= 0) & (aligned < len(self.table))).any():
            self.site.policy.admit_aligned(self.site.name, rows)
        columns = make(self, **settings)
        if columns.rows != rows:
            raise DataError(
                f"the provider {provider!r} gave {columns.rows} rows for {rows} aligned ones",
                party=self.site.name,
                mend="correct the provider",
            )
        return columns

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        return [self.alignment.aligned]

    def aligned_column(self, name: str) -> pd.Series:
        """The values of a column at the aligned rows, in the common order."""
        if name in self.table.blocks:
            mend = "name columns with one value a row"
            raise self.wrong(name, "a block of arrays has no products", mend)
        if name == self.table.label:
            self.site.policy.admit_label_sums(self.site.name)
        return self.column(name).iloc[self.alignment.aligned]

    def chosen(self, names: Sequence[str] | None, *kinds: str) -> list[str]:
        """These columns; by default all features with one value a row, or those of some kinds."""
        schema, blocks = self.table.schema, self.table.blocks
        scalar = (each for each in self.table.feature_names if each not in blocks)
        fitting = [each for each in scalar if not kinds or schema[each].kind in kinds]
        return fitting if names is None else list(names)

    def wrong(self, column: str, problem: str, mend: str, value: object = None) -> DataError:
        return DataError(problem, party=self.site.name, column=column, value=value, mend=mend)


# ---------------------------------------------------------------------------------- shares


def lowest_bits(words: np.ndarray, bits: int) -> np.ndarray:
    """Words modulo 2^bits: what is above them is a carry, which tells of what was added up."""
    return words if bits == 64 else words & np.uint64((1 << bits) - 1)


def signed(residues: np.ndarray, bits: int) -> np.ndarray:
    """Residues modulo 2^bits as int64 in [-2^(bits-1), 2^(bits-1))."""
    room = np.uint64(64 - bits)
    return (residues.astype(np.uint64) << room).view(np.int64) >> np.int64(64 - bits)


class ProductWorker(ColumnsWorker):
    """Holds this party's columns and, after a product, its share of the result."""

    conversation = "inner products"

    def __init__(self, site: Site, scope: str = "train") -> None:
        super().__init__(site, scope)
        self._columns: IntegerColumns | None = None
        self._share: np.ndarray | None = None
        self._share_bits = 64

    @exposed(kind="count")
    def load(self, provider: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Make this side's columns; tells how many there are, their names and public bounds."""
        self._columns = self.provide(provider, settings)
        self._share = None
        return self._columns.facts()

    @property
    def columns(self) -> IntegerColumns:
        if self._columns is None:
            raise ConfigError(
                f"party {self.site.name!r} has made no columns yet. Mend: call load first"
            )
        return self._columns

    def keep_share(self, share: np.ndarray, bits: int = 64) -> None:
        """A share of products modulo 2^bits."""
        self._share, self._share_bits = lowest_bits(share, bits), bits

    def _take_share(self) -> np.ndarray:
        # A share leaves once: two shares of one product in two hands would be the product.
        share, self._share = self._share, None
        if share is None:
            raise CryptoError(
                f"party {self.site.name!r} has no share to give: none was made, or it has left "
                "already. Mend: ask for the product again"
            )
        return share

    def _share_for_others(self, to: str = "") -> np.ndarray:
        """to: the other party; without one for the coordinator."""
        if self.columns.own or (self.columns.closed and not to):
            whose = "it" if self.columns.own else "a party"
            raise Refused(
                self.site.name,
                f"products of these columns are for {whose} alone",
                f"products(…, to={self.site.name!r})",
            )
        return self._take_share()

    @exposed(kind="masked", opens="statistic")
    def share(self) -> np.ndarray:
        """This party's share, to the coordinator."""
        return self._share_for_others()

    @exposed(kind="masked", opens="statistic")
    def share_for(self, to: str, blind: bytes | None = None) -> Sealed:
        """This party's share in a message for the other one; `blind` seeds what is added to it."""
        share = self._share_for_others(to)
        if blind is not None:
            share = lowest_bits(share + mask_stream(blind, share.shape), self._share_bits)
        return self.seal(share, to=to, kind="masked")

    @exposed(kind="control", takes={"sealed": "masked", "rest": "masked"})
    def add_up(
        self, sealed: Sealed, sender: str, bits: int, store: str, rest: np.ndarray | None = None
    ) -> None:
        """Learn the products: they stay in this site's state under `store` (int64)."""
        total = self._take_share() + self.open(sealed, sender=sender, kind="masked")
        if rest is not None:
            total = total + rest
        self.site.state[store] = signed(total, bits)

    @exposed(kind="control", takes={"products": "statistic"})
    def learn(self, products: np.ndarray, store: str) -> None:
        """Take products from a coordinator that knows them anyway (reference modes)."""
        if not isinstance(products, np.ndarray) or products.dtype != np.int64 or products.ndim != 2:
            raise CryptoError(
                f"party {self.site.name!r} was sent a {type(products).__name__} as products, which "
                "are int64 [columns, columns]. Mend: the same version of fedmend at every party"
            )
        self.site.state[store] = products


@dataclass(frozen=True)
class Wanted:
    """A product to be made: both sides' facts, and who learns it.

    to: the party that alone learns it, under `store`; None for the coordinator. largest: what no
    product is larger than.
    """

    fixed: dict[str, Any]
    changing: dict[str, Any]
    to: str | None
    store: str
    largest: int


class Products:
    """The coordinator's half of a protocol: over two workers whose keys have changed hands.

    a, b: the workers with the fixed and with the changing columns. worker: their class.
    limit_bits: products are in magnitude below two to this many; beyond they would come out wrong,
    so are refused. warning: what whoever asks for it is told.
    """

    worker: ClassVar[type[ProductWorker]]
    limit_bits: ClassVar[int] = 63
    warning: ClassVar[str] = ""

    def __init__(
        self,
        workers: WorkerGroup,
        fixed: str,
        changing: str,
        *,
        key_bits: int,
        progress: Progress | None,
    ) -> None:
        self.workers, self.fixed, self.changing = workers, fixed, changing
        self.a, self.b = workers[fixed], workers[changing]
        self.key_bits = key_bits
        self.progress = progress or (lambda stage, done, total: None)

    def products(self, wanted: Wanted) -> np.ndarray | None:
        """The products; None where a party has learnt them as its own."""
        raise NotImplementedError

    def opened(self, wanted: Wanted, bits: int, own: np.ndarray | None = None) -> np.ndarray | None:
        """Both parties' shares added up, and the coordinator's `own` part where it has one."""
        if wanted.to is None:
            shares = self.a.share() + self.b.share()
            return signed(shares if own is None else own + shares, bits)
        giver = self.changing if wanted.to == self.fixed else self.fixed
        if own is None:
            sealed, rest = self.workers[giver].share_for(wanted.to), None
        else:
            # Who learns the result knows the other's masks: its message needs one of C's.
            blind = os.urandom(KEY_BYTES)
            sealed = self.workers[giver].share_for(wanted.to, blind)
            rest = lowest_bits(own - mask_stream(blind, own.shape), bits)
        self.workers[wanted.to].add_up(sealed, giver, bits, wanted.store, rest)
        return None


# ---------------------------------------------------------------------------------- values


def category_codes(values: pd.Series, column: Column) -> np.ndarray:
    """Positions in the column's categories (int64); -1 for a missing or never listed value."""
    return np.maximum(positions(values, column.categories or ()), -1)


def stacked(rows: list[np.ndarray], count: int) -> np.ndarray:
    """Columns as rows [columns, count], int64 where there are none."""
    return np.stack(rows) if rows else np.zeros((0, count), dtype=np.int64)


def listed(names: Sequence[str] | None) -> list[str] | None:
    """Names as they cross; None for all columns."""
    return None if names is None else list(names)


# ---------------------------------------------------------------------------------- providers


@column_provider("integers")
def integer_columns(
    worker: ColumnsWorker, names: Sequence[str] | None = None, bound: int = 1 << 20
) -> IntegerColumns:
    """Integer and binary columns as they are; |value| <= bound, no missing cells."""
    schema = worker.table.schema
    chosen, rows = worker.chosen(names, "integer", "binary"), []
    admit_bound(worker.site, chosen, f"{int(bound)}")
    for name in chosen:
        values = worker.aligned_column(name)
        if bool(values.isna().any()):
            mend = "fill them, or choose a provider that counts them out"
            raise worker.wrong(name, "has missing cells, which have no integer value", mend)
        if schema[name].is_categorical:
            rows.append(category_codes(values, schema[name]))
        else:
            numbers = pd.to_numeric(values, errors="coerce")
            if numbers.dtype.kind == "f" and not bool((numbers == np.floor(numbers)).all()):
                mend = "use the provider 'fixed-point' for real values"
                raise worker.wrong(name, "holds values with a fraction", mend)
            rows.append(numbers.to_numpy(dtype=np.int64))
        if varies_in_few(rows[-1], worker.site.rows.least):
            raise Refused(
                worker.site.name,
                f"column {name!r} says something of fewer than {worker.site.rows.least} rows",
                f"name other columns, or lower min_rows in the policy of {worker.site.name!r}",
            )
    count, bound = len(worker.alignment.aligned), int(bound)
    return IntegerColumns(stacked(rows, count), tuple(chosen), bound, count * bound * bound)


@column_provider("indicators")
def indicator_columns(worker: ColumnsWorker, names: Sequence[str] | None = None) -> IntegerColumns:
    """One 0/1 column per category of the categorical columns; a missing cell is 0 in all.

    So is a category of too few rows (`frequent`).
    """
    schema = worker.table.schema
    chosen = worker.chosen(names, *CATEGORICAL)
    rows, labels = [], []
    for name in chosen:
        values = worker.aligned_column(name)
        if not schema[name].is_categorical:
            problem = f"is of kind {schema[name].kind!r} and has no categories"
            raise worker.wrong(name, problem, "name categorical columns")
        codes = category_codes(values, schema[name])
        for code in frequent(codes, len(schema[name].categories or ()), worker.site.rows.least):
            rows.append((codes == code).astype(np.int64))
            labels.append(f"{name}#{code}")
    count = len(worker.alignment.aligned)
    return IntegerColumns(stacked(rows, count), tuple(labels), 1, count)


@column_provider("state")
def state_columns(worker: ColumnsWorker, key: str) -> IntegerColumns:
    """Columns that another worker of this party has left here (`hold_columns`)."""
    held = worker.site.state.get(key)
    if not isinstance(held, IntegerColumns):
        raise DataError(
            f"the state holds no columns under {key!r}",
            party=worker.site.name,
            mend="hold_columns(site, key, …) at the party before the product is asked for",
        )
    return held


def hold_columns(
    site: Site,
    key: str,
    values: np.ndarray,
    bound: int,
    square_sum: int | None = None,
    abs_sum: int | None = None,
) -> None:
    """Leave int64 values [columns, aligned rows] in a site's state for products.

    bound, square_sum, abs_sum: of every value and of every column, from public facts; see above.
    """
    most = int(bound) * (values.shape[1] * int(bound) if abs_sum is None else abs_sum)
    site.state[key] = IntegerColumns(
        values,
        tuple(f"{key}#{at}" for at in range(len(values))),
        int(bound),
        most if square_sum is None else min(most, int(square_sum)),
        abs_sum,
    )


def keep_products(site: Site, key: str, *, own: bool = True) -> None:
    """Let nobody else learn products of what was left under a key, or (not `own`) only parties."""
    site.state[key] = replace(site.state[key], own=own, closed=True)
