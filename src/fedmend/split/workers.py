"""Split training over any number of parties: the workers, and the top at the coordinator.

Every feature party holds a bottom model. The top sits at the label party together with that
party's own bottom, so that neither its labels nor its own embedding ever travel. Only embeddings
go up and only their gradients come down, once per step. With labels at the coordinator, as soft
sums of several parties' votes, the same `TopHolder` runs there (`ServerTop`), and no feature party
sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedmend.data.encode import Encoded, Encoder, LabelEncoder
from fedmend.data.schema import infer_column
from fedmend.data.table import Table
from fedmend.errors import DataError, NotFitted, Refused
from fedmend.federation import COORDINATOR, Site, exposed
from fedmend.federation.labels import FIRST
from fedmend.federation.policy import MIN_ROWS
from fedmend.federation.randomness import begin
from fedmend.federation.rows import Asked, judges
from fedmend.learn import metrics
from fedmend.learn.calibration import describe
from fedmend.learn.nets import Bottom, BottomSpec, Top, TopSpec, initialise
from fedmend.secure.channel import ExchangeWorker
from fedmend.split.checkpoints import Checkpointed, KeepsPart, digest_of_rows
from fedmend.split.config import Settings, SplitConfig, resolve_device
from fedmend.split.features import (
    ALIGNED,
    ALL,
    Features,
    Segments,
    digest_of,
    folds_of,
    kind_of,
    own_rows,
    rows_of,
    spans,
)
from fedmend.split.imputed import ImputedEmbeddings
from fedmend.split.labels import (
    LabelLikelihood,
    ReportedLabels,
    ask_for_noise,
    label_likelihood,
    label_loss,
    shares_of,
)
from fedmend.split.models import BottomModel, ServerTopModel, TopModel, TrainedModel
from fedmend.split.parts import (
    FILE,
    MANIFEST,
    BottomPart,
    Part,
    TopPart,
    ids_of,
    leave_outputs,
    new_part,
    own_model,
    read_file,
    write_file,
    write_json,
)
from fedmend.split.scaling import ENOUGH, Scaling

OF_ROWS = ("embed", "predict_chunk", "see", "take_chunk")
"""Calls that name the rows whose embeddings cross."""
JUDGED = ("metrics", "uncertainty_report")
"""What is told of labels about rows at hand."""
MOST_JUDGES = 0.3
"""The largest share of rows that is held out because fewer would be too few to judge by."""
TEMPERATURES = tuple(np.geomspace(0.5, 8.0, 13).tolist())
LOOKED_AT = 2000
"""Images from which a bottom learns what images look like."""


class Trains:
    """What is in training, wherever it is, and its best weights.

    trained: the model in training, None before rows are attached.
    """

    trained: Any = None

    @exposed(kind="control")
    def keep_best(self) -> None:
        self.trained.keep_best()

    @exposed(kind="control")
    def restore_best(self) -> None:
        self.trained.restore_best()


class _Checkpointed(Checkpointed, Trains):
    """The same with checkpoints."""

    def _state(self) -> dict[str, Any]:
        return dict(self.trained.checkpoint())

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.trained.restore(saved)


class SplitWorker(KeepsPart, _Checkpointed, ExchangeWorker):
    """What the workers of bottoms and tops have in common: rows, labels, their part of a model."""

    parallel_inside = True
    keeps_numbers: ClassVar[bool] = False
    """Whether a checkpoint names rows by their numbers, so that an order is part of it."""

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope)
        self.model = model
        self.party = site.name
        self.device = resolve_device(site.device)
        self._reported: tuple[Any, ReportedLabels | None] = (None, None)
        self._attached = np.zeros(0, np.int64)

    @exposed(kind="statistic")
    def tell_labels(self, epsilon: float, task: str, folder: str | None) -> dict[str, float]:
        """Let this party's labels be known through randomised response only, from now on.

        They are drawn once and kept with the party. Told is the account.
        """
        by = self.worker_name()
        return ask_for_noise(self.site, self.scope, epsilon, by=by, task=task, folder=folder)

    def exchanged(self, method: str, kwargs: Mapping[str, Any], *, coming: bool) -> str:
        if method in ("step", "finish"):
            # A top is told of the batch that it will take next, a bottom of the one it gave last.
            return str(self.trained.order.batch(int(coming and "embeddings" in kwargs)))
        return digest_of(kwargs["rows"]) if method in OF_ROWS else ""

    @cached_property
    def made_of(self) -> str:
        met = self.site.alignments.get(self.scope)
        places = None if met is None else met.aligned
        if places is not None and not self.keeps_numbers:
            places = np.sort(places)
        return digest_of_rows(self._learnt_table, places)

    @property
    def _learnt_table(self) -> Table:
        return self.table.features

    @property
    def reported(self) -> ReportedLabels | None:
        """The party's labels, where they are known through randomised response."""
        if self._reported[0] is not self.table:
            self._reported = (self.table, ReportedLabels.of(self.site, self.scope))
        return self._reported[1]

    @property
    def _noise(self) -> np.ndarray | None:
        """P(reported | label), where labels are known through randomised response."""
        return None if self.reported is None else self.reported.response

    @exposed(kind="control")
    def save_manifest(self, path: str, manifest: dict[str, Any]) -> None:
        """What this party needs to know of the model to load it without anybody else."""
        write_json(self.site.folder(path) / MANIFEST, manifest)

    def _new_bottom(self, config: SplitConfig) -> BottomPart:
        """An encoder fitted on this party's own rows, and fresh weights."""
        encoder = Encoder(missing_indicator=True, dtype=config.settings.dtype_name)
        encoder.fit(self.table)
        spec = bottom_spec(encoder, config.bottom, config.embedding, config.conv)
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
        self._attached = own_rows(self.site.name, segments, alignment, len(self.table))
        return self._attached

    def _watch(self, trained: TrainedModel) -> None:
        """From now on note which rows teach it; other settings may make light of earlier ones."""
        part = self._part()
        part.thin, part.since = part.is_thin, np.zeros(0, np.int64)
        trained.taught = self._note_taught

    def _note_taught(self, numbers: np.ndarray) -> None:
        """Note where updates are of few rows: the weights before and after them tell these."""
        part, rows, account = self._part(), self._attached[numbers], self.site.rows
        if part.since is not None:
            since = np.concatenate([part.since, rows[rows >= 0]])
            part.since = since if account.are_few(since) else None
        part.few = part.few or account.are_few(self._teaching(numbers))

    def _teaching(self, numbers: np.ndarray) -> np.ndarray:
        """The places of those of the numbered rows that this party's weights can learn from."""
        rows = self._attached[numbers]
        return rows[rows >= 0]

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"few": self._part().few, "thin": self._part().is_thin}

    def _restore(self, saved: Mapping[str, Any]) -> None:
        super()._restore(saved)
        self._part().few |= bool(saved.get("few"))
        self._part().thin |= bool(saved.get("thin"))

    def _features(self, part: BottomPart, rows: np.ndarray, settings: Settings) -> Features:
        return Features(*self._rows_encoded(part, rows), self.device, settings.dtype)

    def _rows_encoded(self, part: BottomPart, rows: np.ndarray) -> tuple[Encoded, np.ndarray]:
        """Those of the rows that this party has, encoded, and where each of all stands there."""
        present = np.unique(rows[rows >= 0])
        table = self.table if len(present) == len(self.table) else self.table.take(present)
        encoded = part.encoder.transform(table, party=self.site.name)
        return encoded, np.where(rows >= 0, np.searchsorted(present, rows), -1)

    def _fitted_labels(self, task: str, dtype: str = "float32") -> LabelEncoder:
        """Which classes there are is known to all, also under randomised response."""
        true = self.site.tables[self.scope.partition("@")[0]]
        own = self.table if self.reported is None else true
        column = own.schema[self._label_column(None)]
        encoder = LabelEncoder(task, dtype=dtype, least=self.site.rows.least)
        return encoder.fit(own.y, column, party=self.site.name)

    def _label_likelihood(self) -> LabelLikelihood | None:
        """Of this party's labels, where they are corrected or known through randomised response."""
        if self.reported is not None:
            return self.reported.likelihood
        return label_likelihood(self.site, self.scope.partition("@")[0])

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


