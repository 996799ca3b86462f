"""A variational autoencoder for tables (TVAE: Xu et al., *Modeling Tabular Data using Conditional
GAN*, 2019, section 4.5).

Encoder and decoder are two-layer networks. The decoder gives a mean for every scalar coordinate,
whose deviation is learnt per coordinate, and probabilities for every softmax span; the loss is the
observed cells' negative log-likelihood and the Kullback-Leibler term. Departures from the paper,
all of them options: categories and modes are drawn by their probabilities instead of taking the
likeliest (``draw``), spikes and numbers with few levels are coded apart (``spikes``, ``levels``),
the latent space is smaller, and training stops on a held-out evidence bound (``validation``).

Known columns (`sample(given=…)`, `impute`) are honoured by search in the latent space: candidates
from the prior are weighed by how likely they make the known cells, one is drawn by weight, and a
few gradient steps bring it closer.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import nn

from fedmend._parameters import parameters
from fedmend.generate.base import Generator
from fedmend.generate.encoder import Encoded, Encoder, Heads
from fedmend.generate.training import Progress, batches, descend, generator_for, held_out, train
from fedmend.learn.optim import FlatOptimizer, OptimizerSpec

_ROWS = 4096  # decoded at once
_FACTOR = 2.0  # of the likelihood beside the divergence, as in TVAE's code
_REFINE = 20  # gradient steps of a search


class _Encoder(nn.Module):
    """**Shape**: (n, width) -> mean (n, latent), log-variance (n, latent)."""

    def __init__(self, width: int, hidden: tuple[int, ...], latent: int) -> None:
        super().__init__()
        self.body = _mlp(width, hidden)
        self.mean = nn.Linear(hidden[-1], latent)
        self.log_variance = nn.Linear(hidden[-1], latent)

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        body = self.body(values)
        return self.mean(body), self.log_variance(body).clamp(-12, 12)


class _Decoder(nn.Module):
    """**Shape**: (n, latent) -> (n, width), before the spans' activations."""

    def __init__(self, width: int, hidden: tuple[int, ...], latent: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_mlp(latent, hidden), nn.Linear(hidden[-1], width))
        self.log_sigma = nn.Parameter(torch.full((width,), -2.3))

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        return self.body(latent)

    def sigma(self) -> torch.Tensor:
        """Deviation of every scalar coordinate."""
        return self.log_sigma.clamp(-4.6, 0).exp()


