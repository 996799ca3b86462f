"""One split network for many of party B's columns: A's bottom, and a head for every target at B.

    with NeuralModels(fed, "bank", "telco", targets=["minutes", "plan"]) as models:
        models.fit()
        models.predict()

A turns its rows into embeddings; B runs one head per target over them, adds up the losses of the
targets that have a label for the row, and sends the gradients back.

What each role learns
- The coordinator: it passes on embeddings and gradients (between machines, or with `seal=True`,
  end-to-end encrypted), and knows sizes and losses.
- A: gradients of its embeddings. Rows that are no training row of any target have a gradient of
  zero, so A can tell which of its rows have got a pseudo-label for some column.
- B: A's embeddings of the aligned rows while they change, and of all numbered rows at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend._parameters import Rules, at_least, check_values
from fedmend.data.encode import Encoder
from fedmend.errors import DataError
from fedmend.federation.federation import Federation
from fedmend.federation.policy import MIN_ROWS
from fedmend.federation.rows import Asked, judges
from fedmend.federation.site import Site
from fedmend.federation.worker import exposed
from fedmend.learn.nets import Bottom, Top, TopSpec, initialise
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.completion.targets import (
    FitReport,
    Progress,
    StoreWorker,
    TargetColumn,
    TargetModels,
    TargetWorker,
)
from fedmend.secure.channel import ExchangeWorker, is_sealed, seal_exchange
from fedmend.split.config import Settings, resolve_device
from fedmend.split.features import Features, batch_sizes, digest_of
from fedmend.split.models import BottomModel, TrainedModel
from fedmend.split.training import PREDICT_ROWS, epoch_seed
from fedmend.split.workers import BottomSteps, Trains, bottom_spec, row_numbers

logger = logging.getLogger(__name__)

RULES: Rules = {
    **dict.fromkeys(("embedding", "epochs", "patience"), at_least(1)),
    "validation": ("in (0, 1)", lambda share: 0 < share < 1),
}


class _Exchanges(Trains, ExchangeWorker, TargetWorker):
    """Both sides: whoever passes embeddings on does not choose beside which cells they stand."""

    _validation = np.zeros(0, np.int64)

    def exchanged(self, method: str, kwargs: Mapping[str, Any], *, coming: bool) -> str:
        if method in ("step", "finish"):  # B is told of its next batch, A of the one it gave last
            return str(self.trained.order.batch(int(coming and "embedding" in kwargs)))
        return digest_of(kwargs.get("rows", self._validation))


class NeuralFeatures(BottomSteps, _Exchanges):
    """A's side: its columns and the bottom model."""

    def __init__(self, site: Site, scope: str = "train", **params: Any) -> None:
        super().__init__(site, scope, **params)
        table = self.features()
        self._encoder = Encoder(missing_indicator=True).fit(table)
        self._encoded = self._encoder.transform(table, party=site.name)
        self.device = resolve_device(site.device)

    @exposed(kind="control")
    def create(self, net: dict[str, Any], settings: dict[str, Any], order: np.ndarray) -> None:
        """A fresh bottom, and the rows it is trained on."""
        encoder, how = self._encoder, Settings.from_dict(settings)
        hidden, out = tuple(net["bottom"]), int(net["embedding"])
        spec = bottom_spec(encoder, hidden, out)
        weights = self.site.torch_generator(f"bottom {net['seed']}", "cpu")
        features = Features(self._encoded, np.arange(len(self.rows)), self.device, how.dtype)
        self.trained = BottomModel(initialise(Bottom(spec), weights), features, how, self.device)
        self.trained.set_order(order)


