"""Evidential split training at the parties: bottoms that embed what they know, heads that judge.

As in `split.py`, the top lives at the label party with that party's own bottom, embeddings go up
and gradients come down. New is that a party only embeds rows it has: for all others its mean row
stands in, embedded once a batch. Labels, made-up labels of passive rows and opinions on rows stay
at the label party; row numbers that take part in the training are said to all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.data.labels import LabelEncoder
from fedmend.errors import DataError
from fedmend.federation import Site, exposed
from fedmend.learn import metrics
from fedmend.learn.calibration import describe
from fedmend.learn.evidence import probability
from fedmend.learn.evidential import (
    EvidenceTop,
    EvidenceTopSpec,
    Objective,
    fit_sources,
    subsets,
)
from fedmend.learn.evidential_halves import EvidenceBottomHalf, EvidenceTopHalf
from fedmend.learn.evidential_parts import (
    EvidencePart,
    HeadsPart,
    drop_part,
    load_part,
    new_part,
    part_of,
    save_part,
)
from fedmend.learn.features import ALIGNED, Segments
from fedmend.learn.halves import Settings
from fedmend.learn.imputation import OwnRows, mean_row
from fedmend.learn.nets import Batch, initialise
from fedmend.learn.parts import read_file, write_file
from fedmend.learn.selection import Choice, Watch
from fedmend.learn.split import SplitWorker, _numbers

_WITHOUT = "without "


class EvidenceWorker(SplitWorker):
    """What bottoms and heads have in common: own rows, the mean row, parts on disk."""

    @exposed(kind="control")
    def save(self, path: str) -> None:
        save_part(self.site, self.model, path)

    @exposed(kind="control")
    def load(self, path: str) -> None:
        load_part(self.site, self.model, path)

    @exposed(kind="control")
    def start_from(self, other: str) -> None:
        """Begin with the bottom of another model this party has a part of."""
        mine, theirs = self._part().bottom, part_of(self.site, other).bottom
        if mine is not None and theirs is not None:
            mine.module.load_state_dict(theirs.module.state_dict())

    @exposed(kind="weights")
    def bottom_weights(self) -> dict[str, Tensor]:
        """This party's bottom, to be averaged with others of the same shape."""
        part = self._part().bottom
        return {} if part is None else {k: v.clone() for k, v in part.module.state_dict().items()}

    @exposed(kind="control", takes={"weights": "weights"})
    def take_bottom(self, weights: dict[str, Tensor]) -> None:
        part = self._part().bottom
        if part is not None:
            part.module.load_state_dict(weights)

    @exposed(kind="control")
    def drop(self) -> None:
        """Forget a model that only served to train another."""
        drop_part(self.site, self.model)

    def _part(self) -> EvidencePart:
        return part_of(self.site, self.model)

    def _own(
        self, part: EvidencePart, segments: Segments, settings: Settings, how: Mapping[str, Any]
    ) -> OwnRows:
        """This party's rows among the numbered ones; when it trains, its mean row as well."""
        assert part.bottom is not None
        rows = self._rows(segments)
        present = np.unique(rows[rows >= 0])
        table = self.table if len(present) == len(self.table) else self.table.take(present)
        encoded = part.bottom.encoder.transform(table, party=self.site.name)
        placed = np.where(rows >= 0, np.searchsorted(present, rows), -1)
        if part.mean is None:
            overlapping = [int(str(count)) for name, count in segments if name == ALIGNED]
            part.mean = mean_row(
                encoded,
                placed[: sum(overlapping)],
                least=int(how["min_mean_rows"]),
                nominal=str(how["nominal"]),
                party=self.site.name,
            )
        return OwnRows(encoded, placed, self.device, settings.dtype)


