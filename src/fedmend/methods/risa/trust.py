"""How far each source of an opinion is trusted, learnt from held-out overlapping rows.

Every source (a party's head, the joint head) gets a temperature and a trust, Shafer's discount,
separately for rows known to all and for rows of each party. In a logarithmic pool (`fit_pool`)
trust is the power to which a source's probabilities are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedmend.methods.risa import opinions as ev
from fedmend.methods.risa.heads import JOINT, Objective
from fedmend.split.belief import label_loss

__all__ = [
    "COLUMNS",
    "Calibration",
    "Trusted",
    "fit_pool",
    "fit_sources",
    "minimise",
    "subsets",
]

COLUMNS = " columns"
"""Behind a party's name: the source that its additive evidence is."""


def subsets(names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The kinds of rows there are: known to all, or to one party."""
    return [("aligned", tuple(names)), *((name, (name,)) for name in names)]


@dataclass
class Calibration:
    """Temperature and trust of every source, by kind of row.

    temperature, trust: kind of row -> source -> value. A source that is not named has 1 and 1.
    centre: its mean outputs, towards which a temperature above 1 draws: to what is usual, not to
    all classes alike. bias: of a pool, by kind of row what is added to log p.
    """

    temperature: dict[str, dict[str, float]] = field(default_factory=dict)
    trust: dict[str, dict[str, float]] = field(default_factory=dict)
    centre: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    bias: dict[str, list[float]] = field(default_factory=dict)

    def fuse(self, how: Objective, kind: str, outputs: Mapping[str, Tensor]) -> ev.Opinion:
        """The opinion on rows of one kind, from each source's outputs."""
        if how.fusion == "pool" and kind in self.trust:
            return self._pooled(how, kind, outputs)
        opinions = []
        for source, values in outputs.items():
            temperature = self.temperature.get(kind, {}).get(source, 1.0)
            trust = self.trust.get(kind, {}).get(source, 1.0)
            centre = values.new_tensor(self.centre.get(kind, {}).get(source, [0.0]))
            drawn = values + (temperature - 1.0) * centre
            opinions.append(ev.discount(how.opinion(drawn, temperature), trust))
        return ev.fuse(opinions, how.fusion)

    def _pooled(self, how: Objective, kind: str, outputs: Mapping[str, Tensor]) -> ev.Opinion:
        opinions = [source_opinion(how, name, values) for name, values in outputs.items()]
        powers = [self.trust[kind].get(name, 0.0) for name in outputs]
        return ev.pool(opinions, powers, opinions[0].belief.new_tensor(self.bias[kind]))

    def take(self, kind: str, found: Trusted) -> None:
        """What held-out rows say of the sources on rows of one kind."""
        self.temperature[kind] = found.temperature
        self.centre[kind] = found.centre
        self.trust[kind] = found.trust
        if found.bias:
            self.bias[kind] = found.bias

    def to_wire(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "trust": self.trust,
            "centre": self.centre,
            "bias": self.bias,
        }

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> Calibration:
        return cls(
            {key: dict(value) for key, value in saved["temperature"].items()},
            {key: dict(value) for key, value in saved["trust"].items()},
            {key: dict(value) for key, value in saved["centre"].items()},
            dict(saved["bias"]),
        )


def source_opinion(how: Objective, source: str, outputs: Tensor) -> ev.Opinion:
    """What a source's outputs amount to: evidence of a head, or weights of evidence."""
    return ev.weighed(outputs) if source.endswith(COLUMNS) else how.opinion(outputs)


@dataclass(frozen=True)
class Trusted:
    """What held-out rows say of the sources: temperature, trust, centre, every choice's loss."""

    temperature: dict[str, float]
    trust: dict[str, float]
    losses: dict[str, float]
    centre: dict[str, list[float]]
    bias: list[float] = field(default_factory=list)


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
    outputs = {name: values.double() for name, values in outputs.items()}
    choices = {"all": list(outputs)}
    for name in (JOINT, anchor):
        if name in outputs and len(outputs) > 1:
            choices[str(name)] = [str(name)]
    if len(targets) < FEW and len(choices) == 3:
        del choices[JOINT if alike else "all"]
    found: dict[str, float] = {}
    chosen = "all" if "all" in choices else str(anchor)
    if len(choices) > 1 and len(targets) >= 2 * folds:
        for choice, names in choices.items():
            some = {name: outputs[name] for name in names}
            found[choice] = _cross_validated(how, some, targets, folds)
        chosen = min(found, key=lambda choice: found[choice])
    used = choices[chosen]
    theta = _fit(how, {name: outputs[name] for name in used}, targets)
    temperature, trust = dict.fromkeys(outputs, 1.0), dict.fromkeys(outputs, 0.0)
    for index, name in enumerate(used):
        temperature[name] = float(theta[index, 0].exp())
        trust[name] = float(theta[index, 1].sigmoid())
    centre = {name: values.mean(0).tolist() for name, values in outputs.items()}
    return Trusted(temperature, trust, found, centre)


# logit(trust) starts, and is held, here: a source is trusted unless it proves otherwise.
_TRUSTED = 3.0
FEW = 150


def _fused_loss(
    how: Objective, outputs: Mapping[str, Tensor], targets: Tensor, theta: Tensor
) -> Tensor:
    opinions = [
        ev.discount(_double_opinion(how, values, theta[index, 0].exp()), theta[index, 1].sigmoid())
        for index, values in enumerate(outputs.values())
    ]
    fused = ev.fuse(opinions, how.fusion)
    if not targets.is_floating_point():
        return ev.loss(fused, targets)
    p = ev.probability(fused)
    return label_loss(p.clamp_min(torch.finfo(p.dtype).tiny).log(), targets)


def _double_opinion(how: Objective, outputs: Tensor, temperature: Tensor) -> ev.Opinion:
    return how.opinion_of((outputs + (temperature - 1.0) * outputs.mean(0)) / temperature)


def _fit(how: Objective, outputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    start = torch.tensor([[0.0, _TRUSTED]], dtype=torch.float64).repeat(len(outputs), 1)
    held = torch.tensor([1.0, 4.0], dtype=torch.float64)
    if len(targets) < FEW:
        fixed = torch.tensor([[1.0, 0.0]], dtype=torch.float64)

        def shared(log: Tensor) -> Tensor:
            losses = _fused_loss(how, outputs, targets, start + log * fixed)
            return (losses.sum() + 0.5 * (log**2).sum()) / max(1, len(targets))

        return start + minimise(shared, torch.zeros((1, 1), dtype=torch.float64)) * fixed

    def value(theta: Tensor) -> Tensor:
        prior = 0.5 * ((theta - start) ** 2 / held).sum()
        return (_fused_loss(how, outputs, targets, theta).sum() + prior) / max(1, len(targets))

    return minimise(value, start)


def minimise(function: Callable[[Tensor], Tensor], start: Tensor, steps: int = 20) -> Tensor:
    """BFGS with backtracking, for a handful of numbers.

    torch.optim's L-BFGS would do, but importing torch.optim takes seconds.
    """

    def at(point: Tensor) -> tuple[Tensor, Tensor]:
        leaf = point.clone().requires_grad_()
        found = function(leaf)
        (slope,) = torch.autograd.grad(found, leaf)
        return found.detach(), slope.flatten()

    point, inverse = start.clone(), torch.eye(start.numel(), dtype=start.dtype)
    found, slope = at(point)
    for _ in range(steps):
        way = -(inverse @ slope)
        if slope @ way >= 0:
            inverse = torch.eye(start.numel(), dtype=start.dtype)
            way = -slope
        length = 1.0 / max(1.0, float(way.abs().max()))
        while True:
            there = point + length * way.view_as(point)
            new, new_slope = at(there)
            if new <= found + 1e-4 * length * (slope @ way) or length < 1e-3:
                break
            length /= 2
        if not new < found:
            break
        move, change = length * way, new_slope - slope
        if (curve := float(move @ change)) > 1e-12:
            left = torch.eye(len(move), dtype=start.dtype) - torch.outer(move, change) / curve
            inverse = left @ inverse @ left.T + torch.outer(move, move) / curve
        gained = float(found - new)
        point, found, slope = there, new, new_slope
        if gained < 1e-6:
            break
    return point


def _cross_validated(
    how: Objective, outputs: Mapping[str, Tensor], targets: Tensor, folds: int
) -> float:
    """The mean loss of rows under numbers fitted on the other folds."""
    number = torch.arange(len(targets)) % folds
    losses = torch.zeros(len(targets), dtype=torch.float64)
    for fold in range(folds):
        out, test = number != fold, number == fold
        theta = _fit(how, {k: v[out] for k, v in outputs.items()}, targets[out])
        some = {k: v[test] for k, v in outputs.items()}
        losses[test] = _fused_loss(how, some, targets[test], theta)
    return float(losses.mean())


# ---------------------------------------------------------------------------------- pools

# How far the power of a source may be from where it is held, in rows' worth of evidence.
_HELD = 0.25


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
        name: ev.probability(source_opinion(how, name, values.double())).clamp_min(1e-12).log()
        for name, values in outputs.items()
    }
    stacked = torch.stack(list(logs.values()), 1)
    start = torch.tensor([held.get(name, 0.0) for name in logs], dtype=torch.float64)
    losses: dict[str, float] = {}
    if anchor in logs and len(logs) > 1:
        alone = label_loss(logs[str(anchor)], targets)
        together = _pool_validated(stacked, targets, start, folds)
        losses = {str(anchor): float(alone.mean()), "all": float(together.mean())}
    powers, bias = _pooled(stacked, targets, start)
    trust = dict(zip(logs, powers.tolist(), strict=True))
    if losses:
        # Few rows tell little: others are heard unless they do harm beyond the error of the mean.
        harm = together - alone
        if float(harm.mean()) > float(harm.std()) / len(harm) ** 0.5:
            trust = {name: float(name == anchor) for name in logs}
            bias = torch.zeros_like(bias)
    ones = dict.fromkeys(logs, 1.0)
    return Trusted(ones, trust, losses, {}, bias.tolist())


def _pooled(stacked: Tensor, targets: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Powers [sources] and a constant [classes] of the pool of `stacked` [n, sources, classes]."""
    sources, classes = stacked.shape[1:]

    def value(theta: Tensor) -> Tensor:
        powers, bias = theta[:sources].clamp_min(0.0), theta[sources:]
        found = (stacked * powers[:, None]).sum(1) + bias
        lost = label_loss(found, targets).sum()
        moved = (theta[:sources] - start) / _HELD
        return (lost + 0.5 * (moved**2).sum() + 0.5 * (bias**2).sum()) / len(targets)

    begin = torch.cat([start + 0.02, torch.zeros(classes, dtype=torch.float64)])
    theta = minimise(value, begin, steps=50)
    return theta[:sources].clamp_min(0.0), theta[sources:]


def _pool_validated(stacked: Tensor, targets: Tensor, start: Tensor, folds: int) -> Tensor:
    """The loss of each row under powers fitted on the other folds; of few rows, as they start."""
    if len(targets) < 2 * folds:
        return label_loss((stacked * start[:, None]).sum(1), targets)
    number = torch.arange(len(targets)) % folds
    losses = torch.zeros(len(targets), dtype=torch.float64)
    for fold in range(folds):
        rest = number == fold
        powers, bias = _pooled(stacked[~rest], targets[~rest], start)
        found = (stacked[rest] * powers[:, None]).sum(1) + bias
        losses[rest] = label_loss(found, targets[rest])
    return losses
