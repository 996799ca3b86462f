"""Evidential split training at the parties: bottoms that embed what they know, heads that judge.

The heads live at the label party with that party's own bottom; embeddings go up and gradients come
down. A party only embeds rows it has: for all others its mean row is embedded once a batch. Its
columns add up to evidence of their own (`columns.py`): scores go up, K numbers for each row and
model, and their gradients come down, a few dozen times in all. Labels, pseudo-labels of passive
rows and opinions on rows stay at the label party; row numbers that take part in the training are
said to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fedmend.data.encode import LabelEncoder
from fedmend.errors import DataError, Refused
from fedmend.federation import Site, exposed
from fedmend.federation.rows import Asked, Weighted
from fedmend.methods.risa.columns import ALONE, Columns, Ridge, Scores, Sum, mixed
from fedmend.methods.risa.network import (
    JOINT,
    BottomEnsemble,
    EnsembleSpec,
    EvidenceTop,
    EvidenceTopSpec,
    MeanRow,
    Objective,
    draw,
    mean_row,
)
from fedmend.methods.risa.opinions import probability
from fedmend.methods.risa.training import EvidenceBottom, EvidenceTopModel, Watch
from fedmend.methods.risa.trust import (
    COLUMNS,
    Calibration,
    Trusted,
    fit_pool,
    fit_sources,
    subsets,
)
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.features import ALIGNED, Features, Segments, digest_of, is_known
from fedmend.split.labels import label_loss, row_confidence, shares_of
from fedmend.split.models import BottomModel, TopModel
from fedmend.split.partial import SharesBottom, same_shapes
from fedmend.split.parts import BottomPart, Part, filled, part_of, weights_of
from fedmend.split.workers import (
    BottomWorker,
    SplitWorker,
    TopPlan,
    TopWorker,
    has_label,
    require_outputs_of,
    row_numbers,
    scored,
)

_WITHOUT = "without "

_ABOUT = {"made_up": "columns", "mass": "opinions", "carried": "contributions"}
"""What is asked of rows that is not about their labels."""

# ---------------------------------------------------------------------------------- what is kept


@dataclass
class HeadsPart:
    """The label party's: heads, classes, and the imputed embedding of each party's side.

    names: the feature parties in the order of the heads. pseudo: pseudo-labels of rows that have
    none, kept in memory only (see `EvidenceTopWorker.pseudo_labels`). foreign: the heads were sent
    in from outside.
    """

    names: list[str]
    labels: LabelEncoder
    module: EvidenceTop
    how: Objective
    calibration: Calibration = field(default_factory=Calibration)
    imputed: dict[str, Tensor] = field(default_factory=dict)
    pseudo: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    foreign: bool = False

    def to_wire(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "labels": self.labels.to_dict(),
            "spec": self.module.spec.to_dict(),
            "weights": weights_of(self.module),
            "how": asdict(self.how),
            "calibration": self.calibration.to_wire(),
            "imputed": {name: value.cpu() for name, value in self.imputed.items()},
            "foreign": self.foreign,
        }

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> HeadsPart:
        return cls(
            list(saved["names"]),
            LabelEncoder.from_dict(saved["labels"]),
            filled(EvidenceTop(EvidenceTopSpec.from_dict(saved["spec"])), saved["weights"]),
            Objective(**saved["how"]),
            Calibration.from_wire(saved["calibration"]),
            dict(saved["imputed"]),
            foreign=bool(saved["foreign"]),
        )


@dataclass
class EvidencePart(Part):
    """Everything one party holds of one model; scores: its additive evidence."""

    mark: ClassVar[str] = "heads"

    mean: MeanRow | None = None
    scores: Scores | None = None

    @classmethod
    def pieces(cls) -> dict[str, type[Any]]:
        return {"bottom": BottomPart, "mean": MeanRow, "top": HeadsPart, "scores": Scores}

    def to_wire(self) -> dict[str, Any]:
        saved = super().to_wire()
        saved[self.mark] = saved.pop("top")
        return saved

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> Self:
        return super().from_wire({**saved, "top": saved[cls.mark]})


# ---------------------------------------------------------------------------------- both sides


class EvidenceWorker(SharesBottom, SplitWorker):
    """What bottoms and heads have in common: own rows, the mean row, several bottoms."""

    part_type: ClassVar[type[Part]] = EvidencePart
    keeps_numbers: ClassVar[bool] = True

    @exposed(kind="control")
    def drop(self) -> None:
        """Forget a model that only served to train another."""
        self.site.state.get("parts", {}).pop(self.model, None)

    def _bottoms(self, options: Mapping[str, Any]) -> int:
        """How many bottoms stand side by side."""
        return int(options["members"])

    def _new_bottom(self, config: SplitConfig) -> BottomPart:
        part = super()._new_bottom(config)
        bottoms = self._bottoms(config.options)
        if bottoms > 1:
            module = BottomEnsemble(EnsembleSpec(part.module.spec, bottoms))
            draw(module, self.site.torch_generator(f"bottoms {config.seed}", "cpu"))
            # What images look like is learnt once, and so are the layers that rest on it.
            module.take_networks(part.module)
            part.module = module
        return part

    def _own(self, segments: Segments, settings: Settings) -> Features:
        """This party's rows among the numbered ones; when it trains, its mean row as well."""
        part, rows = self._part(), self._rows(segments)
        encoded, placed = self._rows_encoded(part.own_bottom(self.site.name), rows)
        if part.mean is None:
            overlapping = sum(int(str(count)) for name, count in segments if name == ALIGNED)
            observed = placed[:overlapping]
            trust = row_confidence(self.site, self.scope.partition("@")[0])
            if trust is not None:
                observed = observed[trust[rows[:overlapping]] == 1.0]
            part.mean = mean_row(encoded, observed, party=self.site.name)
        return Features(encoded, placed, self.device, settings.dtype)

    def _with_scores(self, found: Tensor, own: Features, numbers: Tensor) -> Tensor:
        """Embeddings and, behind them, what the rows' columns add up to, where that is learnt."""
        scores = self._part().scores
        if scores is None:
            return found
        added = scores.of(own.batch(own.known(numbers))).to(found)
        return torch.cat([found, torch.cat([added, added.new_zeros(1, added.shape[1])])], 1)


