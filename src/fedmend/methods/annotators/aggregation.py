"""Several annotators, none of them right all the time: votes, majority and Dawid–Skene.

Votes are class numbers [n, K], -1 where an annotator gave none. An annotator's expertise is
T[j, l] = P(says l | true class j). (Dawid & Skene 1979; the E- and M-steps of InC, §3.4, use the
same parts.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

SMOOTHING = 1e-2
"""Added to every count, so that nothing is impossible only because it was never seen."""


FEW_CLASSES = 64
"""Up to here multiplying by one-hot votes is faster than sorting rows by vote."""
PIECE = 1 << 14


def one_hot(votes: np.ndarray, n_classes: int) -> np.ndarray:
    """Rows of zeros and a one, all zeros for a missing vote. **Shape** [n] -> [n, C] int8."""
    said = np.zeros((len(votes), n_classes), np.int8)
    given = np.flatnonzero(votes >= 0)
    said[given, votes[given]] = 1
    return said


def soft_labels(counts: np.ndarray) -> np.ndarray:
    """Votes as shares; a row nobody labelled stays all zeros."""
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def majority(counts: np.ndarray) -> np.ndarray:
    """The class most annotators name, -1 where nobody labelled; of tied ones the first.

    So does crowd-kit: rows with the same ties get the same label, in every run.

    >>> majority(np.array([[1, 2], [1, 1], [0, 0]])).tolist()
    [1, 0, -1]
    """
    return np.where(counts.sum(1) > 0, counts.argmax(1), -1)


# ---------------------------------------------------------------------------------- M-step


class Sayings:
    """One annotator's votes [n], prepared once: the M-step asks for them again and again."""

    def __init__(self, votes: np.ndarray) -> None:
        self._votes = votes
        self._one_hot: np.ndarray | None = None
        self._rows: np.ndarray | None = None

    def when(self, weights: np.ndarray) -> np.ndarray:
        """How often each class is said when the true one is …; weights [n, C] -> [true, said]."""
        if weights.shape[1] <= FEW_CLASSES:
            return self._by_product(weights)
        return self._by_sorting(weights)

    def _by_product(self, weights: np.ndarray) -> np.ndarray:
        if self._one_hot is None:
            self._one_hot = one_hot(self._votes, weights.shape[1]).astype(weights.dtype)
        counts = np.zeros((weights.shape[1], weights.shape[1]))
        for at in range(0, len(weights), PIECE):  # so that float32 does not add up for too long
            counts += weights[at : at + PIECE].T @ self._one_hot[at : at + PIECE]
        return counts

    def _by_sorting(self, weights: np.ndarray) -> np.ndarray:
        if self._rows is None:
            order = np.argsort(self._votes, kind="stable")
            self._rows = order[np.searchsorted(self._votes[order], 0) :]  # -1 comes first
        counts = np.zeros((weights.shape[1], weights.shape[1]))
        said, starts = np.unique(self._votes[self._rows], return_index=True)
        if len(said):
            by_class = np.take(weights, self._rows, axis=0)
            counts[:, said] = np.add.reduceat(by_class, starts, axis=0, dtype=np.float64).T
        return counts


def in_shares(counts: np.ndarray, smoothing: float = SMOOTHING) -> np.ndarray:
    """Counts [true, said] as P(said | true)."""
    counts = counts + smoothing
    return counts / counts.sum(1, keepdims=True)


# ---------------------------------------------------------------------------------- E-step


