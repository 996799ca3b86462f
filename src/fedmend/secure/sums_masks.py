"""Pairwise masks: what each party sends is uniform, what all of them send adds up to the sum.

Party i sends x_i + Σ_{j>i} m_ij − Σ_{j<i} m_ij modulo 2^w, where the stream m_ij comes of a secret
that only i and j share (Bonawitz et al. 2017, section 4.1). Any K − 1 of the messages are uniform
and independent; all K add up to Σ x_i. The ring is the narrowest of 8, 16, 32 and 64 bits that
holds every sum the agreed range allows.

When a party may drop out, each adds a mask of its own whose seed it opens only after everybody's
message has arrived. Without it, a message that comes late would complete the sum of all beside the
sum of the rest, and the difference is one party's array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmend.errors import CryptoError
from fedmend.secure.keys import KEY_BYTES, stream_pieces
from fedmend.secure.sums_numbers import SumForm, narrowest

__all__ = ["add_streams", "check_total", "ring_of", "total_of"]

# A piece of stream and of the array it is added to stay in the processor's cache together.
_PIECE_BYTES = 1 << 16


def ring_of(form: SumForm, parties: int) -> np.dtype:
    """The unsigned type in which so many summands of this form add up without loss."""
    form.check(parties)
    return narrowest(parties * form.span)


def add_streams(ring: np.ndarray, added: Sequence[bytes], taken: Sequence[bytes]) -> None:
    """Add the keystreams of some keys to a flat unsigned array, and take away those of others."""
    step = _PIECE_BYTES // ring.dtype.itemsize
    for operation, keys in ((np.add, added), (np.subtract, taken)):
        for key in keys:
            stream = stream_pieces(key, 0, ring.nbytes, _PIECE_BYTES)
            for at, piece in zip(range(0, ring.size, step), stream, strict=True):
                part = ring[at : at + step]
                words = piece.view(ring.dtype.newbyteorder("<"))
                operation(part, words, out=part)


def total_of(
    messages: Mapping[str, np.ndarray], dtype: np.dtype, size: int, seeds: Mapping[str, bytes]
) -> np.ndarray:
    """The sum of shifted values: all messages added up, the opened masks taken away."""
    total = np.zeros(size, dtype)
    for party, array in messages.items():
        _check_message(party, array, dtype, total.shape)
        np.add(total, array, out=total)
    for party, seed in seeds.items():
        if not isinstance(seed, bytes) or len(seed) != KEY_BYTES:
            raise CryptoError(f"party {party!r}: the seed of its mask is not {KEY_BYTES} bytes")
    add_streams(total, (), list(seeds.values()))
    return total


def check_total(total: np.ndarray, form: SumForm, parties: int) -> None:
    """Masks that do not cancel leave uniform numbers, most of them no possible sum."""
    if total.size and int(total.max()) > parties * form.span:
        raise CryptoError(
            "the masks do not cancel: a message was altered, or the parties were not told the "
            "same round, name, range and list of parties. Mend: start the sum anew"
        )


def _check_message(party: str, array: Any, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    if isinstance(array, np.ndarray) and array.dtype == dtype and array.shape == shape:
        return
    seen = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
    raise CryptoError(
        f"party {party!r} sent {seen} where {dtype} {shape} was due: it was cut off or altered. "
        "Mend: start the sum anew"
    )
