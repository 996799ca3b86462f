"""Exact integer matrix products modulo 2^64 through float64 BLAS.

numpy multiplies integer matrices without BLAS, twenty times slower than floats. Here both factors
are cut into limbs of 22 bits; limb products, summed over at most 512 rows, stay below 2^53 and are
exact in float64; they are put together again in 64-bit words, where wrapping around is wanted.
"""

from __future__ import annotations

import numpy as np

__all__ = ["wrapping_product"]

LIMB = 22
_ROWS = 512  # 2 * 22 bits + 9 bits = 53 bits
_MASK = np.uint64((1 << LIMB) - 1)


def wrapping_product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """``left @ right.T`` modulo 2^64 as uint64, for int64 or uint64 [p, n] and [q, n].

    >>> big = np.array([[1 << 40, 3]], dtype=np.uint64)
    >>> wrapping_product(big, np.array([[1 << 24, -1]])).astype(np.int64)
    array([[-3]])
    """
    p, n = left.shape
    q = right.shape[0]
    if right.shape[1] != n:
        raise ValueError(f"columns of {n} and {right.shape[1]} rows have no products")
    one, other = _Limbs(left), _Limbs(right)
    # sums[s] collects the products of limbs i and j with i + j = s; beyond 2 they wrap to nothing
    sums = np.zeros((3, p, q), dtype=np.int64)
    for start in range(0, n, _ROWS):
        a, b = one.cut(start), other.cut(start)
        for i in range(one.count):
            reach = min(other.count, 3 - i)
            block = (a[i * p : (i + 1) * p] @ b[: reach * q].T).astype(np.int64)
            for j in range(reach):
                sums[i + j] += block[:, j * q : (j + 1) * q]
    words = sums.view(np.uint64)
    return words[0] + (words[1] << np.uint64(LIMB)) + (words[2] << np.uint64(2 * LIMB))


class _Limbs:
    """One factor, cut into limbs a few hundred rows at a time so that they stay in the cache.

    Small signed values are one limb as they are; everything else is three limbs of the
    unsigned word.
    """

    def __init__(self, values: np.ndarray) -> None:
        if values.dtype not in (np.int64, np.uint64):
            raise ValueError(f"factors are int64 or uint64, not {values.dtype}")
        small = values.dtype == np.int64 and (
            values.size == 0
            or (int(values.max()) <= 1 << LIMB and int(values.min()) >= -(1 << LIMB))
        )
        self.count = 1 if small else 3
        self.values = values if small else values.view(np.uint64)
        self.columns = len(values)
        self.room = np.empty((self.count * self.columns, _ROWS))
        self.word = np.empty((self.columns, _ROWS), dtype=np.uint64)

    def cut(self, start: int) -> np.ndarray:
        """float64 [limbs * columns, rows] of the rows from `start` on."""
        part = self.values[:, start : start + _ROWS]
        rows, p = part.shape[1], self.columns
        room, word = self.room[:, :rows], self.word[:, :rows]
        if self.count == 1:
            room[:] = part
            return room
        np.bitwise_and(part, _MASK, out=word)
        room[:p] = word.view(np.int64)
        np.right_shift(part, np.uint64(LIMB), out=word)
        np.bitwise_and(word, _MASK, out=word)
        room[p : 2 * p] = word.view(np.int64)
        np.right_shift(part, np.uint64(2 * LIMB), out=word)
        room[2 * p :] = word.view(np.int64)
        return room
