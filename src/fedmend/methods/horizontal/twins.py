"""SAGE's baselines whose clients train more than one set of weights: FedMatch, FedLoKe, FedDure.

What a client does is in `recipes`. (SAGE, §5.1.)
"""

from __future__ import annotations

from typing import Any, Self

from fedmend.errors import ConfigError
from fedmend.methods.horizontal.estimator import HorizontalEstimator
from fedmend.methods.horizontal.local_methods import LocalMethod
from fedmend.methods.horizontal.recipes import DureMethod, LoKeMethod, MatchMethod, MatchServer
from fedmend.methods.horizontal.rounds import Aggregate
from fedmend.methods.horizontal.rules import KAPPA

__all__ = ["FedDure", "FedLoKe", "FedMatch"]


class FedMatch(HorizontalEstimator):
    """Weights in two parts, for labelled and unlabelled rows, and helpers' agreement.

    (Jeong et al., 2021.) Every party of a round gets the weights of `helpers` other parties.
    labelled_weight, helper_weight, l1, l2: FedMatch's lambdas, for a learning rate of 0.01.
    """

    def __init__(
        self,
        *,
        tau: float = 0.75,
        labelled_weight: float = 10.0,
        helper_weight: float = 0.01,
        l1: float = 1e-4,
        l2: float = 10.0,
        helpers: int = 2,
        lr: float = 0.01,
        **params: Any,
    ) -> None:
        super().__init__(lr=lr, **params)
        self.tau = tau
        self.labelled_weight = labelled_weight
        self.helper_weight = helper_weight
        self.l1 = l1
        self.l2 = l2
        self.helpers = helpers

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        return super().paper(**({"lr": 0.01} | changes))

    def _method(self) -> LocalMethod:
        if self.helpers < 0:
            raise ConfigError(f"helpers must not be negative, got {self.helpers}")
        return MatchMethod(self.tau, self.labelled_weight, self.helper_weight, self.l1, self.l2)

    def _aggregate(self) -> Aggregate | None:
        return MatchServer(self.helpers)


class FedLoKe(HorizontalEstimator):
    """Local knowledge: a second model stays at each party and teaches (Zhang et al., 2023).

    entropy: most entropy of a prediction that is taught. keep: what the staying model keeps of
    itself from round to round.
    """

    def __init__(self, *, entropy: float = 0.1, keep: float = 0.95, **params: Any) -> None:
        super().__init__(**params)
        self.entropy = entropy
        self.keep = keep

    def _method(self) -> LocalMethod:
        if not 0 <= self.keep <= 1:
            raise ConfigError(f"keep must lie in [0, 1], got {self.keep}")
        return LoKeMethod(self.entropy, self.keep)


class FedDure(HorizontalEstimator):
    """Dual regulators: pseudo-labels weighed by what they do to labelled rows (Bai et al., 2024).

    regulator_lr: Adam's learning rate of F-reg. sage: pseudo-labels by CPG and CDSC.
    """

    def __init__(
        self,
        *,
        tau: float = 0.95,
        regulator_lr: float = 6e-4,
        sage: bool = False,
        kappa: float = KAPPA,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.tau = tau
        self.regulator_lr = regulator_lr
        self.sage = sage
        self.kappa = kappa

    def _method(self) -> LocalMethod:
        return DureMethod(self.tau, self.regulator_lr, self.sage, self.kappa)
