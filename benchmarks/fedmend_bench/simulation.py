"""What a simulation may do and a federation may not: say which rows correspond, look at a clock."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedmend.federation import Alignment, AlignmentCounts, Federation
from fedmend.federation.engines.local import LocalEngine

__all__ = ["apart", "know", "together", "wait", "without_cryptography"]

_NONE = np.zeros(0, np.int64)


def together(rows: int) -> Alignment:
    """All rows are known to every party, in the same order."""
    return Alignment(np.arange(rows), _NONE)


def apart(rows: int) -> Alignment:
    """All rows are a party's own."""
    return Alignment(_NONE, np.arange(rows))


def know(fed: Federation, rows: Alignment | Mapping[str, Alignment]) -> None:
    """Which rows correspond; no intersection is computed."""
    assert isinstance(fed.engine, LocalEngine)
    by_party = {name: rows for name in fed.names} if isinstance(rows, Alignment) else rows
    for name, alignment in by_party.items():
        fed.engine.site(name).alignments[fed.scope] = alignment
    counts = {name: len(alignment.unaligned) for name, alignment in by_party.items()}
    aligned = len(next(iter(by_party.values())).aligned)
    fed.note_alignment(AlignmentCounts(aligned, counts))


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


# ---------------------------------------------------------------- a machine without cryptography


def without_cryptography() -> None:
    """Where that package is not installed: encrypted messages stay open, and masks are numpy's.

    Models are the same, for a mask falls out of whatever is learnt. All parties are in this
    process, so that there is nobody to hide from.
    """
    try:
        import cryptography as cryptography
    except ModuleNotFoundError:
        from fedmend.secure import channel, histogram_product

        worker: Any = channel.SealingWorker
        worker._session = worker._ring = SimpleNamespace(public=bytes(32), identity=None)
        worker._ring.identity = worker._session
        worker._meet_one = lambda self, party, public: self._lines.update(
            {party: _OpenLine(self.site.name, party)}
        )
        histogram_product.mask_stream = _numpy_stream


class _OpenLine:
    """Between two workers of one process."""

    def __init__(self, *ends: str) -> None:
        self.ends = sorted(ends)

    def seal(self, plain: bytes, kind: str, rows: str) -> bytes:
        return plain

    def open(self, ciphertext: bytes, kind: str, rows: str) -> bytes:
        return ciphertext

    def seed(self, *purpose: str) -> bytes:
        return hashlib.sha256(repr((self.ends, purpose)).encode()).digest()


def _numpy_stream(key: bytes, shape: int | tuple[int, ...]) -> np.ndarray:
    drawn = np.random.default_rng(list(key)).bit_generator.random_raw(int(np.prod(shape)))
    return np.asarray(drawn, np.uint64).reshape(shape)
