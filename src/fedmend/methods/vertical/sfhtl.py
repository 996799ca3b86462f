"""SFHTL: semi-supervised federated heterogeneous transfer learning (Feng et al., KBS 2022).

Rows of all parties, aligned or not, labelled or not, enlarge the training set:

1. every party pre-trains its bottom on all its rows, as a denoising autoencoder;
2. from aligned rows a small network learns to say what the other party's embedding of a row would
   be, in both directions; rows of one party are completed with it;
3. rows without a label join with the class predicted for them, once it is sure enough.

There is no public code. The parts above are those of the publication; layers, losses' weights and
schedule are ours (docs/vfl-baselines.md).
"""

from __future__ import annotations

from typing import Any, ClassVar

from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation
from fedmend.methods.network import SplitEstimator
from fedmend.methods.vertical.contrastive import PretrainedSession, Pretraining
from fedmend.split.features import ALIGNED
from fedmend.split.partial import Mix, PartialNetwork, PartialSession
from fedmend.split.training import SplitConfig, SplitNetwork


class TransferSession(PretrainedSession, PartialSession):
    """Autoencoders first, then mixed batches."""

    def _check_task(self) -> None:
        if self.network.task == "regression":
            raise DataError(
                "the label is a number, and SFHTL's pseudo-labels are classes",
                party=self.network.label_party,
                mend="AbsentPartner or LocalVFL",
            )


class TransferNetwork(PartialNetwork):
    """A partial network with pre-trained bottoms."""

    session_type = TransferSession
    mix = Mix(unlabelled=True, least=0.2)
    pretraining = Pretraining("autoencoder")
    pretrain_losses: dict[str, list[float]]


class SFHTL(SplitEstimator):
    """Trains on aligned rows and on the others of all parties.

    pretrain_epochs: of the autoencoders. threshold: how sure a pseudo-label must be; it may come
    after `warmup` epochs. map_weight, pseudo_weight: of those losses beside the labelled rows'.
    """

    _network_type: ClassVar[type[SplitNetwork]] = TransferNetwork

    def __init__(
        self,
        *,
        pretrain_epochs: int = 10,
        threshold: float = 0.9,
        warmup: int = 5,
        map_weight: float = 1.0,
        pseudo_weight: float = 1.0,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.pretrain_epochs = pretrain_epochs
        self.threshold = threshold
        self.warmup = warmup
        self.map_weight = map_weight
        self.pseudo_weight = pseudo_weight

    def _parties(self, fed: Federation, label_party: str) -> list[str]:
        parties = super()._parties(fed, label_party)
        if len(parties) < 2:
            raise DataError(
                "is the only party with features, so there is nobody to transfer from",
                party=parties[0],
                mend="Local, or a second party with columns",
            )
        return parties

    def _training_rows(self, fed: Federation, label_party: str) -> list[list[object]]:
        counts = fed.alignment
        others = [name for name in self._parties(fed, label_party) if name != label_party]
        return [
            [ALIGNED, counts.aligned],
            *([name, counts.unaligned[name]] for name in (label_party, *others)),
        ]

    def _make_network(
        self, fed: Federation, parties: list[str], label_party: str, config: SplitConfig
    ) -> SplitNetwork:
        network = super()._make_network(fed, parties, label_party, config)
        assert isinstance(network, TransferNetwork)
        network.pretraining = self._pretraining()
        return network

    def _pretraining(self) -> Pretraining:
        return Pretraining("autoencoder", self.pretrain_epochs, max(2, self.batch_size))

    def _options(self) -> dict[str, Any]:
        self._pretraining()
        problems = []
        if not 0 < self.threshold <= 1:
            problems.append(f"threshold must be in (0, 1], got {self.threshold}")
        if self.warmup < 0:
            problems.append(f"warmup must not be negative, got {self.warmup}")
        for name in ("map_weight", "pseudo_weight"):
            if getattr(self, name) < 0:
                problems.append(f"{name} must not be negative, got {getattr(self, name)}")
        if problems:
            raise ConfigError(problems)
        return {
            "joint": {
                "kind": "transfer",
                "threshold": self.threshold,
                "warmup": self.warmup,
                "map_weight": self.map_weight,
                "pseudo_weight": self.pseudo_weight,
            }
        }
