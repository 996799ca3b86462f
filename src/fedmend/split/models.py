"""The two models of a split network in training, in plain torch: no parties, no calls, no ledger.

A bottom model turns rows into embeddings and takes gradients back; a top model turns embeddings
into a loss and gradients. One exchange per step: the gradient of step t arrives with the request
for the embedding of step t+1. Chained together they do the same arithmetic as the network in one
piece (the tests compare weights).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.learn.augment import Weak
from fedmend.learn.nets import Batch, Top
from fedmend.learn.optim import FlatOptimizer
from fedmend.learn.recorded import EmbedStep, Recorded, can_record
from fedmend.split.config import Settings
from fedmend.split.features import BatchOrder, Features, MixedOrder
from fedmend.split.labels import label_loss


def _moved(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """As `Module.to`, which costs as much as a small prediction where there is nothing to do."""
    for each in chain(module.parameters(), module.buffers()):
        if each.device != device or (each.is_floating_point() and each.dtype != dtype):
            return module.to(device, dtype)
    return module


class TrainedModel:
    """What both models share: modules, an optimizer, best weights kept, checkpoints.

    taught: is told of which rows every update is, by their numbers.
    """

    order: BatchOrder
    taught: Callable[[np.ndarray], None] | None = None

    def __init__(self, module: nn.Module, settings: Settings, device: torch.device) -> None:
        self.module = _moved(module, device, settings.dtype)
        self.settings = settings
        self.device = device
        self._steps = 0
        self._best: dict[str, Tensor] | None = None

    def set_order(self, rows: np.ndarray) -> int:
        """Fix the training rows and start an optimizer; returns an epoch's number of batches."""
        settings = self.settings
        return self.walk(
            BatchOrder(
                rows,
                settings.batch_size,
                self.device,
                augment=settings.augment == "weak",
                least=settings.epoch_steps,
            )
        )

    def walk(self, order: BatchOrder) -> int:
        """Train in this order from now on; an optimizer that is there goes on."""
        self.order = order
        if not hasattr(self, "optimizer"):
            self.optimizer = FlatOptimizer([*self.module.parameters()], self.settings.optimizer)
        return len(order.sizes)

    def update(self) -> None:
        """One step of the optimizer, at the schedule's learning rate."""
        if self.taught is not None:
            self.taught(self.order.handed())
        self.optimizer.scale = self._scale()
        self.optimizer.step()

    def _scale(self) -> float:
        if self.settings.schedule == "constant":
            return 1.0
        done = (self._steps + 0.5) / (self.settings.schedule_epochs * len(self.order.sizes))
        self._steps += 1
        return one_cycle(done)

    def start_epoch(self, seed: int) -> None:
        self.order.start(seed)
        self.module.train()

    def keep_best(self) -> None:
        self._best = {key: value.clone() for key, value in self.module.state_dict().items()}

    def restore_best(self) -> None:
        if self._best is not None:
            self.module.load_state_dict(self._best)

    def checkpoint(self) -> dict[str, Any]:
        """Everything needed to go on as if nothing had happened, as wire values."""
        return {
            "module": dict(self.module.state_dict()),
            "best": self._best,
            "optimizer": self.optimizer.state(),
            "steps": self._steps,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.module.load_state_dict(saved["module"])
        best = saved["best"]
        self._best = None if best is None else {k: v.to(self.device) for k, v in best.items()}
        self.optimizer.restore(saved["optimizer"])
        self._steps = saved["steps"]


def one_cycle(done: float) -> float:
    """The learning rate's factor after a share `done` of the training: up for a fifth, then down.

    >>> [round(one_cycle(done), 2) for done in (0.1, 0.2, 0.6, 1.0)]
    [0.5, 1.0, 0.5, 0.0]
    """
    return max(0.0, done / 0.2 if done < 0.2 else (1.0 - done) / 0.8)


class Embedding:
    """A bottom model over a party's rows: the embeddings of rows by their numbers.

    embed: of a batch, where that is more than the module's own; on a GPU steps are replays.
    """

    def __init__(
        self,
        module: nn.Module,
        features: Features,
        settings: Settings,
        device: torch.device,
        embed: Callable[[Batch], Tensor] | None = None,
    ) -> None:
        self.features = features
        self._settings, self._device = settings, device
        self._embed = embed or module
        self._width: int | None = module.spec.out if embed is None else None  # type: ignore
        self._replayed: Recorded | None = None
        if can_record(device, module):
            self._replayed = Recorded(lambda: EmbedStep(module, settings, device, embed), on=True)

    def __call__(self, numbers: Tensor, draws: Weak | None = None) -> Tensor:
        if not len(numbers) and self._width is not None:  # batch norm cannot normalise nothing
            shape = (0, self._width)
            return torch.zeros(shape, dtype=self._settings.dtype, device=self._device)
        batch = self.features.batch(numbers, draws)
        if self._replayed is not None and torch.is_grad_enabled():
            return self._replayed(batch.numeric, batch.codes, *batch.blocks)
        with self._settings.autocast(self._device):
            return self._embed(batch).to(self._settings.dtype)


class BottomModel(TrainedModel):
    """A party's bottom model, training on its own rows.

    in_flight: the numbers of the rows whose embeddings, the first ones, were handed out last.
    """

    def __init__(
        self,
        module: nn.Module,
        features: Features,
        settings: Settings,
        device: torch.device,
        embed: Callable[[Batch], Tensor] | None = None,
    ) -> None:
        super().__init__(module, settings, device)
        self.features = features
        self._compute = Embedding(module, features, settings, device, embed)
        self.in_flight: Tensor | None = None
        self._embedding: Tensor | None = None

    def forward(self) -> Tensor:
        """The embedding of the next batch; remembers it for the gradient to come."""
        self.in_flight, draws = self._next()
        self._embedding = self._compute(self.in_flight, draws)
        return self._embedding.detach()

    def _next(self) -> tuple[Tensor, Weak | None]:
        """The numbers of the next rows, and how their images are augmented."""
        return self.order.next(), self.order.draws

    def backward(self, gradient: Tensor) -> None:
        """Learn from the gradient of the embedding handed out last."""
        assert self._embedding is not None
        gradient = gradient.to(self.device, self._embedding.dtype)
        self.optimizer.zero_grad()
        # The same as embedding.backward(gradient), which would load sympy first: 1.5 s.
        (self._embedding * gradient).sum().backward()
        self.update()
        self._embedding = None

    @torch.no_grad()
    def embed(self, numbers: Tensor) -> Tensor:
        self.module.eval()
        return self._compute(numbers)


class PartialBottom(BottomModel):
    """A bottom that hands out embeddings of the rows its party has, and of no others.

    Its batches have a fixed make-up (`MixedOrder`). mine: which segments' rows the party has;
    places: where these stand in every batch.
    """

    mine: Sequence[bool]
    places: Tensor

    def walk(self, order: MixedOrder) -> int:  # type: ignore[override]
        self.places = order.places(self.mine)
        return super().walk(order)

    def _next(self) -> tuple[Tensor, Weak | None]:
        numbers, draws = super()._next()
        return numbers.index_select(0, self.places), None if draws is None else draws[self.places]

    def backward(self, gradient: Tensor) -> None:
        if len(gradient):
            super().backward(gradient)

    @torch.no_grad()
    def embed(self, numbers: Tensor) -> Tensor:
        return super().embed(self.features.known(numbers))


class TopModel(TrainedModel):
    """The top model, with the bottom of the party it lives at, if that party has features.

    targets: class numbers [N] int64, values [N] float (regression), or soft labels [N, C] float;
    these are likelihoods where `likely` is set (`labels.label_loss`).
    names: all feature parties in the order of the top's inputs; `own` is this party's, or None.
    """

    def __init__(
        self,
        top: nn.Module,
        settings: Settings,
        device: torch.device,
        *,
        names: Sequence[str],
        own: str | None = None,
        bottom: nn.Module | None = None,
        features: Features | None = None,
        embed: Callable[[Batch], Tensor] | None = None,
    ) -> None:
        modules = {"top": top} if bottom is None else {"top": top, "bottom": bottom}
        super().__init__(nn.ModuleDict(modules), settings, device)
        self.top = top
        self.names = list(names)
        self.own = own
        self.own_embedding: Embedding | None = None
        if bottom is not None and features is not None:
            self.own_embedding = Embedding(bottom, features, settings, device, embed)
        self.targets: Tensor | None = None
        self.likely = False
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._rows = 0

    def set_targets(self, targets: np.ndarray) -> None:
        values = torch.from_numpy(np.ascontiguousarray(targets)).to(self.device)
        self.targets = values.to(self.settings.dtype) if values.is_floating_point() else values

    def set_likelihoods(self, likelihoods: np.ndarray) -> None:
        """In place of labels: how likely what was said of each row is under each class. [N, C]"""
        self.set_targets(likelihoods.astype(np.float64, copy=False))
        self.likely = True

    def walk(self, order: Any) -> int:
        self._forget_loss()
        return super().walk(order)

    def start_epoch(self, seed: int) -> None:
        self._forget_loss()
        super().start_epoch(seed)

    def _forget_loss(self) -> None:
        """The loss is of the order's rows (`loss_rows`), and of no others walked before."""
        self._loss.zero_()
        self._rows = 0

    def step(self, embeddings: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One update; returns the gradient for each embedding that came in."""
        numbers = self.order.next()
        leaves = {
            name: value.detach().to(self.device, self.settings.dtype).requires_grad_()
            for name, value in embeddings.items()
        }
        self.optimizer.zero_grad()
        loss = self._batch_loss(leaves, numbers, self.order.draws)
        loss.backward()
        self._learn(loss.detach(), len(numbers))
        return {name: gradient_of(leaf) for name, leaf in leaves.items()}

    def _learn(self, loss: Tensor, rows: int) -> None:
        """Update the weights from the gradients that are there, and note the loss."""
        self.update()
        self._loss += loss * rows
        self._rows += rows

    def _batch_loss(
        self, embeddings: Mapping[str, Tensor], numbers: Tensor, draws: Weak | None
    ) -> Tensor:
        return self._loss_of(self._outputs(embeddings, numbers, draws), numbers)

    def loss_rows(self) -> np.ndarray:
        """The numbers of the rows on which the loss rests that would be told now."""
        return self.order.walked()

    def take_loss(self) -> float:
        """The mean training loss since this was last asked."""
        mean = float(self._loss) / max(1, self._rows)
        self._forget_loss()
        self.order.told()
        return mean

    @torch.no_grad()
    def outputs(
        self,
        embeddings: Mapping[str, Tensor],
        numbers: Tensor,
        known: Sequence[str] | None = None,
    ) -> Tensor:
        """known: who knows the rows, for tops that can do without some parties."""
        self.module.eval()
        ready = {
            name: value.to(self.device, self.settings.dtype) for name, value in embeddings.items()
        }
        return self._outputs(ready, numbers, known=known)

    @torch.no_grad()
    def embedded(
        self, embeddings: Mapping[str, Tensor], numbers: Tensor, known: Sequence[str]
    ) -> dict[str, Tensor]:
        """The embeddings of the parties that know these rows, this party's own included."""
        self.module.eval()
        there = [name for name in self.names if name in known]
        found = self._with_own({n: embeddings[n] for n in there if n != self.own}, numbers, there)
        return {name: found[name].to(self.device, self.settings.dtype) for name in there}

    @torch.no_grad()
    def outputs_of(self, pieces: Mapping[str, Tensor]) -> Tensor:
        """What the top makes of an embedding of every party."""
        self.module.eval()
        return self._top_of(pieces)

    def _outputs(
        self,
        embeddings: Mapping[str, Tensor],
        numbers: Tensor,
        draws: Weak | None = None,
        known: Sequence[str] | None = None,
    ) -> Tensor:
        return self._top_of(self._with_own(embeddings, numbers, self.names, draws))

    def _top_of(self, pieces: Mapping[str, Tensor]) -> Tensor:
        with self.settings.autocast(self.device):
            return self.top([pieces[name] for name in self.names]).to(self.settings.dtype)

    def _with_own(
        self,
        embeddings: Mapping[str, Tensor],
        numbers: Tensor,
        known: Sequence[str],
        draws: Weak | None = None,
    ) -> dict[str, Tensor]:
        """These embeddings and, where it knows the rows, this party's own."""
        if self.own_embedding is None or self.own not in known:
            return dict(embeddings)
        return {**embeddings, str(self.own): self.own_embedding(numbers, draws)}

    def _loss_of(self, outputs: Tensor, numbers: Tensor) -> Tensor:
        assert self.targets is not None
        targets = self.targets.index_select(0, numbers)
        if outputs.shape[1] == 1:
            return F.mse_loss(outputs[:, 0], targets)
        if self.likely:
            return label_loss(outputs, targets).mean()
        # With soft targets this is KL(target || prediction) up to a constant.
        return F.cross_entropy(outputs, targets)


class ServerTopModel(TopModel):
    """The top at the coordinator: soft labels, and no bottom beside it.

    It does the arithmetic of `TopModel`, to the bit. With batches of a hundred rows a step there
    costs more bookkeeping than arithmetic. Here every embedding comes from outside, the loss is
    KL with soft labels and the top a chain of linear layers: the few lines of its backward pass
    are written down instead of traced. With bf16 it is traced.
    """

    def __init__(
        self, top: Top, settings: Settings, device: torch.device, *, names: list[str]
    ) -> None:
        super().__init__(top, settings, device, names=names)
        self._widths = list(top.spec.widths)
        layers = top.body if settings.precision != "bf16" else ()
        self._chain = [layer for layer in layers if isinstance(layer, nn.Linear)]

    def set_targets(self, targets: np.ndarray) -> None:
        if targets.dtype.kind != "f":  # whole numbers would be taken for classes
            targets = targets.astype(np.float64)
        super().set_targets(targets)

    def step(self, embeddings: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if not self._chain:
            return super().step(embeddings)
        assert self.targets is not None
        numbers = self.order.next()
        pieces = [embeddings[name].to(self.device, self.settings.dtype) for name in self.names]
        inputs, outputs = self._forward(torch.cat(pieces, 1))
        loss, slope = soft_loss(outputs, self.targets.index_select(0, numbers))
        slope = self._backward(inputs, slope)
        self._learn(loss, len(numbers))
        gradients = zip(self.names, slope.split(self._widths, 1), strict=True)
        return dict(gradients)

    @torch.no_grad()
    def _forward(self, values: Tensor) -> tuple[list[Tensor], Tensor]:
        """What goes into each layer, and what comes out of the last."""
        inputs = []
        for layer in self._chain:
            # A linear top takes the embeddings as they are.
            inputs.append(values if len(self._chain) == 1 else torch.relu(values))
            values = F.linear(inputs[-1], layer.weight, layer.bias)
        return inputs, values

    @torch.no_grad()
    def _backward(self, inputs: list[Tensor], slope: Tensor) -> Tensor:
        """Leave every layer's gradient where the optimizer looks; returns the embeddings'."""
        for layer, values in zip(reversed(self._chain), reversed(inputs), strict=True):
            torch.mm(slope.t(), values, out=layer.weight.grad)
            torch.sum(slope, 0, out=layer.bias.grad)
            slope = torch.mm(slope, layer.weight)
            if len(self._chain) > 1:
                slope = torch.ops.aten.threshold_backward(slope, values, 0)  # of the ReLU
        return slope


def soft_loss(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy with soft labels, its mean over rows and its slope by the outputs.

    As `F.cross_entropy(outputs, targets)` and its backward pass. **Shape** [n, C] both.
    """
    logs = torch.log_softmax(outputs, 1)
    share = targets * (-1.0 / len(targets))
    # Not a public name of torch; autograd calls it just so for log_softmax.
    slope = torch._log_softmax_backward_data(share, logs, 1, outputs.dtype)
    return torch.dot(share.view(-1), logs.view(-1)), slope


def gradient_of(leaf: Tensor) -> Tensor:
    """Zero where no loss depends on an embedding."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
