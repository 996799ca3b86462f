"""Opinions from evidence: how much a classifier believes in each class, and how little it knows.

A head emits evidence e >= 0 for K classes; alpha = e + 1 are the parameters of a Dirichlet
distribution of strength S = sum alpha. The opinion is b = e / S and u = K / S with sum b + u = 1,
the probability p = alpha / S = b + u / K (RISA, §II-D). Opinions of several parties are fused:

    yager      b = b1 b2 + b1 u2 + b2 u1,  u = u1 u2 + C  (reduced Yager, Eq. 3: conflict is doubt)
    dempster   the same with conflict normalised away: b and u1 u2 over 1 - C
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

RULES = ("pool", "dempster", "yager")

# exp(±12): far beyond any evidence worth having, and squares of it are still floats.
_REACH = 12.0


class Opinion(NamedTuple):
    """**Shape**: belief [..., K], uncertainty [..., 1]; together they sum to one."""

    belief: Tensor
    uncertainty: Tensor


# ---------------------------------------------------------------------------------- opinions


def evidence(outputs: Tensor, activation: str = "softplus") -> Tensor:
    """A head's outputs as evidence >= 0: softplus (published) or exp."""
    if activation == "softplus":
        return F.softplus(outputs)
    return outputs.clamp(-_REACH, _REACH).exp()


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


def probability(given: Opinion) -> Tensor:
    """The mean of the Dirichlet distribution, alpha / S."""
    return given.belief + given.uncertainty / given.belief.shape[-1]


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
    if rule == "pool":
        return pool(opinions)
    if rule not in RULES:
        raise ConfigError(f"fusion must be one of {', '.join(RULES)}, got {rule!r}")
    return reduce(yager if rule == "yager" else dempster, opinions)


# ---------------------------------------------------------------------------------- loss


def loss(given: Opinion, targets: Tensor) -> Tensor:
    """log S - log alpha_y of each row (Eq. 6), against classes [n] or soft labels [n, K]."""
    classes = given.belief.shape[-1]
    wanted = targets if targets.is_floating_point() else F.one_hot(targets, classes)
    wanted = wanted.to(given.belief.dtype)
    p = probability(given).clamp_min(torch.finfo(wanted.dtype).tiny)
    return -(wanted * p.log()).sum(-1)


def summed_loss(outputs: Tensor, wanted: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """`loss` of the evidence exp(outputs), all rows added up by weight, and its slope.

    **Shape** outputs [..., n, K], wanted [n, K] (rows sum to one), weights [..., n].
    """
    held = outputs.clamp(-_REACH, _REACH)
    found = held.exp()
    alpha, weights = found + 1.0, weights[..., None]
    strength = alpha.sum(-1, keepdim=True)
    slope = (strength.reciprocal() - wanted / alpha) * found * weights
    lost = strength.log() - (wanted * alpha.log()).sum(-1, keepdim=True)
    return (lost * weights).sum(), slope * (held == outputs)
