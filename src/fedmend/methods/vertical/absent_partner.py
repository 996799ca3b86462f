"""AbsentPartner: one model for whoever knows a row.

In training parties are left out of the row at random, so that the model has met every set of
parties it may have to predict with. With ``fusion="mean"`` the embeddings that exist are averaged
and of every size one subset of a row's parties is drawn (LASER-VFL: Valdeira, Wang, Chi, 2024);
with ``fusion="concat"`` passive parties are dropped with a fixed probability and zeros stand in,
the label party never (PlugVFL: Sun et al., 2023).
"""

from __future__ import annotations

from typing import Any, ClassVar

from fedmend.errors import ConfigError
from fedmend.federation import Federation
from fedmend.methods.network import SplitEstimator
from fedmend.split.features import ALIGNED
from fedmend.split.partial import PartialNetwork
from fedmend.split.training import SplitNetwork

FUSIONS = ("mean", "concat")


class AbsentPartner(SplitEstimator):
    """Trains on aligned rows and the label party's others; predicts rows known to one party.

    fusion: "mean" (LASER-VFL) or "concat" (PlugVFL); drop: how often "concat" leaves a party out.
    share_every: for sides of like shape: bottoms are joined after so many steps (see `RISA`).
    """

    _network_type: ClassVar[type[SplitNetwork]] = PartialNetwork

    def __init__(
        self, *, fusion: str = "mean", drop: float = 0.3, share_every: int = 0, **params: Any
    ) -> None:
        super().__init__(**params)
        self.fusion = fusion
        self.drop = drop
        self.share_every = share_every

    def _training_rows(self, fed: Federation, label_party: str) -> list[list[object]]:
        counts = fed.alignment
        return [[ALIGNED, counts.aligned], [label_party, counts.unaligned[label_party]]]

    def _options(self) -> dict[str, Any]:
        problems = []
        if self.fusion not in FUSIONS:
            problems.append(f"fusion must be one of {FUSIONS}, got {self.fusion!r}")
        if not 0 <= self.drop < 1:
            problems.append(f"drop must be in [0, 1), got {self.drop}")
        if self.share_every < 0:
            problems.append(f"share_every must not be negative, got {self.share_every}")
        if problems:
            raise ConfigError(problems)
        joint = {"kind": "mean", "fusion": self.fusion, "drop": self.drop}
        return {"joint": joint, "share_every": self.share_every}
