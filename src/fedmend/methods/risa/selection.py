"""Which imputed rows stay in the training: those the network is not too uncertain of (RISA, §II-D).

Every E epochs the mean uncertainty about each imputed row since the last time is compared with
tau_t = tau_0^(t / T), which falls from one to tau_0; rows above leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Watch", "falling_threshold"]


def falling_threshold(last: float, done: float) -> float:
    """tau_t = tau_0^(t / T): from one down to `last`.

    >>> falling_threshold(0.25, 0.5)
    0.5
    """
    return float(last**done)


class Watch:
    """The mean uncertainty about every row since it was last cleared."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._sum = torch.zeros(rows, device=device)
        self._seen = torch.zeros(rows, device=device)

    def add(self, numbers: Tensor, uncertainty: Tensor) -> None:
        """**Shape** [n] each."""
        self._sum.index_add_(0, numbers, uncertainty.float())
        self._seen.index_add_(0, numbers, torch.ones_like(uncertainty, dtype=torch.float32))

    def below(self, rows: np.ndarray, limit: float) -> np.ndarray:
        """Of these rows those whose mean is at most the limit; rows never seen stay."""
        at = torch.from_numpy(np.ascontiguousarray(rows)).to(self._seen.device)
        mean = self._sum[at] / self._seen[at].clamp_min(1.0)
        return rows[((mean <= limit) | (self._seen[at] == 0)).cpu().numpy()]

    def clear(self) -> None:
        self._sum.zero_()
        self._seen.zero_()

    def to_wire(self) -> dict[str, Any]:
        return {"sum": self._sum, "seen": self._seen}

    def take(self, saved: Mapping[str, Any]) -> None:
        self._sum.copy_(saved["sum"])
        self._seen.copy_(saved["seen"])
