"""Products by masks in Z_2^64 with the coordinator as helper: about as fast as plain arithmetic.

A and B share a key that the coordinator C does not have, and draw from it the uniform P (shaped
like A's columns), Q (like B's) and R (like the result):

    A -> C   A' = A - P          once; reused for every product
    B -> C   B' = B - Q          Q fresh for every product
    A -> C   A Q^T + R
    B -> C   P B'^T - R
    C        A' B'^T + (both)  =  A B^T

C sees uniform numbers, and the sum of the last two messages, which is the result less what C
computes itself. Where products need fewer bits, the last two messages carry no more than those: a
carry out of them would tell C whether A Q^T is large. A and B receive nothing. C must not work
together with A or B.

The textbook form has C deal the masks and A and B exchange the differences through C in sealed
boxes. It needs the same trust and the same three matrix products, but twice the traffic, and
shows A and B masked values of each other; so this form is used instead.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.errors import CryptoError
from fedmend.federation.worker import exposed
from fedmend.secure.exact import (
    BLOCK_ROWS,
    LEAST_BITS,
    SHORT_BITS,
    Blocked,
    blocks,
    wrapping_product,
)
from fedmend.secure.keys import KEY_BYTES, MaskBlocks, mask_stream
from fedmend.secure.product_worker import ProductWorker, lowest_bits, signed

if TYPE_CHECKING:
    from fedmend.federation.federation import Crew
    from fedmend.federation.site import Site

__all__ = ["DealerProducts", "DealerWorker"]


class DealerWorker(ProductWorker):
    """Either side. Numbers of products only grow, so that no mask is ever used twice."""

    def __init__(self, site: Site, scope: str = "train") -> None:
        super().__init__(site, scope)
        self._last = 0
        self._masked: Blocked | None = None

    @exposed(kind="masked")
    def mask(self, other: str, role: str, number: int) -> np.ndarray:
        """This side's columns less a fresh uniform mask that `other` can make again."""
        self._advance(number)
        values = self.columns.values.view(np.uint64)
        masked = Blocked(np.empty(values.size, np.uint64), self.columns.values.shape)
        masks = self._masks(other, role, number, values.shape)
        for block, mask, room in zip(blocks(values), masks, masked, strict=True):
            np.subtract(block, mask, out=room)
        if role == "changing":
            self._masked = masked
        return masked.words

    @exposed(kind="control")
    def multiply_fixed(self, other: str, number: int, count: int, bits: int) -> None:
        """The fixed side's share: own columns with the other's mask, blinded."""
        self._advance(number)
        values = self.columns.values
        mask = self._masks(other, "changing", number, (count, values.shape[1]))
        blind = self._blind(other, number, (len(values), count))
        product = wrapping_product(values, mask, bits, self.columns.max_abs)
        self.keep_share(product + blind, bits)

    @exposed(kind="control")
    def multiply_changing(self, other: str, number: int, fixed: int, count: int, bits: int) -> None:
        """The changing side's share: own masked columns with the fixed side's mask, unblinded."""
        masked, self._masked = self._masked, None
        if masked is None or number != self._last:
            raise CryptoError(
                f"party {self.site.name!r} has masked nothing for product {number}. "
                "Mend: ask for the product from its start"
            )
        mask = self._masks(other, "fixed", fixed, (count, masked.shape[1]))
        blind = self._blind(other, number, (count, masked.shape[0]))
        self.keep_share(wrapping_product(mask, masked, bits) - blind, bits)

    def _masks(self, other: str, role: str, number: int, shape: tuple[int, int]) -> MaskBlocks:
        return MaskBlocks(self._seed(other, role), number, shape, BLOCK_ROWS)

    def _blind(self, other: str, number: int, shape: tuple[int, int]) -> np.ndarray:
        return mask_stream(self._seed(other, "blind"), number, shape)

    def _seed(self, other: str, role: str) -> bytes:
        return self.shared_seed(other, f"products: {role}")

    def _advance(self, number: int) -> None:
        if number <= self._last:
            raise CryptoError(
                f"party {self.site.name!r}: number {number} was used before, and a mask that is "
                "used twice hides nothing. Mend: count on"
            )
        self._last = number


class DealerProducts:
    """The coordinator's half; holds A' between products."""

    def __init__(self, crew: Crew, fixed: str, changing: str) -> None:
        self.crew, self.fixed, self.changing = crew, fixed, changing
        self._number = 0
        self._fixed_number = 0
        self._masked_fixed: Blocked | None = None

    def products(
        self,
        fixed: dict[str, Any],
        changing: dict[str, Any],
        to: str | None,
        store: str,
        largest: int,
    ) -> np.ndarray | None:
        a, b = self.crew[self.fixed], self.crew[self.changing]
        if self._masked_fixed is None:
            self._fixed_number = self._next()
            self._masked_fixed = _received(
                a.mask(self.changing, "fixed", self._fixed_number), fixed, self.fixed
            )
        number = self._next()
        masked = _received(b.mask(self.fixed, "changing", number), changing, self.changing)
        # Masks are uniform in 64 bits; where the products need fewer, only those are multiplied.
        bits = max(largest.bit_length() + 1, LEAST_BITS)
        bits = bits if bits <= SHORT_BITS else 64
        a.multiply_fixed(self.changing, number, len(changing["names"]), bits)
        b.multiply_changing(self.fixed, number, self._fixed_number, len(fixed["names"]), bits)
        own = wrapping_product(self._masked_fixed, masked, bits)
        if to is None:
            return signed(own + a.share() + b.share(), bits)
        # The party that learns the result knows the other's masks: its message needs one of C's.
        giver = self.changing if to == self.fixed else self.fixed
        blind = os.urandom(KEY_BYTES)
        box = self.crew[giver].share_for(to, blind)
        rest = lowest_bits(own - mask_stream(blind, 0, own.shape), bits)
        self.crew[to].add_up(box, giver, bits, store, rest)
        return None

    def _next(self) -> int:
        self._number += 1
        return self._number


def _received(words: np.ndarray, facts: dict[str, Any], party: str) -> Blocked:
    try:
        return Blocked(words, (len(facts["names"]), facts["rows"]))
    except ValueError as error:
        raise CryptoError(
            f"party {party!r} sent masked columns of another size: {error}. "
            "Mend: the same version of fedmend at every party"
        ) from error
