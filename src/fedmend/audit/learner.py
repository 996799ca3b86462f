"""The attacker's learner, and how well and how surely a guess does.

The learner is ridge, plain or with a Gaussian kernel. The same one makes the guess with the
messages and the guess without them, so that the difference is what the messages add. It has no
random part and no setting of its own: ridge parameter, kernel width and which of several views of
the rows to use are those with the least leave-one-out error on the rows whose answer it was given
(in closed form from one eigendecomposition a view).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.preprocessing import KernelCenterer

from fedmend.learn.metrics import auc

RIDGES = tuple(10.0**power for power in (-6, -4, -3, -2, -1, 0, 1, 2))
TINY = 1e-12
WIDTHS = (0.5, 1.0, 2.0, 4.0)
"""Of the Gaussian kernel, in median distances between known rows."""
BOOTSTRAP_DRAWS = 200


def standardised(values: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and variance 1, those that vary at all."""
    values = values.astype(np.float64, copy=False)
    spread = values.std(0)
    used = spread > 1e-9 * np.maximum(1.0, np.abs(values).max(0, initial=0.0))
    return (values[:, used] - values[:, used].mean(0)) / spread[used]


def guessed(
    views: Sequence[np.ndarray], known: np.ndarray, answers: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Targets of `rows`, learnt from the answers [m, t] of the `known` rows. **Shape** [rows, t]

    views: arrays [n, d] of the same n rows, standardised. A view of no columns says nothing: then
    the mean is guessed. Every target has its own choice of view and kernel.
    """
    m, mean = len(answers), answers.mean(0)
    centred = answers - mean
    found = np.tile(mean, (len(rows), 1))
    best = (centred**2).mean(0) * (m / (m - 1)) ** 2  # the mean's own leave-one-out error
    choices = [(view, width) for view in views if view.shape[1] for width in (None, *WIDTHS)]
    for view, width in choices:
        kernel, cross = _kernels(view[known], view[rows], width)
        values, vectors = np.linalg.eigh(kernel)
        turned = vectors.T @ centred
        for ridge in RIDGES:
            damped = 1.0 / (np.maximum(values, 0.0) + ridge * m)
            weights = vectors @ (damped[:, None] * turned)
            # What is left out of a fit with a free constant: residual / (1 - leverage), both
            # divided by the ridge. A centred kernel knows nothing of the constant's own leverage.
            left = (vectors**2) @ damped - 1.0 / (ridge * m * m)
            errors = ((weights / np.maximum(left, TINY)[:, None]) ** 2).mean(0)
            better = errors < best
            best = np.where(better, errors, best)
            found[:, better] = mean[better] + cross @ weights[:, better]
    return found


def _kernels(
    own: np.ndarray, others: np.ndarray, width: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Between the known rows, and from other rows to them, both centred on the known ones."""
    if width is None:
        inner, outer = own @ own.T / own.shape[1], others @ own.T / own.shape[1]
    else:
        inner, outer = (euclidean_distances(each, own, squared=True) for each in (own, others))
        typical = float(np.median(inner[~np.eye(len(own), dtype=bool)])) or 1.0
        scale = -1.0 / (2.0 * typical * width**2)
        inner, outer = np.exp(scale * inner), np.exp(scale * outer)
    centre = KernelCenterer().fit(inner)
    return centre.transform(inner), centre.transform(outer)


# ---------------------------------------------------------------- scores


def label_score(truth: np.ndarray, likelihood: np.ndarray) -> float:
    """AUC for two classes, balanced accuracy for more. **Shape** truth [n], likelihood [n, C]."""
    if likelihood.shape[1] == 2:
        return auc(truth, likelihood)
    return balanced_accuracy(truth, likelihood.argmax(1))


def one_score_auc(truth: np.ndarray, scores: np.ndarray) -> float:
    """AUC of a number a row that should be higher for those of class 1."""
    return auc(truth, np.stack([-scores, scores], 1))


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
    draws: int = BOOTSTRAP_DRAWS,
) -> tuple[float, float, float]:
    """The score, and where 95 of 100 of it lie when its rows are drawn anew (percentiles)."""
    n = len(arrays[0])
    drawn = (rng.integers(n, size=n) for _ in range(draws))
    found = [score(*(array[rows] for array in arrays)) for rows in drawn]
    return score(*arrays), *_interval(np.array(found))


def _interval(drawn: np.ndarray) -> tuple[float, float]:
    """Draws that cannot be scored are left out."""
    if np.isnan(drawn).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return float(low), float(high)


class Scores(NamedTuple):
    """How an attack does, beside the guess without the messages; intervals of 95 %."""

    score: float
    low: float
    high: float
    guess: float
    gain: float
    gain_low: float
    gain_high: float

    @classmethod
    def beside(cls, found: tuple[float, float, float], guess: float) -> Scores:
        """Of a score with its interval, beside a guess that is known for sure."""
        score, low, high = found
        return cls(score, low, high, guess, score - guess, low - guess, high - guess)

    @classmethod
    def paired(cls, points: Sequence[float], drawn: np.ndarray) -> Scores:
        """Of attack and guess, and of both under the same bootstrap draws. **Shape** [2], [n, 2]"""
        (score, guess), (scores, guesses) = points, np.asarray(drawn).T
        gain = _interval(scores - guesses)
        return cls(score, *_interval(scores), guess, score - guess, *gain)
