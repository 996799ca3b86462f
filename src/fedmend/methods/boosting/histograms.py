"""Sums of B's changing numbers over A's fixed bins: the histograms of trees.

Mode ``dealer`` has a product of its own (`secure/histogram_product.py`: three roles, no encryption,
the sums for B alone); the other modes go through `ProductSession`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy.sparse import csr_array

from fedmend.errors import DataError, NotFitted
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.methods.boosting.bins import CutTable
from fedmend.methods.boosting.boost import Boosting
from fedmend.secure.channel import SealingWorker
from fedmend.secure.columns import Columns, hold_columns, keep_products
from fedmend.secure.histogram_product import HALF, BinsSide, Helper, MaskKey, NumbersSide
from fedmend.secure.inner_product import Mode, ProductSession

if TYPE_CHECKING:
    from fedmend.federation.federation import Federation
    from fedmend.federation.site import Site

LARGEST = 1 << 2 * HALF  # no sum of magnitudes of both halves together is larger


# ---------------------------------------------------------------------------------- the parties


class BinsWorker(SealingWorker):
    """A's side of the histograms; `indicators` [n, stored] must be there.

    model: under which name the site keeps what products are taken of. A cut is known outside by its
    number in `_table` only; `_codes` are the bin numbers of the rows.
    """

    role, counterpart = "bins", "numbers"
    model: str
    indicators: csr_array
    _table: CutTable
    _codes: np.ndarray

    def __init__(self, site: Site, scope: str = "train", **params: Any) -> None:
        super().__init__(site, scope, **params)
        self._products: BinsSide | None = None

    @exposed(kind="side", takes={"request": "control"})
    def sides_for(self, to: str, request: Sealed) -> Sealed:
        """On which side of the asked cuts every row lies, as bits encrypted for B."""
        cuts = self._own_cuts(self.open(request, sender=to, kind="control"))
        sides = [self._table.goes_left(cut, self._codes) for cut in cuts]
        return self.seal(np.packbits(np.stack(sides), axis=1), to=to, kind="side")

    def _own_cuts(self, request: Sequence[int]) -> list[int]:
        cuts = [int(cut) for cut in request]
        if any(not 0 <= cut < len(self._table) for cut in cuts):
            raise DataError(f"there are {len(self._table)} cuts only", mend="ask for one of them")
        return cuts

    def _with(self, other: str) -> BinsSide:
        """The products with B; one object for the life of this worker, which counts its masks."""
        if self._products is None:
            self._products = BinsSide(_mask_keys(self, other))
        return self._products

    @exposed(kind="masked")
    def mask_bins(self, other: str, number: int, length: int) -> np.ndarray:
        """The indicators of the first rows less a uniform mask that B can make again."""
        return self._with(other).mask(self.indicators[:length], number)

    @exposed(kind="masked")
    def bins_share(self, other: str, number: int, count: int) -> np.ndarray:
        """The indicators with B's mask, blinded."""
        return self._with(other).share(number, count)

    @exposed(kind="control")
    def load_bins(self, length: int) -> None:
        """For products in a session: int64 [stored, rows]."""
        bins = np.ascontiguousarray(self.indicators[:length].toarray().T.astype(np.int64))
        hold_columns(self.site, f"{self.model}:bins", bins, 1)
        keep_products(self.site, f"{self.model}:bins", own=False)


