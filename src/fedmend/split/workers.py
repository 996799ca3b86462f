"""Split training over any number of parties: the workers, and the coordinator's loop.

Every feature party holds a bottom model. The top sits at the label party together with that
party's own bottom, so that neither its labels nor its own embedding ever travel. Only embeddings
go up and only their gradients come down, once per step. (With labels at the coordinator, as soft
sums of several parties' votes, the same `TopSide` runs there.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedmend.errors import DataError
from fedmend.federation import Site, exposed
from fedmend.federation.labels import FIRST
from fedmend.federation.rows import Asked, judges
from fedmend.learn import metrics
from fedmend.learn.calibration import describe
from fedmend.learn.nets import Top, TopSpec, initialise
from fedmend.split.halves import BottomHalf, Settings, TopHalf
from fedmend.split.own_model import own_model, own_outputs
from fedmend.split.parts import BottomPart, TopPart, new_part, part_of
from fedmend.split.top_side import TopSide
from fedmend.split.worker import SplitWorker


class BottomWorker(SplitWorker):
    """A feature party without labels."""

    half: BottomHalf
    half_type: ClassVar[type[BottomHalf]] = BottomHalf

    @exposed(kind="control")
    def create(self, net: dict[str, Any], settings: dict[str, Any]) -> int:
        """Make a fresh bottom; returns the width of its embedding."""
        part = new_part(self.site, self.model)
        part.bottom = self._new_bottom(net, Settings.from_dict(settings))
        return part.bottom.module.spec.out

    @exposed(kind="control")
    def attach(self, segments: list[Any], settings: dict[str, Any]) -> None:
        """Take these rows, and be ready to embed them."""
        how = Settings.from_dict(settings)
        part = part_of(self.site, self.model).bottom
        if part is None:
            raise DataError("holds no bottom model", party=self.site.name, mend="fit the model")
        features = self._features(part, self._rows(segments), how)
        self.half = self.half_type(part.module, features, how, self.device)

    @exposed(kind="control")
    def set_order(self, rows: np.ndarray) -> int:
        return self.half.set_order(rows)

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def step(self, gradient: Tensor | None = None, epoch: int | None = None) -> Tensor:
        """Learn from the last batch's gradient; hand out the next batch's embedding."""
        if gradient is not None:
            self.half.backward(gradient)
        if epoch is not None:
            self.half.start_epoch(epoch, self._dropout_seed(epoch))
        return self.half.forward()

    @exposed(kind="control", takes={"gradient": "gradient"})
    def finish(self, gradient: Tensor) -> None:
        """Learn from the last gradient, with no embedding to follow."""
        self.half.backward(gradient)

    @exposed(kind="embedding")
    def embed(self, rows: np.ndarray) -> Tensor:
        """Embeddings of the rows of these numbers, without training."""
        return self.half.embed(_numbers(rows, self.device))

    @exposed(kind="control", takes={"part": "weights"})
    def take_top(self, part: dict[str, Any]) -> None:
        """A copy of the top, with which this party can predict alone."""
        part_of(self.site, self.model).top = TopPart.from_wire({**part, "foreign": True})

    @exposed(kind="embedding")
    def stand_in(self) -> Tensor:
        """The embedding [d] with which this party stands in for rows that it does not know."""
        part = part_of(self.site, self.model).bottom
        assert part is not None
        return fill_embedding(self, part, self.half.settings)


class TopWorker(SplitWorker):
    """The label party: its labels, the top, and its own bottom when it has features."""

    half: TopHalf
    half_type: ClassVar[type[TopHalf]] = TopHalf
    soft_targets: ClassVar[bool] = True

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._rows_used = np.zeros(0, np.int64)
        self._trains = False
        self._asked: list[np.ndarray] = []

    @exposed(kind="control")
    def create(
        self, net: dict[str, Any], settings: dict[str, Any], names: list[str], widths: list[int]
    ) -> dict[str, Any]:
        """Make a fresh top (and own bottom); returns the task and the classes' names.

        `widths` are the embedding widths of `names`; this party's own is filled in here.
        """
        how = Settings.from_dict(settings)
        part = new_part(self.site, self.model)
        own = self.site.name
        widths = list(widths)
        if own in names:
            part.bottom = self._new_bottom(net, how)
            widths[names.index(own)] = part.bottom.module.spec.out
        dtype = "float64" if how.precision == "float64" else "float32"
        labels = self._fitted_labels(net["task"], dtype)
        weights = self.site.torch_generator(f"top {net['seed']}", "cpu")
        module, kind = self._new_top(net, names, widths, max(1, len(labels.classes_)))
        part.top = TopPart(names, labels, initialise(module, weights), kind)
        if self.told is None:  # that model has learnt what the labels themselves are
            part.alone = own_model(self.site, self.scope.partition("@")[0])
        return self.about()

    def _new_top(
        self, net: Mapping[str, Any], names: list[str], widths: list[int], out: int
    ) -> tuple[nn.Module, str]:
        """The top's module without its weights, and its name among `parts.TOPS`."""
        spec = TopSpec(tuple(widths), tuple(net["top"]), out, float(net["dropout"]))
        return Top(spec), "top"

    @exposed(kind="control")
    def about(self) -> dict[str, Any]:
        part = self._part_top()
        return {
            "task": part.labels.task,
            "classes": list(part.labels.classes_),
            "names": part.names,
            "sides": part.sides is not None,
            "label_dp": None if self.told is None else self.told.account,
        }

    @exposed(kind="control")
    def attach(self, segments: list[Any], settings: dict[str, Any], train: bool) -> int:
        """Take these rows; returns how many there are."""
        how = Settings.from_dict(settings)
        part = part_of(self.site, self.model)
        top = self._part_top()
        self._rows_used = self._rows(segments)
        own = self.site.name if self.site.name in top.names else None
        features = None
        if own is not None and part.bottom is not None:
            features = self._features(part.bottom, self._rows_used, how)
        self.half = self.half_type(
            top.module,
            how,
            self.device,
            names=top.names,
            own=own,
            bottom=part.bottom.module if part.bottom is not None and own else None,
            features=features,
        )
        self.side = TopSide(self.half, top)
        self._trains = train
        self._take_asked()
        if train:
            self.half.set_targets(self._targets())
            likelihoods = self._likelihoods()
            if likelihoods is not None:
                self.half.set_likelihoods(likelihoods)
        return len(self._rows_used)

    @exposed(kind="control")
    def labelled(self) -> np.ndarray | None:
        """The row numbers that have a label; None when all have (so that nothing is said)."""
        targets = self._targets()
        known = ~np.isnan(targets) if targets.dtype.kind == "f" else targets >= 0
        return None if known.all() else np.flatnonzero(known)

    @exposed(kind="control")
    def hold_out(self, rows: np.ndarray, share: float) -> np.ndarray:
        """Some of these rows, to judge a training by; none where that would tell of too few.

        By a number that each id keeps, and of people known to all parties where there are enough:
        trainings that draw anew each time, or among others, would be asked about ever new sets of
        rows, and there is an end to those (`federation.rows`).
        """
        own, account = self._rows_used[rows], self.site.rows
        ids = np.asarray(np.where(own >= 0, self.table.ids[own], None))
        drawn = np.where(own >= 0, self.site.draws_of(ids), 1.0)
        shared = np.where(pd.Series(ids, dtype=object).isin(self._shared_ids()), drawn, 1.0)
        for numbers in (shared, drawn):
            held = judges(numbers, share, account.least)
            sets = [own[held], own[~held]]
            if held.any() and account.would_admit(self.table, sets, self.about_rows("metrics")):
                return rows[held]
        return rows[:0]

    def _shared_ids(self) -> list[Any]:
        """Of the rows that the run began with, those that all parties know."""
        first = self.site.alignments.get(FIRST)
        return [] if first is None else self.site.tables[FIRST].ids[first.aligned].tolist()

    @exposed(kind="control")
    def set_order(self, rows: np.ndarray) -> int:
        return self.half.set_order(rows)

    @exposed(kind="control")
    def start_epoch(self, epoch: int) -> None:
        self.half.start_epoch(epoch, self._dropout_seed(epoch))

    @exposed(kind="gradient", takes={"embeddings": "embedding"})
    def step(self, embeddings: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.half.step(embeddings)

    @exposed(kind="control")
    def epoch_alone(self, epoch: int) -> None:
        """A whole epoch without other parties: nothing needs to cross."""
        self.start_epoch(epoch)
        assert self.half.order is not None
        for _ in self.half.order.sizes:
            self.half.step({})

    @exposed(kind="statistic", optional=True)
    def loss(self) -> float:
        return self.half.take_loss()

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def predict_chunk(
        self,
        rows: np.ndarray,
        embeddings: dict[str, Tensor] | None = None,
        known: list[str] | None = None,
    ) -> None:
        self._asked.append(rows)
        alone = part_of(self.site, self.model).alone
        if alone is None or alone.bottom is None or known != [self.site.name]:
            self.side.predict_chunk(embeddings or {}, _numbers(rows, self.device), known)
            return
        settings = self.half.settings
        features = self._features(alone.bottom, self._rows_used[rows], settings)
        classes = self._part_top().labels.classes_
        self.side.take(own_outputs(alone, features, len(rows), settings, classes))

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def see(self, rows: np.ndarray, embeddings: dict[str, Tensor]) -> None:
        """Embeddings of aligned rows, after the training."""
        self.side.see(embeddings, _numbers(rows, self.device))

    @exposed(kind="control", takes={"fixed": "embedding"})
    def learn_sides(self, fixed: dict[str, Tensor]) -> None:
        self.side.learn_sides(fixed)

    def _take_asked(self) -> list[np.ndarray]:
        """The rows whose outputs are collected, chunk by chunk."""
        asked, self._asked = self._asked, []
        return asked

    @exposed(kind="statistic")
    def metrics(self, rows: np.ndarray | None = None) -> dict[str, float]:
        """Of the collected outputs. Where labels are known through randomised response: in training
        how well what was told is predicted, otherwise an estimate of the metrics by true labels."""
        self._take_asked()
        targets = self._targets()
        targets = targets if rows is None else targets[rows]
        if self.told is None or (self._trains and not self.soft_targets):
            return self.side.metrics(targets)
        if self._trains:
            return self.side.metrics(targets, said=self.told.response)
        return self.side.metrics(targets, noise=self.told.response)

    @exposed(kind="statistic")
    def uncertainty_report(self) -> dict[str, Any]:
        """What the entropy of the collected outputs is worth, against the labels there are."""
        self._take_asked()
        targets, outputs = self._targets(), self.side.take_outputs()
        known = targets >= 0
        undecided = metrics.normalised_entropy(outputs[known])
        noise = None if self.told is None else self.told.response
        return describe(outputs[known], undecided, targets[known], noise=noise)

    @exposed(kind="prediction")
    def predictions(self, table_order: bool = False) -> np.ndarray:
        """What was predicted, in the common order or in the order of this party's table."""
        asked = np.concatenate([np.zeros(0, np.int64), *self._take_asked()])
        outputs = self.side.take_outputs()
        self._let_out(self._rows_used[asked], outputs, foreign=self._part_top().foreign)
        if not table_order:
            return outputs
        ordered = np.empty_like(outputs)
        ordered[self._rows_used] = outputs
        return ordered

    @exposed(kind="weights")
    def give_top(self) -> dict[str, Any]:
        """The top with its classes and sides, for a party that may predict alone."""
        return self._part_top().to_wire()

    def about_rows(self, method: str) -> str:
        return "labels"

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method == "loss":
            return [self._rows_used[self.half.loss_rows()]]
        if method in ("metrics", "uncertainty_report"):
            return [self._labelled_of(kwargs.get("rows"))]
        return super().rows_asked(method, kwargs)

    def _labelled_of(self, numbers: np.ndarray | None) -> np.ndarray:
        """The places in the table of those of the numbered rows that have a label."""
        targets, rows = self._targets(), self._rows_used
        if numbers is not None:
            targets, rows = targets[numbers], rows[numbers]
        return rows[~np.isnan(targets) if targets.dtype.kind == "f" else targets >= 0]

    def _targets(self) -> np.ndarray:
        labels = self._part_top().labels
        encoded = labels.transform(self.table.frame[self._label()], party=self.site.name)
        targets = encoded[self._rows_used]
        targets[self._rows_used < 0] = np.nan if targets.dtype.kind == "f" else -1
        return targets

    def _likelihoods(self) -> np.ndarray | None:
        """How likely what is said of each row is under each class, where labels are corrected."""
        belief, labels = self._belief(), self._part_top().labels
        if belief is None or not self.soft_targets or labels.task == "regression":
            return None
        return belief.of(labels.classes_)[self._rows_used]

    def _label(self) -> str:
        part = part_of(self.site, self.model).top
        return self._label_column(part.labels if part is not None else None)

    def _part_top(self) -> TopPart:
        part = part_of(self.site, self.model).top
        if part is None:
            raise DataError("holds no top model", party=self.site.name, mend="fit the model first")
        return part


def fill_embedding(worker: SplitWorker, part: BottomPart, settings: Settings) -> Tensor:
    """What a bottom makes of the row that stands in for an unknown one: [d]."""
    features = worker._features(part, np.array([-1]), settings)
    row = features.batch(torch.zeros(1, dtype=torch.int64, device=worker.device))
    part.module.eval()
    with torch.no_grad(), settings.autocast(worker.device):
        return part.module(row)[0].to(settings.dtype)


def _numbers(rows: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows)).to(device)
