"""FedCVT: cross-view training of two parties (Kang, Liu, Liang, ACM TIST 2022).

A party's embedding has two halves: what only it sees (unique) and what both see (common). For a
row of one party, the other's unique half is a mixture of the other's aligned rows, weighed by how
alike the *own* unique halves are; its common half is a mixture of the other's rows, weighed by how
alike the common halves are. A row without a label gets one when the joint head and both parties'
own heads agree and are sure enough. The label party holds the heads and does the estimating, so
that neither labels nor pseudo-labels leave it.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend._parameters import POSITIVE, Rules, parameters
from fedmend.errors import ConfigError
from fedmend.federation import Federation
from fedmend.federation.bound import declare
from fedmend.learn.nets import mlp
from fedmend.methods.network import SplitEstimator
from fedmend.split.partial import (
    JointSpec,
    JointTop,
    Mix,
    PartialBottomWorker,
    PartialNetwork,
    PartialTopWorker,
    Views,
    joint_options,
    mean_loss,
    register,
    weighted_mean,
)
from fedmend.split.training import SplitNetwork

__all__ = ["FedCVT"]

# ---------------------------------------------------------------------------------- label party


def attend(query: Tensor, keys: Tensor, values: Tensor, temperature: float) -> Tensor:
    """softmax(q·k / (sqrt(d)·T))·v; a small T sharpens. **Shape** [n, d], [m, d], [m, e]."""
    scores = query.float() @ keys.float().T / (math.sqrt(query.shape[1]) * temperature)
    return scores.softmax(1).to(values.dtype) @ values


def attend_others(query: Tensor, keys: Tensor, values: Tensor, temperature: float) -> Tensor:
    """The same where row i of the query is row i of the keys: nobody attends to himself."""
    scores = query.float() @ keys.float().T / (math.sqrt(query.shape[1]) * temperature)
    scores = scores.masked_fill(torch.eye(len(query), dtype=torch.bool, device=query.device), -1e9)
    return scores.softmax(1).to(values.dtype) @ values


class CrossViewTop(JointTop):
    """options: temperature, thresholds (joint, own, other's), weights (common, orthogonal,
    label, representation), bank: how many aligned rows are remembered for predicting."""

    bank: Tensor
    rows_seen: Tensor

    def __init__(self, spec: JointSpec) -> None:
        super().__init__(spec)
        if len(spec.widths) != 2 or spec.widths[0] != spec.widths[1] or spec.widths[0] % 2:
            raise ConfigError(
                f"cross-view training joins two parties' embeddings of one even width, got "
                f"{spec.widths}. Mend: fed.only(two parties), an even embedding=…"
            )
        if spec.out < 2:
            raise ConfigError("FedCVT classifies. Mend: AbsentPartner, for a regression")
        width = spec.widths[0]
        self.cut = width // 2
        self.joint = mlp(2 * width, spec.hidden, spec.out)
        self.own = nn.ModuleList(mlp(width, spec.hidden, spec.out) for _ in range(2))
        self.temperature = float(self.options["temperature"])
        size = int(self.options["bank"])
        self.register_buffer("bank", torch.zeros(2, size, width))
        self.register_buffer("rows_seen", torch.zeros((), dtype=torch.int64))
        self._seen = 0

    def start_epoch(self, generator: torch.Generator) -> None:
        super().start_epoch(generator)
        self._seen = int(self.rows_seen)  # once an epoch: reading it makes a GPU wait

    # ------------------------------------------------------------------ predicting

    def outputs(self, views: Views) -> Tensor:
        a, b = views.values
        dense = [views.dense(a), views.dense(b)]
        known = min(int(self.rows_seen), self.bank.shape[1])
        if known:
            bank = self.bank[:, :known].to(dense[0].dtype)
            for me, other in ((0, 1), (1, 0)):
                absent = ~views.mask((a, b)[other])
                guess = self._estimate(dense[me], bank[me], bank[other], bank[other])
                dense[other] = torch.where(absent[:, None], guess, dense[other])
        return self._joint(dense[0], dense[1])

    def _joint(self, first: Tensor, second: Tensor) -> Tensor:
        return self.joint(self._active(torch.cat([first, second], 1)))

    def _alone(self, party: int, embedding: Tensor) -> Tensor:
        return self.own[party](self._active(embedding))

    def _active(self, joined: Tensor) -> Tensor:
        return torch.relu(joined) if self.spec.hidden else joined

    def _estimate(self, own: Tensor, own_aligned: Tensor, aligned: Tensor, rows: Tensor) -> Tensor:
        """The other party's embedding of rows it does not have.

        own_aligned, aligned: both sides' aligned rows; rows: all of the other side's rows.
        """
        h, t = self.cut, self.temperature
        unique = attend(own[:, :h], own_aligned[:, :h], aligned[:, :h], t)
        common = attend(own[:, h:], rows[:, h:], rows[:, h:], t)
        return torch.cat([unique, common], 1)

    # ------------------------------------------------------------------ training

    def loss(self, views: Views, targets: Tensor) -> Tensor:
        """Batches come with the aligned rows first, then one party's others, then the other's."""
        a, b = views.values
        sides = [views.values[a], views.values[b]]
        both = len(sides[0]) + len(sides[1]) - views.n
        aligned = [sides[0][:both], sides[1][:both]]
        self._remember(aligned)
        total = self._between(aligned, targets[:both])
        # Rows that only party `me` has, with the other side estimated.
        joined, labels = [self._joint(*aligned)], [targets[:both]]
        own_loss = [
            mean_loss(self._alone(party, aligned[party]), targets[:both]) for party in (0, 1)
        ]
        for me, other in ((0, 1), (1, 0)):
            rows = sides[me][both:]
            if not len(rows):
                continue
            guess = self._estimate(rows, aligned[me], aligned[other], sides[other])
            pair = (rows, guess) if me == 0 else (guess, rows)
            at = views.at[(a, b)[me]][both:]
            outputs, alone = self._joint(*pair), self._alone(me, rows)
            given = self._labels(
                targets.index_select(0, at), outputs, alone, self._alone(other, guess)
            )
            joined.append(outputs)
            labels.append(given)
            own_loss.append(mean_loss(alone, given))
        return total + mean_loss(torch.cat(joined), torch.cat(labels)) + sum(own_loss)

    def _labels(self, targets: Tensor, joint: Tensor, own: Tensor, other: Tensor) -> Tensor:
        """True labels where there are any; else the class on which all three heads agree."""
        votes = [each.detach().float().softmax(1).max(1) for each in (joint, own, other)]
        sure = torch.ones_like(targets, dtype=torch.bool)
        for (share, vote), least in zip(votes, self.options["thresholds"], strict=True):
            sure &= (share >= float(least)) & (vote == votes[0][1])
        guess = torch.where(sure, votes[0][1], torch.full_like(targets, -1))
        return torch.where(targets >= 0, targets, guess)

    def _between(self, aligned: list[Tensor], targets: Tensor) -> Tensor:
        """What aligned rows teach about the halves, about estimates, and about who is alike."""
        h, t = self.cut, self.temperature
        common, orthogonal, label, representation = map(float, self.options["weights"])
        total = common * F.mse_loss(aligned[0][:, h:], aligned[1][:, h:])
        known = targets >= 0
        classes = F.one_hot(targets.clamp_min(0), self.spec.out).float()
        for me, other in ((0, 1), (1, 0)):
            own, rows = aligned[me], aligned[other].detach()
            unique, shared = own[:, :h], own[:, h:]
            cross = torch.linalg.matrix_norm((unique @ shared.T).float()) / len(own)
            guess = torch.cat(
                [
                    attend_others(unique, unique, rows[:, :h], t),
                    attend_others(shared, rows[:, h:], rows[:, h:], t),
                ],
                1,
            )
            # The class that those most alike have: makes attention look at rows of one class.
            given = (attend_others(unique, unique, classes, t) * classes).sum(1)
            total = total + orthogonal * cross
            total = total + representation * F.mse_loss(guess, rows)
            total = total + label * weighted_mean(-given.clamp_min(1e-8).log(), known)
        return total

    @torch.no_grad()
    def _remember(self, aligned: list[Tensor]) -> None:
        size = self.bank.shape[1]
        count = min(len(aligned[0]), size)
        places = (torch.arange(count, device=self.bank.device) + self._seen) % size
        for party in (0, 1):
            self.bank[party].index_copy_(0, places, aligned[party][:count].to(self.bank.dtype))
        self._seen += count
        self.rows_seen.fill_(self._seen)


register("cross-view", CrossViewTop)

# ---------------------------------------------------------------------------------- coordinator


class CrossViewNetwork(PartialNetwork):
    """Batches of a fifth aligned rows and twice as many of each party's others (256/512/512)."""

    mix = Mix(unlabelled=True, least=0.2)


