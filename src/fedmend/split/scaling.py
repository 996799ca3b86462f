"""Probabilities that can be taken at their word: of rows of p = 0.8 a fifth is predicted wrongly.

Networks are too sure of themselves, and more so where a party is absent. Rows that were held out
from the training say how far, for each kind of row: log p is divided by a temperature (Guo et al.,
"On Calibration of Modern Neural Networks", ICML 2017) and, where that does better on rows that did
not fit it, each class gets a constant as well. Uncertainty is then 1 - max p, the error rate that
is to be expected, for every method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedmend.federation.wire import Record
from fedmend.split.labels import label_loss

FOLDS = 5
ENOUGH = 20
"""So many held-out rows can tell a temperature."""
_TINY = 1e-7
"""The least probability: a float32 softmax has no smaller ones worth dividing."""
# How far log temperature and constants may be from none, as standard deviations of a prior. That
# a network is not sure enough is believed of many rows only.
HELD, HELD_BELOW, _HELD_BIAS = 1.0, 0.15, 0.3


@dataclass(frozen=True)
class Scaling(Record):
    """p' is the softmax of log p / temperature + bias; `bias`: () or a number for each class."""

    temperature: float = 1.0
    bias: tuple[float, ...] = ()

    def of(self, p: Tensor) -> Tensor:
        """**Shape** [n, C]."""
        scaled = p.clamp_min(_TINY).log() / self.temperature
        return (scaled + scaled.new_tensor(self.bias) if self.bias else scaled).softmax(-1)

    @classmethod
    def fit(cls, p: Tensor, targets: Tensor) -> Scaling:
        """From held-out rows: classes [n], or likelihoods of what was said of them [n, C].

        Constants beside the temperature are taken where they lose less on rows left out in turn,
        by more than the error of the mean.
        """
        rows, classes = p.shape
        logs = p.double().clamp_min(_TINY).log()

        def loss_on(some: Tensor) -> Callable[[Tensor], Tensor]:
            theirs, said = logs[some], targets[some]

            def losses(theta: Tensor) -> Tensor:
                scaled = theirs * (-theta[0]).exp()
                return label_loss(scaled + theta[1:] if len(theta) > 1 else scaled, said)

            return losses

        def fitted(some: Tensor, count: int) -> Tensor:
            losses, number = loss_on(some), int(some.sum())

            def value(theta: Tensor) -> Tensor:
                held = torch.where(theta[:1] < 0, HELD_BELOW, HELD)
                prior = (theta[:1] / held).square().sum()
                if count > 1:
                    prior = prior + (theta[1:] / _HELD_BIAS).square().sum()
                return (losses(theta).sum() + 0.5 * prior) / number

            return least(value, torch.zeros(count, dtype=torch.float64))

        everything, count = torch.ones(rows, dtype=torch.bool), 1
        if rows >= 30 * classes:

            def lost(out: Tensor, test: Tensor, n: int) -> Tensor:
                return loss_on(test)(fitted(out, n))

            one = validated(rows, FOLDS, partial(lost, n=1))
            more = validated(rows, FOLDS, partial(lost, n=1 + classes))
            gain = one - more
            if float(gain.mean()) > float(gain.std()) / rows**0.5:
                count = 1 + classes
        theta = fitted(everything, count)
        return cls(float(theta[0].exp()), tuple(theta[1:].tolist()))


def least(function: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Where a function of a handful of numbers is least (BFGS)."""

    def at(point: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(point).view_as(start).clone().requires_grad_()
        found = function(leaf)
        (slope,) = torch.autograd.grad(found, leaf)
        return float(found.detach()), slope.flatten().numpy()

    best = minimize(at, start.flatten().numpy(), jac=True, method="BFGS").x
    return torch.from_numpy(best).view_as(start)


def validated(rows: int, folds: int, losses: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The loss of each row: `losses(others, some)` of some rows under what is fitted on others."""
    number = torch.arange(rows) % folds
    found = torch.zeros(rows, dtype=torch.float64)
    for fold in range(folds):
        found[number == fold] = losses(number != fold, number == fold)
    return found