def _mlp(width: int, hidden: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner in hidden:
        layers += [nn.Linear(width, inner), nn.ReLU()]
        width = inner
    return nn.Sequential(*layers)


@parameters
class VAE(Generator):
    """TVAE with drawn categories; `VAE.paper` is the published form."""

    name = "vae"
    PRESETS: ClassVar = {
        "paper": {
            "latent": 128,
            "batch_size": 500,
            "draw": False,
            "spikes": 0.0,
            "levels": 0,
            "validation": 0.0,
        }
    }

    latent: int = 32
    hidden: tuple[int, ...] = (128, 128)
    epochs: int = 300
    batch_size: int = 200
    lr: float = 1e-3
    draw: bool = True
    spikes: float = 0.05
    levels: int = 20
    candidates: int = 2000
    validation: float = 0.1
    patience: int = 20

    def _encoder(self) -> Encoder:
        return Encoder("mode", spikes=self.spikes, levels=self.levels)

    def _build(self) -> dict[str, nn.Module]:
        width = self.encoder_.width
        self.encode_ = _Encoder(width, self.hidden, self.latent)
        self.decode_ = _Decoder(width, self.hidden[::-1], self.latent)
        self.heads_ = Heads(self.encoder_, self.device_)
        return {"encode": self.encode_, "decode": self.decode_}

    # --- fit ------------------------------------------------------------------------------

    def _train(self, rows: Encoded, progress: Progress | None) -> None:
        device = self.device_
        noise = generator_for(device, self.seed, "vae noise")
        values = torch.from_numpy(rows.values).to(device)
        observed = torch.from_numpy(self.encoder_.spread(rows.observed)).to(device)
        fitted, scored = held_out(rows.n_rows, self.validation, self._numpy_rng("held out"))
        part = torch.from_numpy(fitted).to(device)
        parameters = [*self.encode_.parameters(), *self.decode_.parameters()]
        spec = OptimizerSpec("adam", self.lr, 1e-5)
        adam = FlatOptimizer(parameters, spec)

        def step(number: int, batch: torch.Tensor) -> None:
            at = part[batch]
            descend(self._loss(values[at], observed[at], noise).mean(), adam)

        @torch.no_grad()
        def score() -> float:
            stream = generator_for(device, self.seed, "vae score")
            return float(self._loss(values[scored], observed[scored], stream).mean())

        per_epoch = max(1, len(fitted) // self.batch_size)
        self.history_ = train(
            step,
            batches(len(fitted), self.batch_size, noise, device),
            steps=self.epochs * per_epoch,
            modules=[self.encode_, self.decode_],
            score=score if len(scored) else None,
            every=5 * per_epoch,
            patience=self.patience,
            progress=progress,
        )

    def _loss(
        self, values: torch.Tensor, observed: torch.Tensor, noise: torch.Generator
    ) -> torch.Tensor:
        """The negative evidence bound per row."""
        mean, log_variance = self.encode_(values)
        draws = torch.randn(mean.shape, generator=noise, device=mean.device)
        latent = mean + draws * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
        return _FACTOR * self._misfit(latent, values, observed) + divergence

    def _misfit(
        self, latent: torch.Tensor, values: torch.Tensor, observed: torch.Tensor
    ) -> torch.Tensor:
        """Negative log-likelihood of the observed cells, per row."""
        logits = self.decode_(latent)
        log_sigma = self.decode_.log_sigma.clamp(-4.6, 0)
        wrong = (values - logits.tanh()) * (-log_sigma).exp()
        scalars = (0.5 * wrong**2 + log_sigma) * (observed & self.heads_.scalar)
        return scalars.sum(1) + self.heads_.cross_entropy(logits, values * observed)

    # --- sample ----------------------------------------------------------------------------

    @torch.no_grad()
    def _generate(self, n: int, known: Encoded | None, generator: torch.Generator) -> np.ndarray:
        rows = []
        for start in range(0, n, _ROWS):
            size = min(_ROWS, n - start)
            if known is None:
                latent = self._draw(size, generator)
            else:
                latent = self._search(known.take(slice(start, start + size)), generator)
            rows.append(self._decoded(latent, generator))
        return torch.cat(rows).cpu().numpy()

    def _draw(self, n: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(n, self.latent, generator=generator, device=self.device_)

    def _decoded(self, latent: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Coordinates: softmax spans are probabilities, scalars are drawn around their means."""
        means = self.heads_.activate(self.decode_(latent))
        spread = torch.randn(means.shape, generator=generator, device=self.device_)
        return torch.where(self.heads_.scalar, means + spread * self.decode_.sigma(), means)

    def _search(self, known: Encoded, generator: torch.Generator) -> torch.Tensor:
        """Latent codes that make the known cells likely."""
        values = torch.from_numpy(known.values).to(self.device_)
        observed = torch.from_numpy(self.encoder_.spread(known.observed)).to(self.device_)
        pool = self._draw(self.candidates, generator)
        weights = (self._likelihood(pool, values, observed) * _FACTOR).softmax(1)
        latent = pool[torch.multinomial(weights, 1, generator=generator)[:, 0]]
        with torch.enable_grad():
            latent = latent.clone().requires_grad_()
            first, second = torch.zeros_like(latent), torch.zeros_like(latent)
            for step in range(1, _REFINE + 1):
                misfit = _FACTOR * self._misfit(latent, values, observed)
                loss = (misfit + 0.5 * latent.square().sum(1)).sum()
                (gradient,) = torch.autograd.grad(loss, latent)
                with torch.no_grad():
                    # Adam: torch.optim's would load a compiler that nothing here uses, for seconds.
                    first.lerp_(gradient, 1 - 0.9)
                    second.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
                    size = (second.sqrt() / (1 - 0.999**step) ** 0.5).add_(1e-8)
                    latent.addcdiv_(first, size, value=-0.05 / (1 - 0.9**step))
        return latent.detach()

    def _likelihood(
        self, pool: torch.Tensor, values: torch.Tensor, observed: torch.Tensor
    ) -> torch.Tensor:
        """Log-likelihood of each row's known cells under each candidate, up to a constant per row.

        The squares are multiplied out, so that two matrix products serve all pairs.
        **Shape**: (m, latent), (n, width), (n, width) -> (n, m)
        """
        logits = self.decode_(pool)
        precision = self.decode_.sigma().pow(-2) * self.heads_.scalar
        means = torch.where(self.heads_.scalar, logits.tanh(), 0.0)
        gains = means * precision
        scalars = (values * observed) @ gains.T - 0.5 * observed.float() @ (means * gains).T
        return scalars + (values * observed) @ self.heads_.log_softmax(logits).T

    def _decode_rng(self, seed: int) -> np.random.Generator | None:
        return self._numpy_rng("categories", seed) if self.draw else None
