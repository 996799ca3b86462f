"""VFPU-M: predict columns of B for rows only A has, by self-training (FedPSG-PUM, Algorithm 2).

Every strong column is a target of its own; all of them go through the rounds side by side:

    D_L = aligned rows, D_U = A's other rows
    for t = 1 .. T:
        train the federated models on D_L
        s_j = confidence of the prediction for every row of D_U
        of the rows with s_j >= alpha take the top share k
        give them pseudo-labels; move them from D_U to D_L

A column stops when nothing qualifies or D_U is empty. Rows still in D_U after the last round, which
the published text forgets, are filled by the last model and marked as such.

Several model families make a stack: B weighs them, per column, by how well each does on aligned
rows that were held out, and then all learn from all rows. Their disagreement is the ensemble's
spread. Predictions, pseudo-labels, confidence and the weights of the models stay at B; the
coordinator learns how many rows of which column joined, and mean errors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedmend.errors import ConfigError, DataError, PartyFailed
from fedmend.federation.federation import Federation
from fedmend.federation.rows import Scored
from fedmend.federation.site import Site
from fedmend.federation.worker import Worker, exposed
from fedmend.learn import pseudo
from fedmend.methods.completion.linear import AsideModels, LinearModels
from fedmend.methods.completion.merging import FILLED, PREDICTED, completion_of
from fedmend.methods.completion.stacking import (
    CAREFUL_ERRORS,
    class_shares,
    class_weights,
    decided,
    family_errors,
    leaning,
    news,
    shrinkage,
    skill,
    tempered,
    value_weights,
)
from fedmend.methods.completion.targets import TargetModels, TargetStore, store_of
from fedmend.methods.completion.trees import TreeModels

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int, dict[str, float]], None]
FAMILIES = ("linear", "tree", "neural")
CONFIDENCE = ("published", "probability", "spread")
OUTLYING = 3.0  # standard deviations from where on a number's size does not count for weights
PARTS = 5  # into which the aligned rows fall when one is held out
CV_PARTS = 3  # for the threshold that cross-validation finds


@dataclass(frozen=True)
class SelfTraining:
    """How VFPU-M goes about it.

    rounds, alpha, k: T, the confidence threshold, and the share of the rows that pass it.
    confidence: the rule, one of `CONFIDENCE`. folds: how many fifths of the aligned rows, one after
    the other, several families are weighed by, for numbers; one for classes.
    judged: hold rows out to learn the skill of a single family too.
    """

    rounds: int = 5
    alpha: float = 0.8
    k: float = 0.25
    confidence: str = "spread"
    seed: int = 0
    judged: bool = False
    folds: int = 1


def family_of(name: str) -> type[TargetModels]:
    """The models of a family; torch's are imported when they are used."""
    if name == "neural":
        from fedmend.methods.completion.neural import NeuralModels

        return NeuralModels
    return LinearModels if name == "linear" else TreeModels


# ---------------------------------------------------------------------------------- at B


