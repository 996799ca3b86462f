"""How the values of one column become coordinates, and back.

Every codec is fitted on the observed values of one column and knows four things: the pieces
(`Piece`: how many coordinates, which output activation suits them), `encode`, `decode`, and the
neutral coordinates that stand for a missing cell. Values are float64 numbers; a categorical
column comes as codes.

=============  =====================================================================
`Levels`       categories, and numbers with few distinct values: an indicator for each
`Modes`        mode-specific normalisation (CTGAN 4.2), with values of their own for
               spikes and an optional logarithm for long tails (CTAB-GAN 3.3)
`Quantile`     ranks, mapped to a standard normal (TabDDPM 4) or left uniform
`Spiked`       ranks, with indicators for values that many rows share
`MinMax`       linear to an interval (GAIN, TableGAN)
=============  =====================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

# --- plain ones: an indicator for each level, and a linear map ----------------------------

Rng = np.random.Generator | None


class Piece(NamedTuple):
    """Consecutive coordinates of one column that are produced together."""

    width: int
    activation: str  # "softmax", "tanh", "sigmoid" or "linear"


class Codec(ABC):
    """What the encoder asks of a codec; subclasses are dataclasses of plain values."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def pieces(self) -> list[Piece]:
        """How many coordinates there are, and of which activation."""

    @property
    def neutral(self) -> np.ndarray:
        """The coordinates of a missing cell."""
        return np.zeros(sum(piece.width for piece in self.pieces), dtype=np.float32)

    @abstractmethod
    def encode(self, values: np.ndarray, rng: Rng = None) -> np.ndarray:
        """Coordinates; with ``rng`` drawn where several would do. **Shape**: (n,) -> (n, width)"""

    @abstractmethod
    def decode(self, coordinates: np.ndarray, rng: Rng = None) -> np.ndarray:
        """The likeliest values or, with ``rng``, a draw. **Shape**: (n, width) -> (n,)"""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire."""
        return dict(vars(self))


def choose(scores: np.ndarray, rng: Rng) -> np.ndarray:
    """The position of the largest score in every row or, with ``rng``, a draw by the scores."""
    if rng is None:
        return scores.argmax(axis=1)
    edges = np.cumsum(np.clip(scores.astype(np.float64), 0, None), axis=1)
    drawn = (rng.random(len(scores)) * edges[:, -1])[:, None]
    return np.minimum((edges <= drawn).sum(axis=1), scores.shape[1] - 1)


def indicators(codes: np.ndarray, width: int) -> np.ndarray:
    """**Shape**: (n,) -> (n, width), a one at each code."""
    rows = np.zeros((len(codes), width), dtype=np.float32)
    rows[np.arange(len(codes)), codes] = 1.0
    return rows


@dataclass(eq=False)
class Levels(Codec):
    """One indicator for each distinct value: a category's code, or one of a few numbers."""

    name: ClassVar[str] = "levels"
    values: np.ndarray

    @classmethod
    def fit(cls, values: np.ndarray) -> Levels:
        """Every distinct value is a level."""
        return cls(np.unique(values))

    @property
    def pieces(self) -> list[Piece]:
        """One group of indicators."""
        return [Piece(len(self.values), "softmax")]

    def encode(self, values: np.ndarray, rng: Rng = None) -> np.ndarray:
        """A number that is no level counts as the nearest one."""
        middles = (self.values[1:] + self.values[:-1]) / 2
        return indicators(np.searchsorted(middles, values), len(self.values))

    def decode(self, coordinates: np.ndarray, rng: Rng = None) -> np.ndarray:
        return self.values[choose(coordinates, rng)]


@dataclass(eq=False)
class MinMax(Codec):
    """A linear map of the observed range onto ``span``."""

    name: ClassVar[str] = "min-max"
    low: float
    high: float
    mean: float
    span: tuple[float, float]

    @classmethod
    def fit(cls, values: np.ndarray, span: tuple[float, float] = (0.0, 1.0)) -> MinMax:
        """The range and mean of the values."""
        return cls(float(values.min()), float(values.max()), float(values.mean()), span)

    @property
    def pieces(self) -> list[Piece]:
        """One coordinate; tanh where the span reaches below zero."""
        return [Piece(1, "tanh" if self.span[0] < 0 else "sigmoid")]

    @property
    def neutral(self) -> np.ndarray:
        """The mean."""
        return self.encode(np.array([self.mean]))[0]

    def encode(self, values: np.ndarray, rng: Rng = None) -> np.ndarray:
        """A number outside the observed range counts as its end."""
        share = np.clip((values - self.low) / (self.high - self.low), 0, 1)
        low, high = self.span
        return (low + share * (high - low))[:, None].astype(np.float32)

    def decode(self, coordinates: np.ndarray, rng: Rng = None) -> np.ndarray:
        low, high = self.span
        share = (coordinates[:, 0].astype(np.float64) - low) / (high - low)
        return self.low + np.clip(share, 0, 1) * (self.high - self.low)


