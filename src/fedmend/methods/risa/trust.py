"""How far each source of an opinion is trusted, learnt from held-out overlapping rows.

Sources are the parties' heads, the joint head, and what columns add up to; rows known to all and
rows of each party are told apart. Opinions that are fused by Dempster's or Yager's rule get a
temperature and a trust, Shafer's discount (`fit_sources`). In a logarithmic pool trust is the power
to which a source's probabilities are taken (`fit_pool`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedmend.methods.risa import opinions as ev
from fedmend.methods.risa.network import JOINT, Objective
from fedmend.split.labels import label_loss
from fedmend.split.scaling import least, validated

COLUMNS = " columns"
"""Behind a party's name: the source that its additive evidence is."""

FEW = 150
"""So many held-out rows can tell more than one number."""
# logit(trust) starts, and is held, here: a source is trusted unless it proves otherwise.
_TRUSTED = 3.0
# How far the power of a source in a pool may be from where it is held, in rows' worth of evidence.
_HELD = 0.25


def subsets(names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The kinds of rows there are: known to all, or to one party."""
    return [("aligned", tuple(names)), *((name, (name,)) for name in names)]


@dataclass(frozen=True)
class Trusted:
    """What held-out rows of one kind say of the sources: numbers by source.

    centre: mean outputs, towards which a temperature above 1 draws: to what is usual, not to all
    classes alike. bias: of a pool, what is added to log p. losses: of every choice there was.
    """

    temperature: dict[str, float]
    trust: dict[str, float]
    losses: dict[str, float]
    centre: dict[str, list[float]] = field(default_factory=dict)
    bias: list[float] = field(default_factory=list)


@dataclass
class Calibration:
    """What was fitted, by kind of row; sources of a kind that is not named are trusted alike."""

    kinds: dict[str, Trusted] = field(default_factory=dict)

    def fuse(self, how: Objective, kind: str, outputs: Mapping[str, Tensor]) -> ev.Opinion:
        """The opinion on rows of one kind, from each source's outputs."""
        found = self.kinds.get(kind)
        if found is None:
            return ev.fuse([how.opinion(values) for values in outputs.values()], how.fusion)
        if how.fusion == "pool":
            opinions = [_source_opinion(how, name, values) for name, values in outputs.items()]
            powers = [found.trust.get(name, 0.0) for name in outputs]
            return ev.pool(opinions, powers, opinions[0].belief.new_tensor(found.bias))
        opinions = []
        for source, values in outputs.items():
            temperature = found.temperature.get(source, 1.0)
            centre = values.new_tensor(found.centre.get(source, [0.0]))
            drawn = values + (temperature - 1.0) * centre
            trust = found.trust.get(source, 1.0)
            opinions.append(ev.discount(how.opinion(drawn, temperature), trust))
        return ev.fuse(opinions, how.fusion)

    def to_wire(self) -> dict[str, Any]:
        return {kind: asdict(found) for kind, found in self.kinds.items()}

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> Calibration:
        return cls({kind: Trusted(**found) for kind, found in saved.items()})


def _source_opinion(how: Objective, source: str, outputs: Tensor) -> ev.Opinion:
    """What a source's outputs amount to: evidence of a head, or weights of evidence."""
    return ev.weighed(outputs) if source.endswith(COLUMNS) else how.opinion(outputs)


# ---------------------------------------------------------------------------------- discounts


def fit_sources(
    how: Objective,
    outputs: Mapping[str, Tensor],
    targets: Tensor,
    *,
    anchor: str | None = None,
    alike: bool = False,
    folds: int = 3,
) -> Trusted:
    """Temperature and trust of each source that make the fused probability most likely.

    Chosen is between all sources, the joint head, and the `anchor` (the party whose opinion must
    not get worse by adding others'), by cross-validated log loss: the others' trust is then zero.
    Few rows can tell one number, not two for each source: with fewer than `FEW` all sources of a
    choice share one temperature and nothing else is fitted. Who is heard is then known beforehand:
    where the parties have one head for all (`alike`) none is better than another, and all are;
    elsewhere the joint head, which has seen all sides.
    """
    stacked = {name: values.double() for name, values in outputs.items()}
    choices = {"all": list(stacked)}
    for name in (JOINT, anchor):
        if name in stacked and len(stacked) > 1:
            choices[str(name)] = [str(name)]
    if len(targets) < FEW and len(choices) == 3:
        del choices[JOINT if alike else "all"]
    found: dict[str, float] = {}
    chosen = "all" if "all" in choices else str(anchor)
    if len(choices) > 1 and len(targets) >= 2 * folds:
        for choice, names in choices.items():

            def lost(out: Tensor, test: Tensor, names: list[str] = names) -> Tensor:
                theta = _fit(how, {n: stacked[n][out] for n in names}, targets[out])
                return _fused_loss(how, {n: stacked[n][test] for n in names}, targets[test], theta)

            found[choice] = float(validated(len(targets), folds, lost).mean())
        chosen = min(found, key=lambda choice: found[choice])
    used = choices[chosen]
    theta = _fit(how, {name: stacked[name] for name in used}, targets)
    temperature, trust = dict.fromkeys(stacked, 1.0), dict.fromkeys(stacked, 0.0)
    for index, name in enumerate(used):
        temperature[name] = float(theta[index, 0].exp())
        trust[name] = float(theta[index, 1].sigmoid())
    centre = {name: values.mean(0).tolist() for name, values in stacked.items()}
    return Trusted(temperature, trust, found, centre)


def _fused_loss(
    how: Objective, outputs: Mapping[str, Tensor], targets: Tensor, theta: Tensor
) -> Tensor:
    opinions = []
    for (log_temperature, logit), values in zip(theta, outputs.values(), strict=True):
        temperature = log_temperature.exp()
        drawn = (values + (temperature - 1.0) * values.mean(0)) / temperature
        opinions.append(ev.discount(how.opinion_of(drawn), logit.sigmoid()))
    p = ev.probability(ev.fuse(opinions, how.fusion))
    return label_loss(p.clamp_min(torch.finfo(p.dtype).tiny).log(), targets)


def _fit(how: Objective, outputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """log temperature and logit of trust by source [sources, 2], held at none and much trust."""
    start = torch.tensor([[0.0, _TRUSTED]], dtype=torch.float64).repeat(len(outputs), 1)
    held = torch.tensor([1.0, 4.0], dtype=torch.float64)
    few = len(targets) < FEW
    one_temperature = torch.tensor([[1.0, 0.0]], dtype=torch.float64)

    def theta(moved: Tensor) -> Tensor:
        return start + (moved * one_temperature if few else moved)

    def value(moved: Tensor) -> Tensor:
        prior = 0.5 * (moved**2 / held[: moved.shape[1]]).sum()
        lost = _fused_loss(how, outputs, targets, theta(moved)).sum()
        return (lost + prior) / max(1, len(targets))

    return theta(least(value, torch.zeros_like(start[:1, :1] if few else start)))


# ---------------------------------------------------------------------------------- pools


def fit_pool(
    how: Objective,
    outputs: Mapping[str, Tensor],
    targets: Tensor,
    *,
    held: Mapping[str, float],
    anchor: str | None = None,
    folds: int = 5,
) -> Trusted:
    """Powers of a logarithmic pool, and a constant, that make the rows most likely.

    held: where each source's power is held unless rows say otherwise. anchor: who stands alone
    where the pool of all does worse in cross-validation, by more than its standard error.
    """
    logs = {
        name: ev.probability(_source_opinion(how, name, values.double())).clamp_min(1e-12).log()
        for name, values in outputs.items()
    }
    stacked = torch.stack(list(logs.values()), 1)
    start = torch.tensor([held.get(name, 0.0) for name in logs], dtype=torch.float64)

    def pooled(rows: Tensor, powers: Tensor, bias: Tensor | float) -> Tensor:
        return label_loss((stacked[rows] * powers[:, None]).sum(1) + bias, targets[rows])

    def fit(rows: Tensor) -> tuple[Tensor, Tensor]:
        some, known, sources = stacked[rows].numpy(), targets[rows].numpy(), len(start)
        # Of each source what it says of all rows and classes, one after the other.
        said = np.ascontiguousarray(some.transpose(1, 0, 2)).reshape(sources, -1)
        held_at = np.concatenate([start.numpy(), np.zeros(some.shape[2])])
        width = np.concatenate([np.full(sources, _HELD), np.ones(some.shape[2])])

        def value(theta: np.ndarray) -> tuple[float, np.ndarray]:
            scores = (theta[:sources] @ said).reshape(len(some), -1) + theta[sources:]
            lost, slope = loss_and_slope(scores, known)
            moved = (theta - held_at) / width
            by = np.concatenate([said @ slope.ravel(), slope.sum(0)])
            return lost + 0.5 * float(moved @ moved), by + moved / width

        bounds = [(0.0, None)] * sources + [(None, None)] * some.shape[2]
        options = {"ftol": 1e-13, "gtol": 1e-6 * len(some)}
        found = minimize(
            value, held_at, jac=True, method="L-BFGS-B", bounds=bounds, options=options
        )
        theta = torch.from_numpy(np.asarray(found.x))
        return theta[:sources], theta[sources:]

    everything = torch.ones(len(targets), dtype=torch.bool)
    powers, bias = fit(everything)
    trust = dict(zip(logs, powers.tolist(), strict=True))
    losses: dict[str, float] = {}
    if anchor in logs and len(logs) > 1:
        alone = label_loss(logs[str(anchor)], targets)
        if len(targets) < 2 * folds:
            together = pooled(everything, start, 0.0)
        else:
            together = validated(len(targets), folds, lambda out, test: pooled(test, *fit(out)))
        losses = {str(anchor): float(alone.mean()), "all": float(together.mean())}
        # Few rows tell little: others are heard unless they do harm beyond the error of the mean.
        harm = together - alone
        if float(harm.mean()) > float(harm.std()) / len(harm) ** 0.5:
            trust = {name: float(name == anchor) for name in logs}
            bias = torch.zeros_like(bias)
    return Trusted(dict.fromkeys(logs, 1.0), trust, losses, bias=bias.tolist())


def loss_and_slope(scores: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """`label_loss` of all rows together, and its slope by the scores. **Shape** [n, K] twice.

    Written down, as tracing it takes ten times as long on a few hundred rows.
    """
    logs = scores - scores.max(1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))
    slope = np.exp(logs)
    if targets.ndim == 1:
        rows = np.arange(len(targets))
        lost = -logs[rows, targets].sum()
        slope[rows, targets] -= 1.0
    else:
        told = slope * targets
        total = told.sum(1, keepdims=True)
        lost = -np.log(total).sum()
        slope -= told / total
    return float(lost), slope
