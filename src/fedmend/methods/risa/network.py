"""RISA's networks: bottoms side by side, mean rows, and heads (RISA, §II-C and §II-D). Plain torch.

*Ensemble.* Several networks in one, each of which learns without a part of the overlapping rows:
the opinion of the one that has not seen a row says how good opinions are, so no row has to be held
out from the training, and all of them together judge rows better than one. They share nothing; a
party's bottoms stand side by side in one module, and their embeddings in one message.

*Mean imputation* (§II-C). A party's side of a row that it does not know is the mean of its
overlapping rows: of numeric columns and images the mean, of nominal columns the mean one-hot
vector, through the embedding. The published scheme sends the means; here a party embeds its own
mean row itself, so nothing but that embedding leaves it, and only when enough rows went into it.

*Heads* (§II-D). Sources of an opinion on a row are the parties that know it (each by a head of its
own over its embedding) and the joint head over all embeddings, of which those of absent parties are
imputed. `Objective` says how opinions are formed, fused and trained; `trust.py` how far each source
is trusted once the training is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.data.encode import Encoded
from fedmend.errors import DataError
from fedmend.federation.wire import Record
from fedmend.learn.nets import (
    Batch,
    Bottom,
    BottomSpec,
    Spec,
    embedding_width,
    initialise,
    mlp,
)
from fedmend.methods.risa import opinions as ev
from fedmend.split.labels import expected
from fedmend.split.parts import BOTTOMS

JOINT = "joint"

# ---------------------------------------------------------------------------------- ensemble


class MemberLinear(nn.Module):
    """A linear layer of each network, all at once. **Shape** [members, n, width] in and out."""

    def __init__(self, members: int, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(members, width, out))
        self.bias = nn.Parameter(torch.zeros(members, 1, out))

    def forward(self, values: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, values, self.weight)

    def back(self, values: Tensor, slope: Tensor) -> Tensor:
        """The slope of the values; those of the layer are left where its optimizer looks."""
        torch.bmm(values.mT, slope, out=self.weight.grad)
        torch.sum(slope, 1, keepdim=True, out=self.bias.grad)
        return torch.bmm(slope, self.weight.mT)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """As `nets.initialise` draws linear layers."""
        bound = 1.0 / math.sqrt(self.weight.shape[1])
        self.weight.uniform_(-bound, bound, generator=generator)
        self.bias.uniform_(-bound, bound, generator=generator)


def members_mlp(members: int, width: int, hidden: Sequence[int], out: int) -> nn.Sequential:
    """As `nets.mlp`, of each member."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [MemberLinear(members, width, size), nn.ReLU()]
        width = size
    layers.append(MemberLinear(members, width, out))
    return nn.Sequential(*layers)


