"""A top that forms opinions: one head per party, a joint head, and how they become one.

Sources of an opinion on a row are the parties that know it (each by a head of its own over its
embedding) and the joint head over all embeddings, in which stand-ins take the place of absent
parties. `Objective` says how opinions are formed, fused and trained; `Calibration` how far each
source is trusted once the training is over. Plain torch: no parties, no calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedmend.errors import ConfigError
from fedmend.learn import evidence as ev
from fedmend.learn.nets import mlp

__all__ = ["JOINT", "Calibration", "EvidenceTop", "EvidenceTopSpec", "Objective", "subsets"]

JOINT = "joint"


@dataclass(frozen=True)
class EvidenceTopSpec:
    """Heads over embeddings of the given widths (party order), with `out` classes."""

    widths: tuple[int, ...]
    hidden: tuple[int, ...] = (64,)
    out: int = 2
    dropout: float = 0.0
    heads: bool = True
    joint: bool = True

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EvidenceTopSpec:
        lists = {key: tuple(values[key]) for key in ("widths", "hidden")}
        return cls(**{**values, **lists})


class EvidenceTop(nn.Module):
    """Outputs of every head, before they become evidence."""

    def __init__(self, spec: EvidenceTopSpec) -> None:
        super().__init__()
        self.spec = spec
        widths = spec.widths if spec.heads else ()
        self.heads = nn.ModuleList(mlp(w, spec.hidden, spec.out, spec.dropout) for w in widths)
        self.joint = (
            mlp(sum(spec.widths), spec.hidden, spec.out, spec.dropout) if spec.joint else None
        )

    def head(self, party: int, embedding: Tensor) -> Tensor:
        return self.heads[party](self._ready(embedding)).float()

    def together(self, embeddings: Sequence[Tensor]) -> Tensor:
        assert self.joint is not None
        return self.joint(self._ready(torch.cat(tuple(embeddings), 1))).float()

    def _ready(self, embedding: Tensor) -> Tensor:
        return torch.relu(embedding) if self.spec.hidden else embedding


# ---------------------------------------------------------------------------------- objective


@dataclass(frozen=True)
class Objective:
    """What is trained.

    activation: of evidence, or "softmax" for plain probabilities (self-training as published).
    fused, party, joint: weights of the loss of the fused opinion, of every party's own, and of
    the joint head's. imputed: stand-ins of absent parties have opinions too, as published.
    view_dropout: the joint head also learns overlapping rows with sides taken away.
    kl: weight of `evidence.kl_to_uniform`, grown to over `kl_epochs` epochs.
    consistency: rows without a label train too: where a weak view of one is at least so sure of a
    class, a strong view must say the same (FixMatch); 0 is off.
    """

    fusion: str = "yager"
    activation: str = "softplus"
    loss: str = "nll"
    fused: float = 1.0
    party: float = 0.0
    joint: float = 0.0
    imputed: bool = True
    view_dropout: bool = False
    smoothing: float = 0.0
    kl: float = 0.0
    kl_epochs: int = 10
    consistency: float = 0.0

    def __post_init__(self) -> None:
        problems = []
        if self.fusion not in ev.RULES:
            problems.append(
                f"fusion must be one of {', '.join(ev.RULES)}, however: {self.fusion!r}"
            )
        if self.activation not in (*ev.ACTIVATIONS, "softmax"):
            problems.append(
                f"activation must be one of {', '.join(ev.ACTIVATIONS)}, "
                f"however: {self.activation!r}"
            )
        if self.loss not in ev.LOSSES:
            problems.append(f"loss must be one of {', '.join(ev.LOSSES)}, however: {self.loss!r}")
        for name in ("fused", "party", "joint", "kl"):
            if getattr(self, name) < 0:
                problems.append(f"{name} must not be negative, however: {getattr(self, name)}")
        if not 0 <= self.smoothing < 1:
            problems.append(f"smoothing must be in [0, 1), however: {self.smoothing}")
        if problems:
            raise ConfigError(problems)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Objective:
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def opinion(self, outputs: Tensor, temperature: Tensor | float = 1.0) -> ev.Opinion:
        scaled = outputs.float() / temperature
        if self.activation == "softmax":
            belief = scaled.softmax(-1)
            return ev.Opinion(belief, torch.zeros_like(belief[..., :1]))
        return ev.opinion(ev.evidence(scaled, self.activation))

    def rows_loss(self, given: ev.Opinion, targets: Tensor, epoch: int) -> Tensor:
        """The loss of each row. **Shape** [n]."""
        if self.smoothing and not targets.is_floating_point():
            classes = given.belief.shape[-1]
            hard = nn.functional.one_hot(targets, classes).to(given.belief.dtype)
            targets = hard * (1 - self.smoothing) + self.smoothing / classes
        found = ev.loss(given, targets, self.loss)
        if self.kl:
            weight = self.kl * min(1.0, epoch / max(1, self.kl_epochs))
            found = found + weight * ev.kl_to_uniform(given, targets)
        return found


def weighted(losses: Tensor, weights: Tensor) -> Tensor:
    """The mean loss, rows counted by their weight; zero where no row counts."""
    return (losses * weights).sum() / weights.sum().clamp_min(1e-6)


def total_loss(
    top: EvidenceTop,
    how: Objective,
    sides: Sequence[Tensor],
    stand_ins: Sequence[Tensor],
    present: Sequence[Tensor],
    overlapping: int,
    targets: Tensor,
    weights: Tensor,
    epoch: int,
) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and each row's fused opinion as [n, K + 1] without gradient.

    sides: every party's embeddings of all n rows, stand-ins included; stand_ins: the embedding of
    each party's mean row [d]; present: per party the rows of the batch it knows, as bool [n].
    The first `overlapping` rows of the batch are known to all.
    """
    total = sides[0].new_zeros(())
    opinions: list[ev.Opinion] = []
    for party in range(len(sides) if top.spec.heads else 0):
        known = present[party]
        given = how.opinion(top.head(party, sides[party]))
        if how.party:
            losses = how.rows_loss(given, targets, epoch)
            total = total + how.party * weighted(losses, weights * known)
        if not how.imputed:
            given = ev.discount(given, known[:, None].to(given.belief.dtype))
        opinions.append(given)
    if top.joint is not None:
        given = how.opinion(top.together(sides))
        losses, counts = how.rows_loss(given, targets, epoch), weights
        if how.view_dropout and overlapping and len(sides) > 1:
            torn = _torn(sides, stand_ins, overlapping)
            again = how.opinion(top.together(torn))
            copies = len(torn[0]) // overlapping
            wanted = targets[:overlapping].repeat(copies, *[1] * (targets.ndim - 1))
            losses = torch.cat([losses, how.rows_loss(again, wanted, epoch)])
            counts = torch.cat([counts, weights[:overlapping].repeat(copies)])
        if how.joint:
            total = total + how.joint * weighted(losses, counts)
        opinions.append(given)
    fused = ev.fuse(opinions, how.fusion)
    if how.fused:
        total = total + how.fused * weighted(how.rows_loss(fused, targets, epoch), weights)
    return total, torch.cat([fused.belief, fused.uncertainty], -1).detach()


