"""Split training over any number of parties: the workers.

Every feature party holds a bottom model. The top sits at the label party together with that
party's own bottom, so that neither its labels nor its own embedding ever travel. Only embeddings
go up and only their gradients come down, once per step. (With labels at the coordinator, as soft
sums of several parties' votes, the same `TopModel` runs there: `server_top.ServerTop`.)
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedmend.data.encode import Encoder
from fedmend.data.labels import LabelEncoder
from fedmend.errors import DataError
from fedmend.federation import Site, exposed
from fedmend.federation.labels import FIRST
from fedmend.federation.rows import Asked, judges
from fedmend.learn import metrics
from fedmend.learn.calibration import describe
from fedmend.learn.nets import Bottom, BottomSpec, Top, TopSpec, initialise
from fedmend.secure.channel import ExchangeWorker
from fedmend.split.belief import Belief, label_belief
from fedmend.split.config import Settings, SplitConfig, resolve_device
from fedmend.split.features import ALL, Features, Segments, own_rows
from fedmend.split.halves import BottomHalf, TopHalf
from fedmend.split.label_dp import ToldLabels, ask_for_noise
from fedmend.split.parts import (
    MANIFEST,
    BottomPart,
    Part,
    TopPart,
    load_part,
    new_part,
    own_model,
    part_of,
    read_file,
    save_part,
    write_file,
    write_json,
)
from fedmend.split.sides import Sides

__all__ = ["BottomWorker", "SplitWorker", "TopModel", "TopWorker", "Trained"]

LOOKED_AT = 2000
"""Images from which a bottom learns what images look like."""


class Trained:
    """What is in training, wherever it is: best weights and checkpoints of its half."""

    half: Any
    party: str | None = None

    def _folder(self, path: str) -> Path:
        raise NotImplementedError

    @exposed(kind="control")
    def keep_best(self) -> None:
        self.half.keep_best()

    @exposed(kind="control")
    def restore_best(self) -> None:
        self.half.restore_best()

    @exposed(kind="control")
    def save_checkpoint(self, path: str, epoch: int) -> None:
        write_file(self._checkpoint(path, epoch), self.half.checkpoint())
        self._checkpoint(path, epoch - 2).unlink(missing_ok=True)

    @exposed(kind="control")
    def load_checkpoint(self, path: str, epoch: int) -> None:
        self.half.restore(read_file(self._checkpoint(path, epoch), self.party))

    def _checkpoint(self, path: str, epoch: int) -> Path:
        return self._folder(path) / f"epoch-{epoch}.fmw"


class SplitWorker(Trained, ExchangeWorker):
    """What the workers of bottoms and tops have in common: rows, labels, their part of a model."""

    parallel_inside = True

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope)
        self.model = model
        self.party = site.name
        self.device = resolve_device(site.device)
        self.half: Any = None
        self._told: tuple[Any, ToldLabels | None] = (None, None)

    @exposed(kind="statistic")
    def tell_labels(self, epsilon: float, task: str, folder: str | None) -> dict[str, float]:
        """Let this party's labels be known through randomised response only, from now on.

        They are drawn once and kept with the party. Told is the account.
        """
        by = self.worker_name()
        return ask_for_noise(self.site, self.scope, epsilon, by=by, task=task, folder=folder)

    def _folder(self, path: str) -> Path:
        return self.site.folder(path)

    @property
    def told(self) -> ToldLabels | None:
        """The party's labels, where they are known through randomised response."""
        if self._told[0] is not self.table:
            self._told = (self.table, ToldLabels.of(self.site, self.scope))
        return self._told[1]

    @exposed(kind="control")
    def save(self, path: str) -> None:
        save_part(self.site, self.model, path)

    @exposed(kind="control")
    def load(self, path: str) -> None:
        load_part(self.site, self.model, path)

    @exposed(kind="control")
    def save_manifest(self, path: str, manifest: dict[str, Any]) -> None:
        """What this party needs to know of the model to load it without anybody else."""
        write_json(self.site.folder(path) / MANIFEST, manifest)

    def _new_bottom(self, config: SplitConfig) -> BottomPart:
        """An encoder fitted on this party's own rows, and fresh weights."""
        encoder = Encoder(
            missing_indicator=config.missing_indicator, dtype=config.settings.dtype_name
        )
        encoder.fit(self.table)
        spec = BottomSpec(
            numeric=len(encoder.numeric_names),
            cardinalities=tuple(encoder.cardinalities),
            block_shapes=tuple(encoder.block_shapes.values()),
            hidden=config.bottom,
            out=config.embedding,
            dropout=config.dropout,
            conv=config.conv,
        )
        weights = self.site.torch_generator(f"bottom {config.seed}", "cpu")
        bottom: Any = initialise(Bottom(spec), weights)
        if bottom.learns_from_images:
            some = np.linspace(0, len(self.table) - 1, min(LOOKED_AT, len(self.table)))
            seen = encoder.transform(self.table.take(some.astype(np.int64)), party=self.site.name)
            bottom.fit_images([torch.from_numpy(block) for block in seen.blocks.values()])
        return BottomPart(encoder, bottom)

    def _rows(self, segments: Segments) -> np.ndarray:
        alignment = self.site.alignments.get(self.scope)
        if alignment is None and any(name != ALL for name, _ in segments):
            alignment = self.alignment  # raises, with the mend
        return own_rows(self.site.name, segments, alignment, len(self.table))

    def _features(self, part: BottomPart, rows: np.ndarray, settings: Settings) -> Features:
        present = np.unique(rows[rows >= 0])
        table = self.table if len(present) == len(self.table) else self.table.take(present)
        encoded = part.encoder.transform(table, party=self.site.name)
        places = np.where(rows >= 0, np.searchsorted(present, rows), -1)
        return Features(encoded, places, self.device, settings.dtype)

    def _fitted_labels(self, task: str, dtype: str = "float32") -> LabelEncoder:
        """Which classes there are is known to all, also where the labels are told at random."""
        own = self.table if self.told is None else self.site.tables[self.scope.partition("@")[0]]
        column = own.schema[self._label_column(None)]
        return LabelEncoder(task, dtype=dtype).fit(own.y, column, party=self.site.name)

    def _belief(self) -> Belief | None:
        """What is believed of this party's labels, where they are corrected or told at random."""
        if self.told is not None:
            return self.told.belief
        return label_belief(self.site, self.scope.partition("@")[0])

    def _label_column(self, known: LabelEncoder | None) -> str:
        """The column that a model has learnt, where this table has it, or the table's label."""
        column = None if known is None else known.column_
        if column is not None and column.name in self.table.names:
            return column.name
        if self.table.label is None:
            raise DataError(
                f"the table {self.scope!r} has no label column",
                party=self.site.name,
                mend="name it where the table is read: fm.read(path, id=…, label=…)",
            )
        return self.table.label

    def _let_out(self, used: np.ndarray, outputs: np.ndarray, *, foreign: bool) -> None:
        """Count predictions that are about to leave, by whose rows they are, or refuse them.

        used: positions in this party's table, -1 for rows of others.
        """
        ids = [
            self.table.ids[at] if at >= 0 else (self.scope, number)
            for number, at in enumerate(used)
        ]
        self.site.predicted.admit(self.site.name, self.site.policy, ids, outputs, foreign=foreign)

    def _dropout_seed(self, seed: int) -> int:
        return self.site.own_seed(seed ^ zlib.crc32(self.site.name.encode()), "dropout")


