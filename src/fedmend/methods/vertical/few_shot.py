"""FewShotVFL: learning almost alone, with a handful of messages (Sun et al., ICCV 2023).

1. every passive party sends the embeddings of its aligned rows up, once;
2. the label party sends the gradient of each row's loss with respect to them down, once: rows of
   one class have alike gradients, so a party clusters them and has labels of a sort;
3. every party trains its bottom alone, on these labels and on all its other rows, the label party
   on its true labels: a row's weakly changed view says what its strongly changed view must be,
   where it is sure (FixMatch: Sohn et al., 2020);
4. embeddings go up again and the label party trains a head on them.

One round is the publication's "one-shot VFL"; a further round starts over from the trained head,
whose gradients are purer ("few-shot VFL").
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend._parameters import POSITIVE_SHARE, Rules, at_least, parameters
from fedmend.errors import DataError
from fedmend.federation import Each, exposed
from fedmend.federation.bound import declare
from fedmend.federation.rows import Asked
from fedmend.learn.augment import Weak
from fedmend.learn.nets import Bottom, initialise, mlp
from fedmend.methods.network import SplitEstimator
from fedmend.methods.vertical.local import LocalTrainer, RowViews
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.features import Segments, digest_of
from fedmend.split.imputed import ImputedEmbeddings
from fedmend.split.models import TopModel, gradient_of
from fedmend.split.parts import Part
from fedmend.split.training import PREDICT_ROWS, Progress, Session, SplitNetwork
from fedmend.split.workers import BottomWorker, SplitWorker, TopWorker, row_numbers

__all__ = ["FewShotVFL"]

logger = logging.getLogger(__name__)

STRIDE = 50
"""Updates at the parties between two reports of progress."""


# ---------------------------------------------------------------------------------- feature party


class LocalLearner(LocalTrainer):
    """A bottom with a head of its own (thrown away later), on labelled and unlabelled rows.

    how: steps (updates in one round), labelled, unlabelled (rows a batch), threshold (how sure a
    row's weak view must be).
    """

    def __init__(
        self,
        bottom: Bottom,
        views: RowViews,
        classes: int,
        how: Mapping[str, Any],
        settings: Settings,
    ) -> None:
        super().__init__(bottom, mlp(bottom.spec.out, (), classes), views, settings, how["steps"])
        self.how = how

    def start(self, labelled: np.ndarray, labels: np.ndarray, unlabelled: np.ndarray) -> None:
        """Take these rows, and be ready for a round's updates."""
        self._labelled, self._unlabelled = labelled, unlabelled
        self._labels = torch.from_numpy(labels).to(self.device)
        # Whoever has labels for all rows fills the batch with them.
        size = self.how["labelled"] + (0 if len(unlabelled) else self.how["unlabelled"])
        self._known = _Endless(labelled, size, self.views.generator)
        self._others = _Endless(unlabelled, self.how["unlabelled"], self.views.generator)
        self._used = torch.ones((), device=self.device)

    def advance(self, updates: int) -> float:
        """Some of the round's updates; the share of unlabelled rows used in the last ones."""
        self.bottom.train()
        for _ in range(min(updates, self.steps - self.done)):
            at = self._known.next()
            rows = torch.from_numpy(self._labelled[at]).to(self.device)
            more = torch.from_numpy(self._unlabelled[self._others.next()]).to(self.device)
            labels = self._labels[torch.from_numpy(at).to(self.device)]
            self.update(self._loss, rows, labels, more)
        return float(self._used)

    def _loss(self, rows: Tensor, labels: Tensor, unlabelled: Tensor) -> Tensor:
        outputs = self._head(self.views.weak(rows))
        loss = F.cross_entropy(outputs.float(), labels)
        if not len(unlabelled):
            self._used.lerp_(torch.zeros_like(self._used), 0.05)
            return loss
        with torch.no_grad():
            sure, target = self._head(self.views.weak(unlabelled)).float().softmax(1).max(1)
        strong = self._head(self.views.strong(unlabelled)).float()
        join = (sure >= self.how["threshold"]).float()
        self._used.lerp_(join.mean(), 0.05)
        return loss + (F.cross_entropy(strong, target, reduction="none") * join).mean()

    def _head(self, batch: Any) -> Tensor:
        return self.helper(torch.relu(self.bottom(batch)))


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


class GradientWorker(BottomWorker):
    """A feature party without labels, which is sent the gradient of all its embeddings at once."""

    @exposed(kind="control", takes={"gradient": "gradient"})
    def take_gradient(self, gradient: Tensor) -> None:
        """Keep the gradient of the aligned rows' embeddings [n, d], to learn from it alone."""
        self._part().gradient = gradient


class LocalWorker(SplitWorker):
    """A feature party that trains its bottom alone, between two exchanges."""

    @exposed(kind="control")
    def begin(
        self,
        config: dict[str, Any],
        classes: int,
        seed: int,
        known: np.ndarray | None,
        held: np.ndarray,
    ) -> None:
        """Get ready to train on all own rows, by own labels or by the gradient that was sent.

        known: the numbers of the aligned rows that have a label, None where all have. held: of
        those that judge, whose labels nobody learns.
        """
        own, part = SplitConfig.from_wire(config), self._part()
        how, bottom = own.options["local"], part.own_bottom(self.site.name)
        gradient, part.gradient = part.gradient, None
        if gradient is None:
            labelled, labels = self._true_classes(part, held)
        else:
            known = np.arange(len(gradient)) if known is None else known
            labelled, labels = self._clustered(gradient, np.setdiff1d(known, held), classes, seed)
        unlabelled = np.setdiff1d(np.arange(len(self.table)), labelled)
        features = self._features(bottom, np.arange(len(self.table)), own.settings)
        cpu, on_device = (
            self.site.torch_generator(f"local {seed}", where) for where in ("cpu", self.device)
        )
        views = RowViews(features, cpu, on_device, how["corruption"])
        self.learner = LocalLearner(bottom.module, views, classes, how, own.settings)
        self.learner.start(labelled, labels, unlabelled)

    @exposed(kind="statistic")
    def advance(self, updates: int) -> float:
        """Train on; the share of unlabelled rows that join by now."""
        return self.learner.advance(updates)

    def _clustered(
        self, gradient: Tensor, known: np.ndarray, classes: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers and, for classes, clusters of their gradients' directions."""
        from sklearn.cluster import KMeans  # loaded by few; a party's process has every method

        directions = F.normalize(gradient.float().cpu(), dim=1).numpy()[known]
        clusters = min(classes, len(np.unique(directions, axis=0)))
        drawn = int(self.site.rng(f"clusters {seed}").integers(2**31))
        found = KMeans(clusters, n_init=1, random_state=drawn).fit_predict(directions)
        return self.alignment.aligned[known], found.astype(np.int64)

    def _true_classes(self, part: Part, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers and their classes, at the label party."""
        if part.top is None or part.top.labels.column_ is None:
            raise DataError("has no labels and was sent no gradient", party=self.site.name)
        column = self.table.frame[part.top.labels.column_.name]
        targets = part.top.labels.transform(column, party=self.site.name)
        labelled = np.setdiff1d(np.flatnonzero(targets >= 0), self.alignment.aligned[held])
        return labelled, targets[labelled]


# ---------------------------------------------------------------------------------- label party


class HeadModel(TopModel):
    """A top that trains on embeddings of all rows that it was sent once (`held`)."""

    held: dict[str, Tensor]

    def _outputs(
        self,
        embeddings: Mapping[str, Tensor],
        numbers: Tensor,
        draws: Weak | None = None,
        known: Sequence[str] | None = None,
    ) -> Tensor:
        return self._top_of({name: each[numbers] for name, each in self.held.items()})

    @torch.no_grad()
    def loss_on(self, numbers: Tensor) -> float:
        self.module.eval()
        return float(self._loss_of(self._outputs({}, numbers), numbers))


class HeadWorker(TopWorker):
    """The label party, with a top that trains on embeddings it was sent once."""

    soft_targets: ClassVar[bool] = False

    def exchanged(self, method: str, kwargs: Mapping[str, Any], *, coming: bool) -> str:
        if method == "hold":
            return digest_of(np.arange(len(self._rows_used)))
        return super().exchanged(method, kwargs, coming=coming)

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def hold(self, embeddings: dict[str, Tensor]) -> None:
        """Keep the embeddings of all rows, and compute this party's own."""
        names, pieces = self.trained.names, []
        for start in range(0, len(self._rows_used), PREDICT_ROWS):
            some = {name: each[start : start + PREDICT_ROWS] for name, each in embeddings.items()}
            end = min(start + PREDICT_ROWS, len(self._rows_used))
            numbers = torch.arange(start, end, device=self.device)
            pieces.append(self.trained.embedded(some, numbers, names))
        self._held = {name: torch.cat([each[name] for each in pieces]) for name in names}

    @exposed(kind="gradient")
    def feature_gradients(self) -> dict[str, Tensor]:
        """The gradient of every row's loss by the embeddings that came in; 0 without a label."""
        model = self.trained
        leaves = {name: each.detach().requires_grad_() for name, each in self._held.items()}
        outputs = model.top(list(leaves.values())).float()
        F.cross_entropy(outputs, model.targets, reduction="sum", ignore_index=-1).backward()
        return {name: gradient_of(leaf) for name, leaf in leaves.items() if name != model.own}

    @exposed(kind="control")
    def new_head(self, seed: int, number: int) -> None:
        """A fresh top and optimizer, for features that changed."""
        top = self._part_top()
        generator = self.site.torch_generator(f"head {seed} {number}", "cpu")
        fresh = initialise(type(top.module)(top.module.spec), generator)
        top.module.load_state_dict(
            {key: value.to(self.device) for key, value in fresh.state_dict().items()}
        )
        settings = replace(self.trained.settings, schedule="constant", augment="none")
        self._head = HeadModel(top.module, settings, self.device, names=top.names)
        self._head.held, self._head.targets = self._held, self.trained.targets
        self._head.taught = self._note_taught
        self._least = float("inf")

    @exposed(kind="statistic")
    def head_epoch(self, train: np.ndarray, validation: np.ndarray, seed: int) -> dict[str, float]:
        """One pass over the held embeddings; training and validation loss."""
        head = self._head
        head.set_order(train)
        head.start_epoch(self.site.own_seed(seed, "order of rows"))
        for _ in head.order.sizes:
            head.step({})
        scores = {"loss": head.take_loss()}
        if len(validation):
            scores["val_log_loss"] = head.loss_on(row_numbers(validation, self.device))
            if scores["val_log_loss"] < self._least:
                self._least = scores["val_log_loss"]
                head.keep_best()
        return scores

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method == "head_epoch":
            return [self._labelled_of(kwargs[name]) for name in ("train", "validation")]
        return super().rows_asked(method, kwargs)

    @exposed(kind="control")
    def finish_head(self, rows: np.ndarray) -> None:
        """Go back to the weights that did best on the held-out rows; learn from these of the held
        rows what to expect of a party that does not know a row."""
        self._head.restore_best()
        self._note_imputed(rows)
        at = row_numbers(rows, self.device)
        seen = {name: each[at] for name, each in self._held.items()}
        self._part_top().imputed = ImputedEmbeddings.of(seen)


# ---------------------------------------------------------------------------------- coordinator


class FewShotNetwork(SplitNetwork):
    """The coordinator: rounds of exchange, local training, exchange, head."""

    bottom_worker = GradientWorker
    top_worker = HeadWorker

    def fit(
        self,
        segments: Segments,
        *,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Train on these rows. Between messages there is nothing to resume: it starts anew."""
        self.folder = None if checkpoint is None else Path(checkpoint)
        if checkpoint is not None:
            logger.info("few-shot training keeps no checkpoints: it exchanges a few messages only")
        with self.session(segments) as session:
            if self.task == "regression":
                raise DataError(
                    "the label is a number, and FewShotVFL clusters by class",
                    party=self.label_party,
                    mend="VFL or LocalVFL",
                )
            rounds = int(self.config.options["rounds"])
            for number in range(1, rounds + 1):
                self._round(number, rounds, session, progress)
            self._send_up(session)
            self._head(session, rounds + 1, progress)
            self.has_imputed = True
            if len(session.validation):
                session.calibrate()
                if self.config.refit:
                    self._refit_head(session, rounds + 1)
        return self

    def _send_up(self, session: Session) -> None:
        session.top.hold(session.bottoms.embed(session.all_rows))

    def _round(self, number: int, rounds: int, session: Session, progress: Progress | None) -> None:
        """Embeddings up, gradients down, and every party alone."""
        self._send_up(session)
        if number > 1:
            self._head(session, number, None)
        session.bottoms.take_gradient(Each(session.top.feature_gradients()))
        total = int(self.config.options["local"]["steps"])
        seed = session.seed_of(number)
        with self.fed.workers(LocalWorker, parties=self.parties, model=self.model) as group:
            if self.label_party in self.parties:
                session.report_labels(group[self.label_party])
            known = session.top.labelled()
            group.begin(self.config.to_wire(), len(self.classes), seed, known, session.validation)
            for done in range(0, total, STRIDE):
                joined = group.advance(STRIDE)
                if progress is not None:
                    at = (number - 1) * total + min(done + STRIDE, total)
                    progress("local training", at, rounds * total, dict(joined))

    def _head(self, session: Session, number: int, progress: Progress | None) -> None:
        """A fresh head on the embeddings the label party holds."""
        session.top.new_head(self.config.seed, number)
        self.history = []
        best, waited, patience = float("inf"), 0, self.config.patience
        for epoch in range(1, self.config.epochs + 1):
            scores = session.top.head_epoch(
                session.train, session.validation, session.seed_of(epoch)
            )
            self.history.append({"epoch": epoch} | scores)
            if progress is not None:
                progress("train", epoch, self.config.epochs, scores)
            now = scores.get("val_log_loss", -epoch)
            waited = 0 if now < best else waited + 1
            if now < best:
                best, self.best_epoch = now, epoch
            if patience is not None and waited >= patience:
                break
        session.top.finish_head(session.train)

    def _refit_head(self, session: Session, number: int) -> None:
        """The head again, on all rows, for as long as held-out rows chose."""
        rows = np.union1d(session.train, session.validation)
        session.top.new_head(self.config.seed, number)
        for epoch in range(1, self.best_epoch + 1):
            session.top.head_epoch(rows, rows[:0], session.seed_of(epoch))
        session.top.finish_head(rows)


@parameters
class FewShotVFL(SplitEstimator):
    """Aligned rows' embeddings go up `rounds` + 1 times, and that is all.

    rounds: 1 is one-shot, 2 few-shot VFL. local_updates: of a bottom, alone, in each round.
    threshold: how sure FixMatch must be of a row. corruption: share of a table row's cells
    replaced in its strong view. `epochs` are those of the head.
    """

    rounds: int = 2
    local_updates: int = 1000
    threshold: float = 0.95
    corruption: float = 0.6

    _network_type: ClassVar[type[SplitNetwork]] = FewShotNetwork
    _rules: ClassVar[Rules] = {
        "rounds": at_least(1),
        "local_updates": at_least(1),
        "threshold": POSITIVE_SHARE,
        "corruption": POSITIVE_SHARE,
    }

    def _options(self) -> dict[str, Any]:
        labelled = max(2, self.batch_size)
        how = {
            "steps": self.local_updates,
            "labelled": labelled,
            "unlabelled": 4 * labelled,
            "threshold": self.threshold,
            "corruption": self.corruption,
        }
        return {"rounds": self.rounds, "local": how}


declare("few-shot-vfl", LocalWorker, GradientWorker, HeadWorker)
