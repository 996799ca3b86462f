"""The game that TableGAN brought to tables and CTAB-GAN took over, on square networks.

Rows are small square images (DCGAN): coordinates fill a square line by line, the rest is zero.
Neighbourhood in the square means nothing, but a few strided layers see all of it.

Besides deceiving the critic, the generator has two more aims. Information loss: its rows have the
mean and deviation of real ones in the critic's last hidden layer. Classifier loss: a classifier
that learns the target column from real rows finds the generated targets right for their rows.

A critic that may be as steep as it likes drives the generator past the real rows and back again.
A penalty on its slope at real rows (R1 of Mescheder et al., *Which Training Methods for GANs do
actually Converge?*, 2018), taken at every fourth step as in StyleGAN2, lets both come to rest.
"""

from __future__ import annotations

import itertools
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from fedmend._parameters import parameters
from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError
from fedmend.generate.adversarial import GUMBEL, Adversarial, Step
from fedmend.generate.encoder import Encoder
from fedmend.generate.training import descend
from fedmend.learn.optim import FlatOptimizer, OptimizerSpec

_SLOPE = 0.2


def side_of(width: int) -> int:
    """The smallest side of the form 2^k or 3·2^k, from 8, whose square holds the coordinates.

    >>> [side_of(width) for width in (1, 64, 65, 145, 1000)]
    [8, 8, 12, 16, 32]
    """
    side = 8  # less would leave a single layer
    while side * side < width:
        side = side * 3 // 2 if side & (side - 1) == 0 else side * 4 // 3
    return side


def _sides(side: int) -> list[int]:
    """The sides of all layers, from the image down to 2 or 3."""
    sides = [side]
    while sides[-1] > 3:
        sides.append(sides[-1] // 2)
    return sides


class SquareGenerator(nn.Module):
    """Transposed convolutions from a vector to a square, each doubling the side.

    Every coordinate has a bias of its own besides: how frequent a category is has nothing to do
    with where in the square it lies.
    """

    def __init__(self, inputs: int, channels: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        *_, smallest = sides = _sides(side_of(outputs))
        widths = [channels * 2**layer for layer in range(len(sides) - 1)][::-1]
        layers: list[nn.Module] = [
            nn.Linear(inputs, widths[0] * smallest**2),
            nn.Unflatten(1, (widths[0], smallest, smallest)),
        ]
        for before, after in zip(widths, [*widths[1:], 1], strict=True):
            layers += [nn.BatchNorm2d(before), nn.ReLU()]
            layers += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1)]
        self.layers = nn.Sequential(*layers)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """**Shape**: (n, inputs) -> (n, outputs)"""
        return self.layers(inputs).flatten(1)[:, : self.outputs] + self.bias


class SquareCritic(nn.Module):
    """Convolutions from a square to ``outputs`` numbers, each halving the side.

    With several ``planes`` a row is as many vectors of ``inputs``, one square upon the other.
    """

    def __init__(self, inputs: int, channels: int, outputs: int = 1, planes: int = 1) -> None:
        super().__init__()
        self.side = side_of(inputs)
        self.planes = planes
        sides = _sides(self.side)
        widths = [planes, *(channels * 2**layer for layer in range(len(sides) - 1))]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers.append(nn.Conv2d(before, after, 4, stride=2, padding=1))
            if layers[1:]:
                layers.append(nn.BatchNorm2d(after))
            layers.append(nn.LeakyReLU(_SLOPE))
        self.layers = nn.Sequential(*layers)
        self.last = nn.Linear(widths[-1] * sides[-1] ** 2, outputs)

    def features(self, rows: torch.Tensor) -> torch.Tensor:
        """What the last layer sees. **Shape**: (n, planes * inputs) -> (n, features)"""
        planes = rows.unflatten(1, (self.planes, -1))
        square = F.pad(planes, (0, self.side**2 - planes.shape[2]))
        return self.layers(square.unflatten(2, (self.side, self.side))).flatten(1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """**Shape**: (n, planes * inputs) -> (n, outputs)"""
        return self.last(self.features(rows))


# --- the game -------------------------------------------------------------------------------

_PENALISED = 4  # every so many steps, and as many times as much


def information_loss(real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    """How far apart the features' means are, and their deviations. **Shape**: (n, features)"""
    means = (real.mean(0) - fake.mean(0)).norm()
    return means + (real.std(0) - fake.std(0)).norm()


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


@parameters
class ConvolutionalGAN(Adversarial):
    """Square generator and critic, the classifier of the subclass, and the step of their game.

    ``target``: the column the classifier predicts (None: the table's label; without one there is
    no classifier); ``epsilon``: Adam's, damps the steps of weights that hardly matter, without
    which the game is unsteady.
    """

    beta2 = 0.9  # Adam's
    penalty = 0.0  # on the critic's slope at real rows

    epsilon: float = 1e-3
    channels: int = 16
    target: str | None = None

    def _classifier(self, inputs: int, outputs: int, stream: torch.Generator) -> nn.Module:
        """The auxiliary classifier."""
        raise NotImplementedError

    def _network(self, inputs: int) -> nn.Module:
        return SquareGenerator(inputs, self.channels, self.encoder_.width)

    def _target(self) -> Target:
        if self.target is not None and self.target not in self.schema_:
            known = did_you_mean(self.target, self.schema_.names)
            raise ConfigError(f"target={self.target!r} is no column of the table: {known}")
        return Target(self.encoder_, self.target or self.label_, self.device_)

    def _optimizer(self, module: nn.Module) -> FlatOptimizer:
        betas = (0.5, self.beta2)
        spec = OptimizerSpec("adam", self.lr, self.decay, betas=betas, eps=self.epsilon)
        return FlatOptimizer(list(module.parameters()), spec)

    def _rivalry(self, network: nn.Module, stream: torch.Generator) -> Step:
        width, target = self.encoder_.width, self._target()
        # A condition lies on the coordinate it speaks of, where one small window sees both.
        planes = 2 if self.conditions_.width else 1
        critic = SquareCritic(width, self.channels, planes=planes)
        self._placed("critic", critic)
        judging, making = self._optimizer(critic), self._optimizer(network)
        if target.is_used:
            classifier = self._classifier(width, target.width, stream)
            classing = self._optimizer(self._placed("classifier", classifier))
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
            descend(loss, judging)

            critic.requires_grad_(False)
            shown = critic.features(fakes)
            loss = F.softplus(-critic.last(shown)).mean()
            loss = loss + information_loss(features.detach(), shown)
            loss = loss + self.conditions_.cross_entropy(logits, wanted)
            if target.is_used:
                guesses = classifier(target.hidden(complete))
                loss = loss + target.loss(guesses, complete, None)
            descend(loss, making)
            critic.requires_grad_(True)

            if target.is_used:
                # After the generator's loss has left gradients here too.
                descend(target.loss(classifier(target.hidden(real)), real, gaps), classing)

        return step
