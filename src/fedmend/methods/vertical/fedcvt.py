"""FedCVT: cross-view training of two parties (Kang, Liu, Liang, ACM TIST 2022).

Every party's embedding has a unique and a common half. What the other party would say of a row it
does not know is estimated by attention over aligned rows; rows without a label join when the
joint head and both parties' own heads agree and are sure. The label party holds the heads and does
the estimating, so that neither labels nor pseudo-labels leave it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from fedmend.errors import ConfigError
from fedmend.federation import Federation
from fedmend.methods.network import SplitEstimator
from fedmend.methods.vertical import (  # the top must be known where models load
    cross_view as cross_view,
)
from fedmend.split.features import ALIGNED
from fedmend.split.partial import Mix, PartialNetwork
from fedmend.split.training import SplitNetwork

THRESHOLDS = (0.8, 0.7, 0.7)
WEIGHTS = (0.1, 0.01, 1.0, 0.1)
PAPER: dict[str, Any] = {"temperature": 0.7, "weights": (0.1, 0.01, 100.0, 0.1)}


class CrossViewNetwork(PartialNetwork):
    """Batches of a fifth aligned rows and twice as many of each party's others (256/512/512)."""

    mix = Mix(unlabelled=True, least=0.2)


class FedCVT(SplitEstimator):
    """Two parties; trains on aligned rows and on the others of both.

    temperature: of the attention, smaller is sharper. thresholds: what the joint head, the row's
    party's own head and the other's must reach. weights: of the losses on common halves,
    orthogonality, estimated labels, estimated representations. bank: aligned embeddings kept at
    the label party, with which rows of one party are predicted.
    """

    _network_type: ClassVar[type[SplitNetwork]] = CrossViewNetwork

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        thresholds: tuple[float, ...] = THRESHOLDS,
        weights: tuple[float, ...] = WEIGHTS,
        bank: int = 1024,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.temperature = temperature
        self.thresholds = thresholds
        self.weights = weights
        self.bank = bank

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The authors' temperature and weights for tables."""
        return cls(**PAPER | changes)

    def _parties(self, fed: Federation, label_party: str) -> list[str]:
        parties = super()._parties(fed, label_party)
        if len(parties) != 2 or label_party not in parties:
            raise ConfigError(
                "FedCVT is for two parties with features, one of them with the labels, got "
                f"{', '.join(parties)}. Mend: fed.only(two of them)"
            )
        return [label_party, *(name for name in parties if name != label_party)]

    def _training_rows(self, fed: Federation, label_party: str) -> list[list[object]]:
        counts = fed.alignment
        names = self._parties(fed, label_party)
        return [[ALIGNED, counts.aligned], *([name, counts.unaligned[name]] for name in names)]

    def _options(self) -> dict[str, Any]:
        problems = []
        if not self.temperature > 0:
            problems.append(f"temperature must be positive, got {self.temperature}")
        if len(self.thresholds) != 3 or any(not 0 <= each <= 1 for each in self.thresholds):
            problems.append(f"thresholds must be three numbers from 0 to 1, got {self.thresholds}")
        if len(self.weights) != 4 or any(each < 0 for each in self.weights):
            problems.append(f"weights must be four numbers from 0, got {self.weights}")
        if self.bank < 1:
            problems.append(f"bank must be at least 1, got {self.bank}")
        if self.embedding % 2:
            problems.append(f"embedding must be even, got {self.embedding}")
        if problems:
            raise ConfigError(problems)
        return {
            "joint": {
                "kind": "cross-view",
                "temperature": self.temperature,
                "thresholds": list(self.thresholds),
                "weights": list(self.weights),
                "bank": self.bank,
            }
        }
