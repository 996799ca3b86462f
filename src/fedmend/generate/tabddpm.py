"""Diffusion for tables (Kotelnikov et al., *TabDDPM: Modelling Tabular Data with Diffusion Models*,
2023).

Numbers, mapped to standard normal scores, are noised by a Gaussian diffusion; every category by a
multinomial one (Hoogeboom et al., 2021), which keeps it with the probability ``signal(t)`` and else
draws one of all. One network sees the noised row and the time, and predicts the noise of the
numbers and the clean categories; the running average of its weights generates.

Departures from the paper. Time is continuous, so that rows can be generated in any number of steps
(``sampling_steps``). The categories' loss is the cross-entropy of the clean category instead of the
variational bound. Numbers with few levels, and single values that many rows share, are diffused as
categories (``levels``, ``spikes``), which relations to other columns may hang on. Training stops
on a held-out loss (``validation``). And the network learns to be told: in a share ``condition`` of
the rows some cells stand clean, marked as such, and only the others are predicted. Known columns
are then simply told. With ``condition=0`` they are in-painted instead: noised anew to each step's
time (Lugmayr et al., *RePaint*, 2022).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from fedmend._parameters import parameters
from fedmend.generate.base import Generator
from fedmend.generate.encoder import Encoded, Encoder, Heads
from fedmend.generate.training import (
    EMA,
    Progress,
    batches,
    descend,
    generator_for,
    held_out,
    train,
)
from fedmend.learn.optim import FlatOptimizer, OptimizerSpec

_FARTHEST = 5.0  # normal scores beyond this do not occur
_WAVES = 64  # of the time, as sines and cosines


class Denoiser(nn.Module):
    """**Shape**: rows (n, width), time (n,), told (n, width) -> (n, width): noise and logits."""

    rates: torch.Tensor

    def __init__(self, width: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        rates = 1000 * torch.exp(-math.log(10_000) * torch.arange(_WAVES) / _WAVES)
        self.register_buffer("rates", rates, persistent=False)
        self.time = nn.Sequential(
            nn.Linear(2 * _WAVES, hidden[0]), nn.SiLU(), nn.Linear(hidden[0], hidden[0])
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


# --- the generator --------------------------------------------------------------------------

_ROWS = 4096  # generated at once
_SCORE_TIMES = 8
_APART = 25  # steps between scores, at least


@parameters
class TabDDPM(Generator):
    """Gaussian and multinomial diffusion; `TabDDPM.paper` is the published form and size."""

    name = "tabddpm"
    PRESETS: ClassVar = {
        "paper": {
            "hidden": (256, 1024, 1024, 1024, 1024, 256),
            "steps": 30_000,
            "batch_size": 4096,
            "sampling_steps": 1000,
            "levels": 0,
            "spikes": 0.0,
            "condition": 0.0,
            "validation": 0.0,
        }
    }
    impute_draws = 20

    hidden: tuple[int, ...] = (256, 256, 256)
    steps: int = 6000
    batch_size: int = 256
    lr: float = 2e-3
    sampling_steps: int = 50
    levels: int = 150
    spikes: float = 0.002
    condition: float = 0.5
    validation: float = 0.1
    patience: int = 10

    def _encoder(self) -> Encoder:
        numeric = "spiked" if self.spikes else "quantile"
        return Encoder(numeric, spikes=self.spikes, levels=self.levels)

    def _build(self) -> dict[str, nn.Module]:
        self.net_ = Denoiser(self.encoder_.width, self.hidden)
        self.heads_ = Heads(self.encoder_, self.device_)
        self.owner_ = torch.from_numpy(self.encoder_.owner).to(self.device_)
        self.gate_ = torch.tensor(self._gates(), device=self.device_)
        self.own_gate_ = self.gate_ == torch.arange(self.encoder_.width, device=self.device_)
        return {"net": self.net_}

    def _gates(self) -> list[int]:
        """For the score of a spiked column the indicator "another value", else the coordinate.

        On a spike the score says nothing, and predicting its noise would only disturb.
        """
        gates = list(range(self.encoder_.width))
        for before, span in pairwise(self.encoder_.spans):
            if span.activation == "linear" and span.column == before.column:
                gates[span.start] = before.stop - 1
        return gates

    # --- fit ------------------------------------------------------------------------------

    def _train(self, rows: Encoded, progress: Progress | None) -> None:
        device = self.device_
        noise = generator_for(device, self.seed, "diffusion noise")
        values = torch.from_numpy(rows.values).to(device)
        observed = torch.from_numpy(rows.observed).to(device)
        fitted, scored = held_out(rows.n_rows, self.validation, self._numpy_rng("held out"))
        part = torch.from_numpy(fitted).to(device)
        spec = OptimizerSpec("adamw", self.lr, 1e-4)
        adam = FlatOptimizer(list(self.net_.parameters()), spec)
        average = EMA(self.net_, 0.999)

        def step(number: int, batch: torch.Tensor) -> None:
            adam.scale = 1 - number / self.steps
            at = part[batch]
            time = torch.rand(len(at), generator=noise, device=device)
            descend(self._loss(self.net_, values[at], observed[at], time, noise), adam)
            average.update()

        @torch.no_grad()
        def score() -> float:
            stream = generator_for(device, self.seed, "diffusion score")
            at = torch.from_numpy(np.tile(scored, _SCORE_TIMES)).to(device)
            times = (torch.arange(_SCORE_TIMES, device=device) + 0.5) / _SCORE_TIMES
            time = times.repeat_interleave(len(scored))
            return float(self._loss(average.average, values[at], observed[at], time, stream))

        self.history_ = train(
            step,
            batches(len(fitted), self.batch_size, noise, device),
            steps=self.steps,
            modules=[average.average],
            score=score if len(scored) else None,
            every=max(_APART, self.steps // 40),
            patience=self.patience,
            progress=progress,
        )
        self.net_.load_state_dict(average.average.state_dict())

    def _loss(
        self,
        net: nn.Module,
        values: torch.Tensor,
        observed: torch.Tensor,
        time: torch.Tensor,
        noise: torch.Generator,
    ) -> torch.Tensor:
        """Squared error of the noise and cross-entropy of the categories, per span.

        **Shape**: values (n, width), observed (n, coded columns), time (n,)
        """
        told = self._spread(self._told(observed, noise))
        wanted = self._spread(observed) & ~told
        noised, drawn = self._noised(values, self._spread(observed), time, noise)
        output = net(torch.where(told, values, noised), time, told)
        gated = torch.where(self.own_gate_, 1.0, values[:, self.gate_])
        wrong = ((output - drawn) ** 2 * gated * (wanted & self.heads_.scalar)).sum(1)
        unclear = self.heads_.cross_entropy(output, values * wanted)
        return (wrong + unclear).mean() / self.heads_.n_spans

    def _spread(self, cells: torch.Tensor) -> torch.Tensor:
        return cells[:, self.owner_]

    def _told(self, observed: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
        """Cells that the network sees clean: in some rows none, in others a random share."""
        rows, device = len(observed), observed.device
        share = torch.rand(rows, 1, generator=noise, device=device)
        some = torch.rand(rows, 1, generator=noise, device=device) < self.condition
        drawn = torch.rand(observed.shape, generator=noise, device=device)
        return (drawn < share) & some & observed

    def _noised(
        self,
        values: torch.Tensor,
        observed: torch.Tensor,
        time: torch.Tensor,
        noise: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows at their times, and the Gaussian noise in them; a missing cell is noise alone."""
        return mixed(self.heads_, values, signal(time)[:, None] * observed, noise)

    # --- sample ----------------------------------------------------------------------------

    @torch.no_grad()
    def _generate(self, n: int, known: Encoded | None, generator: torch.Generator) -> np.ndarray:
        rows = []
        for start in range(0, n, _ROWS):
            size = min(_ROWS, n - start)
            values = torch.zeros(size, self.encoder_.width, device=self.device_)
            observed = values.bool()
            if known is not None:
                part = known.take(slice(start, start + size))
                values = torch.from_numpy(part.values).to(self.device_)
                observed = self._spread(torch.from_numpy(part.observed).to(self.device_))
            rows.append(self._denoised(values, observed, generator))
        return torch.cat(rows).cpu().numpy()

    def _denoised(
        self, values: torch.Tensor, observed: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """From pure noise at time 1 to rows at time 0, holding to the observed values."""
        n, device = len(values), values.device
        told = observed if self.condition else torch.zeros_like(observed)
        inpaint = bool(observed.any()) and not self.condition
        rows, _ = mixed(self.heads_, values, torch.zeros_like(values), generator)
        times = torch.linspace(1, 0, self.sampling_steps + 1, device=device)
        for time, earlier in pairwise(times):
            if inpaint:
                noised, _ = self._noised(values, observed, time.expand(n), generator)
                rows = torch.where(observed, noised, rows)
            rows = torch.where(told, values, rows)
            output = self.net_(rows, time.expand(n), told)
            rows = step_back(self.heads_, rows, output, (time, earlier), generator)
        return rows
