"""How well a guess does: AUC, balanced accuracy, R², best matching of clusters; and how surely."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedmend.learn.metrics import auc

__all__ = [
    "Interval",
    "balanced_accuracy",
    "best_matching",
    "bootstrap",
    "label_score",
    "r2",
]

DRAWS = 200
LEVEL = 0.95


class Interval(tuple[float, float, float]):
    """(score, low, high)."""

    __slots__ = ()


def label_score(truth: np.ndarray, belief: np.ndarray) -> float:
    """AUC for two classes, balanced accuracy for more. **Shape** truth [n], belief [n, C]."""
    if belief.shape[1] == 2:
        return auc(truth, belief)
    return balanced_accuracy(truth, belief.argmax(1))


def balanced_accuracy(truth: np.ndarray, guess: np.ndarray) -> float:
    """The mean over the classes that occur of how many of their rows are guessed."""
    return float(np.mean([(guess[truth == c] == c).mean() for c in np.unique(truth)]))


def r2(truth: np.ndarray, guess: np.ndarray) -> float:
    """Share of the variance that is guessed; 0 is the mean, below it worse than the mean."""
    spread = float(((truth - truth.mean(0)) ** 2).sum())
    return 1.0 - float(((truth - guess) ** 2).sum()) / spread if spread > 0 else float("nan")


def best_matching(truth: np.ndarray, clusters: np.ndarray, classes: int) -> np.ndarray:
    """The class of each cluster under the matching that is right most often in every class alike.

    A cluster beyond the classes has none (-1). **Shape** [clusters]
    """
    from scipy.optimize import linear_sum_assignment

    counts = np.zeros((int(clusters.max()) + 1, classes))
    np.add.at(counts, (clusters, truth), 1)
    shares = counts / np.maximum(1, np.bincount(truth, minlength=classes))
    found = np.full(len(counts), -1)
    rows, columns = linear_sum_assignment(-shares)
    found[rows] = columns
    return found


def bootstrap(
    score: Callable[..., float],
    *arrays: np.ndarray,
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> Interval:
    """The score, and where 95 of 100 of it lie when its rows are drawn anew (percentiles)."""
    n = len(arrays[0])
    found = []
    for _ in range(draws):
        rows = rng.integers(n, size=n)
        value = score(*(array[rows] for array in arrays))
        if not np.isnan(value):
            found.append(value)
    point = score(*arrays)
    if not found:
        return Interval((point, float("nan"), float("nan")))
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(found, [tail, 100 - tail])
    return Interval((point, float(low), float(high)))
