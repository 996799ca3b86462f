"""Pseudo-label rules of federated semi-supervised learning, as a client's training step uses them.

A rule looks at what the client's own model (p_l) and the round's global model (p_g) say of a batch
of unlabelled rows in their weak view, and answers with soft targets, a mask and weights:

    rule = SageRule(tau=0.95)
    state = rule.start(n_rows, n_classes, device)       # kept with the client from round to round
    labels = rule(p_l, p_g, rows, state)                # PseudoLabels of tensors

Rules work on tensors of fixed shapes, never ask for a single number on the host, and change their
state in place, so that a training step can be captured and replayed on an accelerator.
(SAGE, §4 and §5.1; the other papers are named at their rules.)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedmend._parameters import NOT_NEGATIVE, PROPER_SHARE, SHARE, Rules, check_values
from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError
from fedmend.learn.pseudo import PseudoLabels

# lambda is one half where the two models' confidences are .05 apart.
KAPPA = math.log(2.0) / 0.05

CHECKED: Rules = {
    "tau": SHARE,
    "kappa": NOT_NEGATIVE,
    "consistency": NOT_NEGATIVE,
    "momentum": PROPER_SHARE,
}

State = dict[str, Tensor]


class ByName:
    """Known by a name and plain parameters, so that a party can build it from a request.

    what: in messages. known: all there are, by name; a class of one's own is known once it is made.
    """

    name: ClassVar[str] = ""
    what: ClassVar[str] = ""
    known: ClassVar[dict[str, type[Any]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            cls.known[cls.name] = cls

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters as wire values; `of` is the way back."""
        found = {key: getattr(self, key) for key in inspect.signature(type(self)).parameters}
        plain = {k: v.to_dict() if isinstance(v, ByName) else v for k, v in found.items()}
        return {"name": self.name, **plain}

    @classmethod
    def of(cls, value: Any) -> Any:
        """From its name, from `to_dict`, or as it is."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, str | Mapping):
            raise ConfigError(
                f"a {cls.what} is a name, a table or an object, got {value!r}. "
                f"Mend: one of {', '.join(map(repr, cls.known))}, or one of your own"
            )
        given = {"name": value} if isinstance(value, str) else dict(value)
        name = str(given.pop("name", None))
        if name not in cls.known:
            raise ConfigError(f"{name!r} is not a {cls.what}: {did_you_mean(name, cls.known)}")
        takes = list(inspect.signature(cls.known[name]).parameters)
        wrong = [key for key in given if key not in takes]
        if wrong:
            raise ConfigError(
                f"the {cls.what} {name!r} has no parameter {wrong[0]!r}: "
                f"{did_you_mean(wrong[0], takes)}"
            )
        return cls.known[name](**given)


@dataclass(frozen=True)
class Rule(ByName):
    """Base of all rules; `tau` is the confidence a pseudo-label needs.

    tells: what of that which it keeps with the client goes to the server.
    """

    tau: float = 0.95

    what: ClassVar[str] = "pseudo-label rule"
    known: ClassVar[dict[str, type[Any]]] = {}
    tells: ClassVar[tuple[str, ...]] = ()

    @property
    def needs_global(self) -> bool:
        """Does the rule look at the global model's predictions?"""
        return True

    def __post_init__(self) -> None:
        check_values(self, {name: CHECKED[name] for name in vars(self) if name in CHECKED})

    def start(self, n_rows: int, n_classes: int, device: torch.device | str = "cpu") -> State:
        """What a client keeps for this rule; nothing for most."""
        return {}

    def __call__(self, p_l: Tensor, p_g: Tensor, rows: Tensor, state: State) -> PseudoLabels:
        """Labels of a batch. **Shape** p_l, p_g [b, C]; rows [b], numbers in the client's pool of
        unlabelled rows."""
        raise NotImplementedError(f"{type(self).__name__} labels nothing")


# ---------------------------------------------------------------------------------- FixMatch


@dataclass(frozen=True)
class LocalRule(Rule):
    """FixMatch with labels of the client's own model (FixMatch-LPL)."""

    name: ClassVar[str] = "local"

    @property
    def needs_global(self) -> bool:
        return False

    def __call__(self, p_l: Tensor, p_g: Tensor, rows: Tensor, state: State) -> PseudoLabels:
        return _hard(p_l, self.tau)


@dataclass(frozen=True)
class GlobalRule(Rule):
    """FixMatch with labels of the round's global model (FixMatch-GPL)."""

    name: ClassVar[str] = "global"

    def __call__(self, p_l: Tensor, p_g: Tensor, rows: Tensor, state: State) -> PseudoLabels:
        return _hard(p_g, self.tau)


