"""AbsentPartner: one model for whoever knows a row.

In training parties are left out of the row at random, so that the model has met every set of
parties it may have to predict with. With ``fusion="mean"`` the embeddings that exist are averaged
and of every size one subset of a row's parties is drawn (LASER-VFL: Valdeira, Wang, Chi, 2024);
with ``fusion="concat"`` passive parties are dropped with a fixed probability and zeros are put in,
the label party never (PlugVFL: Sun et al., 2023).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedmend._parameters import NOT_NEGATIVE, PROPER_SHARE, Rules, one_of, parameters
from fedmend.errors import ConfigError
from fedmend.federation.bound import declare
from fedmend.learn.nets import mlp
from fedmend.methods.network import SplitEstimator
from fedmend.split.partial import (
    JointSpec,
    JointTop,
    PartialBottomWorker,
    PartialNetwork,
    PartialTopWorker,
    Views,
    joint_options,
    register,
    row_losses,
    weighted_mean,
)
from fedmend.split.training import SplitNetwork

__all__ = ["AbsentPartner"]

# ---------------------------------------------------------------------------------- label party


class MeanTop(JointTop):
    """options: fusion "mean" or "concat"; drop: how often "concat" leaves a passive party out."""

    def __init__(self, spec: JointSpec) -> None:
        super().__init__(spec)
        self.mean = self.options["fusion"] == "mean"
        if self.mean and len(set(spec.widths)) > 1:
            raise ConfigError(
                f"fusion='mean' needs embeddings of one width, got {spec.widths}. "
                "Mend: one embedding=…, or fusion='concat'"
            )
        width = spec.widths[0] if self.mean else sum(spec.widths)
        self.body = mlp(width, spec.hidden, spec.out)

    def outputs(self, views: Views) -> Tensor:
        return self._joined(views, views.masks())

    def loss(self, views: Views, targets: Tensor) -> Tensor:
        masks = views.masks()
        subsets = self._one_of_each_size(masks) if self.mean else self._plugged(masks)
        total = targets.new_zeros((), dtype=torch.float32)
        for weight, chosen in subsets:
            loss, known = row_losses(self._joined(views, chosen), targets)
            total = total + weight * weighted_mean(loss, known & chosen.any(0))
        return total

    def _joined(self, views: Views, masks: Tensor) -> Tensor:
        pieces = [
            views.dense(name) * mask[:, None]
            for name, mask in zip(views.values, masks, strict=True)
        ]
        if self.mean:
            joined = sum(pieces) / masks.sum(0).clamp_min(1)[:, None]
        else:
            joined = torch.cat(pieces, 1)
        return self.body(torch.relu(joined) if self.spec.hidden else joined)

    def _one_of_each_size(self, masks: Tensor) -> list[tuple[float, Tensor]]:
        """For every size one subset of each row's parties, drawn evenly; rows with fewer: none."""
        keys = torch.rand(masks.shape, generator=self.generator, device=masks.device)
        places = keys.masked_fill(~masks, 2.0).argsort(0).argsort(0)
        sizes = range(1, len(masks) + 1)
        weights = [subset_weight(len(masks), size) for size in sizes]
        enough = masks.sum(0)
        return [
            (weight / sum(weights), (places < size) & masks & (enough >= size))
            for size, weight in zip(sizes, weights, strict=True)
        ]

    def _plugged(self, masks: Tensor) -> list[tuple[float, Tensor]]:
        """Passive parties left out at random, the label party never."""
        keys = torch.rand(masks.shape, generator=self.generator, device=masks.device)
        kept = keys >= float(self.options["drop"])
        if self.spec.own >= 0:
            kept[self.spec.own] = True
        return [(1.0, masks & kept)]


def subset_weight(parties: int, size: int) -> float:
    """LASER-VFL's weight of one sampled subset of a size: C(n-1, k-1) / k."""
    return math.comb(parties - 1, size - 1) / size


register("mean", MeanTop)

# ---------------------------------------------------------------------------------- estimator


@parameters
class AbsentPartner(SplitEstimator):
    """Trains on aligned rows and the label party's others; predicts rows known to one party.

    fusion: "mean" (LASER-VFL) or "concat" (PlugVFL); drop: how often "concat" leaves a party out.
    share_every: for sides of like shape: bottoms are joined after so many steps (see `RISA`).
    """

    fusion: str = "mean"
    drop: float = 0.3
    share_every: int = 0

    _network_type: ClassVar[type[SplitNetwork]] = PartialNetwork
    _trains_on = "labelled"
    _rules: ClassVar[Rules] = {
        "fusion": one_of(("mean", "concat")),
        "drop": PROPER_SHARE,
        "share_every": NOT_NEGATIVE,
    }

    def _options(self) -> dict[str, Any]:
        return joint_options(self, "mean", "fusion", "drop") | {"share_every": self.share_every}


declare("absent-partner", PartialBottomWorker, PartialTopWorker)
