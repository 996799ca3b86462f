"""The game that TableGAN brought to tables and CTAB-GAN took over, on square networks.

Besides deceiving the critic, the generator has two more aims. Information loss: its rows have the
mean and deviation of real ones in the critic's last hidden layer. Classifier loss: a classifier
that learns the target column from real rows finds the generated targets right for their rows.

A critic that may be as steep as it likes drives the generator past the real rows and back again.
A penalty on its slope at real rows (R1 of Mescheder et al., *Which Training Methods for GANs do
actually Converge?*, 2018), taken at every fourth step as in StyleGAN2, lets both come to rest.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError
from fedmend.generate.adversarial import GUMBEL, Adversarial, Step
from fedmend.generate.encoder import Encoder
from fedmend.generate.square import SquareCritic, SquareGenerator

__all__ = ["ConvolutionalGAN", "Target", "information_gaps", "steepness"]

_PENALISED = 4  # every so many steps, and as many times as much


def information_gaps(real: torch.Tensor, fake: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How far apart the features' means are, and their deviations. **Shape**: (n, features)"""
    means = (real.mean(0) - fake.mean(0)).norm()
    return means, (real.std(0) - fake.std(0)).norm()


def steepness(scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Half the mean square of the scores' slope at the rows. **Shape**: (n, 1), (n, width) -> ()"""
    (slopes,) = torch.autograd.grad(scores.sum(), rows, create_graph=True)
    return slopes.square().sum(1).mean() / 2


class Target:
    """The column that the auxiliary classifier predicts from all others."""

    def __init__(self, encoder: Encoder, column: str | None, device: torch.device) -> None:
        self.spans = [] if column is None else encoder.of(column)
        self.start = self.spans[0].start if self.spans else 0
        self.width = self.spans[-1].stop - self.start if self.spans else 0
        self.is_used = 0 < self.width < encoder.width
        self.others = torch.ones(encoder.width, device=device)
        self.others[self.start : self.start + self.width] = 0.0

    def hidden(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows with zeros for the target. **Shape**: (n, width) -> (n, width)"""
        return rows * self.others

    def loss(
        self, guesses: torch.Tensor, rows: torch.Tensor, gaps: torch.Tensor | None
    ) -> torch.Tensor:
        """Cross-entropy of categories, squared error of numbers; missing targets do not count.

        **Shape**: (n, target width), (n, width), (n, width) or None -> ()
        """
        per_row = guesses.new_zeros(len(guesses))
        for span in self.spans:
            guess = guesses[:, span.start - self.start : span.stop - self.start]
            truth = rows[:, span.start : span.stop]
            if span.activation == "softmax":
                per_row = per_row - (truth * guess.log_softmax(1)).sum(1)
            else:
                per_row = per_row + (truth - guess).square().sum(1)
        if gaps is None:
            return per_row.mean()
        counts = (~gaps[:, self.start]).to(per_row.dtype)
        return (per_row * counts).sum() / counts.sum().clamp(min=1)


class ConvolutionalGAN(Adversarial):
    """Square generator and critic, the classifier of the subclass, and the step of their game."""

    lr: float
    decay: float
    beta2: float
    epsilon: float
    channels: int
    penalty: float
    target: str | None

    def _problems(self) -> list[str]:
        problems = super()._problems()
        if not self.penalty >= 0:
            problems.append(f"penalty must be 0 or more, got penalty={self.penalty!r}")
        if not self.epsilon > 0:
            problems.append(f"epsilon must be above 0, got epsilon={self.epsilon!r}")
        return problems

    def _classifier(self, inputs: int, outputs: int, stream: torch.Generator) -> nn.Module:
        """The auxiliary classifier."""
        raise NotImplementedError

    def _information(self, real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        """The information loss, of the critic's features."""
        return sum(information_gaps(real, fake), real.new_zeros(()))

    def _network(self, inputs: int) -> nn.Module:
        return SquareGenerator(inputs, self.channels, self.encoder_.width)

    def _target(self) -> Target:
        if self.target is not None and self.target not in self.schema_:
            known = did_you_mean(self.target, self.schema_.names)
            raise ConfigError(f"target={self.target!r} is no column of the table: {known}")
        return Target(self.encoder_, self.target or self.label_, self.device_)

    def _optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            module.parameters(),
            self.lr,
            (0.5, self.beta2),
            self.epsilon,
            weight_decay=self.decay,
            fused=True,
        )

    def _rivalry(self, network: nn.Module, stream: torch.Generator) -> Step:
        width, target = self.encoder_.width, self._target()
        # A condition lies on the coordinate it speaks of, where one small window sees both.
        planes = 2 if self.conditions_.width else 1
        critic = SquareCritic(width, self.channels, planes=planes)
        self._rival("critic", critic)
        judging, making = self._optimizer(critic), self._optimizer(network)
        if target.is_used:
            classifier = self._classifier(width, target.width, stream)
            classing = self._optimizer(self._rival("classifier", classifier))
        neutral = torch.from_numpy(self.encoder_.neutral).to(self.device_)
        turns = itertools.count(1)

        def step(
            real: torch.Tensor, gaps: torch.Tensor | None, wanted: torch.Tensor | None
        ) -> None:
            inputs = self._inputs(len(real), wanted, stream)
            condition = self.conditions_.plane(wanted, len(real), (planes - 1) * width)
            network.train()
            logits = network(inputs)
            complete = self.heads_.activate(logits, GUMBEL, stream)
            fake = complete if gaps is None else torch.where(gaps, neutral, complete)
            fakes = torch.cat([fake, condition], dim=1)

            # Real and made rows apart: batch normalisation must not see which are which.
            penalised = self.penalty > 0 and next(turns) % _PENALISED == 0
            reals = torch.cat([real, condition], dim=1).requires_grad_(penalised)
            features = critic.features(reals)
            scores = critic.last(features)
            loss = F.softplus(-scores).mean() + F.softplus(critic(fakes.detach())).mean()
            if penalised:
                loss = loss + self.penalty * _PENALISED * steepness(scores, reals)
            judging.zero_grad()
            loss.backward()
            judging.step()

            critic.requires_grad_(False)
            shown = critic.features(fakes)
            loss = F.softplus(-critic.last(shown)).mean()
            loss = loss + self._information(features.detach(), shown)
            loss = loss + self.conditions_.cross_entropy(logits, wanted)
            if target.is_used:
                guesses = classifier(target.hidden(complete))
                loss = loss + target.loss(guesses, complete, None)
            making.zero_grad()
            loss.backward()
            making.step()
            critic.requires_grad_(True)

            if target.is_used:
                # After the generator's loss has left gradients here too.
                classing.zero_grad()
                target.loss(classifier(target.hidden(real)), real, gaps).backward()
                classing.step()

        return step
