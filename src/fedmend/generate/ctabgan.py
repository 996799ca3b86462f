"""CTAB-GAN (Zhao et al., *CTAB-GAN: Effective Table Data Synthesizing*, 2021).

TableGAN's game on CTGAN's encoding: square networks with information and classifier loss, and a
conditional vector that covers, besides categories, the modes of numbers. Columns of mixed type —
numbers in which some values are of a kind of their own, such as a zero for "none" — have modes for
these values (``spikes``); numbers with a long tail are taken as logarithms.

Departures: mixed columns and long tails are found, not declared (a value that many rows share is
of a kind of its own; a tail is long where it reaches five times further up than down from the
median); numbers with few distinct values are categories (``levels``); rows are sampled from a
running average of the generator's weights (see `adversarial`); the critic sees a condition on the
coordinate it speaks of instead of behind the row, and its slope is penalised (see `convolutional`);
coordinates have biases of their own; the networks have a quarter of the channels and learn faster,
to be bearable without an accelerator.

`sample(given=…)` with one categorical column uses the conditional vector. More columns, and
numbers, are matched with candidates: an approximation, see `Matcher`.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from fedmend._parameters import parameters
from fedmend.generate.convolutional import ConvolutionalGAN
from fedmend.generate.encoder import Encoder, Span
from fedmend.learn.nets import SeededDropout, seed_dropout


@parameters
class CTABGAN(ConvolutionalGAN):
    """A conditional convolutional GAN for tables; ``paper()`` has the publication's settings.

    ``spikes``: the share of rows from which a value is of a kind of its own; ``penalty``: how much
    the critic's slope at real rows costs it; ``sampling``: conditions are drawn by
    ``"log-frequency"`` (kind to rare categories) or ``"frequency"`` (closer to the table as a
    whole); others: `ConvolutionalGAN` and `Adversarial`.
    """

    name = "ctabgan"
    PRESETS: ClassVar = {
        "paper": {
            "epochs": 150,
            "batch_size": 500,
            "lr": 2e-4,
            "epsilon": 1e-8,
            "channels": 64,
            "penalty": 0.0,
            "levels": 0,
            "average": 0.0,
            "patience": 0,
        }
    }

    epochs: int = 90
    batch_size: int = 250
    lr: float = 1e-3
    penalty: float = 0.1
    hidden: int = 256
    spikes: float = 0.05
    sampling: str = "log-frequency"

    def _encoder(self) -> Encoder:
        return Encoder(numeric="mode", spikes=self.spikes, long_tails=True, levels=self.levels)

    def _conditional(self) -> list[Span]:
        """Categories, and the modes of numbers."""
        return [span for span in self.encoder_.spans if span.activation == "softmax"]

    def _classifier(self, inputs: int, outputs: int, stream: torch.Generator) -> nn.Module:
        layers: list[nn.Module] = []
        for before in (inputs, *[self.hidden] * 3):
            layers += [nn.Linear(before, self.hidden), nn.LeakyReLU(0.2), SeededDropout(0.5)]
        classifier = nn.Sequential(*layers, nn.Linear(self.hidden, outputs))
        seed_dropout(classifier, stream)
        return classifier
