"""Sums of B's changing numbers over A's fixed bins: the products of tree histograms, made fast.

Mode ``dealer`` follows `secure/dealer.py` (three roles, masks that A and B share and the
coordinator C has not), cut down to what trees need: integers modulo 2^46, so that two limbs of 23
bits do, rows that can be sampled anew for every tree, and the result for B alone:

    A -> C   A' = A - P            once for a training; A holds 0/1, P is uniform
    B -> C   B' = B - Q            Q fresh for every product
    A -> C   A'Q-part: A Q^T + R   R fresh
    C -> B   A' B'^T + A Q^T + R
    B        adds P B'^T - R, which gives A B^T

C sees uniform numbers only, A receives nothing, B the sums. C must not work together with A or B.
The other modes go through `ProductSession`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.errors import CryptoError
from fedmend.federation.worker import exposed
from fedmend.learn.targets import TargetWorker
from fedmend.secure.columns import Columns
from fedmend.secure.inner_product import ProductSession
from fedmend.secure.keys import mask_stream

if TYPE_CHECKING:
    from fedmend.federation.site import Site
    from fedmend.learn.targets import TargetModels

__all__ = ["BITS", "HALF", "BinsWorker", "DealerHistograms", "SessionHistograms", "SumsWorker"]

BITS = 46
HALF = 23  # a column carries two numbers: the upper one signed, the lower one not
_ROOM = 64 - BITS
_ROWS = 512  # 22 + 22 + 9 bits: sums of limb products stay exact in float64


def wrap(values: np.ndarray) -> np.ndarray:
    """int64 to the representative of its residue modulo 2^46 in [-2^45, 2^45)."""
    return (values << _ROOM) >> _ROOM


def ring_stream(seed: bytes, number: int, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform residues, the same wherever the seed is known."""
    return mask_stream(seed, number, shape).view(np.int64) >> _ROOM


class Limbs:
    """A fixed factor [n, p] as two float64 arrays of 23 signed bits each."""

    def __init__(self, values: np.ndarray) -> None:
        self.low, self.high = _limbs(values)

    def take(self, rows: np.ndarray) -> Limbs:
        part = object.__new__(Limbs)
        part.low, part.high = self.low[rows], self.high[rows]
        return part


def _limbs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    middle = np.int64(1 << (HALF - 1))
    low = ((values + middle) & np.int64((1 << HALF) - 1)) - middle
    high = (values - low) >> HALF
    return low.astype(np.float64), high.astype(np.float64)


def ring_product(fixed: Limbs, changing: np.ndarray) -> np.ndarray:
    """``changing @ fixed`` modulo 2^46 for int64 [k, n] and limbs of [n, p]."""
    count, n = changing.shape
    low = np.zeros((count, fixed.low.shape[1]), dtype=np.int64)
    high = np.zeros_like(low)
    for start in range(0, n, _ROWS):
        rows = slice(start, start + _ROWS)
        both = np.concatenate(_limbs(changing[:, rows]))
        with_low = both @ fixed.low[rows]
        low += with_low[:count].astype(np.int64)
        high += with_low[count:].astype(np.int64)
        high += (both[:count] @ fixed.high[rows]).astype(np.int64)
    return wrap(low + (high << HALF))


def indicator_product(indicators: np.ndarray, changing: np.ndarray) -> np.ndarray:
    """The same for a fixed factor of zeros and ones."""
    count = len(changing)
    out = np.zeros((2 * count, indicators.shape[1]))
    for start in range(0, changing.shape[1], 4096):
        rows = slice(start, start + 4096)
        out += np.concatenate(_limbs(changing[:, rows])) @ indicators[rows]
    whole = out.astype(np.int64)
    return wrap(whole[:count] + (whole[count:] << HALF))


def sampled_rows(seed: int, share: float, length: int) -> np.ndarray | None:
    """The rows of one tree, known to everybody; None for all."""
    if share >= 1:
        return None
    count = max(1, round(share * length))
    return np.sort(np.random.default_rng(seed).permutation(length)[:count])


# ---------------------------------------------------------------------------------- the parties


class _RingWorker(TargetWorker):
    """Either side. Numbers of products only grow, so that no mask is ever used twice."""

    def __init__(self, site: Site, scope: str = "train", **params: Any) -> None:
        super().__init__(site, scope, **params)
        self._last = 0

    def _advance(self, number: int) -> None:
        if number <= self._last:
            raise CryptoError(
                f"party {self.site.name!r}: number {number} was used before, and a mask that is "
                "used twice hides nothing. Mend: count on"
            )
        self._last = number

    def _stream(self, other: str, role: str, number: int, shape: tuple[int, ...]) -> np.ndarray:
        return ring_stream(self.shared_seed(other, f"histograms: {role}"), number, shape)


