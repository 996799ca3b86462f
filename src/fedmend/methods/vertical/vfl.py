"""Split networks as they are: Local, VFL, LocalVFL and RandomMatch differ in the rows they use."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedmend.federation.bound import declare
from fedmend.methods.network import LocalOnly, SplitEstimator
from fedmend.split.features import Segments
from fedmend.split.training import AlignedJudges, SplitNetwork
from fedmend.split.workers import BottomWorker, TopWorker

__all__ = ["VFL", "Local", "LocalVFL", "RandomMatch"]


class VFL(SplitEstimator):
    """Plain vertical federated learning: one split network, on aligned rows only."""


class Local(LocalOnly, SplitEstimator):
    """One network at the label party."""


class LocalVFLNetwork(SplitNetwork):
    """A split network judged by aligned rows, where enough of them can be held out."""

    session_type = AlignedJudges
    imputes = "fixed"


class LocalVFL(SplitEstimator):
    """Uses every labelled row, and predicts for people the other parties do not know.

    A party that does not know a row has zeros for it: the mean of its standardised columns,
    "missing" for its nominal ones. (RISA's baseline "Local+VFL".)
    """

    _network_type: ClassVar[type[SplitNetwork]] = LocalVFLNetwork
    _trains_on = "labelled"


class RandomMatchWorker(BottomWorker):
    """A feature party that answers for rows it does not know with rows drawn at random."""

    def _rows(self, segments: Segments) -> np.ndarray:
        rows = super()._rows(segments)
        unknown = np.flatnonzero(rows < 0)
        if not len(unknown):
            return rows
        alignment = self.alignment
        pool = alignment.unaligned if len(alignment.unaligned) else alignment.aligned
        if len(pool):
            rows[unknown] = drawn(pool, len(unknown), self.site.rng(f"match {self.scope}"))
        return rows


def drawn(pool: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` out of `pool`, each as often as any other (once more at most)."""
    rounds = -(-count // len(pool))
    return np.concatenate([rng.permutation(pool) for _ in range(rounds)])[:count]


class RandomMatchNetwork(SplitNetwork):
    """A split network whose passive parties answer for rows they do not know."""

    bottom_worker = RandomMatchWorker
    session_type = AlignedJudges
    imputes = "asked"


class RandomMatch(SplitEstimator):
    """A row without a partner gets somebody else's (RISA's baseline "Random Match").

    Every row that only the label party has is paired once with a row drawn from those the other
    party has besides; the pair then trains, and is predicted, as if it were one person. Nothing is
    known about the pairs but that they are wrong: what the method gains, it gains from more
    labelled rows for one side.
    """

    _network_type: ClassVar[type[SplitNetwork]] = RandomMatchNetwork
    _trains_on = "labelled"


declare("local", TopWorker)
declare("vfl", BottomWorker, TopWorker)
declare("local-vfl", BottomWorker, TopWorker)
declare("random-match", RandomMatchWorker, TopWorker)
