"""Sums of one party's changing numbers over another's fixed zeros and ones, by masks.

The protocol of `dealer.py` (three roles; masks that A and B draw from a key the coordinator C does
not have), cut down to what the histograms of trees need: integers modulo 2^46, so that two limbs of
23 bits do, rows that can be sampled anew for every product, and the result for B alone:

    A -> C   A' = A - P            once for a training; A holds 0/1, P is uniform
    B -> C   B' = B - Q            Q fresh for every product
    A -> C   S  = A Q^T + R        R fresh
    C -> B   T  = A' B'^T + S  =  A B^T - P B'^T + R
    B        T + P B'^T - R    =  A B^T

What each role learns
- C: A', B' and S, which are uniform and independent of A and B because P, Q and R are.
- A: nothing; it receives no message.
- B: T, which it could compute from A B^T and what it drew itself: the sums, and nothing else.

C must not work together with A or B. Every mask belongs to a number, and numbers only grow, so that
none is used twice; P is the exception, and is never shown but in A'. P and R are A's, Q is B's, and
each is bound to its shape: C can ask for what it likes, and sees uniform numbers. All messages
travel as six bytes a number.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedmend.secure.keys import mask_stream

__all__ = ["BITS", "HALF", "BinsSide", "Helper", "NumbersSide"]

BITS = 46
BYTES = 6
HALF = 23  # a column carries two numbers: the upper one signed, the lower one not
_ROOM = 64 - BITS
_MASK = np.int64((1 << BITS) - 1)
_ROWS = 512  # 22 + 22 + 9 bits: sums of limb products stay exact in float64

MaskKey = Callable[[str, int, tuple[int, ...], bool], bytes]
"""The key of a stream, given its name, number and shape, and whether it hides own values.

A number of an own stream is given out once (`SealingWorker.mask_key`).
"""


# ---------------------------------------------------------------------------------- arithmetic


def wrap(values: np.ndarray) -> np.ndarray:
    """int64 to the representative of its residue modulo 2^46 in [-2^45, 2^45)."""
    return (values << _ROOM) >> _ROOM


def ring_stream(key: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform residues, the same wherever the key is known."""
    return mask_stream(key, shape).view(np.int64) >> _ROOM


def packed(values: np.ndarray) -> np.ndarray:
    """Residues as they travel: uint8 [..., 6], the lowest byte first.

    Not a bit above the 46: a carry would tell of what was added.
    """
    low = np.ascontiguousarray(values & _MASK, dtype="<i8")
    octets = low.view(np.uint8).reshape(*values.shape, 8)
    return np.ascontiguousarray(octets[..., :BYTES])


def unpacked(octets: np.ndarray) -> np.ndarray:
    """The other way round of `packed`."""
    whole = np.zeros((*octets.shape[:-1], 8), dtype=np.uint8)
    whole[..., :BYTES] = octets
    return wrap(whole.view("<i8")[..., 0])


class Limbs:
    """A fixed factor [n, p] as two float64 arrays of 23 signed bits each."""

    def __init__(self, values: np.ndarray) -> None:
        self.low, self.high = _limbs(values)

    def take(self, rows: np.ndarray | None) -> Limbs:
        """These rows of it; None for all."""
        if rows is None:
            return self
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


# ---------------------------------------------------------------------------------- the roles


class _Side:
    """A party. `key_of` gives the keys of masks, which it shares with the other."""

    def __init__(self, key_of: MaskKey) -> None:
        self._key_of = key_of

    def _own(self, stream: str, number: int, shape: tuple[int, ...]) -> np.ndarray:
        return ring_stream(self._key_of(stream, number, shape, True), shape)

    def _others(self, stream: str, number: int, shape: tuple[int, ...]) -> np.ndarray:
        return ring_stream(self._key_of(stream, number, shape, False), shape)


class BinsSide(_Side):
    """A: zeros and ones, float64 [n, p]."""

    def mask(self, indicators: np.ndarray, number: int) -> np.ndarray:
        """A' = A - P."""
        mask = self._own("bins", number, indicators.shape)
        self._whole = self._part = indicators
        return packed(indicators.astype(np.int64) - mask)

    def sample(self, rows: np.ndarray | None) -> None:
        """Products go over these rows from now on; None for all."""
        self._part = self._whole if rows is None else self._whole[rows]

    def share(self, number: int, count: int) -> np.ndarray:
        """S = A Q^T + R for `count` columns of B's."""
        blind = self._own("blind", number, (count, self._part.shape[1]))
        mask = self._others("numbers", number, (count, len(self._part)))
        return packed(indicator_product(self._part, mask) + blind)


class NumbersSide(_Side):
    """B: integers of 46 bits, int64 [k, n]."""

    def prepare(self, number: int, shape: tuple[int, int]) -> None:
        """Make P once for a training."""
        self._whole = self._part = Limbs(self._others("bins", number, shape))

    def sample(self, rows: np.ndarray | None) -> None:
        self._part = self._whole.take(rows)

    def mask(self, numbers: np.ndarray, number: int) -> np.ndarray:
        """B' = B - Q."""
        self._masked = wrap(numbers - self._own("numbers", number, numbers.shape))
        return packed(self._masked)

    def sums(self, told: np.ndarray, number: int) -> np.ndarray:
        """A B^T, int64 [k, p], from C's T."""
        rest = unpacked(told)
        blind = self._others("blind", number, rest.shape)
        return wrap(rest + ring_product(self._part, self._masked) - blind)


class Helper:
    """C: holds A' for a training."""

    def __init__(self, masked: np.ndarray) -> None:
        self._whole = self._part = Limbs(unpacked(masked))

    def sample(self, rows: np.ndarray | None) -> None:
        self._part = self._whole.take(rows)

    def combine(self, masked: np.ndarray, share: np.ndarray) -> np.ndarray:
        """T = A' B'^T + S."""
        return packed(ring_product(self._part, unpacked(masked)) + unpacked(share))
