"""SAGE's baselines (SAGE, §5.1): FedAvg with and without a pseudo-label rule, and those whose
clients train more than one set of weights.

What a client does is in `local_methods` and `rules`; what is here is the parameters, and the server
where it does more than FedAvg's. A further baseline is a class here, and a rule or a local method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedmend._parameters import Rules, at_least, one_of, parameters
from fedmend.methods.horizontal.estimator import HorizontalEstimator, declare_rounds
from fedmend.methods.horizontal.local_methods import (
    DureMethod,
    LocalMethod,
    LoKeMethod,
    MatchMethod,
    PseudoMethod,
    Supervised,
)
from fedmend.methods.horizontal.rounds import RoundSettings, Server
from fedmend.methods.horizontal.rules import (
    FedDBRule,
    FedLabelRule,
    FlexMatchRule,
    GlobalRule,
    LocalRule,
)

__all__ = [
    "EvenPriors",
    "FedAvg",
    "FedDB",
    "FedDure",
    "FedLabel",
    "FedLoKe",
    "FedMatch",
    "FedProx",
    "FixMatch",
    "FlexMatch",
    "MatchServer",
    "even_mixture",
]


@parameters
class FedAvg(HorizontalEstimator):
    """Labelled rows only; where all rows are labelled, the upper bound (FedAvg-SL)."""

    def _method(self) -> LocalMethod:
        return Supervised()


@parameters
class FedProx(FedAvg):
    """FedAvg with each party held near the round's common model (Li et al., 2020)."""

    prox: float = 1e-3

    def _settings(self) -> RoundSettings:
        return replace(super()._settings(), prox=self.prox)


@parameters
class FixMatch(HorizontalEstimator):
    """FedAvg with FixMatch at every party (Sohn et al., 2020).

    labels: "local" (FixMatch-LPL) or "global" (FixMatch-GPL): whose pseudo-labels. With `prox`,
    FedProx's pull towards the round's common model, it is FedProx+FixMatch.
    """

    labels: str = "local"
    tau: float = 0.95
    prox: float = 0.0

    _rules: ClassVar[Rules] = {"labels": one_of(("local", "global"))}

    def _settings(self) -> RoundSettings:
        return replace(super()._settings(), prox=self.prox)

    def _method(self) -> LocalMethod:
        rule = LocalRule(self.tau) if self.labels == "local" else GlobalRule(self.tau)
        return PseudoMethod(rule)


@parameters
class FlexMatch(HorizontalEstimator):
    """FedAvg with FlexMatch: thresholds by class. sage: with CPG and CDSC."""

    tau: float = 0.95
    sage: bool = False

    def _method(self) -> LocalMethod:
        return PseudoMethod(FlexMatchRule(self.tau, self.sage))


@parameters
class FedLabel(HorizontalEstimator):
    """The surer of the two models labels the row (Cho et al., 2023)."""

    tau: float = 0.95

    def _method(self) -> LocalMethod:
        return PseudoMethod(FedLabelRule(self.tau))


# ---------------------------------------------------------------------------------- FedDB


@parameters
class FedDB(HorizontalEstimator):
    """Predictions freed from the party's label prior, and averaging that evens priors out.

    (Zhu et al., 2024.) The coordinator learns every party's mean prediction. sage: with CPG and
    CDSC on the debiased predictions.
    """

    tau: float = 0.95
    sage: bool = False

    def _method(self) -> LocalMethod:
        return PseudoMethod(FedDBRule(self.tau, sage=self.sage))

    def _server(self) -> Server:
        return EvenPriors()


class EvenPriors(Server):
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


# ---------------------------------------------------------------------------------- FedMatch


@parameters
class FedMatch(HorizontalEstimator):
    """Weights in two parts, for labelled and unlabelled rows, and helpers' agreement.

    (Jeong et al., 2021.) Every party of a round gets the weights of two other parties. l2: how
    hard the weights for unlabelled rows are pulled to the others.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {**HorizontalEstimator.PRESETS["paper"], "lr": 0.01, "l2": 10.0}
    }

    tau: float = 0.75
    lr: float = 0.01
    l2: float = 0.01

    _rules: ClassVar[Rules] = {"l2": at_least(0)}

    def _method(self) -> LocalMethod:
        return MatchMethod(self.tau, l2=self.l2)

    def _server(self) -> Server:
        return MatchServer()


HELPERS = 2


class MatchServer(Server):
    """Averages sigma + psi and psi, and picks each client's helpers among the latest models.

    Helpers are the clients whose weights are nearest; FedMatch compares outputs on random inputs.
    """

    def __init__(self) -> None:
        self.psi: Tensor | None = None
        self.latest: Tensor | None = None

    def __call__(
        self,
        weights: Tensor,
        rows: Sequence[int],
        extras: Sequence[dict[str, Tensor]],
        old: Tensor,
    ) -> Tensor:
        share = torch.tensor(list(rows), dtype=weights.dtype, device=weights.device)
        share = (share / share.sum())[:, None]
        self.psi = (share * torch.stack([each["psi"].to(weights) for each in extras])).sum(0)
        self.latest = weights.detach().clone()
        return (share * weights).sum(0)

    def send(self, current: Tensor) -> dict[str, Tensor]:
        """What goes to the next round's clients besides the weights."""
        if self.psi is None or self.latest is None:
            return {}
        near = torch.cdist(current[None], self.latest)[0].argsort()[:HELPERS]
        return {"psi": self.psi, "helpers": self.latest[near]}

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs."""
        if self.psi is None or self.latest is None:
            return {}
        return {"psi": self.psi, "latest": self.latest}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self.psi, self.latest = saved.get("psi"), saved.get("latest")


# ---------------------------------------------------------------------------------- more models


@parameters
class FedLoKe(HorizontalEstimator):
    """Local knowledge: a second model stays at each party and teaches (Zhang et al., 2023).

    keep: what that model keeps of itself when it moves towards the common one, every round.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {**HorizontalEstimator.PRESETS["paper"], "keep": 0.95}
    }

    keep: float = 0.2

    _rules: ClassVar[Rules] = {"keep": ("between 0 and 1", lambda value: 0 <= value <= 1)}

    def _method(self) -> LocalMethod:
        return LoKeMethod(keep=self.keep)


@parameters
class FedDure(HorizontalEstimator):
    """Dual regulators: pseudo-labels weighed by what they do to labelled rows (Bai et al., 2024).

    sage: pseudo-labels by CPG and CDSC.
    """

    tau: float = 0.95
    sage: bool = False

    def _method(self) -> LocalMethod:
        return DureMethod(self.tau, sage=self.sage)


for name in ("fedavg", "fedprox", "fixmatch", "flexmatch", "fedlabel", "fedloke", "feddure"):
    declare_rounds(name)
for name in ("feddb", "fedmatch"):
    declare_rounds(name, single_updates=True)
