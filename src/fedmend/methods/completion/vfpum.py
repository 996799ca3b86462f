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
spread. All judging happens at B; the coordinator learns how many rows of which column joined.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedmend.errors import DataError, PartyFailed
from fedmend.federation.federation import Federation
from fedmend.methods.completion.aside import AsideModels
from fedmend.methods.completion.self_training import SelfTraining, SelfTrainingWorker
from fedmend.methods.completion.targets import TargetModels

__all__ = ["FAMILIES", "Outcome", "cross_validated", "vfpu_m"]

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int, dict[str, float]], None]
FAMILIES = ("linear", "tree", "neural")


def family_of(name: str) -> type[TargetModels]:
    """The models of a family; imported when it is used."""
    if name == "linear":
        from fedmend.methods.completion.linear import LinearModels

        return LinearModels
    if name == "tree":
        from fedmend.methods.completion.trees import TreeModels

        return TreeModels
    from fedmend.methods.completion.neural import NeuralModels

    return NeuralModels


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
        families: Sequence[str],
        params: Mapping[str, Mapping[str, Any]],
        options: Mapping[str, Any],
        progress: Progress | None,
        own: Sequence[str] = (),
    ) -> None:
        self.how, self.progress, self.outcome = how, progress, Outcome()
        self.models: dict[str, TargetModels] = {}
        model: str | None = None
        for family in families:
            made = family_of(family)(
                view,
                a,
                b,
                targets=list(targets),
                own=list(own),
                model=model,
                **{**options, **params.get(family, {})},
            )
            model = made.model
            self.models[family] = made
        first = next(iter(self.models.values()))
        self.outcome.failed |= first.failed
        self.outcome.left_out = first.at_a.left_out()
        if self.outcome.left_out:
            logger.info("columns of %s beyond the aligned rows: %s", a, self.outcome.left_out)
            self.outcome.changed = first.at_a.changed()
        self.tasks = dict(first.targets)
        self.crew = view.workers(
            SelfTrainingWorker, parties=[b], model=model, run=run, a=a, how=asdict(how)
        )
        self.judge = self.crew[b]
        self.own = list(own)
        self.active = [name for name in targets if name not in self.outcome.failed]

    def set_aside(self, options: Mapping[str, Any]) -> None:
        """Columns that changed may stand for those left out: what these say is not learnt."""
        if not self.outcome.changed or not self.active:
            return
        self.judge.attend(self.active)
        first = next(iter(self.models.values()))
        common = {"model": first.model, **options}
        with AsideModels(first.fed, first.a, first.b, **common) as models:
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

    def guess_own(self) -> None:
        """Predict once without B's other columns, so that there is something to see of them."""
        self.judge.show_own([])
        self.learn(list(self.active), "unaligned")
        self.judge.attend(self.active)
        self.judge.take_guesses()
        self.judge.show_own(self.own)

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

    def _tell(self, family: str) -> Callable[[str, int, int], None] | None:
        progress = self.progress
        if progress is None:
            return None
        return lambda stage, done, total: progress(f"{family}: {stage}", done, total, {})

    def close(self) -> None:
        for models in self.models.values():
            models.close()
        self.judge.forget()
        self.crew.stop()


def vfpu_m(
    view: Federation,
    a: str,
    b: str,
    targets: Sequence[str],
    *,
    run: str,
    how: SelfTraining,
    families: Sequence[str] = ("linear",),
    own: Sequence[str] = (),
    guessed: Sequence[str] = (),
    params: Mapping[str, Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Complete these columns of B for A's rows of the view; the cells stay at B.

    own: B's columns that are features too, and `guessed` those of them that are completed already;
    of the others models see what is predicted by now.
    params: arguments per family; options: those that all families take (mode, ordinal).
    """
    work = _Run(
        view,
        a,
        b,
        targets,
        run=run,
        how=how,
        families=families,
        own=own,
        params=params or {},
        options=options or {},
        progress=progress,
    )
    outcome = work.outcome
    try:
        work.set_aside(options or {})
        if guessed:
            work.judge.guess(list(guessed))
        if (len(families) > 1 or how.judged) and work.active:
            for part in range(min(how.folds, how.parts)):
                # A few outliers decide how numbers are weighed: they need more rows than classes.
                work.try_out(part, how.parts, numbers_only=part > 0)
            work.judge.attend(work.active)
            # Columns were left out: A's other rows are unlike the aligned ones, the only judges.
            outcome.errors = work.judge.weigh(careful=bool(outcome.left_out))
        guessing = bool(set(own) - set(guessed))
        if guessing and work.active:
            work.guess_own()
        waiting = list(work.active)
        for number in range(1, how.rounds + 1):
            work.learn(waiting, "unaligned")
            waiting = [name for name in waiting if name in work.active]
            work.judge.attend(waiting)
            counts = work.judge.move()
            if guessing:
                work.judge.take_guesses()
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
    finally:
        work.close()
    logger.info("VFPU-M: %d columns of %s, %d failed", len(targets), b, len(outcome.failed))
    return outcome


def cross_validated(
    view: Federation, a: str, b: str, targets: Sequence[str], *, parts: int, **settings: Any
) -> dict[str, dict[str, float]]:
    """Per column the mean held-out error of each family and of ``mean``, on the aligned rows."""
    work = _Run(view, a, b, targets, **settings)
    try:
        work.set_aside(settings["options"])
        for part in range(parts):
            work.try_out(part, parts)
        work.judge.attend(work.active)
        found: dict[str, dict[str, float]] = work.judge.weigh()
    finally:
        work.close()
    return found