class SelfTrainingWorker(Worker):
    """B: keeps every family's predictions, judges them, moves rows from D_U to D_L."""

    def __init__(
        self, site: Site, scope: str = "train", *, model: str, run: str, a: str, how: dict[str, Any]
    ) -> None:
        super().__init__(site, scope)
        self.model, self.run, self.a = model, run, a
        self.how = SelfTraining(**how)
        self._outputs: dict[str, dict[str, np.ndarray]] = {}  # by column and family
        self._deviations: dict[str, np.ndarray] = {}
        self._weights: dict[str, dict[str, float]] = {}
        self._trusted: dict[str, tuple[np.ndarray, float]] = {}
        self._leans: dict[str, tuple[np.ndarray, float]] = {}
        self._residuals: dict[str, float] = {}
        self._skills: dict[str, float] = {}
        self._untold: set[str] = set()
        self._tried: dict[str, list[_Try]] = {}
        self._trial: dict[str, np.ndarray] = {}
        self._trial_rows = np.zeros(0, np.int64)
        self._held = np.zeros(0, np.int64)
        self._cells: dict[str, _Cells] = {}

    @property
    def store(self) -> TargetStore:
        return store_of(self.site, self.model)

    @exposed(kind="control")
    def attend(self, names: list[str]) -> None:
        """Let the next fit learn these columns only, with nothing predicted yet."""
        self.store.targets = list(names)
        for name in names:
            self.store[name].outputs = self.store[name].spread = None

    @exposed(kind="control")
    def forget(self) -> None:
        """Drop the models' target store; the completed cells stay."""
        self.site.state.pop(f"{self.model}:targets", None)

    @exposed(kind="control")
    def give_up(self, name: str, reason: str) -> None:
        """A column that failed is left to the generators."""
        self.store.failed[name] = reason

    @exposed(kind="control")
    def collect(self, family: str) -> None:
        """Take what a family has predicted; a column it could not predict it does not have."""
        for name in self.store.learnt:
            target, outputs = self.store[name], self._outputs.setdefault(name, {})
            if target.outputs is None or np.isnan(target.outputs[self.store.aligned :]).any():
                outputs.pop(family, None)
                continue
            outputs[family] = target.outputs.copy()
            if target.spread is not None:
                self._deviations[name] = target.spread.copy()

    # ------------------------------------------------------------------ stacking

    @exposed(kind="control")
    def hold_out(self, part: int, parts: int) -> None:
        """Take one of `parts` parts of the aligned rows out of every column's training rows."""
        rng = self.site.rng(f"held-out rows {self.how.seed}")
        self._held = np.sort(rng.permutation(self.store.aligned)[part::parts])
        for name in self.store.learnt:
            labels = self.store[name].labels
            labels[self._held] = -1 if labels.dtype.kind == "i" else np.nan

    @exposed(kind="control")
    def give_back(self) -> None:
        """Remember what was predicted for the rows held out, and let them be training rows."""
        for name in self.store.learnt:
            self.store.release(name)
            made = self._outputs[name]
            if made:
                held = {family: values[self._held] for family, values in made.items()}
                self._tried.setdefault(name, []).append(_Try(self._held, held))

    @exposed(kind="statistic")
    def weigh(self, careful: bool = False) -> dict[str, dict[str, float]]:
        """Weigh the families by all rows that were held out so far; tells their mean errors, but of
        columns that were judged by too few rows.

        careful: the rows held out are not like those to be predicted, so that of numbers only what
        is clear is followed.
        Squared error in units of the column's variance, or the share of wrong classes; under
        ``mean``, the error of always saying the mean or the commonest class.
        """
        errors = {}
        for name in self.store.learnt:
            target, tried = self.store[name], self._tried.get(name, [])
            tests = [each.at(target.labelled[each.rows]) for each in tried]
            if not sum(len(each.rows) for each in tests):
                continue
            outputs = _joined(tests)
            rows = np.concatenate([each.rows for each in tests])
            truth, goal = target.truth[rows], target.goal[rows]
            train = target.truth[np.setdiff1d(np.flatnonzero(target.labelled), tests[0].rows)]
            if self._may_tell(f"column {name}", rows, map(_answers, outputs.values())):
                errors[name] = family_errors(truth, outputs, train)
            if target.is_class:
                self._weights[name] = class_weights(goal, outputs)
                shares = class_shares(train, len(target.classes))
                if target.aside is not None:
                    found = news(truth, self._stack(name, outputs), target.aside[rows], shares)
                    self._trusted[name] = shares, found
                lean = leaning(truth, self._stack(name, outputs), shares)
                self._leans[name] = shares, lean
            else:
                weights = value_weights(goal, outputs, within=OUTLYING)
                self._weights[name] = weights
                if len(outputs) > 1 or careful:
                    # weights sum to less than 1 where the stack says more than it knows
                    wide = CAREFUL_ERRORS if careful else 1.0
                    share = shrinkage(goal, self._stack(name, outputs), wide)
                    self._weights[name] = {key: share * each for key, each in weights.items()}
            first = self._stack(name, tried[0].outputs)
            self._trial[name] = self._class(name, first) if target.is_class else first
            self._trial_rows = tried[0].rows
            stack = self._stack(name, outputs)
            self._skills[name] = skill(truth, stack, train)
            # Probabilities weigh alike, whether nearly 1 or 1: what differs in few rows is seen.
            said = np.exp(stack - 1.0) if target.is_class else _answers(stack)
            # An account of its own: families that say nearly the same leave errors out as a rule.
            if not self._may_tell(f"skill in {name}", rows, [said]):
                self._untold.add(name)
            if not target.is_class and len(outputs) > 1:
                self._residuals[name] = float(np.sqrt(((stack - truth) ** 2).mean()))
        return errors

    def _may_tell(self, what: str, rows: np.ndarray, said: Iterable[np.ndarray]) -> bool:
        """Whether an answer may rest on these rows of a column, and on what was said of them.

        Who lets rows be predicted one by one chooses what is said of each.
        """
        own, account = self.alignment.aligned[rows], self.site.rows
        return account.admits("weigh", self.table, own, what) and all(
            account.admits("weigh", self.table, Scored(own, each), what) for each in said
        )

    def _stack(self, name: str, outputs: dict[str, np.ndarray]) -> np.ndarray:
        weights = self._weights.get(name) or dict.fromkeys(outputs, 1.0 / len(outputs))
        whole = sum(weights.get(family, 0.0) * values for family, values in outputs.items())
        return self._tempered(name, np.asarray(whole))

    def _tempered(self, name: str, outputs: np.ndarray) -> np.ndarray:
        """Class probabilities as far as they say more than the columns that were left out."""
        if name not in self._trusted:
            return outputs
        return tempered(outputs, *self._trusted[name])

    def _class(self, name: str, output: np.ndarray) -> np.ndarray:
        """The likeliest class, or where that was found to pay a rarer one nearly as likely."""
        return decided(output, *self._leans[name]) if name in self._leans else output.argmax(1)

    # ------------------------------------------------------------------ Algorithm 2, lines 7-19

    @exposed(kind="count")
    def move(self) -> dict[str, list[int]]:
        """Give pseudo-labels to the surest rows; per column how many joined, how many wait."""
        counts = {}
        for name in self.store.learnt:
            if not self._outputs.get(name):
                self.store.failed[name] = "no model could predict it"
                continue
            waiting = self.store.waiting(name)
            labels = self._judged(name, waiting)
            chosen = pseudo.select(labels, self.how.k)
            values = labels.target[chosen]
            self.store.adopt(name, waiting[chosen], values)
            cells = self._cells.setdefault(name, _Cells.of(self.store))
            cells.put(waiting[chosen] - self.store.aligned, values, labels.weight[chosen], False)
            counts[name] = [len(chosen), len(waiting) - len(chosen)]
        return counts

    def _judged(self, name: str, rows: np.ndarray) -> pseudo.PseudoLabels:
        """Labels of these rows, and how sure they are by the rule of confidence."""
        target, rule, alpha = self.store[name], self.how.confidence, self.how.alpha
        outputs = {family: values[rows] for family, values in self._outputs[name].items()}
        stack = self._stack(name, outputs)
        each = np.stack([self._tempered(name, values) for values in outputs.values()])
        if target.is_class:
            agree = rule == "spread" and len(each) > 1
            labels = pseudo.spread(each, alpha) if agree else pseudo.probability(stack, alpha)
            return self._leant(name, labels, stack, alpha)
        if rule == "published":
            return pseudo.published(stack, target.labels[target.labelled], alpha)
        # how far the families are apart, and how far off the model is by itself
        residual: Any = self._residuals.get(name)
        if residual is None:
            own = self._deviations.get(name)
            residual = 0.0 if own is None else np.nan_to_num(own[rows])
        labels = pseudo.spread(each, alpha, residual=residual)
        # the value is the stack's, also where families that differ are no evidence for any
        return pseudo.PseudoLabels(stack, labels.mask, labels.weight, labels.score)

    def _leant(
        self, name: str, labels: pseudo.PseudoLabels, stack: np.ndarray, alpha: float
    ) -> pseudo.PseudoLabels:
        """The stack's classes; a class that is not the likeliest is as much less sure."""
        best = self._class(name, stack)
        score = labels.score * stack[np.arange(len(stack)), best] / stack.max(1)
        return pseudo.PseudoLabels(best, score >= alpha, score, score)

    @exposed(kind="control")
    def finish(self) -> None:
        """Fill what still waits by the last model, and hand all cells to the completed table."""
        made = completion_of(self.site, self.run, self.a)
        made.untold |= self._untold
        for name in [name for name in self._cells if name not in self.store.failed]:
            target, cells = self.store[name], self._cells[name]
            waiting = self.store.waiting(name)
            if len(waiting):
                labels = self._judged(name, waiting)
                cells.put(waiting - self.store.aligned, labels.target, labels.weight, True)
            values = cells.values
            if target.is_class:
                values = values.astype(np.int64)
            else:  # numbers stay in the observed range
                values = values.clip(np.nanmin(target.truth), np.nanmax(target.truth))
            known = self._skills.get(name, 0.0)
            made.put(name, target.decode(values), cells.origins, cells.confidence, known)
            if name in self._trial:
                made.trial[name] = target.decode(self._trial[name])
                made.trial_rows = self.alignment.aligned[self._trial_rows]