class BottomWorker(SplitWorker):
    """A feature party without labels."""

    half: BottomHalf
    half_type: ClassVar[type[BottomHalf]] = BottomHalf

    @exposed(kind="control")
    def create(self, config: dict[str, Any]) -> int:
        """Make a fresh bottom; returns the width of its embedding."""
        part = new_part(self.site, self.model)
        part.bottom = self._new_bottom(SplitConfig.from_wire(config))
        return part.bottom.module.spec.out

    @exposed(kind="control")
    def attach(self, segments: list[Any], config: dict[str, Any]) -> None:
        """Take these rows, and be ready to embed them."""
        self._attach(self._rows(segments), config)

    def _attach(self, rows: np.ndarray, config: Mapping[str, Any]) -> None:
        settings = SplitConfig.from_wire(config).settings
        part = part_of(self.site, self.model).own_bottom(self.site.name)
        features = self._features(part, rows, settings)
        self.half = self.half_type(part.module, features, settings, self.device)

    @exposed(kind="control")
    def set_order(self, rows: np.ndarray) -> int:
        return self.half.set_order(rows)

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def step(self, gradient: Tensor | None = None, epoch: int | None = None) -> Tensor:
        """Learn from the last batch's gradient; hand out the next batch's embedding."""
        if gradient is not None:
            self._learn(gradient)
        if epoch is not None:
            self.half.start_epoch(epoch, self._dropout_seed(epoch))
        return self.half.forward()

    @exposed(kind="control", takes={"gradient": "gradient"})
    def finish(self, gradient: Tensor) -> None:
        """Learn from the last gradient, with no embedding to follow."""
        self._learn(gradient)

    def _learn(self, gradient: Tensor) -> None:
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
        """The embedding [d] of the fill row, which this party has for rows it does not know."""
        part = part_of(self.site, self.model).own_bottom(self.site.name)
        settings, first = self.half.settings, _numbers(np.array([0]), self.device)
        row = self._features(part, np.array([-1]), settings).batch(first)
        part.module.eval()
        with torch.no_grad(), settings.autocast(self.device):
            return part.module(row)[0].to(settings.dtype)


