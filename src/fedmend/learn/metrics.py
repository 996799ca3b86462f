"""Metrics by classes that are known, or known through randomised response.

Without noise they are scikit-learn's (the tests compare), which knows no labels drawn at random.
"""

from __future__ import annotations

import numpy as np

CLASSIFICATION = ("accuracy", "auc", "f1", "log_loss")
REGRESSION = ("rmse", "mae", "r2")
LOWER_IS_BETTER = frozenset({"log_loss", "calibrated_loss", "rmse", "mae", "loss"})
_WRITTEN = {name: name.upper() for name in ("auc", "f1", "rmse", "mae", "ece")} | {"r2": "R²"}


def pretty(metric: str) -> str:
    """A metric's name as people write it."""
    return _WRITTEN.get(metric, metric.replace("_", " "))


def score_text(value: float) -> str:
    """A score as people read it: ``0.836``, and an error in euros ``1,162.4``."""
    size = abs(value)
    places = 3 if size < 10 else 2 if size < 100 else 1 if size < 10_000 else 0
    return f"{value:,.{places}f}"


def counted(y: np.ndarray, n_classes: int, noise: np.ndarray | None = None) -> np.ndarray:
    """How far each row counts for each class: 1 for its own. **Shape** y [n]; [n, C].

    noise: P(y | class) [C, C] where `y` was drawn at random. Rows then count so that every sum
    over them is, in the mean of the draws, the sum by the classes themselves: a row of its inverse
    for each (Natarajan et al., "Learning with Noisy Labels", NeurIPS 2013). Some count below zero.
    """
    inverse = np.eye(n_classes) if noise is None else np.linalg.inv(noise)
    return inverse[y]


def classification(
    y: np.ndarray, probabilities: np.ndarray, noise: np.ndarray | None = None
) -> dict[str, float]:
    """Accuracy, macro AUC, macro F1 and log loss. **Shape** y [n] (0..C-1), p [n, C].

    noise: P(y | class) where `y` was drawn at random; the metrics are then estimates of those by
    the classes, which scatter more the less of a class there is in `y`.
    """
    if not len(y):
        return dict.fromkeys(CLASSIFICATION, float("nan"))
    predicted, weight = probabilities.argmax(1), counted(y, probabilities.shape[1], noise)
    losses = -np.log(np.clip(probabilities.astype(np.float64), np.finfo(np.float64).eps, 1.0))
    return {
        "accuracy": as_share(weight[np.arange(len(y)), predicted].mean()),
        "auc": _auc(weight, probabilities),
        "f1": as_share(f1_of(confusion(weight, predicted))),
        "log_loss": float(np.maximum(0.0, (weight * losses).sum(1).mean())),
    }


def confusion(weight: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """How often which class was predicted for which. **Shape** [n, C], [n]; [class, predicted].

    Whole numbers where rows count wholly.
    """
    counts = weight.T @ np.eye(weight.shape[1])[predicted]
    whole = np.rint(counts)
    return whole.astype(np.int64) if np.array_equal(whole, counts) else counts


def f1_of(counts: np.ndarray) -> float:
    """The mean F1 over the classes that occur or are predicted. **Shape** [class, predicted]."""
    hit = np.diag(counts).astype(np.float64)
    sizes = counts.sum(0) + counts.sum(1)
    return float((2 * hit[sizes > 0] / sizes[sizes > 0]).mean())


def selves(weight: np.ndarray) -> np.ndarray:
    """How far rows count as pairs with themselves, per class (of two, the second); 0 without noise.

    **Shape** [n, C]; [C or 1].
    """
    own = weight[:, 1:] if weight.shape[1] == 2 else weight
    return (own * (weight.sum(1, keepdims=True) - own)).sum(0)


def auc(y: np.ndarray, probabilities: np.ndarray, noise: np.ndarray | None = None) -> float:
    """Area under the ROC curve; for more than two classes the mean of one-against-rest.

    noise: as in `classification`. Not a number where a class has no row, or has all of them.
    """
    return _auc(counted(y, probabilities.shape[1], noise), probabilities)


def _auc(weight: np.ndarray, probabilities: np.ndarray) -> float:
    asked = [1] if weight.shape[1] == 2 else range(weight.shape[1])
    return float(np.mean([area(probabilities[:, c], weight[:, c]) for c in asked]))


def area(scores: np.ndarray, inside: np.ndarray) -> float:
    """The share of pairs of a row inside and another outside in which the first scores higher.

    inside: True and False, or how far each row counts as inside; no row is a pair with itself.
    Not a number where all rows are inside or none is.
    """
    inside = np.asarray(inside, np.float64)
    own = float((inside * (1.0 - inside)).sum())  # 0 but for estimates
    return Order(scores).area(inside, np.ones(len(inside)), own)


class Order:
    """Rows by their scores, found once for many sets of weights."""

    def __init__(self, scores: np.ndarray) -> None:
        _, self._place = np.unique(np.asarray(scores), return_inverse=True)

    def area(self, inside: np.ndarray, whole: np.ndarray, own: float = 0.0) -> float:
        """As `area`, of rows that count `whole` each, of which `inside` are inside.

        own: how far rows count as pairs with themselves, which they are not.
        """
        outside = whole - inside
        pairs = float(inside.sum() * outside.sum()) - own
        if not pairs > 0:
            return float("nan")
        there, not_there = np.bincount(self._place, inside), np.bincount(self._place, outside)
        below = np.cumsum(not_there) - not_there
        won = float((there * (below + not_there / 2)).sum()) - own / 2
        return as_share(won / pairs)


def as_share(value: float) -> float:
    """An estimate of a share may lie beyond what a share can be."""
    return float(np.clip(value, 0.0, 1.0))


def regression(y: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """RMSE, MAE and R² in the label's own units; of no rows, not a number."""
    if not len(y):
        return dict.fromkeys(REGRESSION, float("nan"))
    error = y.astype(np.float64) - predicted
    spread = float(((y - y.mean()) ** 2).sum())
    return {
        "rmse": float(np.sqrt((error**2).mean())),
        "mae": float(np.abs(error).mean()),
        "r2": 1.0 - float((error**2).sum()) / spread if spread > 0 else float("nan"),
    }


def softmax(scores: np.ndarray) -> np.ndarray:
    """**Shape** [n, C]; scipy's takes several times as long over few rows."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def expected_error(probabilities: np.ndarray) -> np.ndarray:
    """How uncertain a row is: the error rate to expect of its prediction, 1 - max p. **Shape** [n].

    As far as probabilities can be taken at their word (`split.scaling`).
    """
    return 1.0 - probabilities.max(1) if len(probabilities) else np.zeros(0, probabilities.dtype)
