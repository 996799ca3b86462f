"""What a client does with its batches: the local methods, and what they see of the client.

    class MyMethod(LocalMethod):
        name = "mine"
        def loss(self, client, batch): ...

`loss` is enough for most; a method whose step is more than one loss overrides `step`. FedMatch
keeps the weights in two parts, FedLoKe a second model that stays at the client, FedDure a twin that
tries pseudo-labels out first: written from the papers and, for the latter two, their public code
(docs/sage.md says what was taken from where).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend.learn.pseudo import PseudoLabels
from fedmend.methods.horizontal.networks import FlatNet, Inputs
from fedmend.methods.horizontal.rules import (
    ByName,
    LocalRule,
    Rule,
    SageRule,
    by_entropy,
    helpers_agree,
)

MEASURES = (
    "loss_labelled",
    "loss_unlabelled",
    "utilisation",
    "right",
    "known",
    "confidence_local",
    "confidence_global",
    "gap",
)
"""What is measured of every step, as means over rows: the two losses; the share of unlabelled rows
that get a label; the share whose label is right, and whose truth is known at all; how sure the
local and the global model are, and how far apart."""


@dataclass(frozen=True)
class InputBatch:
    """One step's rows: labelled ones, and two views of unlabelled ones (None without them).

    labels [b]; p_g: the global model's probabilities of the weak views [u, K]; rows: numbers
    in the client's pool of unlabelled rows [u]; truth: their labels where known, else -1 [u].
    """

    labelled: Inputs
    labels: Tensor
    weak: Inputs | None = None
    strong: Inputs | None = None
    p_g: Tensor | None = None
    rows: Tensor | None = None
    truth: Tensor | None = None


@dataclass(frozen=True)
class StepBatch:
    """An `InputBatch` after the network; the weak view's logits carry no gradient."""

    labelled_logits: Tensor
    labels: Tensor
    weak_logits: Tensor
    strong_logits: Tensor
    p_g: Tensor
    rows: Tensor
    truth: Tensor


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
    start: Tensor
    prox: float = 0.0
    state: dict[str, Tensor] = field(default_factory=dict)
    extras: dict[str, Tensor] = field(default_factory=dict)
    noted: dict[str, Tensor] = field(default_factory=dict)

    def update(self, loss: Tensor) -> None:
        """One optimizer step down this loss, FedProx's pull included."""
        self.net.update(loss, self.start, self.prox)

    def forward(self, *views: Inputs) -> tuple[Tensor, ...]:
        """Logits of each of these inputs, from one pass in training mode over all of them."""
        return self.net.each(*views)

    def note(self, **values: Tensor) -> None:
        """Keep measures of this step, one value a row (or one for all)."""
        self.noted.update({name: value.detach() for name, value in values.items()})

    def note_labels(self, labels: PseudoLabels, local: Tensor, batch: StepBatch) -> None:
        """Keep what there is to know of a step's pseudo-labels. **Shape** local [u, K]."""
        sure, sure_global = local.amax(1), batch.p_g.amax(1)
        self.note_truth(labels, batch.truth)
        self.note(
            utilisation=labels.mask,
            confidence_local=sure,
            confidence_global=sure_global,
            gap=(sure - sure_global).abs(),
        )

    def note_truth(self, labels: PseudoLabels, truth: Tensor | None) -> None:
        """Keep how many pseudo-labels are right, of rows whose label is known all the same."""
        if truth is not None:
            target = labels.target if labels.target.ndim == 1 else labels.target.argmax(1)
            known = labels.mask & (truth >= 0)
            self.note(known=known, right=known & (target == truth))


class LocalMethod(ByName):
    """Base of all local methods. Parameters are plain values, stored under their own names.

    uses_unlabelled: off for methods that take labelled batches only.
    uses_global: on if the global model's predictions of the weak views are needed.
    captured: a step may be captured and replayed (fixed shapes, nothing asked of the device).
    passing: what of a client's state is made anew in every round, and need not be kept.
    """

    what: ClassVar[str] = "local method"
    known: ClassVar[dict[str, type[Any]]] = {}
    uses_unlabelled: bool = True
    uses_global: bool = True
    captured: bool = True
    passing: ClassVar[tuple[str, ...]] = ()

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


