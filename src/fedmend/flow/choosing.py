"""``method = "auto"``: cross-validation over the methods that fit a federation's tears.

All candidates train on the first fold, then all on the second, and so on, until the folds or the
time are at their end; candidates are compared on the folds that they all have. What is chosen is
then trained on all rows, like a method that the file names.

Folds are drawn over the common order of the aligned rows, which says nothing about anybody, so
that all parties can be told which rows to hold out. A held-out row is in no training table of its
fold, also not as a row of one party. In a horizontal federation every party holds out rows of
its own.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.errors import ConfigError, FedmendError, FedmendWarning
from fedmend.federation import Alignment, AlignmentCounts, Federation, Worker, exposed
from fedmend.federation.bound import declare
from fedmend.federation.rows import Asked
from fedmend.flow.config.settings import COMPLETED, CORRECTED, AutoSettings
from fedmend.flow.scoring import Reference, measure
from fedmend.methods.registry import ANNOTATED, HORIZONTAL, METHODS, make
from fedmend.report.amounts import pretty, score_text
from fedmend.report.record import better_is_higher

if TYPE_CHECKING:
    from fedmend.flow.live import Listener

__all__ = ["Candidate", "Contest", "FoldWorker", "candidates_of", "fold", "main_metric"]

logger = logging.getLogger(__name__)

JUDGE = "judge"
FEW_ROWS = 40
"""With fewer aligned rows the folds say more about chance than about methods."""


@dataclass
class Candidate:
    """A method on one of the federations there are, and how it did in each fold."""

    name: str
    completed: bool = False
    corrected: bool = False
    scores: list[dict[str, float]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    seconds: float = 0.0
    skipped: str = ""

    @property
    def title(self) -> str:
        return (
            METHODS[self.name].class_name + CORRECTED * self.corrected + COMPLETED * self.completed
        )

    def to_dict(self, folds: int) -> dict[str, Any]:
        """The JSON form, over the folds that all have."""
        values = self.values[:folds]
        return {
            "name": self.name,
            "title": self.title,
            "completed": self.completed,
            "corrected": self.corrected,
            "values": values,
            "mean": statistics.fmean(values) if values else None,
            "sd": statistics.stdev(values) if len(values) > 1 else None,
            "seconds": self.seconds,
            "skipped": self.skipped,
        }


# ---------------------------------------------------------------- rows that are held out


class FoldWorker(Worker):
    """Makes two further tables of a party's table: rows to train on, and rows held out."""

    @exposed(kind="count")
    def split(self, train: str, held: str, rows: np.ndarray) -> dict[str, int]:
        """Hold out these rows, by their places in the common order.

        train, held: names of the further tables, aligned among the parties of this scope.
        """
        own, table = self.alignment, self.table
        out = own.aligned[rows]
        self.site.tables[held] = table.take(out)
        nobody = np.zeros(0, dtype=np.int64)
        self.site.alignments[self._scope(held)] = Alignment(np.arange(len(out)), nobody)
        kept = np.setdiff1d(np.arange(len(table)), out)
        place = np.full(len(table), -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        self.site.tables[train] = table.take(kept)
        inside = np.ones(len(own.aligned), dtype=bool)
        inside[rows] = False
        found = Alignment(place[own.aligned[inside]], place[own.unaligned])
        self.site.alignments[self._scope(train)] = found
        return {"aligned": len(found.aligned), "unaligned": len(found.unaligned)}

    @exposed(kind="control", over_rows=True)
    def split_own(self, train: str, held: str, number: int, folds: int) -> None:
        """Hold out one of `folds` parts of this party's rows."""
        table, out = self.table, self._own_part(number, folds)
        self.site.tables[train], self.site.tables[held] = table.take(~out), table.take(out)

    def _own_part(self, number: int, folds: int) -> np.ndarray:
        order = self.site.rng("folds").permutation(len(self.table))
        out = np.zeros(len(self.table), dtype=bool)
        out[order[number::folds]] = True
        return out

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        """A fold is refused before its tables exist, whatever would be asked of them."""
        if method == "split":
            return [self.alignment.aligned[kwargs["rows"]]]
        out = self._own_part(kwargs["number"], kwargs["folds"])
        return [out, ~out]

    @exposed(kind="control")
    def forget(self, names: list[str]) -> None:
        """Drop tables of folds."""
        for name in names:
            self.site.tables.pop(name, None)
            self.site.alignments.pop(self._scope(name), None)

    def _scope(self, dataset: str) -> str:
        """Another table among the same parties."""
        _, at, members = self.scope.partition("@")
        return f"{dataset}{at}{members}"


def fold(
    fed: Federation, number: int, folds: int, seed: int, *, horizontal: bool = False
) -> tuple[Federation, Federation]:
    """Fold `number` of a federation: to train on, and to test on.

    Of an aligned one only rows whose sides are all real are held out.
    """
    train, held = fed.on(f"{fed.dataset}-fold{number}"), fed.on(f"{fed.dataset}-held{number}")
    with fed.workers(FoldWorker) as group:
        if horizontal:
            group.split_own(train.dataset, held.dataset, number, folds)
            return train, held
        real = fed.alignment.aligned - fed.alignment.completed
        order = np.random.default_rng([seed, folds]).permutation(real)
        rows = np.sort(order[number::folds])
        counts = group.split(train.dataset, held.dataset, rows)
    aligned = {each["aligned"] for each in counts.values()}
    assert len(aligned) == 1, "all parties hold out the same places of one order"
    unaligned = {party: each["unaligned"] for party, each in counts.items()}
    train.note_alignment(AlignmentCounts(aligned.pop(), unaligned, fed.alignment.completed))
    held.note_alignment(AlignmentCounts(len(rows), dict.fromkeys(fed.names, 0)))
    return train, held


declare("auto", FoldWorker)


# ---------------------------------------------------------------- what fits


def candidates_of(
    fed: Federation, how: AutoSettings, *, horizontal: bool, completed: bool, corrected: bool
) -> list[Candidate]:
    """The methods worth trying here, the cheapest first.

    completed, corrected: whether there are completed rows and corrected labels.
    """
    several = not corrected and len(fed.label_parties) > 1
    torn = fed.is_aligned and any(fed.alignment.unaligned.values())
    found = []
    for name in how.names(horizontal=horizontal, several=several, torn=torn):
        labels = corrected and name not in ANNOTATED
        found.append(Candidate(name, corrected=labels))
        if completed and METHODS[name].partners:
            found.append(Candidate(name, completed=True, corrected=labels))
    return found


# ---------------------------------------------------------------- trying them


@dataclass
class Contest:
    """Cross-validation of candidates on the same folds.

    views: the federation by (corrected, completed). reference: whose labels count. metrics: the
    first decides, or what is usual where there is none. judge: the federation with the labels
    that candidates of corrected labels are measured against. Corrected labels come from a model,
    and would favour the candidates that are like it.
    """

    views: Mapping[tuple[bool, bool], Federation]
    how: AutoSettings
    reference: Reference
    metrics: list[str]
    horizontal: bool
    seed: int
    listener: Listener
    judge: Federation | None = None
    metric: str = ""

    def run(self, candidates: list[Candidate]) -> dict[str, Any]:
        """The candidate that does best on held-out rows and why, as the record has it."""
        began = time.perf_counter()
        self.listener.stage("Choosing a method by cross-validation")
        rows = self._rows()
        for number in range(self.how.folds):
            self._one_fold(number, candidates)
            spent = time.perf_counter() - began
            another = spent * (number + 2) / (number + 1)
            if number + 1 < self.how.folds and another > self.how.budget:
                break
        able = [each for each in candidates if each.scores and not each.skipped]
        # Where no candidate can be trained on some fold, the others must do.
        able = able or [each for each in candidates if each.scores]
        if not able:
            told = "; ".join(f"{each.title}: {each.skipped}" for each in candidates)
            raise ConfigError(
                f'method "auto" found no method that can be trained here ({told}). '
                "Mend: what these say, or name a method"
            )
        folds = min(len(each.scores) for each in able)
        self.metric = main_metric(self.metrics, [s for each in able for s in each.scores[:folds]])
        for each in able:
            each.values = [float(scores[self.metric]) for scores in each.scores]
        sign = 1 if better_is_higher(self.metric) else -1
        best = max(able, key=lambda each: sign * statistics.fmean(each.values[:folds]))
        return {
            "name": best.name,
            "completed": best.completed,
            "corrected": best.corrected,
            "metric": self.metric,
            "folds": folds,
            "rows": rows,
            "candidates": [each.to_dict(folds) for each in candidates],
            "why": self._why(best, able, folds, rows),
            "seconds": time.perf_counter() - began,
            "chosen": best.title,
        }

    def _rows(self) -> int:
        fed = self.views[False, False]
        if self.horizontal:
            return sum(int(facts["rows"]) for facts in fed.roster.values())
        if fed.is_aligned:
            return fed.alignment.aligned
        raise ConfigError(
            'method "auto" compares methods on rows that several parties know, and here is one '
            'party. Mend: name = "local"'
        )

    def _one_fold(self, number: int, candidates: list[Candidate]) -> None:
        """Train and score every candidate on one fold."""
        made: dict[Any, tuple[Federation, Federation]] = {}
        for at, candidate in enumerate(candidates):
            if candidate.skipped:
                continue
            view = (candidate.corrected, candidate.completed)
            if view not in made:
                made[view] = self._fold(self.views[view], number)
            train, held = made[view]
            if candidate.corrected and self.judge is not None:
                if JUDGE not in made:
                    made[JUDGE] = self._fold(self.judge, number)
                held = made[JUDGE][1]
            began = time.perf_counter()
            try:
                scores = self._score(candidate, train, held)
            except FedmendError as error:
                candidate.skipped = str(error)
                logger.warning("%s cannot be trained here: %s", candidate.title, error)
                continue
            candidate.seconds += time.perf_counter() - began
            candidate.scores.append(scores)
            done = number * len(candidates) + at + 1
            total = self.how.folds * len(candidates)
            self.listener.progress(f"fold {number + 1}", done, total)
        for train, held in made.values():
            with train.workers(FoldWorker) as group:
                group.forget([train.dataset, held.dataset])

    def _fold(self, fed: Federation, number: int) -> tuple[Federation, Federation]:
        return fold(fed, number, self.how.folds, self.seed, horizontal=self.horizontal)

    def _score(self, candidate: Candidate, train: Federation, held: Federation) -> dict[str, float]:
        estimator = make(candidate.name, self.how.params_of(candidate.name), self.seed)
        reference = self.reference
        if candidate.corrected or candidate.name in HORIZONTAL:
            reference = Reference(tuple(held.label_parties), own=True)
        with warnings.catch_warnings():
            # What a part of the rows gives reason to is told when all of them are trained on.
            warnings.simplefilter("ignore", FedmendWarning)
            estimator.fit(train)
            return measure(estimator, held, reference)

    def _why(self, best: Candidate, able: list[Candidate], folds: int, rows: int) -> list[str]:
        """The choice in words."""
        mean = {id(each): statistics.fmean(each.values[:folds]) for each in able}
        what = "rows of all parties" if self.horizontal else "rows known to all parties"
        lines = [
            f"{best.title} was chosen: {METHODS[best.name].words}. On held-out {what} its "
            f"{pretty(self.metric)} was {score_text(mean[id(best)])} on average over {folds} of "
            f"{self.how.folds} folds."
        ]
        others = [each for each in able if each is not best]
        if others:
            sign = 1 if better_is_higher(self.metric) else -1
            second = max(others, key=lambda each: sign * mean[id(each)])
            lines.append(f"Next came {second.title} with {score_text(mean[id(second)])}.")
            apart = abs(mean[id(best)] - mean[id(second)])
            if folds == 1:
                lines.append("One fold cannot tell whether the difference is more than chance.")
            elif apart < statistics.stdev(best.values[:folds]):
                lines.append(
                    "The difference is within what folds differ by, so that either would do."
                )
        if best.skipped:
            lines.append(f"Further folds could not be trained on: {best.skipped}")
        elif folds < self.how.folds:
            lines.append(f"The time budget of {self.how.budget:g} s ended the comparison early.")
        if rows < FEW_ROWS:
            lines.append(f"{rows} rows are too few to tell methods apart with any certainty.")
        return lines


def main_metric(metrics: list[str], scores: Sequence[Mapping[str, float | None]]) -> str:
    """The metric that decides: the first asked for, else the first usual one, that all scores have.

    An AUC cannot be told of rows among which a class is absent.
    """
    usual = [name for name in ("auc", "accuracy", "rmse") if name in scores[0]]
    names = [*metrics, *usual] or list(scores[0])
    told = (name for name in names if all(_is_number(each.get(name)) for each in scores))
    return next(told, names[0])


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
