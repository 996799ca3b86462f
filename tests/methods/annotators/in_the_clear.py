"""Annotators whose votes are known: what parties and secure sums work out, without either."""

import numpy as np

from fedmend.methods.annotators import aggregation as crowd


def count_votes(votes: np.ndarray, n_classes: int) -> np.ndarray:
    """How many annotators say what. **Shape** [n, K] -> [n, C] int64."""
    return np.sum([crowd.one_hot(said, n_classes) for said in votes.T], 0, dtype=np.int64)


def expertise(
    weights: np.ndarray, votes: np.ndarray, *, smoothing: float = crowd.SMOOTHING
) -> np.ndarray:
    """One annotator's T from how likely each class is for each row (the M-step).

    **Shape** weights [n, C], votes [n] -> [C, C], rows sum to 1.
    """
    return crowd.in_shares(crowd.Sayings(votes).when(weights), smoothing)


def log_evidence(matrix: np.ndarray, votes: np.ndarray, floor: float = -30.0) -> np.ndarray:
    """log P(this vote | true class), zeros where there is no vote. **Shape** [n, C]."""
    table = np.vstack([np.log(np.maximum(matrix, np.exp(floor))).T, np.zeros(len(matrix))])
    return table[votes]


class Known:
    """Annotators, as `aggregation.dawid_skene` asks them; matrices: the T they estimated last."""

    def __init__(self, votes: np.ndarray, smoothing: float = crowd.SMOOTHING) -> None:
        self.votes, self.smoothing = votes.T, smoothing
        self.matrices: list[np.ndarray] = []

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        self.matrices = [expertise(weights, v, smoothing=self.smoothing) for v in self.votes]
        return np.asarray(np.sum([*map(log_evidence, self.matrices, self.votes)], 0))