class JudgingWorker(SplitWorker):
    """The label party: what it tells of outputs, and how good they are by its labels.

    `_rows_used`: places of the rows at hand in its table, -1 where it does not know one.
    """

    _take_outputs: Callable[[], np.ndarray]

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._rows_used: np.ndarray = np.zeros(0, np.int64)

    @property
    def _learnt_table(self) -> Table:
        return self.table

    def _labels(self) -> LabelEncoder:
        """How the model knows the label."""
        raise NotImplementedError

    @exposed(kind="statistic")
    def uncertainty_report(self) -> dict[str, Any]:
        """What the uncertainty of the outputs is worth, against the labels there are."""
        targets, outputs = self._targets(), self._take_outputs()
        known = targets >= 0
        undecided = metrics.expected_error(outputs[known])
        return describe(
            outputs[known], undecided, targets[known], noise=self._noise, least=self.site.rows.least
        )

    def about_rows(self, method: str) -> str:
        return "labels"

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method in JUDGED:
            return [self._labelled_of(kwargs.get("rows"))]
        return super().rows_asked(method, kwargs)

    def _labelled_of(self, numbers: np.ndarray | None) -> np.ndarray:
        """The places in the table of those of the numbered rows that have a label."""
        targets, rows = self._targets(), self._rows_used
        if numbers is not None:
            targets, rows = targets[numbers], rows[numbers]
        return rows[has_label(targets)]

    def _targets(self) -> np.ndarray:
        """The encoded labels of the rows at hand; unknown ones are -1, or not a number."""
        targets = self._encoded()[self._rows_used]
        targets[self._rows_used < 0] = np.nan if targets.dtype.kind == "f" else -1
        return targets

    def _encoded(self) -> np.ndarray:
        """The labels of the table, as the model knows them."""
        labels = self._labels()
        column = self.table.frame[self._label_column(labels)]
        return labels.transform(column, party=self.site.name)

    def _let_out_in_order(
        self, used: np.ndarray, outputs: np.ndarray, table_order: bool, *, foreign: bool = False
    ) -> np.ndarray:
        """Count predictions that leave, in the common order or in that of this party's table."""
        self._let_out(used, outputs, foreign=foreign)
        if not table_order:
            return outputs
        ordered = np.empty_like(outputs)
        ordered[self._rows_used] = outputs
        return ordered


