"""Ridge regression from sums of products alone, with an intercept that is not penalised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Moments", "RidgeModel", "solve_ridge"]


@dataclass(frozen=True, repr=False)
class Moments:
    """Weighted sums over the training rows of two blocks of features and of targets.

    Shape: aa [r, r], ab [r, m], bb [m, m]; a, b [r], [m]: sums of the features; ay, by [r, q],
    [m, q]; y, yy [q]: sums and squares of the targets; weight: the sum of the weights.
    """

    aa: np.ndarray
    ab: np.ndarray
    bb: np.ndarray
    a: np.ndarray
    b: np.ndarray
    ay: np.ndarray
    by: np.ndarray
    y: np.ndarray
    yy: np.ndarray
    weight: float


@dataclass(frozen=True, repr=False)
class RidgeModel:
    """a, b: weights of the two blocks; deviation: of the residuals on the training rows."""

    a: np.ndarray
    b: np.ndarray
    intercept: float
    deviation: float


def solve_ridge(
    moments: Moments, target: int, own: np.ndarray, penalty: np.ndarray, alpha: float
) -> RidgeModel:
    """The model of one target; `own` picks the columns of the second block that may be used."""
    r = len(moments.a)
    sums = np.concatenate([moments.a, moments.b[own]])
    gram = np.block(
        [
            [moments.aa, moments.ab[:, own]],
            [moments.ab[:, own].T, moments.bb[np.ix_(own, own)]],
        ]
    )
    right = np.concatenate([moments.ay[:, target], moments.by[own, target]])
    mean, mean_y = sums / moments.weight, moments.y[target] / moments.weight
    gram = gram - np.outer(sums, mean)
    right = right - sums * mean_y
    regular = gram + 0.0
    regular[:r, :r] += alpha * penalty
    regular[r:, r:] += alpha * np.eye(len(own))
    # lstsq: without a penalty, or with constant columns, there may be more than one solution
    weights = np.linalg.lstsq(regular, right, rcond=1e-13)[0]
    variation = moments.yy[target] - moments.weight * mean_y**2
    residual = variation - 2 * weights @ right + weights @ gram @ weights
    return RidgeModel(
        weights[:r],
        weights[r:],
        float(mean_y - weights @ mean),
        float(np.sqrt(max(residual, 0.0) / moments.weight)),
    )