# ---------------------------------------------------------------------------------- feature party


class EvidenceBottomWorker(EvidenceWorker, BottomWorker):
    """A feature party without labels."""

    _columns: Columns
    _ridge: Ridge

    def _new_model(self, segments: Segments, settings: Settings) -> BottomModel:
        part = self._part()
        own = self._own(segments, settings)
        mine = [is_known(name, self.site.name) for name, _ in segments]
        return EvidenceBottom(part.bottom.module, own, part.mean, mine, settings, self.device)

    @exposed(kind="prediction")
    def confidence(self) -> np.ndarray | None:
        """How far this party's side of each row is trusted; None where nothing was completed."""
        found = row_confidence(self.site, self.scope.partition("@")[0])
        if found is None:
            return None
        return np.where(self._attached >= 0, found[self._attached], 1.0).astype(np.float32)

    @exposed(kind="embedding")
    def embed(self, rows: np.ndarray) -> Tensor:
        """Embeddings of those of the rows it has, and last of its mean row; no training.

        Behind the embeddings what its columns add up to, where it has learnt that.
        """
        numbers = row_numbers(rows, self.device)
        return self._with_scores(self.trained.embed(numbers), self.trained.features, numbers)

    # ------------------------------------------------------------------ what its columns add up to

    @exposed(kind="count")
    def additive_columns(self, rows: np.ndarray) -> int:
        """How many columns, steps and categories these overlapping rows can say something of."""
        own, encoder = self.trained.features, self._part().bottom.encoder
        everything = own.batch(own.known(torch.arange(own.n_rows, device=self.device)))
        overlapping = own.batch(row_numbers(rows, self.device))
        self._columns = Columns.of(everything, encoder.cardinalities, overlapping)
        return len(self._columns.used)

    def about_rows(self, method: str) -> str:
        own = method == "additive_columns"  # a count that no sum over columns is subtracted from
        return "columns that vary" if own else super().about_rows(method)

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method == "additive_columns":
            return [self._attached[kwargs["rows"]]]
        return super().rows_asked(method, kwargs)

    @exposed(kind="embedding")
    def additive_begin(
        self, rows: np.ndarray, ridges: list[float], blocks: list[int], classes: int
    ) -> Tensor:
        """Models with these ridges on these rows, nothing learnt yet; returns their scores."""
        matrix = self._columns.matrix(self.trained.features.batch(row_numbers(rows, self.device)))
        self._ridge = Ridge(matrix, ridges, blocks, classes)
        return self._ridge.scores()

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def additive_step(self, gradient: Tensor) -> Tensor:
        self._ridge.step(gradient.to(self.device))
        return self._ridge.scores()

    @exposed(kind="control")
    def additive_keep(self, aligned: list[list[float]], alone: list[list[float]]) -> None:
        """Keep means of models (number, share): beside others' opinions, and without."""
        both = [self._ridge.mean({int(n): share for n, share in each}) for each in (aligned, alone)]
        self._part().scores = Scores(self._columns, *both)