class EvidenceBottomWorker(EvidenceWorker):
    """A feature party without labels."""

    half: EvidenceBottomHalf

    @exposed(kind="control")
    def create(self, net: dict[str, Any], settings: dict[str, Any]) -> int:
        """Make a fresh bottom; returns the width of its embedding."""
        part = new_part(self.site, self.model)
        part.bottom = self._new_bottom(net, Settings.from_dict(settings))
        return part.bottom.module.spec.out

    @exposed(kind="control")
    def attach(self, segments: list[Any], settings: dict[str, Any], how: dict[str, Any]) -> None:
        """Take these rows, and be ready to embed them."""
        settled, part = Settings.from_dict(settings), self._part()
        if part.bottom is None:
            raise DataError("holds no bottom model", party=self.site.name, mend="fit the model")
        own = self._own(part, segments, settled, how)
        assert part.mean is not None
        self.half = EvidenceBottomHalf(
            part.bottom.module,
            own,
            part.mean,
            segments,
            self.site.name,
            settled,
            self.device,
            strong=self._strong_views(own) if how["consistency"] else None,
        )

    def _strong_views(self, own: OwnRows) -> Callable[[Batch], Batch]:
        self._drawn = torch.Generator(self.device)
        return lambda batch: own.strong_view(batch, self._drawn)

    @exposed(kind="control")
    def set_pools(self, pools: list[np.ndarray], least: float) -> int:
        return self.half.set_pools(pools, least)

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
            if self.half.strong is not None:
                self._drawn.manual_seed(self._dropout_seed(epoch) ^ 0x57)
        return self.half.forward()

    @exposed(kind="control", takes={"gradient": "gradient"})
    def finish(self, gradient: Tensor) -> None:
        """Learn from the last gradient, with no embedding to follow."""
        self.half.backward(gradient)

    @exposed(kind="embedding")
    def embed(self, rows: np.ndarray) -> Tensor:
        """Embeddings of those of the rows it has, and last of its mean row; no training."""
        return self.half.embed(_numbers(rows, self.device))


