"""Mode-specific normalisation (CTGAN 4.2), with spikes and long tails (CTAB-GAN 3.3)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fedmend.generate.codec import Piece, Rng, choose, indicators
from fedmend.generate.mixture import Mixture, fit_mixture

__all__ = ["Modes"]


class Modes:
    """A position within a mode (tanh) and the mode (softmax).

    ``scales`` of 0 are spikes: single values that many rows share, decoded exactly.
    """

    name: ClassVar[str] = "modes"

    def __init__(
        self, centres: np.ndarray, scales: np.ndarray, weights: np.ndarray, log: np.ndarray
    ) -> None:
        self.centres = centres
        self.scales = scales
        self.weights = weights
        self.log = log  # (origin, unit) of the logarithm, or empty

    @classmethod
    def fit(
        cls, values: np.ndarray, max_modes: int = 10, spikes: float = 0.05, long_tails: bool = False
    ) -> Modes:
        """Spikes are values with at least a share ``spikes`` (0: none) of the rows."""
        distinct, counts = np.unique(values, return_counts=True)
        heavy = counts >= max(spikes * len(values), 5) if spikes else np.zeros(len(counts), bool)
        spiked = distinct[heavy]
        rest = values[~np.isin(values, spiked)]
        log = _tail(rest) if long_tails else np.empty(0)
        codec = cls(spiked, np.zeros(len(spiked)), counts[heavy] / len(values), log)
        if len(rest):
            codec._add_modes(codec._bend(rest), len(rest) / len(values), max_modes)
        return codec

    def _add_modes(self, bent: np.ndarray, share: float, max_modes: int) -> None:
        mixture = fit_mixture(bent, max_modes)
        distance = np.abs(bent[:, None] - mixture.means)
        scales = 4 * mixture.deviations
        # A value beyond four deviations of all modes widens the nearest one: decoding stays exact.
        outside = (distance > scales).all(axis=1)
        nearest = (distance[outside] / scales).argmin(axis=1)
        np.maximum.at(scales, nearest, distance[outside, nearest])
        self.centres = np.concatenate([self.centres, mixture.means])
        self.scales = np.concatenate([self.scales, scales])
        self.weights = np.concatenate([self.weights, share * mixture.weights])

    def _bend(self, values: np.ndarray) -> np.ndarray:
        if not len(self.log):
            return values
        return np.log1p(np.maximum(values - self.log[0], 0) / self.log[1])

    @property
    def pieces(self) -> list[Piece]:
        """The position, unless all modes are spikes; the mode, unless there is but one."""
        position = [Piece(1, "tanh")] if self.scales.any() else []
        mode = [Piece(len(self.scales), "softmax")] if len(self.scales) > 1 else []
        return position + mode

    @property
    def neutral(self) -> np.ndarray:
        """The centre of no mode."""
        return np.zeros(sum(piece.width for piece in self.pieces), dtype=np.float32)

    def encode(self, values: np.ndarray, rng: Rng = None) -> np.ndarray:
        """The likeliest mode or, with ``rng``, one drawn by its posterior."""
        bent = self._bend(values)
        wide = self.scales > 0
        modes = np.zeros(len(values), dtype=np.int64)
        positions = np.zeros(len(values))
        if wide.any():
            mixture = Mixture(self.weights[wide], self.centres[wide], self.scales[wide] / 4)
            joint = mixture.log_joint(bent)
            relative = (bent[:, None] - mixture.means) / self.scales[wide]
            joint[(np.abs(relative) > 1) & (np.abs(relative) <= 1).any(axis=1)[:, None]] = -np.inf
            chosen = choose(np.exp(joint - joint.max(axis=1, keepdims=True)), rng)
            modes = np.flatnonzero(wide)[chosen]
            positions = np.clip(relative[np.arange(len(values)), chosen], -1, 1)
        spiked = np.flatnonzero(~wide)
        if len(spiked):
            gaps = np.abs(values[:, None] - self.centres[spiked])
            on_spike = (gaps == 0).any(axis=1) if wide.any() else np.ones(len(values), bool)
            modes[on_spike] = spiked[gaps[on_spike].argmin(axis=1)]
            positions[on_spike] = 0.0
        parts = [positions[:, None].astype(np.float32)] if wide.any() else []
        if len(self.scales) > 1:
            parts.append(indicators(modes, len(self.scales)))
        return np.concatenate(parts, axis=1)

    def decode(self, coordinates: np.ndarray, rng: Rng = None) -> np.ndarray:
        """The position within the likeliest mode or, with ``rng``, within one drawn."""
        positions, scores = np.zeros(len(coordinates)), coordinates
        if self.scales.any():
            positions, scores = coordinates[:, 0].astype(np.float64), coordinates[:, 1:]
        modes = choose(scores, rng) if len(self.scales) > 1 else np.zeros(len(scores), np.int64)
        bent = self.centres[modes] + self.scales[modes] * np.clip(positions, -1, 1)
        if not len(self.log):
            return bent
        straight = self.log[0] + self.log[1] * np.expm1(np.clip(bent, 0, 50))
        return np.where(self.scales[modes] > 0, straight, self.centres[modes])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire."""
        names = ("centres", "scales", "weights", "log")
        return {name: getattr(self, name) for name in names}


def _tail(values: np.ndarray) -> np.ndarray:
    """Origin and unit of a logarithm where the upper tail is long, else nothing."""
    if len(values) < 10:
        return np.empty(0)
    low, median, high = np.quantile(values, [0.01, 0.5, 0.99])
    if high - median <= 5 * (median - low):
        return np.empty(0)
    origin = float(values.min())
    excess = values[values > origin] - origin
    return np.array([origin, float(np.median(excess))]) if len(excess) else np.empty(0)