# ---------------------------------------------------------------------------------- label party


class EvidenceTopWorker(EvidenceWorker, TopWorker):
    """The label party: its labels, the heads, and its own bottom when it has features."""

    trained: EvidenceTopModel
    _sum: Sum
    _sum_rows: np.ndarray

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._judged: dict[str, list[dict[str, Tensor]]] = {}
        self._judged_rows: dict[str, list[np.ndarray]] = {}
        self._added: dict[str, dict[str, Tensor]] = {}
        self._shapes: dict[str, Any] = {}

    # ------------------------------------------------------------------ setting up

    @exposed(kind="control")
    def create(
        self,
        config: dict[str, Any],
        names: list[str],
        widths: list[int],
        shapes: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Make fresh heads (and an own bottom); returns the task and the classes' names.

        shapes: of the other parties' bottoms, where bottoms alike are shared and have one head.
        """
        self._shapes = shapes or {}
        return super().create(config, names, widths)

    def _bottoms(self, options: Mapping[str, Any]) -> int:
        return int(options["members"]) * (2 if options["solo"] else 1)

    def _new_top(self, plan: TopPlan) -> Any:
        own, names, config = self.site.name, plan.names, plan.config
        options = config.options
        if plan.labels.task == "regression":
            raise DataError(
                "is a number to be predicted; evidence is for classes",
                party=own,
                column=self._label(),
                mend="use LocalVFL, or task='multiclass' if these numbers are classes",
            )
        spec = EvidenceTopSpec(
            tuple(plan.widths),
            config.top,
            plan.out,
            heads=bool(options["heads"]),
            joint=bool(options["joint"]),
            members=int(options["members"]),
            solo=names.index(own) if own in names and options["solo"] else -1,
            same_head=self._same_head(names, self._shapes),
        )
        module: Any = draw(EvidenceTop(spec), plan.weights)
        return HeadsPart(list(names), plan.labels, module, Objective(**options["objective"]))

    def _same_head(self, names: list[str], shapes: dict[str, Any]) -> tuple[int, ...]:
        """Whose bottoms are shared has one head; by party the number of its own."""
        if not shapes:
            return ()
        groups = same_shapes(shapes | {self.site.name: self.bottom_shapes()})
        first = {name: names.index(group[0]) for group in groups for name in group}
        return tuple(first.get(name, number) for number, name in enumerate(names))

    def _new_model(self, segments: Segments, settings: Settings, train: bool) -> TopModel:
        part, heads = self._part(), self._part_top()
        self._judged, self._judged_rows = {}, {}
        has, watch = part.bottom is not None, train and heads.how.selects
        return EvidenceTopModel(
            heads.module,
            heads.how,
            settings,
            self.device,
            names=heads.names,
            segments=segments,
            own=self.site.name if has else None,
            bottom=part.bottom.module if has else None,
            features=self._own(segments, settings) if has else None,
            mean=part.mean,
            watch=Watch(len(self._rows_used), self.device) if watch else None,
        )

    @exposed(kind="control")
    def set_unseen(self, rows: np.ndarray, members: np.ndarray) -> None:
        """Which member does not learn from each of these rows."""
        unseen = torch.full((len(self._rows_used),), -1, dtype=torch.int64)
        unseen[torch.from_numpy(rows)] = torch.from_numpy(members)
        self.trained.unseen = unseen.to(self.device)

    @exposed(kind="control", takes={"reliable": "prediction"})
    def set_reliability(self, reliable: dict[str, np.ndarray]) -> None:
        """How far each party's side of every row is trusted, from 0 to 1; by default wholly."""
        self.trained.reliable = {
            name: torch.from_numpy(values).to(self.device, self.trained.settings.dtype)
            for name, values in reliable.items()
        }

    # ------------------------------------------------------------------ pseudo-labels, selection

    @exposed(kind="prediction")
    def make_labels(self, party: str, first: int, threshold: float) -> np.ndarray:
        """Labels for rows of a passive party of which the model is so sure; those rows' numbers.

        The rows collected last (kind `party`) are numbered from `first` on.
        """
        p, _ = self._opinions(party)
        sure = p.max(1)
        chosen = sure >= threshold
        self._part_top().pseudo[party] = {
            "label": p.argmax(1),
            "sure": sure,
            "chosen": chosen.copy(),
            "kept": chosen.copy(),
        }
        return first + np.flatnonzero(chosen)

    @exposed(kind="control")
    def take_labels(self, other: str, party: str, first: int) -> None:
        """The labels that another model, f_ST, made for a party's rows."""
        found, trained = part_of(self.site, other).top.pseudo[party], self.trained
        assert trained.targets is not None
        target = found["label"][found["chosen"]]
        if trained.likely:
            # Among likelihoods of what was said of rows, a pseudo-label is a certain class.
            target = np.eye(len(self._part_top().labels.classes_))[target]
        at = row_numbers(first + np.flatnonzero(found["chosen"]), self.device)
        trained.targets[at] = torch.from_numpy(target).to(self.device, trained.targets.dtype)
        self._part_top().pseudo[party] = found

    @exposed(kind="prediction")
    def keep_sure(self, rows: np.ndarray, limit: float, party: str, first: int) -> np.ndarray:
        """Of these imputed rows those whose mean uncertainty since last asked is within `limit`."""
        assert self.trained.watch is not None
        kept = self.trained.watch.below(rows, limit)
        pseudo = self._part_top().pseudo.get(party)
        if pseudo is not None:
            pseudo["kept"] = np.zeros_like(pseudo["chosen"])
            pseudo["kept"][kept - first] = True
        return kept

    @exposed(kind="control")
    def forget_doubt(self) -> None:
        assert self.trained.watch is not None
        self.trained.watch.clear()

    @exposed(kind="count")
    def made_up(self, party: str) -> dict[str, int]:
        """How many rows a party has of its own, how many got a label, and how many kept it."""
        found = self._part_top().pseudo.get(party)
        if found is None:
            return {}
        chosen, kept = int(found["chosen"].sum()), int(found["kept"].sum())
        return {"rows": len(found["label"]), "chosen": chosen, "kept": kept}

    @exposed(kind="prediction")
    def pseudo_labels(self, party: str) -> dict[str, np.ndarray]:
        """Pseudo-labels of a party's own rows, in the order of its unaligned rows."""
        return self._part_top().pseudo.get(party, {})

    # ------------------------------------------------------------------ additive evidence

    @exposed(kind="control")
    def additive_begin(
        self, rows: np.ndarray, places: np.ndarray, plan: dict[str, list[list[float]]]
    ) -> None:
        """Models by ALIGNED and by party, as (fold not seen, ridge), on some of the judged rows.

        places: which of `rows`, those judged last, take part.
        """
        heads = self._part_top()
        self._sum_rows = rows[places]
        targets = torch.from_numpy(self._known_of(rows)[places]).to(self.device)
        classes = len(heads.labels.classes_)
        offset = torch.zeros(len(places), classes, device=self.device)
        judged = [
            chunk[self.trained.own] for chunk in self._judged[ALIGNED] if self.trained.own in chunk
        ]
        if judged:
            outputs = torch.cat(judged)[row_numbers(places, self.device)]
            offset = probability(heads.how.opinion(outputs)).clamp_min(1e-12).log()
        assert self.trained.unseen is not None
        unseen = self.trained.unseen[row_numbers(rows[places], self.device)]
        models = {name: [(int(f), float(r)) for f, r in each] for name, each in plan.items()}
        self._sum = Sum(targets, offset, unseen, models)

    @exposed(kind="gradient", takes={"scores": "embedding"})
    def additive_step(self, scores: dict[str, Tensor]) -> dict[str, Tensor]:
        return self._sum.gradients(self._here(scores))

    @exposed(kind="statistic", takes={"scores": "embedding"})
    def additive_shares(self, scores: dict[str, Tensor]) -> dict[str, list[list[float]]]:
        """By group how much each ridge counts, judged by rows that its models have not seen."""
        found = self._sum.losses(self._here(scores))
        return {group: [[r, s] for r, s in mixed(each).items()] for group, each in found.items()}

    @exposed(kind="control", takes={"scores": "embedding"})
    def additive_finish(self, scores: dict[str, Tensor], mix: dict[str, list[list[float]]]) -> None:
        """Keep the scores of rows under models that have not seen them, to calibrate by."""
        here = self._here(scores)
        shares = {group: {ridge: share for ridge, share in each} for group, each in mix.items()}
        self._added = {
            name: self._sum.unseen_scores(here, name, shares) for name in self._sum.parties
        }

    def _here(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to(self.device) for name, value in scores.items()}

    # ------------------------------------------------------------------ judging rows

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def take_chunk(
        self,
        rows: np.ndarray,
        known: list[str],
        kinds: list[str],
        embeddings: dict[str, Tensor] | None = None,
        explain: bool = False,
    ) -> None:
        """Judge rows that the parties `known` know, as rows of each of `kinds`.

        explain: also as if each party had not known them, for `contributions`.
        """
        numbers, heads = row_numbers(rows, self.device), self._part_top()
        sides, imputed, added = [], [], {}
        for name, width in zip(heads.names, heads.module.spec.widths, strict=True):
            given = (embeddings or {}).get(name)
            if name == self.trained.own:
                assert self.trained.own_embedding is not None
                found = self.trained.own_embeddings(numbers)
                given = self._with_scores(found, self.trained.own_embedding.features, numbers)
            if given is None:
                given = heads.imputed[name][None]
            given = given.to(self.device, self.trained.settings.dtype)
            sides.append(given[:-1, :width])
            imputed.append(given[-1, :width])
            if given.shape[1] > width:
                scores = given[:-1, width:].float()
                if name in self.trained.reliable:
                    scores = scores * self.trained.reliable[name].index_select(0, numbers)[:, None]
                added[name] = scores.chunk(2, 1)
        who = dict(subsets(heads.names))
        cases = {
            kind: [name in who[kind] and name in known for name in heads.names] for kind in kinds
        }
        if explain:
            cases |= {
                _WITHOUT + party: [name in known and name != party for name in heads.names]
                for party in known
            }
        for case, has in cases.items():
            outputs = self.trained.source_outputs(sides, imputed, has, numbers)
            together = ALIGNED in (case, kinds[0])
            for name, (aligned, alone) in added.items():
                if has[heads.names.index(name)]:
                    outputs[name + COLUMNS] = aligned if together else alone
            self._judged.setdefault(case, []).append(outputs)
            self._judged_rows.setdefault(case, []).append(rows)

    def exchanged(self, method: str, kwargs: Mapping[str, Any], *, coming: bool) -> str:
        if method == "keep_imputed":
            return digest_of(np.zeros(0, np.int64))
        return super().exchanged(method, kwargs, coming=coming)

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def keep_imputed(self, embeddings: dict[str, Tensor]) -> None:
        """Keep each party's imputed embedding, so that rows can be judged without asking it."""
        imputed = {name: value[-1].detach().clone() for name, value in embeddings.items()}
        if self.trained.own is not None:
            nobody = torch.zeros(0, dtype=torch.int64, device=self.device)
            imputed[self.trained.own] = self.trained.own_embeddings(nobody)[-1].clone()
        self._part_top().imputed = imputed

    def _collected(self, kind: str) -> dict[str, Tensor]:
        """The outputs of all chunks since last asked, by source."""
        chunks = self._judged.pop(kind, [])
        self._judged_rows.pop(kind, None)
        if not chunks:
            return {}
        return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}

    def _opinions(
        self, kind: str, calibrated_as: str | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities [n, C] and uncertainty [n] of the collected rows of a kind."""
        heads, outputs = self._part_top(), self._collected(kind)
        if not outputs:
            return np.zeros((0, len(heads.labels.classes_)), np.float32), np.zeros(0, np.float32)
        fused = heads.calibration.fuse(heads.how, calibrated_as or kind, outputs)
        return probability(fused).cpu().numpy(), fused.uncertainty[:, 0].cpu().numpy()

    # ------------------------------------------------------------------ trust

    @exposed(kind="control", over_rows=True)
    def will_calibrate(self, rows: np.ndarray) -> None:
        """Refused before a training and not after it; losses, which can be missed, come second."""

    @exposed(kind="statistic")
    def calibrate(self, rows: np.ndarray) -> dict[str, Any]:
        """Fit how far each source is trusted on the collected outputs of these held-out rows."""
        heads = self._part_top()
        for asked in self._judged_rows.values():
            require_outputs_of(self.site.name, rows, asked)
        targets = torch.from_numpy(self._known_of(rows))
        report: dict[str, dict[str, Any]] = {}
        for kind, _ in subsets(heads.names):
            outputs = {name: value.cpu() for name, value in self._collected(kind).items()}
            anchor = self.trained.own if kind == ALIGNED else kind
            anchor = anchor if anchor in outputs else None
            if heads.how.fusion == "pool":
                found = self._pooled(kind, outputs, targets, anchor)
            else:
                alike = kind == ALIGNED and heads.module.spec.one_head
                found = fit_sources(heads.how, outputs, targets, anchor=anchor, alike=alike)
            heads.calibration.kinds[kind] = found
            report[kind] = {
                "temperature": found.temperature,
                "trust": found.trust,
                "losses": found.losses,
            }
            if kind == ALIGNED:
                fused = heads.calibration.fuse(heads.how, kind, outputs)
                report[kind]["collapsed"] = has_collapsed(probability(fused), targets)
        return report

    def _pooled(
        self, kind: str, outputs: dict[str, Tensor], targets: Tensor, anchor: str | None
    ) -> Trusted:
        """Powers of a pool; a party's columns speak for it where they have been learnt."""
        together = kind == ALIGNED
        for name, scores in self._added.items():
            if together or name == kind:
                outputs[name + COLUMNS] = scores[ALIGNED if together else ALONE].cpu()
            if together:
                outputs.pop(name, None)
        leading = [name for name in outputs if name.endswith(COLUMNS)]
        leader = str(self.trained.own if together else kind)
        if (together or not leading) and leader in outputs:
            leading.append(leader)
        if not leading:
            leading = [JOINT] if JOINT in outputs else list(outputs)
        if anchor in leading and len(leading) == 1 and not together:
            anchor = None
        held = {name: 1.0 for name in leading}
        return fit_pool(self._part_top().how, outputs, targets, held=held, anchor=anchor)

    # ------------------------------------------------------------------ telling

    @exposed(kind="statistic")
    def metrics(self, rows: np.ndarray | None = None) -> dict[str, float]:
        """Metrics of the collected rows against their labels; unlabelled rows left out."""
        self._require_outputs_of(None)
        return scored(self._labels(), self._targets(), self._take_outputs(), noise=self._noise)

    @exposed(kind="statistic")
    def mass(self) -> float:
        """The mean uncertainty mass of the opinions on the collected rows."""
        return float(self._all_opinions()[1].mean())

    def _take_outputs(self) -> np.ndarray:
        return self._all_opinions()[0]

    def _all_opinions(self) -> tuple[np.ndarray, np.ndarray]:
        """Of all collected rows, kind after kind."""
        kinds = self._kinds_judged()
        found = [self._opinions(kind) for kind in kinds or [ALIGNED]]  # none of no rows
        p, u = zip(*found, strict=True)
        return np.concatenate(p), np.concatenate(u)

    def _kinds_judged(self) -> list[str]:
        return [kind for kind in self._judged if not kind.startswith(_WITHOUT)]

    def _rows_judged(self) -> list[np.ndarray]:
        """The row numbers of `_all_opinions`."""
        return [rows for kind in self._kinds_judged() for rows in self._judged_rows[kind]]

    def _require_outputs_of(self, rows: np.ndarray | None) -> None:
        self._asked = self._rows_judged()
        super()._require_outputs_of(rows)

    @exposed(kind="prediction")
    def predictions(self, table_order: bool = False) -> dict[str, np.ndarray]:  # type: ignore[override]
        """Probabilities [n, C] and uncertainty [n] of the collected rows.

        In the order of the rows' numbers, or in that of this party's table.
        """
        asked = self._rows_judged()
        p, u = self._all_opinions()
        self._tell(asked, np.column_stack([p, u]))
        if table_order:
            back = np.argsort(self._rows_used, kind="stable")
            p, u = p[back], u[back]
        return {"probability": p, "uncertainty": u}

    @exposed(kind="statistic")
    def carried(self, kind: str, known: list[str]) -> dict[str, float]:
        """The mean of `contributions` over the rows, by party."""
        mean = self._contributions(kind, known).mean(0)
        return dict(zip(self._part_top().names, mean.tolist(), strict=True))

    @exposed(kind="prediction")
    def contributions(self, kind: str, known: list[str]) -> np.ndarray:
        """Which share of the decision each party carries [n, M], rows summing to one.

        How much the likeliest class loses without a party, beside what it loses without others.
        """
        asked = self._judged_rows.get(kind, [])
        found = self._contributions(kind, known)
        self._tell(asked, found)
        return found

    def _contributions(self, kind: str, known: list[str]) -> np.ndarray:
        p, _ = self._opinions(kind)
        best = p.argmax(1)[:, None]
        lost = np.zeros((len(p), len(self._part_top().names)), np.float32)
        for number, name in enumerate(self._part_top().names):
            if name in known:
                without, _ = self._opinions(_WITHOUT + name, calibrated_as=kind)
                lost[:, number] = np.take_along_axis(p - without, best, 1)[:, 0].clip(1e-6)
        return lost / lost.sum(1, keepdims=True).clip(1e-12)

    def _tell(self, asked: list[np.ndarray], outputs: np.ndarray) -> None:
        rows = np.concatenate([np.zeros(0, np.int64), *asked])
        self._let_out(self._rows_used[rows], outputs, foreign=self._part_top().foreign)

    # ------------------------------------------------------------------ its labels

    def about_rows(self, method: str) -> str:
        return _ABOUT.get(method, "labels")

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method in ("calibrate", "will_calibrate"):
            return [self._labelled_of(kwargs.get("rows"))]
        if method == "metrics":  # of all rows at hand, whichever are named
            return [self._labelled_of(None)]
        if method == "mass":
            return [self._places_of(*self._kinds_judged())]
        if method == "carried":
            cases = [kwargs["kind"], *(_WITHOUT + name for name in kwargs["known"])]
            return [self._places_of(case) for case in cases]
        if method == "loss":  # each head and network has one of its own in it
            rows = np.flatnonzero(has_label(self._targets()))
            for weights in self.trained.loss_weights().flatten(0, 1).cpu().numpy():
                self.site.rows.require(method, self.table, self._rows_used[rows], weights[rows])
            self._admit_terms(np.intersect1d(rows, self.trained.loss_rows()))
        if method == "additive_shares":
            found = [each.cpu().numpy() for each in self._sum.judges()]
            return [self._labelled_of(self._sum_rows[judges]) for judges in found]
        return super().rows_asked(method, kwargs)

    def _admit_terms(self, rows: np.ndarray) -> None:
        """Two losses of which a network learns from one row more in the second tell its label."""
        counted = self.trained.counted()
        if counted is None:
            raise Refused(self.site.name, "how far rows count changed", "ask for the loss before")
        for place, weights in enumerate(counted.flatten(0, 1).cpu().numpy()):
            asked = Weighted(self._rows_used[rows], weights[rows])
            self.site.rows.admit("loss", self.table, asked, f"labels, term {place} of a loss")

    def _places_of(self, *kinds: str) -> np.ndarray:
        """The places in the table of the rows judged, one judged twice named twice."""
        judged = (rows for kind in kinds for rows in self._judged_rows.get(kind, []))
        return self._rows_used[np.concatenate([np.zeros(0, np.int64), *judged])]

    def _teaching(self, numbers: np.ndarray) -> np.ndarray:
        return SplitWorker._teaching(self, numbers)  # from rows without a label, too

    def _known_of(self, rows: np.ndarray) -> np.ndarray:
        """What is known of the classes of rows: their numbers [n], or likelihoods [n, K]."""
        found = self._likelihoods()
        return self._targets()[rows] if found is None else found[rows]

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"pseudo": self._part_top().pseudo}

    def _restore(self, saved: Mapping[str, Any]) -> None:
        super()._restore(saved)
        self._part_top().pseudo = saved["pseudo"]


def has_collapsed(p: Tensor, targets: Tensor) -> bool:
    """Whether the shares of the classes would do better for all rows, beyond the error of the mean.

    **Shape** p [n, C]; targets class numbers [n] or likelihoods [n, C].
    """
    shares = shares_of(targets, p.shape[1]).expand(len(p), -1)
    lost, constant = (
        label_loss(each.double().clamp_min(1e-15).log(), targets) for each in (p, shares)
    )
    harm = lost - constant
    return not float(harm.mean()) <= float(harm.std()) / len(harm) ** 0.5
