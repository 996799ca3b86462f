"""Batches of fixed make-up: so many rows known to all, so many of each party's own.

Rows come in segments (rows known to all, then each party's own). A batch takes a fixed number of
each, so that overlapping rows are never lost among the others, and so that every party knows the
layout of a batch without being told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedmend.learn.augment import Weak, draw_weak
from fedmend.split.features import PAD

__all__ = ["MOST_PASSES", "Pools", "batch_make_up"]

# Overlapping rows are shown at most so often in an epoch, however few there are: learnt by heart
# they would be of no use.
MOST_PASSES = 4


def batch_make_up(counts: Sequence[int], batch_size: int, least: float) -> tuple[list[int], int]:
    """Rows of each segment in a batch, the first segment's at least a share `least`; and steps.

    >>> batch_make_up([100, 900, 0], 100, 0.25)
    ([25, 75, 0], 10)
    """
    total = sum(counts)
    size = min(batch_size, total)
    steps = max(1, round(total / size))
    first = 0
    if counts[0]:
        wanted = min(math.ceil(least * size), math.ceil(MOST_PASSES * counts[0] / steps))
        first = max(round(size * counts[0] / total), wanted, min(2, size))
    rest = total - counts[0]
    if not rest:
        first = size
    left = size - first
    sizes = [first]
    for place, count in enumerate(counts[1:], 2):
        later = sum(counts[place:])
        share = left if not later else round((size - first) * count / rest)
        share = min(left, max(share, 1) if count else 0)
        sizes.append(share)
        left -= share
    return sizes, steps


class Pools:
    """Training rows by segment, dealt into batches from one seed per epoch.

    A pool that a batch takes more of than its share goes round several times in an epoch.
    """

    def __init__(
        self,
        pools: Sequence[np.ndarray],
        batch_size: int,
        least: float,
        device: torch.device,
        *,
        augment: bool = False,
    ) -> None:
        self._pools = [torch.from_numpy(np.ascontiguousarray(p, dtype=np.int64)) for p in pools]
        self.sizes, self.steps = batch_make_up([len(p) for p in pools], batch_size, least)
        self.device = device
        self.augment = augment
        self.draws: Weak | None = None
        self._draws: Weak | None = None
        self._numbers = torch.zeros((0, 0), dtype=torch.int64)
        self._at = self._told_until = 0

    @property
    def batch_size(self) -> int:
        return sum(self.sizes)

    def start(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        columns = []
        for pool, size in zip(self._pools, self.sizes, strict=True):
            if not size:
                continue
            needed, found = self.steps * size, []
            while needed > 0:
                shuffled = pool[torch.randperm(len(pool), generator=generator)][:needed]
                found.append(shuffled)
                needed -= len(shuffled)
            columns.append(torch.cat(found).view(self.steps, size))
        self._numbers = torch.cat(columns, 1).to(self.device)
        if self.augment:
            rows = self.steps * self.batch_size
            self._draws = draw_weak(rows, generator, PAD).to(self.device)
        self._at = self._told_until = 0

    def next(self) -> Tensor:
        numbers = self._numbers[self._at]
        if self._draws is not None:
            at = self._at * self.batch_size
            self.draws = self._draws[at : at + self.batch_size]
        self._at += 1
        return numbers

    def walked(self) -> np.ndarray:
        """The row numbers handed out in this epoch since they were last told of.

        Of a whole epoch each once: how often chance deals which of them says nothing.
        """
        if self._at - self._told_until == self.steps:
            return torch.cat(self._pools).numpy()
        return self._numbers[self._told_until : self._at].reshape(-1).cpu().numpy()

    def told(self) -> None:
        """A loss over what was walked has been told."""
        self._told_until = self._at

    @property
    def done(self) -> float:
        """The share of this epoch's batches that were handed out."""
        return self._at / self.steps

    def places(self, mine: Sequence[bool]) -> Tensor:
        """Where in a batch the rows of these segments stand."""
        ends = np.cumsum(self.sizes)
        pieces = [
            np.arange(end - size, end)
            for size, end, own in zip(self.sizes, ends, mine, strict=True)
            if own
        ]
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *pieces])).to(self.device)