def consistency_loss(
    top: EvidenceTop,
    how: Objective,
    party: int,
    embedding: Tensor,
    labelled: int,
    unlabelled: int,
    targets: Tensor,
) -> Tensor:
    """A party's own head on labelled rows, then on weak and strong views of unlabelled ones.

    embedding: labelled rows, weak views, strong views, and last the mean row.
    """
    outputs = top.head(party, embedding[:-1])
    given = how.opinion(outputs[:labelled])
    total = how.rows_loss(given, targets[:labelled], 0).mean()
    if not unlabelled:
        return total
    weak = ev.probability(how.opinion(outputs[labelled : labelled + unlabelled].detach()))
    sure, likeliest = weak.max(1)
    strong = how.opinion(outputs[labelled + unlabelled :])
    losses = how.rows_loss(strong, likeliest, 0)
    return total + (losses * (sure >= how.consistency)).mean()


def _torn(sides: Sequence[Tensor], stand_ins: Sequence[Tensor], overlapping: int) -> list[Tensor]:
    """The overlapping rows once for each party, as if only that party knew them."""
    parties = len(sides)
    return [
        torch.cat(
            [
                sides[m][:overlapping]
                if m == alone
                else stand_ins[m][None].expand(overlapping, -1).to(sides[m].dtype)
                for alone in range(parties)
            ]
        )
        for m in range(parties)
    ]


# ---------------------------------------------------------------------------------- calibration