# --- mode-specific normalisation (CTGAN 4.2), spikes and long tails (CTAB-GAN 3.3) --------


@dataclass(eq=False)
class Modes(Codec):
    """A position within a mode (tanh) and the mode (softmax).

    ``scales`` of 0 are spikes: single values that many rows share, decoded exactly.
    """

    name: ClassVar[str] = "modes"
    centres: np.ndarray
    scales: np.ndarray
    weights: np.ndarray
    log: np.ndarray
    """(origin, unit) of the logarithm, or empty."""

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

    def encode(self, values: np.ndarray, rng: Rng = None) -> np.ndarray:
        """With ``rng`` a mode is drawn by its posterior."""
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
        positions, scores = np.zeros(len(coordinates)), coordinates
        if self.scales.any():
            positions, scores = coordinates[:, 0].astype(np.float64), coordinates[:, 1:]
        modes = choose(scores, rng) if len(self.scales) > 1 else np.zeros(len(scores), np.int64)
        bent = self.centres[modes] + self.scales[modes] * np.clip(positions, -1, 1)
        if not len(self.log):
            return bent
        straight = self.log[0] + self.log[1] * np.expm1(np.clip(bent, 0, 50))
        return np.where(self.scales[modes] > 0, straight, self.centres[modes])


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


_POINTS = 512
_SIZES = (1, 2, 3, 5, 7, 10, 15, 20)


class Mixture(NamedTuple):
    """Weights, means and deviations of the modes, all of shape (modes,)."""

    weights: np.ndarray
    means: np.ndarray
    deviations: np.ndarray

    def log_joint(self, values: np.ndarray) -> np.ndarray:
        """log(weight · density) of every value under every mode.

        **Shape**: (n,) -> (n, modes)
        """
        scaled = (values[:, None] - self.means) / self.deviations
        constant = np.log(self.weights) - np.log(self.deviations) - 0.5 * np.log(2 * np.pi)
        return constant - 0.5 * scaled**2


def fit_mixture(values: np.ndarray, max_modes: int) -> Mixture:
    """The mixture of at most ``max_modes`` modes that explains the values best for its size."""
    points, counts = _gather(values)
    best, best_criterion = _em(points, counts, 1)
    for modes in _SIZES[1:]:
        if modes > max_modes or modes > len(points):
            break
        mixture, criterion = _em(points, counts, modes)
        if criterion < best_criterion:
            best, best_criterion = mixture, criterion
    return best


