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

C may ask for anything, in any order. So which side a worker is on is settled when it starts and
part of the key agreement; P is A's, Q is B's; R is bound to the number of the product, the masked
columns it is of, both their counts and the bits. Whatever was not told to both alike does not
cancel, and what C then holds is uniform.

The textbook form has C deal the masks and A and B exchange the differences through C in sealed
messages. It needs the same trust and the same three matrix products, but twice the traffic, and
shows A and B masked values of each other; so this form is used instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmend.errors import ConfigError, CryptoError
from fedmend.federation.site import Site
from fedmend.federation.worker import exposed
from fedmend.secure.columns import Products, ProductWorker, Wanted
from fedmend.secure.exact import (
    BLOCK_ROWS,
    LEAST_BITS,
    SHORT_BITS,
    Blocked,
    blocks,
    wrapping_product,
)
from fedmend.secure.keys import MaskBlocks, mask_stream

SIDES = {"fixed": "changing", "changing": "fixed"}


class DealerWorker(ProductWorker):
    """One side, `role`: "fixed" or "changing"."""

    def __init__(self, site: Site, scope: str = "train", *, role: str) -> None:
        super().__init__(site, scope)
        if role not in SIDES:
            raise ConfigError(f"role must be one of {', '.join(SIDES)}, got {role!r}")
        self.role, self.counterpart = role, SIDES[role]
        self._number = 0  # under which the columns, as they are now, were masked
        self._masked: Blocked | None = None  # changing side, until they were multiplied

    @exposed(kind="count")
    def load(self, provider: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        # A product of other columns than were masked would tell their difference.
        self._number, self._masked = 0, None
        return super().load(provider, settings)

    @exposed(kind="masked")
    def mask(self, other: str, number: int) -> np.ndarray:
        """This side's columns less a fresh uniform mask that `other` can make again."""
        values = self.columns.values.view(np.uint64)
        key = self.mask_key(other, "columns", number, *values.shape, owner=self.site.name)
        masked = Blocked(np.empty(values.size, np.uint64), self.columns.values.shape)
        masks = MaskBlocks(key, self.columns.values.shape, BLOCK_ROWS)
        for block, mask, room in zip(blocks(values), masks, masked, strict=True):
            np.subtract(block, mask, out=room)
        self._number = number
        if self.role == "changing":
            self._masked = masked
        return masked.words

    @exposed(kind="control")
    def multiply_fixed(self, other: str, number: int, count: int, bits: int) -> None:
        """The fixed side's share: own columns with the other's mask, blinded."""
        self._be("fixed", self._number > 0)
        values = self.columns.values
        mask = self._masks_of(other, number, (count, values.shape[1]))
        about = (self._number, len(values), count, bits)
        key = self.mask_key(other, "blind", number, *about, owner=self.site.name)
        product = wrapping_product(values, mask, bits, self.columns.max_abs)
        self.keep_share(product + mask_stream(key, (len(values), count)), bits)

    @exposed(kind="control")
    def multiply_changing(self, other: str, number: int, fixed: int, count: int, bits: int) -> None:
        """The changing side's share: own masked columns with the fixed side's mask, unblinded."""
        masked, self._masked = self._masked, None
        self._be("changing", masked is not None and number == self._number)
        assert masked is not None
        mask = self._masks_of(other, fixed, (count, masked.shape[1]))
        about = (fixed, count, masked.shape[0], bits)
        key = self.mask_key(other, "blind", number, *about, owner=other)
        blind = mask_stream(key, (count, masked.shape[0]))
        self.keep_share(wrapping_product(mask, masked, bits) - blind, bits)

    def _masks_of(self, other: str, number: int, shape: tuple[int, int]) -> MaskBlocks:
        key = self.mask_key(other, "columns", number, *shape, owner=other, again=True)
        return MaskBlocks(key, shape, BLOCK_ROWS)

    def _be(self, role: str, masked: bool) -> None:
        if self.role != role:
            raise CryptoError(
                f"party {self.site.name!r} is the {self.role} side of these products and is asked "
                f"for the {role} side's share. Mend: start workers for other products"
            )
        if not masked:
            raise CryptoError(
                f"party {self.site.name!r} has not masked the columns of this product. "
                "Mend: ask for the product from its start"
            )


class DealerProducts(Products):
    """The coordinator's half; holds A' between products."""

    worker = DealerWorker

    _number = 0
    _fixed_number = 0
    _masked_fixed: Blocked | None = None

    def products(self, wanted: Wanted) -> np.ndarray | None:
        a, b, fixed, changing = self.a, self.b, wanted.fixed, wanted.changing
        if self._masked_fixed is None:
            self._fixed_number = self._next()
            words = a.mask(self.changing, self._fixed_number)
            self._masked_fixed = _received(words, fixed, self.fixed)
        number = self._next()
        masked = _received(b.mask(self.fixed, number), changing, self.changing)
        # Masks are uniform in 64 bits; where the products need fewer, only those are multiplied.
        bits = max(wanted.largest.bit_length() + 1, LEAST_BITS)
        bits = bits if bits <= SHORT_BITS else 64
        a.multiply_fixed(self.changing, number, len(changing["names"]), bits)
        b.multiply_changing(self.fixed, number, self._fixed_number, len(fixed["names"]), bits)
        return self.opened(wanted, bits, wrapping_product(self._masked_fixed, masked, bits))

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
