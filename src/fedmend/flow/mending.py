"""The stages before the trainings: align, diagnose, complete, correct."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from fedmend._json import write_json
from fedmend.federation import Federation
from fedmend.flow import completing, correcting
from fedmend.flow.choosing import Choice
from fedmend.flow.completing import complete, completed_before
from fedmend.flow.correcting import correct, corrected_before
from fedmend.flow.kept import keep_alignment, restore_alignment
from fedmend.flow.plan import Method, Plan
from fedmend.flow.steps import Steps, in_stage
from fedmend.flow.training import CHECKPOINTS
from fedmend.methods.registry import ANNOTATED
from fedmend.report.mending import Mending
from fedmend.report.overview import Overview, overview
from fedmend.secure.align import align

__all__ = ["Found", "mend"]

ALIGN_FOLDER = "stages/align"
OVERVIEW_FILE = "stages/diagnose/overview.json"


@dataclass
class Found:
    """What the stages have found so far.

    fed: all parties, whose labels several may have. base: those whom methods of one label need.
    views: the base by (corrected labels, completed rows). products: what each of them is made of,
    as hashes. judge: the base with labels to compare methods of corrected labels by.
    """

    fed: Federation
    base: Federation
    views: dict[tuple[bool, bool], Federation] = field(default_factory=dict)
    judge: Federation | None = None
    products: dict[tuple[bool, bool], dict[str, str]] = field(default_factory=dict)
    overview: Overview | None = None
    mending: Mending | None = None
    correction: dict[str, Any] | None = None
    choice: Choice | None = None
    test: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def view_of(self, method: Method) -> Federation | None:
        """The federation a method is trained on; None if there is none for it."""
        if method.name in ANNOTATED and self.base.names != self.fed.names:
            return None if method.completed else self.fed
        return self.views[method.corrected, method.completed]


def mend(plan: Plan, steps: Steps) -> Found:
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

    looked, _ = steps.do(
        "diagnose",
        make,
        lambda: Overview.from_dict(json.loads(stored.read_text(encoding="utf-8"))),
        settings={"shape": shape},
        inputs=found.products[False, False],
        paths=[OVERVIEW_FILE],
        says=lambda looked: " ".join(looked.torn),
    )
    found.overview = looked
    steps.listener.overview(looked)


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
    (corrected, found.correction), entry = steps.do(
        "correct",
        lambda mark: correct(
            source,
            torn,
            how,
            plan.seeds[0],
            work,
            steps.listener,
            work / CHECKPOINTS / f"correct-{mark[:8]}",
            judged=plan.choose is not None,
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
            "judged": plan.choose is not None,
            "seed": plan.seeds[0],
        },
        inputs=inputs,
        paths=[correcting.FOLDER],
        says=lambda made: str(made[1]["says"]),
    )
    found.judge = corrected.judge
    for completed, view in corrected.views.items():
        found.views[True, completed] = view
        found.products[True, completed] = {"correct": entry.product}
    steps.listener.corrected(found.correction)
