"""FewShotVFL: learning almost alone, with a handful of messages (Sun et al., ICCV 2023).

1. every passive party sends the embeddings of its aligned rows up, once;
2. the label party sends the gradient of each row's loss with respect to them down, once: rows of
   one class have alike gradients, so a party clusters them and has labels of a sort;
3. every party trains its bottom alone, on these labels and on all its other rows (FixMatch), the
   label party on its true labels;
4. embeddings go up again and the label party trains a head on them.

One round is the publication's "one-shot VFL"; a further round starts over from the trained head,
whose gradients are purer ("few-shot VFL").
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, ClassVar, Self

from fedmend.errors import ConfigError, DataError
from fedmend.federation import Each, Federation
from fedmend.methods.network import SplitEstimator
from fedmend.methods.vertical.local_ssl import (
    GradientWorker,
    HeadWorker,
    LocalTraining,
    LocalWorker,
)
from fedmend.split.features import Segments
from fedmend.split.session import Session, epoch_seed, tell_labels
from fedmend.split.training import Progress, SplitConfig, SplitNetwork

logger = logging.getLogger(__name__)

STRIDE = 50


class FewShotNetwork(SplitNetwork):
    """The coordinator's half: rounds of exchange, local training, exchange, head."""

    bottom_worker = GradientWorker
    top_worker = HeadWorker
    rounds = 2
    local = LocalTraining()

    def fit(
        self,
        segments: Segments,
        *,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Train on these rows. Between messages there is nothing to resume: it starts anew."""
        self.folder = None if checkpoint is None else Path(checkpoint)
        if checkpoint is not None:
            logger.info("few-shot training keeps no checkpoints: it exchanges a few messages only")
        with self.session(segments) as session:
            if self.task == "regression":
                raise DataError(
                    "the label is a number, and FewShotVFL clusters by class",
                    party=self.label_party,
                    mend="VFL or LocalVFL",
                )
            self.joined = {}
            for number in range(1, self.rounds + 1):
                self._round(number, session, progress)
            self._send_up(session)
            self._head(session, self.rounds + 1, progress)
            session.top.learn_held_sides(session.train)
            self.has_sides = True
        return self

    joined: dict[str, float]

    def _send_up(self, session: Session) -> None:
        session.top.hold(session.bottoms.embed(session.all_rows))

    def _round(self, number: int, session: Session, progress: Progress | None) -> None:
        """Embeddings up, gradients down, and every party alone."""
        self._send_up(session)
        if number > 1:
            self._head(session, number, None)
        session.bottoms.take_gradient(Each(session.top.feature_gradients()))
        settings = self.config.settings.to_dict()
        seed = epoch_seed(self.fed.seed, self.config.seed, number)
        with self.fed.workers(LocalWorker, parties=self.parties, model=self.model) as crew:
            if self.label_party in self.parties:
                tell_labels(self, crew[self.label_party])
            known = session.top.labelled()
            crew.begin(len(self.classes), dict(vars(self.local)), settings, seed, known)
            total = self.local.steps
            for done in range(0, total, STRIDE):
                self.joined = crew.advance(STRIDE)
                if progress is not None:
                    at = (number - 1) * total + min(done + STRIDE, total)
                    progress("local training", at, self.rounds * total, dict(self.joined))

    def _head(self, session: Session, number: int, progress: Progress | None) -> None:
        """A fresh head on the embeddings the label party holds."""
        session.top.new_head(self.config.net(), number)
        self.history = []
        best, waited, patience = float("inf"), 0, self.config.patience
        for epoch in range(1, self.config.epochs + 1):
            scores = session.top.head_epoch(
                session.train, session.validation, session.seed_of(epoch)
            )
            self.history.append({"epoch": epoch} | scores)
            if progress is not None:
                progress("train", epoch, self.config.epochs, scores)
            now = scores.get("val_log_loss", -epoch)
            waited = 0 if now < best else waited + 1
            if now < best:
                best, self.best_epoch = now, epoch
            if patience is not None and waited >= patience:
                break
        session.top.finish_head()


class FewShotVFL(SplitEstimator):
    """Aligned rows' embeddings go up `rounds` + 1 times, and that is all.

    rounds: 1 is one-shot, 2 few-shot VFL. local_updates: of a bottom, alone, in each round.
    threshold: how sure FixMatch must be of a row. corruption: share of a table row's cells
    replaced in its strong view. `epochs` are those of the head.
    """

    _network_type: ClassVar[type[SplitNetwork]] = FewShotNetwork

    def __init__(
        self,
        *,
        rounds: int = 2,
        local_updates: int = 1000,
        threshold: float = 0.95,
        corruption: float = 0.6,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.rounds = rounds
        self.local_updates = local_updates
        self.threshold = threshold
        self.corruption = corruption

    def _local(self) -> LocalTraining:
        if self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1, got {self.rounds}")
        labelled = max(2, self.batch_size)
        return LocalTraining(
            self.local_updates, labelled, 4 * labelled, self.threshold, self.corruption
        )

    def _config(self) -> SplitConfig:
        self._local()
        return super()._config()

    def _make_network(
        self, fed: Federation, parties: list[str], label_party: str, config: SplitConfig
    ) -> SplitNetwork:
        network = super()._make_network(fed, parties, label_party, config)
        assert isinstance(network, FewShotNetwork)
        network.rounds, network.local = self.rounds, self._local()
        return network
