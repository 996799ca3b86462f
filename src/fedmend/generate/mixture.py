"""One-dimensional Gaussian mixtures by expectation-maximisation, the modes of CTGAN's section 4.2.

The number of modes is the one with the best Bayesian information criterion. The values are first
gathered into at most 512 weighted points, so that a fit takes milliseconds whatever the rows.
"""

from __future__ import annotations

import numpy as np

__all__ = ["Mixture", "fit_mixture"]

_POINTS = 512
_SIZES = (1, 2, 3, 5, 7, 10, 15, 20)


class Mixture:
    """Weights, means and deviations of the modes, all of shape (modes,)."""

    def __init__(self, weights: np.ndarray, means: np.ndarray, deviations: np.ndarray) -> None:
        self.weights = weights
        self.means = means
        self.deviations = deviations

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
