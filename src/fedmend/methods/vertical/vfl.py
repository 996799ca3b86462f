"""Split networks as they are: Local, VFL and LocalVFL, which differ in the rows they train on."""

from __future__ import annotations

from typing import ClassVar

from fedmend.errors import DataError
from fedmend.federation import Federation
from fedmend.federation.bound import declare
from fedmend.methods.network import SplitEstimator
from fedmend.split.features import ALL
from fedmend.split.session import AlignedJudges
from fedmend.split.training import SplitNetwork
from fedmend.split.workers import BottomWorker, TopWorker

__all__ = ["VFL", "Local", "LocalVFL"]


class VFL(SplitEstimator):
    """Plain vertical federated learning: one split network, on aligned rows only."""


class Local(SplitEstimator):
    """The label party's own model, of all its rows and only its own columns.

    Needs no alignment, and nothing of a row leaves the party.
    """

    def _parties(self, fed: Federation, label_party: str) -> list[str]:
        if not fed.roster[label_party]["features"]:
            raise DataError(
                "has labels only, so there is nothing to learn from alone",
                party=label_party,
                mend="VFL, which uses the other parties' columns",
            )
        return [label_party]

    def _training_rows(self, fed: Federation, label_party: str) -> list[list[object]]:
        return [[ALL, fed.roster[label_party]["rows"]]]

    def _all_rows(self, fed: Federation) -> list[list[object]]:
        return self._training_rows(fed, str(self.network_.label_party))


class LocalVFLNetwork(SplitNetwork):
    """A split network judged by aligned rows, where enough of them can be held out."""

    session_type = AlignedJudges
    stand_ins = "fixed"


class LocalVFL(SplitEstimator):
    """Uses every labelled row, and predicts for people the other parties do not know.

    A party that does not know a row has zeros for it: the mean of its standardised columns,
    "missing" for its nominal ones. (RISA's baseline "Local+VFL".)
    """

    _network_type: ClassVar[type[SplitNetwork]] = LocalVFLNetwork
    _trains_on = "labelled"


declare("local", TopWorker)
declare("vfl", BottomWorker, TopWorker)
declare("local-vfl", BottomWorker, TopWorker)
