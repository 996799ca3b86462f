"""Tops that join whatever embeddings a row has.

Each is a module with `outputs(views)` and `loss(views, targets)`; the label party trains it in one
graph with its own bottom (`partial.py`).

- `MeanTop`: whoever is there is averaged, or joined with zeros for whoever is not; in training
  parties are left out at random. (LASER-VFL; PlugVFL.)
- `TransferTop`: a party's missing embedding is estimated from the others' by a small network that
  learns on aligned rows; rows without a label join with pseudo-labels. (SFHTL.)
- `CrossViewTop` (`cross_view.py`): estimates by attention, three heads that must agree. (FedCVT.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.errors import ConfigError
from fedmend.learn.nets import mlp
from fedmend.split.parts import TOPS


@dataclass(frozen=True)
class JointSpec:
    """A joint top over embeddings of the given widths; `own` is the label party's place, or -1."""

    widths: tuple[int, ...]
    hidden: tuple[int, ...]
    out: int
    dropout: float
    own: int
    options: tuple[tuple[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"options": dict(self.options)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JointSpec:
        lists = {key: tuple(values[key]) for key in ("widths", "hidden")}
        return cls(**{**values, **lists, "options": tuple(dict(values["options"]).items())})


@dataclass
class Views:
    """A batch of n rows as the top sees it, parties in the order of its inputs.

    values: embeddings [k, d] of the k rows a party has; at: their positions [k] in the batch.
    """

    n: int
    values: dict[str, Tensor]
    at: dict[str, Tensor]

    def dense(self, name: str) -> Tensor:
        """Embeddings [n, d], zeros for rows the party does not have."""
        values = self.values[name]
        if len(values) == self.n:
            return values
        return values.new_zeros(self.n, values.shape[1]).index_copy(0, self.at[name], values)

    def mask(self, name: str) -> Tensor:
        """Which rows the party has: bool [n]."""
        at = self.at[name]
        return torch.zeros(self.n, dtype=torch.bool, device=at.device).index_fill(0, at, True)


class JointTop(nn.Module):
    """What all joint tops have; `epochs_seen` is kept with the weights, for resumed trainings."""

    epochs_seen: Tensor

    def __init__(self, spec: JointSpec) -> None:
        super().__init__()
        self.spec = spec
        self.options = dict(spec.options)
        self.epoch = 0
        self.generator: torch.Generator | None = None
        self.register_buffer("epochs_seen", torch.zeros((), dtype=torch.int64))

    def start_epoch(self, generator: torch.Generator) -> None:
        self.epochs_seen += 1
        self.epoch = int(self.epochs_seen)
        self.generator = generator

    def outputs(self, views: Views) -> Tensor:
        raise NotImplementedError

    def loss(self, views: Views, targets: Tensor) -> Tensor:
        raise NotImplementedError


def row_losses(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of every row, and which rows have a target: a class from 0, or a number."""
    outputs = outputs.float() if outputs.dtype == torch.bfloat16 else outputs
    if outputs.shape[1] == 1:
        known = ~targets.isnan()
        loss = (outputs[:, 0] - targets.nan_to_num()).square()
    else:
        known = targets >= 0
        loss = F.cross_entropy(outputs, targets.clamp_min(0), reduction="none")
    return loss, known


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Zero where all weights are."""
    weights = weights.to(values.dtype)
    return (values * weights).sum() / weights.sum().clamp_min(1e-12)


# ---------------------------------------------------------------------------------- mean


class MeanTop(JointTop):
    """options: fusion "mean" or "concat"; drop: how often "concat" leaves a passive party out."""

    def __init__(self, spec: JointSpec) -> None:
        super().__init__(spec)
        self.mean = self.options["fusion"] == "mean"
        if self.mean and len(set(spec.widths)) > 1:
            raise ConfigError(
                f"fusion='mean' needs embeddings of one width, got {spec.widths}. "
                "Mend: one embedding=…, or fusion='concat'"
            )
        width = spec.widths[0] if self.mean else sum(spec.widths)
        self.body = mlp(width, spec.hidden, spec.out, spec.dropout)

    def outputs(self, views: Views) -> Tensor:
        return self._joined(views, _masks(views))

    def loss(self, views: Views, targets: Tensor) -> Tensor:
        masks = _masks(views)
        subsets = self._one_of_each_size(masks) if self.mean else self._plugged(masks)
        total = targets.new_zeros((), dtype=torch.float32)
        for weight, chosen in subsets:
            loss, known = row_losses(self._joined(views, chosen), targets)
            total = total + weight * weighted_mean(loss, known & chosen.any(0))
        return total

    def _joined(self, views: Views, masks: Tensor) -> Tensor:
        pieces = [
            views.dense(name) * mask[:, None]
            for name, mask in zip(views.values, masks, strict=True)
        ]
        if self.mean:
            joined = sum(pieces) / masks.sum(0).clamp_min(1)[:, None]
        else:
            joined = torch.cat(pieces, 1)
        return self.body(torch.relu(joined) if self.spec.hidden else joined)

    def _one_of_each_size(self, masks: Tensor) -> list[tuple[float, Tensor]]:
        """For every size one subset of each row's parties, drawn evenly; rows with fewer: none."""
        keys = torch.rand(masks.shape, generator=self.generator, device=masks.device)
        places = keys.masked_fill(~masks, 2.0).argsort(0).argsort(0)
        sizes = range(1, len(masks) + 1)
        weights = [subset_weight(len(masks), size) for size in sizes]
        enough = masks.sum(0)
        return [
            (weight / sum(weights), (places < size) & masks & (enough >= size))
            for size, weight in zip(sizes, weights, strict=True)
        ]

    def _plugged(self, masks: Tensor) -> list[tuple[float, Tensor]]:
        """Passive parties left out at random, the label party never."""
        keys = torch.rand(masks.shape, generator=self.generator, device=masks.device)
        kept = keys >= float(self.options["drop"])
        if self.spec.own >= 0:
            kept[self.spec.own] = True
        return [(1.0, masks & kept)]


def subset_weight(parties: int, size: int) -> float:
    """LASER-VFL's weight of one sampled subset of a size: C(n-1, k-1) / k."""
    return math.comb(parties - 1, size - 1) / size


def _masks(views: Views) -> Tensor:
    """bool [parties, n]"""
    return torch.stack([views.mask(name) for name in views.values])


# ---------------------------------------------------------------------------------- transfer


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
        self.body = mlp(sum(widths), spec.hidden, spec.out, spec.dropout)

    def outputs(self, views: Views) -> Tensor:
        return self._head(self._completed(_dense(views), _masks(views)))

    def loss(self, views: Views, targets: Tensor) -> Tensor:
        dense, masks = _dense(views), _masks(views)
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


JOINT_TOPS: dict[str, Callable[[JointSpec], JointTop]] = {}


def register(kind: str, top: Callable[[JointSpec], JointTop]) -> None:
    """Make a joint top known by name, to workers and to saved models."""
    JOINT_TOPS[kind] = top
    TOPS[kind] = (top, JointSpec)


register("mean", MeanTop)
register("transfer", TransferTop)
