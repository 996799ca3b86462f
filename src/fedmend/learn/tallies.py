"""Whether uncertainty is worth anything, over rows at several parties: tallies that add up.

Every party counts its labelled rows by how undecided the model is about them, right and wrong
apart, and by how sure it is. The sums give what `learn.evidence.calibration.describe` gives for
rows in one place, to the width of the bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmend.learn.metrics import normalised_entropy

__all__ = ["describe_tallies", "tally"]

BINS = 20
SURE_BINS = 10
PARTS = 10
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def tally(probabilities: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Counts of rows by uncertainty (right, wrong) and by confidence. **Shape** p [n, K], y [n]."""
    right = probabilities.argmax(1) == y
    undecided = normalised_entropy(probabilities)
    sure = probabilities.max(1)
    at = np.minimum((sure * SURE_BINS).astype(np.int64), SURE_BINS - 1)
    return {
        "right": np.histogram(undecided[right], BINS, (0.0, 1.0))[0],
        "wrong": np.histogram(undecided[~right], BINS, (0.0, 1.0))[0],
        "sure_rows": np.bincount(at, minlength=SURE_BINS),
        "sure_right": np.bincount(at, right, SURE_BINS).astype(np.int64),
        "sure_sum": np.bincount(at, sure, SURE_BINS),
    }


def describe_tallies(tallies: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """What the sums of all parties' tallies say, in the form of `calibration.describe`."""
    sums = {key: np.sum([np.asarray(each[key]) for each in tallies], axis=0) for key in tallies[0]}
    right, wrong = sums["right"].astype(np.float64), sums["wrong"].astype(np.float64)
    rows = right + wrong
    total = float(rows.sum())
    used = np.flatnonzero(sums["sure_rows"])
    reliability = [
        {
            "confidence": float(sums["sure_sum"][at] / sums["sure_rows"][at]),
            "accuracy": float(sums["sure_right"][at] / sums["sure_rows"][at]),
            "rows": int(sums["sure_rows"][at]),
        }
        for at in used
    ]
    return {
        "rows": int(total),
        "error": float(wrong.sum()) / total if total else float("nan"),
        "calibration_error": _distance(reliability, total),
        "auroc": _auroc(right, wrong),
        "reliability": reliability,
        "deciles": _deciles(rows, wrong, total),
        "selective": [
            {
                "share": share,
                "accuracy": 1.0 - _errors_below(rows, wrong, share * total) / (share * total),
                "rows": round(share * total),
            }
            for share in SHARES
            if total
        ],
        "histogram": {
            "edges": np.linspace(0.0, 1.0, BINS + 1).tolist(),
            "right": right.astype(int).tolist(),
            "wrong": wrong.astype(int).tolist(),
        },
    }


def _distance(bins: Sequence[Mapping[str, float]], total: float) -> float:
    if not total:
        return float("nan")
    return sum(abs(each["confidence"] - each["accuracy"]) * each["rows"] for each in bins) / total


def _auroc(right: np.ndarray, wrong: np.ndarray) -> float:
    """Rows of one bin count as tied."""
    if not right.sum() or not wrong.sum():
        return float("nan")
    surer = np.cumsum(right) - right
    return float((wrong * (surer + right / 2)).sum() / (wrong.sum() * right.sum()))


def _deciles(rows: np.ndarray, wrong: np.ndarray, total: float) -> list[dict[str, float]]:
    """The error rate of each tenth, the surest first; a bin's errors are spread evenly over it."""
    if not total:
        return []
    ends = [_errors_below(rows, wrong, total * part / PARTS) for part in range(PARTS + 1)]
    return [
        {
            "uncertainty": _level(rows, total * (part + 0.5) / PARTS),
            "error": (ends[part + 1] - ends[part]) / (total / PARTS),
            "rows": round(total / PARTS),
        }
        for part in range(PARTS)
    ]


def _errors_below(rows: np.ndarray, wrong: np.ndarray, count: float) -> float:
    """How many of the `count` surest rows are wrong."""
    places = np.concatenate([[0.0], np.cumsum(rows)])
    return float(np.interp(count, places, np.concatenate([[0.0], np.cumsum(wrong)])))


def _level(rows: np.ndarray, count: float) -> float:
    """The uncertainty of the row in this place."""
    at = int(np.searchsorted(np.cumsum(rows), count))
    return (min(at, len(rows) - 1) + 0.5) / len(rows)
