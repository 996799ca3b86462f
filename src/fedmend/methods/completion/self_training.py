"""B's half of VFPU-M: keeps every model's predictions, judges them, gives pseudo-labels.

Predictions, pseudo-labels, confidence and the weights of the models stay at B; what leaves are
counts of rows and mean errors. (FedPSG-PUM, Algorithm 2, lines 7 to 19.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmend.data.restore import positions
from fedmend.errors import ConfigError
from fedmend.federation.site import Site
from fedmend.federation.worker import Worker, exposed
from fedmend.learn import pseudo
from fedmend.methods.completion.board import Board, TargetColumn, board_of
from fedmend.methods.completion.rows import FILLED, PREDICTED, completion_of
from fedmend.methods.completion.stacking import (
    CLEAR,
    class_shares,
    class_weights,
    member_errors,
    news,
    shrinkage,
    skill,
    tempered,
    value_weights,
)

__all__ = ["CONFIDENCE", "SelfTraining", "SelfTrainingWorker"]

OUTLYING = 3.0  # standard deviations from where on a number's size does not count for weights
CONFIDENCE = ("published", "probability", "spread", "cpg", "cdsc", "evidential")


@dataclass(frozen=True)
class SelfTraining:
    """How VFPU-M goes about it.

    rounds, alpha, share: T, the confidence threshold, and the share k of the rows that pass it.
    confidence: the rule, one of `CONFIDENCE`. held_out: the share of aligned rows by which several
    families are weighed; up to `folds` such shares, one after the other, for numbers. kappa: of
    ``cdsc``. clip: keep numbers in the observed range.
    judged: hold rows out to learn the skill of a single family too.
    """

    rounds: int = 5
    alpha: float = 0.8
    share: float = 0.25
    confidence: str = "spread"
    kappa: float = 1.0
    held_out: float = 0.2
    clip: bool = True
    seed: int = 0
    judged: bool = False
    folds: int = 1

    @property
    def parts(self) -> int:
        """Into how many parts the aligned rows fall when one is held out."""
        return max(2, round(1 / self.held_out))

    def problems(self) -> list[str]:
        found = []
        if self.rounds < 1:
            found.append(f"rounds must be at least 1, got {self.rounds}")
        if not 0 <= self.alpha <= 1:
            found.append(f"alpha must lie in [0, 1], got {self.alpha}")
        if not 0 < self.share <= 1:
            found.append(f"k must lie in (0, 1], got {self.share}")
        if self.confidence not in CONFIDENCE:
            found.append(
                f"confidence must be one of {', '.join(CONFIDENCE)}, got {self.confidence!r}"
            )
        if not self.kappa >= 0:
            found.append(f"kappa must not be negative, got {self.kappa}")
        if not 0 < self.held_out < 1:
            found.append(f"held_out must lie in (0, 1), got {self.held_out}")
        if self.folds < 1:
            found.append(f"folds must be at least 1, got {self.folds}")
        return found


class SelfTrainingWorker(Worker):
    """B's half: keeps every family's predictions, judges them, moves rows from D_U to D_L."""

    def __init__(
        self, site: Site, scope: str = "train", *, model: str, run: str, a: str, how: dict[str, Any]
    ) -> None:
        super().__init__(site, scope)
        self.model, self.run, self.a = model, run, a
        self.how = SelfTraining(**how)
        self._members: dict[str, dict[str, np.ndarray]] = {}
        self._deviations: dict[str, np.ndarray] = {}
        self._weights: dict[str, dict[str, float]] = {}
        self._trusted: dict[str, tuple[np.ndarray, float]] = {}
        self._residuals: dict[str, float] = {}
        self._skills: dict[str, float] = {}
        self._tried: dict[str, list[_Try]] = {}
        self._trial: dict[str, np.ndarray] = {}
        self._trial_rows = np.zeros(0, np.int64)
        self._before: dict[str, np.ndarray] = {}
        self._held = np.zeros(0, np.int64)
        self._cells: dict[str, _Cells] = {}

    @property
    def board(self) -> Board:
        return board_of(self.site, self.model)

    # ------------------------------------------------------------------ which columns learn

    @exposed(kind="control")
    def attend(self, names: list[str]) -> None:
        """Let the next fit learn these columns only, with nothing predicted yet."""
        self.board.targets = list(names)
        for name in names:
            self.board[name].outputs = self.board[name].spread = None

    @exposed(kind="control")
    def forget(self) -> None:
        """Drop the models' board; the completed cells stay."""
        self.site.state.pop(f"{self.model}:board", None)

    @exposed(kind="control")
    def give_up(self, name: str, reason: str) -> None:
        """A column that failed is left to the generators."""
        self.board.failed[name] = reason

    @exposed(kind="control")
    def guess(self, names: list[str]) -> None:
        """Let models see completed columns as B's own for A's rows (chain, generate-first)."""
        made = completion_of(self.site, self.run, self.a)
        for name in names:
            if name in self.board:
                self.board[name].guess[self.board.aligned :] = encoded(
                    self.board[name], made.values[name]
                )

    @exposed(kind="control")
    def show_own(self, names: list[str]) -> None:
        """Let models see these of B's columns besides A's."""
        self.board.own = [name for name in names if name in self.board]

    @exposed(kind="control")
    def take_guesses(self) -> None:
        """Let models see what is predicted by now as B's own for A's rows."""
        rows = np.arange(self.board.aligned, self.board.rows)
        for name, members in self._members.items():
            if members:
                outputs, _ = self._combined(name, rows)
                self.board[name].guess[rows] = _hard(outputs)

    # ------------------------------------------------------------------ predictions come in

    @exposed(kind="control")
    def collect(self, family: str) -> None:
        """Take what a family has predicted; a column it could not predict it does not have."""
        for name in self.board.learnt:
            outputs = self.board[name].outputs
            members = self._members.setdefault(name, {})
            if outputs is None or np.isnan(outputs[self.board.aligned :]).any():
                members.pop(family, None)
                continue
            members[family] = outputs.copy()
            deviation = self.board[name].spread
            if deviation is not None:
                self._deviations[name] = deviation.copy()

    # ------------------------------------------------------------------ stacking

    @exposed(kind="control")
    def hold_out(self, part: int, parts: int) -> None:
        """Take one of `parts` parts of the aligned rows out of every column's training rows."""
        rng = self.site.rng(f"held-out rows {self.how.seed}")
        self._held = np.sort(rng.permutation(self.board.aligned)[part::parts])
        for name in self.board.learnt:
            labels = self.board[name].labels
            labels[self._held] = -1 if labels.dtype.kind == "i" else np.nan

    @exposed(kind="control")
    def give_back(self) -> None:
        """Remember what was predicted for the rows held out, and let them be training rows."""
        for name in self.board.learnt:
            self.board.release(name)
            members = self._members[name]
            outputs = {family: values[self._held] for family, values in members.items()}
            if outputs:
                self._tried.setdefault(name, []).append(_Try(self._held, outputs))

    @exposed(kind="statistic")
    def weigh(self, careful: bool = False) -> dict[str, dict[str, float]]:
        """Weigh the families by all rows that were held out so far; tells their mean errors.

        careful: the rows held out are not like those to be predicted, so that only what is clear
        is believed of numbers.
        Squared error in units of the column's variance, or the share of wrong classes; under
        ``mean``, the error of always saying the mean or the commonest class.
        """
        errors = {}
        for name in self.board.learnt:
            target, tried = self.board[name], self._tried.get(name, [])
            tests = [each.at(target.labelled[each.rows]) for each in tried]
            if not sum(len(each.rows) for each in tests):
                continue
            outputs = _joined(tests)
            rows = np.concatenate([each.rows for each in tests])
            truth, goal = target.truth[rows], target.goal[rows]
            train = target.truth[np.setdiff1d(np.flatnonzero(target.labelled), tests[0].rows)]
            errors[name] = member_errors(truth, outputs, train)
            if target.is_class:
                self._weights[name] = class_weights(goal, outputs)
            else:
                self._weights[name] = value_weights(goal, outputs, within=OUTLYING)
            if not target.is_class and (len(outputs) > 1 or careful):
                self._shrink(name, goal, outputs, CLEAR if careful else 1.0)
            if target.is_class and target.aside is not None:
                shares = class_shares(train, len(target.classes))
                found = news(truth, self._stack(name, outputs), target.aside[rows], shares)
                self._trusted[name] = shares, found
            first = self._stack(name, tried[0].outputs)
            self._trial[name] = first.argmax(axis=1) if target.is_class else first
            self._trial_rows = tried[0].rows
            stack = self._stack(name, outputs)
            self._skills[name] = skill(truth, stack, train)
            if not target.is_class and len(outputs) > 1:
                self._residuals[name] = float(np.sqrt(((stack - truth) ** 2).mean()))
        return errors

    def _shrink(
        self, name: str, goal: np.ndarray, outputs: dict[str, np.ndarray], errors: float
    ) -> None:
        """Let the weights sum to less than 1 where the stack says more than it knows."""
        share = shrinkage(goal, self._stack(name, outputs), errors)
        weights = self._weights[name]
        self._weights[name] = {family: share * weight for family, weight in weights.items()}

    def _stack(self, name: str, members: dict[str, np.ndarray]) -> np.ndarray:
        weights = self._weights.get(name) or dict.fromkeys(members, 1.0 / len(members))
        whole = sum(weights.get(family, 0.0) * values for family, values in members.items())
        return self._tempered(name, np.asarray(whole))

    def _tempered(self, name: str, outputs: np.ndarray) -> np.ndarray:
        """Class probabilities as far as they say more than the columns that were left out."""
        if name not in self._trusted:
            return outputs
        return tempered(outputs, *self._trusted[name])

    def _combined(self, name: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The stack's outputs for these rows, and its members [K, n] or [K, n, C]."""
        members = {family: values[rows] for family, values in self._members[name].items()}
        each = [self._tempered(name, values) for values in members.values()]
        return self._stack(name, members), np.stack(each)

    # ------------------------------------------------------------------ Algorithm 2, lines 7-19

    @exposed(kind="count")
    def move(self) -> dict[str, list[int]]:
        """Give pseudo-labels to the surest rows; per column how many joined, how many wait."""
        counts = {}
        for name in self.board.learnt:
            if not self._members.get(name):
                self.board.failed[name] = "no model could predict it"
                continue
            waiting = self.board.waiting(name)
            labels = self._judged(name, waiting)
            chosen = pseudo.select(labels, self.how.share)
            values = _hard(labels.target[chosen])
            self.board.adopt(name, waiting[chosen], values)
            cells = self._cells.setdefault(name, _Cells.of(self.board))
            cells.put(waiting[chosen] - self.board.aligned, values, labels.weight[chosen], False)
            counts[name] = [len(chosen), len(waiting) - len(chosen)]
        return counts

    def _judged(self, name: str, rows: np.ndarray) -> pseudo.PseudoLabels:
        target, how = self.board[name], self.how
        outputs, members = self._combined(name, rows)
        if not target.is_class:
            if how.confidence == "published":
                labelled = target.labels[target.labelled]
                return pseudo.published(outputs, labelled, how.alpha)
            return self._agreement(name, rows, outputs, members)
        before = self._before.get(name)
        self._before[name] = self._combined(name, np.arange(self.board.rows))[0]
        if how.confidence in ("cpg", "cdsc"):
            # the local model is this round's, the global one that of the round's start
            world = outputs if before is None else before[rows]
            if how.confidence == "cpg":
                return pseudo.cpg(outputs, world, how.alpha)
            return pseudo.cdsc(outputs, world, how.alpha, how.kappa)
        if how.confidence == "evidential" and len(members) > 1:
            evidence = pseudo.dirichlet_evidence(outputs, members)
            labels = pseudo.evidential(evidence, 1.0 - how.alpha)
        elif how.confidence == "spread" and len(members) > 1:
            labels = pseudo.spread(members, how.alpha)
        else:
            return pseudo.probability(outputs, how.alpha)
        # the class is the stack's, also where members that differ are no evidence for any
        return pseudo.PseudoLabels(outputs.argmax(1), labels.mask, labels.weight, labels.score)

    def _agreement(
        self, name: str, rows: np.ndarray, outputs: np.ndarray, members: np.ndarray
    ) -> pseudo.PseudoLabels:
        """Regression: how far the members are apart, and how far off the model is by itself."""
        residual: Any = self._residuals.get(name)
        own = self._deviations.get(name)
        if residual is None:
            residual = 0.0 if own is None else np.nan_to_num(own[rows])
        labels = pseudo.spread(members, self.how.alpha, scale=1.0, residual=residual)
        return pseudo.PseudoLabels(outputs, labels.mask, labels.weight, labels.score)

    @exposed(kind="control")
    def finish(self) -> None:
        """Fill what still waits by the last model, and hand all cells to the completed table."""
        made = completion_of(self.site, self.run, self.a)
        for name in [name for name in self._cells if name not in self.board.failed]:
            target, cells = self.board[name], self._cells[name]
            waiting = self.board.waiting(name)
            if len(waiting):
                labels = self._judged(name, waiting)
                cells.put(waiting - self.board.aligned, _hard(labels.target), labels.weight, True)
            values = cells.values
            if target.is_class:
                values = values.astype(np.int64)
            elif self.how.clip:
                seen = target.truth[~np.isnan(target.truth)]
                values = values.clip(seen.min(), seen.max())
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
    def of(cls, board: Board) -> _Cells:
        count = board.rows - board.aligned
        return cls(np.full(count, np.nan), np.zeros(count, np.int8), np.zeros(count))

    def put(self, at: np.ndarray, values: np.ndarray, trust: np.ndarray, last: bool) -> None:
        if self.origins[at].any():
            raise ConfigError("a row was given two values for one column")
        self.values[at] = values
        self.origins[at] = FILLED if last else PREDICTED
        self.confidence[at] = trust


def _hard(targets: np.ndarray) -> np.ndarray:
    """Class numbers also where a rule gave soft labels."""
    return targets.argmax(axis=1) if targets.ndim == 2 else targets


def encoded(target: TargetColumn, values: Any) -> np.ndarray:
    """A column's own values as the board keeps them; the inverse of `TargetColumn.decode`."""
    if target.column.is_categorical:
        at = positions(values, target.column.categories or ())
        if target.is_class:
            number = np.full(len(target.column.categories or ()) + 2, -1, dtype=np.int64)
            number[target.classes] = np.arange(len(target.classes))
            return number[at]
        real = np.where(at < 0, np.nan, at.astype(np.float64))
    else:
        real = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return (real - target.mean) / target.scale