@dataclass(frozen=True)
class _Try:
    """What the families said of rows that they had not learnt from."""

    rows: np.ndarray
    outputs: dict[str, np.ndarray]

    def at(self, kept: np.ndarray) -> _Try:
        return _Try(self.rows[kept], {key: each[kept] for key, each in self.outputs.items()})


def _answers(outputs: np.ndarray) -> np.ndarray:
    """The likeliest class; a number as the probability of two that has it for its odds."""
    if outputs.ndim > 1:
        return np.eye(outputs.shape[1])[outputs.argmax(1)]
    return np.stack([1 / (1 + np.exp(-outputs)), 1 / (1 + np.exp(outputs))], 1)


def _joined(tests: list[_Try]) -> dict[str, np.ndarray]:
    """The outputs of the families that took part in all of them."""
    names = [name for name in tests[0].outputs if all(name in each.outputs for each in tests)]
    return {name: np.concatenate([each.outputs[name] for each in tests]) for name in names}


@dataclass
class _Cells:
    """What became of one column's rows."""

    values: np.ndarray
    origins: np.ndarray
    confidence: np.ndarray

    @classmethod
    def of(cls, store: TargetStore) -> _Cells:
        count = store.rows - store.aligned
        return cls(np.full(count, np.nan), np.zeros(count, np.int8), np.zeros(count))

    def put(self, at: np.ndarray, values: np.ndarray, trust: np.ndarray, last: bool) -> None:
        if self.origins[at].any():
            raise ConfigError("a row was given two values for one column")
        self.values[at] = values
        self.origins[at] = FILLED if last else PREDICTED
        self.confidence[at] = trust


