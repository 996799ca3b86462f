"""What a codec is, and the two plain ones: an indicator for each level, and a linear map."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

__all__ = ["Codec", "Levels", "MinMax", "Piece", "Rng", "choose", "indicators"]

Rng = np.random.Generator | None


class Piece(NamedTuple):
    """Consecutive coordinates of one column that are produced together."""

    width: int
    activation: str  # "softmax", "tanh", "sigmoid" or "linear"


class Codec(Protocol):
    """What the encoder asks of a codec."""

    name: ClassVar[str]

    @property
    def pieces(self) -> list[Piece]: ...

    @property
    def neutral(self) -> np.ndarray: ...

    def encode(self, values: np.ndarray, rng: Rng = None) -> np.ndarray: ...

    def decode(self, coordinates: np.ndarray, rng: Rng = None) -> np.ndarray: ...

    def to_dict(self) -> dict[str, Any]: ...


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


class Levels:
    """One indicator for each distinct value: a category's code, or one of a few numbers."""

    name: ClassVar[str] = "levels"

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    @classmethod
    def fit(cls, values: np.ndarray) -> Levels:
        """Every distinct value is a level."""
        return cls(np.unique(values))

    @property
    def pieces(self) -> list[Piece]:
        """One group of indicators."""
        return [Piece(len(self.values), "softmax")]

    @property
    def neutral(self) -> np.ndarray:
        """No level at all."""
        return np.zeros(len(self.values), dtype=np.float32)

    def encode(self, values: np.ndarray, rng: Rng = None) -> np.ndarray:
        """A number that is no level counts as the nearest one."""
        middles = (self.values[1:] + self.values[:-1]) / 2
        return indicators(np.searchsorted(middles, values), len(self.values))

    def decode(self, coordinates: np.ndarray, rng: Rng = None) -> np.ndarray:
        """The likeliest level or, with ``rng``, a draw."""
        return self.values[choose(coordinates, rng)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire."""
        return {"values": self.values}


class MinMax:
    """A linear map of the observed range onto ``span``."""

    name: ClassVar[str] = "min-max"

    def __init__(self, low: float, high: float, mean: float, span: tuple[float, float]) -> None:
        self.low = low
        self.high = high
        self.mean = mean
        self.span = (float(span[0]), float(span[1]))

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
        """**Shape**: (n,) -> (n, 1); a number outside the observed range counts as its end."""
        share = np.clip((values - self.low) / (self.high - self.low), 0, 1)
        low, high = self.span
        return (low + share * (high - low))[:, None].astype(np.float32)

    def decode(self, coordinates: np.ndarray, rng: Rng = None) -> np.ndarray:
        """**Shape**: (n, 1) -> (n,)."""
        low, high = self.span
        share = (coordinates[:, 0].astype(np.float64) - low) / (high - low)
        return self.low + np.clip(share, 0, 1) * (self.high - self.low)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire."""
        return {"low": self.low, "high": self.high, "mean": self.mean, "span": self.span}