class _Heads(TrainedModel):
    """A head per target over A's embedding."""

    def __init__(
        self,
        targets: dict[str, TargetColumn],
        net: dict[str, Any],
        settings: Settings,
        device: torch.device,
        weights: torch.Generator,
    ) -> None:
        self.names = list(targets)
        self.targets = {name: _as_tensor(targets[name].labels, device) for name in self.names}
        heads: list[nn.Module] = []
        for name in self.names:
            outputs = len(targets[name].classes) if targets[name].is_class else 1
            spec = TopSpec((int(net["embedding"]),), tuple(net["top"]), outputs)
            heads.append(initialise(Top(spec), weights))
        self._heads = heads
        super().__init__(nn.ModuleList(heads), settings, device)

    def outputs(self, embedding: Tensor) -> dict[str, Tensor]:
        """Per target logits [n, C], or numbers [n, 1]."""
        return {name: head([embedding]) for head, name in zip(self._heads, self.names, strict=True)}

    def loss(
        self, embedding: Tensor, numbers: Tensor, told: Callable[[str], bool] = lambda _: True
    ) -> Tensor:
        """The sum over targets (those to be told) of the mean loss of the rows with a label."""
        total = embedding.sum() * 0.0
        for name, outputs in self.outputs(embedding).items():
            if not told(name):
                continue
            labels = self.targets[name].index_select(0, numbers)
            if labels.is_floating_point():
                seen = ~labels.isnan()
                errors = (outputs[:, 0] - labels.nan_to_num()) ** 2 * seen
                total = total + errors.sum() / seen.sum().clamp_min(1)
            elif bool((labels >= 0).any()):
                total = total + F.cross_entropy(outputs, labels, ignore_index=-1)
        return total

    def step(self, embedding: Tensor) -> Tensor:
        assert self.order is not None
        numbers = self.order.next()
        leaf = embedding.detach().to(self.device, self.settings.dtype).requires_grad_()
        self.optimizer.zero_grad()
        self.loss(leaf, numbers).backward()
        self.optimizer.step()
        assert leaf.grad is not None
        return leaf.grad


class NeuralTargets(_Exchanges, StoreWorker):
    """B's side: targets, heads, and what they predict."""

    trained: _Heads

    def __init__(self, site: Site, scope: str = "train", **params: Any) -> None:
        super().__init__(site, scope, **params)
        self.device = resolve_device(site.device)
        self._validation = np.zeros(0, np.int64)
        self._deviations: dict[str, float] = {}
        self._now: dict[str, float] = {}

    @exposed(kind="control")
    def create(
        self, net: dict[str, Any], settings: dict[str, Any], order: np.ndarray, held: np.ndarray
    ) -> int:
        """Fresh heads for the targets to be learnt; returns the number of batches an epoch."""
        targets = {name: self.store[name] for name in self.store.learnt}
        if not targets:
            raise DataError("no target is left to learn", party=self.site.name, mend="name others")
        weights = self.site.torch_generator(f"heads {net['seed']}", "cpu")
        how = Settings.from_dict(settings)
        self.trained = _Heads(targets, net, how, self.device, weights)
        self._validation, self._now, self._deviations = held, {}, {}
        return self.trained.set_order(order)

    @exposed(kind="control")
    def start_epoch(self, epoch: int) -> None:
        self.trained.start_epoch(epoch)

    @exposed(kind="gradient", takes={"embedding": "embedding"})
    def step(self, embedding: Tensor) -> Tensor:
        return self.trained.step(embedding)

    @exposed(kind="statistic", takes={"embedding": "embedding"})
    def validate(self, embedding: Tensor) -> float:
        """The loss on the rows held out; keeps how far off each numeric target is there."""
        numbers = row_numbers(self._validation, self.device)
        with torch.no_grad():
            self.trained.module.eval()
            ready = embedding.to(self.device, self.trained.settings.dtype)
            for name, outputs in self.trained.outputs(ready).items():
                labels = self.trained.targets[name].index_select(0, numbers)
                if labels.is_floating_point() and not bool(labels.isnan().all()):
                    errors = (outputs[:, 0] - labels)[~labels.isnan()]
                    self._now[name] = float(errors.square().mean().sqrt())
            return float(self.trained.loss(ready, numbers, self._may_tell_of))

    def _may_tell_of(self, name: str) -> bool:
        """Whether enough of the rows held out have a value in a column."""
        rows = self._validation[self.store[name].labelled[self._validation]]
        call = "NeuralTargets.validate"
        return self.site.rows.admits(call, self.table, self.rows[rows], f"column {name}")

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method == "validate":
            return [self.rows[self._validation]]
        return super().rows_asked(method, kwargs)

    @exposed(kind="control")
    def keep_best(self) -> None:
        self._deviations = dict(self._now)
        super().keep_best()

    @exposed(kind="control", takes={"embedding": "embedding"})
    def predict(self, embedding: Tensor, rows: np.ndarray) -> None:
        """Outputs of these rows, into the target store."""
        with torch.no_grad():
            self.trained.module.eval()
            ready = embedding.to(self.device, self.trained.settings.dtype)
            made = self.trained.outputs(ready)
        for name, outputs in made.items():
            target = self.store[name]
            values = (outputs.softmax(1) if target.is_class else outputs[:, 0]).double().cpu()
            target.write(values.numpy(), rows)
            if name in self._deviations:
                target.spread = np.full(len(self.rows), self._deviations[name])


