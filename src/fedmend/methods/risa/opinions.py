"""Opinions from evidence: how much a classifier believes in each class, and how little it knows.

A head emits evidence e >= 0 for K classes; alpha = e + 1 are the parameters of a Dirichlet
distribution of strength S = sum alpha. The opinion is b = e / S and u = K / S with sum b + u = 1,
the probability p = alpha / S = b + u / K (RISA, §II-D). Opinions of several parties are fused:

    yager      b = b1 b2 + b1 u2 + b2 u1,  u = u1 u2 + C  (reduced Yager, Eq. 3: conflict is doubt)
    dempster   the same with conflict normalised away: b and u1 u2 over 1 - C
    average    the mean of b and of u
    pool       p is the product of every p to the power of its weight; conflict is doubt

with the conflict C = sum_{i != j} b1_i b2_j. Yager's rule depends on the order of parties from
three of them on, and is applied left to right; the others do not.

All functions are plain torch on tensors [..., K] and [..., 1], without division by anything that
can be zero, so that they are safe at u -> 0 and u -> 1, gradients included.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend.errors import ConfigError

__all__ = [
    "ACTIVATIONS",
    "LOSSES",
    "RULES",
    "Opinion",
    "average",
    "conflict",
    "dempster",
    "dirichlet",
    "discount",
    "evidence",
    "fuse",
    "kl_to_uniform",
    "loss",
    "opinion",
    "pool",
    "probability",
    "vacuous",
    "weighed",
    "yager",
]

ACTIVATIONS = ("softplus", "relu", "exp")
RULES = ("yager", "dempster", "average", "pool")
LOSSES = ("nll", "digamma", "mse")

# exp(±12): far beyond any evidence worth having, and squares of it are still floats.
_REACH = 12.0


class Opinion(NamedTuple):
    """**Shape**: belief [..., K], uncertainty [..., 1]; together they sum to one."""

    belief: Tensor
    uncertainty: Tensor


# ---------------------------------------------------------------------------------- opinions


def evidence(outputs: Tensor, activation: str = "softplus") -> Tensor:
    """A head's outputs as evidence >= 0."""
    if activation == "softplus":
        return F.softplus(outputs)
    if activation == "relu":
        return F.relu(outputs)
    if activation == "exp":
        return outputs.clamp(-_REACH, _REACH).exp()
    raise ConfigError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")


def opinion(found: Tensor) -> Opinion:
    """The opinion that evidence amounts to.

    >>> opinion(torch.tensor([6.0, 2.0]))
    Opinion(belief=tensor([0.6000, 0.2000]), uncertainty=tensor([0.2000]))
    """
    classes = found.shape[-1]
    strength = found.sum(-1, keepdim=True) + classes
    return Opinion(found / strength, classes / strength)


def weighed(scores: Tensor) -> Opinion:
    """The least that weights of evidence amount to: nothing speaks for the unlikeliest class.

    Scores that are all alike are vacuous; alpha / S is their softmax.

    >>> weighed(torch.tensor([1.0, 1.0]))
    Opinion(belief=tensor([0., 0.]), uncertainty=tensor([1.]))
    """
    above = (scores - scores.amin(-1, keepdim=True)).clamp_max(2 * _REACH)
    return opinion(above.expm1())


def vacuous(like: Tensor) -> Opinion:
    """Nothing believed, nothing known."""
    return Opinion(torch.zeros_like(like), torch.ones_like(like[..., :1]))


def probability(given: Opinion) -> Tensor:
    """The mean of the Dirichlet distribution, alpha / S."""
    return given.belief + given.uncertainty / given.belief.shape[-1]


def dirichlet(given: Opinion) -> Tensor:
    """alpha = b S + 1 with S = K / u (Eq. 5)."""
    floor = torch.finfo(given.uncertainty.dtype).tiny
    strength = given.belief.shape[-1] / given.uncertainty.clamp_min(floor * 1e6)
    return given.belief * strength + 1.0


def discount(given: Opinion, trust: Tensor | float) -> Opinion:
    """Shafer's discount: believe a source only as far as it is trusted, from 0 to 1."""
    belief = given.belief * trust
    return Opinion(belief, 1.0 - trust * (1.0 - given.uncertainty))


# ---------------------------------------------------------------------------------- fusing


def conflict(one: Opinion, other: Opinion) -> Tensor:
    """C: the mass of pairs of beliefs that contradict each other. **Shape** [..., 1]."""
    both = one.belief.sum(-1, keepdim=True) * other.belief.sum(-1, keepdim=True)
    return (both - (one.belief * other.belief).sum(-1, keepdim=True)).clamp_min(0.0)


def _agreed(one: Opinion, other: Opinion) -> Tensor:
    return (
        one.belief * other.belief + one.belief * other.uncertainty + other.belief * one.uncertainty
    )


def yager(one: Opinion, other: Opinion) -> Opinion:
    """Reduced Yager (Eq. 3): what contradicts itself becomes uncertainty."""
    belief = _agreed(one, other)
    return Opinion(belief, one.uncertainty * other.uncertainty + conflict(one, other))