def joint_pass(client: Client, batch: InputBatch) -> StepBatch:
    """One train-mode pass over labelled, weak and strong rows, sharing batch norms' statistics."""
    if batch.weak is None or batch.strong is None:
        (labelled,) = client.forward(batch.labelled)
        none, rows = labelled[:0], batch.labels[:0]
        return StepBatch(labelled, batch.labels, none, none, none, rows, rows)
    assert batch.rows is not None and batch.truth is not None
    labelled, weak, strong = client.forward(batch.labelled, batch.weak, batch.strong)
    weak = weak.detach()
    p_g = torch.softmax(weak, 1) if batch.p_g is None else batch.p_g
    return StepBatch(labelled, batch.labels, weak, strong, p_g, batch.rows, batch.truth)


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


# ---------------------------------------------------------------------------------- one model


class Supervised(LocalMethod):
    """Cross-entropy on the labelled rows: FedAvg, and FedProx with `prox`."""

    name = "supervised"
    uses_unlabelled = False
    uses_global = False

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

    def __init__(self, rule: Rule | str | Mapping[str, Any] = "local") -> None:
        self.rule: Rule = Rule.of(rule)
        self.uses_global = self.rule.needs_global

    def start(self, client: Client) -> None:
        fresh = self.rule.start(client.n_rows, client.classes, client.device)
        for key, value in fresh.items():
            client.state.setdefault(key, value)

    def loss(self, client: Client, batch: StepBatch) -> Tensor:
        labelled = F.cross_entropy(batch.labelled_logits, batch.labels, reduction="none")
        local = torch.softmax(batch.weak_logits, 1)
        labels = self.rule(local, batch.p_g, batch.rows, client.state)
        each = divergence(labels.target, batch.strong_logits)
        each = each * (labels.mask * labels.weight)
        client.note(loss_labelled=labelled, loss_unlabelled=each)
        client.note_labels(labels, local, batch)
        return mean_of(labelled) + mean_of(each)

    def finish(self, client: Client) -> dict[str, Tensor]:
        return {key: client.state[key] for key in self.rule.tells}


# ---------------------------------------------------------------------------------- more models


class TwinMethod(LocalMethod):
    """Base of methods with networks beside the client's.

    These stay where they are from client to client and get other weights, so that a step can be
    captured and replayed.
    """

    _beside: FlatNet | None = None
    _twins: tuple[FlatNet, ...] = ()

    def twins(self, client: Client, *weights: Tensor) -> tuple[FlatNet, ...]:
        """Networks beside this client's that begin with these weights, without momentum."""
        if self._beside is not client.net:
            self._beside, self._twins = client.net, ()
        self._twins += tuple(client.net.twin() for _ in weights[len(self._twins) :])
        for twin, each in zip(self._twins, weights, strict=False):
            twin.load(each.to(twin.values))
            twin.forget_momentum()
        return self._twins[: len(weights)]

    def tensors(self) -> list[Tensor]:
        return [each for twin in self._twins for each in twin.tensors()]


def _views(batch: InputBatch) -> tuple[Inputs, Inputs]:
    assert batch.weak is not None and batch.strong is not None
    return batch.weak, batch.strong


# ---------------------------------------------------------------------------------- FedMatch


