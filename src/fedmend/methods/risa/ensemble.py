"""An ensemble of networks in one: each learns without a part of the overlapping rows.

The opinion of the one that has not seen a row says how good opinions are, so no row has to be held
out from the training, and all of them together judge rows better than one. Members share nothing;
a party's bottoms stand side by side in one module, and their embeddings in one message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.learn.nets import (
    Batch,
    Bottom,
    BottomSpec,
    SeededDropout,
    embedding_width,
    initialise,
)

__all__ = [
    "BottomEnsemble",
    "EnsembleSpec",
    "MemberLinear",
    "bottom_of",
    "deal",
    "draw",
    "members_mlp",
]


class MemberLinear(nn.Module):
    """A linear layer of each member, all at once. **Shape** [members, n, width] in and out."""

    def __init__(self, members: int, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(members, width, out))
        self.bias = nn.Parameter(torch.zeros(members, 1, out))

    def forward(self, values: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, values, self.weight)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """As `nets.initialise` draws linear layers."""
        bound = 1.0 / math.sqrt(self.weight.shape[1])
        self.weight.uniform_(-bound, bound, generator=generator)
        self.bias.uniform_(-bound, bound, generator=generator)


def members_mlp(
    members: int, width: int, hidden: Sequence[int], out: int, dropout: float = 0.0
) -> nn.Sequential:
    """As `nets.mlp`, of each member."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [MemberLinear(members, width, size), nn.ReLU()]
        if dropout:
            layers.append(SeededDropout(dropout))
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
class EnsembleSpec:
    """So many bottoms of one shape."""

    member: BottomSpec
    members: int

    @property
    def out(self) -> int:
        return self.member.out * self.members

    @property
    def numeric(self) -> int:
        return self.member.numeric

    def to_dict(self) -> dict[str, Any]:
        return {"member": self.member.to_dict(), "members": self.members}


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
        self.body = members_mlp(spec.members, joined, one.hidden, one.out, one.dropout)

    def joined(self, numeric: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Embeddings of rows, given their numbers and what tables and networks make of the rest."""
        rows, members = len(numeric), self.spec.members
        pieces = [numeric[:, None].expand(-1, members, -1)]
        pieces += [each.view(rows, members, -1) for each in others]
        found = self.body(torch.cat(pieces, 2).transpose(0, 1))
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


def bottom_of(spec: Mapping[str, Any]) -> Bottom | BottomEnsemble:
    """The module a saved spec describes."""
    if "members" not in spec:
        return Bottom(BottomSpec.from_dict(spec))
    one = BottomSpec.from_dict(spec["member"])
    return BottomEnsemble(EnsembleSpec(one, int(spec["members"])))


def deal(rows: np.ndarray, members: int, rng: np.random.Generator) -> np.ndarray:
    """Which member does not see each row; as even as can be."""
    return rng.permutation(np.arange(len(rows)) % members)