@parameters
class FedCVT(SplitEstimator):
    """Two parties; trains on aligned rows and on the others of both.

    temperature: of the attention, smaller is sharper. thresholds: what the joint head, the row's
    party's own head and the other's must reach. weights: of the losses on common halves,
    orthogonality, estimated labels, estimated representations.
    """

    temperature: float = 0.1
    thresholds: tuple[float, ...] = (0.8, 0.7, 0.7)
    weights: tuple[float, ...] = (0.1, 0.01, 1.0, 0.1)

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"temperature": 0.7, "weights": (0.1, 0.01, 100.0, 0.1)}
    }
    bank: ClassVar[int] = 1024
    _network_type: ClassVar[type[SplitNetwork]] = CrossViewNetwork
    _trains_on = "all"
    _rules: ClassVar[Rules] = {
        "temperature": POSITIVE,
        "thresholds": (
            "three numbers from 0 to 1",
            lambda given: len(given) == 3 and all(0 <= each <= 1 for each in given),
        ),
        "weights": (
            "four numbers from 0",
            lambda given: len(given) == 4 and all(each >= 0 for each in given),
        ),
        "embedding": ("even", lambda width: width % 2 == 0),
    }

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The authors' temperature and weights for tables."""
        return cls(**cls.PRESETS["paper"] | changes)

    def _parties(self, fed: Federation, label_party: str) -> list[str]:
        parties = super()._parties(fed, label_party)
        if len(parties) != 2 or label_party not in parties:
            raise ConfigError(
                "FedCVT is for two parties with features, one of them with the labels, got "
                f"{', '.join(parties)}. Mend: fed.only(two of them)"
            )
        return [label_party, *(name for name in parties if name != label_party)]

    def _options(self) -> dict[str, Any]:
        return joint_options(self, "cross-view", "temperature", "thresholds", "weights", "bank")


declare("fedcvt", PartialBottomWorker, PartialTopWorker)