@dataclass(eq=False)
class MatchMethod(TwinMethod):
    """FedMatch's step: labelled rows train sigma, unlabelled ones psi; the network is their sum.

    The extras are psi and the helpers' weights. Pulls on psi (L1, L2 towards sigma) are taken as
    proximal steps, which are stable whatever their weight. labelled_weight, helper_weight, l1, l2:
    FedMatch's lambdas, for a learning rate of 0.01.
    """

    name = "fedmatch"
    uses_global = False
    passing = ("psi", "psi_momentum")

    tau: float = 0.75
    labelled_weight: float = 10.0
    helper_weight: float = 0.01
    l1: float = 1e-4
    l2: float = 10.0

    def start(self, client: Client) -> None:
        values = client.net.values
        # One fifth of the start, as in FedMatch's code, until the server knows better.
        client.state["psi"] = client.start * 0.2
        if "psi" in client.extras:
            client.net.optimizer.spread(client.extras["psi"], client.state["psi"])
        client.state["psi_momentum"] = torch.zeros_like(values)
        self._helpers = self.twins(client, *client.extras.get("helpers", ()))
        for helper in self._helpers:
            helper.module.eval()

    def step(self, client: Client, batch: InputBatch) -> None:
        weak, strong = _views(batch)
        seen, changed = client.forward(weak, strong)
        local = torch.softmax(seen, 1)
        with torch.no_grad():
            helpers = [torch.softmax(helper(*weak), 1) for helper in self._helpers]
            others = torch.stack(helpers) if helpers else local.detach()[None][:0]
            labels = helpers_agree(local.detach(), others, self.tau)
        each = divergence(labels.target, changed) * labels.mask
        unlabelled = each.mean()
        for other in others:
            # KL(helper || local): the helpers' answers are given.
            unlabelled = unlabelled + self.helper_weight / len(others) * (
                divergence(other, seen).mean()
            )
        client.note(loss_unlabelled=each, utilisation=labels.mask)
        client.note_truth(labels, batch.truth)
        optimizer = client.net.optimizer
        optimizer.zero_grad()
        unlabelled.backward()
        slope = optimizer.gradient.clone()
        optimizer.zero_grad()
        if len(batch.labels):
            (logits,) = client.forward(batch.labelled)
            labelled = F.cross_entropy(logits, batch.labels, reduction="none")
            client.note(loss_labelled=labelled)
            (self.labelled_weight * labelled.mean()).backward()
        self._two_updates(client, slope)

    def _two_updates(self, client: Client, slope: Tensor) -> None:
        """Psi down the unlabelled loss and its pulls, sigma down the labelled loss."""
        optimizer, psi = client.net.optimizer, client.state["psi"]
        lr, momentum = optimizer.spec.lr, optimizer.spec.momentum
        with torch.no_grad():
            sigma = client.net.values - psi
            step = client.state["psi_momentum"].mul_(momentum).add_(slope)
            fresh = psi - lr * step
            pull = 2 * lr * self.l2
            fresh = (fresh + pull * sigma) / (1 + pull)
            fresh = F.softshrink(fresh, lr * self.l1) if self.l1 else fresh
            optimizer.step()  # down the labelled loss: this is sigma's part
            client.net.values.add_(fresh - psi)
            psi.copy_(fresh)

    def finish(self, client: Client) -> dict[str, Tensor]:
        return {"psi": client.net.optimizer.tight(client.state["psi"]).clone()}


# ---------------------------------------------------------------------------------- FedLoKe


@dataclass(eq=False)
class LoKeMethod(TwinMethod):
    """FedLoKe's step: a model that stays and the common one teach each other.

    entropy: most entropy of a prediction that is taught. keep: what the staying model keeps of
    itself at the start of a round, when it moves towards the common one.
    """

    name = "fedloke"
    uses_global = False

    entropy: float = 0.1
    keep: float = 0.95

    def start(self, client: Client) -> None:
        common = client.net.flat()
        own = client.state.setdefault("own", common.clone())
        own.mul_(self.keep).add_(common, alpha=1 - self.keep)
        (self._twin,) = self.twins(client, own)

    def step(self, client: Client, batch: InputBatch) -> None:
        weak, strong = _views(batch)
        logits, seen, changed = client.forward(batch.labelled, weak, strong)
        own_logits, own_seen, own_changed = self._twin.each(batch.labelled, weak, strong)
        common, own = torch.softmax(seen.detach(), 1), torch.softmax(own_seen.detach(), 1)
        taught = by_entropy(own, self.entropy)
        teaches = by_entropy(common, self.entropy)
        labelled = F.cross_entropy(logits, batch.labels, reduction="none")
        each = divergence(taught.target, changed) * taught.mask
        client.note(loss_labelled=labelled, loss_unlabelled=each, utilisation=taught.mask)
        client.note_truth(taught, batch.truth)
        own_loss = mean_of(F.cross_entropy(own_logits, batch.labels, reduction="none"))
        own_loss = own_loss + (divergence(teaches.target, own_changed) * teaches.mask).mean()
        client.update(mean_of(labelled) + each.mean())
        self._twin.update(own_loss)

    def finish(self, client: Client) -> dict[str, Tensor]:
        client.state["own"].copy_(self._twin.flat())
        return {}


# ---------------------------------------------------------------------------------- FedDure

HIDDEN = 100
MOMENTS = (0.9, 0.999)
# How far a difference is taken along a gradient: in half precision a hundredth drowns in rounding.
STRIDE, HALF_STRIDE = 0.01, 0.1