class EvidenceTopWorker(EvidenceWorker):
    """The label party: its labels, the heads, and its own bottom when it has features."""

    half: EvidenceTopHalf

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._rows_used = np.zeros(0, np.int64)
        self._outputs: dict[str, list[dict[str, Tensor]]] = {}
        self._segments: Segments = []

    # ------------------------------------------------------------------ setting up

    @exposed(kind="control")
    def create(
        self,
        net: dict[str, Any],
        settings: dict[str, Any],
        objective: dict[str, Any],
        names: list[str],
        widths: list[int],
    ) -> dict[str, Any]:
        """Make fresh heads (and an own bottom); returns the task and the classes' names."""
        settled, own = Settings.from_dict(settings), self.site.name
        part = new_part(self.site, self.model)
        widths = list(widths)
        if own in names:
            part.bottom = self._new_bottom(net, settled)
            widths[names.index(own)] = part.bottom.module.spec.out
        column = self.table.schema[self._label()]
        labels = LabelEncoder(net["task"]).fit(self.table.y, column, party=own)
        if labels.task == "regression":
            raise DataError(
                "is a number to be predicted; evidence is for classes",
                party=own,
                column=column.name,
                mend="use LocalVFL, or task='multiclass' if these numbers are classes",
            )
        spec = EvidenceTopSpec(
            tuple(widths),
            tuple(net["top"]),
            len(labels.classes_),
            float(net["dropout"]),
            heads=bool(net["heads"]),
            joint=bool(net["joint"]),
        )
        weights = self.site.torch_generator(f"top {net['seed']}", "cpu")
        module: Any = initialise(EvidenceTop(spec), weights)
        part.heads = HeadsPart(list(names), labels, module, Objective.from_dict(objective))
        return self.about()

    @exposed(kind="control")
    def about(self) -> dict[str, Any]:
        part = self._heads()
        return {
            "task": part.labels.task,
            "classes": list(part.labels.classes_),
            "names": part.names,
        }

    @exposed(kind="control")
    def attach(
        self, segments: list[Any], settings: dict[str, Any], how: dict[str, Any], train: bool
    ) -> int:
        """Take these rows; returns how many there are."""
        settled, part, heads = Settings.from_dict(settings), self._part(), self._heads()
        self._segments = segments
        self._rows_used = self._rows(segments)
        own = None
        if part.bottom is not None:
            own = self._own(part, segments, settled, how)
        self.half = EvidenceTopHalf(
            heads.module,
            heads.how,
            settled,
            self.device,
            names=heads.names,
            segments=segments,
            label_party=self.site.name,
            bottom=part.bottom.module if part.bottom is not None else None,
            own=own,
            mean=part.mean,
            watch=self._watch if train else None,
        )
        if train:
            targets = self._targets()
            self.half.set_targets(targets)
            self.watch = Watch(len(targets), self.device)
        return len(self._rows_used)

    @exposed(kind="control")
    def labelled(self) -> np.ndarray:
        """The row numbers that have a label."""
        return np.flatnonzero(self._targets() >= 0)

    @exposed(kind="control")
    def set_pools(self, pools: list[np.ndarray], least: float) -> int:
        return self.half.set_pools(pools, least)

    # ------------------------------------------------------------------ training

    @exposed(kind="control")
    def start_epoch(self, epoch: int, done: list[float]) -> None:
        self.half.start_epoch(epoch, self._dropout_seed(epoch))
        self.half.begin((done[0], done[1]))

    @exposed(kind="gradient", takes={"embeddings": "embedding"})
    def step(self, embeddings: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.half.step(embeddings)

    @exposed(kind="statistic")
    def loss(self) -> float:
        return self.half.take_loss()

    def _watch(self, numbers: Tensor, fused: Tensor) -> None:
        assert self.half.targets is not None
        self.watch.add(numbers, fused, self.half.targets.index_select(0, numbers))

    # ------------------------------------------------------------------ labels made up

    @exposed(kind="control")
    def make_labels(self, party: str, first: int, choice: dict[str, Any]) -> np.ndarray:
        """Labels for rows of a passive party, where the model is sure; those rows' numbers.

        The rows collected last (kind `party`) are numbered from `first` on.
        """
        p, _ = self._judged(party)
        chosen = Choice(**choice)
        target, mask = chosen.labels(p)
        self._heads().pseudo[party] = {
            "target": target,
            "label": p.argmax(1),
            "sure": p.max(1),
            "chosen": mask.copy(),
            "kept": mask.copy(),
        }
        return first + np.flatnonzero(mask)

    def _set_made_up(self, numbers: np.ndarray, target: np.ndarray, soft: bool) -> None:
        half = self.half
        assert half.targets is not None
        at = _numbers(numbers, self.device)
        if soft and not half.targets.is_floating_point():
            known = half.targets >= 0
            classes = len(self._heads().labels.classes_)
            hard = torch.nn.functional.one_hot(half.targets.clamp_min(0), classes)
            half.targets = hard.to(half.settings.dtype) * known[:, None]
        half.targets[at] = torch.from_numpy(target).to(self.device, half.targets.dtype)

    @exposed(kind="control")
    def take_labels(self, other: str, party: str, first: int) -> None:
        """The labels that another model, f_ST, made up for a party's rows."""
        made = part_of(self.site, other).heads
        assert made is not None
        found = made.pseudo[party]
        numbers = first + np.flatnonzero(found["chosen"])
        target = found["target"][found["chosen"]]
        self._set_made_up(numbers, target, target.ndim == 2)
        self._heads().pseudo[party] = found

    @exposed(kind="control")
    def keep_sure(
        self, rows: np.ndarray, limit: float, measure: str, party: str, first: int
    ) -> np.ndarray:
        """Of these imputed rows those whose mean doubt since last asked is at most `limit`."""
        kept = self.watch.below(rows, limit, measure)
        made_up = self._heads().pseudo.get(party)
        if made_up is not None:
            mask = np.zeros_like(made_up["chosen"])
            mask[kept - first] = True
            made_up["kept"] = mask
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
        """What was made up for a party's own rows, in the order of its unaligned rows."""
        return self._heads().pseudo.get(party, {})

    # ------------------------------------------------------------------ judging

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
        sides, stand_ins = [], []
        for name in heads.names:
            given = (embeddings or {}).get(name)
            if name == self.half.own:
                given = self.half.own_embedding(numbers)
            if given is None:
                stand_in = heads.stand_ins[name].to(self.device, self.half.settings.dtype)
                given = stand_in[None]
            given = given.to(self.device, self.half.settings.dtype)
            sides.append(given[:-1])
            stand_ins.append(given[-1])
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
            found = self.half.source_outputs(sides, stand_ins, has, len(rows))
            self._outputs.setdefault(case, []).append(found)

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def keep_stand_ins(self, embeddings: dict[str, Tensor]) -> None:
        """Keep what stands in for each party, so that rows can be judged without asking it."""
        stand_ins = {name: value[-1].detach().clone() for name, value in embeddings.items()}
        if self.half.own is not None:
            nobody = torch.zeros(0, dtype=torch.int64, device=self.device)
            stand_ins[self.half.own] = self.half.own_embedding(nobody)[-1].clone()
        self._heads().stand_ins = stand_ins

    @exposed(kind="statistic")
    def calibrate(self, rows: np.ndarray, guard: bool) -> dict[str, Any]:
        """Fit temperature and trust on the collected outputs of these held-out rows."""
        heads = self._heads()
        targets = torch.from_numpy(self._targets()[rows])
        report = {}
        for kind, _ in subsets(heads.names):
            outputs = self._collected(kind)
            anchor = self.half.own if kind == ALIGNED else kind
            found = fit_sources(
                heads.how,
                {name: value.cpu() for name, value in outputs.items()},
                targets,
                anchor=anchor if guard and anchor in outputs else None,
            )
            heads.calibration.temperature[kind] = found.temperature
            heads.calibration.trust[kind] = found.trust
            report[kind] = {
                "temperature": found.temperature,
                "trust": found.trust,
                "losses": found.losses,
            }
        return report

    @exposed(kind="statistic")
    def metrics(self, kinds: list[str], rows: np.ndarray | None = None) -> dict[str, float]:
        """Metrics of the collected rows against their labels; unlabelled rows left out.

        rows: their numbers, where not all attached rows were collected.
        """
        targets, p, _ = self._against_labels(kinds, rows)
        return metrics.classification(targets, p)

    @exposed(kind="statistic")
    def uncertainty_report(self, kinds: list[str]) -> dict[str, Any]:
        """How much the uncertainty is worth on the collected rows that have a label."""
        targets, p, u = self._against_labels(kinds, None)
        return describe(p, u, targets)

    def _against_labels(
        self, kinds: list[str], rows: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        targets = self._targets() if rows is None else self._targets()[rows]
        judged = [self._judged(kind) for kind in kinds]
        p, u = (np.concatenate(pieces) for pieces in zip(*judged, strict=True))
        known = targets >= 0
        return targets[known], p[known], u[known]

    @exposed(kind="prediction")
    def predictions(self, kinds: list[str], table_order: bool = False) -> dict[str, np.ndarray]:
        """Probabilities [n, C] and uncertainty [n] of the collected rows.

        In the order of the rows' numbers, or in that of this party's table.
        """
        judged = [self._judged(kind) for kind in kinds]
        p, u = (np.concatenate(pieces) for pieces in zip(*judged, strict=True))
        if table_order:
            back = np.argsort(self._rows_used, kind="stable")
            p, u = p[back], u[back]
        return {"probability": p, "uncertainty": u}

    @exposed(kind="statistic")
    def carried(self, kind: str, known: list[str]) -> dict[str, float]:
        """The mean of `contributions` over the rows, by party."""
        mean = self.contributions(kind, known).mean(0)
        return dict(zip(self._heads().names, mean.tolist(), strict=True))

    @exposed(kind="prediction")
    def contributions(self, kind: str, known: list[str]) -> np.ndarray:
        """Which share of the decision each party carries [n, M], rows summing to one.

        How much the likeliest class loses without a party, beside what it loses without others.
        """
        p, _ = self._judged(kind)
        best = p.argmax(1)[:, None]
        lost = np.zeros((len(p), len(self._heads().names)), np.float32)
        for number, name in enumerate(self._heads().names):
            if name in known:
                without, _ = self._judged(_WITHOUT + name, calibrated_as=kind)
                lost[:, number] = np.take_along_axis(p - without, best, 1)[:, 0].clip(1e-6)
        return lost / lost.sum(1, keepdims=True).clip(1e-12)

    def _judged(self, kind: str, calibrated_as: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        heads = self._heads()
        outputs = self._collected(kind)
        if not outputs:
            return np.zeros((0, len(heads.labels.classes_)), np.float32), np.zeros(0, np.float32)
        fused = heads.calibration.fuse(heads.how, calibrated_as or kind, outputs)
        return probability(fused).cpu().numpy(), fused.uncertainty[:, 0].cpu().numpy()

    def _collected(self, kind: str) -> dict[str, Tensor]:
        """The outputs of all chunks since last asked, by source."""
        chunks = self._outputs.pop(kind, [])
        if not chunks:
            return {}
        return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}

    # ------------------------------------------------------------------ its labels

    def _targets(self) -> np.ndarray:
        """Class numbers of the attached rows; -1 where there is no label, or it is not known."""
        labels = self._heads().labels
        rows = self._rows_used
        found = np.full(len(rows), -1, np.int64)
        own = rows >= 0
        encoded = labels.transform(self.table.frame[self._label()], party=self.site.name)
        found[own] = encoded[rows[own]]
        return found

    def _label(self) -> str:
        part = new_part(self.site, self.model).heads
        if part is not None and part.labels.column_ is not None:
            name = part.labels.column_.name
            if name in self.table.names:
                return name
        if self.table.label is None:
            raise DataError(
                f"the table {self.scope!r} has no label column",
                party=self.site.name,
                mend="name it where the table is read: fm.read(path, id=…, label=…)",
            )
        return self.table.label

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
        }
        write_file(self._checkpoint(path, epoch), state)
        self._checkpoint(path, epoch - 2).unlink(missing_ok=True)

    @exposed(kind="control")
    def load_checkpoint(self, path: str, epoch: int) -> None:
        saved = read_file(self._checkpoint(path, epoch), self.site.name)
        self.half.restore(saved)
        self.half.epochs = epoch
        self.half.targets = saved["targets"].to(self.device)
        self.watch.take(saved["watch"])
        self._heads().pseudo = saved["pseudo"]
