"""How far each of several models is heard, decided by rows that none of them has seen.

Models are pooled by their logarithms, p ∝ Π p_m^w_m with w ≥ 0 (a logarithmic opinion pool; for
numbers Σ w_m f_m). The weights make held-out labels likely; as their sum is free they calibrate the
pool, too. They are drawn towards equal weights, and those of each kind of row (known to partners or
not) towards those of all rows, as far as rows are few. Models that need partners are left out, all
of them, where a pool can do without them to within one standard error of the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from fedmend.learn import metrics

FLOOR = 1e-4
"""The least probability: one sure and wrong model must not silence all others."""
RIDGE = 50.0
"""How many rows' worth of evidence the weights start with; chosen by nested losses of 21 draws of
six tables (2 to 150 tried), where more and less were no better."""
RIDGE_OF_NUMBERS = 20.0
"""The same of labels that are numbers: of 32 draws of eight tables (2 to 50 tried) nested errors on
rows known to partners are .5 ± .2 % lower than with 50, and with less no lower."""
LEAST = 1e-3
"""The weight of the only model that is heard where none deserves it: nearly all classes alike."""
ENOUGH = 4000
"""More rows change weights by less than matters."""
DRAWS = 200


@dataclass(frozen=True)
class Held:
    """Held-out rows: what each model says of them, and what they are.

    outputs: probabilities [m, n, C], or values [m, n]. truth: how likely what is said of each row
    is under each class [n, C] (one where the class is known), or values [n]. kind: of each row, 0
    if partners know it, otherwise 1. fold: in which it was held out. classes: class numbers [n] to
    score by, None for numbers. noise: as in `metrics.classification`. groups: the numbers of
    models that are heard or left out together, the dearest group first.
    """

    outputs: np.ndarray
    truth: np.ndarray
    kind: np.ndarray
    fold: np.ndarray
    classes: np.ndarray | None = None
    noise: np.ndarray | None = None
    groups: tuple[tuple[int, ...], ...] = ()

    def rows(self, which: np.ndarray) -> Held:
        some = {name: getattr(self, name)[which] for name in ("truth", "kind", "fold")}
        classes = None if self.classes is None else self.classes[which]
        return replace(self, outputs=self.outputs[:, which], classes=classes, **some)

    def members(self, which: Sequence[int]) -> Held:
        places = {model: at for at, model in enumerate(which)}
        groups = tuple(
            tuple(places[model] for model in group if model in places) for group in self.groups
        )
        return replace(self, outputs=self.outputs[list(which)], groups=groups)

    def __len__(self) -> int:
        return len(self.truth)


@dataclass(frozen=True)
class Pool:
    """Weights [2, m], by kind of row; zero for models that are not heard."""

    weights: np.ndarray

    def __call__(self, held: Held) -> np.ndarray:
        """What the pool says of each row."""
        found = np.empty(held.outputs.shape[1:])
        for kind, weights in enumerate(self.weights):
            here = held.kind == kind
            found[here] = pooled(held.outputs[:, here], weights)
        return found


def pooled(outputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """**Shape** [m, n, C] or [m, n], [m]; [n, C] or [n].

    Models that are not heard change nothing, not even how the others' sum is rounded.
    """
    heard = weights > 0
    outputs, weights = outputs[heard], weights[heard]
    if outputs.ndim == 2:
        return np.asarray(weights @ outputs)
    return metrics.softmax(np.tensordot(weights, np.log(np.clip(outputs, FLOOR, 1.0)), 1))


def losses(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Of each row: -log Σ p L, or the squared error. **Shape** [n, C] or [n] each; [n]."""
    if found.ndim == 1:
        return np.asarray((truth - found) ** 2)
    return np.asarray(-np.log(np.clip((found * truth).sum(1), 1e-12, None)))


def weights_of(held: Held, prior: np.ndarray) -> np.ndarray:
    """The weights w ≥ 0 that make the rows likeliest, starting from `prior`. **Shape** [m]."""
    if not len(held):
        return prior
    outputs, truth = held.outputs, held.truth
    numbers = outputs.ndim == 2
    ridge = len(prior) * (RIDGE_OF_NUMBERS if numbers else RIDGE)
    # Of numbers the likelihood is a normal one, as wide as the best model errs.
    spread = max(float(((outputs - truth) ** 2).mean(1).min()), 1e-12) if numbers else 1.0
    logs = outputs if numbers else np.log(np.clip(outputs, FLOOR, 1.0))

    def objective(weights: np.ndarray) -> tuple[float, np.ndarray]:
        pull = weights - prior
        penalty = ridge / 2 * float(pull @ pull)
        if numbers:
            error = weights @ logs - truth
            value, gradient = (error @ error) / (2 * spread), logs @ error / spread
        else:
            p = metrics.softmax(np.tensordot(weights, logs, 1))
            told = np.clip((p * truth).sum(1, keepdims=True), 1e-12, None)
            value, gap = -np.log(told).sum(), p - p * truth / told
            gradient = np.einsum("mnc,nc->m", logs, gap)
        return float(value) + penalty, gradient + ridge * pull

    bounds = [(0.0, None)] * len(prior)
    found = np.asarray(minimize(objective, prior, jac=True, method="L-BFGS-B", bounds=bounds).x)
    if not found.any():  # what every model says misleads; a pool of nobody could say nothing at all
        found[0] = LEAST
    return found


