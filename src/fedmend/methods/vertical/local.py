"""Local: the label party alone, with all its rows and only its own columns."""

from __future__ import annotations

from fedmend.errors import DataError
from fedmend.federation import Federation
from fedmend.methods.network import SplitEstimator
from fedmend.split.features import ALL


class Local(SplitEstimator):
    """The label party's own model. Needs no alignment, and nothing of a row leaves the party."""

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
        return [[ALL, fed.roster[str(self.network_.label_party)]["rows"]]]
