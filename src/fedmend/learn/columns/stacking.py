"""Several models of one target as one: how much weight each deserves, from held-out rows.

Weights are not negative and sum to 1. Numbers: those with the least squared error. Classes: those
whose mixture of probabilities has the least log loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

__all__ = ["CLEAR", "class_weights", "member_errors", "shrinkage", "skill", "value_weights"]

STEPS = 200
FLOOR = 1e-12
CLEAR = -2.0  # standard errors added to what held-out rows say that leave what is beyond doubt


def value_weights(
    truth: np.ndarray, outputs: Mapping[str, np.ndarray], within: float = np.inf
) -> dict[str, float]:
    """Weights >= 0 that sum to 1, with the least squared error (for few members).

    Without the sum, a few outlying held-out rows decide how far all predictions are shrunk. And a
    few outlying rows would decide the weights as well, so numbers beyond ±`within` count as that.

    >>> value_weights(np.array([1.0, 2.5]), {"a": np.array([1.0, 2.0]), "b": np.array([1.0, 4.0])})
    {'a': 0.75, 'b': 0.25}
    """
    names = list(outputs)
    truth = truth.clip(-within, within)
    members = np.stack([outputs[name] for name in names], axis=1).clip(-within, within)
    best, weights = np.inf, np.full(len(names), 1.0 / len(names))
    # With so few members every set of them that may be used is tried.
    for size in range(1, len(names) + 1):
        for chosen in itertools.combinations(range(len(names)), size):
            part, first = members[:, chosen], members[:, chosen[0]]
            others = np.linalg.lstsq(part[:, 1:] - first[:, None], truth - first, rcond=None)[0]
            solved = np.concatenate([[1.0 - others.sum()], others])
            error = float(((part @ solved - truth) ** 2).sum())
            if (solved >= 0).all() and error < best - FLOOR:
                best = error
                weights = np.zeros(len(names))
                weights[list(chosen)] = solved
    return {name: float(weight) for name, weight in zip(names, weights, strict=True)}


def shrinkage(truth: np.ndarray, output: np.ndarray, errors: float = 1.0) -> float:
    """How far an output of mean 0 should be believed, from 0 to 1: the slope of the truth on it.

    So many standard `errors` (which allow for outlying rows) are added: with one, what is not
    clearly too much is left as it is; with less than none, only what is clear is believed.

    >>> shrinkage(np.array([1.0, -1.0, 1.0, -1.0]), np.array([2.0, -2.0, 2.0, -2.0]))
    0.5
    """
    size = float((output**2).sum())
    if size == 0:
        return 1.0
    slope = float((truth * output).sum()) / size
    error = float(np.sqrt(((output * (truth - slope * output)) ** 2).sum())) / size
    return float(np.clip(slope + errors * error, 0.0, 1.0))


def class_weights(truth: np.ndarray, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Weights that sum to 1, with the least log loss of the mixture (by EM).

    **Shape**: truth [n] class numbers, outputs [n, C] probabilities.
    """
    names = list(outputs)
    rows = np.arange(len(truth))
    given = np.stack([outputs[name][rows, truth] for name in names], axis=1).clip(FLOOR)
    weights = np.full(len(names), 1.0 / len(names))
    for _ in range(STEPS):
        shares = given * weights
        weights = (shares / shares.sum(axis=1, keepdims=True)).mean(axis=0)
    return {name: float(weight) for name, weight in zip(names, weights, strict=True)}


def member_errors(
    truth: np.ndarray, outputs: Mapping[str, np.ndarray], train: np.ndarray
) -> dict[str, float]:
    """Mean squared error, or share of wrong classes, of each member; and ``mean``'s.

    ``mean`` always says the mean, or the commonest class, of the values `train`.
    """
    if truth.dtype.kind == "i":
        commonest = int(np.bincount(train).argmax()) if len(train) else 0
        errors = {
            name: float((values.argmax(axis=1) != truth).mean()) for name, values in outputs.items()
        }
        return errors | {"mean": float((truth != commonest).mean())}
    errors = {name: float(((values - truth) ** 2).mean()) for name, values in outputs.items()}
    mean = float(train.mean()) if len(train) else 0.0
    return errors | {"mean": float(((truth - mean) ** 2).mean())}


def skill(truth: np.ndarray, output: np.ndarray, train: np.ndarray) -> float:
    """The share of the error of knowing nothing that an output spares; 1 is perfect, 0 useless.

    Squared error against the mean of the values `train`, or log loss against the shares of the
    classes among them.

    >>> round(skill(np.array([0.0, 2.0]), np.array([0.5, 1.5]), np.array([1.0])), 2)
    0.75
    """
    if truth.dtype.kind == "i":
        classes = output.shape[1]
        shares = (np.bincount(train, minlength=classes) + 0.5) / (len(train) + 0.5 * classes)
        plain = float(-np.log(shares[truth]).mean())
        told = output[np.arange(len(truth)), truth]
        loss = float(-np.log(told.clip(FLOOR)).mean())
    else:
        mean = float(train.mean()) if len(train) else 0.0
        plain, loss = float(((truth - mean) ** 2).mean()), float(((truth - output) ** 2).mean())
    return 1.0 - loss / plain if plain > 0 else 0.0
