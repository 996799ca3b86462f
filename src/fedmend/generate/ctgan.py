"""CTGAN (Xu et al., *Modeling Tabular Data using Conditional GAN*, 2019).

Numbers become a mode and a position within it; a conditional vector asks for one category of one
column, drawn by the logarithm of its frequency, so that rare categories are learnt; the critic
judges packs of rows (PacGAN) under the Wasserstein loss with gradient penalty.

Departures: the rows of one step serve critic and generator alike, instead of being generated
twice; the gradient penalty is computed in closed form; rows are sampled from a running average of
the generator's weights (see `adversarial`); numbers with few distinct values are categories
(``levels``). Packs are of five and the critic has no dropout: with ten and a half, as published,
relations between columns begin to be learnt only after a thousand steps.

`sample(given=…)` with one categorical column uses the conditional vector. More columns, and
numbers, are matched with candidates: an approximation, see `Matcher`.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from fedmend._parameters import parameters
from fedmend.generate.adversarial import GUMBEL, Adversarial, Step
from fedmend.generate.encoder import Encoder, Span
from fedmend.generate.training import descend
from fedmend.learn.nets import SeededDropout
from fedmend.learn.optim import FlatOptimizer, OptimizerSpec

_SLOPE = 0.2
_PENALTY = 10.0  # on the gradient


@parameters
class CTGAN(Adversarial):
    """A conditional tabular GAN; ``paper()`` has the publication's settings.

    ``pac`` rows are judged together; others: `Adversarial`.
    """

    name = "ctgan"
    PRESETS: ClassVar = {
        "paper": {
            "pac": 10,
            "dropout": 0.5,
            "levels": 0,
            "average": 0.0,
            "patience": 0,
        }
    }

    decay = 1e-6

    latent: int = 128
    hidden: int = 256
    pac: int = 5
    dropout: float = 0.0

    def _encoder(self) -> Encoder:
        return Encoder(numeric="mode", levels=self.levels)

    def _conditional(self) -> list[Span]:
        """Columns that are categories and nothing else."""
        return [
            span
            for span in self.encoder_.spans
            if span.activation == "softmax" and len(self.encoder_.of(span.column)) == 1
        ]

    def _network(self, inputs: int) -> nn.Module:
        return Residuals(inputs, self.hidden, self.encoder_.width)

    def _rivalry(self, network: nn.Module, stream: torch.Generator) -> Step:
        width = self.encoder_.width + self.conditions_.width
        critic = PackedCritic(self.pac * width, self.hidden, self.dropout, stream)
        self._placed("critic", critic)
        spec = OptimizerSpec("adam", self.lr, self.decay, betas=(0.5, 0.9))
        judges = FlatOptimizer(list(critic.parameters()), spec)
        makers = FlatOptimizer(list(network.parameters()), spec)
        neutral = torch.from_numpy(self.encoder_.neutral).to(self.device_)

        def step(
            real: torch.Tensor, gaps: torch.Tensor | None, wanted: torch.Tensor | None
        ) -> None:
            size = len(real)
            inputs = self._inputs(size, wanted, stream)
            condition = inputs[:, self.latent :]
            network.train()
            logits = network(inputs)
            fake = self.heads_.activate(logits, GUMBEL, stream)
            if gaps is not None:
                fake = torch.where(gaps, neutral, fake)
            fakes = torch.cat([fake, condition], dim=1).view(size // self.pac, -1)
            reals = torch.cat([real, condition], dim=1).view(size // self.pac, -1)

            scores = critic(torch.cat([fakes.detach(), reals]))
            made, true = scores.chunk(2)
            share = torch.rand(len(reals), 1, generator=stream, device=reals.device)
            between = torch.lerp(fakes.detach(), reals, share)
            slopes = critic.gradient(between).norm(dim=1)
            loss = made.mean() - true.mean() + _PENALTY * (slopes - 1).square().mean()
            descend(loss, judges)

            critic.requires_grad_(False)
            loss = self.conditions_.cross_entropy(logits, wanted) - critic(fakes).mean()
            descend(loss, makers)
            critic.requires_grad_(True)

        return step


class Residuals(nn.Module):
    """Two layers whose outputs are added to what they saw, side by side; then a linear one."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.first_norm = nn.BatchNorm1d(hidden)
        self.second = nn.Linear(inputs + hidden, hidden)
        self.second_norm = nn.BatchNorm1d(hidden)
        self.last = nn.Linear(inputs + 2 * hidden, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([self.first_norm(self.first(inputs)).relu(), inputs], dim=1)
        rows = torch.cat([self.second_norm(self.second(rows)).relu(), rows], dim=1)
        return self.last(rows)


class PackedCritic(nn.Module):
    """Two hidden layers with leaky ReLU and dropout, one score per pack of rows."""

    def __init__(
        self, inputs: int, hidden: int, dropout: float, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 1)
        self.drop = SeededDropout(dropout)
        self.drop.generator = generator

    def forward(self, packs: torch.Tensor) -> torch.Tensor:
        """**Shape**: (packs, inputs) -> (packs, 1)"""
        hidden = self.drop(F.leaky_relu(self.first(packs), _SLOPE))
        hidden = self.drop(F.leaky_relu(self.second(hidden), _SLOPE))
        return self.last(hidden)

    def gradient(self, packs: torch.Tensor) -> torch.Tensor:
        """The gradient of every pack's score with respect to the pack.

        The network is linear wherever its units keep their signs, so that the gradient is a
        product of weights — which autograd then differentiates once, not twice.
        **Shape**: (packs, inputs) -> (packs, inputs)
        """
        with torch.no_grad():
            before = self.first(packs)
            first = self.drop(_slopes(before))
            second = self.drop(_slopes(self.second(before * first)))
        back = (self.last.weight * second) @ self.second.weight
        return (back * first) @ self.first.weight


def _slopes(units: torch.Tensor) -> torch.Tensor:
    return torch.where(units > 0, 1.0, _SLOPE)
