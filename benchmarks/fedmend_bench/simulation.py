"""What a simulation may do and a federation may not: say which rows correspond, look at a clock."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedmend.federation import Alignment, AlignmentCounts, Federation
from fedmend.federation.engines.local import LocalEngine

__all__ = ["apart", "know", "together", "wait"]

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
