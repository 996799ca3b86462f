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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.errors import DataError
from fedmend.federation import Site, exposed
from fedmend.federation.rows import Asked
from fedmend.learn import metrics
from fedmend.learn.calibration import describe
from fedmend.methods.risa.columns import ALONE, Columns, Ridge, Scores, Sum, mixed
from fedmend.methods.risa.ensemble import BottomEnsemble, EnsembleSpec, draw
from fedmend.methods.risa.heads import JOINT, EvidenceTop, EvidenceTopSpec, Objective
from fedmend.methods.risa.imputation import OwnRows, mean_row
from fedmend.methods.risa.opinions import probability
from fedmend.methods.risa.parts import (
    EvidencePart,
    HeadsPart,
    drop_part,
    load_part,
    new_part,
    part_of,
    save_part,
)
from fedmend.methods.risa.selection import Watch
from fedmend.methods.risa.training import EvidenceBottomHalf, EvidenceTopHalf
from fedmend.methods.risa.trust import COLUMNS, Trusted, fit_pool, fit_sources, subsets
from fedmend.split.belief import row_confidence
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.features import ALIGNED, Segments
from fedmend.split.parts import BottomPart, read_file, write_file
from fedmend.split.sharing import SharesBottom, same_shapes
from fedmend.split.workers import SplitWorker, _numbers

__all__ = ["EvidenceBottomWorker", "EvidenceTopWorker"]

_WITHOUT = "without "


class EvidenceWorker(SharesBottom, SplitWorker):
    """What bottoms and heads have in common: own rows, the mean row, parts on disk."""

    @exposed(kind="control")
    def save(self, path: str) -> None:
        save_part(self.site, self.model, path)

    @exposed(kind="control")
    def load(self, path: str) -> None:
        load_part(self.site, self.model, path)

    @exposed(kind="control")
    def drop(self) -> None:
        """Forget a model that only served to train another."""
        drop_part(self.site, self.model)

    @exposed(kind="control")
    def set_pools(self, pools: list[np.ndarray], least: float) -> int:
        """Train on these rows from now on; returns an epoch's number of batches."""
        return int(self.half.set_pools(pools, least))

    def _part(self) -> EvidencePart:
        return part_of(self.site, self.model)

    def _shared_bottom(self) -> nn.Module | None:
        part = self._part().bottom
        return None if part is None else part.module

    def _new_bottom(self, config: SplitConfig, *, solo: bool = False) -> BottomPart:
        """A fresh bottom, or those of several members side by side; with `solo` twice as many."""
        part = super()._new_bottom(config)
        members = int(config.options["members"]) * (2 if solo else 1)
        if members > 1:
            module = BottomEnsemble(EnsembleSpec(part.module.spec, members))
            weights = self.site.torch_generator(f"bottoms {config.seed}", "cpu")
            draw(module, weights)
            # What images look like is learnt once, and so are the layers that rest on it.
            module.take_networks(part.module)
            part.module = module  # type: ignore[assignment]
        return part

    def _own(self, part: EvidencePart, segments: Segments, settings: Settings) -> OwnRows:
        """This party's rows among the numbered ones; when it trains, its mean row as well."""
        assert part.bottom is not None
        rows = self._rows(segments)
        present = np.unique(rows[rows >= 0])
        table = self.table if len(present) == len(self.table) else self.table.take(present)
        encoded = part.bottom.encoder.transform(table, party=self.site.name)
        placed = np.where(rows >= 0, np.searchsorted(present, rows), -1)
        if part.mean is None:
            overlapping = sum(int(str(count)) for name, count in segments if name == ALIGNED)
            observed = placed[:overlapping]
            trust = row_confidence(self.site, self.scope.partition("@")[0])
            if trust is not None:
                observed = observed[trust[rows[:overlapping]] == 1.0]
            part.mean = mean_row(encoded, observed, party=self.site.name)
        return OwnRows(encoded, placed, self.device, settings.dtype)

    def _with_scores(self, found: Tensor, own: OwnRows, numbers: Tensor) -> Tensor:
        """Embeddings and, behind them, what the rows' columns add up to, where that is learnt."""
        scores = self._part().scores
        if scores is None:
            return found
        added = scores.of(own.batch(numbers[own.slot.index_select(0, numbers) >= 0])).to(found)
        return torch.cat([found, torch.cat([added, added.new_zeros(1, added.shape[1])])], 1)


