"""VGAIN: GAIN with a variational encoder in place of the noise.

The generator is given a latent code of the row. In training the code is drawn from an encoder that
sees all observed cells, the hidden ones included; in use, from one that sees what is known. The
divergence between the two is what the code costs, so that with the losses of hidden cells it makes
an evidence bound for arbitrary conditioning (Ivanov, Figurnov, Vetrov, *Variational Autoencoder
with Arbitrary Conditioning*, 2019), beside GAIN's adversarial and reconstruction losses.

The code carries what several hidden cells have in common, which GAIN's noise of [0, .01] cannot.
`impute` averages over several codes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend._parameters import parameters
from fedmend.generate.encoder import Heads
from fedmend.generate.gain import GAIN, Imputer


class _Coder(nn.Module):
    """A Gaussian over codes, from cells and which of them are there."""

    def __init__(self, heads: Heads, hidden: int, latent: int) -> None:
        super().__init__()
        self.body = nn.Linear(len(heads.span) + heads.n_spans, hidden)
        self.head = nn.Linear(hidden, 2 * latent)

    def forward(self, cells: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
        """**Shape**: (n, width), (n, columns) -> mean and log deviation (n, latent)"""
        inner = F.silu(self.body(torch.cat([cells, flags], 1)))
        mean, log_deviation = self.head(inner).chunk(2, 1)
        return mean, log_deviation.clamp(-5, 3)


class VariationalImputer(Imputer):
    """An imputer whose side input ends with a latent code."""

    def __init__(
        self, heads: Heads, *, latent: int, hidden: int, side: int = 0, **shape: Any
    ) -> None:
        super().__init__(heads, hidden=hidden, side=side + latent, **shape)
        self.posterior = _Coder(heads, hidden, latent)
        self.prior = _Coder(heads, hidden, latent)

    def code(
        self,
        values: Tensor,
        shown: Tensor,
        generator: torch.Generator,
        observed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """A code drawn from the posterior (told what is ``observed``) or else from the prior."""
        prior = self.prior(values * shown[:, self.owner], shown)
        if observed is None:
            return _normal(prior, generator), values.new_zeros(())
        posterior = self.posterior(values * observed[:, self.owner], observed)
        # Reconstruction is a mean over cells, so the divergence is shared out over them too.
        cost = divergence(posterior, prior).mean() / self.heads.n_spans
        return _normal(posterior, generator), cost


def _normal(gaussian: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
    mean, log_deviation = gaussian
    draw = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return mean + draw * log_deviation.exp()


def divergence(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Kullback-Leibler divergence of two diagonal Gaussians (mean, log deviation), per row."""
    (mean, log), (other_mean, other_log) = first, second
    ratio = (2 * (log - other_log)).exp()
    distance = (mean - other_mean).square() * (-2 * other_log).exp()
    return (other_log - log + 0.5 * (ratio + distance - 1)).sum(1)


@parameters
class VGAIN(GAIN):
    """GAIN with a latent code of ``latent`` numbers; all other parameters are GAIN's."""

    name = "vgain"
    impute_draws = 30  # codes differ, and their mean comes closer the more there are
    noise = 0.0  # the code takes its place

    latent: int = 16

    def _imputer(self, heads: Heads) -> Imputer:
        return VariationalImputer(heads, latent=self.latent, **self._shape)