class AnsweringWorker(JudgingWorker):
    """Holds outputs of the rows at hand, and tells them, or how good they are."""

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._outputs: np.ndarray | None = None

    @exposed(kind="control")
    def about(self) -> dict[str, Any]:
        labels = self._labels()
        account = None if self.reported is None else self.reported.account
        return {"task": labels.task, "classes": list(labels.classes_), "label_dp": account}

    @exposed(kind="prediction")
    def predictions(self, table_order: bool = False) -> np.ndarray:
        """What was predicted, in the common order or in the order of this party's table."""
        return self._let_out_in_order(self._rows_used, self._take_outputs(), table_order)

    @exposed(kind="statistic")
    def metrics(self) -> dict[str, float]:
        """Of the outputs; through randomised response an estimate of those by true labels."""
        found = self._labels(), self._targets(), self._take_outputs()
        return scored(*found, noise=self._noise)

    def _take_outputs(self) -> np.ndarray:
        outputs, self._outputs = self._outputs, None
        if outputs is None:
            raise NotFitted(f"party {self.site.name!r} predicted nothing. Mend: run first")
        return outputs


class BottomSteps(Trains):
    """The steps of a bottom model: embeddings out, their gradients in."""

    trained: BottomModel
    device: torch.device

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def step(self, gradient: Tensor | None = None, epoch: int | None = None) -> Tensor:
        """Learn from the last batch's gradient; hand out the next batch's embedding."""
        if gradient is not None:
            self._learn(gradient)
        if epoch is not None:
            self.trained.start_epoch(epoch)
        return self.trained.forward()

    @exposed(kind="control", takes={"gradient": "gradient"})
    def finish(self, gradient: Tensor) -> None:
        """Learn from the last gradient, with no embedding to follow."""
        self._learn(gradient)

    def _learn(self, gradient: Tensor) -> None:
        self.trained.backward(gradient)

    @exposed(kind="embedding")
    def embed(self, rows: np.ndarray) -> Tensor:
        """Embeddings of the rows of these numbers, without training."""
        return self.trained.embed(row_numbers(rows, self.device))


class BottomWorker(SplitWorker, BottomSteps):
    """A feature party without labels."""

    trained: BottomModel
    model_type: ClassVar[type[BottomModel]] = BottomModel

    @exposed(kind="control")
    def create(self, config: dict[str, Any]) -> int:
        """Make a fresh bottom; returns the width of its embedding."""
        part = new_part(self.site, self.model, self.part_type)
        part.bottom = self._new_bottom(SplitConfig.from_wire(config))
        return int(part.bottom.module.spec.out)

    @exposed(kind="control")
    def attach(self, segments: list[Any], config: dict[str, Any]) -> None:
        """Take these rows, and be ready to embed them."""
        self.trained = self._new_model(segments, Settings.from_dict(config["settings"]))
        self._watch(self.trained)

    def _new_model(self, segments: Segments, settings: Settings) -> BottomModel:
        return self._model_on(self._rows(segments), settings)

    def _model_on(self, rows: np.ndarray, settings: Settings) -> BottomModel:
        """The bottom over rows at these positions of the table."""
        part = self._part().own_bottom(self.site.name)
        features = self._features(part, rows, settings)
        return self.model_type(part.module, features, settings, self.device)

    @exposed(kind="control")
    def set_order(self, rows: np.ndarray) -> int:
        return self.trained.set_order(rows)

    @exposed(kind="control", takes={"part": "weights"})
    def take_top(self, part: dict[str, Any]) -> None:
        """A copy of the top, with which this party can predict alone."""
        kept = self._part()
        kept.top = kept.pieces()["top"].from_wire({**part, "foreign": True})

    @exposed(kind="embedding")
    def fill_embedding(self) -> Tensor:
        """The embedding [d] of the fill row, which this party has for rows it does not know."""
        part = self._part().own_bottom(self.site.name)
        settings, first = self.trained.settings, row_numbers(np.array([0]), self.device)
        row = self._features(part, np.array([-1]), settings).batch(first)
        part.module.eval()
        with torch.no_grad(), settings.autocast(self.device):
            return part.module(row)[0].to(settings.dtype)