class NeuralModels(TargetModels):
    """A split network with a head per target.

    bottom, top: hidden layers of A's bottom and of B's heads; embedding: what travels per row.
    validation, patience: early stopping by a held-out share of the aligned rows.
    seal: embeddings and gradients cross end-to-end encrypted; None is between machines.
    """

    family = "neural"
    workers = (NeuralFeatures, NeuralTargets)

    def __init__(
        self,
        fed: Federation,
        a: str,
        b: str,
        *,
        bottom: Sequence[int] = (128, 64),
        embedding: int = 64,
        top: Sequence[int] = (64,),
        epochs: int = 60,
        batch_size: int = 256,
        lr: float = 2e-3,
        weight_decay: float = 1e-5,
        validation: float = 0.1,
        patience: int = 6,
        seed: int = 0,
        seal: bool | None = None,
        **options: Any,
    ) -> None:
        check_values(SimpleNamespace(**locals()), RULES)
        self.settings = Settings(batch_size, OptimizerSpec("adam", lr, weight_decay))
        self.net = {
            "bottom": list(bottom),
            "embedding": embedding,
            "top": list(top),
            "seed": seed,
        }
        self.epochs, self.validation, self.patience, self.seed = epochs, validation, patience, seed
        super().__init__(fed, a, b, **options)
        if is_sealed(fed, seal):
            seal_exchange(self._workers_a, self._workers_b, by_party=False)

    def fit(self, *, progress: Progress | None = None) -> FitReport:
        rng = np.random.default_rng([self.fed.seed, self.seed])
        held = np.flatnonzero(judges(rng.random(self.n_aligned), self.validation, MIN_ROWS))
        order = np.setdiff1d(np.arange(self.at_b.reach()), held)
        settings = self.settings.to_dict()
        batches = self.at_b.create(self.net, settings, order, held)
        self.at_a.create(self.net, settings, order)
        best, best_epoch = np.inf, 0
        for epoch in range(1, self.epochs + 1):
            self._epoch(epoch_seed(self.fed.seed, self.seed, epoch), batches)
            loss = self.at_b.validate(self.at_a.embed(held)) if len(held) else 0.0
            if loss < best or not len(held):
                best, best_epoch = loss, epoch
                self.at_a.keep_best()
                self.at_b.keep_best()
            if progress is not None:
                progress("epochs", epoch, self.epochs)
            if epoch - best_epoch >= self.patience:
                break
        self.at_a.restore_best()
        self.at_b.restore_best()
        logger.debug("split network: epoch %d of %d is the best", best_epoch, epoch)
        return FitReport(list(self.targets), dict(self.failed))

    def _epoch(self, seed: int, batches: int) -> None:
        self.at_b.start_epoch(seed)
        embedding = self.at_a.step(epoch=seed)
        for _ in range(batches - 1):
            embedding = self.at_a.step(self.at_b.step(embedding))
        self.at_a.finish(self.at_b.step(embedding))

    def predict(self, *, rows: str = "unaligned", progress: Progress | None = None) -> None:
        first = self._first_row(rows)
        at = first
        for size in batch_sizes(self.n_rows - first, PREDICT_ROWS):
            numbers = np.arange(at, at + size)
            self.at_b.predict(self.at_a.embed(numbers), numbers)
            at += size
            if progress is not None:
                progress("predicting", at - first, self.n_rows - first)


def _as_tensor(values: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return (tensor.float() if tensor.is_floating_point() else tensor).to(device)
