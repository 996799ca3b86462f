"""SSLVFL: every party pre-trains its bottom on all its rows, then a split network on aligned ones.

RISA's baseline "SSL + VFL". Pre-training is contrastive (SimCLR: Chen et al., 2020): two views of
a row must be recognised as one among others. Images: flips, shifts, contrast, colour, holes.
Tables: the row itself and a copy many of whose cells come from other rows (SCARF: Bahri et al.,
2022). Nothing of a row leaves a party while it pre-trains.
"""

from __future__ import annotations

from typing import Any, ClassVar

from fedmend.federation import Federation
from fedmend.methods.network import SplitEstimator
from fedmend.methods.vertical.contrastive import PretrainedNetwork, Pretraining
from fedmend.split.training import SplitConfig, SplitNetwork


class SSLVFL(SplitEstimator):
    """Uses the unaligned rows of all parties, without their labels, to pre-train.

    pretrain_epochs, pretrain_batch: passes over a party's rows, and rows a batch.
    temperature: of the similarities. corruption: share of a table row's cells that is replaced.
    """

    _network_type: ClassVar[type[SplitNetwork]] = PretrainedNetwork

    def __init__(
        self,
        *,
        pretrain_epochs: int = 20,
        pretrain_batch: int = 256,
        temperature: float = 0.5,
        corruption: float = 0.6,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.pretrain_epochs = pretrain_epochs
        self.pretrain_batch = pretrain_batch
        self.temperature = temperature
        self.corruption = corruption

    def _pretraining(self) -> Pretraining:
        return Pretraining(
            "simclr", self.pretrain_epochs, self.pretrain_batch, self.temperature, self.corruption
        )

    def _config(self) -> SplitConfig:
        self._pretraining()  # names what is wrong with it, before anything is sent
        return super()._config()

    def _make_network(
        self, fed: Federation, parties: list[str], label_party: str, config: SplitConfig
    ) -> SplitNetwork:
        network = super()._make_network(fed, parties, label_party, config)
        assert isinstance(network, PretrainedNetwork)
        network.pretraining = self._pretraining()
        return network