class TopModel(Trained):
    """A top in use, at the label party or at the coordinator: it trains, and collects outputs."""

    device: torch.device
    half: TopHalf

    def _use(self, half: TopHalf) -> None:
        self.half = half
        self._outputs: list[np.ndarray] = []
        self._seen: list[dict[str, Tensor]] = []

    def _part_top(self) -> TopPart:
        """The top as it is kept."""
        raise NotImplementedError

    def _dropout_seed(self, seed: int) -> int:
        raise NotImplementedError

    def about(self) -> dict[str, Any]:
        part = self._part_top()
        return {
            "task": part.labels.task,
            "classes": list(part.labels.classes_),
            "names": part.names,
            "sides": part.sides is not None,
        }

    @exposed(kind="control")
    def set_order(self, rows: np.ndarray) -> int:
        return self.half.set_order(rows)

    @exposed(kind="control")
    def start_epoch(self, epoch: int) -> None:
        self.half.start_epoch(epoch, self._dropout_seed(epoch))

    @exposed(kind="gradient", takes={"embeddings": "embedding"})
    def step(self, embeddings: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.half.step(embeddings)

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
        """known: who knows these rows, where the others' embeddings are to be imputed."""
        numbers, part = _numbers(rows, self.device), self._part_top()
        if known is None:
            outputs = self._said(self.half.outputs(embeddings or {}, numbers))
        else:
            assert part.sides is not None
            draws = part.sides.draws(self.half.embedded(embeddings or {}, numbers, known))
            said = [self._said(self.half.outputs_of(each)) for each in draws]
            outputs = torch.stack(said).mean(0)
        self._outputs.append(outputs.cpu().numpy())

    def _said(self, outputs: Tensor) -> Tensor:
        return outputs if self._part_top().labels.task == "regression" else outputs.softmax(1)

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def see(self, rows: np.ndarray, embeddings: dict[str, Tensor]) -> None:
        """Embeddings of rows that all parties know, after the training, to learn to impute them."""
        numbers = _numbers(rows, self.device)
        self._seen.append(self.half.embedded(embeddings, numbers, self.half.names))

    @exposed(kind="control", takes={"fixed": "embedding"})
    def learn_sides(self, fixed: dict[str, Tensor]) -> None:
        """From what was seen; `fixed` are put in for their parties as they are."""
        seen = {name: torch.cat([each[name] for each in self._seen]) for name in self.half.names}
        broken = [name for name, each in seen.items() if not each.isfinite().all()]
        if broken:
            raise DataError(
                f"the training has diverged: embeddings of {', '.join(broken)} are no numbers",
                mend="a smaller lr",
            )
        self._part_top().sides = Sides.of(seen, fixed)
        self._seen = []

    def _take_outputs(self) -> np.ndarray:
        """Probabilities [n, C], or values [n] in the label's own units; collected once."""
        labels = self._part_top().labels
        if not self._outputs:
            classes = len(labels.classes_)
            return np.zeros((0, classes) if classes else 0, np.float32)
        outputs = np.concatenate(self._outputs)
        self._outputs = []
        return labels.inverse(outputs[:, 0]) if labels.task == "regression" else outputs

    def _scores(
        self,
        targets: np.ndarray,
        said: np.ndarray | None = None,
        noise: np.ndarray | None = None,
    ) -> dict[str, float]:
        """Metrics of the collected outputs against encoded targets; unlabelled rows left out.

        said: P(said | class) where targets are said at random; what is said is then predicted.
        noise: the same, where metrics by the classes themselves are to be estimated.
        """
        outputs, labels, known = self._take_outputs(), self._part_top().labels, has_label(targets)
        if labels.task == "regression":
            return metrics.regression(labels.inverse(targets[known]), outputs[known])
        found = outputs[known]
        found = found if said is None else found @ said
        return metrics.classification(targets[known], found, noise)

    @exposed(kind="weights")
    def give_top(self) -> dict[str, Any]:
        """The top with its classes and imputation, for a party that may predict alone."""
        return self._part_top().to_wire()


class TopWorker(SplitWorker, TopModel):
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
    def create(self, config: dict[str, Any], names: list[str], widths: list[int]) -> dict[str, Any]:
        """Make a fresh top (and own bottom); returns the task and the classes' names.

        `widths` are the embedding widths of `names`; this party's own is filled in here.
        """
        how, own, widths = SplitConfig.from_wire(config), self.site.name, list(widths)
        part = new_part(self.site, self.model)
        if own in names:
            part.bottom = self._new_bottom(how)
            widths[names.index(own)] = part.bottom.module.spec.out
        labels = self._fitted_labels(how.task, how.settings.dtype_name)
        weights = self.site.torch_generator(f"top {how.seed}", "cpu")
        module, kind = self._new_top(how, names, widths, max(1, len(labels.classes_)))
        part.top = TopPart(names, labels, initialise(module, weights), kind)
        if self.told is None:  # that model has learnt what the labels themselves are
            part.alone = own_model(self.site, self.scope.partition("@")[0])
        return self.about()

    def _new_top(
        self, config: SplitConfig, names: list[str], widths: list[int], out: int
    ) -> tuple[nn.Module, str]:
        """The top's module without its weights, and its name among `parts.TOPS`."""
        return Top(TopSpec(tuple(widths), config.top, out, config.dropout)), "top"

    @exposed(kind="control")
    def about(self) -> dict[str, Any]:
        return super().about() | {"label_dp": None if self.told is None else self.told.account}

    @exposed(kind="control")
    def attach(self, segments: list[Any], config: dict[str, Any], train: bool) -> int:
        """Take these rows; returns how many there are."""
        settings = SplitConfig.from_wire(config).settings
        part, top = part_of(self.site, self.model), self._part_top()
        self._rows_used = self._rows(segments)
        bottom = part.bottom if self.site.name in top.names else None
        half = self.half_type(
            top.module,
            settings,
            self.device,
            names=top.names,
            own=self.site.name if self.site.name in top.names else None,
            bottom=None if bottom is None else bottom.module,
            features=None if bottom is None else self._features(bottom, self._rows_used, settings),
        )
        self._use(half)
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
        known = has_label(self._targets())
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
    def epoch_alone(self, epoch: int) -> None:
        """A whole epoch without other parties: nothing needs to cross."""
        self.start_epoch(epoch)
        for _ in self.half.order.sizes:
            self.half.step({})

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def predict_chunk(
        self,
        rows: np.ndarray,
        embeddings: dict[str, Tensor] | None = None,
        known: list[str] | None = None,
    ) -> None:
        """Rows that nobody else knows are answered for by this party's own model, if there is."""
        self._asked.append(rows)
        alone = part_of(self.site, self.model).alone
        if alone is None or alone.bottom is None or known != [self.site.name]:
            super().predict_chunk(rows, embeddings, known)
        else:
            settings, classes = self.half.settings, self._part_top().labels.classes_
            features = self._features(alone.bottom, self._rows_used[rows], settings)
            outputs = own_outputs(alone, features, len(rows), settings, classes)
            self._outputs.append(outputs.cpu().numpy())

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
            return self._scores(targets)
        if self._trains:
            return self._scores(targets, said=self.told.response)
        return self._scores(targets, noise=self.told.response)

    @exposed(kind="statistic")
    def uncertainty_report(self) -> dict[str, Any]:
        """What the entropy of the collected outputs is worth, against the labels there are."""
        self._take_asked()
        targets, outputs = self._targets(), self._take_outputs()
        known = targets >= 0
        undecided = metrics.normalised_entropy(outputs[known])
        noise = None if self.told is None else self.told.response
        return describe(outputs[known], undecided, targets[known], noise=noise)

    @exposed(kind="prediction")
    def predictions(self, table_order: bool = False) -> np.ndarray:
        """What was predicted, in the common order or in the order of this party's table."""
        asked = np.concatenate([np.zeros(0, np.int64), *self._take_asked()])
        outputs = self._take_outputs()
        self._let_out(self._rows_used[asked], outputs, foreign=self._part_top().foreign)
        if not table_order:
            return outputs
        ordered = np.empty_like(outputs)
        ordered[self._rows_used] = outputs
        return ordered

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
        return rows[has_label(targets)]

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


@torch.no_grad()
def own_outputs(
    part: Part, features: Features, rows: int, settings: Settings, classes: Sequence[Any]
) -> Tensor:
    """Probabilities of the first rows by a model of one party, a column for each of `classes`."""
    assert part.bottom is not None
    assert part.top is not None
    device = features.numeric.device
    for module in (part.bottom.module, part.top.module):
        module.to(device, settings.dtype).eval()
    with settings.autocast(device):
        embedding = part.bottom.module(features.batch(torch.arange(rows, device=device)))
        found = part.top.module([embedding]).float().softmax(1)
    known = list(part.top.labels.classes_)
    ordered = found.new_zeros(rows, len(classes))
    for number, value in enumerate(classes):
        if value in known:
            ordered[:, number] = found[:, known.index(value)]
    return ordered


def has_label(targets: np.ndarray) -> np.ndarray:
    """Which encoded targets are there: numbers, or classes from 0."""
    known: np.ndarray = ~np.isnan(targets) if targets.dtype.kind == "f" else targets >= 0
    return known


def _numbers(rows: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows)).to(device)
