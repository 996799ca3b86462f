"""What a client does with its batches: local methods, and what they see of the client.

A method is known by name and plain parameters, so that a party can build it from a request:

    class MyMethod(LocalMethod):
        name = "mine"
        def loss(self, client, batch): ...

`loss` is enough for most; a method whose step is more than one loss overrides `step`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError
from fedmend.learn.pseudo import PseudoLabels
from fedmend.methods.horizontal.networks import FlatNet, Inputs
from fedmend.methods.horizontal.rules import Rule, rule_of

__all__ = [
    "MEASURES",
    "Client",
    "InputBatch",
    "LocalMethod",
    "PseudoMethod",
    "StepBatch",
    "Supervised",
    "divergence",
    "joint_pass",
    "mean_of",
    "method_of",
]

MEASURES = (
    "loss_labelled",
    "loss_unlabelled",
    "utilisation",
    "right",
    "known",
    "confidence_local",
    "confidence_world",
    "gap",
)
"""What is measured of every step, as means over rows: the two losses; the share of unlabelled rows
that get a label; the share whose label is right, and whose truth is known at all; how sure the
local and the global model are, and how far apart."""


@dataclass(frozen=True)
class InputBatch:
    """One step's rows: labelled ones, and two views of unlabelled ones (None without them).

    labels [b]; world: the global model's probabilities of the weak views [u, K]; rows: numbers
    in the client's pool of unlabelled rows [u]; truth: their labels where known, else -1 [u].
    """

    labelled: Inputs
    labels: Tensor
    weak: Inputs | None = None
    strong: Inputs | None = None
    world: Tensor | None = None
    rows: Tensor | None = None
    truth: Tensor | None = None


@dataclass(frozen=True)
class StepBatch:
    """An `InputBatch` after the network; the weak view's logits carry no gradient."""

    labelled_logits: Tensor
    labels: Tensor
    weak_logits: Tensor
    strong_logits: Tensor
    world: Tensor
    rows: Tensor
    truth: Tensor


Forward = Callable[..., tuple[Tensor, ...]]


@dataclass
class Client:
    """What a method sees of the client it works for, during one round.

    state: what the client keeps from round to round (change it in place, with fixed shapes).
    extras: what the server sent besides the weights. net: network and optimizer. n_rows: unlabelled
    rows; start: parameters at round start.
    """

    name: str
    classes: int
    n_rows: int
    device: torch.device
    net: FlatNet
    forward: Forward
    start: Tensor
    prox: float = 0.0
    state: dict[str, Tensor] = field(default_factory=dict)
    extras: dict[str, Tensor] = field(default_factory=dict)
    noted: dict[str, Tensor] = field(default_factory=dict)

    def update(self, loss: Tensor) -> None:
        """One optimizer step down this loss, FedProx's pull included."""
        optimizer = self.net.optimizer
        optimizer.zero_grad()
        loss.backward()
        if self.prox:
            # The gradient of prox / 2 |w - start|^2.
            optimizer.gradient.add_(self.net.values - self.start, alpha=self.prox)
        optimizer.step()

    def note(self, **values: Tensor) -> None:
        """Keep measures of this step, one value a row (or one for all)."""
        wrong = [name for name in values if name not in MEASURES]
        if wrong:
            raise ConfigError(f"{wrong[0]!r} is no measure: {did_you_mean(wrong[0], MEASURES)}")
        self.noted.update({name: value.detach() for name, value in values.items()})

    def note_labels(self, labels: PseudoLabels, local: Tensor, batch: StepBatch) -> None:
        """Keep what there is to know of a step's pseudo-labels. **Shape** local [u, K]."""
        sure, sure_world = local.amax(1), batch.world.amax(1)
        self.note_truth(labels, batch.truth)
        self.note(
            utilisation=labels.mask,
            confidence_local=sure,
            confidence_world=sure_world,
            gap=(sure - sure_world).abs(),
        )

    def note_truth(self, labels: PseudoLabels, truth: Tensor | None) -> None:
        """Keep how many pseudo-labels are right, of rows whose label is known all the same."""
        if truth is not None:
            target = labels.target if labels.target.ndim == 1 else labels.target.argmax(1)
            known = labels.mask & (truth >= 0)
            self.note(known=known, right=known & (target == truth))