@dataclass(eq=False)
class DureMethod(TwinMethod):
    """FedDure's step: pseudo-labels weighed row by row (F-reg), and as a whole (C-reg).

    F-reg is a small network from a prediction to a weight. C-reg is a twin that first takes the
    step on pseudo-labels alone: by how much its labelled loss falls is the worth of the labels.
    F-reg then learns to weigh rows whose loss falls where the twin's labelled loss falls: the
    gradient through the twin's step, whose inner products of a row's gradient before the step and
    the labelled one after it are taken as differences along the latter.
    """

    name = "feddure"

    tau: float = 0.95
    regulator_lr: float = 6e-4
    sage: bool = False

    def __post_init__(self) -> None:
        self.uses_global = self.sage
        self._rule: Rule = SageRule(self.tau) if self.sage else LocalRule(self.tau)

    def start(self, client: Client) -> None:
        size = client.classes * HIDDEN + 2 * HIDDEN + 1
        if "regulator" not in client.state:
            generator = torch.Generator().manual_seed(client.classes)
            fresh = torch.randn(size, generator=generator) * 0.1
            client.state["regulator"] = fresh.to(client.device)
            client.state["regulator_first"] = torch.zeros(size, device=client.device)
            client.state["regulator_second"] = torch.zeros(size, device=client.device)
            client.state["regulator_steps"] = torch.zeros((), device=client.device)
        (self._twin,) = self.twins(client, client.net.flat())

    def step(self, client: Client, batch: InputBatch) -> None:
        weak, _ = _views(batch)
        seen = joint_pass(client, batch)
        local = torch.softmax(seen.weak_logits, 1)
        labels = self._rule(local, seen.p_g, seen.rows, client.state)
        regulator = client.state["regulator"].detach().requires_grad_()
        weight = row_weights(regulator, local)
        weighed = labels.mask * weight.detach()
        worth, along = self._try(batch, weak, labels.target, weighed)
        labelled = F.cross_entropy(seen.labelled_logits, seen.labels, reduction="none")
        each = divergence(labels.target, seen.strong_logits) * labels.mask
        client.note(loss_labelled=labelled, loss_unlabelled=each)
        client.note_labels(labels, local, seen)
        client.update(mean_of(labelled) + (each * (weight.detach() + worth)).mean())
        # Rows whose loss falls with the labelled one deserve more weight.
        gain = -(along * labels.mask * weight).mean()
        self._learn(client, torch.autograd.grad(gain, regulator)[0])

    def _try(
        self, batch: InputBatch, weak: Inputs, target: Tensor, weighed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The twin's step: by how much its labelled loss falls, and each row's slope along it.

        Rows are taken where the twin came from and the labelled gradient where it got to, as the
        chain rule has it: the weight of a row tells in the step, and the step in the loss after it.
        """
        twin = self._twin
        if not len(batch.labels):
            return torch.zeros((), device=weak[0].device), torch.zeros_like(weighed)
        values, optimizer = twin.values, twin.optimizer
        with torch.no_grad():
            before = F.cross_entropy(twin(*batch.labelled), batch.labels)
            start = values.clone()
        here = divergence(target, twin(*weak))
        twin.update((here * weighed).mean())
        optimizer.zero_grad()
        after = F.cross_entropy(twin(*batch.labelled), batch.labels)
        after.backward()
        with torch.no_grad():
            reached = values.clone()
            stride = HALF_STRIDE if weak[0].dtype == torch.bfloat16 else STRIDE
            step = stride * optimizer.gradient / (optimizer.gradient.norm() + 1e-12)
            values.copy_(start).add_(step)
            moved = divergence(target, twin(*weak))
            values.copy_(reached)
            fallen = (before - after).clamp(-1.0, 1.0)
        return fallen, (moved - here.detach()) / stride

    def _learn(self, client: Client, slope: Tensor) -> None:
        """One step of Adam for F-reg."""
        state = client.state
        state["regulator_steps"].add_(1)
        first, second = state["regulator_first"], state["regulator_second"]
        first.mul_(MOMENTS[0]).add_(slope, alpha=1 - MOMENTS[0])
        second.mul_(MOMENTS[1]).addcmul_(slope, slope, value=1 - MOMENTS[1])
        steps = state["regulator_steps"]
        fair = first / (1 - MOMENTS[0] ** steps)
        scale = (second / (1 - MOMENTS[1] ** steps)).sqrt() + 1e-8
        state["regulator"].sub_(self.regulator_lr * fair / scale)


def row_weights(regulator: Tensor, probabilities: Tensor) -> Tensor:
    """F-reg: predictions through one hidden layer to weights in (0, 1). **Shape** [n, C]; [n]."""
    classes = probabilities.shape[1]
    own = regulator.to(probabilities.dtype)  # kept in float32, whatever is trained in
    into, bias, out, last = own.split([classes * HIDDEN, HIDDEN, HIDDEN, 1])
    hidden = torch.relu(probabilities @ into.view(classes, HIDDEN) + bias)
    return torch.sigmoid(hidden @ out + last)