# ---------------------------------------------------------------------------------- coordinator


@dataclass
class Outcome:
    """What the coordinator learns of VFPU-M: counts, and which columns failed.

    joined: per column how many rows joined in each round. errors: per column the held-out error
    of each family (several families only). left_out: A's columns that models did not see, because
    they lie beyond the aligned rows. changed: where there are such, those that models did see and
    that are distributed in another way on A's other rows.
    """

    failed: dict[str, str] = field(default_factory=dict)
    joined: dict[str, list[int]] = field(default_factory=dict)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


class _Run:
    """Models and worker of one run of VFPU-M, and the steps that may fail column by column."""

    def __init__(
        self,
        view: Federation,
        a: str,
        b: str,
        targets: Sequence[str],
        *,
        run: str,
        how: SelfTraining,
        families: Sequence[str] = ("linear",),
        params: Mapping[str, Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.how, self.progress, self.outcome = how, progress, Outcome()
        self.options, self.models = dict(options or {}), dict[str, TargetModels]()
        model: str | None = None
        for family in families:
            own = {**self.options, **(params or {}).get(family, {})}
            made = family_of(family)(view, a, b, targets=list(targets), model=model, **own)
            model = made.model
            self.models[family] = made
        first = next(iter(self.models.values()))
        self.outcome.failed |= first.failed
        self.outcome.left_out = first.at_a.left_out()
        if self.outcome.left_out:
            logger.info("columns of %s beyond the aligned rows: %s", a, self.outcome.left_out)
            self.outcome.changed = first.at_a.changed()
        self.tasks = dict(first.targets)
        self.workers = view.workers(
            SelfTrainingWorker, parties=[b], model=model, run=run, a=a, how=asdict(how)
        )
        self.judge = self.workers[b]
        self.active = [name for name in targets if name not in self.outcome.failed]

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *exc: object) -> None:
        for models in self.models.values():
            models.close()
        self.judge.forget()
        self.workers.stop()

    def set_aside(self) -> None:
        """Columns that changed may stand for those left out: what these say is not learnt."""
        if not self.outcome.changed or not self.active:
            return
        self.judge.attend(self.active)
        first = next(iter(self.models.values()))
        with AsideModels(first.fed, first.a, first.b, model=first.model, **self.options) as models:
            models.set_aside(progress=self._tell(models.family))

    def learn(self, names: list[str], rows: str) -> None:
        """Fit and predict with every family; a column that fails is found and left out."""
        for family in self.models:
            self._learn(family, names, rows)
            names = [name for name in names if name not in self.outcome.failed]
        self.active = [name for name in self.active if name not in self.outcome.failed]

    def _learn(self, family: str, names: list[str], rows: str) -> None:
        if not names:
            return
        models = self.models[family]
        self.judge.attend(names)
        try:
            report = models.fit(progress=self._tell(family))
            failed = {name: why for name, why in report.failed.items() if name in names}
            models.predict(rows=rows, progress=self._tell(family))
        except (DataError, PartyFailed) as error:
            if len(names) > 1:
                for name in names:
                    self._learn(family, [name], rows)
                return
            failed = {names[0]: str(error)}
        else:
            self.judge.collect(family)
        for name, why in failed.items():
            self.outcome.failed[name] = why
            self.judge.give_up(name, why)

    def try_out(self, part: int, parts: int, *, numbers_only: bool = False) -> None:
        """Let all families predict one of `parts` parts of the aligned rows from the others."""
        names = self.active
        if numbers_only:
            names = [name for name in names if self.tasks[name] == "regression"]
        if names:
            self.judge.attend(names)
            self.judge.hold_out(part, parts)
            self.learn(names, "all")
            self.judge.attend([name for name in names if name in self.active])
            self.judge.give_back()

    def weigh(self) -> dict[str, dict[str, float]]:
        """Weigh the families; per column their held-out errors."""
        self.judge.attend(self.active)
        # Columns were left out: A's other rows are unlike the aligned ones, the only judges.
        found: dict[str, dict[str, float]] = self.judge.weigh(careful=bool(self.outcome.left_out))
        return found

    def _tell(self, family: str) -> Callable[[str, int, int], None] | None:
        progress = self.progress
        if progress is None:
            return None
        return lambda stage, done, total: progress(f"{family}: {stage}", done, total, {})


def vfpu_m(
    view: Federation,
    a: str,
    b: str,
    targets: Sequence[str],
    *,
    how: SelfTraining,
    progress: Progress | None = None,
    **settings: Any,
) -> Outcome:
    """Complete these columns of B for A's rows of the view; the cells stay at B.

    settings: run, families; params: arguments per family; options: those that all families take.
    """
    with _Run(view, a, b, targets, how=how, progress=progress, **settings) as work:
        outcome = work.outcome
        work.set_aside()
        if (len(work.models) > 1 or how.judged) and work.active:
            for part in range(min(how.folds, PARTS)):
                # A few outliers decide how numbers are weighed: they need more rows than classes.
                work.try_out(part, PARTS, numbers_only=part > 0)
            outcome.errors = work.weigh()
        waiting = list(work.active)
        for number in range(1, how.rounds + 1):
            work.learn(waiting, "unaligned")
            waiting = [name for name in waiting if name in work.active]
            work.judge.attend(waiting)
            counts = work.judge.move()
            for name, (joined, _) in counts.items():
                outcome.joined.setdefault(name, []).append(joined)
                if progress is not None:
                    progress(f"{b}.{name}", number, how.rounds, {"joined": float(joined)})
            for name in set(waiting) - set(counts):
                outcome.failed[name] = "no model could predict it"
            # a column without a new row would learn the same model again
            waiting = [name for name, (joined, left) in counts.items() if joined and left]
            if not waiting:
                break
        work.judge.finish()
    logger.info("VFPU-M: %d columns of %s, %d failed", len(targets), b, len(outcome.failed))
    return outcome


def cross_validated(
    view: Federation, a: str, b: str, targets: Sequence[str], **settings: Any
) -> dict[str, dict[str, float]]:
    """Per column the mean held-out error of each family and of ``mean``, on the aligned rows."""
    with _Run(view, a, b, targets, **settings) as work:
        work.set_aside()
        for part in range(CV_PARTS):
            work.try_out(part, CV_PARTS)
        return work.weigh()
