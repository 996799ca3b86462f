"""Known columns by matching: a wanted row becomes one of many candidates that agree with it.

Approximate Bayesian computation with a kernel: every candidate is weighed by how close it comes in
the known columns, and one is drawn by weight. Exact in the limit of many candidates; with few it
errs towards rows that are merely similar where something is known.
"""

from __future__ import annotations

import numpy as np
import torch

from fedmend.generate.codec import indicators
from fedmend.generate.encoder import Encoded, Encoder, Raw

__all__ = ["Matcher"]

_CELLS = 20_000_000
_NARROWEST = 0.02


class Matcher:
    """Candidates, laid out so that their distances to known rows are two matrix products.

    The distance counts known columns only: half the squared difference of numbers, in the
    candidates' standard deviations, and 1 for a wrong category. The kernel falls off with the
    distance in units of that of the ``neighbours``-th nearest candidate. ``raw`` are the
    candidates as raw numbers.
    """

    def __init__(self, pool: torch.Tensor, encoder: Encoder, neighbours: int = 5) -> None:
        self.pool = pool
        self.encoder = encoder
        self.neighbours = min(neighbours, len(pool))
        self.raw = raw = encoder.decode(pool.cpu().numpy())
        self._sizes = {
            name: len(encoder.schema[name].categories or ()) or 1 for name in encoder.columns
        }
        self._units = {
            name: (float(raw[name].mean()), float(raw[name].std()) or 1.0)
            for name in self._sizes
            if not encoder.schema[name].is_categorical
        }
        self._owner = np.repeat(np.arange(len(self._sizes)), list(self._sizes.values()))
        self._points = self._features(raw)

    def _features(self, raw: Raw) -> torch.Tensor:
        """Standardised numbers and indicators of categories. **Shape**: (n, features)"""
        parts = []
        for name, size in self._sizes.items():
            if name in self._units:
                mean, unit = self._units[name]
                parts.append(((raw[name] - mean) / unit)[:, None].astype(np.float32))
            else:
                parts.append(indicators(raw[name].astype(np.int64), size))
        return torch.from_numpy(np.concatenate(parts, axis=1)).to(self.pool.device)

    def draw(self, known: Encoded, generator: torch.Generator) -> torch.Tensor:
        """A candidate for every known row. **Shape**: (n, width) -> (n, width)"""
        return self.pool[self.pick(known, 1, generator)[:, 0]]

    def pick(self, known: Encoded, draws: int, generator: torch.Generator) -> torch.Tensor:
        """Which candidates are drawn for every known row. **Shape**: (n, width) -> (n, draws)"""
        at_once = max(1, _CELLS // len(self.pool))
        picked = []
        for start in range(0, known.n_rows, at_once):
            rows = np.arange(start, min(start + at_once, known.n_rows))
            weights = self._weights(self.distances(known.take(rows)))
            picked.append(torch.multinomial(weights, draws, True, generator=generator))
        return torch.cat(picked)

    def _weights(self, distance: torch.Tensor) -> torch.Tensor:
        closest = distance.topk(self.neighbours, dim=1, largest=False).values
        nearest, reach = closest[:, :1], closest[:, -1:] - closest[:, :1]
        return torch.exp((nearest - distance) / reach.clamp(min=_NARROWEST))

    def distances(self, known: Encoded) -> torch.Tensor:
        """Of every known row to every candidate, less what is the same for all candidates.

        **Shape**: (n, width) -> (n, candidates)
        """
        wanted = self._features(self.encoder.decode(known.values))
        counts = torch.from_numpy(known.observed[:, self._owner].astype(np.float32))
        counts = counts.to(self.pool.device)
        return counts @ (0.5 * self._points.square()).T - (counts * wanted) @ self._points.T
