"""Local methods whose clients train more than one set of weights.

FedMatch keeps the weights in two parts, FedLoKe a second model that stays at the client, FedDure a
twin that tries pseudo-labels out first. Written from the papers and, for the latter two, their
public code; docs/sage.md says what was taken from where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend.methods.horizontal.local_methods import (
    Client,
    InputBatch,
    LocalMethod,
    divergence,
    joint_pass,
    mean_of,
)
from fedmend.methods.horizontal.networks import FlatNet, ImageNet, Inputs
from fedmend.methods.horizontal.resnet import eval_pass, fast_train
from fedmend.methods.horizontal.rules import (
    KAPPA,
    LocalRule,
    Rule,
    SageRule,
    by_entropy,
    helpers_agree,
)

__all__ = ["DureMethod", "LoKeMethod", "MatchMethod", "MatchServer", "row_weights"]


class Twin:
    """A second network of the shape of the client's, with an optimizer of its own."""

    def __init__(self, client: Client) -> None:
        net = client.net
        self.beside = net
        self.net = FlatNet(net.spec, net.optimizer.spec, client.device, net.values.dtype)
        self.net.module.train()
        self._fast = fast_train(self.net.module, client.device, "bf16")

    def __call__(self, *views: Inputs) -> tuple[Tensor, ...]:
        """Logits of each view, from one pass over all of them."""
        joined = tuple(torch.cat(parts) for parts in zip(*views, strict=True))
        sizes = [len(view[0]) for view in views]
        half = joined[0].dtype == torch.bfloat16
        if half and self._fast is not None and self.net.module.training:
            logits = self._fast(joined[0], len(joined[0]))
        elif half and self._fast is not None:
            assert isinstance(self.net.module, ImageNet)
            logits = eval_pass(self.net.module)(joined[0])
        else:
            with torch.autocast(joined[0].device.type, torch.bfloat16, enabled=half):
                logits = self.net.module(*joined)
        return logits.to(self.net.values.dtype).split(sizes)

    def update(self, loss: Tensor) -> None:
        self.net.optimizer.zero_grad()
        loss.backward()
        self.net.optimizer.step()

    def begin(self, weights: Tensor) -> None:
        """Take these weights, without momentum."""
        self.net.load(weights)
        for moment in self.net.optimizer.tensors():
            moment.zero_()

    def tensors(self) -> list[Tensor]:
        """All that a step may change."""
        return [self.net.values, self.net.statistics, *self.net.optimizer.tensors()]


class TwinMethod(LocalMethod):
    """Base of methods with networks beside the client's.

    These stay where they are from client to client and get other weights, so that a step can be
    captured and replayed.
    """

    def twins(self, client: Client, count: int) -> list[Twin]:
        """So many networks beside this client's."""
        made: list[Twin] = self.__dict__.setdefault("_twins", [])
        if made and made[0].beside is not client.net:
            made.clear()
        made += [Twin(client) for _ in range(count - len(made))]
        return made[:count]

    def tensors(self) -> list[Tensor]:
        return [each for twin in self.__dict__.get("_twins", []) for each in twin.tensors()]


def _views(batch: InputBatch) -> tuple[Inputs, Inputs]:
    assert batch.weak is not None and batch.strong is not None
    return batch.weak, batch.strong


# ---------------------------------------------------------------------------------- FedMatch


class MatchMethod(TwinMethod):
    """FedMatch's step: labelled rows train sigma, unlabelled ones psi; the network is their sum.

    The extras are psi and the helpers' weights. Pulls on psi (L1, L2 towards sigma) are taken as
    proximal steps, which are stable whatever their weight.
    """

    name = "fedmatch"
    uses_world = False
    passing = ("psi", "psi_momentum")

    def __init__(
        self,
        tau: float = 0.75,
        labelled_weight: float = 10.0,
        helper_weight: float = 0.01,
        l1: float = 1e-4,
        l2: float = 10.0,
    ) -> None:
        self.tau = tau
        self.labelled_weight = labelled_weight
        self.helper_weight = helper_weight
        self.l1 = l1
        self.l2 = l2

    def start(self, client: Client) -> None:
        values = client.net.values
        # One fifth of the start, as in FedMatch's code, until the server knows better.
        client.state["psi"] = client.start * 0.2
        if "psi" in client.extras:
            client.net.optimizer.spread(client.extras["psi"], client.state["psi"])
        client.state["psi_momentum"] = torch.zeros_like(values)
        sent = client.extras.get("helpers", values[:0])
        self._helpers = self.twins(client, len(sent))
        for helper, flat in zip(self._helpers, sent, strict=True):
            helper.begin(flat.to(values))
            helper.net.module.eval()

    def step(self, client: Client, batch: InputBatch) -> None:
        weak, strong = _views(batch)
        seen, changed = client.forward(weak, strong)
        local = torch.softmax(seen, 1)
        with torch.no_grad():
            helpers = [torch.softmax(helper(weak)[0], 1) for helper in self._helpers]
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


