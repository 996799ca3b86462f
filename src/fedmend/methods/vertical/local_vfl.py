"""LocalVFL: a split network on aligned rows and on the rows only the label party has.

A party that does not know a row stands in with zeros: the mean of its standardised columns,
"missing" for its nominal ones. (RISA's baseline "Local+VFL".)
"""

from __future__ import annotations

from typing import ClassVar

from fedmend.federation import Federation
from fedmend.methods.network import SplitEstimator
from fedmend.split.features import ALIGNED
from fedmend.split.session import AlignedJudges
from fedmend.split.training import SplitNetwork


class LocalVFLNetwork(SplitNetwork):
    """A split network judged by aligned rows, where enough of them can be held out."""

    session_type = AlignedJudges
    stand_ins = "fixed"


class LocalVFL(SplitEstimator):
    """Uses every labelled row, and predicts for people the other parties do not know."""

    _network_type: ClassVar[type[SplitNetwork]] = LocalVFLNetwork

    def _training_rows(self, fed: Federation, label_party: str) -> list[list[object]]:
        counts = fed.alignment
        return [[ALIGNED, counts.aligned], [label_party, counts.unaligned[label_party]]]