def _gather(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    points, counts = np.unique(values, return_counts=True)
    if len(points) <= _POINTS:
        return points, counts.astype(np.float64)
    pieces = np.array_split(np.sort(values), _POINTS)
    return np.array([piece.mean() for piece in pieces]), np.array(
        [float(len(piece)) for piece in pieces]
    )


def _em(points: np.ndarray, counts: np.ndarray, modes: int) -> tuple[Mixture, float]:
    total = counts.sum()
    mean = np.average(points, weights=counts)
    spread = float(np.sqrt(np.average((points - mean) ** 2, weights=counts))) or 1.0
    floor = 1e-3 * spread
    ranks = (np.cumsum(counts) - counts / 2) / total
    starts = np.interp((np.arange(modes) + 0.5) / modes, ranks, points)
    mixture = Mixture(np.full(modes, 1 / modes), starts, np.full(modes, spread / modes + floor))
    previous = -np.inf
    for _ in range(200):
        joint = mixture.log_joint(points)
        peak = joint.max(axis=1, keepdims=True)
        evidence = peak[:, 0] + np.log(np.exp(joint - peak).sum(axis=1))
        likelihood = float(counts @ evidence)
        if likelihood - previous < 1e-5 * total:
            break
        previous = likelihood
        shares = np.exp(joint - evidence[:, None]) * counts[:, None]
        sizes = shares.sum(axis=0) + 1e-9
        means = points @ shares / sizes
        variances = (shares * (points[:, None] - means) ** 2).sum(axis=0) / sizes
        mixture = Mixture(sizes / sizes.sum(), means, np.sqrt(variances) + floor)
    return mixture, (3 * modes - 1) * np.log(total) - 2 * previous


# --- by rank: the share of values below, alone or beside spikes ---------------------------


@dataclass(eq=False)
class Quantile(Codec):
    """The value's rank, as a standard normal deviate or (``normal=False``) as a share in 0..1.

    A value that several rows share covers an interval of ranks: it is encoded as the middle of the
    interval or, with ``rng``, as a point drawn within it (so that the coordinate has no spikes),
    and every rank inside decodes to the value exactly. Between values the map is linear.
    """

    name: ClassVar[str] = "quantile"
    KNOTS: ClassVar[int] = 2048

    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    edge: float
    normal: bool

    @classmethod
    def fit(cls, values: np.ndarray, normal: bool = True) -> Quantile:
        """At most `KNOTS` evenly spread values are kept, and those that many rows share."""
        distinct, counts = np.unique(values, return_counts=True)
        upper = np.cumsum(counts) / len(values)
        lower = upper - counts / len(values)
        middle = (upper + lower) / 2
        single = counts == 1
        lower, upper = np.where(single, middle, lower), np.where(single, middle, upper)
        if len(distinct) > cls.KNOTS:
            kept = np.zeros(len(distinct), dtype=bool)
            kept[np.searchsorted(middle, np.linspace(middle[0], middle[-1], cls.KNOTS))] = True
            kept |= counts > len(values) / cls.KNOTS
            kept[[0, -1]] = True
            distinct, lower, upper = distinct[kept], lower[kept], upper[kept]
        return cls(distinct, lower, upper, 0.5 / len(values), normal)

    @property
    def pieces(self) -> list[Piece]:
        """One coordinate."""
        return [Piece(1, "linear" if self.normal else "sigmoid")]

    @property
    def neutral(self) -> np.ndarray:
        """The median."""
        return np.array([0.0 if self.normal else 0.5], dtype=np.float32)

    def encode(self, values: np.ndarray, rng: Rng = None) -> np.ndarray:
        values = np.clip(values, self.values[0], self.values[-1])
        right = np.searchsorted(self.values, values)
        left = np.maximum(right - 1, 0)
        on_knot = self.values[right] == values
        step = np.where(on_knot, 1.0, self.values[right] - self.values[left])
        along = (values - self.values[left]) / step
        between = self.high[left] + along * (self.low[right] - self.high[left])
        within = 0.5 if rng is None else rng.random(len(values))
        inside = self.low[right] + within * (self.high[right] - self.low[right])
        ranks = np.clip(np.where(on_knot, inside, between), self.edge, 1 - self.edge)
        if self.normal:
            ranks = torch.special.ndtri(torch.from_numpy(ranks)).numpy()
        return ranks[:, None].astype(np.float32)

    def decode(self, coordinates: np.ndarray, rng: Rng = None) -> np.ndarray:
        ranks = coordinates[:, 0].astype(np.float64)
        if self.normal:
            ranks = torch.special.ndtr(torch.from_numpy(ranks)).numpy()
        at = np.stack([self.low, self.high], axis=1).ravel()
        return np.interp(ranks, at, np.repeat(self.values, 2))


class Spiked(Codec):
    """Values that many rows share as indicators, all others by their quantile among themselves.

    The last indicator says "another value". On a spike the quantile coordinate says nothing: it is
    the median or, with ``rng``, a draw, so that it is spread like a normal score everywhere.
    """

    name: ClassVar[str] = "spiked"

    def __init__(self, spikes: np.ndarray, rest: dict[str, Any]) -> None:
        self.spikes = spikes
        self.rest = Quantile(**rest)

    @classmethod
    def fit(cls, values: np.ndarray, share: float = 0.002, least: int = 10) -> Codec:
        """Spikes are values of at least a ``share`` of the rows and of ``least`` rows.

        Without any spike this is a `Quantile`, and without any other value `Levels`.
        """
        distinct, counts = np.unique(values, return_counts=True)
        spikes = distinct[counts >= max(share * len(values), least)]
        rest = values[~np.isin(values, spikes)]
        if not len(spikes):
            return Quantile.fit(values)
        return cls(spikes, Quantile.fit(rest).to_dict()) if len(rest) else Levels(spikes)

    @property
    def pieces(self) -> list[Piece]:
        """The indicators, then the quantile."""
        return [Piece(len(self.spikes) + 1, "softmax"), *self.rest.pieces]

    def encode(self, values: np.ndarray, rng: Rng = None) -> np.ndarray:
        at = np.minimum(np.searchsorted(self.spikes, values), len(self.spikes) - 1)
        spiked = self.spikes[at] == values
        silent = 0.0 if rng is None else rng.normal(size=len(values))
        score = np.where(spiked, silent, self.rest.encode(values, rng)[:, 0])
        codes = np.where(spiked, at, len(self.spikes))
        flags = indicators(codes, len(self.spikes) + 1)
        return np.concatenate([flags, score[:, None].astype(np.float32)], axis=1)

    def decode(self, coordinates: np.ndarray, rng: Rng = None) -> np.ndarray:
        """The likeliest spike, or another value if that is likelier."""
        codes = choose(coordinates[:, :-1], rng)
        spiked = codes < len(self.spikes)
        values = self.spikes[np.where(spiked, codes, 0)]
        return np.where(spiked, values, self.rest.decode(coordinates[:, -1:]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire."""
        return {"spikes": self.spikes, "rest": self.rest.to_dict()}


CODECS: dict[str, Any] = {codec.name: codec for codec in (Levels, Modes, Quantile, Spiked, MinMax)}
