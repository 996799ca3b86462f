"""Several models of one target as one: how much weight each deserves, from held-out rows.

Weights are not negative and sum to 1. Numbers: those with the least squared error. Classes: those
whose mixture of probabilities has the least log loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
from scipy.special import softmax

from fedmend.learn import metrics

EM_STEPS = 200
POWERS = (0.5, 1.0, 2.0, 4.0, 8.0)
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
LEANINGS = (0.0, 0.1, 0.2, 0.3, 0.4)
LOST = 2.0  # standard errors of accuracy that leaning to rare classes may seem to cost
FLOOR = 1e-12
CAREFUL_ERRORS = -2.0  # standard errors added to what held-out rows say: what is beyond doubt


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
    """How far an output of mean 0 should be followed, from 0 to 1: the slope of the truth on it.

    So many standard `errors` (which allow for outlying rows) are added: with one, what is not
    clearly too much is left as it is; with less than none, only what is clear is followed.

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
    for _ in range(EM_STEPS):
        shares = given * weights
        weights = (shares / shares.sum(axis=1, keepdims=True)).mean(axis=0)
    return {name: float(weight) for name, weight in zip(names, weights, strict=True)}


def class_shares(train: np.ndarray, classes: int) -> np.ndarray:
    """The shares of the classes among the numbers `train`, none of them 0."""
    return (np.bincount(train, minlength=classes) + 0.5) / (len(train) + 0.5 * classes)


def tempered(output: np.ndarray, shares: np.ndarray, trust: float) -> np.ndarray:
    """Class probabilities nearer to the shares: shares (output / shares)^trust, made to sum to 1.

    >>> tempered(np.array([[0.9, 0.1]]), np.array([0.5, 0.5]), 0.5).round(2).tolist()
    [[0.75, 0.25]]
    """
    return np.asarray(softmax(np.log(shares) + trust * _gain(output, shares), axis=1))


def decided(output: np.ndarray, shares: np.ndarray, lean: float) -> np.ndarray:
    """The class of each row: the largest output / shares^lean, which leans to rare classes.

    >>> decided(np.array([[0.6, 0.4], [0.9, 0.1]]), np.array([0.8, 0.2]), 0.4).tolist()
    [1, 0]
    """
    return np.asarray((np.log(output.clip(FLOOR)) - lean * np.log(shares)).argmax(1))


def leaning(truth: np.ndarray, output: np.ndarray, shares: np.ndarray) -> float:
    """How far to lean to rare classes: the furthest at which held-out rows have no lower macro-F1,
    and no accuracy that is lower beyond chance.

    The likeliest class alone leaves most rare classes unsaid: a completed column would lack them.
    """
    counts = metrics.counted(truth, output.shape[1])
    likeliest = decided(output, shares, 0.0)
    least, best = metrics.f1_of(metrics.confusion(counts, likeliest)), 0.0
    for lean in LEANINGS[1:]:
        said = decided(output, shares, lean)
        lost = (likeliest == truth).astype(float) - (said == truth)
        chance = LOST * float(lost.std()) / np.sqrt(len(lost))
        if metrics.f1_of(metrics.confusion(counts, said)) >= least and lost.mean() <= chance:
            best = lean
    return best


def news(truth: np.ndarray, output: np.ndarray, aside: np.ndarray, shares: np.ndarray) -> float:
    """Of what class probabilities say, the share that `aside` does not say as well, from 0 to 1.

    What they say is the log loss that they spare against the shares of the classes; what is new is
    what the best mixture aside^g (output / shares)^w spares against the best aside^g.

    **Shape**: truth [n] class numbers; output, aside [n, C]; shares [C].
    """
    known, gain = np.log(aside.clip(FLOOR)), _gain(output, shares)
    plain, told = (_loss(np.log(shares) + weight * gain, truth) for weight in (0.0, 1.0))
    if told >= plain:
        return 0.0
    mixed = [
        [_loss(power * known + weight * gain, truth) for weight in WEIGHTS] for power in POWERS
    ]
    alone = min(losses[0] for losses in mixed)
    return float(np.clip((alone - np.min(mixed)) / (plain - told), 0.0, 1.0))


def _loss(logs: np.ndarray, truth: np.ndarray) -> float:
    found = softmax(logs, axis=1)[np.arange(len(truth)), truth]
    return float(-np.log(found.clip(FLOOR)).mean())


def _gain(output: np.ndarray, shares: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(output.clip(FLOOR)) - np.log(shares))


def family_errors(
    truth: np.ndarray, outputs: Mapping[str, np.ndarray], train: np.ndarray
) -> dict[str, float]:
    """Mean squared error, or share of wrong classes, of each family; and ``mean``'s.

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
        shares = class_shares(train, classes)
        plain = float(-np.log(shares[truth]).mean())
        told = output[np.arange(len(truth)), truth]
        loss = float(-np.log(told.clip(FLOOR)).mean())
    else:
        mean = float(train.mean()) if len(train) else 0.0
        plain, loss = float(((truth - mean) ** 2).mean()), float(((truth - output) ** 2).mean())
    return 1.0 - loss / plain if plain > 0 else 0.0
