"""A run: align, diagnose, complete, correct, choose, train, evaluate, report — into one folder.

Every stage leaves its result as files of the run folder (what is the parties' own in their own
folders) and an entry in ``manifest.json``. A run that goes on does again what its changed
settings or tables touch, and takes up the rest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmend._json import write_json
from fedmend.config.catalogue import CROWD
from fedmend.federation import Federation
from fedmend.flow import completing, correcting
from fedmend.flow.choosing import Choice, candidates_of, choose, main_metric
from fedmend.flow.completing import complete, completed_before
from fedmend.flow.correcting import correct, corrected_before
from fedmend.flow.kept import keep_alignment, restore_alignment
from fedmend.flow.listening import Listener
from fedmend.flow.plan import Method, Plan
from fedmend.flow.scoring import Reference, reference_of
from fedmend.flow.steps import Steps, in_stage
from fedmend.flow.training import CHECKPOINTS, Training
from fedmend.flow.workplace import Workplace, workplace
from fedmend.report.mending import Mending
from fedmend.report.overview import Overview, overview
from fedmend.report.page import LEDGER_FILE, REPORT_FILE, write_report
from fedmend.report.record import RECORD_FILE, MethodRun, RunRecord
from fedmend.secure.align import align

__all__ = ["execute"]

SMALL_ROWS = 50_000
ALIGN_FOLDER = "stages/align"
OVERVIEW_FILE = "stages/diagnose/overview.json"
CHOICE_FILE = "stages/choose/choice.json"


@dataclass
class Found:
    """What the stages have found so far.

    fed: all parties, whose labels several may have. base: those whom methods of one label need.
    views: the base by (corrected labels, completed rows). products: what each of them is made of,
    as hashes.
    """

    fed: Federation
    base: Federation
    views: dict[tuple[bool, bool], Federation] = field(default_factory=dict)
    products: dict[tuple[bool, bool], dict[str, str]] = field(default_factory=dict)
    overview: Overview | None = None
    mending: Mending | None = None
    correction: dict[str, Any] | None = None
    choice: Choice | None = None
    test: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def view_of(self, method: Method) -> Federation | None:
        """The federation a method is trained on; None if there is none for it."""
        if method.name in CROWD and self.base.names != self.fed.names:
            return None if method.completed else self.fed
        return self.views[method.corrected, method.completed]


def execute(
    plan: Plan,
    folder: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    keep_failed: bool = False,
    start: str | None = None,
    listener: Listener | None = None,
) -> RunRecord:
    """Run a plan into a folder. Returns the record; the folder holds it with everything else.

    resume: go on with an unfinished run, or do again what changed settings touch of a finished
    one. start: the stage from which everything is done again.
    """
    from fedmend.live import LiveListener  # which hears the stages of this room

    with workplace(
        Path(folder), plan, resume=resume, force=force, keep_failed=keep_failed, start=start
    ) as place:
        listener = LiveListener(
            place.folder,
            listener or Listener(),
            plan.title,
            plan.settings,
            plan.metrics,
            plan.seeds,
        )
        fed = _federation(plan, place.folder, listener)
        with fed, _few_threads(fed):
            steps = Steps(fed, place, listener)
            found = _mend(plan, steps)
            runs, reference = _train(plan, steps, found)
            tested_on = _tested_on(fed.on("test"), plan) if runs else "nothing"
        record = _record(plan, place, found, runs, reference, tested_on)
        _report(plan, place, steps, record, listener)
        listener.finish()
    return record


def _federation(plan: Plan, work: Path, listener: Listener) -> Federation:
    if plan.federation is not None:
        listener.stage("Asking the parties")
        return plan.federation(work)
    listener.stage("Reading the tables")
    return Federation(
        *plan.parties(),
        seed=plan.seeds[0],
        strict=plan.strict,
        ledger=work / LEDGER_FILE,
        device=plan.device,
    )


# ---------------------------------------------------------------- before the trainings


def _mend(plan: Plan, steps: Steps) -> Found:
    """Everything before the trainings."""
    fed = steps.fed
    base = fed if plan.correct is None else plan.correct.trains_on(fed)
    found = Found(fed, base, views={(False, False): base})
    tables = steps.tables()
    found.products[False, False] = dict(tables)
    found.test = {name: value for name, value in tables.items() if name.endswith("/test")}
    if len(fed.names) > 1 and not plan.horizontal:
        _align(plan, steps, found, tables)
    if "diagnose" not in plan.leave_out:
        _diagnose(plan, steps, found)
    if plan.complete is not None:
        _complete(plan, steps, found)
    if plan.correct is not None:
        _correct(plan, steps, found)
    return found


def _align(plan: Plan, steps: Steps, found: Found, tables: dict[str, str]) -> None:
    fed, kept, listener = steps.fed, steps.place / ALIGN_FOLDER, steps.listener
    views = {view.scope: view for view in (fed, fed.on("test"), found.base)}
    if plan.correct is not None:
        source = plan.correct.learns_on(fed)
        views[source.scope] = source

    def make(_: str) -> None:
        listener.stage("Finding the rows the parties share")
        for view in views.values():
            with in_stage("align", f"the table {view.scope!r}"):
                align(view, progress=listener.progress, **plan.align)
            keep_alignment(view, kept)

    def take_up() -> None:
        for view in views.values():
            restore_alignment(view, kept)

    _, entry = steps.do(
        "align",
        make,
        take_up,
        settings={**plan.align, "among": sorted(views)},
        inputs=tables,
        paths=[ALIGN_FOLDER],
        says=lambda _: f"{fed.alignment.aligned:,} rows are known to all parties",
    )
    found.products[False, False] = {**tables, "align": entry.product}
    found.test["align"] = entry.product


def _diagnose(plan: Plan, steps: Steps, found: Found) -> None:
    stored = steps.place / OVERVIEW_FILE
    shape = "horizontal" if plan.horizontal else "vertical"

    def make(_: str) -> Overview:
        looked = overview(steps.fed, shape=shape)
        write_json(stored, looked.to_dict())
        return looked

    found.overview, _ = steps.do(
        "diagnose",
        make,
        lambda: Overview.from_dict(json.loads(stored.read_text(encoding="utf-8"))),
        settings={"shape": shape},
        inputs=found.products[False, False],
        paths=[OVERVIEW_FILE],
        says=lambda looked: " ".join(looked.torn),
    )
    steps.listener.overview(found.overview)


def _complete(plan: Plan, steps: Steps, found: Found) -> None:
    how, work = plan.complete, steps.place.folder
    assert how is not None
    paths = [completing.FOLDER, completing.PAIRS_FOLDER]
    (mended, found.mending), entry = steps.do(
        "complete",
        lambda _: complete(found.base, how, plan.seeds[0], work, steps.listener),
        lambda: completed_before(found.base, work),
        title=how.name,
        settings={
            "name": how.name,
            "params": how.params,
            "seed": plan.seeds[0],
            "pairs": how.pairs,
            "align": how.align,
            "export": how.export,
        },
        inputs=found.products[False, False],
        paths=[*paths, completing.EXPORT_FOLDER] if how.export else paths,
        says=lambda made: made[1].words,
    )
    found.views[False, True] = mended
    found.products[False, True] = {"complete": entry.product}
    steps.listener.mended(found.mending)


def _correct(plan: Plan, steps: Steps, found: Found) -> None:
    how, work = plan.correct, steps.place.folder
    assert how is not None
    torn = {completed: view for (_, completed), view in found.views.items()}
    source = torn[True] if how.rows == "completed" else how.learns_on(steps.fed)
    inputs = {name: value for own in found.products.values() for name, value in own.items()}
    (views, found.correction), entry = steps.do(
        "correct",
        lambda mark: correct(
            source,
            torn,
            how,
            plan.seeds[0],
            work,
            steps.listener,
            work / CHECKPOINTS / f"correct-{mark[:8]}",
        ),
        lambda: corrected_before(found.base, work),
        title=how.name,
        settings={
            "name": how.name,
            "params": how.params,
            "labellers": how.labellers,
            "to": how.to,
            "among": how.among,
            "least": how.least,
            "rows": how.rows,
            "seed": plan.seeds[0],
        },
        inputs=inputs,
        paths=[correcting.FOLDER],
        says=lambda made: str(made[1]["says"]),
    )
    for completed, view in views.items():
        found.views[True, completed] = view
        found.products[True, completed] = {"correct": entry.product}
    steps.listener.corrected(found.correction)


# ---------------------------------------------------------------- choose, train, evaluate


def _train(plan: Plan, steps: Steps, found: Found) -> tuple[list[MethodRun], Reference | None]:
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
        choice = choose(
            found.views,
            candidates,
            how,
            reference=reference,
            metrics=list(plan.metrics),
            horizontal=plan.horizontal,
            seed=plan.seeds[0],
            listener=steps.listener,
        )
        write_json(stored, choice.to_dict())
        return choice

    inputs = {name: value for own in found.products.values() for name, value in own.items()}
    found.choice, _ = steps.do(
        "choose",
        make,
        lambda: Choice.from_dict(json.loads(stored.read_text(encoding="utf-8"))),
        settings={
            "candidates": how.candidates,
            "folds": how.folds,
            "budget": how.budget,
            "params": how.params,
            "metrics": list(plan.metrics),
            "seed": plan.seeds[0],
        },
        inputs=inputs,
        paths=[CHOICE_FILE],
        says=lambda choice: choice.why[0],
    )
    choice = found.choice
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
    crowd = any(method.name in CROWD for method in plan.methods) or plan.correct is not None
    several = len(fed.label_parties) > 1
    if plan.choose is not None and several:
        crowd = True
    return reference_of(test, plan.reference, crowd=crowd and several, several=several)


def _tested_on(test: Federation, plan: Plan) -> str:
    if "evaluate" in plan.leave_out:
        return "nothing: the run leaves evaluation out"
    if plan.horizontal:
        return f"the labelled test rows of {len(test.label_parties)} parties"
    if test.is_aligned:
        return f"{test.alignment.aligned:,} test rows known to all"
    return f"{test.roster[test.label_party]['rows']:,} test rows"


# ---------------------------------------------------------------- report


def _record(
    plan: Plan,
    place: Workplace,
    found: Found,
    runs: Sequence[MethodRun],
    reference: Reference | None,
    tested_on: str,
) -> RunRecord:
    scores = runs[0].scores if runs else {}
    return RunRecord(
        title=plan.title,
        methods=list(runs),
        metric=main_metric(list(plan.metrics), scores) if scores else "auc",
        overview=found.overview.to_dict() if found.overview else None,
        evaluated_on=tested_on,
        measured_against=reference.words if reference else "",
        mending=found.mending.to_dict() if found.mending else None,
        correction=found.correction,
        choice=found.choice.to_dict() if found.choice else None,
        recipe=plan.recipe,
        device=plan.device,
        seeds=list(plan.seeds),
        settings=plan.settings,
        notes=found.notes,
        seconds=place.manifest.seconds,
    )


def _report(
    plan: Plan, place: Workplace, steps: Steps, record: RunRecord, listener: Listener
) -> None:
    """Write what people look at; quick, so that it is always done anew."""
    work = place.folder
    record.save(work)
    if plan.extras is not None:
        plan.extras(work)
    if "report" not in plan.leave_out:
        listener.stage("Writing the report")
        steps.done.append(("report", ""))
        with in_stage("report"):
            place.manifest.report(work, [RECORD_FILE, LEDGER_FILE], lambda: write_report(work))
    place.manifest.keep_only(steps.done)
    shutil.rmtree(work / CHECKPOINTS, ignore_errors=True)
    if not plan.keep_stages:
        for name in ("stages", "seeds"):
            shutil.rmtree(work / name, ignore_errors=True)
    if "report" in plan.leave_out:
        (work / REPORT_FILE).unlink(missing_ok=True)


@contextmanager
def _few_threads(fed: Federation) -> Iterator[None]:
    """One thread for small tables: handing out tiny products costs far more than it saves.

    Whoever sets OMP_NUM_THREADS has decided otherwise.
    """
    import torch

    before = torch.get_num_threads()
    small = max(facts["rows"] for facts in fed.roster.values()) <= SMALL_ROWS
    if small and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
