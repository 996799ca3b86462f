"""The label party's worker of an evidential network: labels, heads, labels made up, selection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.errors import DataError
from fedmend.federation import Site, exposed
from fedmend.federation.rows import Asked
from fedmend.methods.risa.additive_workers import AdditiveLabels
from fedmend.methods.risa.committee import draw
from fedmend.methods.risa.halves import EvidenceTopHalf
from fedmend.methods.risa.judging import Judging
from fedmend.methods.risa.opinions import probability
from fedmend.methods.risa.parts import HeadsPart, new_part, part_of
from fedmend.methods.risa.selection import Choice, Watch, precise_thresholds
from fedmend.methods.risa.top import JOINT, EvidenceTop, EvidenceTopSpec, Objective
from fedmend.methods.risa.workers import EvidenceWorker
from fedmend.split.features import Segments
from fedmend.split.halves import Settings
from fedmend.split.parts import read_file, write_file
from fedmend.split.sharing import same_shapes
from fedmend.split.workers import _numbers


class EvidenceTopWorker(AdditiveLabels, Judging, EvidenceWorker):
    """The label party: its labels, the heads, and its own bottom when it has features."""

    half: EvidenceTopHalf

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._rows_used = np.zeros(0, np.int64)
        self._outputs: dict[str, list[dict[str, Tensor]]] = {}
        self._asked: dict[str, list[np.ndarray]] = {}
        self.added: dict[str, dict[str, Tensor]] = {}
        self._segments: Segments = []
        self._least: dict[str, np.ndarray] = {}
        self._trains = False

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
            part.bottom = self._new_bottom(net, settled, solo=bool(net["solo"]))
            widths[names.index(own)] = part.bottom.module.spec.out
        labels = self._fitted_labels(net["task"])
        if labels.task == "regression":
            raise DataError(
                "is a number to be predicted; evidence is for classes",
                party=own,
                column=self._label(),
                mend="use LocalVFL, or task='multiclass' if these numbers are classes",
            )
        spec = EvidenceTopSpec(
            tuple(widths),
            tuple(net["top"]),
            len(labels.classes_),
            float(net["dropout"]),
            heads=bool(net["heads"]),
            joint=bool(net["joint"]),
            members=int(net["members"]),
            solo=names.index(own) if own in names and net["solo"] else -1,
            same_head=self._same_head(names, net["shapes"]),
        )
        weights = self.site.torch_generator(f"top {net['seed']}", "cpu")
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
            "label_dp": None if self.told is None else self.told.account,
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
    def set_pools(self, pools: list[np.ndarray], least: float) -> int:
        return self.half.set_pools(pools, least)

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
        assert self.half.targets is not None
        self.watch.add(numbers, fused, self.half.targets.index_select(0, numbers))

    # ------------------------------------------------------------------ labels made up

    @exposed(kind="control")
    def be_precise(self, party: str, rows: np.ndarray, wanted: float) -> None:
        """Ask that of every class so many labels be right, as judged by these held-out rows.

        They are those collected last, as rows that only `party` knows.
        """
        p, _ = self._judged(party)
        self._least[party] = precise_thresholds(p, self._targets()[rows], wanted)

    @exposed(kind="prediction")
    def make_labels(self, party: str, first: int, choice: dict[str, Any]) -> np.ndarray:
        """Labels for rows of a passive party, where the model is sure; those rows' numbers.

        The rows collected last (kind `party`) are numbered from `first` on.
        """
        heads, outputs = self._heads(), self._collected(party)
        # What each head says by itself, for rules that compare two.
        alone = {
            name: probability(heads.how.opinion(values)).cpu().numpy()
            for name, values in outputs.items()
        }
        p, u = self._fused(party, outputs)
        target, label, mask = Choice(**choice).by_rule(
            p, u, alone.get(party), alone.get(JOINT), self._least.get(party)
        )
        heads.pseudo[party] = {
            "target": target,
            "label": label,
            "sure": np.take_along_axis(p, label[:, None], 1)[:, 0],
            "chosen": mask.copy(),
            "kept": mask.copy(),
        }
        return first + np.flatnonzero(mask)

    def _set_made_up(self, numbers: np.ndarray, target: np.ndarray, soft: bool) -> None:
        half = self.half
        assert half.targets is not None
        at = _numbers(numbers, self.device)
        classes = len(self._heads().labels.classes_)
        if half.likely:
            # A soft label is no likelihood: among such the likeliest class is taken for certain.
            target = np.eye(classes)[target.argmax(1) if soft else target]
        elif soft and not half.targets.is_floating_point():
            known = half.targets >= 0
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

    @exposed(kind="prediction")
    def keep_sure(
        self, rows: np.ndarray, limit: float, measure: str, party: str, first: int, share: float
    ) -> np.ndarray:
        """Of these imputed rows those whose mean doubt since last asked is at most `limit`.

        Of a party's made-up labels no more than `share` are kept, the surest.
        """
        made_up = self._heads().pseudo.get(party)
        most = None if made_up is None else math.ceil(share * int(made_up["chosen"].sum()))
        kept = self.watch.below(rows, limit, measure, most)
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

    @exposed(kind="weights")
    def give_top(self) -> dict[str, Any]:
        """The heads with classes and stand-ins, for a party that may predict alone."""
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
        self.half.epochs = epoch
        self.half.targets = saved["targets"].to(self.device)
        self.watch.take(saved["watch"])
        self._heads().pseudo = saved["pseudo"]
        if saved["unseen"] is not None:
            self.half.unseen = saved["unseen"].to(self.device)