def fitted(held: Held) -> Pool:
    """The pool of all these models."""
    if len(held) > ENOUGH:
        step = np.linspace(0, len(held) - 1, ENOUGH).astype(np.int64)
        held = held.rows(step)
    models = len(held.outputs)
    common = weights_of(held, np.full(models, 1.0 / models))
    each = [weights_of(held.rows(held.kind == kind), common) for kind in (0, 1)]
    return Pool(np.stack(each))


def pool_of(held: Held) -> Pool:
    """The pool without the groups of models that it can do without.

    One by one, two models that stand in for each other would both go. Models in no group stay: of
    few rows one standard error is much, and one model alone was far worse on rows to come
    (docs/decisions).
    """
    pool = fitted(held)
    best, reached = list(range(len(held.outputs))), losses(pool(held), held.truth)
    for group in held.groups:
        rest = [each for each in best if each not in group]
        if not rest or len(rest) == len(best):
            continue
        some = held.members(rest)
        tried = fitted(some)
        lost = losses(tried(some), held.truth) - reached
        if lost.mean() <= lost.std() / np.sqrt(len(lost)):
            best, pool = rest, tried
    weights = np.zeros((2, len(held.outputs)))
    weights[:, best] = pool.weights
    return Pool(weights)


def nested(held: Held) -> np.ndarray:
    """What pools say of the rows of each fold that were chosen by the other folds alone."""
    found = np.empty(held.outputs.shape[1:])
    for number in np.unique(held.fold):
        here = held.fold == number
        found[here] = pool_of(held.rows(~here))(held.rows(here))
    return found


# ---------------------------------------------------------------- scores


def score_of(
    held: Held, found: np.ndarray, metric: str, against: np.ndarray | None = None
) -> dict[str, Any]:
    """A metric over rows, with a 95 % interval; against: what others say, and how far apart.

    The interval is that of means over rows drawn again.
    """
    own = _metric(held, found, metric)
    told: dict[str, Any] = {"score": own, "rows": len(held)}
    drawn = _drawn_again(held, found, metric)
    told["interval"] = _interval(drawn)
    if against is not None:
        told["apart"] = own - _metric(held, against, metric)
        told["apart_interval"] = _interval(drawn - _drawn_again(held, against, metric))
    return told


def _drawn_again(held: Held, found: np.ndarray, metric: str) -> np.ndarray:
    """The metric of as many rows, drawn from these with repetition; the same draws every time."""
    rng, rows = np.random.default_rng(0), len(held)
    draws = DRAWS if found.ndim == 1 or found.shape[1] < 5 else DRAWS // 4
    if metric != "auc" or held.classes is None or held.noise is not None:
        picked = (rng.integers(0, rows, rows) for _ in range(draws))
        return np.array([_metric(held, found, metric, some) for some in picked])
    # An AUC needs an order, which is that of all rows: how often each was drawn is all that counts.
    asked = [1] if found.shape[1] == 2 else range(found.shape[1])
    inside = [held.classes == each for each in asked]
    orders = [metrics.Order(found[:, each]) for each in asked]
    told = np.empty(draws)
    for number in range(draws):
        times = np.bincount(rng.integers(0, rows, rows), minlength=rows)
        areas = [
            order.area(times * here, times) for order, here in zip(orders, inside, strict=True)
        ]
        told[number] = np.mean(areas)
    return told


def _interval(drawn: np.ndarray) -> list[float]:
    sure = drawn[np.isfinite(drawn)]
    return [float(each) for each in np.quantile(sure, [0.025, 0.975])] if len(sure) else []


def _metric(
    held: Held, found: np.ndarray, metric: str, rows: np.ndarray | slice = slice(None)
) -> float:
    if held.classes is None:
        return metrics.regression(held.truth[rows], found[rows])[metric]
    classes, p = held.classes[rows], found[rows]
    if metric == "auc":
        return metrics.auc(classes, p, held.noise)
    return metrics.classification(classes, p, held.noise)[metric]
