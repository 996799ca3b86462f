"""Rows as small square images, for the convolutional networks of TableGAN and CTAB-GAN (DCGAN).

A row's coordinates fill a square line by line, the rest is zero. Neighbourhood in the square means
nothing, but a few strided layers see all of it.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["SquareCritic", "SquareGenerator", "side_of"]

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