class BinsWorker(_RingWorker):
    """A's side of the histograms; `indicators` [n, stored] must be there."""

    indicators: np.ndarray

    @exposed(kind="masked")
    def mask_bins(self, other: str, number: int, length: int) -> np.ndarray:
        """The indicators of the first rows less a uniform mask that B can make again."""
        self._advance(number)
        self._part = self.indicators[:length]
        mask = self._stream(other, "bins", number, self._part.shape)
        return wrap(self._part.astype(np.int64) - mask)

    @exposed(kind="control")
    def sample(self, seed: int, share: float, length: int) -> None:
        """Products go over these rows from now on."""
        rows = sampled_rows(seed, share, length)
        part = self.indicators[:length]
        self._part = part if rows is None else part[rows]

    @exposed(kind="masked")
    def bins_share(self, other: str, number: int, count: int) -> np.ndarray:
        """The indicators with B's mask, blinded."""
        self._advance(number)
        mask = self._stream(other, "numbers", number, (count, len(self._part)))
        blind = self._stream(other, "blind", number, (count, self._part.shape[1]))
        return wrap(indicator_product(self._part, mask) + blind)

    @exposed(kind="control")
    def load_bins(self, length: int) -> None:
        """For products in a session: int64 [stored, rows]."""
        self.keep("bins", np.ascontiguousarray(self.indicators[:length].T.astype(np.int64)))


class SumsWorker(_RingWorker):
    """B's side: numbers in two halves of a column, [k, sampled rows], kept under ``numbers``."""

    def __init__(self, site: Site, scope: str = "train", **params: Any) -> None:
        super().__init__(site, scope, **params)
        self.sampled: np.ndarray | None = None  # numbers of the rows; None for all
        self._sampled_of = 0
        self._mask: Limbs | None = None

    @exposed(kind="control")
    def unmask_with(self, other: str, number: int, length: int, stored: int) -> None:
        """Make A's mask, once for a training."""
        self._advance(number)
        self._mask = Limbs(self._stream(other, "bins", number, (length, stored)))

    @exposed(kind="control")
    def sample(self, seed: int, share: float, length: int) -> None:
        """Numbers are those of these rows from now on."""
        self.sampled, self._sampled_of = sampled_rows(seed, share, length), length
        if self._mask is not None:
            self._part = self._mask if self.sampled is None else self._mask.take(self.sampled)

    @exposed(kind="masked")
    def mask_numbers(self, other: str, number: int) -> np.ndarray:
        """The numbers at the sampled rows less a fresh uniform mask."""
        self._advance(number)
        numbers = self.kept("numbers")
        self._masked = wrap(numbers - self._stream(other, "numbers", number, numbers.shape))
        return self._masked

    @exposed(kind="control", takes={"rest": "masked"})
    def take_sums(self, other: str, number: int, rest: np.ndarray) -> None:
        """Learn the sums of the numbers over A's bins: int64 [k, stored] under ``sums``."""
        blind = self._stream(other, "blind", number, rest.shape)
        self.keep("sums", wrap(rest + ring_product(self._part, self._masked) - blind))

    @exposed(kind="control")
    def load_halves(self) -> None:
        """For products in a session: upper and lower halves as columns of their own."""
        numbers = self.kept("numbers")
        if self.sampled is not None:
            whole = np.zeros((len(numbers), self._sampled_of), dtype=np.int64)
            whole[:, self.sampled] = numbers
            numbers = whole
        self.keep("halves", np.concatenate([numbers >> HALF, numbers & ((1 << HALF) - 1)]))

    @exposed(kind="control")
    def join_halves(self) -> None:
        """Put a session's products together again."""
        products = self.kept("products").T
        count = len(products) // 2
        self.keep("sums", (products[:count] << HALF) + products[count:])


# ---------------------------------------------------------------------------------- coordinator


class DealerHistograms:
    """The coordinator's half in mode ``dealer``; holds A' for a training."""

    def __init__(self, models: TargetModels, length: int, stored: int, number: int) -> None:
        self.models, self.length, self._number = models, length, number
        start = self._next()
        self._masked = Limbs(models.at_a.mask_bins(models.b, start, length))
        models.at_b.unmask_with(models.a, start, length, stored)
        self._sampled = self._masked

    def sample(self, seed: int, share: float) -> None:
        rows = sampled_rows(seed, share, self.length)
        self._sampled = self._masked if rows is None else self._masked.take(rows)
        self.models.at_a.sample(seed, share, self.length)
        self.models.at_b.sample(seed, share, self.length)

    def sums(self, count: int) -> None:
        """B learns the sums of its `count` columns of numbers."""
        a, b, number = self.models.at_a, self.models.at_b, self._next()
        masked = b.mask_numbers(self.models.a, number)
        share = a.bins_share(self.models.b, number, count)
        b.take_sums(self.models.a, number, wrap(ring_product(self._sampled, masked) + share))

    def close(self) -> int:
        """Let the masked columns go; tells the last number that was used."""
        del self._masked, self._sampled
        return self._number

    def _next(self) -> int:
        self._number += 1
        return self._number


class SessionHistograms:
    """The coordinator's half in the other modes: rows that are not sampled count as zeros."""

    def __init__(self, models: TargetModels, length: int, stored: int, number: int) -> None:
        self.models, self.length, self._number = models, length, number
        models.at_a.load_bins(length)
        fixed = Columns(models.a, "state", {"key": f"{models.model}:bins", "bound": 1})
        view = models.scoped("rows", length)
        self._session = ProductSession(view, fixed, models.b, mode=models.mode)

    def sample(self, seed: int, share: float) -> None:
        self.models.at_b.sample(seed, share, self.length)

    def sums(self, count: int) -> None:
        model = self.models.model
        self.models.at_b.load_halves()
        halves = {"key": f"{model}:halves", "bound": 1 << HALF}
        self._session.products(
            Columns(self.models.b, "state", halves), to=self.models.b, store=f"{model}:products"
        )
        self.models.at_b.join_halves()

    def close(self) -> int:
        self._session.close()
        return self._number
