"""What the party halves of all product protocols have in common: two sides, and two shares.

Whatever the protocol, it ends with the fixed and the changing party each holding an array of
uniform numbers (a share); together, and with the coordinator's own part where it has one, they
add up to the products modulo a power of two. Only then is decided who learns the products: the
coordinator, or one of the two parties.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.errors import ConfigError, CryptoError
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.secure.columns import ColumnsWorker, IntegerColumns
from fedmend.secure.keys import mask_stream

if TYPE_CHECKING:
    from fedmend.federation.site import Site

__all__ = ["ProductWorker", "lowest_bits", "signed"]


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

    # ------------------------------------------------------------------ shares

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

    @exposed(kind="masked", opens="statistic")
    def share(self) -> np.ndarray:
        """This party's share, to the coordinator."""
        return self._take_share()

    @exposed(kind="masked", opens="statistic")
    def share_for(self, to: str, blind: bytes | None = None) -> Sealed:
        """This party's share in a box for the other one; `blind` seeds what is added to it."""
        share = self._take_share()
        if blind is not None:
            share = lowest_bits(share + mask_stream(blind, 0, share.shape), self._share_bits)
        return self.seal(share, to=to, kind="masked")

    @exposed(kind="control", takes={"box": "masked", "rest": "masked"})
    def add_up(
        self, box: Sealed, sender: str, bits: int, store: str, rest: np.ndarray | None = None
    ) -> None:
        """Learn the products: they stay in this site's state under `store` (int64)."""
        total = self._take_share() + self.open(box, sender=sender, kind="masked")
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
