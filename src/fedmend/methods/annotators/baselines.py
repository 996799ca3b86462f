"""InC's baselines (§4.1): clean labels, one annotator at a time, majority vote, Dawid–Skene.

All have the network's top at the server but `Clean`, which needs no crowd: one party's labels.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from fedmend._parameters import parameters
from fedmend.federation.bound import but, declare
from fedmend.methods.annotators import aggregation as crowd
from fedmend.methods.annotators.estimator import (
    Annotators,
    CrowdEstimator,
    Inferred,
    least_steps,
)
from fedmend.methods.annotators.worker import LabelWorker
from fedmend.methods.network import SplitEstimator
from fedmend.split.features import BatchOrder
from fedmend.split.training import Session
from fedmend.split.workers import BottomWorker, TopWorker

__all__ = ["EM", "MJ", "Clean", "Random"]


class Clean(SplitEstimator):
    """The upper bound: trained on the labels of `label_party`, which are taken as true.

    That party may have labels only. Other parties' labels are not looked at.
    """

    def _least_steps(self) -> int:
        return least_steps(self.patience)  # as those it is compared with


@parameters
class Random(CrowdEstimator):
    """Every batch takes the labels of one label party, drawn at random.

    The server learns single votes this way: a secure sum in which only one party speaks hides
    nothing from who knows whose turn it is.
    """

    def _inferred(self, annotators: Annotators, counts: np.ndarray) -> Inferred:
        soft = crowd.soft_labels(counts)
        return Inferred(soft, soft, crowd.log_of(soft))

    def _before_epoch(self, epoch: int, session: Session, annotators: Annotators) -> None:
        settings = session.network.config.settings
        order = BatchOrder(
            session.train, settings.batch_size, torch.device("cpu"), least=settings.epoch_steps
        )
        seed = session.seed_of(epoch)
        order.start(seed)
        rng = np.random.default_rng(seed)
        turns = np.full(session.n_rows, -1)
        for _ in order.sizes:
            turns[order.next().numpy()] = rng.integers(len(annotators.parties))
        session.top.set_targets(annotators.turns(turns).astype(np.float64))


@parameters
class MJ(CrowdEstimator):
    """Majority vote, of tied classes the first; then training.

    Where no party has a column (or with `epochs=0`) the labels themselves are all there is:
    `corrected_`, and `predict` of the rows that were voted on. `posterior_`: the shares of votes.
    """

    infers: ClassVar[bool] = True

    def _inferred(self, annotators: Annotators, counts: np.ndarray) -> Inferred:
        labels = crowd.one_hot(crowd.majority(counts), counts.shape[1]).astype(np.float64)
        return Inferred(labels, crowd.soft_labels(counts), crowd.log_of(labels))


@parameters
class EM(CrowdEstimator):
    """Dawid–Skene on the votes alone, then training on the likeliest labels, as in `MJ`.

    The parties estimate their matrices, the server adds up their evidence: no vote is shown.

    share_expertise: ask the label parties for their T when done. The other parameters are those of
    `CrowdEstimator`.

    Fitted, besides the other estimators' attributes: `posterior_`, `corrected_`, `expertise_`,
    `standing_` (as in `InC`), `iterations_`.
    """

    infers: ClassVar[bool] = True
    knows_expertise: ClassVar[bool] = True
    share_expertise: bool = True

    def _inferred(self, annotators: Annotators, counts: np.ndarray) -> Inferred:
        found = crowd.dawid_skene(counts, annotators.evidence)
        posterior, said, self.iterations_ = found
        self._hear(annotators, self.share_expertise)
        targets = crowd.hardened(posterior)
        return Inferred(targets * (counts.sum(1, keepdims=True) > 0), posterior, said)


declare("clean", BottomWorker, TopWorker)
# The top is at the coordinator, which reads embeddings; votes are summed.
declare("random-labeller", BottomWorker, LabelWorker, reader=True)
for name in ("majority", "dawid-skene"):
    declare(name, BottomWorker, but(LabelWorker, "take_turns"), reader=True)
