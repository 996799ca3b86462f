"""``method = "auto"`` where several parties label, or where parties have the same columns.

(Elsewhere it is a method of its own, `fedmend.methods.auto`.) All candidates train on the first
fold, then all on the second, and so on, until the folds or the time are at their end; candidates
are compared on the folds that they all have. The simplest one within a standard error of the best
is then trained on all rows, like a method that the file names.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedmend.errors import Refused
from fedmend.federation import Federation
from fedmend.flow.config.settings import AutoSettings
from fedmend.flow.live import Listener
from fedmend.flow.scoring import Reference, measure
from fedmend.methods.auto.auto import Candidate, none_able
from fedmend.methods.auto.folds import fold, forget, simplest
from fedmend.methods.registry import METHODS, make
from fedmend.report.amounts import pretty, score_text
from fedmend.report.record import better_is_higher, main_metric

logger = logging.getLogger(__name__)

FEW_ROWS = 40
"""With fewer aligned rows the folds say more about chance than about methods."""
HELD_OUT = "held-out rows"
_UNJUDGED = (
    "{} was taken without a comparison, as the simplest: a party has too few rows for folds, or no "
    "party has labelled rows enough in one to tell scores of. Mend: more labelled rows, fewer "
    "folds, or name a method."
)


@dataclass
class Judged(Candidate):
    """A candidate, and how it did in each fold."""

    scores: list[dict[str, float]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def to_dict(self, folds: int, chosen: bool) -> dict[str, Any]:
        """The JSON form, over the folds that all have."""
        values = self.values[:folds]
        told: dict[str, Any] = {}
        if values:
            mean = statistics.fmean(values)
            error = statistics.stdev(values) / math.sqrt(folds) if folds > 1 else 0.0
            told = {"score": mean, "interval": [mean - 1.96 * error, mean + 1.96 * error]}
        return {
            "name": self.name,
            "title": self.title,
            "completed": self.completed,
            "scores": {HELD_OUT: told} if told else {},
            "weights": {HELD_OUT: float(chosen)},
            "seconds": self.seconds,
            "skipped": self.skipped,
        }


def candidates_of(
    fed: Federation, how: AutoSettings, *, horizontal: bool, completed: bool
) -> list[Judged]:
    """The methods worth trying here, the cheapest first."""
    torn = fed.is_aligned and any(fed.alignment.unaligned.values())
    found = []
    for name in how.names(horizontal=horizontal, several=not horizontal, torn=torn):
        found.append(Judged(name))
        if completed and METHODS[name].partners:
            found.append(Judged(name, completed=True))
    return found


@dataclass
class Contest:
    """Cross-validation of candidates on the same folds.

    views: the federation without and with completed rows. reference: whose labels count. metrics:
    the first decides, or what is usual where there is none. Against the majority of the annotators
    it is the AUC whatever was asked for: a majority is itself one of the methods, and what repeats
    its errors would be right most often, and surest of it.
    """

    views: Mapping[bool, Federation]
    how: AutoSettings
    reference: Reference
    metrics: list[str]
    horizontal: bool
    seed: int
    listener: Listener
    metric: str = ""

    def run(self, candidates: list[Judged]) -> dict[str, Any]:
        """The candidate that does best on held-out rows and why, as the record has it."""
        began = time.perf_counter()
        self.listener.stage("Choosing a method by cross-validation")
        rows = self._rows()
        for number in range(self.how.folds):
            self._one_fold(number, candidates)
            if not any(each.scores for each in candidates):
                break
            spent = time.perf_counter() - began
            another = spent * (number + 2) / (number + 1)
            if number and number + 1 < self.how.folds and another > self.how.budget:
                break
        able = [each for each in candidates if each.scores and not each.skipped]
        # Where no candidate can be trained on some fold, the others must do.
        able = able or [each for each in candidates if each.scores]
        trained = [each for each in candidates if not each.skipped]
        if trained and not able:
            best, folds, why = trained[0], 0, [_UNJUDGED.format(trained[0].title)]
            self.metric = (self.metrics or ["accuracy"])[0]
        elif not able:
            raise none_able(candidates)
        else:
            folds = min(len(each.scores) for each in able)
            scores = [some for each in able for some in each.scores[:folds]]
            self.metric = main_metric([] if self._by_majority else self.metrics, scores)
            for each in able:
                each.values = [float(scores[self.metric]) for scores in each.scores]
            best = self._chosen(able, folds)
            why = self._why(best, able, folds, rows)
        return {
            "name": best.name,
            "completed": best.completed,
            "metric": self.metric,
            "folds": folds,
            "rows": rows,
            "candidates": [each.to_dict(folds, each is best) for each in candidates],
            "why": why,
            "seconds": time.perf_counter() - began,
            "chosen": best.title,
        }

    def _chosen(self, able: list[Judged], folds: int) -> Judged:
        sign = 1 if better_is_higher(self.metric) else -1
        values = [[sign * value for value in each.values[:folds]] for each in able]
        return able[simplest(values)]

    @property
    def _by_majority(self) -> bool:
        return len(self.reference.parties) > 1 and not (self.horizontal or self.reference.own)

    def _rows(self) -> int:
        fed = self.views[False]
        if self.horizontal:
            return sum(int(facts["rows"]) for facts in fed.roster.values())
        return fed.alignment.aligned

    def _one_fold(self, number: int, candidates: list[Judged]) -> None:
        """Train and score every candidate on one fold."""
        made: dict[bool, tuple[Federation, Federation]] = {}
        for at, candidate in enumerate(candidates):
            if candidate.skipped:
                continue
            if candidate.completed not in made:
                try:
                    made[candidate.completed] = fold(
                        self.views[candidate.completed],
                        number,
                        self.how.folds,
                        self.seed,
                        horizontal=self.horizontal,
                    )
                except Refused as refused:
                    if not self.horizontal:
                        raise
                    # A client too small to be cut into folds is no reason not to train with it.
                    logger.warning("methods are not compared: %s", refused)
                    return
            with candidate.tried():
                scores = self._score(candidate, *made[candidate.completed])
                if scores:
                    candidate.scores.append(scores)
            if candidate.skipped:
                continue
            done = number * len(candidates) + at + 1
            total = self.how.folds * len(candidates)
            self.listener.progress(f"fold {number + 1}", done, total)
        for each in made.values():
            forget(*each)

    def _score(self, candidate: Judged, train: Federation, held: Federation) -> dict[str, float]:
        estimator = make(candidate.name, METHODS[candidate.name].known(self.how.params), self.seed)
        if self.horizontal:
            estimator.shorten()
            return dict(estimator.fit(train).judge(held))
        estimator.fit(train)
        return measure(estimator, held, self.reference)

    def _why(self, best: Judged, able: list[Judged], folds: int, rows: int) -> list[str]:
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
            ahead = sign * (mean[id(second)] - mean[id(best)]) > 0
            lines.append(
                f"{second.title} had {score_text(mean[id(second)])}"
                + (", which is more by no more than folds differ by." if ahead else ".")
            )
            if folds == 1:
                lines.append("One fold cannot tell whether the difference is more than chance.")
        if self._by_majority and self.metrics and self.metrics[0] != self.metric:
            lines.append(
                f"{pretty(self.metric)} decided, not {pretty(self.metrics[0])}: rows are held "
                "against the majority of the annotators, whose errors would count as right."
            )
        if best.skipped:
            lines.append(f"Further folds could not be trained on: {best.skipped}")
        elif folds < self.how.folds:
            lines.append(f"The time budget of {self.how.budget:g} s ended the comparison early.")
        if rows < FEW_ROWS:
            lines.append(f"{rows} rows are too few to tell methods apart with any certainty.")
        return lines
