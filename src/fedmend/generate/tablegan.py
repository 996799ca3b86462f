"""TableGAN (Park et al., *Data Synthesis based on Generative Adversarial Networks*, 2018).

A DCGAN whose images are rows laid out as squares, with two losses more for the generator: the
information loss, and the classifier loss, so that a generated label fits its row (see
`convolutional`).

Departures: categories are indicators, not numbers, which would put them in an order; numbers are
ranks instead of positions in their range (``numeric="minmax"`` is the published way), so that
values many rows share come out exactly; coordinates have biases of their own; the information loss
compares the batches at hand instead of running averages, whose gradient is a hundredth as strong;
the paper's thresholds below which it is content, to trade likeness for privacy, are zero; the
networks have a quarter of the channels, to be bearable without an accelerator.

`sample(given=…)` and `impute` match known columns with freely generated candidates: an
approximation, see `Matcher`.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from fedmend._parameters import parameters
from fedmend.generate.convolutional import ConvolutionalGAN, SquareCritic
from fedmend.generate.encoder import Encoder


@parameters
class TableGAN(ConvolutionalGAN):
    """A convolutional GAN for tables; ``paper()`` has the publication's settings.

    Parameters: `ConvolutionalGAN` and `Adversarial`.
    """

    name = "tablegan"
    PRESETS: ClassVar = {
        "paper": {
            "lr": 2e-4,
            "beta2": 0.999,
            "epsilon": 1e-8,
            "channels": 64,
            "numeric": "minmax",
            "levels": 0,
            "average": 0.0,
            "patience": 0,
        }
    }

    epochs: int = 150
    lr: float = 5e-4
    beta2: float = 0.9
    numeric: str = "rank"

    def _encoder(self) -> Encoder:
        return Encoder(numeric=self.numeric, levels=self.levels, span=(-1.0, 1.0))

    def _classifier(self, inputs: int, outputs: int, stream: torch.Generator) -> nn.Module:
        return SquareCritic(inputs, self.channels, outputs)