# ---------------------------------------------------------------------------------- SAGE


@dataclass(frozen=True)
class SageRule(Rule):
    """SAGE: labels of both models (CPG), corrected by the gap between them (CDSC).

    cpg: the global model labels rows of which the local one is not sure (Eq. 1).
    cdsc: a sure local label is mixed with the global one, lambda = exp(-kappa gap) (Eqs. 2-6).
    """

    kappa: float = KAPPA
    cpg: bool = True
    cdsc: bool = True

    name: ClassVar[str] = "sage"

    def __call__(self, p_l: Tensor, p_g: Tensor, rows: Tensor, state: State) -> PseudoLabels:
        return self.correct(p_l, p_g, p_l.amax(1) > self.tau, p_g.amax(1) > self.tau)

    def correct(
        self, p_l: Tensor, p_g: Tensor, by_local: Tensor, by_global: Tensor
    ) -> PseudoLabels:
        """SAGE's labels, wherever the decisions come from that the two models are sure."""
        (c_l, class_local), (c_g, class_global) = p_l.max(dim=1), p_g.max(dim=1)
        own = self.weight(c_l, c_g) if self.cdsc else torch.ones_like(c_l)
        # Where the local model is not sure the target is the global class alone.
        own = torch.where(by_local, own, torch.zeros_like(own))[:, None]
        count = p_l.shape[1]
        target = own * _one_hot(class_local, count, own)
        target = target + (1 - own) * _one_hot(class_global, count, own)
        mask = (by_local | by_global) if self.cpg else by_local
        score = torch.where(by_local, c_l, c_g)
        return PseudoLabels(target, mask, torch.ones_like(score), score)

    def weight(self, c_l: Tensor, c_g: Tensor) -> Tensor:
        """Of the local class beside the global one, lambda."""
        return torch.exp(-self.kappa * (c_l - c_g).abs())


# ---------------------------------------------------------------------------------- FlexMatch


@dataclass(frozen=True)
class FlexMatchRule(Rule):
    """FlexMatch (Zhang et al., 2021): a class that is learnt late needs less confidence.

    The state holds, for every unlabelled row, the class that once passed `tau`. A class's status
    is how many rows it has, beside the largest class or the rows that have none, whichever are
    more; its threshold is tau * status / (2 - status).
    sage: CPG and CDSC under these thresholds (SAGE, Table 4).
    """

    sage: bool = False

    name: ClassVar[str] = "flexmatch"

    @property
    def needs_global(self) -> bool:
        return self.sage

    def start(self, n_rows: int, n_classes: int, device: torch.device | str = "cpu") -> State:
        # Classes count from 1 here; 0 is a row that no label passed yet.
        return {"passed": torch.zeros(n_rows, dtype=torch.int64, device=device)}

    def __call__(self, p_l: Tensor, p_g: Tensor, rows: Tensor, state: State) -> PseudoLabels:
        count = p_l.shape[1]
        thresholds = self.tau * flexible_thresholds(state["passed"], count).to(p_l.dtype)
        c_l, class_local = p_l.max(dim=1)
        by_local = c_l > thresholds[class_local]
        before = state["passed"][rows]
        state["passed"][rows] = torch.where(c_l > self.tau, class_local + 1, before)
        if self.sage:
            c_g, class_global = p_g.max(dim=1)
            by_global = c_g > thresholds[class_global]
            return SageRule(self.tau).correct(p_l, p_g, by_local, by_global)
        target = _one_hot(class_local, count, p_l)
        return PseudoLabels(target, by_local, torch.ones_like(c_l), c_l)


def flexible_thresholds(passed: Tensor, n_classes: int) -> Tensor:
    """FlexMatch's factors on tau, from 0 to 1. **Shape** passed [n], 0 or class + 1; [C].

    >>> flexible_thresholds(torch.tensor([1, 1, 2, 0]), 2).tolist()
    [1.0, 0.3333333432674408]
    """
    counts = torch.zeros(n_classes + 1, device=passed.device)
    counts.scatter_add_(0, passed, torch.ones_like(passed, dtype=counts.dtype))
    status = counts[1:] / counts.amax().clamp_min(1.0)
    return status / (2.0 - status)


# ---------------------------------------------------------------------------------- FedLabel


