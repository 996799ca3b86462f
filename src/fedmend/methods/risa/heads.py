"""Heads over embeddings: one per party, a joint one, and what they are trained for (RISA, §II-D).

Sources of an opinion on a row are the parties that know it (each by a head of its own over its
embedding) and the joint head over all embeddings, of which those of absent parties are imputed.
`Objective` says how opinions are formed, fused and trained; `trust.py` how far each source is
trusted once the training is over. Plain torch: no parties, no calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedmend.learn.nets import mlp
from fedmend.methods.risa import opinions as ev
from fedmend.methods.risa.ensemble import members_mlp
from fedmend.split.belief import expected

__all__ = ["JOINT", "EvidenceTop", "EvidenceTopSpec", "Objective", "total_loss"]

JOINT = "joint"


@dataclass(frozen=True)
class EvidenceTopSpec:
    """Heads over embeddings of the given widths (party order), with `out` classes.

    members: so many networks side by side, each with its share of every width.
    same_head: by party the number of the head it uses, where several use one; () is its own.
    solo: the party whose own head has a bottom to itself, -1 for none: of its embedding, which is
    twice as wide as a bottom's, the joint head gets the first half and its own the second.
    """

    widths: tuple[int, ...]
    hidden: tuple[int, ...] = (64,)
    out: int = 2
    dropout: float = 0.0
    heads: bool = True
    joint: bool = True
    members: int = 1
    solo: int = -1
    same_head: tuple[int, ...] = ()

    @property
    def one_head(self) -> bool:
        """Whether all parties, several, use one head."""
        return len(self.same_head) > 1 == len(set(self.same_head))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EvidenceTopSpec:
        lists = {key: tuple(values[key]) for key in ("widths", "hidden", "same_head")}
        return cls(**{**values, **lists})


class EvidenceTop(nn.Module):
    """Outputs of every head, before they become evidence.

    **Shape** of outputs [n, K]; of several members [members, n, K].
    """

    def __init__(self, spec: EvidenceTopSpec) -> None:
        super().__init__()
        self.spec = spec
        widths = [width // spec.members for width in spec.widths]
        if spec.solo >= 0:
            widths[spec.solo] //= 2
        heads = [self._net(width) for width in widths] if spec.heads else []
        if heads and spec.same_head:
            heads = [heads[number] for number in spec.same_head]
        self.heads = nn.ModuleList(heads)
        self.joint = self._net(sum(widths)) if spec.joint else None

    def _net(self, width: int) -> nn.Module:
        spec = self.spec
        if spec.members == 1:
            return mlp(width, spec.hidden, spec.out, spec.dropout)
        return members_mlp(spec.members, width, spec.hidden, spec.out, spec.dropout)

    def head(self, party: int, embedding: Tensor) -> Tensor:
        if party == self.spec.solo:
            embedding = embedding[:, embedding.shape[1] // 2 :]
        return self.heads[party](self._ready([embedding])).float()

    def together(self, embeddings: Sequence[Tensor]) -> Tensor:
        assert self.joint is not None
        if self.spec.solo >= 0:
            shared = embeddings[self.spec.solo]
            embeddings = list(embeddings)
            embeddings[self.spec.solo] = shared[:, : shared.shape[1] // 2]
        return self.joint(self._ready(embeddings)).float()

    def _ready(self, embeddings: Sequence[Tensor]) -> Tensor:
        """Embeddings side by side, of every member those of its own bottoms."""
        members = self.spec.members
        if members > 1:
            embeddings = [each.unflatten(1, (members, -1)).transpose(0, 1) for each in embeddings]
        joined = embeddings[0] if len(embeddings) == 1 else torch.cat(tuple(embeddings), -1)
        return torch.relu(joined) if self.spec.hidden else joined


# ---------------------------------------------------------------------------------- objective


@dataclass(frozen=True)
class Objective:
    """What is trained; the defaults are as published.

    activation: of evidence ("softplus", "exp"), or "softmax" for plain probabilities (f_ST).
    fused, party, joint: weights of the loss of the fused opinion, of every party's own, and of
    the joint head's. imputed: absent parties have an opinion too, on their mean row.
    view_dropout: the joint head also learns overlapping rows with sides taken away.
    smoothing: the share of every label that is spread over all classes.
    """

    fusion: str = "yager"
    activation: str = "softplus"
    fused: float = 1.0
    party: float = 0.0
    joint: float = 0.0
    imputed: bool = True
    view_dropout: bool = False
    smoothing: float = 0.0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Objective:
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def opinion(self, outputs: Tensor, temperature: Tensor | float = 1.0) -> ev.Opinion:
        return self.opinion_of(outputs.float() / temperature)

    def opinion_of(self, scaled: Tensor) -> ev.Opinion:
        if self.activation == "softmax":
            belief = scaled.softmax(-1)
            return ev.Opinion(belief, torch.zeros_like(belief[..., :1]))
        return ev.opinion(ev.evidence(scaled, self.activation))

    def rows_loss(self, given: ev.Opinion, targets: Tensor, likely: bool = False) -> Tensor:
        """The loss of each row. **Shape** [n].

        likely: the targets are likelihoods; a row's class is then expected to be what they and the
        opinion itself make of it.
        """
        if likely:
            p = ev.probability(given).detach().clamp_min(torch.finfo(targets.dtype).tiny)
            targets = expected(p.log(), targets)
        if self.smoothing and not targets.is_floating_point():
            classes = given.belief.shape[-1]
            hard = nn.functional.one_hot(targets, classes).to(given.belief.dtype)
            targets = hard * (1 - self.smoothing) + self.smoothing / classes
        return ev.loss(given, targets)


def weighted(losses: Tensor, weights: Tensor) -> Tensor:
    """The mean loss, rows counted by their weight; zero where no row counts.

    Members' losses add up: the weights of each get the gradient of its own.
    """
    return ((losses * weights).sum(-1) / weights.sum(-1).clamp_min(1e-6)).sum()


def total_loss(
    top: EvidenceTop,
    how: Objective,
    sides: Sequence[Tensor],
    imputed: Sequence[Tensor],
    present: Sequence[Tensor],
    overlapping: int,
    targets: Tensor,
    weights: Tensor,
    *,
    likely: bool = False,
) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and each row's fused opinion as [n, K + 1] without gradient.

    sides: every party's embeddings of all n rows, those it does not know imputed; imputed: the
    embedding of each party's mean row [d]; present: per party the rows of the batch it knows, as
    bool [n]. The first `overlapping` rows of the batch are known to all.
    """
    total = sides[0].new_zeros(())
    opinions: list[ev.Opinion] = []
    for party in range(len(sides) if top.spec.heads else 0):
        known = present[party]
        given = how.opinion(top.head(party, sides[party]))
        if how.party:
            losses = how.rows_loss(given, targets, likely)
            total = total + how.party * weighted(losses, weights * known)
        if not how.imputed:
            given = ev.discount(given, known[:, None].to(given.belief.dtype))
        opinions.append(given)
    if top.spec.joint:
        given = how.opinion(top.together(sides))
        losses, counts = how.rows_loss(given, targets, likely), weights
        if how.view_dropout and overlapping and len(sides) > 1:
            torn = _torn(sides, imputed, overlapping)
            again = how.opinion(top.together(torn))
            copies = len(torn[0]) // overlapping
            wanted = targets[:overlapping].repeat(copies, *[1] * (targets.ndim - 1))
            losses = torch.cat([losses, how.rows_loss(again, wanted, likely)], -1)
            counts = torch.cat([counts, *[weights[..., :overlapping]] * copies], -1)
        if how.joint:
            total = total + how.joint * weighted(losses, counts)
        opinions.append(given)
    if not how.fused:
        opinions = [ev.Opinion(*(part.detach() for part in given)) for given in opinions]
    fused = ev.fuse(opinions, how.fusion)
    if how.fused:
        total = total + how.fused * weighted(how.rows_loss(fused, targets, likely), weights)
    return total, torch.cat([fused.belief, fused.uncertainty], -1).detach()


def _torn(sides: Sequence[Tensor], imputed: Sequence[Tensor], overlapping: int) -> list[Tensor]:
    """The overlapping rows once for each party, as if only that party knew them."""
    parties = len(sides)
    return [
        torch.cat(
            [
                sides[m][:overlapping]
                if m == alone
                else imputed[m][None].expand(overlapping, -1).to(sides[m].dtype)
                for alone in range(parties)
            ]
        )
        for m in range(parties)
    ]
