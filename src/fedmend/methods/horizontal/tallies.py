"""Whether uncertainty is worth anything, over rows at several parties: tallies that add up.

Every party counts its labelled rows by how undecided the model is about them, right and wrong
apart, and by how sure it is. The sums give what `learn.calibration.describe` gives for
rows in one place, to the width of the bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedmend.learn.metrics import as_share, confusion, expected_error, f1_of, selves

BINS = 20
SURE_BINS = 10
PARTS = 10
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
RANK_BINS = 200
# Log odds beyond which probabilities are taken as alike.
ODDS_LIMIT = 80.0


def tally(probabilities: np.ndarray, weight: np.ndarray) -> dict[str, np.ndarray]:
    """Counts of rows by uncertainty (right, wrong) and by confidence.

    weight: how far each row counts for each class (`metrics.counted`). **Shape** p, weight [n, K].
    """
    right = weight[np.arange(len(weight)), probabilities.argmax(1)]
    undecided = expected_error(probabilities)
    sure = probabilities.max(1)
    at = np.minimum((sure * SURE_BINS).astype(np.int64), SURE_BINS - 1)
    return {
        "right": np.histogram(undecided, BINS, (0.0, 1.0), weights=right)[0],
        "wrong": np.histogram(undecided, BINS, (0.0, 1.0), weights=1.0 - right)[0],
        "sure_rows": np.bincount(at, minlength=SURE_BINS),
        "sure_right": np.bincount(at, right, SURE_BINS),
        "sure_sum": np.bincount(at, sure, SURE_BINS),
    }


def describe_tallies(tallies: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """What the sums of all parties' tallies say, in the form of `calibration.describe`."""
    sums = {key: np.sum([np.asarray(each[key]) for each in tallies], axis=0) for key in tallies[0]}
    rows = sums["right"] + sums["wrong"]
    # Estimates (labels known through randomised response) may lie beyond what there is.
    right = np.clip(sums["right"], 0.0, rows)
    wrong = rows - right
    sure_right = np.clip(sums["sure_right"], 0.0, sums["sure_rows"])
    total = float(rows.sum())
    used = np.flatnonzero(sums["sure_rows"])
    reliability = [
        {
            "confidence": float(sums["sure_sum"][at] / sums["sure_rows"][at]),
            "accuracy": float(sure_right[at] / sums["sure_rows"][at]),
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
            "right": np.rint(right).astype(int).tolist(),
            "wrong": np.rint(wrong).astype(int).tolist(),
        },
    }


def _distance(bins: Sequence[Mapping[str, float]], total: float) -> float:
    if not total:
        return float("nan")
    return sum(abs(each["confidence"] - each["accuracy"]) * each["rows"] for each in bins) / total


# ---------------------------------------------------------------------------------- scores


def log_loss(probabilities: np.ndarray, weight: np.ndarray) -> float:
    """The summed log loss of the rows. **Shape** p, weight [n, K]."""
    least = np.finfo(np.float64).eps
    losses = -np.log(np.clip(probabilities.astype(np.float64), least, 1.0))
    return float((weight * losses).sum())


