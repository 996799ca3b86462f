"""Exact integer matrix products modulo 2^64 or 2^52 through float64 BLAS.

numpy multiplies integer matrices without BLAS, many times slower than floats. Here factors are cut
into limbs of so few bits that limb products, summed over 512 rows, stay within 2^53 and are exact
in float64; they are put together again in 64-bit words, where wrapping around is wanted.

=====  ============  ============  ===========================================
bits   left          right         products of limbs
=====  ============  ============  ===========================================
64     22 22 22      22 22 22      6 (those beyond 2^64 wrap to nothing)
64     22 22 22      one, small    3
52     26 26         18 18 18      5
52     26 26         one, small    2
=====  ============  ============  ===========================================
"""

from __future__ import annotations

import numpy as np

__all__ = ["SHORT_BITS", "wrapping_product"]

SHORT_BITS = 52
_ROWS = 512  # limb bits of both sides together, and 9 more, make 53


def wrapping_product(left: np.ndarray, right: np.ndarray, bits: int = 64) -> np.ndarray:
    """``left @ right.T`` modulo 2^bits as uint64, for int64 or uint64 [p, n] and [q, n].

    bits: 64, or 52, which is faster and looks at the lowest 52 bits of the factors only.

    >>> big = np.array([[1 << 40, 3]], dtype=np.uint64)
    >>> wrapping_product(big, np.array([[1 << 24, -1]])).astype(np.int64)
    array([[-3]])
    """
    p, n = left.shape
    q = right.shape[0]
    if right.shape[1] != n:
        raise ValueError(f"columns of {n} and {right.shape[1]} rows have no products")
    one, other = _limbs(left, right, bits)
    sums = np.zeros((one.count, other.count, p, q), dtype=np.int64)
    for start in range(0, n, _ROWS):
        a, b = one.cut(start), other.cut(start)
        for i in range(one.count):
            reach = sum(i * one.width + j * other.width < bits for j in range(other.count))
            block = a[i * p : (i + 1) * p] @ b[: reach * q].T
            for j in range(reach):
                sums[i, j] += block[:, j * q : (j + 1) * q].astype(np.int64)
    words = sums.view(np.uint64)
    total = np.zeros((p, q), dtype=np.uint64)
    for i in range(one.count):
        for j in range(other.count):
            shift = i * one.width + j * other.width
            if shift < bits:
                total += words[i, j] << np.uint64(shift)
    return total if bits == 64 else total & np.uint64((1 << bits) - 1)


def _limbs(left: np.ndarray, right: np.ndarray, bits: int) -> tuple[_Limbs, _Limbs]:
    """Both factors with limbs that fit together; a factor of small values is one limb."""
    if bits not in (SHORT_BITS, 64):
        raise ValueError(f"bits must be {SHORT_BITS} or 64, however: {bits}")
    wide, narrow = (26, 18) if bits == SHORT_BITS else (22, 22)
    smallness = 53 - 9 - wide
    small = [_is_small(values, smallness) for values in (left, right)]
    widths = (wide, narrow if not small[0] else wide)
    return (
        _Limbs(left, widths[0], 1 if small[0] else -(-bits // widths[0])),
        _Limbs(right, widths[1], 1 if small[1] else -(-bits // widths[1])),
    )


def _is_small(values: np.ndarray, bits: int) -> bool:
    if values.dtype not in (np.int64, np.uint64):
        raise ValueError(f"factors are int64 or uint64, not {values.dtype}")
    if values.dtype == np.uint64:
        return False
    most = 1 << bits
    return values.size == 0 or (int(values.max()) <= most and int(values.min()) >= -most)


class _Limbs:
    """One factor, cut into limbs a few hundred rows at a time so that they stay in the cache."""

    def __init__(self, values: np.ndarray, width: int, count: int) -> None:
        self.width, self.count, self.columns = width, count, len(values)
        self.values = values if count == 1 else values.view(np.uint64)
        self.room = np.empty((count * self.columns, _ROWS))
        self.word = np.empty((self.columns, _ROWS), dtype=np.uint64)

    def cut(self, start: int) -> np.ndarray:
        """float64 [limbs * columns, rows] of the rows from `start` on."""
        part = self.values[:, start : start + _ROWS]
        rows = part.shape[1]
        room, word = self.room[:, :rows], self.word[:, :rows]
        if self.count == 1:
            room[:] = part
            return room
        mask = np.uint64((1 << self.width) - 1)
        for at in range(self.count):
            if at == 0:
                np.bitwise_and(part, mask, out=word)
            else:
                np.right_shift(part, np.uint64(at * self.width), out=word)
                if (at + 1) * self.width < 64:
                    np.bitwise_and(word, mask, out=word)
            room[at * self.columns : (at + 1) * self.columns] = word.view(np.int64)
        return room
