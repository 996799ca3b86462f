"""Semi-supervised training at a party alone, and a head on features that were sent up once.

`LocalLearner` trains a party's bottom on a few labelled rows and many unlabelled ones: a row's
weakly changed view says what its strongly changed view must be, where it is sure (FixMatch: Sohn
et al., 2020). Labels of a party that has none are clusters of the gradients it was sent (one-shot
and few-shot VFL: Sun et al., ICCV 2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend.errors import ConfigError, DataError
from fedmend.federation import exposed
from fedmend.federation.randomness import begin
from fedmend.federation.rows import Asked
from fedmend.learn.clusters import k_means
from fedmend.learn.nets import Bottom, initialise, mlp, seed_dropout
from fedmend.learn.optim import FlatOptimizer
from fedmend.split.features import BatchOrder
from fedmend.split.halves import Settings, _gradient, one_cycle
from fedmend.split.parts import part_of
from fedmend.split.sides import Sides
from fedmend.split.views import RowViews
from fedmend.split.worker import SplitWorker
from fedmend.split.workers import BottomWorker, TopWorker


@dataclass(frozen=True)
class LocalTraining:
    """How a party trains alone.

    steps: updates in one round. labelled, unlabelled: rows a batch. threshold: how sure a row's
    weak view must be. corruption: share of a table row's cells replaced in its strong view.
    """

    steps: int = 1000
    labelled: int = 64
    unlabelled: int = 256
    threshold: float = 0.95
    corruption: float = 0.6

    def __post_init__(self) -> None:
        problems = []
        if self.steps < 1:
            problems.append(f"local_updates must be at least 1, got {self.steps}")
        if self.labelled < 2 or self.unlabelled < 0:
            problems.append(f"batch_size is too small: {self.labelled}")
        if not 0 < self.threshold <= 1:
            problems.append(f"threshold must be in (0, 1], got {self.threshold}")
        if not 0 < self.corruption <= 1:
            problems.append(f"corruption must be in (0, 1], got {self.corruption}")
        if problems:
            raise ConfigError(problems)


class LocalLearner:
    """A bottom with a head of its own (thrown away later), on labelled and unlabelled rows."""

    def __init__(
        self,
        bottom: Bottom,
        views: RowViews,
        classes: int,
        how: LocalTraining,
        settings: Settings,
    ) -> None:
        device = views.features.numeric.device
        self.bottom = bottom.to(device, settings.dtype)
        self.views = views
        seed_dropout(self.bottom, views.on_device)
        self.how = how
        self.settings = settings
        self.device = device
        head: Any = initialise(mlp(bottom.spec.out, (), classes), views.generator)
        self.head = head.to(device, settings.dtype)
        parameters = [*self.bottom.parameters(), *self.head.parameters()]
        self.optimizer = FlatOptimizer(parameters, settings.optimizer, aligned=True)

    def start(self, labelled: np.ndarray, labels: np.ndarray, unlabelled: np.ndarray) -> None:
        """Take these rows, and be ready for a round's updates."""
        self._labelled, self._unlabelled = labelled, unlabelled
        self._labels = torch.from_numpy(labels).to(self.device)
        # Whoever has labels for all rows fills the batch with them.
        size = self.how.labelled + (0 if len(unlabelled) else self.how.unlabelled)
        self._known = _Endless(labelled, size, self.views.generator)
        self._others = _Endless(unlabelled, self.how.unlabelled, self.views.generator)
        self._used = torch.ones((), device=self.device)
        self._step = 0

    def advance(self, updates: int) -> float:
        """Some of the round's updates; the share of unlabelled rows used in the last ones."""
        self.bottom.train()
        for _ in range(min(updates, self.how.steps - self._step)):
            at = self._known.next()
            rows = torch.from_numpy(self._labelled[at]).to(self.device)
            more = torch.from_numpy(self._unlabelled[self._others.next()]).to(self.device)
            labels = self._labels[torch.from_numpy(at).to(self.device)]
            self.optimizer.zero_grad()
            with self.settings.autocast(self.device):
                loss, share = self._loss(rows, labels, more)
            loss.backward()
            if self.settings.schedule == "one-cycle":
                self.optimizer.scale = one_cycle((self._step + 0.5) / self.how.steps)
            self.optimizer.step()
            self._used.lerp_(share, 0.05)
            self._step += 1
        return float(self._used)

    def _loss(self, rows: Tensor, labels: Tensor, unlabelled: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self._head(self.views.weak(rows))
        loss = F.cross_entropy(outputs.float(), labels)
        if not len(unlabelled):
            return loss, torch.zeros((), device=self.device)
        with torch.no_grad():
            sure, target = self._head(self.views.weak(unlabelled)).float().softmax(1).max(1)
        strong = self._head(self.views.strong(unlabelled)).float()
        join = (sure >= self.how.threshold).float()
        pseudo = (F.cross_entropy(strong, target, reduction="none") * join).mean()
        return loss + pseudo, join.mean()

    def _head(self, batch: Any) -> Tensor:
        return self.head(torch.relu(self.bottom(batch)))


class _Endless:
    """Positions 0..n-1 in random order, over and over, in batches of one size."""

    def __init__(self, rows: np.ndarray, size: int, generator: torch.Generator) -> None:
        self.n, self.size, self.generator = len(rows), size if len(rows) else 0, generator
        self._left = np.zeros(0, np.int64)

    def next(self) -> np.ndarray:
        while len(self._left) < self.size:
            more = torch.randperm(self.n, generator=self.generator).numpy()
            self._left = np.concatenate([self._left, more])
        batch, self._left = self._left[: self.size], self._left[self.size :]
        return batch


# ---------------------------------------------------------------------------------- workers


class GradientWorker(BottomWorker):
    """A feature party without labels, which is sent the gradient of all its embeddings at once."""

    @exposed(kind="control", takes={"gradient": "gradient"})
    def take_gradient(self, gradient: Tensor) -> None:
        """Keep the gradient of the aligned rows' embeddings [n, d], to learn from it alone."""
        part_of(self.site, self.model).gradient = gradient


class LocalWorker(SplitWorker):
    """A feature party that trains its bottom alone, between two exchanges."""

    @exposed(kind="control")
    def begin(
        self,
        classes: int,
        how: dict[str, Any],
        settings: dict[str, Any],
        seed: int,
        known: np.ndarray | None = None,
    ) -> None:
        """Get ready to train on all own rows, by own labels or by the gradient that was sent.

        known: the numbers of the aligned rows that have a label, None where all have.
        """
        part = part_of(self.site, self.model)
        if part.bottom is None:
            raise DataError("holds no bottom model", party=self.site.name, mend="fit the model")
        own = Settings.from_dict(settings)
        generator = self.site.torch_generator(f"local {seed}", "cpu")
        gradient, part.gradient = part.gradient, None
        labelled, labels = self._labelled(gradient, known, classes, generator)
        unlabelled = np.setdiff1d(np.arange(len(self.table)), labelled)
        features = self._features(part.bottom, np.arange(len(self.table)), own)
        training = LocalTraining(**how)
        on_device = self.site.torch_generator(f"local {seed}", self.device)
        views = RowViews(features, generator, on_device, training.corruption)
        self.learner = LocalLearner(part.bottom.module, views, classes, training, own)
        self.learner.start(labelled, labels, unlabelled)

    @exposed(kind="statistic")
    def advance(self, updates: int) -> float:
        """Train on; the share of unlabelled rows that join by now."""
        return self.learner.advance(updates)

    def _labelled(
        self,
        gradient: Tensor | None,
        known: np.ndarray | None,
        classes: int,
        generator: torch.Generator,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers and their classes: true ones, or clusters of the gradients' directions."""
        if gradient is not None:
            rows = self.alignment.aligned
            if known is not None:
                rows, gradient = rows[known], gradient[torch.from_numpy(known).to(gradient.device)]
            directions = F.normalize(gradient.to(self.device).float(), dim=1)
            return rows, k_means(directions, classes, generator).cpu().numpy()
        top = part_of(self.site, self.model).top
        if top is None or top.labels.column_ is None:
            raise DataError("has no labels and was sent no gradient", party=self.site.name)
        targets = top.labels.transform(
            self.table.frame[top.labels.column_.name], party=self.site.name
        )
        labelled = np.flatnonzero(targets >= 0)
        return labelled, targets[labelled]


class HeadWorker(TopWorker):
    """The label party, with a top that trains on embeddings it was sent once."""

    soft_targets: ClassVar[bool] = False

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def hold(self, embeddings: dict[str, Tensor]) -> None:
        """Keep the embeddings of all rows, and compute this party's own."""
        half = self.half
        held = {
            name: value.to(half.device, half.settings.dtype) for name, value in embeddings.items()
        }
        if half.own is not None:
            half.module.eval()
            numbers = torch.arange(len(self._rows_used), device=half.device)
            with torch.no_grad(), half.settings.autocast(half.device):
                pieces = [half._own_embedding(chunk) for chunk in numbers.split(4096)]
            held[half.own] = torch.cat(pieces).to(half.settings.dtype)
        self._held = [held[name] for name in half.names]

    @exposed(kind="gradient")
    def feature_gradients(self) -> dict[str, Tensor]:
        """The gradient of every row's loss with respect to the embeddings that came in.

        Zero where a row has no label.
        """
        half = self.half
        leaves = [value.detach().requires_grad_() for value in self._held]
        assert half.targets is not None
        outputs = half._top(leaves).float()
        F.cross_entropy(outputs, half.targets, reduction="sum", ignore_index=-1).backward()
        named = zip(half.names, leaves, strict=True)
        return {name: _gradient(leaf) for name, leaf in named if name != half.own}

    @exposed(kind="control")
    def new_head(self, net: dict[str, Any], seed: int) -> None:
        """A fresh top and optimizer, for features that changed."""
        top = self._part_top()
        generator = self.site.torch_generator(f"head {net['seed']} {seed}", "cpu")
        fresh = initialise(type(top.module)(top.module.spec), generator)
        top.module.load_state_dict(
            {key: value.to(self.device) for key, value in fresh.state_dict().items()}
        )
        self._optimizer = FlatOptimizer(
            list(top.module.parameters()), self.half.settings.optimizer, aligned=True
        )
        self._best: tuple[float, dict[str, Tensor]] | None = None

    @exposed(kind="statistic")
    def head_epoch(self, train: np.ndarray, validation: np.ndarray, seed: int) -> dict[str, float]:
        """One pass over the held embeddings; training and validation loss."""
        half, top = self.half, self._part_top().module
        assert half.targets is not None
        order = BatchOrder(train, half.settings.batch_size, half.device)
        order.start(self.site.own_seed(seed, "order of rows"))
        begin(half._dropout, self._dropout_seed(seed))
        top.train()
        total = torch.zeros((), device=half.device)
        for size in order.sizes:
            rows = order.next()
            self._optimizer.zero_grad()
            loss = self._head_loss(rows)
            loss.backward()
            self._optimizer.step()
            total += loss.detach() * size
        scores = {"loss": float(total) / max(1, len(train))}
        if len(validation):
            top.eval()
            with torch.no_grad():
                rows = torch.from_numpy(validation).to(half.device)
                scores["val_log_loss"] = float(self._head_loss(rows))
            if self._best is None or scores["val_log_loss"] < self._best[0]:
                weights = {key: value.clone() for key, value in top.state_dict().items()}
                self._best = (scores["val_log_loss"], weights)
        return scores

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method == "head_epoch":
            return [self._labelled_of(kwargs[name]) for name in ("train", "validation")]
        return super().rows_asked(method, kwargs)

    @exposed(kind="control")
    def finish_head(self) -> None:
        """Go back to the weights that did best on the held-out rows."""
        if self._best is not None:
            self._part_top().module.load_state_dict(self._best[1])

    @exposed(kind="control")
    def learn_held_sides(self, rows: np.ndarray) -> None:
        """What to expect of a party that does not know a row, from these of the held ones."""
        at = torch.from_numpy(rows).to(self.half.device)
        named = zip(self.half.names, self._held, strict=True)
        self._part_top().sides = Sides.of({name: each[at] for name, each in named})

    def _head_loss(self, rows: Tensor) -> Tensor:
        assert self.half.targets is not None
        pieces = [value.index_select(0, rows) for value in self._held]
        outputs = self._part_top().module(pieces).float()
        return F.cross_entropy(outputs, self.half.targets.index_select(0, rows))
