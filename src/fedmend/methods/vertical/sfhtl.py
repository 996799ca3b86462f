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

import torch
from torch import Tensor, nn

from fedmend._parameters import NOT_NEGATIVE, POSITIVE_SHARE, Rules, parameters
from fedmend.errors import DataError
from fedmend.federation import Federation
from fedmend.federation.bound import declare
from fedmend.learn.nets import mlp
from fedmend.methods.network import SplitEstimator
from fedmend.methods.vertical.ssl_vfl import PretrainedSession, PretrainWorker
from fedmend.split.partial import (
    JointSpec,
    JointTop,
    Mix,
    PartialBottomWorker,
    PartialNetwork,
    PartialSession,
    PartialTopWorker,
    Views,
    joint_options,
    register,
    row_losses,
    weighted_mean,
)
from fedmend.split.training import SplitNetwork

__all__ = ["SFHTL"]

# ---------------------------------------------------------------------------------- label party


class TransferTop(JointTop):
    """options: map_weight, pseudo_weight, threshold, warmup (epochs without pseudo-labels)."""

    def __init__(self, spec: JointSpec) -> None:
        super().__init__(spec)
        widths = spec.widths
        self.maps = nn.ModuleDict(
            {
                f"{i}-{j}": mlp(widths[i], (2 * widths[i],), widths[j])
                for i in range(len(widths))
                for j in range(len(widths))
                if i != j
            }
        )
        self.body = mlp(sum(widths), spec.hidden, spec.out)

    def outputs(self, views: Views) -> Tensor:
        return self._head(self._completed(_dense(views), views.masks()))

    def loss(self, views: Views, targets: Tensor) -> Tensor:
        dense, masks = _dense(views), views.masks()
        outputs = self._head(self._completed(dense, masks))
        loss, known = row_losses(outputs, targets)
        total = weighted_mean(loss, known)
        total = total + float(self.options["map_weight"]) * self._map_loss(dense, masks)
        if self.epoch > int(self.options["warmup"]):
            guess = outputs.detach().float().softmax(1)
            sure, chosen = guess.max(1)
            join = ~known & (sure >= float(self.options["threshold"]))
            pseudo, _ = row_losses(outputs, chosen)
            share = (pseudo * join).sum() / (~known).sum().clamp_min(1)
            total = total + float(self.options["pseudo_weight"]) * share
        return total

    def _head(self, embeddings: list[Tensor]) -> Tensor:
        joined = torch.cat(embeddings, 1)
        return self.body(torch.relu(joined) if self.spec.hidden else joined)

    def _completed(self, dense: list[Tensor], masks: Tensor) -> list[Tensor]:
        """Every party's embedding for every row: its own, or the mean of the others' estimates."""
        out = []
        for j, values in enumerate(dense):
            others = [i for i in range(len(dense)) if i != j]
            weights = torch.stack([masks[i] for i in others]).to(values.dtype)
            guesses = torch.stack([self.maps[f"{i}-{j}"](dense[i]) for i in others])
            mean = (guesses * weights[:, :, None]).sum(0) / weights.sum(0).clamp_min(1)[:, None]
            out.append(torch.where(masks[j][:, None], values, mean.to(values.dtype)))
        return out

    def _map_loss(self, dense: list[Tensor], masks: Tensor) -> Tensor:
        """How far estimates lie from embeddings, where both are there; bottoms stay out of it."""
        total = dense[0].new_zeros(())
        for i in range(len(dense)):
            for j in range(len(dense)):
                if i == j:
                    continue
                target = dense[j].detach()
                error = (self.maps[f"{i}-{j}"](dense[i].detach()) - target).square().mean(1)
                total = total + weighted_mean(error, masks[i] & masks[j])
        return total


def _dense(views: Views) -> list[Tensor]:
    return [views.dense(name) for name in views.values]


register("transfer", TransferTop)

# ---------------------------------------------------------------------------------- coordinator


class TransferSession(PretrainedSession, PartialSession):
    """Autoencoders first, then mixed batches."""

    def _created(self) -> None:
        if self.network.task == "regression":
            raise DataError(
                "the label is a number, and SFHTL's pseudo-labels are classes",
                party=self.network.label_party,
                mend="AbsentPartner or LocalVFL",
            )
        super()._created()


class TransferNetwork(PartialNetwork):
    """A partial network with pre-trained bottoms."""

    session_type = TransferSession
    mix = Mix(unlabelled=True, least=0.2)


@parameters
class SFHTL(SplitEstimator):
    """Trains on aligned rows and on the others of all parties.

    pretrain_epochs: of the autoencoders. threshold: how sure a pseudo-label must be, after five
    epochs. map_weight, pseudo_weight: of those losses beside the labelled rows'.
    """

    pretrain_epochs: int = 10
    threshold: float = 0.9
    map_weight: float = 1.0
    pseudo_weight: float = 1.0

    warmup: ClassVar[int] = 5
    _network_type: ClassVar[type[SplitNetwork]] = TransferNetwork
    _trains_on = "all"
    _rules: ClassVar[Rules] = {
        "pretrain_epochs": NOT_NEGATIVE,
        "threshold": POSITIVE_SHARE,
        "map_weight": NOT_NEGATIVE,
        "pseudo_weight": NOT_NEGATIVE,
    }

    def _parties(self, fed: Federation, label_party: str) -> list[str]:
        parties = super()._parties(fed, label_party)
        if len(parties) < 2:
            raise DataError(
                "is the only party with features, so there is nobody to transfer from",
                party=parties[0],
                mend="Local, or a second party with columns",
            )
        return parties

    def _options(self) -> dict[str, Any]:
        weights = ("threshold", "warmup", "map_weight", "pseudo_weight")
        pretraining = {
            "kind": "autoencoder",
            "epochs": self.pretrain_epochs,
            "batch_size": max(2, self.batch_size),
            "corruption": 0.6,
        }
        return joint_options(self, "transfer", *weights) | {"pretraining": pretraining}


declare("sfhtl", PretrainWorker, PartialBottomWorker, PartialTopWorker)
