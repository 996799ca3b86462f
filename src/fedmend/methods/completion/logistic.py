"""Logistic regression at the party that has the targets but not all the columns.

The features are F = [Z, X^B, 1]; Z'R and Z D come from outside, everything else is at hand.
Steps are those of L-BFGS that starts from the Hessian of the constant model,
(diag(pi) - pi pi') (x) F'F + alpha P, which needs no products but those of ridge. The first step
is Newton's own. How far to go along a direction D is decided exactly: scores are linear in it.

Classes: one sigmoid for two, softmax with a column each for more (as scikit-learn does).
"""

from __future__ import annotations

import numpy as np

from fedmend.methods.completion.ridge import Moments

__all__ = ["LogisticTarget"]

MEMORY = 10
SEARCH = 30
JITTER = 1e-10


class LogisticTarget:
    """One target in training. Parameters are stacked [r + m + 1, width]: Z, X^B, intercept.

    labels: class numbers of the training rows; rows: their numbers; own: X^B at these rows.
    tolerance: training ends when the next step promises to move the scores by less than this (root
    mean square, weighted by p (1 - p)).
    """

    def __init__(
        self,
        labels: np.ndarray,
        classes: int,
        rows: np.ndarray,
        own: np.ndarray,
        moments: Moments,
        places: np.ndarray,
        penalty: np.ndarray,
        alpha: float,
        tolerance: float,
    ) -> None:
        self.rows, self._own, self._tolerance = rows, own, tolerance
        self.width = 1 if classes == 2 else classes
        self._rank = len(moments.a)
        self._hot = (
            labels[:, None] == (np.array([1]) if classes == 2 else np.arange(classes))
        ).astype(np.float64)
        self.converged = False
        self._penalty = self._full_penalty(penalty, own.shape[1], alpha)
        self._start(labels, classes)
        self._curvature(moments, places)
        self._history: list[tuple[np.ndarray, np.ndarray, float]] = []
        self._gradient: np.ndarray | None = None
        self._direction: np.ndarray | None = None

    def _start(self, labels: np.ndarray, classes: int) -> None:
        counts = np.bincount(labels, minlength=classes) + 0.5
        logs = np.log(counts)
        self.parameters = np.zeros((self._rank + self._own.shape[1] + 1, self.width))
        self.parameters[-1] = logs[1] - logs[0] if self.width == 1 else logs - logs.mean()
        self.scores = np.tile(self.parameters[-1], (len(labels), 1))

    def _full_penalty(self, penalty: np.ndarray, own: int, alpha: float) -> np.ndarray:
        full = np.zeros((self._rank + own + 1,) * 2)
        full[: self._rank, : self._rank] = alpha * penalty
        full[self._rank : -1, self._rank : -1] = alpha * np.eye(own)
        return full

    def _curvature(self, moments: Moments, places: np.ndarray) -> None:
        """Factors of the constant model's Hessian, for each principal mix of the classes."""
        sums = np.concatenate([moments.a, moments.b[places], [moments.weight]])
        gram = np.zeros((len(sums), len(sums)))
        inner = np.block(
            [
                [moments.aa, moments.ab[:, places]],
                [moments.ab[:, places].T, moments.bb[np.ix_(places, places)]],
            ]
        )
        gram[:-1, :-1] = inner
        gram[-1], gram[:, -1] = sums, sums
        share = _probabilities(self.scores[:1])[0]
        mix = (
            np.diag(share) - np.outer(share, share)
            if self.width > 1
            else np.diag(share * (1 - share))
        )
        weights, self._mixes = np.linalg.eigh(mix)
        jitter = JITTER * np.trace(gram) / len(gram) * np.eye(len(gram))
        # the mix of all classes alike moves no probability: no step goes along it
        self._factors = [
            np.linalg.cholesky(weight * gram + self._penalty + jitter) if weight > 1e-12 else None
            for weight in weights
        ]

    # ------------------------------------------------------------------ a step

    def residuals(self) -> np.ndarray:
        """Probabilities less what was seen, [rows, width]."""
        return _probabilities(self.scores) - self._hot

    def direction(self, products: np.ndarray) -> np.ndarray | None:
        """Where to go, for A's coordinates; None (and converged) when it does not pay.

        products: Z'R [r, width].
        """
        residuals = self.residuals()
        gradient = np.concatenate([products, self._own.T @ residuals, residuals.sum(axis=0)[None]])
        gradient = gradient + self._penalty @ self.parameters
        self._remember(gradient)
        direction = -self._scaled(gradient)
        promise = -float((direction * gradient).sum())
        if promise <= len(self.rows) * self._tolerance**2:
            self.converged = True
            return None
        self._gradient, self._direction = gradient, direction
        return direction[: self._rank]

    def step(self, forward: np.ndarray) -> None:
        """Update, given A's part Z D of the change of the training rows' scores."""
        assert self._direction is not None
        direction = self._direction
        own = direction[self._rank : -1]
        change = forward + self._own @ own + direction[-1]
        length = self._search(change, direction)
        self.scores = self.scores + length * change
        self.parameters = self.parameters + length * direction
        self._moved = length * direction

    def _remember(self, gradient: np.ndarray) -> None:
        if self._gradient is None:
            return
        difference = gradient - self._gradient
        curvature = float((difference * self._moved).sum())
        if curvature > 0:
            self._history = [*self._history, (self._moved, difference, curvature)][-MEMORY:]

    def _scaled(self, gradient: np.ndarray) -> np.ndarray:
        """The inverse Hessian as far as known, times the gradient (two-loop recursion)."""
        rest, shares = gradient, []
        for moved, difference, curvature in reversed(self._history):
            share = float((moved * rest).sum()) / curvature
            rest = rest - share * difference
            shares.append(share)
        rest = self._solve(rest)
        for (moved, difference, curvature), share in zip(
            self._history, reversed(shares), strict=True
        ):
            rest = rest + moved * (share - float((difference * rest).sum()) / curvature)
        return rest

    def _solve(self, right: np.ndarray) -> np.ndarray:
        mixed = right @ self._mixes
        for at, factor in enumerate(self._factors):
            if factor is None:
                mixed[:, at] = 0.0
            else:
                half = np.linalg.solve(factor, mixed[:, at])
                mixed[:, at] = np.linalg.solve(factor.T, half)
        return mixed @ self._mixes.T

    def _search(self, change: np.ndarray, direction: np.ndarray) -> float:
        """The minimum along the direction: a root of a rising function, by guarded Newton steps."""
        linear = float((direction * (self._penalty @ self.parameters)).sum())
        square = float((direction * (self._penalty @ direction)).sum())
        low, high, at = 0.0, np.inf, 1.0
        for _ in range(SEARCH):
            shares = _probabilities(self.scores + at * change)
            slope = float(((shares - self._hot) * change).sum()) + linear + at * square
            bend = _curvature_along(shares, change) + square
            low, high = (at, high) if slope < 0 else (low, at)
            proposal = at - slope / bend if bend > 0 else 2 * at
            if abs(proposal - at) <= 1e-4 * at:
                return proposal
            if not low < proposal < high:
                proposal = 2 * low if np.isinf(high) else (low + high) / 2
            at = proposal
        return at

    # ------------------------------------------------------------------ using it

    @property
    def a(self) -> np.ndarray:
        """Weights of A's coordinates [r, width]."""
        return self.parameters[: self._rank]

    def probabilities(self, scores: np.ndarray, own: np.ndarray) -> np.ndarray:
        """[n, classes], from A's part of the scores and B's own features of the same rows."""
        shares = _probabilities(
            scores + own @ self.parameters[self._rank : -1] + self.parameters[-1]
        )
        return np.concatenate([1 - shares, shares], axis=1) if self.width == 1 else shares


def _probabilities(scores: np.ndarray) -> np.ndarray:
    if scores.shape[1] == 1:
        return 0.5 * (1.0 + np.tanh(0.5 * scores))
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def _curvature_along(shares: np.ndarray, change: np.ndarray) -> float:
    if shares.shape[1] == 1:
        return float((shares * (1 - shares) * change**2).sum())
    mean = (shares * change).sum(axis=1, keepdims=True)
    return float((shares * (change - mean) ** 2).sum())
