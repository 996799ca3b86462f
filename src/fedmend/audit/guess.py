"""The attacker's learner: ridge, plain or with a Gaussian kernel, chosen by leaving rows out.

The same learner makes the guess with the messages and the guess without them, so that the
difference is what the messages add. It has no random part and no setting of its own: ridge
parameter, kernel width and which of several views of the rows to use are those with the least
leave-one-out error on the rows whose answer it was given (in closed form from one
eigendecomposition a view).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["Guesser", "standardised"]

RIDGES = tuple(10.0**power for power in (-6, -4, -3, -2, -1, 0, 1, 2))
TINY = 1e-12
WIDTHS = (0.5, 1.0, 2.0, 4.0)
"""Of the Gaussian kernel, in median distances between known rows."""


def standardised(values: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and variance 1, those that vary at all."""
    values = values.astype(np.float64, copy=False)
    spread = values.std(0)
    used = spread > 1e-9 * np.maximum(1.0, np.abs(values).max(0, initial=0.0))
    return (values[:, used] - values[:, used].mean(0)) / spread[used]


class Guesser:
    """Learns numbers [m, t] from the known rows of one of several views of the rows.

    views: arrays [n, d] of the same n rows, standardised. known: which rows come with an answer.
    A view of no columns says nothing: then the mean is guessed. Every target has its own choice.
    """

    def __init__(self, views: Sequence[np.ndarray], known: np.ndarray) -> None:
        self.views = [view for view in views if view.shape[1]]
        self.known = known

    def guess(self, answers: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Targets of these rows, from the known rows' answers [m, t]. **Shape** [len(rows), t]"""
        mean = answers.mean(0)
        found = np.tile(mean, (len(rows), 1))
        best = np.full(answers.shape[1], ((answers - mean) ** 2).mean(0))
        m = len(answers)
        best *= (m / (m - 1)) ** 2  # the mean's own leave-one-out error
        for view in self.views:
            for width in (None, *WIDTHS):
                found, best = self._better(view, width, answers - mean, mean, rows, found, best)
        return found

    def _better(
        self,
        view: np.ndarray,
        width: float | None,
        centred: np.ndarray,
        mean: np.ndarray,
        rows: np.ndarray,
        found: np.ndarray,
        best: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The guesses so far, but for the targets that this view and kernel do better on."""
        kernel, cross = _kernels(view[self.known], view[rows], width)
        m = len(kernel)
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
            if better.any():
                best = np.where(better, errors, best)
                found = found.copy()
                found[:, better] = mean[better] + cross @ weights[:, better]
        return found, best


def _kernels(
    own: np.ndarray, others: np.ndarray, width: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Between the known rows, and from other rows to them, both centred on the known ones."""
    if width is None:
        inner, outer = own @ own.T / own.shape[1], others @ own.T / own.shape[1]
    else:
        inner, outer = _squares(own, own), _squares(others, own)
        typical = float(np.median(inner[~np.eye(len(own), dtype=bool)])) or 1.0
        scale = -1.0 / (2.0 * typical * width**2)
        inner, outer = np.exp(scale * inner), np.exp(scale * outer)
    middle = inner.mean(0)
    inner, outer = inner - middle, outer - middle
    return inner - inner.mean(1, keepdims=True), outer - outer.mean(1, keepdims=True)


def _squares(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Squared distances between rows. **Shape** [a, b]"""
    sums = (one**2).sum(1)[:, None] + (other**2).sum(1)[None]
    return np.maximum(0.0, sums - 2.0 * one @ other.T)