class MatchServer:
    """Averages sigma + psi and psi, and picks each client's helpers among the latest models.

    Helpers are the clients whose weights are nearest; FedMatch compares outputs on random inputs.
    """

    def __init__(self, helpers: int = 2) -> None:
        self.helpers = helpers
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
        near = torch.cdist(current[None], self.latest)[0].argsort()[: self.helpers]
        return {"psi": self.psi, "helpers": self.latest[near]}

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs."""
        if self.psi is None or self.latest is None:
            return {}
        return {"psi": self.psi, "latest": self.latest}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self.psi, self.latest = saved.get("psi"), saved.get("latest")


# ---------------------------------------------------------------------------------- FedLoKe


class LoKeMethod(TwinMethod):
    """FedLoKe's step: a model that stays and the common one teach each other.

    At the start of a round the staying model moves a little towards the common one (`keep`).
    """

    name = "fedloke"
    uses_world = False

    def __init__(self, entropy: float = 0.1, keep: float = 0.95) -> None:
        self.entropy = entropy
        self.keep = keep

    def start(self, client: Client) -> None:
        common = client.net.flat()
        own = client.state.setdefault("own", common.clone())
        own.mul_(self.keep).add_(common, alpha=1 - self.keep)
        (self._twin,) = self.twins(client, 1)
        self._twin.begin(own)

    def step(self, client: Client, batch: InputBatch) -> None:
        weak, strong = _views(batch)
        logits, seen, changed = client.forward(batch.labelled, weak, strong)
        own_logits, own_seen, own_changed = self._twin(batch.labelled, weak, strong)
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
        client.state["own"].copy_(self._twin.net.flat())
        return {}


# ---------------------------------------------------------------------------------- FedDure

HIDDEN = 100
MOMENTS = (0.9, 0.999)
# How far a difference is taken along a gradient: in half precision a hundredth drowns in rounding.
STRIDE, HALF_STRIDE = 0.01, 0.1


class DureMethod(TwinMethod):
    """FedDure's step: pseudo-labels weighed row by row (F-reg), and as a whole (C-reg).

    F-reg is a small network from a prediction to a weight. C-reg is a twin that first takes the
    step on pseudo-labels alone: by how much its labelled loss falls is the worth of the labels.
    F-reg then learns to weigh rows whose loss falls where the twin's labelled loss falls: the
    gradient through the twin's step, whose inner products of a row's gradient before the step and
    the labelled one after it are taken as differences along the latter.
    """

    name = "feddure"

    def __init__(
        self,
        tau: float = 0.95,
        regulator_lr: float = 6e-4,
        sage: bool = False,
        kappa: float = KAPPA,
    ) -> None:
        self.tau = tau
        self.regulator_lr = regulator_lr
        self.sage = sage
        self.kappa = kappa
        self.uses_world = sage
        self._rule: Rule = SageRule(tau, kappa) if sage else LocalRule(tau)

    def start(self, client: Client) -> None:
        size = client.classes * HIDDEN + 2 * HIDDEN + 1
        if "regulator" not in client.state:
            generator = torch.Generator().manual_seed(client.classes)
            fresh = torch.randn(size, generator=generator) * 0.1
            client.state["regulator"] = fresh.to(client.device)
            client.state["regulator_first"] = torch.zeros(size, device=client.device)
            client.state["regulator_second"] = torch.zeros(size, device=client.device)
            client.state["regulator_steps"] = torch.zeros((), device=client.device)
        (self._twin,) = self.twins(client, 1)
        self._twin.begin(client.net.flat())

    def step(self, client: Client, batch: InputBatch) -> None:
        weak, _ = _views(batch)
        seen = joint_pass(client, batch)
        local = torch.softmax(seen.weak_logits, 1)
        labels = self._rule(local, seen.world, seen.rows, client.state)
        regulator = client.state["regulator"].detach().requires_grad_()
        weight = row_weights(regulator, local)
        believed = labels.mask * weight.detach()
        worth, along = self._try(batch, weak, labels.target, believed)
        labelled = F.cross_entropy(seen.labelled_logits, seen.labels, reduction="none")
        each = divergence(labels.target, seen.strong_logits) * labels.mask
        client.note(loss_labelled=labelled, loss_unlabelled=each)
        client.note_labels(labels, local, seen)
        client.update(mean_of(labelled) + (each * (weight.detach() + worth)).mean())
        # Rows whose loss falls with the labelled one deserve more weight.
        gain = -(along * labels.mask * weight).mean()
        self._learn(client, torch.autograd.grad(gain, regulator)[0])

    def _try(
        self, batch: InputBatch, weak: Inputs, target: Tensor, believed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The twin's step: by how much its labelled loss falls, and each row's slope along it.

        Rows are taken where the twin came from and the labelled gradient where it got to, as the
        chain rule has it: the weight of a row tells in the step, and the step in the loss after it.
        """
        twin = self._twin
        if not len(batch.labels):
            return torch.zeros((), device=weak[0].device), torch.zeros_like(believed)
        values, optimizer = twin.net.values, twin.net.optimizer
        with torch.no_grad():
            before = F.cross_entropy(twin(batch.labelled)[0], batch.labels)
            start = values.clone()
        here = divergence(target, twin(weak)[0])
        twin.update((here * believed).mean())
        optimizer.zero_grad()
        after = F.cross_entropy(twin(batch.labelled)[0], batch.labels)
        after.backward()
        with torch.no_grad():
            reached = values.clone()
            stride = HALF_STRIDE if weak[0].dtype == torch.bfloat16 else STRIDE
            step = stride * optimizer.gradient / (optimizer.gradient.norm() + 1e-12)
            values.copy_(start).add_(step)
            moved = divergence(target, twin(weak)[0])
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
