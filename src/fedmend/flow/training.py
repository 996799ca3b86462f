"""The stages choose, train and evaluate: what is trained on which rows, against whose labels.

Each method under each seed is a stage of its own, with a file of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmend.errors import ConfigError, FedmendWarning, Refused, TooFewRows
from fedmend.federation import Federation
from fedmend.flow.choosing import Contest, candidates_of
from fedmend.flow.config.settings import AUTO
from fedmend.flow.manifest import CHECKPOINTS, StageEntry
from fedmend.flow.mending import Found
from fedmend.flow.plan import Method, Plan
from fedmend.flow.scoring import Reference, how_sure, measure, reference_of
from fedmend.flow.steps import Steps, in_stage, measured
from fedmend.methods.registry import ANNOTATED, METHODS, make, method_class
from fedmend.report.annotators import AnnotatorSkills
from fedmend.report.record import MethodRun, turns_of
from fedmend.split.labels import in_words

CHOICE_FILE = "stages/choose/choice.json"
MODEL_FOLDER = "model"
SEEDS_FOLDER = "seeds"
REVIEW_FOLDER = "labels"
OF_NETWORKS = ("train", "length", "refit")  # the parts of a training that go by epochs or rounds


def learn(plan: Plan, steps: Steps, found: Found) -> tuple[list[MethodRun], Reference | None]:
    """All trainings and their scores, and whose labels these are measured against."""
    methods, evaluated = plan.trainings, not plan.leaves_out("evaluate")
    if not methods and plan.choose is None:
        return [], None
    reference = None
    if evaluated or plan.choose is not None:
        with in_stage("evaluate"):
            reference = _reference(steps.fed, plan)
    if plan.choose is not None:
        assert reference is not None
        one = plan.one_label and not plan.config.horizontal
        chosen = plan.auto if one else _choose(plan, steps, found, reference)
        methods = [chosen, *methods]  # its folds decide which rows others hold out
    runs = []
    for method in methods:
        fed = found.view_of(method)
        if fed is None:
            found.notes.append(
                f"{method.title} was left out: rows are completed among the parties with columns, "
                "and this method needs the parties that only label"
            )
            continue
        inputs = found.products[method.corrected, method.completed]
        completed = None
        if method.name == AUTO:
            inputs, completed = found.everything, found.views.get((method.corrected, True))
        for seed in plan.seeds:
            training = _Training(steps, plan, method, seed, fed, completed)
            trained, entry = training.train(inputs)
            found.notes += [note for note in trained["notes"] if note not in found.notes]
            if trained["choice"] is not None and training.first:
                steps.found("choice", trained["choice"])
            result: dict[str, Any] = {"scores": {}}
            if evaluated and reference is not None:
                try:
                    result = training.evaluate(entry, reference, found.test)
                except TooFewRows as refused:
                    # No reason to lose the model; what is not done is asked again by --resume.
                    found.notes.append(_unscored(training.title, refused))
                    warnings.warn(found.notes[-1], FedmendWarning, stacklevel=2)
            run = training.run(trained, result)
            steps.listener.scored(run)
            runs.append(run)
    if plan.alone is not None and reference is not None:
        _alone(plan, steps, found, plan.alone, reference)
    return runs, reference


def _alone(plan: Plan, steps: Steps, found: Found, method: Method, reference: Reference) -> None:
    """What the label party has without any partner, by its own columns; no model is kept."""
    (party,) = plan.config.labellers
    facts = steps.fed.roster[party]
    if facts["features"] <= facts["blocks"]:
        return

    def score(_: str) -> dict[str, Any]:
        steps.listener.stage(f"Comparing with what {party} has alone")
        estimator = make(method.name, method.params, plan.seeds[0]).fit(found.base)
        try:
            scores = measure(estimator, steps.fed.on("test"), reference)
        except TooFewRows:
            scores = {}
        return {"party": party, "title": method.title, "scores": scores}

    result, _ = steps.do(
        "evaluate",
        score,
        stored="stages/evaluate/alone.json",
        unit="alone",
        title=method.title,
        settings={"params": method.params, "seed": plan.seeds[0], "by": list(reference.parties)},
        inputs=found.products[False, False] | found.test,
    )
    steps.found("alone", result)


def _reference(fed: Federation, plan: Plan) -> Reference:
    test = fed.on("test")
    if plan.config.horizontal and test.label_parties:
        return Reference(tuple(test.label_parties), own=True)
    several = len(fed.label_parties) > 1
    crowd = plan.correct is not None or plan.choose is not None
    crowd = crowd or any(method.name in ANNOTATED for method in plan.methods)
    asked = plan.config.evaluate.reference
    return reference_of(test, asked, crowd=crowd and several, several=several)


def _choose(plan: Plan, steps: Steps, found: Found, reference: Reference) -> Method:
    how, metrics, horizontal = plan.choose, plan.config.evaluate.metrics, plan.config.horizontal
    assert how is not None

    def compare(_: str) -> dict[str, Any]:
        candidates = candidates_of(
            steps.fed,
            how,
            horizontal=horizontal,
            completed=plan.complete is not None,
        )
        views = {completed: view for (_, completed), view in found.views.items()}
        contest = Contest(views, how, reference, metrics, horizontal, plan.seeds[0], steps.listener)
        return contest.run(candidates)

    choice, _ = steps.do(
        "choose",
        compare,
        stored=CHOICE_FILE,
        settings={
            "candidates": how.candidates,
            "folds": how.folds,
            "budget": how.budget,
            "params": how.params,
            "metric": metrics[:1],  # which decides; others do not matter here
            "seed": plan.seeds[0],
        },
        inputs=found.everything,
        says=lambda choice: str(choice["why"][0]),
    )
    steps.found("choice", choice)
    return Method(
        choice["name"],
        f"{choice['chosen']} (auto)",
        METHODS[choice["name"]].known(how.params),
        completed=choice["completed"],
    )


def _unscored(title: str, refused: TooFewRows) -> str:
    """Why a method has no scores, and what gives it some."""
    why = str(refused).partition(". Mend: ")[0]
    return (
        f"{title} has no scores, as the test rows are too few: {why}. Mend: a larger "
        "evaluate.test_share, test tables with more common rows, or, if no scores are wanted, "
        'run.leave_out = ["evaluate"]'
    )


class _Training:
    """One method under one seed, on one of the federations there are."""

    def __init__(
        self,
        steps: Steps,
        plan: Plan,
        method: Method,
        seed: int,
        fed: Federation,
        completed: Federation | None = None,
    ) -> None:
        self.steps, self.plan, self.method, self.seed, self.fed = steps, plan, method, seed, fed
        self.also = {} if completed is None else {"completed": completed}
        self.unit = f"{method.slug}-{seed}"
        self.title = method.title + (f", seed {seed}" if len(plan.seeds) > 1 else "")
        self.turns = "rounds" if plan.config.horizontal else "epochs"
        self.first = seed == plan.seeds[0]
        # Over machines a party keeps a model under the last name of its path alone.
        self.model = (
            f"{MODEL_FOLDER}/{method.slug}"
            if self.first
            else f"{SEEDS_FOLDER}/{method.slug}-seed-{seed}"
        )
        self._estimator: Any = None

    @property
    def _folder(self) -> Path:
        return self.steps.folder / self.model

    @property
    def estimator(self) -> Any:
        """The fitted method; loaded when it was trained before."""
        if self._estimator is None:
            self._estimator = method_class(self.method.name).load(self._folder, self.fed)
        return self._estimator

    def train(self, inputs: dict[str, str]) -> tuple[dict[str, Any], StageEntry]:
        """What is known of the training: parameters, history, costs."""
        return self.steps.do(
            "train",
            self._fit,
            stored=f"stages/train/{self.unit}.json",
            unit=self.unit,
            title=self.title,
            settings={
                "method": self.method.name,
                "params": self.method.params,
                "seed": self.seed,
                "device": self.plan.config.run.device,
                "alone": self.plan.config.predict.alone if self.first else [],
            },
            inputs=inputs,
            paths=[self.model],
            says=lambda result: " in ".join(
                filter(None, [turns_of(result["history"]), f"{result['seconds']:.1f} s"])
            ),
        )

    def _fit(self, mark: str) -> dict[str, Any]:
        listener, notes = self.steps.listener, list[str]()
        listener.stage(f"Training {self.title}")
        with measured(self.fed) as cost:
            estimator = make(self.method.name, self.method.params, self.seed)
            tested = self.plan.config.horizontal and not self.plan.leaves_out("evaluate")
            estimator.fit(
                self.fed,
                progress=lambda what, done, total, facts: listener.progress(
                    self.turns if what in OF_NETWORKS else what, done, total, facts
                ),
                checkpoint=self.steps.folder / CHECKPOINTS / f"{self.unit}-{mark[:8]}",
                resume=True,
                **self.also,
                **({"watch": "test"} if tested else {}),
            )
        notes += estimator.notes_
        if estimator.privacy_ is not None:
            notes.append(in_words(estimator.privacy_))
        estimator.save(self._folder)
        if self.first:
            notes += estimator.hand_out(self._folder, parties=self.plan.config.predict.alone)
        self._estimator = estimator
        return {
            "params": estimator.get_params(),
            "history": list(estimator.history_),
            **cost,
            "notes": notes,
            "choice": estimator.choice_,
        }

    def evaluate(
        self, entry: StageEntry, reference: Reference, test: dict[str, str]
    ) -> dict[str, Any]:
        """The method's scores on the test rows, and how sure it is.

        test: hashes of what the test rows are.
        """
        metrics, reviewed = self.plan.config.evaluate.metrics, self.plan.config.report.label_review
        review = f"{REVIEW_FOLDER}/{self.method.slug}" if self.first and reviewed else None
        result, _ = self.steps.do(
            "evaluate",
            lambda _: self._score(reference, metrics, review),
            stored=f"stages/evaluate/{self.unit}.json",
            unit=self.unit,
            title=self.title,
            settings={
                "metrics": metrics,
                "against": list(reference.parties),
                "own": reference.own,
                "label_review": reviewed,
            },
            inputs={"train": entry.product, **test},
            paths=[review] if review else [],
            says=lambda result: ", ".join(
                f"{name} {value:.3f}"
                for name, value in result["scores"].items()
                if value is not None
            ),
        )
        return result

    def _score(
        self, reference: Reference, metrics: Sequence[str], review: str | None
    ) -> dict[str, Any]:
        estimator = self.estimator
        test = self.steps.fed.on("test")  # of all parties, whoever the method was trained with
        with measured(self.fed) as cost:
            scores = _asked_for(measure(estimator, test, reference), metrics)
        result: dict[str, Any] = {"scores": scores}
        result |= {name: cost[name] for name in ("crossings", "bytes")}
        if self.first and estimator.expertise_ is not None:
            path = self.steps.folder / review if review else None
            suspicious = estimator.review_labels(path=path)
            result["labelling"] = AnnotatorSkills.of(estimator, suspicious).to_dict()
        if self.first and (told := _importance(estimator)) is not None:
            result["importance"] = told
        if self.first and (sure := how_sure(estimator, test, reference)) is not None:
            result["uncertainty"] = sure.to_dict()
        return result

    def run(self, trained: dict[str, Any], result: dict[str, Any]) -> MethodRun:
        """As the record has it."""
        return MethodRun(
            name=self.method.name,
            title=self.method.title,
            seed=self.seed,
            params=trained["params"],
            history=trained["history"],
            seconds=trained["seconds"],
            about=self.method.about,
            crossings=trained["crossings"] + result.pop("crossings", 0),
            bytes=trained["bytes"] + result.pop("bytes", 0),
            **result,
        )


def _importance(estimator: Any) -> list[dict[str, Any]] | None:
    """What each column is worth to a method that can say it, if the label party lets it."""
    if not hasattr(estimator, "importance"):
        return None
    try:
        return list(estimator.importance().to_dict("records"))
    except Refused:
        return None


def _asked_for(scores: dict[str, float], metrics: Sequence[str]) -> dict[str, float]:
    wrong = [metric for metric in metrics if metric not in scores]
    if wrong:
        raise ConfigError(
            f"evaluate.metrics: {wrong[0]!r} does not fit this label. "
            f"Mend: choose from {', '.join(scores)}"
        )
    return {metric: scores[metric] for metric in metrics or scores}
