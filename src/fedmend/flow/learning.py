"""The stages choose, train and evaluate: what is trained on which rows, against whose labels."""

from __future__ import annotations

import json

from fedmend._json import write_json
from fedmend.federation import Federation
from fedmend.flow.choosing import Choice, Contest, candidates_of
from fedmend.flow.mending import Found
from fedmend.flow.plan import Method, Plan
from fedmend.flow.scoring import Reference, reference_of
from fedmend.flow.steps import Steps, in_stage
from fedmend.flow.training import Training
from fedmend.methods.registry import ANNOTATED
from fedmend.report.record import MethodRun

__all__ = ["learn"]

CHOICE_FILE = "stages/choose/choice.json"


def learn(plan: Plan, steps: Steps, found: Found) -> tuple[list[MethodRun], Reference | None]:
    """All trainings and their scores, and whose labels these are measured against."""
    methods = plan.trainings
    if not methods and plan.choose is None:
        return [], None
    reference = None
    if "evaluate" not in plan.leave_out or plan.choose is not None:
        with in_stage("evaluate"):
            reference = _reference(steps.fed, plan)
    if plan.choose is not None:
        assert reference is not None
        methods = [*methods, _choose(plan, steps, found, reference)]
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
        for seed in plan.seeds:
            training = Training(steps, plan, method, seed, fed, inputs)
            trained, entry = training.train()
            found.notes += [note for note in trained["notes"] if note not in found.notes]
            if "evaluate" in plan.leave_out or reference is None:
                run = training.run(trained)
            else:
                run = training.evaluate(trained, entry, reference, found.test)
            steps.listener.scored(run)
            runs.append(run)
    return runs, reference


def _choose(plan: Plan, steps: Steps, found: Found, reference: Reference) -> Method:
    how, stored = plan.choose, steps.place / CHOICE_FILE
    assert how is not None

    def make(_: str) -> Choice:
        candidates = candidates_of(
            steps.fed,
            how,
            horizontal=plan.horizontal,
            completed=plan.complete is not None,
            corrected=plan.correct is not None,
        )
        contest = Contest(
            found.views,
            how,
            reference,
            list(plan.metrics),
            plan.horizontal,
            plan.seeds[0],
            steps.listener,
            judge=found.judge,
        )
        choice = contest.run(candidates)
        write_json(stored, choice.to_dict())
        return choice

    inputs = {name: value for own in found.products.values() for name, value in own.items()}
    choice, _ = steps.do(
        "choose",
        make,
        lambda: Choice.from_dict(json.loads(stored.read_text(encoding="utf-8"))),
        settings={
            "candidates": how.candidates,
            "folds": how.folds,
            "budget": how.budget,
            "params": how.params,
            "metric": list(plan.metrics[:1]),  # which decides; others do not matter here
            "seed": plan.seeds[0],
        },
        inputs=inputs,
        paths=[CHOICE_FILE],
        says=lambda choice: choice.why[0],
    )
    found.choice = choice
    steps.listener.chose(choice.to_dict())
    return Method(
        choice.name,
        f"{choice.title} (auto)",
        how.params_of(choice.name),
        completed=choice.completed,
        corrected=choice.corrected,
    )


def _reference(fed: Federation, plan: Plan) -> Reference:
    test = fed.on("test")
    if plan.horizontal and test.label_parties:
        return Reference(tuple(test.label_parties), own=True)
    crowd = any(method.name in ANNOTATED for method in plan.methods) or plan.correct is not None
    several = len(fed.label_parties) > 1
    if plan.choose is not None and several:
        crowd = True
    return reference_of(test, plan.reference, crowd=crowd and several, several=several)
