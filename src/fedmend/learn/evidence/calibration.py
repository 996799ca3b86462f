"""Is an uncertainty worth anything? Measures in plain numpy, over predictions and true classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmend.learn.metrics import average_ranks

__all__ = [
    "calibration_error",
    "describe",
    "error_by_uncertainty",
    "reliability",
    "selective_accuracy",
    "uncertainty_auroc",
]


def reliability(probabilities: np.ndarray, y: np.ndarray, bins: int = 10) -> list[dict[str, float]]:
    """Confidence beside accuracy, in bins of equal width over the largest probability.

    Empty bins are left out. **Shape**: probabilities [n, K], y [n] (class numbers).
    """
    sure, right = probabilities.max(1), probabilities.argmax(1) == y
    which = np.minimum((sure * bins).astype(np.int64), bins - 1)
    return [
        {
            "confidence": float(sure[which == each].mean()),
            "accuracy": float(right[which == each].mean()),
            "rows": int((which == each).sum()),
        }
        for each in range(bins)
        if (which == each).any()
    ]


def calibration_error(probabilities: np.ndarray, y: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: the mean distance of confidence and accuracy over the bins."""
    found = reliability(probabilities, y, bins)
    total = sum(each["rows"] for each in found)
    if not total:
        return float("nan")
    return sum(abs(each["confidence"] - each["accuracy"]) * each["rows"] for each in found) / total


def uncertainty_auroc(uncertainty: np.ndarray, wrong: np.ndarray) -> float:
    """How well uncertainty ranks errors before right answers: .5 is chance, 1 perfect.

    Not a number where all or no answers are wrong.
    """
    wrong = np.asarray(wrong, bool)
    n_wrong, n_right = int(wrong.sum()), int((~wrong).sum())
    if not n_wrong or not n_right:
        return float("nan")
    ranks = average_ranks(np.asarray(uncertainty))
    return (float(ranks[wrong].sum()) - n_wrong * (n_wrong + 1) / 2) / (n_wrong * n_right)


def error_by_uncertainty(
    uncertainty: np.ndarray, wrong: np.ndarray, parts: int = 10
) -> list[dict[str, float]]:
    """The error rate of each decile, the surest rows first."""
    order = np.argsort(uncertainty, kind="stable")
    return [
        {
            "uncertainty": float(np.mean(uncertainty[rows])),
            "error": float(np.mean(wrong[rows])),
            "rows": len(rows),
        }
        for rows in np.array_split(order, parts)
        if len(rows)
    ]


def selective_accuracy(
    uncertainty: np.ndarray,
    wrong: np.ndarray,
    shares: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0),
) -> list[dict[str, float]]:
    """Accuracy when only the surest share of rows is answered."""
    right = 1.0 - np.asarray(wrong, np.float64)[np.argsort(uncertainty, kind="stable")]
    found = []
    for share in shares:
        rows = max(1, round(share * len(right))) if len(right) else 0
        if rows:
            found.append({"share": share, "accuracy": float(right[:rows].mean()), "rows": rows})
    return found


def describe(
    probabilities: np.ndarray, uncertainty: np.ndarray, y: np.ndarray, bins: int = 10
) -> dict[str, Any]:
    """All of it, as plain values: what a report draws."""
    wrong = probabilities.argmax(1) != y
    counts, edges = np.histogram(uncertainty, bins=20, range=(0.0, 1.0))
    bad, _ = np.histogram(uncertainty[wrong], bins=20, range=(0.0, 1.0))
    return {
        "rows": len(y),
        "error": float(wrong.mean()) if len(y) else float("nan"),
        "calibration_error": calibration_error(probabilities, y, bins),
        "auroc": uncertainty_auroc(uncertainty, wrong),
        "reliability": reliability(probabilities, y, bins),
        "deciles": error_by_uncertainty(uncertainty, wrong),
        "selective": selective_accuracy(uncertainty, wrong),
        "histogram": {
            "edges": edges.tolist(),
            "right": (counts - bad).tolist(),
            "wrong": bad.tolist(),
        },
    }
