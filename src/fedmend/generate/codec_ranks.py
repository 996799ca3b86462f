"""Codecs by rank: a number becomes the share of values below it, alone or beside spikes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from fedmend.generate.codec import Codec, Levels, Piece, Rng, choose, indicators

__all__ = ["Quantile", "Spiked"]


class Quantile:
    """The value's rank, as a standard normal deviate or (``normal=False``) as a share in 0..1.

    A value that several rows share covers an interval of ranks: it is encoded as the middle of the
    interval or, with ``rng``, as a point drawn within it (so that the coordinate has no spikes),
    and every rank inside decodes to the value exactly. Between values the map is linear.
    """

    name: ClassVar[str] = "quantile"
    KNOTS: ClassVar[int] = 2048

    def __init__(
        self, values: np.ndarray, low: np.ndarray, high: np.ndarray, edge: float, normal: bool
    ) -> None:
        self.values = values
        self.low = low
        self.high = high
        self.edge = edge
        self.normal = normal

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
        """**Shape**: (n,) -> (n, 1)."""
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
        """**Shape**: (n, 1) -> (n,)."""
        ranks = coordinates[:, 0].astype(np.float64)
        if self.normal:
            ranks = torch.special.ndtr(torch.from_numpy(ranks)).numpy()
        at = np.stack([self.low, self.high], axis=1).ravel()
        return np.interp(ranks, at, np.repeat(self.values, 2))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire."""
        names = ("values", "low", "high", "edge", "normal")
        return {name: getattr(self, name) for name in names}


class Spiked:
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

    @property
    def neutral(self) -> np.ndarray:
        """No value at all."""
        return np.zeros(len(self.spikes) + 2, dtype=np.float32)

    def encode(self, values: np.ndarray, rng: Rng = None) -> np.ndarray:
        """**Shape**: (n,) -> (n, spikes + 2)."""
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
