"""The common model averaged over rounds: what is told, beside what is trained on.

A round's common model depends on who was drawn for it, and its accuracy swings from round to round.
A mean of the models of past rounds swings less (Polyak and Juditsky, 1992; over the rounds of
FedAvg, as over the steps of SGD). It is the coordinator's own doing: nothing more is learnt of a
party, and training goes on from the plain model. Ours, not the papers'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedmend.errors import ConfigError

__all__ = ["RoundAverage"]


class RoundAverage:
    """A running mean of weights (and batch norms' statistics) over about so many rounds.

    The newest model has the share 2 / (1 + rounds), that of an exponential mean as old on average
    as the plain mean of the last `rounds`; among the first rounds 2 / (1 + round), so that the
    first ones are soon forgotten. One vector is kept, whatever `rounds` is.

    >>> mean = RoundAverage(3)
    >>> [float(mean.add(torch.tensor([value]))) for value in (1.0, 4.0, 4.0, 0.0)]
    [1.0, 3.0, 3.5, 1.75]
    """

    def __init__(self, rounds: int) -> None:
        if rounds < 1:
            raise ConfigError(f"average_rounds must be at least 1, got {rounds}")
        self.rounds = rounds
        self.added = 0
        self.weights: Tensor | None = None

    def add(self, weights: Tensor) -> Tensor:
        """Take the model of another round in, and give the mean."""
        self.added += 1
        if self.weights is None:
            self.weights = weights.clone()
        else:
            share = 2.0 / (1.0 + min(self.added, self.rounds))
            self.weights = torch.lerp(self.weights, weights, share)
        return self.weights

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        if self.weights is None:
            return {}
        return {"added": self.added, "weights": self.weights.detach().cpu()}

    def restore(self, saved: Mapping[str, Any], like: Tensor) -> None:
        """Go on from `state`; from an empty one (no mean was kept then) at the next round."""
        self.added, self.weights = int(saved.get("added", 0)), None
        if "weights" in saved:
            self.weights = saved["weights"].to(like.device, like.dtype)