def dempster(one: Opinion, other: Opinion) -> Opinion:
    """Dempster's rule: plausibilities b + u multiply, conflict is left out.

    Two sources that are certain of different classes leave nothing; that counts as not knowing.
    """
    belief = _agreed(one, other)
    ignorance = one.uncertainty * other.uncertainty
    mass = belief.sum(-1, keepdim=True) + ignorance
    nothing = mass <= torch.finfo(mass.dtype).tiny * 1e6
    safe = torch.where(nothing, torch.ones_like(mass), mass)
    return Opinion(
        torch.where(nothing, torch.zeros_like(belief), belief / safe),
        torch.where(nothing, torch.ones_like(ignorance), ignorance / safe),
    )


def average(opinions: Sequence[Opinion]) -> Opinion:
    """The mean opinion."""
    count = len(opinions)
    return Opinion(
        sum((each.belief for each in opinions[1:]), opinions[0].belief) / count,
        sum((each.uncertainty for each in opinions[1:]), opinions[0].uncertainty) / count,
    )


def pool(
    opinions: Sequence[Opinion],
    weights: Sequence[float] | None = None,
    bias: Tensor | None = None,
) -> Opinion:
    """Logarithmic pool: log p adds up by weight. Without weights the geometric mean.

    Discounting works on log-odds, so it leaves the order of rows alone; a vacuous opinion changes
    nothing. What is unknown or contradicts itself is uncertain, as in Yager's rule taken once
    over all opinions, whatever their order; beyond K times the least probability it cannot be, as
    beliefs are not negative.
    """
    if weights is None:
        weights = [1.0 / len(opinions)] * len(opinions)
    first, classes = opinions[0], opinions[0].belief.shape[-1]
    tiny = torch.finfo(first.belief.dtype).tiny * 1e6
    total = torch.zeros_like(first.belief) if bias is None else bias.expand_as(first.belief)
    plausible, unknown = torch.ones_like(first.belief), torch.ones_like(first.uncertainty)
    for given, weight in zip(opinions, weights, strict=True):
        total = total + weight * probability(given).clamp_min(tiny).log()
        heard = discount(given, min(1.0, weight))
        plausible = plausible * (heard.belief + heard.uncertainty)
        unknown = unknown * heard.uncertainty
    p = total.softmax(-1)
    doubt = 1.0 - (plausible - unknown).sum(-1, keepdim=True)
    least = classes * p.amin(-1, keepdim=True)
    uncertainty = torch.minimum(doubt.clamp_min(tiny), least)
    return Opinion(p - uncertainty / classes, uncertainty)


def fuse(opinions: Sequence[Opinion], rule: str = "yager") -> Opinion:
    """All opinions in one, left to right (Eq. 4)."""
    if not opinions:
        raise ConfigError("there is no opinion to fuse. Mend: give at least one")
    if rule == "average":
        return average(opinions)
    if rule == "pool":
        return pool(opinions)
    if rule not in RULES:
        raise ConfigError(f"fusion must be one of {', '.join(RULES)}, got {rule!r}")
    return reduce(yager if rule == "yager" else dempster, opinions)


# ---------------------------------------------------------------------------------- losses


def loss(given: Opinion, targets: Tensor, kind: str = "nll") -> Tensor:
    """The loss of each row, against classes [n] or soft labels [n, K]. **Shape** [n].

    nll: log S - log alpha_y (Eq. 6). digamma: the expected cross-entropy under the Dirichlet
    distribution. mse: the expected squared error.
    """
    classes = given.belief.shape[-1]
    wanted = targets if targets.is_floating_point() else F.one_hot(targets, classes)
    wanted = wanted.to(given.belief.dtype)
    if kind == "nll":
        p = probability(given).clamp_min(torch.finfo(wanted.dtype).tiny)
        return -(wanted * p.log()).sum(-1)
    if kind not in LOSSES:
        raise ConfigError(f"loss must be one of {', '.join(LOSSES)}, got {kind!r}")
    alpha = dirichlet(given)
    strength = alpha.sum(-1, keepdim=True)
    if kind == "digamma":
        return (wanted * (strength.digamma() - alpha.digamma())).sum(-1)
    p = alpha / strength
    return ((wanted - p) ** 2 + p * (1.0 - p) / (strength + 1.0)).sum(-1)


def kl_to_uniform(given: Opinion, targets: Tensor) -> Tensor:
    """How far the evidence for *wrong* classes is from none at all. **Shape** [n].

    KL(Dir(alpha~) || Dir(1)) with alpha~ = y + (1 - y) alpha, as Sensoy et al. add it to the loss.
    """
    classes = given.belief.shape[-1]
    wanted = targets if targets.is_floating_point() else F.one_hot(targets, classes)
    wanted = wanted.to(given.belief.dtype)
    alpha = wanted + (1.0 - wanted) * dirichlet(given)
    strength = alpha.sum(-1, keepdim=True)
    constant = torch.lgamma(torch.tensor(float(classes), dtype=alpha.dtype, device=alpha.device))
    spread = (alpha - 1.0) * (alpha.digamma() - strength.digamma())
    return strength.lgamma().squeeze(-1) - constant - alpha.lgamma().sum(-1) + spread.sum(-1)