@dataclass(frozen=True)
class FedLabelRule(Rule):
    """FedLabel (Cho et al., 2023): whichever model is more confident labels the row.

    Where both are sure and agree, the global model's whole distribution is a target too, with
    weight `consistency` beside the label.
    """

    consistency: float = 1.0

    name: ClassVar[str] = "fedlabel"

    def __call__(self, p_l: Tensor, p_g: Tensor, rows: Tensor, state: State) -> PseudoLabels:
        (c_l, class_local), (c_g, class_global) = p_l.max(dim=1), p_g.max(dim=1)
        by_local = c_l >= c_g
        label = torch.where(by_local, class_local, class_global)
        score = torch.where(by_local, c_l, c_g)
        both = (class_local == class_global) & (torch.minimum(c_l, c_g) > self.tau)
        extra = self.consistency * both.to(p_l.dtype)
        # Cross-entropy with two targets is one with their weighted mean, weighing 1 + extra.
        target = _one_hot(label, p_l.shape[1], p_l) + extra[:, None] * p_g
        target = target / (1 + extra[:, None])
        return PseudoLabels(target, score > self.tau, 1 + extra, score)


# ---------------------------------------------------------------------------------- FedDB


@dataclass(frozen=True)
class FedDBRule(Rule):
    """FedDB (Zhu et al., 2024): predictions freed from the client's label prior before labelling.

    The prior is estimated by the average prediction on unlabelled rows (APP-U), a running mean
    with `momentum`; p is replaced by p / prior, normalised. The labels are the global model's,
    as in FedDB's own code, where it labels all rows once a round.
    sage: both models' debiased predictions go through CPG and CDSC.
    """

    momentum: float = 0.5
    sage: bool = False

    name: ClassVar[str] = "feddb"
    tells: ClassVar[tuple[str, ...]] = ("prior",)

    def start(self, n_rows: int, n_classes: int, device: torch.device | str = "cpu") -> State:
        even = torch.full((n_classes,), 1.0 / n_classes, device=device)
        return {"prior": even, "global_prior": even.clone()}

    def __call__(self, p_l: Tensor, p_g: Tensor, rows: Tensor, state: State) -> PseudoLabels:
        for key, seen in (("prior", p_l), ("global_prior", p_g)):
            state[key].mul_(self.momentum).add_(seen.mean(0), alpha=1 - self.momentum)
        fair_g = debias(p_g, state["global_prior"])
        if self.sage:
            fair_l = debias(p_l, state["prior"])
            return SageRule(self.tau)(fair_l, fair_g, rows, {})
        return _hard(fair_g, self.tau)


def debias(probabilities: Tensor, prior: Tensor) -> Tensor:
    """Bayes' rule with an even prior in place of the given one. **Shape** [n, C], [C]; [n, C].

    >>> debias(torch.tensor([[0.8, 0.2]]), torch.tensor([0.8, 0.2])).tolist()
    [[0.5, 0.5]]
    """
    evidence = probabilities / prior.clamp_min(1e-6)
    return evidence / evidence.sum(1, keepdim=True)


# ---------------------------------------------------------------------------------- single parts


def helpers_agree(local: Tensor, helpers: Tensor, tau: float) -> PseudoLabels:
    """FedMatch's agreement-based label (Jeong et al., 2021, Eq. 2): the class most models name.

    Rows qualify where the local model is sure of its own class. Ties go to the class of which the
    models are surer together. **Shape** local [n, C]; helpers [H, n, C].
    """
    everybody = torch.cat([local[None], helpers])
    count = local.shape[1]
    votes = _one_hot(everybody.argmax(2), count, local).sum(0)
    # The mean probability is below 1, so that it decides ties and nothing else.
    label = (votes + everybody.mean(0) * (1 - 1e-6)).argmax(1)
    sure = local.amax(1)
    return PseudoLabels(_one_hot(label, count, local), sure > tau, torch.ones_like(sure), sure)


def by_entropy(probabilities: Tensor, most: float) -> PseudoLabels:
    """FedLoKe's teacher (Zhang et al., 2023): soft labels where the entropy is below `most`."""
    entropy = -(probabilities * (probabilities + 1e-8).log()).sum(1)
    ones = torch.ones_like(entropy)
    return PseudoLabels(probabilities, entropy < most, ones, -entropy)


def _hard(probabilities: Tensor, tau: float) -> PseudoLabels:
    sure, label = probabilities.max(dim=1)
    target = _one_hot(label, probabilities.shape[1], probabilities)
    return PseudoLabels(target, sure > tau, torch.ones_like(sure), sure)


def _one_hot(classes: Tensor, count: int, like: Tensor) -> Tensor:
    # torch's own one_hot looks at the values first, which waits for the accelerator.
    numbers = torch.arange(count, device=classes.device)
    return (classes[..., None] == numbers).to(like.dtype)