def judged(probabilities: np.ndarray, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """All that `scores_of` needs of a party's rows, in one array that adds up. (See `unpacked`.)"""
    parts = (
        confusion(weight, probabilities.argmax(1)),
        ranks(probabilities, weight, scale),
        selves(weight),
        np.array([log_loss(probabilities, weight)]),
    )
    return np.concatenate([np.asarray(each, np.float64).ravel() for each in parts])


def unpacked(total: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Confusion [K, K], ranks, selves and log loss out of a sum of `judged`."""
    kinds = 1 if classes == 2 else classes
    ends = np.cumsum([classes**2, 2 * kinds * RANK_BINS])
    counts, places, alike = np.split(total[:-1], ends)
    shape = (kinds, 2, RANK_BINS)
    return counts.reshape(classes, classes), places.reshape(shape), alike, float(total[-1])


def scores_of(
    counts: np.ndarray, places: np.ndarray, alike: np.ndarray, loss: float
) -> dict[str, float]:
    """Accuracy, AUC, macro F1 and log loss from sums over all parties' rows."""
    rows = round(float(counts.sum()))  # estimates of counts add up to as many
    return {
        "accuracy": as_share(np.trace(counts) / rows),
        "auc": auc_of(places, alike),
        "f1": as_share(f1_of(counts)),
        "log_loss": max(0.0, loss / rows),
    }


# ---------------------------------------------------------------------------------- AUC


def odds(probabilities: np.ndarray) -> np.ndarray:
    """Log odds of each class; for two classes of the second. **Shape** [n, K] to [n, K or 1]."""
    values = probabilities.astype(np.float64)
    own = values[:, 1:] if values.shape[1] == 2 else values
    others = np.maximum(values.sum(1, keepdims=True) - own, 1e-300)
    return np.clip(np.log(np.maximum(own, 1e-300) / others), -ODDS_LIMIT, ODDS_LIMIT)


def ranks(probabilities: np.ndarray, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """How many rows of a class and of the others lie where, by the class's log odds.

    Counts of parties add up; `auc_of` makes an area of them. weight: how far each row counts for
    each class. scale: mean and deviation of the odds over all parties, [2, K or 1]: bins would be
    equally full if odds were normal. **Shape** p, weight [n, K]; result [K or 1, 2, RANK_BINS], the
    others first.
    """
    classes = probabilities.shape[1]
    mean, deviation = scale
    standard = (odds(probabilities) - mean) / np.where(deviation > 0, deviation, 1.0)
    level = torch.special.ndtr(torch.from_numpy(standard)).numpy()
    place = np.minimum((level * RANK_BINS).astype(np.int64), RANK_BINS - 1)
    own = weight[:, 1:] if classes == 2 else weight
    counts = np.zeros((own.shape[1], 2, RANK_BINS))
    for c in range(own.shape[1]):
        counts[c, 0] = np.bincount(place[:, c], 1.0 - own[:, c], RANK_BINS)
        counts[c, 1] = np.bincount(place[:, c], own[:, c], RANK_BINS)
    return counts


def scale_of(moments: Sequence[np.ndarray]) -> np.ndarray:
    """Mean and deviation of all parties' odds, from their counts, sums and sums of squares."""
    rows, total, squares = np.sum(moments, axis=0)
    mean = total / np.maximum(rows, 1)
    return np.stack([mean, np.sqrt(np.maximum(squares / np.maximum(rows, 1) - mean**2, 0.0))])


def odds_moments(probabilities: np.ndarray) -> np.ndarray:
    """Count, sum and sum of squares of the log odds. **Shape** [3, K or 1]."""
    found = odds(probabilities)
    return np.stack([np.full(found.shape[1], float(len(found))), found.sum(0), (found**2).sum(0)])


def auc_of(counts: np.ndarray, selves: np.ndarray) -> float:
    """The area under the ROC curve, over classes the mean; rows of one bin count as tied.

    selves: how far rows count as pairs with themselves (`metrics.selves`), which are left out.
    Not a number where a class has no row, or has all of them, as for `learn.metrics.auc`.
    """
    pairs = zip(np.asarray(counts, np.float64), selves, strict=True)
    return float(np.mean([_auroc(others, own, each) for (others, own), each in pairs]))


def _auroc(right: np.ndarray, wrong: np.ndarray, selves: float = 0.0) -> float:
    """Rows of one bin count as tied."""
    pairs = wrong.sum() * right.sum() - selves
    if not pairs > 0:
        return float("nan")
    surer = np.cumsum(right) - right
    won = (wrong * (surer + right / 2)).sum() - selves / 2
    return float(np.clip(won / pairs, 0.0, 1.0))


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