class SumsWorker(SealingWorker):
    """B's side: `numbers` int64 [k, rows] in, sums int64 [k, stored] to `summed`."""

    role, counterpart = "numbers", "bins"
    model: str
    numbers: np.ndarray
    _boosting: Boosting | None = None

    @property
    def boosting(self) -> Boosting:
        if self._boosting is None:
            raise NotFitted(f"party {self.site.name!r} grows no trees yet. Mend: begin first")
        return self._boosting

    def numbers_for(self, other: str) -> np.ndarray:
        """The numbers of the rows that A (`other`) knows."""
        return self.numbers

    def summed(self, sums: np.ndarray, other: str) -> None:
        """The sums of the numbers over the bins of A (`other`) have come."""
        raise NotImplementedError

    def __init__(self, site: Site, scope: str = "train", **params: Any) -> None:
        super().__init__(site, scope, **params)
        self._products: dict[str, NumbersSide] = {}

    def _with(self, other: str) -> NumbersSide:
        if other not in self._products:
            self._products[other] = NumbersSide(_mask_keys(self, other))
        return self._products[other]

    @exposed(kind="control")
    def unmask_with(self, other: str, number: int, length: int, stored: int) -> None:
        """Make A's mask, once for a training."""
        self._with(other).prepare(number, (length, stored))

    @exposed(kind="masked")
    def mask_numbers(self, other: str, number: int) -> np.ndarray:
        """The numbers less a fresh uniform mask."""
        return self._with(other).mask(self.numbers_for(other), number)

    @exposed(kind="control", takes={"rest": "masked"})
    def take_sums(self, other: str, number: int, rest: np.ndarray) -> None:
        """Learn the sums of the numbers over A's bins."""
        self.summed(self._with(other).sums(rest, number), other)

    @exposed(kind="control")
    def hold_numbers(self, other: str) -> None:
        """For products in a session."""
        numbers = self.numbers_for(other)
        hold_columns(self.site, f"{self.model}:numbers", numbers, LARGEST, abs_sum=LARGEST)
        keep_products(self.site, f"{self.model}:numbers")

    @exposed(kind="control")
    def take_products(self, other: str) -> None:
        """Learn the sums from a session's products."""
        self.summed(self.site.state[f"{self.model}:products"].T, other)


def _mask_keys(worker: SealingWorker, other: str) -> MaskKey:
    def key_of(stream: str, number: int, shape: tuple[int, ...], own: bool) -> bytes:
        owner = worker.site.name if own else other
        return worker.mask_key(
            other, f"histograms: {stream}", number, *shape, owner=owner, again=not own
        )

    return key_of


# ---------------------------------------------------------------------------------- coordinator


class Between(Protocol):
    """Who the histograms are between: B's numbers are summed over A's bins."""

    a: str
    b: str
    model: str
    mode: Mode

    @property
    def at_a(self) -> Any: ...

    @property
    def at_b(self) -> Any: ...

    def scoped(self, name: str, length: int) -> Federation: ...


class DealerHistograms:
    """The coordinator's half in mode ``dealer``."""

    def __init__(self, models: Between, length: int, stored: int, number: int) -> None:
        self.models, self._number = models, number
        start = self._next()
        self._helper = Helper(models.at_a.mask_bins(models.b, start, length))
        models.at_b.unmask_with(models.a, start, length, stored)

    def sums(self, count: int) -> None:
        """B learns the sums of its `count` columns of numbers."""
        a, b, number = self.models.at_a, self.models.at_b, self._next()
        masked = b.mask_numbers(self.models.a, number)
        share = a.bins_share(self.models.b, number, count)
        b.take_sums(self.models.a, number, self._helper.combine(masked, share))

    def close(self) -> int:
        """Let the masked columns go; tells the last number that was used."""
        del self._helper
        return self._number

    def _next(self) -> int:
        self._number += 1
        return self._number


class SessionHistograms:
    """The coordinator's half in the other modes."""

    def __init__(self, models: Between, length: int, stored: int, number: int) -> None:
        self.models, self._number = models, number
        models.at_a.load_bins(length)
        fixed = Columns(models.a, "state", {"key": f"{models.model}:bins"})
        view = models.scoped("rows", length)
        self._session = ProductSession(view, fixed, models.b, mode=models.mode)

    def sums(self, count: int) -> None:
        model = self.models.model
        self.models.at_b.hold_numbers(self.models.a)
        numbers = Columns(self.models.b, "state", {"key": f"{model}:numbers"})
        self._session.products(numbers, to=self.models.b, store=f"{model}:products")
        self.models.at_b.take_products(self.models.a)

    def close(self) -> int:
        self._session.close()
        return self._number


Histograms = DealerHistograms | SessionHistograms
