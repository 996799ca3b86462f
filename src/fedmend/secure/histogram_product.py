"""Sums of one party's changing numbers over another's fixed zeros and ones, by masks.

The protocol of `dealer.py` (three roles; masks that A and B draw from a key the coordinator C does
not have), cut down to what the histograms of trees need: a number carries two, of 23 bits each,
whose sums are taken modulo 2^23 one beside the other, so that one product of floats does for each,
and the result is for B alone:

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
travel as three bytes a half.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.sparse import csc_array, csr_array

from fedmend.secure.keys import mask_stream

HALF = 23  # bits of each of the two numbers in one: the upper one signed, the lower one not
_SHIFTS = (0, 8, 16)
_ROOM = 32 - HALF
_MASK = (1 << HALF) - 1
_ROWS = 256  # 22 + 22 + 8 bits: sums of products stay exact in float64

MaskKey = Callable[[str, int, tuple[int, ...], bool], bytes]
"""The key of a stream, given its name, number and shape, and whether it hides own values.

A number of an own stream is given out once (`SealingWorker.mask_key`).
"""


# ---------------------------------------------------------------------------------- arithmetic


def wrap(values: np.ndarray) -> np.ndarray:
    """Integers to the int32 representative of their residue modulo 2^23 in [-2^22, 2^22)."""
    return (values.astype(np.int32, copy=False) << _ROOM) >> _ROOM


def ring_stream(key: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform residues, the same wherever the key is known."""
    count = math.prod(shape)
    words = mask_stream(key, -(-count // 2)).astype("<u8", copy=False).view("<i4")
    return (words[:count] >> _ROOM).reshape(shape)


def packed(values: np.ndarray) -> np.ndarray:
    """Residues as they travel: uint8 [3, ...], the lowest bytes first.

    Not a bit above the 23: a carry would tell of what was added.
    """
    low = values & _MASK
    return np.stack([(low >> shift).astype(np.uint8) for shift in _SHIFTS])


def unpacked(octets: np.ndarray) -> np.ndarray:
    """The other way round of `packed`."""
    low, middle, high = (
        each.astype(np.int32) << shift for each, shift in zip(octets, _SHIFTS, strict=True)
    )
    return wrap(low | middle | high)


def halves(numbers: np.ndarray) -> np.ndarray:
    """int64 [k, n] as residues [2k, n]: the upper halves, then the lower ones."""
    return wrap(np.concatenate([numbers >> HALF, numbers & _MASK]))


def joined(residues: np.ndarray) -> np.ndarray:
    """The other way round of `halves`."""
    upper, lower = np.split(residues.astype(np.int64), 2)
    return (upper << HALF) + (lower & _MASK)


def ring_product(fixed: np.ndarray, changing: np.ndarray) -> np.ndarray:
    """``changing @ fixed`` modulo 2^23, for residues [k, n] and (as float32, exactly) [n, p]."""
    out = np.zeros((len(changing), fixed.shape[1]), dtype=np.int64)
    for start in range(0, len(fixed), _ROWS):
        rows = slice(start, start + _ROWS)
        out += (changing[:, rows].astype(np.float64) @ fixed[rows].astype(np.float64)).astype(
            np.int64
        )
    return wrap(out)


def indicator_product(indicators: csc_array, changing: np.ndarray) -> np.ndarray:
    """The same for a fixed factor of zeros and ones, [p, n]: uint32 wraps at a multiple of 2^23."""
    return wrap((indicators @ changing.T.astype(np.uint32, order="C")).T)


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
    """A: zeros and ones, uint32 [n, p], few of them ones."""

    def mask(self, indicators: csr_array, number: int) -> np.ndarray:
        """A' = A - P."""
        mask = self._own("bins", number, indicators.shape)
        self._bins = indicators.T  # as every product wants it
        return packed(indicators.toarray().view(np.int32) - mask)

    def share(self, number: int, count: int) -> np.ndarray:
        """S = A Q^T + R for `count` columns of B's."""
        bins, rows = self._bins.shape
        blind = self._own("blind", number, (2 * count, bins))
        mask = self._others("numbers", number, (2 * count, rows))
        return packed(indicator_product(self._bins, mask) + blind)


class NumbersSide(_Side):
    """B: pairs of integers of 23 bits, int64 [k, n]."""

    def prepare(self, number: int, shape: tuple[int, int]) -> None:
        """Make P once for a training."""
        self._mask = self._others("bins", number, shape).astype(np.float32)

    def mask(self, numbers: np.ndarray, number: int) -> np.ndarray:
        """B' = B - Q."""
        own = halves(numbers)
        self._masked = wrap(own - self._own("numbers", number, own.shape))
        return packed(self._masked)

    def sums(self, told: np.ndarray, number: int) -> np.ndarray:
        """A B^T, int64 [k, p], from C's T."""
        rest = unpacked(told)
        blind = self._others("blind", number, rest.shape)
        return joined(wrap(rest + ring_product(self._mask, self._masked) - blind))


class Helper:
    """C: holds A' for a training."""

    def __init__(self, masked: np.ndarray) -> None:
        self._bins = unpacked(masked).astype(np.float32)

    def combine(self, masked: np.ndarray, share: np.ndarray) -> np.ndarray:
        """T = A' B'^T + S."""
        return packed(ring_product(self._bins, unpacked(masked)) + unpacked(share))
