"""Reading a learning curve: a power law through it, where it leads, and how sure that is.

Through the errors goes error(n) = floor + a * n^-b (Hestness et al. 2017). How sure it is comes
from drawing repeats and sizes anew (bootstrap), wider because all repeats draw from the same people
(Nadeau and Bengio 2003) and because there are few of them (Student's t).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Point", "point_of", "power_law", "read_curve", "widening"]

_DRAWS = 400
_EXPONENTS = np.linspace(0.1, 1.5, 57)
LEAST_OF_BEFORE = 0.35  # 2^-1.5, for the steepest law that is fitted
_TAIL = 10  # per cent on either side: an interval of 80 %


@dataclass(frozen=True)
class Point:
    """A score at a number of rows, and its 80 % interval."""

    rows: int
    score: float
    low: float
    high: float


def widening(repeats: int, ratio: float) -> float:
    """By how much a bootstrap interval of the mean of few dependent repeats is too narrow.

    ratio: rows set aside to rows trained on.
    """
    z, free = 1.2815515655446004, repeats - 1
    # The 90 % point of Student's t by its expansion (Abramowitz and Stegun 26.7.5).
    t = (
        z
        + (z**3 + z) / (4 * free)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    )
    return float(t / z * np.sqrt(repeats / free) * np.sqrt(1 + repeats * ratio))


def power_law(rows: np.ndarray, errors: np.ndarray) -> tuple[float, float, float]:
    """floor, a and b of error(n) = floor + a * n^-b, all at least 0, by least squares.

    >>> n = np.array([100, 200, 400, 800])
    >>> floor, a, b = power_law(n, 0.1 + 2.0 * n**-0.5)
    >>> round(floor, 3), round(a, 2), round(b, 2)
    (0.1, 2.0, 0.5)
    """
    floor, a, b = _power_laws(np.asarray(rows, dtype=np.float64), np.asarray(errors)[None, :])[0]
    return float(floor), float(a), float(b)


def _power_laws(
    rows: np.ndarray, errors: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """The laws of many curves at once.

    weights: how much each point of each curve counts. **Shape** rows [n], errors [m, n] -> [m, 3]
    """
    weights = np.ones_like(errors) if weights is None else weights
    weights = weights / weights.sum(1, keepdims=True)
    shapes = rows[None, :] ** -_EXPONENTS[:, None]
    mean = (weights * errors).sum(1, keepdims=True)
    middle = weights @ shapes.T
    spread = weights @ (shapes**2).T
    together = (weights * errors) @ shapes.T
    slope = (together - mean * middle) / np.maximum(spread - middle**2, 1e-300)
    level = mean - slope * middle
    # A floor below 0 is set to 0; a curve that rises is taken for a flat one.
    below = level < 0
    level, slope = np.where(below, 0.0, level), np.where(below, together / spread, slope)
    rises = slope < 0
    level, slope = np.where(rises, mean, level), np.where(rises, 0.0, slope)
    fitted = level[:, :, None] + slope[:, :, None] * shapes[None, :, :]
    off = (weights[:, None, :] * (errors[:, None, :] - fitted) ** 2).sum(2)
    best = off.argmin(1)
    at = np.arange(len(errors))
    return np.stack([level[at, best], slope[at, best], _EXPONENTS[best]], axis=1)


def read_curve(
    sizes: Sequence[int], scores: np.ndarray, metric: str, wider: float, rng: np.random.Generator
) -> tuple[list[Point], Point, tuple[float, float, float]]:
    """The measured points, the one at twice the most rows, and the gain between the last two.

    wider: by what factor intervals are. **Shape** scores [repeats, sizes]
    """
    points = [point_of(size, scores[:, at], metric, wider, rng) for at, size in enumerate(sizes)]
    errors = scores if metric == "rmse" else 1 - scores
    n = np.array(sizes, dtype=np.float64)
    twice = 2 * n[-1]

    draws = rng.integers(0, len(errors), size=(_DRAWS, len(errors)))
    # Which sizes count how much is drawn too: the law is a guess about the curve's form.
    weights = np.vstack([np.ones(len(n)), rng.exponential(size=(_DRAWS, len(n)))])
    laws = _power_laws(n, np.vstack([errors.mean(0), errors[draws].mean(1)]), weights)
    floor, a, b = laws.T
    # The law on both sides, not the last measurement: what lies between is the law's.
    led = np.stack([floor + a * twice**-b, a * (n[-1] ** -b - twice**-b)], axis=1)
    middle, drawn = led[0], led[1:]
    ends = np.percentile(drawn, [_TAIL, 100 - _TAIL], axis=0)
    (low, least), (high, most) = middle + wider * (ends - middle)
    error, gain = map(float, middle)
    before_low, before_high = _last_doubling(n, errors, draws, wider)
    bounds = (
        gain,
        max(0.0, min(float(least), LEAST_OF_BEFORE * before_low)),
        max(float(most), before_high),
    )
    if metric == "rmse":
        point = Point(int(twice), error, max(0.0, float(low)), float(high))
    else:
        point = Point(int(twice), 1 - error, 1 - float(high), min(1.0, 1 - float(low)))
    return points, point, bounds


def _last_doubling(
    n: np.ndarray, errors: np.ndarray, draws: np.ndarray, wider: float
) -> tuple[float, float]:
    """What the last doubling of rows has brought, from and to.

    A learning curve flattens, so that the next one brings no more; and under a power law at least
    a share of it.
    """
    brought = (errors[:, -2] - errors[:, -1]) * np.log(2) / np.log(n[-1] / n[-2])
    middle = brought.mean()
    ends = np.percentile(brought[draws].mean(1), [_TAIL, 100 - _TAIL])
    low, high = middle + wider * (ends - middle)
    return float(low), float(high)


def point_of(
    rows: int, scores: np.ndarray, metric: str, wider: float, rng: np.random.Generator
) -> Point:
    """The mean over repeats, and the interval of such means."""
    draws = rng.integers(0, len(scores), size=(_DRAWS, len(scores)))
    middle = float(scores.mean())
    ends = np.percentile(scores[draws].mean(1), [_TAIL, 100 - _TAIL])
    low, high = middle + wider * (ends - middle)
    best = np.inf if metric == "rmse" else 1.0
    return Point(int(rows), middle, max(0.0, float(low)), float(min(best, high)))
