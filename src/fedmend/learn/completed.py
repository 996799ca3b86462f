"""Split training in which completed rows count as far as their cells are believed.

A completed cell is a guess from the other parties' columns: a network that takes it for observed
learns that the column says what those say already. Where cells deserve little trust the row counts
little (`learn.belief.row_confidence`). One number a row leaves the party that completed it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedmend.federation import exposed
from fedmend.learn.belief import row_confidence
from fedmend.learn.session import Session
from fedmend.learn.split import BottomWorker, TopWorker
from fedmend.learn.training import SplitNetwork

__all__ = ["WeighedNetwork"]


class ConfidentBottomWorker(BottomWorker):
    """A feature party that tells how far its side of each row is believed."""

    _attached: np.ndarray

    @exposed(kind="control")
    def attach(self, segments: list[Any], settings: dict[str, Any]) -> None:
        """As of any split network; remembers the rows."""
        super().attach(segments, settings)
        self._attached = self._rows(segments)

    @exposed(kind="statistic")
    def confidence(self) -> np.ndarray | None:
        """How far this party's side of each row is believed; None where nothing was completed."""
        found = row_confidence(self.site, self.scope.partition("@")[0])
        if found is None:
            return None
        return np.where(self._attached >= 0, found[self._attached], 1.0).astype(np.float32)


class WeighingTopWorker(TopWorker):
    """A label party that weighs rows."""

    @exposed(kind="control", takes={"trust": "statistic"})
    def weigh(self, trust: dict[str, np.ndarray]) -> None:
        """Rows count by the product of how far every party's side of them is believed."""
        weights = np.prod(list(trust.values()), axis=0)
        half = self.half
        half.weights = torch.as_tensor(weights, dtype=half.settings.dtype, device=self.device)


class WeighedSession(Session):
    """Asks for confidences where rows were completed."""

    def _begin(self) -> None:
        super()._begin()
        fed = self.network.fed
        if self._trains and fed.is_aligned and fed.alignment.completed:
            found = self.bottoms.confidence()
            told = {name: trust for name, trust in found.items() if trust is not None}
            if told:
                self.top.weigh(told)


class WeighedNetwork(SplitNetwork):
    """A split network whose completed rows count as far as they are believed."""

    bottom_worker = ConfidentBottomWorker
    top_worker = WeighingTopWorker
    session_type = WeighedSession