class EvidenceBottomWorker(EvidenceWorker):
    """A feature party without labels."""

    half: EvidenceBottomHalf
    _attached: np.ndarray
    _columns: Columns
    _ridge: Ridge

    @exposed(kind="control")
    def create(self, config: dict[str, Any]) -> int:
        """Make a fresh bottom; returns the width of its embedding."""
        part = new_part(self.site, self.model)
        part.bottom = self._new_bottom(SplitConfig.from_wire(config))
        return part.bottom.module.spec.out

    @exposed(kind="control", takes={"part": "weights"})
    def take_top(self, part: dict[str, Any]) -> None:
        """A copy of the heads, with which this party can predict alone."""
        self._part().heads = HeadsPart.from_wire({**part, "foreign": True})

    @exposed(kind="control")
    def attach(self, segments: list[Any], config: dict[str, Any]) -> None:
        """Take these rows, and be ready to embed them."""
        settled, part = SplitConfig.from_wire(config).settings, self._part()
        if part.bottom is None:
            raise DataError("holds no bottom model", party=self.site.name, mend="fit the model")
        own = self._own(part, segments, settled)
        self._attached = self._rows(segments)
        assert part.mean is not None
        self.half = EvidenceBottomHalf(
            part.bottom.module, own, part.mean, segments, self.site.name, settled, self.device
        )

    @exposed(kind="prediction")
    def confidence(self) -> np.ndarray | None:
        """How far this party's side of each row is believed; None where nothing was completed."""
        found = row_confidence(self.site, self.scope.partition("@")[0])
        if found is None:
            return None
        return np.where(self._attached >= 0, found[self._attached], 1.0).astype(np.float32)

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def step(
        self,
        gradient: Tensor | None = None,
        epoch: int | None = None,
        done: list[float] | None = None,
    ) -> Tensor:
        """Learn from the last batch's gradient; hand out the next batch's embeddings."""
        if gradient is not None:
            self.half.backward(gradient)
        if epoch is not None and done is not None:
            self.half.start_epoch(epoch, self._dropout_seed(epoch))
            self.half.begin((done[0], done[1]))
        return self.half.forward()

    @exposed(kind="control", takes={"gradient": "gradient"})
    def finish(self, gradient: Tensor) -> None:
        """Learn from the last gradient, with no embedding to follow."""
        self.half.backward(gradient)

    @exposed(kind="embedding")
    def embed(self, rows: np.ndarray) -> Tensor:
        """Embeddings of those of the rows it has, and last of its mean row; no training.

        Behind the embeddings what its columns add up to, where it has learnt that.
        """
        numbers = _numbers(rows, self.device)
        return self._with_scores(self.half.embed(numbers), self.half.own, numbers)

    # ------------------------------------------------------------------ what its columns add up to

    @exposed(kind="count")
    def additive_columns(self, rows: np.ndarray) -> int:
        """How many columns, steps and categories these overlapping rows can say something of."""
        bottom = self._part().bottom
        assert bottom is not None
        own = self.half.own
        everything = own.batch(torch.nonzero(own.slot >= 0)[:, 0])
        overlapping = own.batch(_numbers(rows, self.device))
        self._columns = Columns.of(everything, bottom.encoder.cardinalities, overlapping)
        return len(self._columns.used)

    @exposed(kind="embedding")
    def additive_begin(
        self, rows: np.ndarray, ridges: list[float], blocks: list[int], classes: int
    ) -> Tensor:
        """Models with these ridges on these rows, nothing learnt yet; returns their scores."""
        matrix = self._columns.matrix(self.half.own.batch(_numbers(rows, self.device)))
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