def combine(log_prior: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """softmax(log prior + summed log evidence), row by row."""
    return torch.softmax(torch.from_numpy(log_prior + evidence), 1).numpy()


def dawid_skene(
    counts: np.ndarray,
    evidence: Callable[[np.ndarray], np.ndarray],
    *,
    max_iterations: int = 100,
    tolerance: float = 1e-4,
) -> tuple[np.ndarray, np.ndarray, int]:
    """The true classes from the votes alone: posterior, what was said last, how many iterations.

    evidence: given how likely each class is for each row, the annotators estimate their T, and tell
    the sum of log P(this vote | class), 0 for a missing vote. **Shape** all [n, C].
    It stops when a row with votes moves by less than `tolerance` on average. (The likelihood is no
    judge of that: it hardly rises for many steps in which labels still change.)
    """
    known = counts.sum(1, keepdims=True) > 0
    posterior, said = soft_labels(counts), np.zeros(counts.shape)
    iterations, moved = 0, np.inf
    while iterations < max_iterations and moved >= tolerance:
        iterations += 1
        weights = posterior * known
        said = evidence(weights)
        prior = np.broadcast_to(np.log(class_shares(weights)), counts.shape)
        updated = combine(prior, said)
        moved = float((np.abs(updated - posterior) * known).sum() / max(2 * known.sum(), 1))
        posterior = updated
    return posterior, said, iterations


def log_of(shares: np.ndarray) -> np.ndarray:
    """Logarithms, of 0 a very small one."""
    return np.log(np.maximum(shares, 1e-9))


def likelihood_of(evidence: np.ndarray) -> np.ndarray:
    """Of all votes on a row under each class, the likeliest 1. **Shape** [n, C], from logs."""
    return np.asarray(np.exp(evidence - evidence.max(1, keepdims=True)))


def held_out_losses(predicted: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """Minus the log-likelihood of what was said of each row, by predictions that never saw it.

    predicted: how likely each class is. evidence: log-likelihood of all votes on the row under each
    class. No label is taken to be true. **Shape** both [n, C] -> [n].
    """
    most = evidence.max(1)
    explained = (predicted * np.exp(evidence - most[:, None])).sum(1)
    return np.asarray(-(np.log(np.maximum(explained, 1e-9)) + most))


def held_out_loss(predicted: np.ndarray, evidence: np.ndarray) -> float:
    """Their mean."""
    return float(held_out_losses(predicted, evidence).mean())


TRUST = np.linspace(0.0, 1.0, 11)
"""How far a prediction may be believed: the power that its probabilities are taken to."""
ROWS_TO_CHOOSE = 20_000
"""About so many rows choose one of these."""


def believed(predicted: np.ndarray, evidence: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Predictions that never saw a row, drawn to the shares of the classes as far as that explains
    the votes better: networks that have learnt few rows are surer than they are right.

    How far is chosen for each half of the rows by the other, so that votes on a row say nothing of
    how far its own prediction is believed. **Shape** predicted and evidence [n, C], shares [C].
    """
    logs, prior = np.log(np.maximum(predicted, 1e-9)), np.log(shares)
    found = np.empty_like(predicted)
    for half in (0, 1):
        other = slice(1 - half, None, 2 * max(1, len(logs) // ROWS_TO_CHOOSE))
        losses = [
            held_out_loss(combine(trust * logs[other], (1.0 - trust) * prior), evidence[other])
            for trust in TRUST
        ]
        trust = TRUST[int(np.argmin(losses))]
        found[half::2] = combine(trust * logs[half::2], (1.0 - trust) * prior)
    return found


def clearly_less(losses: np.ndarray, than: np.ndarray) -> bool:
    """Whether losses of the same rows are less by more than a standard error. **Shape** both [n].

    >>> clearly_less(np.zeros(4), np.array([0.0, 0.0, -0.9, 1.0]))
    False
    """
    spared = than - losses
    return bool(spared.mean() > spared.std() / np.sqrt(max(len(spared), 1)))


def class_shares(weights: np.ndarray) -> np.ndarray:
    """How common each class is; never zero."""
    shares = np.maximum(weights.sum(0), 1e-9)
    return shares / shares.sum()


def hardened(posterior: np.ndarray) -> np.ndarray:
    """All of a row's probability on its likeliest class."""
    return np.eye(posterior.shape[1], dtype=posterior.dtype)[posterior.argmax(1)]


# ---------------------------------------------------------------------------------- agreement


@dataclass(frozen=True)
class Agreement:
    """How often two annotators of a row agree, and how often they would by chance.

    error: the standard error of `observed`. pairs: how many rows have two votes or more.
    """

    observed: float
    chance: float
    error: float
    pairs: int

    @property
    def beats_chance(self) -> bool:
        return self.pairs > 0 and self.observed > self.chance + 2 * self.error


def agreement(counts: np.ndarray) -> Agreement:
    """From vote counts alone: annotators that are right together agree more often than by chance.

    >>> agreement(np.array([[2, 0], [0, 2], [2, 0], [0, 2]])).observed
    1.0
    """
    given = counts.sum(1)
    rows = given >= 2
    if not rows.any():
        return Agreement(float("nan"), float("nan"), float("nan"), 0)
    several, votes = counts[rows].astype(np.float64), given[rows].astype(np.float64)
    share = (several * (several - 1)).sum(1) / (votes * (votes - 1))
    marginal = class_shares(counts.astype(np.float64))
    error = float(share.std() / np.sqrt(len(share)))
    return Agreement(float(share.mean()), float((marginal**2).sum()), error, int(rows.sum()))