def subsets(names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The kinds of rows there are: known to all, or to one party."""
    return [("aligned", tuple(names)), *((name, (name,)) for name in names)]


@dataclass
class Calibration:
    """Temperature and trust of every source, by kind of row.

    temperature, trust: kind of row -> source -> value. A source that is not named has 1 and 1.
    """

    temperature: dict[str, dict[str, float]] = field(default_factory=dict)
    trust: dict[str, dict[str, float]] = field(default_factory=dict)

    def fuse(self, how: Objective, kind: str, outputs: Mapping[str, Tensor]) -> ev.Opinion:
        """The opinion on rows of one kind, from each source's outputs."""
        opinions = []
        for source, values in outputs.items():
            temperature = self.temperature.get(kind, {}).get(source, 1.0)
            trust = self.trust.get(kind, {}).get(source, 1.0)
            opinions.append(ev.discount(how.opinion(values, temperature), trust))
        return ev.fuse(opinions, how.fusion)

    def to_wire(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "trust": self.trust}

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> Calibration:
        return cls(
            {key: dict(value) for key, value in saved["temperature"].items()},
            {key: dict(value) for key, value in saved["trust"].items()},
        )


@dataclass(frozen=True)
class Trusted:
    """What held-out rows say of the sources: temperature, trust, and every choice's loss."""

    temperature: dict[str, float]
    trust: dict[str, float]
    losses: dict[str, float]


def fit_sources(
    how: Objective,
    outputs: Mapping[str, Tensor],
    targets: Tensor,
    *,
    anchor: str | None = None,
    folds: int = 3,
) -> Trusted:
    """Temperature and trust of each source that make the fused probability most likely.

    Chosen is between all sources, the joint head, and the `anchor` (the party whose opinion must
    not get worse by adding others'), by cross-validated log loss: the others' trust is then zero.
    The anchor stands unless another choice is better by more than half a standard error.
    """
    outputs = {name: values.double() for name, values in outputs.items()}
    choices = {"all": list(outputs)}
    for name in (JOINT, anchor):
        if name in outputs and len(outputs) > 1:
            choices[str(name)] = [str(name)]
    found: dict[str, Tensor] = {}
    chosen = "all"
    if len(choices) > 1 and len(targets) >= 2 * folds:
        for choice, names in choices.items():
            some = {name: outputs[name] for name in names}
            found[choice] = _cross_validated(how, some, targets, folds)
        chosen = min(found, key=lambda choice: float(found[choice].mean()))
        if anchor in found and chosen != anchor:
            gain = found[anchor] - found[chosen]
            if float(gain.mean()) < 0.5 * float(gain.std()) / len(gain) ** 0.5:
                chosen = anchor
    losses = {choice: float(each.mean()) for choice, each in found.items()}
    used = choices[chosen]
    theta = _fit(how, {name: outputs[name] for name in used}, targets)
    temperature, trust = dict.fromkeys(outputs, 1.0), dict.fromkeys(outputs, 0.0)
    for index, name in enumerate(used):
        temperature[name] = float(theta[index, 0].exp())
        trust[name] = float(theta[index, 1].sigmoid())
    return Trusted(temperature, trust, losses)


# logit(trust) starts, and is held, here: a source is trusted unless it proves otherwise.
_TRUSTED = 3.0


def _fused_loss(
    how: Objective, outputs: Mapping[str, Tensor], targets: Tensor, theta: Tensor
) -> Tensor:
    opinions = [
        ev.discount(_double_opinion(how, values, theta[index, 0].exp()), theta[index, 1].sigmoid())
        for index, values in enumerate(outputs.values())
    ]
    return ev.loss(ev.fuse(opinions, how.fusion), targets, "nll")


def _double_opinion(how: Objective, outputs: Tensor, temperature: Tensor) -> ev.Opinion:
    scaled = outputs / temperature
    if how.activation == "softmax":
        belief = scaled.softmax(-1)
        return ev.Opinion(belief, torch.zeros_like(belief[..., :1]))
    return ev.opinion(ev.evidence(scaled, how.activation))


def _fit(how: Objective, outputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    start = torch.tensor([[0.0, _TRUSTED]], dtype=torch.float64).repeat(len(outputs), 1)
    held = torch.tensor([1.0, 4.0], dtype=torch.float64)

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
) -> Tensor:
    """Every row's loss, with numbers fitted on the other folds."""
    number = torch.arange(len(targets)) % folds
    losses = torch.zeros(len(targets), dtype=torch.float64)
    for fold in range(folds):
        out, test = number != fold, number == fold
        theta = _fit(how, {k: v[out] for k, v in outputs.items()}, targets[out])
        some = {k: v[test] for k, v in outputs.items()}
        losses[test] = _fused_loss(how, some, targets[test], theta)
    return losses