def draw(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Fresh weights of every layer, members' included."""
    initialise(module, generator)
    for layer in module.modules():
        if isinstance(layer, MemberLinear):
            layer.draw(generator)
    return module


@dataclass(frozen=True)
class EnsembleSpec(Spec):
    """So many bottoms of one shape."""

    member: BottomSpec
    members: int

    @property
    def out(self) -> int:
        return self.member.out * self.members


class Beside(nn.Module):
    """Networks of one input, their outputs one after the other."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.width: int = nets[0].width  # type: ignore[assignment]

    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([net(values) for net in self.nets], 1)


class BottomEnsemble(nn.Module):
    """Bottoms side by side; their embeddings one after the other."""

    def __init__(self, spec: EnsembleSpec) -> None:
        super().__init__()
        self.spec = spec
        one = spec.member
        self.widths = [embedding_width(cardinality) for cardinality in one.cardinalities]
        self.tables = nn.ModuleList(
            nn.Embedding(cardinality, width * spec.members)
            for cardinality, width in zip(one.cardinalities, self.widths, strict=True)
        )
        # Each member's own network for each block, as a bottom has it.
        nets = [Bottom(one).convolutions for _ in range(spec.members if one.block_shapes else 0)]
        self.convolutions = nn.ModuleList(Beside(each) for each in zip(*nets, strict=True))
        joined = one.numeric + sum(self.widths)
        joined += sum(each.width for each in self.convolutions)  # type: ignore[misc]
        self.body = members_mlp(spec.members, joined, one.hidden, one.out)

    def joined(self, numeric: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Embeddings of rows, given their numbers and what tables and networks make of the rest."""
        rows, members = len(numeric), self.spec.members
        inputs = numeric.expand(members, -1, -1)
        pieces = [each.view(rows, members, -1).transpose(0, 1) for each in others]
        found = self.body(torch.cat([inputs, *pieces], 2) if pieces else inputs)
        return found.transpose(0, 1).reshape(rows, -1)

    def take_networks(self, other: Bottom) -> None:
        """Let every member begin with the networks of one bottom for its blocks."""
        for net, theirs in zip(self.convolutions, other.convolutions, strict=True):
            for each in net.nets:  # type: ignore[union-attr]
                each.load_state_dict(theirs.state_dict())

    def forward(self, batch: Batch) -> Tensor:
        columns = batch.codes.unbind(1)
        others = [table(column) for table, column in zip(self.tables, columns, strict=True)]
        others += [net(block) for net, block in zip(self.convolutions, batch.blocks, strict=True)]
        return self.joined(batch.numeric, others)


def _ensemble_of(spec: Mapping[str, Any]) -> BottomEnsemble | None:
    """The module that a saved spec describes, if it is one of several bottoms."""
    if "members" not in spec:
        return None
    return BottomEnsemble(EnsembleSpec(BottomSpec.from_dict(spec["member"]), int(spec["members"])))


BOTTOMS.append(_ensemble_of)


def deal(rows: np.ndarray, members: int, rng: np.random.Generator) -> np.ndarray:
    """Which member does not see each row; as even as can be."""
    return rng.permutation(np.arange(len(rows)) % members)


# ---------------------------------------------------------------------------------- mean rows

MIN_MEAN_ROWS = 10
"""A mean of a few rows says much about each of them, and of one row says everything."""
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class MeanRow(Record):
    """The mean of some rows. `codes` holds, per nominal column, the share of every code."""

    numeric: Tensor
    codes: tuple[Tensor, ...]
    blocks: tuple[Tensor, ...]

    def to(self, device: torch.device, dtype: torch.dtype) -> MeanRow:
        return MeanRow(
            self.numeric.to(device, dtype),
            tuple(each.to(device, dtype) for each in self.codes),
            tuple(each.to(device, dtype) for each in self.blocks),
        )


def mean_row(encoded: Encoded, overlapping: np.ndarray, *, party: str | None = None) -> MeanRow:
    """The mean of the overlapping rows; where these are too few, of all the party's rows."""
    rows = overlapping if len(overlapping) >= MIN_MEAN_ROWS else np.arange(len(encoded))
    if len(rows) < MIN_MEAN_ROWS:
        raise DataError(
            f"{len(rows)} rows are too few for a mean that may leave",
            party=party,
            mend=f"at least {MIN_MEAN_ROWS} rows",
        )
    shares = []
    for column, cardinality in enumerate(encoded.cardinalities):
        counts = np.bincount(encoded.codes[rows, column], minlength=cardinality).astype(np.float64)
        shares.append(torch.from_numpy(counts / counts.sum()))
    return MeanRow(
        torch.from_numpy(encoded.numeric[rows].mean(0, dtype=np.float64)),
        tuple(shares),
        tuple(torch.from_numpy(_mean_block(block, rows)) for block in encoded.blocks.values()),
    )


def _mean_block(block: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The mean over some rows, some thousand at a time, without a copy of all of them."""
    weights = (np.bincount(rows, minlength=len(block)) / len(rows)).astype(block.dtype)
    total = np.zeros(block.shape[1:], np.float64)
    for at in range(0, len(block), _ROWS_AT_ONCE):
        part = block[at : at + _ROWS_AT_ONCE]
        flat = weights[at : at + _ROWS_AT_ONCE] @ part.reshape(len(part), -1)
        total += flat.reshape(total.shape)
    return total


def embed(bottom: Bottom | BottomEnsemble, batch: Batch, mean: MeanRow) -> Tensor:
    """Embeddings of the rows and, last, of the mean row. **Shape** [n + 1, width].

    The mean row goes through batch norm together with the real rows, as one of many.
    """
    numeric = torch.cat([batch.numeric, mean.numeric[None]])
    others = []
    for number, table in enumerate(bottom.tables):
        weights = table.weight
        assert isinstance(weights, Tensor)
        imputed = (mean.codes[number].to(weights.dtype) @ weights)[None]
        others.append(torch.cat([table(batch.codes[:, number]), imputed]))
    for net, block, mean_block in zip(bottom.convolutions, batch.blocks, mean.blocks, strict=True):
        images = torch.cat([block, mean_block[None].to(block.dtype)])
        if images.ndim == 4 and images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        others.append(net(images))
    if isinstance(bottom, BottomEnsemble):
        return bottom.joined(numeric, others)
    pieces = [numeric, *others] if bottom.spec.numeric else others
    return bottom.body(pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1))


# ---------------------------------------------------------------------------------- heads


@dataclass(frozen=True)
class EvidenceTopSpec(Spec):
    """Heads over embeddings of the given widths (party order), with `out` classes.

    members: so many networks side by side, each with its share of every width.
    same_head: by party the number of the head it uses, where several use one; () is its own.
    solo: the party whose own head has a bottom to itself, -1 for none: of its embedding, which is
    twice as wide as a bottom's, the joint head gets the first half and its own the second.
    """

    widths: tuple[int, ...]
    hidden: tuple[int, ...] = (64,)
    out: int = 2
    heads: bool = True
    joint: bool = True
    members: int = 1
    solo: int = -1
    same_head: tuple[int, ...] = ()

    @property
    def one_head(self) -> bool:
        """Whether all parties, several, use one head."""
        return len(self.same_head) > 1 == len(set(self.same_head))


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
            return mlp(width, spec.hidden, spec.out)
        return members_mlp(spec.members, width, spec.hidden, spec.out)

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
    smoothing: the share of every label that is spread over all classes. selects: rows are watched
    while they are trained on, and leave where too little is known of them.
    """

    fusion: str = "yager"
    activation: str = "softplus"
    fused: float = 1.0
    party: float = 0.0
    joint: float = 0.0
    imputed: bool = True
    view_dropout: bool = False
    smoothing: float = 0.0
    selects: bool = False

    @property
    def plain(self) -> bool:
        """Whether heads learn classes by their own losses alone, of evidence exp(outputs)."""
        own = self.activation == "exp" and self.joint == 1.0 and bool(self.party)
        return own and not (self.fused or self.view_dropout or self.smoothing)

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
    fuse: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """The loss of a batch and, to `fuse`, each row's fused opinion [n, K + 1] without gradient.

    sides: every party's embeddings of all n rows, those it does not know imputed; imputed: the
    embedding of each party's mean row [d]; present: per party the rows of the batch it knows, as
    bool [n]. The first `overlapping` rows of the batch are known to all.
    """
    parties = list(range(len(sides))) if top.spec.heads else []
    outputs = [top.head(party, sides[party]) for party in parties]
    if top.spec.joint:
        outputs.append(top.together(sides))
    # All sources at once: on few rows a step is as long as it has operations.
    given = how.opinion(torch.stack(outputs))
    total = sides[0].new_zeros(())
    if how.party or how.joint:
        lost = how.rows_loss(given, targets, likely)
        if how.party and parties:
            known = torch.stack([weights * present[party] for party in parties])
            total = total + how.party * weighted(lost[: len(parties)], known)
        if how.joint and top.spec.joint:
            losses, counts = lost[-1], weights
            if how.view_dropout and overlapping and len(sides) > 1:
                torn = _torn(sides, imputed, overlapping)
                again = how.opinion(top.together(torn))
                copies = len(torn[0]) // overlapping
                wanted = targets[:overlapping].repeat(copies, *[1] * (targets.ndim - 1))
                losses = torch.cat([losses, how.rows_loss(again, wanted, likely)], -1)
                counts = torch.cat([counts, *[weights[..., :overlapping]] * copies], -1)
            total = total + how.joint * weighted(losses, counts)
    if not fuse and not how.fused:
        return total, None
    opinions = [ev.Opinion(*each) for each in zip(given.belief, given.uncertainty, strict=True)]
    for party in parties if not how.imputed else []:
        known = present[party][:, None].to(given.belief.dtype)
        opinions[party] = ev.discount(opinions[party], known)
    if not how.fused:
        opinions = [ev.Opinion(*(part.detach() for part in each)) for each in opinions]
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


class PlainLoss(torch.autograd.Function):
    """`total_loss` of an ensemble whose heads learn by their own losses alone (`Objective.plain`).

    Slopes are written down instead of traced, those of the heads left where their optimizer looks,
    and a party's head judges only rows it knows: on few rows a step takes as long as it has
    operations. index: by party and row of the batch the row of its embeddings, of which the last is
    the mean row. given: what is wanted of the rows that each party knows, party by party, then of
    all; their weights; and every party's embeddings.
    """

    @staticmethod
    def forward(ctx: Any, top: EvidenceTop, index: Sequence[Tensor], *given: Tensor) -> Tensor:
        nets: list[Any] = [*top.heads, top.joint]
        count, sides, joined = top.spec.members, [], []
        for number, (each, places) in enumerate(zip(given[2:], index, strict=True)):
            bottoms = 2 * count if number == top.spec.solo else count
            sides.append(torch.relu(each.unflatten(1, (bottoms, -1)).transpose(0, 1)))
            joined.append(sides[-1][:count].index_select(1, places))
        inputs = [*(side[-count:, :-1] for side in sides), torch.cat(joined, 2)]
        hidden = [net[0](values).relu_() for net, values in zip(nets, inputs, strict=True)]
        outputs = [net[2](values) for net, values in zip(nets, hidden, strict=True)]
        loss, slope = ev.summed_loss(torch.cat(outputs, 1), *given[:2])
        slopes, sizes = [], [values.shape[1] for values in inputs]
        for net, first, inner, part in zip(
            nets, inputs, hidden, slope.split(sizes, 1), strict=True
        ):
            slopes.append(net[0].back(first, _relu_back(net[2].back(inner, part), inner)))
        parts = slopes.pop().split([side.shape[2] for side in sides], 2)
        ctx.slopes = []
        for side, places, own, part in zip(sides, index, slopes, parts, strict=True):
            slope = torch.zeros_like(side)
            slope[-count:, :-1] = own
            slope[:count].index_add_(1, places, part)
            ctx.slopes.append(_relu_back(slope, side).transpose(0, 1).flatten(1))
        return loss

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        return None, None, None, None, *ctx.slopes


def _relu_back(slope: Tensor, values: Tensor) -> Tensor:
    """The slope before a ReLU, in place of that behind it."""
    return torch.ops.aten.threshold_backward.grad_input(slope, values, 0, grad_input=slope)
