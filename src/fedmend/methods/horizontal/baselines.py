"""SAGE's baselines that are FedAvg with a pseudo-label rule, or without one (SAGE, §5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.errors import ConfigError
from fedmend.methods.horizontal.estimator import HorizontalEstimator
from fedmend.methods.horizontal.local_methods import LocalMethod, PseudoMethod, Supervised
from fedmend.methods.horizontal.rounds import Aggregate
from fedmend.methods.horizontal.rules import (
    KAPPA,
    FedDBRule,
    FedLabelRule,
    FlexMatchRule,
    LocalRule,
    WorldRule,
)

__all__ = [
    "EvenPriors",
    "FedAvg",
    "FedDB",
    "FedLabel",
    "FedProx",
    "FixMatch",
    "FlexMatch",
    "even_mixture",
]


class FedAvg(HorizontalEstimator):
    """Labelled rows only; where all rows are labelled, the upper bound (FedAvg-SL)."""

    def _method(self) -> LocalMethod:
        return Supervised()


class FedProx(FedAvg):
    """FedAvg with each party held near the round's common model (Li et al., 2020)."""

    def __init__(self, *, prox: float = 1e-3, **params: Any) -> None:
        super().__init__(prox=prox, **params)


class FixMatch(HorizontalEstimator):
    """FedAvg with FixMatch at every party (Sohn et al., 2020).

    labels: "local" (FixMatch-LPL) or "global" (FixMatch-GPL): whose pseudo-labels. With `prox` it
    is FedProx+FixMatch.
    """

    def __init__(
        self,
        *,
        labels: str = "local",
        tau: float = 0.95,
        unlabelled_weight: float = 1.0,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.labels = labels
        self.tau = tau
        self.unlabelled_weight = unlabelled_weight

    def _method(self) -> LocalMethod:
        if self.labels not in ("local", "global"):
            raise ConfigError(f"labels must be 'local' or 'global', got {self.labels!r}")
        rule = LocalRule(self.tau) if self.labels == "local" else WorldRule(self.tau)
        return PseudoMethod(rule, self.unlabelled_weight)


class FlexMatch(HorizontalEstimator):
    """FedAvg with FlexMatch: thresholds by class. sage: with CPG and CDSC."""

    def __init__(
        self,
        *,
        tau: float = 0.95,
        sage: bool = False,
        kappa: float = KAPPA,
        unlabelled_weight: float = 1.0,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.tau = tau
        self.sage = sage
        self.kappa = kappa
        self.unlabelled_weight = unlabelled_weight

    def _method(self) -> LocalMethod:
        return PseudoMethod(FlexMatchRule(self.tau, self.sage, self.kappa), self.unlabelled_weight)


class FedLabel(HorizontalEstimator):
    """The surer of the two models labels the row (Cho et al., 2023).

    consistency: weight of the common model's distribution where both agree.
    """

    def __init__(
        self,
        *,
        tau: float = 0.95,
        consistency: float = 1.0,
        unlabelled_weight: float = 1.0,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.tau = tau
        self.consistency = consistency
        self.unlabelled_weight = unlabelled_weight

    def _method(self) -> LocalMethod:
        return PseudoMethod(FedLabelRule(self.tau, self.consistency), self.unlabelled_weight)


# ---------------------------------------------------------------------------------- FedDB


class FedDB(HorizontalEstimator):
    """Predictions freed from the party's label prior, and averaging that evens priors out.

    (Zhu et al., 2024.) The coordinator learns every party's mean prediction. sage: with CPG and
    CDSC on the debiased predictions.
    """

    def __init__(
        self,
        *,
        tau: float = 0.95,
        prior_momentum: float = 0.5,
        sage: bool = False,
        kappa: float = KAPPA,
        unlabelled_weight: float = 1.0,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.tau = tau
        self.prior_momentum = prior_momentum
        self.sage = sage
        self.kappa = kappa
        self.unlabelled_weight = unlabelled_weight

    def _method(self) -> LocalMethod:
        rule = FedDBRule(self.tau, self.prior_momentum, self.sage, self.kappa)
        return PseudoMethod(rule, self.unlabelled_weight)

    def _aggregate(self) -> Aggregate | None:
        return EvenPriors()


class EvenPriors:
    """Averages so that the clients' mean predictions mix to an even one, as near as they can."""

    def __call__(
        self,
        weights: Tensor,
        rows: Sequence[int],
        extras: Sequence[dict[str, Tensor]],
        old: Tensor,
    ) -> Tensor:
        priors = np.stack([each["prior"].double().cpu().numpy() for each in extras])
        shares = even_mixture(priors, np.asarray(rows, dtype=np.float64))
        mixed = torch.from_numpy(shares).to(weights.device, weights.dtype)
        return (mixed[:, None] * weights).sum(0)


def even_mixture(
    priors: np.ndarray, rows: np.ndarray, *, pull: float = 1e-3, steps: int = 500
) -> np.ndarray:
    """Shares of the clients, summing to 1, whose mixture of priors is nearest to an even one.

    Minimises |sum_k w_k p_k - 1/C|^2 + pull KL(w || rows) over the simplex by multiplicative
    updates; the pull decides where many mixtures are as even. **Shape** priors [K, C], rows [K].

    >>> even_mixture(np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([5.0, 1.0])).round(2).tolist()
    [0.5, 0.5]
    """
    start = rows / rows.sum()
    shares = start.copy()
    even = 1.0 / priors.shape[1]
    for _ in range(steps):
        slope = 2.0 * priors @ (shares @ priors - even)
        slope += pull * (np.log(shares / start) + 1.0)
        shares = shares * np.exp(-(slope - slope @ shares))
        shares = np.maximum(shares, 1e-12)
        shares /= shares.sum()
    return shares