class TopHolder(_Checkpointed):
    """A top in use, at the label party or at the coordinator: it trains, and collects outputs."""

    device: torch.device
    trained: Any
    _spans: list[tuple[str, int, int]]
    _trains = False

    def _use(self, trained: TopModel) -> None:
        self.trained = trained
        self._outputs: list[np.ndarray] = []
        self._seen: list[dict[str, Tensor]] = []

    def _part_top(self) -> TopPart:
        """The top as it is kept."""
        raise NotImplementedError

    def about(self) -> dict[str, Any]:
        part = self._part_top()
        return {
            "task": part.labels.task,
            "classes": list(part.labels.classes_),
            "names": part.names,
            "imputes": part.imputed is not None,
        }

    @exposed(kind="control")
    def set_order(self, rows: np.ndarray) -> int:
        return self.trained.set_order(rows)

    @exposed(kind="control")
    def start_epoch(self, epoch: int) -> None:
        self.trained.start_epoch(epoch)

    @exposed(kind="gradient", takes={"embeddings": "embedding"})
    def step(self, embeddings: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.trained.step(embeddings)

    @exposed(kind="statistic", optional=True)
    def loss(self) -> float:
        return self.trained.take_loss()

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def predict_chunk(
        self,
        rows: np.ndarray,
        embeddings: dict[str, Tensor] | None = None,
        known: list[str] | None = None,
    ) -> None:
        """known: who knows these rows, where the others' embeddings are to be imputed."""
        numbers, part = row_numbers(rows, self.device), self._part_top()
        if known is None or part.imputed is None:
            outputs = self._answers(self.trained.outputs(embeddings or {}, numbers, known))
        else:
            draws = part.imputed.draws(self.trained.embedded(embeddings or {}, numbers, known))
            answers = [self._answers(self.trained.outputs_of(each)) for each in draws]
            outputs = torch.stack(answers).mean(0)
        found = outputs.cpu().numpy()
        self._outputs.append(found if self._trains else self._scaled(rows, found))

    def _answers(self, outputs: Tensor) -> Tensor:
        return outputs if self._part_top().labels.task == "regression" else outputs.softmax(1)

    def _scaled(self, rows: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Probabilities that can be taken at their word, by the kind of each row."""
        scaling = getattr(self._part_top(), "scaling", {})
        usual = usual_scaling(scaling)
        if usual is None:
            return outputs
        found = outputs.copy()
        for name, at, end in self._spans:
            inside = (rows >= at) & (rows < end)
            how = scaling.get(kind_of(name, self.party or "")) or usual
            if inside.any():
                found[inside] = how.of(torch.from_numpy(outputs[inside])).numpy()
        return found

    def _fit_scaling(self, kind: str, known: Tensor) -> None:
        """From the collected outputs of held-out rows and their classes, or likelihoods of these.

        Too few rows tell nothing.
        """
        collected, self._outputs = self._outputs, []
        if len(known) >= ENOUGH:
            outputs = torch.from_numpy(np.concatenate(collected))
            self._part_top().scaling[kind] = Scaling.fit(outputs, known)

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def see(self, rows: np.ndarray, embeddings: dict[str, Tensor]) -> None:
        """Embeddings of rows that all parties know, after the training, to learn to impute them."""
        numbers = row_numbers(rows, self.device)
        self._seen.append(self.trained.embedded(embeddings, numbers, self.trained.names))

    @exposed(kind="control", takes={"fixed": "embedding"})
    def learn_imputation(self, fixed: dict[str, Tensor]) -> None:
        """From what was seen; `fixed` are put in for their parties as they are."""
        names = self.trained.names
        seen = {name: torch.cat([each[name] for each in self._seen]) for name in names}
        broken = [name for name, each in seen.items() if not each.isfinite().all()]
        if broken:
            raise DataError(
                f"the training has diverged: embeddings of {', '.join(broken)} are no numbers",
                mend="a smaller lr",
            )
        self._part_top().imputed = ImputedEmbeddings.of(seen, fixed)
        self._seen = []

    def _take_outputs(self) -> np.ndarray:
        """Probabilities [n, C], or values [n] in the label's own units; collected once."""
        labels = self._part_top().labels
        if not self._outputs:
            classes = len(labels.classes_)
            return np.zeros((0, classes) if classes else 0, np.float32)
        outputs = np.concatenate(self._outputs)
        self._outputs = []
        return labels.told(outputs[:, 0]) if labels.task == "regression" else outputs

    @exposed(kind="weights")
    def give_top(self) -> dict[str, Any]:
        """The top with its classes and imputation, for a party that may predict alone."""
        return self._part_top().to_wire()


class TopPlan(NamedTuple):
    """What a top is made from; `widths` are the embedding widths of `names`."""

    config: SplitConfig
    names: list[str]
    widths: list[int]
    labels: LabelEncoder
    weights: torch.Generator

    @property
    def out(self) -> int:
        """How many numbers it answers with: one for each class, or one."""
        return max(1, len(self.labels.classes_))


class TopWorker(JudgingWorker, TopHolder):
    """The label party: its labels, the top, and its own bottom when it has features."""

    model_type: ClassVar[type[TopModel]] = TopModel
    soft_targets: ClassVar[bool] = True

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._asked: list[np.ndarray] = []
        self._shown: list[np.ndarray] = []

    @exposed(kind="control")
    def create(self, config: dict[str, Any], names: list[str], widths: list[int]) -> dict[str, Any]:
        """Make a fresh top (and own bottom); returns the task and the classes' names.

        `widths` are the embedding widths of `names`; this party's own is filled in here.
        """
        how, own, widths = SplitConfig.from_wire(config), self.site.name, list(widths)
        part = new_part(self.site, self.model, self.part_type)
        if own in names:
            part.bottom = self._new_bottom(how)
            widths[names.index(own)] = part.bottom.module.spec.out
        labels = self._fitted_labels(how.task, how.settings.dtype_name)
        weights = self.site.torch_generator(f"top {how.seed}", "cpu")
        before = part.top
        part.top = self._new_top(TopPlan(how, names, widths, labels, weights))
        if isinstance(before, TopPart):  # of the training that held rows out
            part.top.scaling = before.scaling
        if self.reported is None:  # that model has learnt what the labels themselves are
            part.alone = own_model(self.site, self.scope.partition("@")[0])
        return self.about()

    def _new_top(self, plan: TopPlan) -> Any:
        """A top with fresh weights, as it is kept."""
        top = Top(TopSpec(tuple(plan.widths), plan.config.top, plan.out))
        return TopPart(plan.names, plan.labels, initialise(top, plan.weights))

    @exposed(kind="control")
    def about(self) -> dict[str, Any]:
        return super().about() | {
            "label_dp": None if self.reported is None else self.reported.account
        }

    @exposed(kind="control")
    def attach(self, segments: list[Any], config: dict[str, Any], train: bool) -> int:
        """Take these rows; returns how many there are."""
        self._rows_used = self._rows(segments)
        self._spans = spans(segments)
        self._use(self._new_model(segments, Settings.from_dict(config["settings"]), train))
        self._trains = train
        self._asked, self._shown = [], []
        if train:
            self._watch(self.trained)
            targets = self._targets()
            self._has_label = has_label(targets)
            self.trained.set_targets(targets)
            likelihoods = self._likelihoods()
            if likelihoods is not None:
                self.trained.set_likelihoods(likelihoods)
        return len(self._rows_used)

    def _new_model(self, segments: Segments, settings: Settings, train: bool) -> TopModel:
        part, top = self._part(), self._part_top()
        if self.site.name not in top.names:
            return self.model_type(top.module, settings, self.device, names=top.names)
        return self.model_type(
            top.module,
            settings,
            self.device,
            names=top.names,
            own=self.site.name,
            bottom=part.bottom.module,
            features=self._features(part.bottom, self._rows_used, settings),
        )

    @exposed(kind="control")
    def labelled(self) -> np.ndarray | None:
        """The row numbers that have a label; None when all have (so that nothing is said)."""
        known = has_label(self._targets())
        return None if known.all() else np.flatnonzero(known)

    @exposed(kind="control")
    def hold_out(self, rows: np.ndarray, share: float, wanted: int = 0) -> np.ndarray:
        """Some of these rows, to judge a training by; none where that would tell of too few.

        Of every class a share, or more where `wanted` rows would be more, by a number that each id
        keeps, and of people known to all parties where there are enough: trainings that draw anew
        each time, or among others, would be asked about ever new sets of rows, and there is an end
        to those (`federation.rows`). For the same reason the trainings of a cross-validation, and
        those after it, hold out one of its folds.

        Classes count where the rows are all labelled ones of their segments, in a table that nobody
        cut: who chooses rows until one class has too few under the share, and another has not,
        would be told which row is what.
        """
        own, account = self._rows_used[rows], self.site.rows
        ids = ids_of(self.table, own)
        folds = folds_of(self.site, ids)
        if (folds >= 0).any():
            held = folds == folds[folds >= 0].min()
            return rows[:0] if held.sum() == (folds >= 0).sum() else rows[held]
        drawn = np.where(own >= 0, self.site.draws_of(ids), 1.0)
        shared = np.where(pd.Series(ids, dtype=object).isin(self._shared_ids()), drawn, 1.0)
        classes = self._targets()[rows] if self._are_whole(rows) else np.zeros(len(rows), np.int64)
        for numbers in (shared, drawn):
            there = numbers < 1.0
            more = max(share, min(MOST_JUDGES, wanted / max(1, there.sum())))
            held = np.zeros(len(rows), bool)
            held[there] = judges_of(numbers[there], more, account.least, classes[there])
            if numbers is shared and held.sum() < wanted / 2:
                continue
            sets = [own[held], own[~held]]
            if held.any() and account.would_admit(self.table, sets, self.about_rows("metrics")):
                return rows[held]
        return rows[:0]

    def _are_whole(self, rows: np.ndarray) -> bool:
        """Whether these are all labelled rows of the segments that they are in, and nobody cut."""
        if self.site.rows.is_cut(self.table):
            return False
        labelled = np.flatnonzero(has_label(self._targets()))
        names = {name for name, at, end in self._spans if ((rows >= at) & (rows < end)).any()}
        segments = [[name, end - at] for name, at, end in self._spans]
        return np.array_equal(np.sort(rows), np.sort(rows_of(segments, list(names), labelled)))

    def _shared_ids(self) -> list[Any]:
        """Of the rows that the run began with, those that all parties know."""
        first = self.site.alignments.get(FIRST)
        return [] if first is None else self.site.tables[FIRST].ids[first.aligned].tolist()

    @exposed(kind="control")
    def epoch_alone(self, epoch: int) -> None:
        """A whole epoch without other parties: nothing needs to cross."""
        self.start_epoch(epoch)
        for _ in self.trained.order.sizes:
            self.trained.step({})

    def _note_taught(self, numbers: np.ndarray) -> None:
        """A step on one label is in every prediction, metric and weight that is told after it."""
        rows, account = self._targets_of(numbers), self.site.rows
        if len(rows) and account.are_few(rows, MIN_ROWS):
            raise Refused(
                self.site.name,
                f"a step on the labels of fewer than {min(account.least, MIN_ROWS)} of its rows",
                "a larger batch_size, more labelled rows, or a lower min_rows in its policy",
            )
        super()._note_taught(numbers)

    def _teaching(self, numbers: np.ndarray) -> np.ndarray:
        return super()._teaching(numbers[self._has_label[numbers]])

    def _targets_of(self, numbers: np.ndarray) -> np.ndarray:
        """Those of the numbered rows on whose labels a step rests."""
        return self._teaching(numbers)

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def see(self, rows: np.ndarray, embeddings: dict[str, Tensor]) -> None:
        self._shown.append(rows)
        super().see(rows, embeddings)

    @exposed(kind="control", takes={"fixed": "embedding"})
    def learn_imputation(self, fixed: dict[str, Tensor]) -> None:
        self._note_imputed(np.concatenate(self._shown))
        self._shown = []
        super().learn_imputation(fixed)

    def _note_imputed(self, numbers: np.ndarray) -> None:
        """A top that goes elsewhere has means of the embeddings of these rows in it."""
        rows, account = self._rows_used[numbers], self.site.rows
        told = account.admits("learn_imputation", self.table, rows, "imputation")
        self._part().few |= not told

    @exposed(kind="weights")
    def give_top(self) -> dict[str, Any]:
        if self._part().few:
            raise Refused(
                self.site.name,
                "a top that few rows at a time have taught would tell of them, and does not leave",
                f"a batch_size from {self.site.rows.least} on; trainings on the same rows, or on "
                "others; or do not hand out the model",
            )
        return super().give_top()

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def predict_chunk(
        self,
        rows: np.ndarray,
        embeddings: dict[str, Tensor] | None = None,
        known: list[str] | None = None,
    ) -> None:
        """Rows that nobody else knows are answered for by this party's own model, if there is."""
        self._asked.append(rows)
        alone = self._part().alone
        if alone is None or alone.bottom is None or known != [self.site.name]:
            super().predict_chunk(rows, embeddings, known)
        else:
            settings, classes = self.trained.settings, self._part_top().labels.classes_
            features = self._features(alone.bottom, self._rows_used[rows], settings)
            outputs = own_outputs(alone, features, len(rows), settings, classes)
            self._outputs.append(outputs.cpu().numpy())

    @exposed(kind="control")
    def learn_scaling(self, rows: np.ndarray, kind: str) -> None:
        """Learn from the collected outputs of held-out rows, as rows of this kind, how far outputs
        can be taken at their word. Predictions show what was learnt: from few rows nothing is."""
        self._require_outputs_of(rows)
        self._asked, account = [], self.site.rows
        known_alone = kind == self.site.name and self._part().alone is not None
        told = self._labelled_of(rows)
        if known_alone or not account.admits("learn_scaling", self.table, told, "scaling"):
            self._outputs = []
            return
        likely = self._label_likelihood()
        if likely is None:
            known = torch.from_numpy(self._targets()[rows])
        else:
            classes = self._part_top().labels.classes_
            known = torch.from_numpy(likely.of(classes)[self._rows_used[rows]])
        self._fit_scaling(kind, known)

    def _take_outputs(self) -> np.ndarray:
        self._asked = []
        return TopHolder._take_outputs(self)

    def _require_outputs_of(self, rows: np.ndarray | None) -> None:
        """Labels are compared with what was predicted of their own rows, each once.

        Who chose which output stands beside which label would read the label off the score.
        """
        wanted = np.arange(len(self._rows_used)) if rows is None else rows
        require_outputs_of(self.site.name, wanted, self._asked)

    @exposed(kind="statistic")
    def uncertainty_report(self) -> dict[str, Any]:
        self._require_outputs_of(None)
        return super().uncertainty_report()

    @exposed(kind="statistic")
    def metrics(self, rows: np.ndarray | None = None) -> dict[str, float]:
        """Of the collected outputs. Under randomised response: in training how well reports are
        predicted, otherwise an estimate of the metrics by true labels.

        In training also the loss that a temperature would leave, by the likelihood of what is said
        of a row where that is known: what a network knows beside how sure it is, which is put right
        afterwards (Berta et al., "Rethinking Early Stopping: Refine, Then Calibrate", 2025).
        """
        self._require_outputs_of(rows)
        targets = self._targets()
        targets = targets if rows is None else targets[rows]
        if not self._trains:
            return scored(self._labels(), targets, self._take_outputs(), noise=self._noise)
        outputs = self._outputs.copy()
        reports = self._noise if self.soft_targets else None
        found = scored(self._labels(), targets, self._take_outputs(), reports)
        if rows is not None and outputs and outputs[0].shape[1] > 1:
            made = np.concatenate(outputs)
            found["calibrated_loss"] = min(
                float(self._losses(made, rows, each).mean()) for each in TEMPERATURES
            )
        return found

    def _losses(self, outputs: np.ndarray, rows: np.ndarray, temperature: float = 1.0) -> Tensor:
        """The loss of each of these rows, as the training has it."""
        targets = self.trained.targets[row_numbers(rows, self.device)]
        found = torch.from_numpy(outputs).to(self.device, torch.float64)
        if found.shape[1] == 1:
            return (found[:, 0] - targets).square()
        return label_loss(found.clamp_min(1e-7).log() / temperature, targets)

    @exposed(kind="statistic")
    def collapsed(self, rows: np.ndarray, train: np.ndarray) -> bool:
        """Whether the mean of the training rows (the shares of their classes) does better on
        held-out rows than the collected outputs, beyond the error of the mean, or no worse where
        these do not rank rows either. Told is yes or no."""
        self._require_outputs_of(rows)
        outputs, self._outputs, self._asked = np.concatenate(self._outputs), [], []
        return self._collapsed(outputs, rows, train)

    def _collapsed(self, outputs: np.ndarray, rows: np.ndarray, train: np.ndarray) -> bool:
        known = self.trained.targets[row_numbers(train, self.device)].cpu()
        regression = outputs.shape[1] == 1
        mean = known.double().mean(0)[None] if regression else shares_of(known, outputs.shape[1])
        constant = np.repeat(mean[None].numpy(), len(rows), 0)
        harm = self._losses(outputs, rows) - self._losses(constant, rows)
        worse, error = float(harm.mean()), float(harm.std()) / len(harm) ** 0.5
        if regression or not worse >= 0:
            return not worse < error
        return worse > error or not metrics.auc(self._targets()[rows], outputs) > 0.5

    @exposed(kind="prediction")
    def predictions(self, table_order: bool = False) -> np.ndarray:
        """What was predicted, in the common order or in the order of this party's table."""
        asked = self._rows_used[np.concatenate([np.zeros(0, np.int64), *self._asked])]
        foreign = self._part_top().foreign
        return self._let_out_in_order(asked, self._take_outputs(), table_order, foreign=foreign)

    @exposed(kind="control")
    def leave_outputs(self, name: str) -> None:
        """Keep the collected outputs at this party, for a model that several have a say in."""
        self._require_outputs_of(None)
        classes, ids = self._labels().classes_, ids_of(self.table, self._rows_used)
        leave_outputs(self.site, name, ids, self._take_outputs(), classes)

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method == "loss":
            rows = np.flatnonzero(has_label(self._targets()))
            times = self.trained.order.times(len(self._rows_used))[rows]
            self.site.rows.require(method, self.table, self._rows_used[rows], times)
            return [self._labelled_of(self.trained.loss_rows())]
        if method == "collapsed":
            return [self._labelled_of(kwargs[each]) for each in ("rows", "train")]
        return super().rows_asked(method, kwargs)

    def _labels(self) -> LabelEncoder:
        return self._part_top().labels

    def _likelihoods(self) -> np.ndarray | None:
        """How likely what is said of each row is under each class, where labels are corrected."""
        found, labels = self._label_likelihood(), self._part_top().labels
        if found is None or not self.soft_targets or labels.task == "regression":
            return None
        return found.of(labels.classes_)[self._rows_used]

    def _label(self) -> str:
        part = self._part().top
        return self._label_column(part.labels if part is not None else None)

    def _part_top(self) -> Any:
        part = self._part().top
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
    usual = usual_scaling(part.top.scaling)
    found = found if usual is None else usual.of(found)
    known = list(part.top.labels.classes_)
    ordered = found.new_zeros(rows, len(classes))
    for number, value in enumerate(classes):
        if value in known:
            ordered[:, number] = found[:, known.index(value)]
    return ordered


def usual_scaling(scaling: Mapping[str, Scaling]) -> Scaling | None:
    """For rows of a kind that none was learnt for; a party's own model knows one kind of row."""
    return scaling.get(ALIGNED) or next(iter(scaling.values()), None)


def bottom_spec(
    encoder: Encoder, hidden: tuple[int, ...], out: int, conv: str = "cnn"
) -> BottomSpec:
    """Of a bottom for what an encoder gives."""
    return BottomSpec(
        numeric=len(encoder.numeric_names),
        cardinalities=tuple(encoder.cardinalities),
        block_shapes=tuple(encoder.block_shapes.values()),
        hidden=hidden,
        out=out,
        conv=conv,
    )


def scored(
    labels: LabelEncoder,
    targets: np.ndarray,
    outputs: np.ndarray,
    predicted: np.ndarray | None = None,
    noise: np.ndarray | None = None,
) -> dict[str, float]:
    """Metrics of outputs against encoded targets; unlabelled rows left out.

    predicted: P(reported | class) under randomised response, where reports are predicted;
    noise: the same, where metrics by the classes themselves are to be estimated.
    """
    known = has_label(targets)
    if labels.task == "regression":
        return metrics.regression(labels.inverse(targets[known]), outputs[known])
    found = outputs[known] if predicted is None else outputs[known] @ predicted
    return metrics.classification(targets[known], found, noise)


def require_outputs_of(party: str, wanted: np.ndarray, asked: Sequence[np.ndarray]) -> None:
    """`Refused` unless the outputs collected, by their row numbers, are of the rows wanted."""
    if not np.array_equal(wanted, np.concatenate([np.zeros(0, np.int64), *asked])):
        raise Refused(
            party,
            "outputs of other rows would be compared with its labels",
            "predict the rows that are judged, each once and in their order, and none beside",
        )


def has_label(targets: np.ndarray) -> np.ndarray:
    """Which encoded targets are there: numbers, or classes from 0."""
    known: np.ndarray = ~np.isnan(targets) if targets.dtype.kind == "f" else targets >= 0
    return known


def judges_of(drawn: np.ndarray, share: float, least: int, classes: np.ndarray) -> np.ndarray:
    """As `federation.rows.judges`, of every class: at least half of its share, however rare."""
    held = np.zeros(len(drawn), bool)
    if classes.dtype.kind != "f":
        for each in np.unique(classes):
            mine = classes == each
            held[mine] = judges(drawn[mine], share, int(share * mine.sum() / 2))
    return held if held.sum() >= least else judges(drawn, share, least)


def row_numbers(rows: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows)).to(device)


# ---------------------------------------------------------------------------------- coordinator

CANNOT_SEAL = (
    "seal=True, but the top is at the coordinator: it must read the embeddings. "
    "Mend: leave seal out, or take a method whose labels are at one party, such as VFL or RISA"
)


class ServerTop(TopHolder):
    """The top at the coordinator: the calls of `TopWorker`, with soft labels that it was given.

    Soft labels [N, C] over `classes`, in the order of the training rows.

    own_seed: makes of a seed that all can know one of the coordinator's own
    (`Federation.own_seed`): feature parties are sent gradients, and with a top that they can
    compute these would tell them the labels. likelihood: of what was said of each training row,
    under each class [N, C], by which `learn_scaling` judges what is predicted of it.
    """

    def __init__(
        self,
        classes: Sequence[Any],
        *,
        targets: np.ndarray | None = None,
        device: str = "cpu",
        seed: int = 0,
        own_seed: Callable[[int, str], int] = lambda seed, purpose: seed,
    ) -> None:
        self.classes = list(classes)
        self.targets: np.ndarray | None = None
        self.likelihood: np.ndarray | None = None
        self.device = resolve_device(device)
        self.seed = seed
        self.own_seed = own_seed
        self.kept = Part()
        self._attached = False
        if targets is not None:
            self.set_targets(targets)

    def set_targets(self, targets: np.ndarray) -> None:
        """New soft labels for the same rows, from the next epoch on."""
        if targets.ndim != 2 or targets.shape[1] != len(self.classes):
            raise DataError(
                f"soft labels of shape {targets.shape} for {len(self.classes)} classes",
                mend="one row per training row and one column per class",
            )
        if self._attached and self.targets is not None:
            _check_count(targets, len(self.targets))
            self.trained.set_targets(targets)
        self.targets = targets

    def create(self, config: dict[str, Any], names: list[str], widths: list[int]) -> dict[str, Any]:
        how, series = SplitConfig.from_wire(config), pd.Series(self.classes, name="label")
        labels = LabelEncoder("multiclass").fit(series, infer_column("label", series, "nominal"))
        labels.classes_ = list(self.classes)  # columns of the soft labels keep their order
        spec = TopSpec(tuple(widths), how.top, len(self.classes))
        mixed = int(np.random.SeedSequence([self.seed, how.seed, 7]).generate_state(1)[0])
        generator = begin(torch.Generator(), self.own_seed(mixed, "top"))
        self.kept = Part(top=TopPart(list(names), labels, initialise(Top(spec), generator)))
        return self.about()

    def attach(self, segments: list[Any], config: dict[str, Any], train: bool) -> int:
        rows, part = sum(int(count) for _, count in segments), self._part_top()
        settings = Settings.from_dict(config["settings"])
        trained = ServerTopModel(part.module, settings, self.device, names=part.names)
        if train:
            _check_count(() if self.targets is None else self.targets, rows)
            assert self.targets is not None
            trained.set_targets(self.targets)
        self._use(trained)
        self._spans, self._trains = spans(segments), train
        self._attached = True
        return rows

    def labelled(self) -> np.ndarray | None:
        """Rows with any vote at all."""
        assert self.targets is not None
        known = self.targets.sum(1) > 0
        return None if known.all() else np.flatnonzero(known)

    def learn_scaling(self, rows: np.ndarray, kind: str) -> None:
        """How far the collected outputs of these rows are to be believed, as rows of this kind."""
        if self.likelihood is None:
            self._outputs = []
        else:
            self._fit_scaling(kind, torch.from_numpy(self.likelihood[rows]))

    @property
    def scaling(self) -> dict[str, Scaling]:
        return self._part_top().scaling

    def hold_out(self, rows: np.ndarray, share: float, wanted: int = 0) -> np.ndarray:
        """Some of these rows, to judge a training by."""
        drawn = np.random.default_rng(self.own_seed(0, "rows held out")).random(len(rows))
        return rows[judges(drawn, share, MIN_ROWS)]

    def metrics(self, rows: np.ndarray | None = None) -> dict[str, float]:
        """Against the likeliest class of the soft labels: agreement, not truth."""
        assert self.targets is not None
        hard = np.where(self.targets.sum(1) > 0, self.targets.argmax(1), -1)
        targets = hard if rows is None else hard[rows]
        return scored(self._part_top().labels, targets, self._take_outputs())

    def predictions(self, table_order: bool = False) -> np.ndarray:
        return self._take_outputs()

    def save(self, path: str, member: str = "") -> None:
        write_file(self._folder(path) / FILE, self.kept.to_wire())

    def load(self, path: str, member: str = "") -> None:
        self.kept = Part.from_wire(read_file(self._folder(path) / FILE))
        self.classes = list(self._part_top().labels.classes_)

    def _folder(self, path: str) -> Path:
        return Path(path) / COORDINATOR

    def _part_top(self) -> TopPart:
        if self.kept.top is None:
            raise DataError(
                "the coordinator holds no top model", mend="fit or load the model first"
            )
        return self.kept.top


def _check_count(targets: Sized, rows: int) -> None:
    if len(targets) != rows:
        raise DataError(
            f"{len(targets)} soft labels for {rows} training rows", mend="give one for each row"
        )