class EvidenceTopWorker(EvidenceWorker):
    """The label party: its labels, the heads, and its own bottom when it has features."""

    half: EvidenceTopHalf
    _sum: Sum

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._rows_used = np.zeros(0, np.int64)
        self._outputs: dict[str, list[dict[str, Tensor]]] = {}
        self._asked: dict[str, list[np.ndarray]] = {}
        self._added: dict[str, dict[str, Tensor]] = {}
        self._trains = False

    # ------------------------------------------------------------------ setting up

    @exposed(kind="control")
    def create(
        self,
        config: dict[str, Any],
        objective: dict[str, Any],
        names: list[str],
        widths: list[int],
        shapes: dict[str, Any],
    ) -> dict[str, Any]:
        """Make fresh heads (and an own bottom); returns the task and the classes' names."""
        how, own = SplitConfig.from_wire(config), self.site.name
        net = how.options
        part = new_part(self.site, self.model)
        widths = list(widths)
        if own in names:
            part.bottom = self._new_bottom(how, solo=bool(net["solo"]))
            widths[names.index(own)] = part.bottom.module.spec.out
        labels = self._fitted_labels(how.task)
        if labels.task == "regression":
            raise DataError(
                "is a number to be predicted; evidence is for classes",
                party=own,
                column=self._label(),
                mend="use LocalVFL, or task='multiclass' if these numbers are classes",
            )
        spec = EvidenceTopSpec(
            tuple(widths),
            how.top,
            len(labels.classes_),
            how.dropout,
            heads=bool(net["heads"]),
            joint=bool(net["joint"]),
            members=int(net["members"]),
            solo=names.index(own) if own in names and net["solo"] else -1,
            same_head=self._same_head(names, shapes),
        )
        weights = self.site.torch_generator(f"top {how.seed}", "cpu")
        module: Any = draw(EvidenceTop(spec), weights)
        part.heads = HeadsPart(list(names), labels, module, Objective.from_dict(objective))
        return self.about()

    def _same_head(self, names: list[str], shapes: dict[str, Any]) -> tuple[int, ...]:
        """Whose bottoms are shared has one head; by party the number of its own."""
        if not shapes:
            return ()
        groups = same_shapes(shapes | {self.site.name: self.bottom_shapes()})
        first = {name: names.index(group[0]) for group in groups for name in group}
        return tuple(first.get(name, number) for number, name in enumerate(names))

    @exposed(kind="control")
    def about(self) -> dict[str, Any]:
        part = self._heads()
        return {
            "task": part.labels.task,
            "classes": list(part.labels.classes_),
            "names": part.names,
            "sides": False,  # what is imputed is a party's own mean row
            "label_dp": None if self.told is None else self.told.account,
        }

    @exposed(kind="control")
    def attach(self, segments: list[Any], config: dict[str, Any], train: bool) -> int:
        """Take these rows; returns how many there are."""
        settled, part, heads = SplitConfig.from_wire(config).settings, self._part(), self._heads()
        self._rows_used = self._rows(segments)
        self.half = EvidenceTopHalf(
            heads.module,
            heads.how,
            settled,
            self.device,
            names=heads.names,
            segments=segments,
            label_party=self.site.name,
            own=None if part.bottom is None else self._own(part, segments, settled),
            bottom=None if part.bottom is None else part.bottom.module,
            mean=part.mean,
            watch=self._watch if train else None,
        )
        self._trains = train
        if train:
            self.half.set_targets(self._targets())
            likelihoods = self._likelihoods()
            if likelihoods is not None:
                self.half.set_likelihoods(likelihoods)
            self.watch = Watch(len(self._rows_used), self.device)
        return len(self._rows_used)

    @exposed(kind="control")
    def labelled(self) -> np.ndarray:
        """The row numbers that have a label."""
        return np.flatnonzero(self._targets() >= 0)

    @exposed(kind="control")
    def set_unseen(self, rows: np.ndarray, members: np.ndarray) -> None:
        """Which member does not learn from each of these rows."""
        unseen = torch.full((len(self._rows_used),), -1, dtype=torch.int64)
        unseen[torch.from_numpy(rows)] = torch.from_numpy(members)
        self.half.unseen = unseen.to(self.device)

    @exposed(kind="control", takes={"reliable": "prediction"})
    def set_reliability(self, reliable: dict[str, np.ndarray]) -> None:
        """How far each party's side of every row is believed, from 0 to 1; by default wholly."""
        self.half.reliable = {
            name: torch.from_numpy(values).to(self.device, self.half.settings.dtype)
            for name, values in reliable.items()
        }

    # ------------------------------------------------------------------ training

    @exposed(kind="control")
    def start_epoch(self, epoch: int, done: list[float]) -> None:
        self.half.start_epoch(epoch, self._dropout_seed(epoch))
        self.half.begin((done[0], done[1]))

    @exposed(kind="gradient", takes={"embeddings": "embedding"})
    def step(self, embeddings: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.half.step(embeddings)

    @exposed(kind="statistic", optional=True)
    def loss(self) -> float:
        return self.half.take_loss()

    def _watch(self, numbers: Tensor, fused: Tensor) -> None:
        self.watch.add(numbers, fused[:, -1])

    # ------------------------------------------------------------------ pseudo-labels, selection

    @exposed(kind="prediction")
    def make_labels(self, party: str, first: int, threshold: float) -> np.ndarray:
        """Labels for rows of a passive party of which the model is so sure; those rows' numbers.

        The rows collected last (kind `party`) are numbered from `first` on.
        """
        p, _ = self._judged(party)
        sure = p.max(1)
        chosen = sure >= threshold
        self._heads().pseudo[party] = {
            "label": p.argmax(1),
            "sure": sure,
            "chosen": chosen.copy(),
            "kept": chosen.copy(),
        }
        return first + np.flatnonzero(chosen)

    @exposed(kind="control")
    def take_labels(self, other: str, party: str, first: int) -> None:
        """The labels that another model, f_ST, made for a party's rows."""
        made = part_of(self.site, other).heads
        assert made is not None
        found, half = made.pseudo[party], self.half
        assert half.targets is not None
        target = found["label"][found["chosen"]]
        if half.likely:
            # Among likelihoods of what was said of rows, a pseudo-label is a certain class.
            target = np.eye(len(self._heads().labels.classes_))[target]
        at = _numbers(first + np.flatnonzero(found["chosen"]), self.device)
        half.targets[at] = torch.from_numpy(target).to(self.device, half.targets.dtype)
        self._heads().pseudo[party] = found

    @exposed(kind="prediction")
    def keep_sure(self, rows: np.ndarray, limit: float, party: str, first: int) -> np.ndarray:
        """Of these imputed rows those whose mean uncertainty since last asked is within `limit`."""
        kept = self.watch.below(rows, limit)
        pseudo = self._heads().pseudo.get(party)
        if pseudo is not None:
            pseudo["kept"] = np.zeros_like(pseudo["chosen"])
            pseudo["kept"][kept - first] = True
        return kept

    @exposed(kind="control")
    def forget_doubt(self) -> None:
        self.watch.clear()

    @exposed(kind="count")
    def made_up(self, party: str) -> dict[str, int]:
        """How many rows a party has of its own, how many got a label, and how many kept it."""
        found = self._heads().pseudo.get(party)
        if found is None:
            return {}
        chosen, kept = int(found["chosen"].sum()), int(found["kept"].sum())
        return {"rows": len(found["label"]), "chosen": chosen, "kept": kept}

    @exposed(kind="prediction")
    def pseudo_labels(self, party: str) -> dict[str, np.ndarray]:
        """Pseudo-labels of a party's own rows, in the order of its unaligned rows."""
        return self._heads().pseudo.get(party, {})

    # ------------------------------------------------------------------ additive evidence

    @exposed(kind="control")
    def additive_begin(
        self, rows: np.ndarray, places: np.ndarray, plan: dict[str, list[list[float]]]
    ) -> None:
        """Models by ALIGNED and by party, as (fold not seen, ridge), on some of the judged rows.

        places: which of `rows`, those judged last, take part.
        """
        heads = self._heads()
        targets = torch.from_numpy(self._known_of(rows)[places]).to(self.device)
        classes = len(heads.labels.classes_)
        offset = torch.zeros(len(places), classes, device=self.device)
        judged = [
            chunk[self.half.own] for chunk in self._outputs[ALIGNED] if self.half.own in chunk
        ]
        if judged:
            outputs = torch.cat(judged)[_numbers(places, self.device)]
            offset = probability(heads.how.opinion(outputs)).clamp_min(1e-12).log()
        assert self.half.unseen is not None
        unseen = self.half.unseen[_numbers(rows[places], self.device)]
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
        numbers, heads = _numbers(rows, self.device), self._heads()
        sides, imputed, added = [], [], {}
        for name, width in zip(heads.names, heads.module.spec.widths, strict=True):
            given = (embeddings or {}).get(name)
            if name == self.half.own:
                assert self.half.own_rows is not None
                found = self.half.own_embedding(numbers)
                given = self._with_scores(found, self.half.own_rows, numbers)
            if given is None:
                given = heads.imputed[name][None]
            given = given.to(self.device, self.half.settings.dtype)
            sides.append(given[:-1, :width])
            imputed.append(given[-1, :width])
            if given.shape[1] > width:
                scores = given[:-1, width:].float()
                if name in self.half.reliable:
                    scores = scores * self.half.reliable[name].index_select(0, numbers)[:, None]
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
            outputs = self.half.source_outputs(sides, imputed, has, numbers)
            together = ALIGNED in (case, kinds[0])
            for name, (aligned, alone) in added.items():
                if has[heads.names.index(name)]:
                    outputs[name + COLUMNS] = aligned if together else alone
            self._outputs.setdefault(case, []).append(outputs)
            self._asked.setdefault(case, []).append(rows)

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def keep_imputed(self, embeddings: dict[str, Tensor]) -> None:
        """Keep each party's imputed embedding, so that rows can be judged without asking it."""
        imputed = {name: value[-1].detach().clone() for name, value in embeddings.items()}
        if self.half.own is not None:
            nobody = torch.zeros(0, dtype=torch.int64, device=self.device)
            imputed[self.half.own] = self.half.own_embedding(nobody)[-1].clone()
        self._heads().imputed = imputed

    def _collected(self, kind: str) -> dict[str, Tensor]:
        """The outputs of all chunks since last asked, by source."""
        chunks = self._outputs.pop(kind, [])
        self._asked.pop(kind, None)
        if not chunks:
            return {}
        return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}

    def _judged(self, kind: str, calibrated_as: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities [n, C] and uncertainty [n] of the collected rows of a kind."""
        heads, outputs = self._heads(), self._collected(kind)
        if not outputs:
            return np.zeros((0, len(heads.labels.classes_)), np.float32), np.zeros(0, np.float32)
        fused = heads.calibration.fuse(heads.how, calibrated_as or kind, outputs)
        return probability(fused).cpu().numpy(), fused.uncertainty[:, 0].cpu().numpy()

    # ------------------------------------------------------------------ trust

    @exposed(kind="statistic")
    def calibrate(self, rows: np.ndarray) -> dict[str, Any]:
        """Fit how far each source is trusted on the collected outputs of these held-out rows."""
        heads = self._heads()
        targets = torch.from_numpy(self._known_of(rows))
        report = {}
        for kind, _ in subsets(heads.names):
            outputs = {name: value.cpu() for name, value in self._collected(kind).items()}
            anchor = self.half.own if kind == ALIGNED else kind
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
        leader = str(self.half.own if together else kind)
        if (together or not leading) and leader in outputs:
            leading.append(leader)
        if not leading:
            leading = [JOINT] if JOINT in outputs else list(outputs)
        if anchor in leading and len(leading) == 1 and not together:
            anchor = None
        held = {name: 1.0 for name in leading}
        return fit_pool(self._heads().how, outputs, targets, held=held, anchor=anchor)

    # ------------------------------------------------------------------ telling

    @exposed(kind="statistic")
    def metrics(self, kinds: list[str]) -> dict[str, float]:
        """Metrics of the collected rows against their labels; unlabelled rows left out."""
        targets, p, _ = self._against_labels(kinds)
        return metrics.classification(targets, p, self._noise)

    @exposed(kind="statistic")
    def uncertainty_report(self, kinds: list[str]) -> dict[str, Any]:
        """How much the uncertainty is worth on the collected rows that have a label."""
        targets, p, u = self._against_labels(kinds)
        return describe(p, u, targets, noise=self._noise)

    @property
    def _noise(self) -> np.ndarray | None:
        return None if self.told is None else self.told.response

    def _against_labels(self, kinds: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        targets = self._targets()
        judged = [self._judged(kind) for kind in kinds]
        p, u = (np.concatenate(pieces) for pieces in zip(*judged, strict=True))
        known = targets >= 0
        return targets[known], p[known], u[known]

    @exposed(kind="prediction")
    def predictions(self, kinds: list[str], table_order: bool = False) -> dict[str, np.ndarray]:
        """Probabilities [n, C] and uncertainty [n] of the collected rows.

        In the order of the rows' numbers, or in that of this party's table.
        """
        asked = [rows for kind in kinds for rows in self._asked.get(kind, [])]
        judged = [self._judged(kind) for kind in kinds]
        p, u = (np.concatenate(pieces) for pieces in zip(*judged, strict=True))
        self._tell(asked, np.column_stack([p, u]))
        if table_order:
            back = np.argsort(self._rows_used, kind="stable")
            p, u = p[back], u[back]
        return {"probability": p, "uncertainty": u}

    @exposed(kind="statistic")
    def carried(self, kind: str, known: list[str]) -> dict[str, float]:
        """The mean of `contributions` over the rows, by party."""
        mean = self._contributions(kind, known).mean(0)
        return dict(zip(self._heads().names, mean.tolist(), strict=True))

    @exposed(kind="prediction")
    def contributions(self, kind: str, known: list[str]) -> np.ndarray:
        """Which share of the decision each party carries [n, M], rows summing to one.

        How much the likeliest class loses without a party, beside what it loses without others.
        """
        asked = self._asked.get(kind, [])
        found = self._contributions(kind, known)
        self._tell(asked, found)
        return found

    def _contributions(self, kind: str, known: list[str]) -> np.ndarray:
        p, _ = self._judged(kind)
        best = p.argmax(1)[:, None]
        lost = np.zeros((len(p), len(self._heads().names)), np.float32)
        for number, name in enumerate(self._heads().names):
            if name in known:
                without, _ = self._judged(_WITHOUT + name, calibrated_as=kind)
                lost[:, number] = np.take_along_axis(p - without, best, 1)[:, 0].clip(1e-6)
        return lost / lost.sum(1, keepdims=True).clip(1e-12)

    def _tell(self, asked: list[np.ndarray], outputs: np.ndarray) -> None:
        rows = np.concatenate([np.zeros(0, np.int64), *asked])
        self._let_out(self._rows_used[rows], outputs, foreign=self._heads().foreign)

    @exposed(kind="weights")
    def give_top(self) -> dict[str, Any]:
        """The heads with classes and imputed embeddings, for a party that may predict alone."""
        return self._heads().to_wire()

    # ------------------------------------------------------------------ its labels

    def about_rows(self, method: str) -> str:
        return "columns" if method in ("carried", "made_up", "additive_shares") else "labels"

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method == "loss":
            return [self._rows_used[self.half.loss_rows()]]
        if method in ("metrics", "calibrate", "uncertainty_report"):
            rows, known = self._rows_used, self._targets() >= 0
            if kwargs.get("rows") is not None:
                rows, known = rows[kwargs["rows"]], known[kwargs["rows"]]
            return [rows[known]]
        return super().rows_asked(method, kwargs)

    def _targets(self) -> np.ndarray:
        """Class numbers of the attached rows; -1 where there is no label, or it is not known."""
        labels = self._heads().labels
        rows = self._rows_used
        found = np.full(len(rows), -1, np.int64)
        own = rows >= 0
        encoded = labels.transform(self.table.frame[self._label()], party=self.site.name)
        found[own] = encoded[rows[own]]
        return found

    def _likelihoods(self) -> np.ndarray | None:
        """How likely what is said of each row is under each class, where labels are corrected."""
        belief = self._belief()
        if belief is None:
            return None
        return belief.of(self._heads().labels.classes_)[self._rows_used]

    def _known_of(self, rows: np.ndarray) -> np.ndarray:
        """What is known of the classes of rows: their numbers [n], or likelihoods [n, K]."""
        found = self._likelihoods()
        return self._targets()[rows] if found is None else found[rows]

    def _label(self) -> str:
        part = new_part(self.site, self.model).heads
        return self._label_column(part.labels if part is not None else None)

    def _heads(self) -> HeadsPart:
        part = self._part().heads
        if part is None:
            raise DataError("holds no heads", party=self.site.name, mend="fit the model first")
        return part

    # ------------------------------------------------------------------ checkpoints

    @exposed(kind="control")
    def save_checkpoint(self, path: str, epoch: int) -> None:
        state = self.half.checkpoint() | {
            "targets": self.half.targets,
            "watch": self.watch.to_wire(),
            "pseudo": self._heads().pseudo,
            "unseen": self.half.unseen,
        }
        write_file(self._checkpoint(path, epoch), state)
        self._checkpoint(path, epoch - 2).unlink(missing_ok=True)

    @exposed(kind="control")
    def load_checkpoint(self, path: str, epoch: int) -> None:
        saved = read_file(self._checkpoint(path, epoch), self.site.name)
        self.half.restore(saved)
        self.half.targets = saved["targets"].to(self.device)
        self.watch.take(saved["watch"])
        self._heads().pseudo = saved["pseudo"]
        if saved["unseen"] is not None:
            self.half.unseen = saved["unseen"].to(self.device)
