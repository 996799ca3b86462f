"""Diffusion of encoded rows: the network that denoises, the noise, and the step back in time.

Numbers take Gaussian noise, categories multinomial (Hoogeboom et al., *Argmax Flows and Multinomial
Diffusion*, 2021). Time runs from 0, clean, to 1, noise alone.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn

from fedmend.generate.heads import Heads

__all__ = ["Denoiser", "mixed", "signal", "step_back"]

_FARTHEST = 5.0  # normal scores beyond this do not occur


class Denoiser(nn.Module):
    """**Shape**: rows (n, width), time (n,), told (n, width) -> (n, width): noise and logits."""

    rates: torch.Tensor

    def __init__(self, width: int, hidden: tuple[int, ...], time_width: int) -> None:
        super().__init__()
        half = time_width // 2
        rates = 1000 * torch.exp(-math.log(10_000) * torch.arange(half) / half)
        self.register_buffer("rates", rates, persistent=False)
        self.time = nn.Sequential(
            nn.Linear(2 * half, hidden[0]), nn.SiLU(), nn.Linear(hidden[0], hidden[0])
        )
        self.start = nn.Linear(2 * width, hidden[0])
        layers: list[nn.Module] = []
        for before, after in pairwise(hidden):
            layers += [nn.SiLU(), nn.Linear(before, after)]
        self.body = nn.Sequential(*layers, nn.SiLU(), nn.Linear(hidden[-1], width))

    def forward(self, rows: torch.Tensor, time: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        angles = time[:, None] * self.rates
        waves = torch.cat([angles.cos(), angles.sin()], dim=1)
        return self.body(self.start(torch.cat([rows, told.to(rows.dtype)], 1)) + self.time(waves))


def signal(time: torch.Tensor) -> torch.Tensor:
    """The share of variance that is signal at a time in 0..1: Nichol and Dhariwal's cosine."""
    return (torch.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2).clamp(1e-5, 1 - 1e-5)


def mixed(
    heads: Heads, rows: torch.Tensor, share: torch.Tensor, noise: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of which a share is kept and the rest is noise; and the Gaussian noise."""
    drawn = torch.randn(rows.shape, generator=noise, device=rows.device)
    numbers = share.sqrt() * rows + (1 - share).sqrt() * drawn
    lot = torch.rand(len(rows), heads.n_spans, generator=noise, device=rows.device)
    any_category = heads.draw(torch.ones_like(rows), noise)
    categories = torch.where(lot[:, heads.span] < share, rows, any_category)
    return torch.where(heads.scalar, numbers, categories), drawn


def step_back(
    heads: Heads,
    rows: torch.Tensor,
    output: torch.Tensor,
    times: tuple[torch.Tensor, torch.Tensor],
    generator: torch.Generator,
) -> torch.Tensor:
    """A draw of the rows at the earlier of two times, given them and the network's at the later."""
    now, then = signal(times[0]), signal(times[1])
    kept = now / then
    # Gaussian: the posterior of the earlier value, given this one and the predicted clean one
    clean = (rows - (1 - now).sqrt() * output) / now.sqrt()
    clean = clean.clamp(-_FARTHEST, _FARTHEST)
    mean = (then.sqrt() * (1 - kept) * clean + kept.sqrt() * (1 - then) * rows) / (1 - now)
    spread = ((1 - then) / (1 - now) * (1 - kept)).sqrt()
    numbers = mean + spread * torch.randn(rows.shape, generator=generator, device=rows.device)
    # Multinomial: draw the clean category, then the earlier one given both its neighbours
    guess = heads.draw(heads.log_softmax(output).exp(), generator)
    share = 1 / heads.sizes
    both = (kept * rows + (1 - kept) * share) * (then * guess + (1 - then) * share)
    categories = heads.draw(both, generator)
    return torch.where(heads.scalar, numbers, categories)
