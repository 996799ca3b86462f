"""Exact integer matrix products modulo a power of two through float64 BLAS.

numpy multiplies integer matrices without BLAS, many times slower than floats. Here factors are cut
into limbs of so few bits that limb products, summed over 512 rows or more, stay within 2^53 and are
exact in float64; they are put together again in 64-bit words, where wrapping around is wanted.

=====  ============  ============  ============================  ==================
bits   left          right         products of limbs             exact for rows
=====  ============  ============  ============================  ==================
64     22 22 22      22 22 22      6 (those beyond 2^64 wrap     512
                                   to nothing)
64     22 22 22      one, small    3                             512
52     26 26         18 18 18      5                             512
50     25 25         17 17 17      5                             2048
52     26 26         one, small    2                             512
=====  ============  ============  ============================  ==================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

SHORT_BITS = 52
LEAST_BITS = 40
_BLOCK_BITS = 9
BLOCK_ROWS = 1 << _BLOCK_BITS  # few enough for the cache; any limbs are exact over so many
_FLOOR = 2.0**52
_EXPONENT = np.uint64(0x433 << 52)  # the bits of float64 2^52
_HALF = np.uint64(1 << 51)


class Blocks(Protocol):
    """A factor of uint64 that is made block by block."""

    shape: tuple[int, int]

    def __iter__(self) -> Iterator[np.ndarray]: ...


Factor = np.ndarray | Blocks


def wrapping_product(
    left: Factor, right: Factor, bits: int = 64, bound: int | None = None
) -> np.ndarray:
    """``left @ right.T`` modulo 2^bits as uint64, for int64 or uint64 [p, n] and [q, n].

    A factor may also be the blocks of one: iterable, `BLOCK_ROWS` rows at a time, with a shape.

    bits: 64, or 40 to 52, which is faster and looks at the lowest bits of the factors only.
    bound: no value of `left` is larger in magnitude, where that is known already.

    >>> big = np.array([[1 << 40, 3]], dtype=np.uint64)
    >>> wrapping_product(big, np.array([[1 << 24, -1]])).astype(np.int64)
    array([[-3]])
    """
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"columns of {left.shape[1]} and {right.shape[1]} rows have no products")
    one, other = _limbs(left, right, bits, bound)
    reach = [
        sum(i * one.width + j * other.width < bits for j in range(other.count))
        for i in range(one.count)
    ]
    totals = _Totals(one, other, reach)
    for part, counterpart in zip(blocks(left), blocks(right), strict=True):
        totals.add(one.cut(part), other.cut(counterpart))
    total = totals.words()
    return total if bits == 64 else total & np.uint64((1 << bits) - 1)


class _Totals:
    """Sums of limb products: in floats as long as they are exact, then in 64-bit words."""

    def __init__(self, one: _Limbs, other: _Limbs, reach: list[int]) -> None:
        self.one, self.other, self.reach = one, other, reach
        shapes = [(one.columns, count * other.columns) for count in reach]
        self.sums = [np.zeros(shape, dtype=np.int64) for shape in shapes]
        self.floats = [np.zeros(shape) for shape in shapes]
        self.room = [np.empty(shape) for shape in shapes]
        self.exact_blocks = 1 << (53 - one.magnitude - other.magnitude - _BLOCK_BITS)
        self.count = 0

    def add(self, a: np.ndarray, b: np.ndarray) -> None:
        p = self.one.columns
        for i, (floats, room) in enumerate(zip(self.floats, self.room, strict=True)):
            np.matmul(a[i * p : (i + 1) * p], b[: floats.shape[1]].T, out=room)
            floats += room
        self.count += 1
        if self.count == self.exact_blocks:
            self._flush()

    def _flush(self) -> None:
        for i, (sums, floats) in enumerate(zip(self.sums, self.floats, strict=True)):
            # Powers of two change no digit of a float64.
            unscale = self.other.unscale[: floats.shape[1]] * self.one.unscale[i * self.one.columns]
            sums += (floats * unscale).astype(np.int64)
            floats[:] = 0.0
        self.count = 0

    def words(self) -> np.ndarray:
        self._flush()
        q = self.other.columns
        total = np.zeros((self.one.columns, q), dtype=np.uint64)
        for i, sums in enumerate(self.sums):
            for j in range(self.reach[i]):
                shift = np.uint64(i * self.one.width + j * self.other.width)
                total += sums.view(np.uint64)[:, j * q : (j + 1) * q] << shift
        return total


class Blocked:
    """A factor [columns, rows] stored block after block, each [columns, `BLOCK_ROWS`] or shorter.

    Taking a block out of a matrix that is stored column by column touches a page per column.
    """

    def __init__(self, words: np.ndarray, shape: tuple[int, int]) -> None:
        if words.dtype != np.uint64 or words.shape != (shape[0] * shape[1],):
            raise ValueError(
                f"{shape[0]} x {shape[1]} words do not come as {words.dtype} {list(words.shape)}"
            )
        self.words, self.shape = words, shape

    def __iter__(self) -> Iterator[np.ndarray]:
        columns, rows = self.shape
        for start in range(0, rows, BLOCK_ROWS):
            count = min(BLOCK_ROWS, rows - start)
            yield self.words[columns * start : columns * (start + count)].reshape(columns, count)


def blocks(factor: Factor) -> Iterator[np.ndarray]:
    """The blocks of a factor: `BLOCK_ROWS` rows of all columns at a time."""
    if not isinstance(factor, np.ndarray):
        return iter(factor)
    rows = range(0, factor.shape[1], BLOCK_ROWS)
    return (factor[:, start : start + BLOCK_ROWS] for start in rows)


def _limbs(left: Factor, right: Factor, bits: int, bound: int | None) -> tuple[_Limbs, _Limbs]:
    """Both factors with limbs that fit together; a factor of small values is one limb."""
    if bits != 64 and not LEAST_BITS <= bits <= SHORT_BITS:
        raise ValueError(f"bits must be {LEAST_BITS} … {SHORT_BITS} or 64, got {bits}")
    wide, narrow = (22, 22) if bits == 64 else (-(-bits // 2), -(-bits // 3))
    smallness = min(53 - _BLOCK_BITS - wide, wide)
    small = [_is_small(left, smallness, bound), _is_small(right, smallness, None)]
    widths = (wide, narrow if not small[0] else wide)
    one, other = (
        _Limbs(factor.shape[0], width, bits, smallness if few else None)
        for factor, width, few in zip((left, right), widths, small, strict=True)
    )
    return one, other


def _is_small(values: Factor, bits: int, bound: int | None) -> bool:
    if not isinstance(values, np.ndarray):
        return False
    if values.dtype not in (np.int64, np.uint64):
        raise ValueError(f"factors are int64 or uint64, not {values.dtype}")
    if values.dtype == np.uint64:
        return False
    most = 1 << bits
    if bound is not None and bound <= most:
        return True
    return values.size == 0 or (int(values.max()) <= most and int(values.min()) >= -most)


class _Limbs:
    """Cuts blocks of one factor into limbs, a few hundred rows at a time to stay in the cache.

    An integer below 2^52 put into the fraction of the float 2^52 is 2^52 + itself: so words become
    floats by vector instructions, where numpy's own conversion goes one by one. A limb stays at its
    place in the word, that is, too large by a power of two, which `unscale` takes out of products.
    """

    def __init__(self, columns: int, width: int, bits: int, small: int | None) -> None:
        self.columns, self.width, self.bits = columns, width, bits
        self.count = 1 if small is not None else -(-bits // width)
        self.magnitude = small if small is not None else width
        self.limbs = np.empty((self.count, columns, BLOCK_ROWS))
        self.spare = np.empty((2, columns, BLOCK_ROWS), dtype=np.uint64)
        # What does not fit the 52 bits of a fraction is shifted down and cut by itself.
        self.low = self.count if bits <= SHORT_BITS else SHORT_BITS // width
        places = [at * width if at < self.low else 0 for at in range(self.count)]
        self.unscale = np.repeat([2.0**-place for place in places], columns)

    def cut(self, part: np.ndarray) -> np.ndarray:
        """float64 [limbs * columns, rows] of a block; valid until the next one is cut."""
        rows = part.shape[1]
        limbs, words = self.limbs[:, :, :rows], self.spare[:, :, :rows]
        part = part.view(np.uint64)
        if self.count == 1:
            # Signed: half of 2^52 is added and taken away again.
            np.add(part, _EXPONENT + _HALF, out=words[0])
            np.subtract(words[0].view(np.float64), _FLOOR + float(_HALF), out=limbs[0])
        else:
            self._cut_low(part, limbs, words)
            for at in range(self.low, self.count):
                np.right_shift(part, np.uint64(at * self.width), out=words[0])
                np.bitwise_or(words[0], _EXPONENT, out=words[0])
                np.subtract(words[0].view(np.float64), _FLOOR, out=limbs[at])
        return limbs.reshape(self.count * self.columns, rows)

    def _cut_low(self, part: np.ndarray, limbs: np.ndarray, words: np.ndarray) -> None:
        """From the top: a limb is the difference of the words without and with the lower ones."""
        floats = words.view(np.float64)
        whole = np.uint64((1 << min(self.low * self.width, self.bits)) - 1)
        lower = np.bitwise_and(part, whole, out=limbs[0].view(np.uint64))
        np.bitwise_or(lower, _EXPONENT, out=lower)
        above: np.ndarray | float = _FLOOR
        for at in range(self.low - 1, 0, -1):
            spare = at % 2
            kept = ~np.uint64((1 << at * self.width) - 1)
            np.bitwise_and(lower, kept, out=words[spare])
            np.subtract(floats[spare], above, out=limbs[at])
            above = floats[spare]
        np.subtract(limbs[0], above, out=limbs[0])
