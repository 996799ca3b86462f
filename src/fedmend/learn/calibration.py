"""Is an uncertainty worth anything? Measures in plain numpy, over predictions and true classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmend.learn.metrics import area, as_share, counted


def reliability(
    probabilities: np.ndarray, y: np.ndarray, bins: int = 10, noise: np.ndarray | None = None
) -> list[dict[str, float]]:
    """Confidence beside accuracy, in bins of equal width over the largest probability.

    Empty bins are left out. noise: P(y | class) where `y` was drawn at random (`metrics.counted`).
    **Shape**: probabilities [n, K], y [n] (class numbers).
    """
    return _in_bins(probabilities.max(1), _right(probabilities, y, noise), bins)


def _in_bins(sure: np.ndarray, right: np.ndarray, bins: int) -> list[dict[str, float]]:
    which = np.minimum((sure * bins).astype(np.int64), bins - 1)
    return [
        {
            "confidence": float(sure[which == each].mean()),
            "accuracy": as_share(right[which == each].mean()),
            "rows": int((which == each).sum()),
        }
        for each in range(bins)
        if (which == each).any()
    ]


def _right(probabilities: np.ndarray, y: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    """How far each row counts as answered rightly: 0 or 1 where `y` are the classes."""
    weight = counted(y, probabilities.shape[1], noise)
    found: np.ndarray = weight[np.arange(len(y)), probabilities.argmax(1)]
    return found


def calibration_error(
    probabilities: np.ndarray, y: np.ndarray, bins: int = 10, noise: np.ndarray | None = None
) -> float:
    """Expected calibration error: the mean distance of confidence and accuracy over the bins."""
    return _distance(reliability(probabilities, y, bins, noise))


def _distance(found: list[dict[str, float]]) -> float:
    total = sum(each["rows"] for each in found)
    if not total:
        return float("nan")
    return sum(abs(each["confidence"] - each["accuracy"]) * each["rows"] for each in found) / total


def error_by_uncertainty(
    uncertainty: np.ndarray, wrong: np.ndarray, parts: int = 10
) -> list[dict[str, float]]:
    """The error rate of each decile, the surest rows first."""
    order = np.argsort(uncertainty, kind="stable")
    return [
        {
            "uncertainty": float(np.mean(uncertainty[rows])),
            "error": as_share(np.mean(wrong[rows])),
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
            found.append({"share": share, "accuracy": as_share(right[:rows].mean()), "rows": rows})
    return found


def describe(
    probabilities: np.ndarray,
    uncertainty: np.ndarray,
    y: np.ndarray,
    bins: int = 10,
    noise: np.ndarray | None = None,
    least: int = 1,
) -> dict[str, Any]:
    """All of it, as plain values: what a report draws.

    noise: P(y | class) where `y` was drawn at random; all of it is then estimated. least: how many
    rows every rate is of. Who knows the probabilities knows which rows are in a bin, and where it
    is of one row, that row's class: so each row counts as the mean of so many, the next in
    uncertainty.
    """
    truth = 1.0 - _right(probabilities, y, noise)
    wrong = truth.copy()
    order = np.argsort(uncertainty, kind="stable")
    for alike in np.array_split(order, max(1, len(order) // least)) if least > 1 else ():
        wrong[alike] = truth[alike].mean() if len(alike) else 0.0
    bars = _in_bins(probabilities.max(1), 1.0 - wrong, bins)
    counts, edges = np.histogram(uncertainty, bins=20, range=(0.0, 1.0))
    bad, _ = np.histogram(uncertainty, bins=20, range=(0.0, 1.0), weights=wrong)
    bad = np.rint(np.clip(bad, 0, counts)).astype(np.int64)
    return {
        "rows": len(y),
        "error": as_share(truth.mean()) if len(y) else float("nan"),
        "calibration_error": _distance(bars),
        "auroc": area(uncertainty, truth),
        "reliability": bars,
        "deciles": error_by_uncertainty(uncertainty, wrong),
        "selective": selective_accuracy(uncertainty, wrong),
        "histogram": {
            "edges": edges.tolist(),
            "right": (counts - bad).tolist(),
            "wrong": bad.tolist(),
        },
    }