class LocalMethod:
    """Base of all local methods. Parameters are plain values, stored under their own names.

    uses_unlabelled: off for methods that take labelled batches only.
    uses_world: on if the global model's predictions of the weak views are needed.
    captured: a step may be captured and replayed (fixed shapes, nothing asked of the device).
    rowwise: the loss is a mean over rows of which each stands for itself, so that the batches of
    many clients can be one.
    passing: what of a client's state is made anew in every round, and need not be kept.
    """

    name: ClassVar[str] = ""
    uses_unlabelled: bool = True
    uses_world: bool = True
    captured: bool = True
    rowwise: bool = False
    passing: ClassVar[tuple[str, ...]] = ()
    _registry: ClassVar[dict[str, type[LocalMethod]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            LocalMethod._registry[cls.name] = cls

    def start(self, client: Client) -> None:
        """Before the first step of a round."""

    def loss(self, client: Client, batch: StepBatch) -> Tensor:
        """What a step goes down. No host may be asked for a value in here."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def step(self, client: Client, batch: InputBatch) -> None:
        """One training step: one pass over all views, one loss, one update."""
        client.update(self.loss(client, joint_pass(client, batch)))

    def finish(self, client: Client) -> dict[str, Tensor]:
        """After the last step of a round: small extras that go with the update."""
        return {}

    def tensors(self) -> list[Tensor]:
        """What a step changes besides the client's network and state: networks of its own."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters as wire values; `method_of` is the way back."""
        names = list(inspect.signature(type(self)).parameters)
        return {"name": self.name, **{key: _plain(getattr(self, key)) for key in names}}


def joint_pass(client: Client, batch: InputBatch) -> StepBatch:
    """One train-mode pass over labelled, weak and strong rows, sharing batch norms' statistics."""
    if batch.weak is None or batch.strong is None:
        (labelled,) = client.forward(batch.labelled)
        none = labelled[:0]
        rows = batch.labels[:0]
        return StepBatch(labelled, batch.labels, none, none, none, rows, rows)
    assert batch.rows is not None
    assert batch.truth is not None
    labelled, weak, strong = client.forward(batch.labelled, batch.weak, batch.strong, constant=1)
    weak = weak.detach()
    world = torch.softmax(weak, 1) if batch.world is None else batch.world
    return StepBatch(labelled, batch.labels, weak, strong, world, batch.rows, batch.truth)


class Supervised(LocalMethod):
    """Cross-entropy on the labelled rows: FedAvg, and FedProx with `prox`."""

    name = "supervised"
    uses_unlabelled = False
    uses_world = False
    rowwise = True

    def loss(self, client: Client, batch: StepBatch) -> Tensor:
        each = F.cross_entropy(batch.labelled_logits, batch.labels, reduction="none")
        client.note(loss_labelled=each)
        return mean_of(each)


class PseudoMethod(LocalMethod):
    """Cross-entropy on labelled rows, and on strong views towards a rule's labels of weak views.

    The unlabelled loss is the mean over all rows of mask x weight x KL(target || prediction), rows
    without a label counting as zeros. (FixMatch; SAGE, Eq. 8.)
    """

    name = "pseudo"

    def __init__(self, rule: Rule | str | Mapping[str, Any] = "local", weight: float = 1.0) -> None:
        given: Any = weight  # to a type checker a float is no Real
        if not isinstance(given, Real):
            raise ConfigError(f"weight must be a number, got {weight!r}. Mend: weight=1.0")
        if not weight >= 0:
            raise ConfigError(f"weight must not be negative, got {weight}")
        self.rule = rule_of(rule)
        self.weight = weight
        self.uses_world = self.rule.needs_world
        self.rowwise = not self.rule.stateful

    def start(self, client: Client) -> None:
        fresh = self.rule.start(client.n_rows, client.classes, client.device)
        for key, value in fresh.items():
            client.state.setdefault(key, value)

    def loss(self, client: Client, batch: StepBatch) -> Tensor:
        labelled = F.cross_entropy(batch.labelled_logits, batch.labels, reduction="none")
        local = torch.softmax(batch.weak_logits, 1)
        labels = self.rule(local, batch.world, batch.rows, client.state)
        each = divergence(labels.target, batch.strong_logits)
        each = each * (labels.mask * labels.weight)
        client.note(loss_labelled=labelled, loss_unlabelled=each)
        client.note_labels(labels, local, batch)
        return mean_of(labelled) + self.weight * mean_of(each)

    def finish(self, client: Client) -> dict[str, Tensor]:
        self.rule.finish(client.state)
        return {key: client.state[key] for key in self.rule.tells}


def mean_of(each: Tensor) -> Tensor:
    """The mean, of no rows zero: a client may have no labelled ones."""
    return each.mean() if len(each) else each.sum()


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """KL(target || softmax(logits)) of each row. **Shape** target [n] or [n, K], logits [n, K]."""
    if target.ndim == 1:
        return F.cross_entropy(logits, target, reduction="none")
    # 1e-10 keeps the logarithm of an empty class finite, as in the published code.
    entropy = (target * (target + 1e-10).log()).sum(1)
    return entropy - (target * torch.log_softmax(logits, 1)).sum(1)


def method_of(value: LocalMethod | Mapping[str, Any]) -> LocalMethod:
    """A method from `to_dict`.

    >>> method_of({"name": "supervised"}).uses_unlabelled
    False
    """
    if isinstance(value, LocalMethod):
        return value
    given = dict(value)
    name = given.pop("name", None)
    known = LocalMethod._registry
    if name not in known:
        pass

    if name not in known:
        raise ConfigError(f"{name!r} is not a local method: {did_you_mean(str(name), known)}")
    return known[name](**given)


def _plain(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Rule) else value
