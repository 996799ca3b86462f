"""A party's columns in coordinates that only it knows: whitened, then turned at random.

With X centred and X'X / n = Q L Q', Z = X Q L^(-1/2) H for a uniformly random orthogonal H. Z'Z / n
is the identity, so that bounds on Z follow from n alone; a linear model w'x is u'z with
u = H' L^(1/2) Q' w, and the ridge penalty |w|^2 is u'Ku with K = H' L^(-1) H.
Whoever is shown K, or products of Z with columns of its own, learns about X what is left when
nobody knows which way its axes point: the eigenvalues L.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmend.secure.keys import uniform

__all__ = ["Rotated", "rotate", "secret_rotation"]

RANK_TOLERANCE = 1e-10


@dataclass(frozen=True, repr=False)
class Rotated:
    """values: Z [n, rank]; penalty: K [rank, rank]."""

    values: np.ndarray
    penalty: np.ndarray

    @property
    def rank(self) -> int:
        return int(self.values.shape[1])


def rotate(columns: np.ndarray) -> Rotated:
    """Fresh secret coordinates of float64 [n, columns]; constant directions fall away."""
    centred = columns - columns.mean(axis=0)
    eigenvalues, axes = np.linalg.eigh(centred.T @ centred / len(columns))
    largest = eigenvalues[-1] if len(eigenvalues) else 0.0
    keep = eigenvalues > RANK_TOLERANCE * max(largest, np.finfo(float).tiny)
    eigenvalues, axes = eigenvalues[keep], axes[:, keep]
    turn = secret_rotation(len(eigenvalues))
    penalty = (turn.T / eigenvalues) @ turn
    values = centred @ ((axes / np.sqrt(eigenvalues)) @ turn)
    return Rotated(values, (penalty + penalty.T) / 2)


def secret_rotation(size: int) -> np.ndarray:
    """A uniformly random orthogonal matrix nobody can draw again."""
    if size == 0:
        return np.zeros((0, 0))
    # Box-Muller on 53 bits of each word: normal entries make the QR factor uniform.
    words = (uniform((2, size, size)) >> np.uint64(11)).astype(np.float64)
    first, second = (words + 0.5) / float(1 << 53)
    normal = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
    orthogonal, upper = np.linalg.qr(normal)
    return orthogonal * np.sign(np.diag(upper))
