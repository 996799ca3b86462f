"""At the parties: what several models say of a row, and how far each of them is heard.

Outputs of the models stay at the label party, which weighs them; it tells weights and scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from fedmend.data.encode import Encoder, LabelEncoder
from fedmend.errors import DataError, Refused
from fedmend.federation import Site, exposed
from fedmend.federation.bound import declare
from fedmend.federation.rows import Asked
from fedmend.methods.auto.blend import Held, nested, pool_of, pooled, score_of
from fedmend.split.features import spans
from fedmend.split.parts import ids_of, keep_part, take_outputs
from fedmend.split.workers import AnsweringWorker, has_label

SHARED, ALONE = "shared", "alone"
"""Kinds of rows: the label party and some partner know them, or the label party alone."""
KINDS = (SHARED, ALONE)


@dataclass(repr=False)
class BlendPart:
    """What a party keeps: what its tables look like; the label party also its labels."""

    mark: ClassVar[str] = "labels"

    encoder: Encoder | None
    labels: LabelEncoder | None = None

    def to_wire(self) -> dict[str, Any]:
        """With an `encoder`, as every part that knows columns has one."""
        return {
            "encoder": self.encoder and self.encoder.to_dict(),
            "labels": self.labels and self.labels.to_dict(),
        }

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> BlendPart:
        return cls(
            saved["encoder"] and Encoder.from_dict(saved["encoder"]),
            saved["labels"] and LabelEncoder.from_dict(saved["labels"]),
        )


@dataclass(repr=False)
class Votes:
    """Outputs of candidates for rows that were held out, by id; those of each fold together."""

    ids: list[Any] = field(default_factory=list)
    fold: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    outputs: dict[str, list[np.ndarray]] = field(default_factory=dict)


class BlendWorker(AnsweringWorker):
    """Every party keeps what its tables look like; the label party weighs the models' outputs."""

    conversation = "several models"
    part_type = BlendPart

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._segments: list[Any] = []

    # ------------------------------------------------------------------ a model

    @exposed(kind="control")
    def create(self, task: str | None, weight_column: str | None = None) -> dict[str, Any]:
        """Tells how few rows an answer may rest on. task: of the label, where it is."""
        used = self.table.select(n for n in self.table.feature_names if n != weight_column)
        encoder = Encoder().fit(used) if used.names else None
        labels = None
        if task is not None:
            labels = self._fitted_labels("regression" if task == "count" else task, "float64")
        keep_part(self.site, self.model, BlendPart(encoder, labels))
        self.site.state[self._votes_name] = Votes()
        return {"least": self.site.rows.least} | ({} if labels is None else self.about())

    @property
    def _votes_name(self) -> str:
        return f"{self.model}:votes"

    def _labels(self) -> LabelEncoder:
        labels: LabelEncoder | None = self._part().labels
        if labels is None:
            raise DataError("has no labels", party=self.site.name, mend="ask the label party")
        return labels

    # ------------------------------------------------------------------ choosing

    @exposed(kind="control")
    def collect(
        self, names: dict[str, str], fold: int, shared: int, met: dict[str, dict[str, str]]
    ) -> None:
        """Take what candidates said of the rows that this fold holds out: this scope's table.

        names: under which each candidate's outputs were left. shared: how many of the rows, the
        first ones, all partners know. met: by the scope in which one partner knows some more, the
        names of what was said of these with its part; whoever needs no partner has none.
        """
        votes: Votes = self.site.state[self._votes_name]
        count = len(self.table)
        kinds = (np.arange(count) >= shared).astype(int)
        ids = self.table.ids
        said = {candidate: self._taken(name, ids) for candidate, name in names.items()}
        for scope, more in met.items():
            rows = self.site.alignments[scope].aligned
            kinds[rows] = 0
            for candidate in said.keys() & more.keys():
                said[candidate][rows] = self._taken(more[candidate], ids[rows])
        votes.ids += ids.tolist()
        votes.fold += [fold] * count
        votes.kind += kinds.tolist()
        for candidate, outputs in said.items():
            votes.outputs.setdefault(candidate, []).append(outputs)

    def _taken(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Outputs left under a name of these rows, a column for each class this model knows."""
        found, classes = take_outputs(self.site, name, ids), self._labels().classes_
        if not classes or found.classes == list(classes):
            return np.array(found.values, np.float64)
        ordered = np.zeros((len(found.values), len(classes)))
        for number, value in enumerate(found.classes):
            ordered[:, list(classes).index(value)] = found.values[:, number]
        return ordered

    def _state(self) -> dict[str, Any]:
        """For a choice that may be interrupted."""
        votes: Votes = self.site.state[self._votes_name]
        outputs = {name: np.concatenate(each) for name, each in votes.outputs.items()}
        return {
            "places": self._places(votes),
            "fold": votes.fold,
            "kind": votes.kind,
            "outputs": outputs,
        }

    def _restore(self, saved: Mapping[str, Any]) -> None:
        ids = self.table.ids[saved["places"]].tolist()
        outputs = {name: [each] for name, each in saved["outputs"].items()}
        self.site.state[self._votes_name] = Votes(
            ids, list(saved["fold"]), list(saved["kind"]), outputs
        )

    @exposed(kind="statistic")
    def choose(
        self, candidates: list[str], own: list[str], completed: list[str], metric: str
    ) -> dict[str, Any]:
        """How far each candidate is heard, and how well all of it does on rows held out.

        own: those that need no partner. completed: those that learn from completed rows. Told are,
        by kind of row: weights, each candidate's score, that of the whole procedure (chosen on some
        folds, judged on the others), and how far it is from the same with this party's own models
        only, and from the same without completed rows.
        """
        alone = [at for at, name in enumerate(candidates) if name in own]
        real = [at for at, name in enumerate(candidates) if name not in completed]
        numbers = range(len(candidates))
        groups = tuple(tuple(at for at in numbers if at not in rest) for rest in (real, alone))
        held = replace(self._held(candidates), groups=groups)
        pool, chosen = pool_of(held), nested(held)
        without = nested(held.members(alone)) if alone else None
        unmended = nested(held.members(real)) if completed and real else None
        kinds = {}
        for number, kind in enumerate(KINDS):
            here = held.kind == number
            if here.sum() < max(self.site.rows.least, 2):
                continue
            some = held.rows(here)
            against = None if without is None else without[here]
            kinds[kind] = score_of(some, chosen[here], metric, against) | {
                "candidates": {
                    name: score_of(some, held.outputs[at][here], metric)
                    for at, name in enumerate(candidates)
                }
            }
            if unmended is not None:
                beside = score_of(some, chosen[here], metric, unmended[here])
                kinds[kind]["completing"] = [beside["apart"], beside["apart_interval"]]
        weights = {
            kind: dict(zip(candidates, pool.weights[number].tolist(), strict=True))
            for number, kind in enumerate(KINDS)
        }
        return {"weights": weights, "kinds": kinds}

    def _held(self, candidates: list[str]) -> Held:
        votes: Votes = self.site.state[self._votes_name]
        places, labels = self._places(votes), self._labels()
        targets = self._encoded()[places]
        known = has_label(targets)
        truth = self._truth(targets, places)
        known &= np.isfinite(truth) if truth.ndim == 1 else True
        outputs = np.stack([np.concatenate(votes.outputs[name]) for name in candidates])
        held = Held(
            outputs,
            truth,
            np.array(votes.kind),
            np.array(votes.fold),
            targets if labels.classes_ else None,
            self._noise,
        ).rows(known)
        return replace(held, kind=self._kinds(held.kind))

    def _kinds(self, kinds: np.ndarray) -> np.ndarray:
        """Too few rows of a kind are judged with the others: alone, or by the difference from the
        whole, they would tell too much."""
        few = np.bincount(kinds, minlength=len(KINDS)) < max(self.site.rows.least, 2)
        return np.full_like(kinds, int(few[0])) if few.any() else kinds

    def _places(self, votes: Votes) -> np.ndarray:
        """Where the rows that were held out stand in this scope's table."""
        found = np.asarray(pd.Index(self.table.ids).get_indexer(pd.Index(votes.ids)))
        if (found < 0).any():  # -1 would be the last row, and nobody in the account of rows
            raise Refused(
                self.site.name, "outputs of rows of another table", "name a table that has them"
            )
        return found

    def _truth(self, targets: np.ndarray, places: np.ndarray) -> np.ndarray:
        labels = self._labels()
        if not labels.classes_:
            return np.asarray(labels.inverse(targets))
        found = self._label_likelihood()
        if found is not None:
            return found.of(labels.classes_)[places]
        return np.eye(len(labels.classes_))[np.maximum(targets, 0)]

    # ------------------------------------------------------------------ predicting

    @exposed(kind="control")
    def attach(self, segments: list[Any]) -> None:
        self._segments = [list(each) for each in segments]
        self._rows_used = self._rows(segments)
        self._outputs = None

    @exposed(kind="control")
    def mix(self, parts: list[dict[str, Any]]) -> None:
        """The pool's outputs. parts: of each segment, names of outputs and weights, by member."""
        found, ids = [], ids_of(self.table, self._rows_used)
        for (_, at, end), part in zip(spans(self._segments), parts, strict=True):
            if at == end:
                continue
            outputs = np.stack([self._taken(name, ids[at:end]) for name in part["names"]])
            found.append(pooled(outputs, np.asarray(part["weights"])))
        shape = (0, len(self._labels().classes_)) if self._labels().classes_ else (0,)
        self._outputs = np.concatenate(found) if found else np.zeros(shape)

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method == "choose":
            votes: Votes = self.site.state[self._votes_name]
            places = self._places(votes)
            known = has_label(self._encoded()[places])
            places, kinds = places[known], self._kinds(np.array(votes.kind)[known])
            return [places[kinds == number] for number in np.unique(kinds)]
        return super().rows_asked(method, kwargs)


declare("auto", BlendWorker)
