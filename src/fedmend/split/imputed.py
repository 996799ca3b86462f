"""Imputed embeddings, for a party that does not know a row: as the others' suggest them.

A top that was trained on aligned rows has met every party's embedding of them. Their mean and
covariance say what an absent party's embedding would probably be, given those that are there: a
normal distribution, whose draws are put through the top in turn. The mean of their outputs is the
prediction, so that a row which depends on the absent party comes out undecided, not average.

Tops that were trained with a fixed embedding of an absent party go on with it (`fixed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedmend.federation.wire import Record

DRAWS = 16
ROWS_TO_LEARN = 8192
# Ridges tried, as multiples of the mean variance of what is known.
RIDGES = tuple(10.0**power for power in np.arange(-3.0, 2.5, 0.5))


@dataclass
class ImputedEmbeddings(Record):
    """Mean [d] and covariance [d, d] of all embeddings side by side, parties in the top's order.

    ridges: how far a party's embedding alone is taken to speak of the others', by
    leave-one-out. fixed: embeddings imputed for a party whatever the others say.
    """

    names: tuple[str, ...]
    widths: tuple[int, ...]
    mean: Tensor
    covariance: Tensor
    ridges: dict[str, float] = field(default_factory=dict)
    fixed: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, embeddings: Mapping[str, Tensor], fixed: Mapping[str, Tensor] | None = None
    ) -> ImputedEmbeddings:
        """From embeddings [n, d] of the same rows at every party."""
        names = tuple(embeddings)
        joined = torch.cat([embeddings[name].double().cpu() for name in names], 1)
        mean = joined.mean(0)
        centred = joined - mean
        found = cls(
            names,
            tuple(embeddings[name].shape[1] for name in names),
            mean,
            centred.T @ centred / max(1, len(joined) - 1),
            fixed={name: value.double().cpu() for name, value in (fixed or {}).items()},
        )
        for name in names:
            at = found._at([name])
            rest = np.setdiff1d(np.arange(joined.shape[1]), at)
            if len(rest):
                found.ridges[name] = _best_ridge(centred[:, at], centred[:, rest])
        return found

    def draws(self, known: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Embeddings of all parties for rows of which `known` are there, a few times over."""
        if not known:
            raise ValueError("somebody must know a row")
        some = next(iter(known.values()))
        rows = len(some)
        absent = [name for name in self.names if name not in known]
        fixed = {
            name: self.fixed[name].to(some.device, some.dtype).expand(rows, -1)
            for name in absent
            if name in self.fixed
        }
        guessed = [name for name in absent if name not in fixed]
        if not guessed:
            return [{**known, **fixed}]
        mean, spread = self._conditional(known, guessed)
        generator = torch.Generator().manual_seed(0)
        half = torch.randn(DRAWS // 2, spread.shape[1], generator=generator, dtype=torch.float64)
        found = []
        # Opposite draws: their mean is the conditional mean itself.
        for noise in torch.cat([half, -half]):
            values = (mean + spread @ noise).to(some.device, some.dtype)
            pieces = values.split([self.widths[self.names.index(name)] for name in guessed], 1)
            found.append({**known, **fixed, **dict(zip(guessed, pieces, strict=True))})
        return found

    def _conditional(
        self, known: Mapping[str, Tensor], guessed: Sequence[str]
    ) -> tuple[Tensor, Tensor]:
        """Mean [n, k] and a root [k, k] of the covariance of the guessed embeddings."""
        there = [name for name in self.names if name in known]
        at, of = self._at(there), self._at(guessed)
        values = torch.cat([known[name].double().cpu() for name in there], 1) - self.mean[at]
        inner = self.covariance[at][:, at]
        ridge = float(np.exp(np.mean([np.log(self.ridges[name]) for name in there])))
        unit = inner.diagonal().mean().clamp_min(1e-12)
        inner = inner + ridge * unit * torch.eye(len(at), dtype=torch.float64)
        across = self.covariance[at][:, of]
        slopes = torch.linalg.solve(inner, across)
        left = self.covariance[of][:, of] - across.T @ slopes
        scales, axes = torch.linalg.eigh((left + left.T) / 2)
        return self.mean[of] + values @ slopes, axes * scales.clamp_min(0).sqrt()

    def _at(self, names: Sequence[str]) -> np.ndarray:
        ends = np.cumsum([0, *self.widths])
        return np.concatenate(
            [np.arange(ends[i], ends[i + 1]) for i, name in enumerate(self.names) if name in names]
        )


def _best_ridge(x: Tensor, y: Tensor) -> float:
    """The multiple of x's mean variance with which ridge regression misses y least, one row out.

    Leave-one-out of a linear smoother needs no refitting: the residual over one minus leverage.
    """
    rows = len(x)
    left, scales, _ = torch.linalg.svd(x, full_matrices=False)
    unit = float(scales.square().sum()) / max(1, x.shape[1])
    if not unit > 0:
        return float(RIDGES[-1])
    turned = left.T @ y
    misses = []
    for ridge in RIDGES:
        shrunk = scales.square() / (scales.square() + ridge * unit)
        leverage = (left.square() * shrunk).sum(1) + 1.0 / rows
        residual = y - left @ (shrunk[:, None] * turned)
        misses.append(float((residual / (1 - leverage).clamp_min(1e-6)[:, None]).square().mean()))
    return float(RIDGES[int(np.argmin(misses))])
