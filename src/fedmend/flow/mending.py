"""The stages before the trainings: align, diagnose, complete, correct.

Completed tables and corrected labels are at the parties. Each party keeps its own in its folder of
the run, so that a run that goes on does not complete or correct again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedmend.federation import Federation
from fedmend.flow.config.settings import CorrectSettings
from fedmend.flow.kept import (
    keep_alignment,
    keep_completion,
    restore_alignment,
    restore_completion,
)
from fedmend.flow.manifest import CHECKPOINTS
from fedmend.flow.plan import Method, Plan
from fedmend.flow.steps import Steps, in_stage, measured
from fedmend.methods.annotators.corrected import CorrectedLabels, correct_labels
from fedmend.methods.registry import ANNOTATED, METHODS, make
from fedmend.report.annotators import AnnotatorSkills
from fedmend.report.mending import Mending
from fedmend.report.overview import Overview, overview
from fedmend.secure.align import align

ALIGN_FOLDER = "stages/align"
OVERVIEW_FILE = "stages/diagnose/overview.json"
EXPORT_FOLDER = "completed"
COMPLETE_FOLDER, PAIRS_FOLDER = "stages/complete", "stages/pairs"
CORRECT_FOLDER = "stages/correct"
COMPLETING = "Completing rows that another party lacks"
CORRECTING = "Correcting labels that contradict each other"


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
    test: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def view_of(self, method: Method) -> Federation | None:
        """The federation a method is trained on; None if there is none for it."""
        if method.name in ANNOTATED and self.base.names != self.fed.names:
            return None if method.completed else self.fed
        return self.views[method.corrected, method.completed]

    @property
    def everything(self) -> dict[str, str]:
        """What all views are made of."""
        return {name: value for own in self.products.values() for name, value in own.items()}


def mend(plan: Plan, steps: Steps) -> Found:
    """Everything before the trainings."""
    fed, tables = steps.fed, steps.tables()
    base = fed if plan.correct is None else _trained_on(fed, plan.correct)
    found = Found(fed, base, views={(False, False): base})
    found.products[False, False] = dict(tables)
    found.test = {name: value for name, value in tables.items() if name.endswith("/test")}
    if len(fed.names) > 1 and not plan.config.horizontal:
        _align(plan, steps, found)
    if not plan.leaves_out("diagnose"):
        _diagnose(plan, steps, found)
    if plan.complete is not None:
        _complete(plan, steps, found)
    if plan.correct is not None:
        _correct(plan, steps, found)
    return found


def _align(plan: Plan, steps: Steps, found: Found) -> None:
    fed, kept, listener = steps.fed, steps.folder / ALIGN_FOLDER, steps.listener
    views = {view.scope: view for view in (fed, found.base, *plan.pairs(found.base))}
    if not plan.leaves_out("evaluate"):
        views["test"] = fed.on("test")
    same = {"same_order": plan.align["mode"] == "same-order"}
    if plan.correct is not None:
        source = _learnt_on(fed, plan.correct)
        views[source.scope] = source

    def make_alignments(_: str) -> None:
        listener.stage("Finding the rows the parties share")
        for view in views.values():
            with in_stage("align", f"the table {view.scope!r}"):
                align(view, progress=listener.progress, **plan.align)
            keep_alignment(view, kept)

    _, entry = steps.do(
        "align",
        make_alignments,
        take_up=lambda _: [restore_alignment(view, kept, **same) for view in views.values()],
        settings={**plan.align, "among": sorted(views)},
        inputs=found.products[False, False],
        paths=[ALIGN_FOLDER],
        says=lambda _: f"{fed.alignment.aligned:,} rows are known to all parties",
    )
    found.products[False, False]["align"] = entry.product
    found.test["align"] = entry.product


def _diagnose(plan: Plan, steps: Steps, found: Found) -> None:
    shape = "horizontal" if plan.config.horizontal else "vertical"
    result, _ = steps.do(
        "diagnose",
        lambda _: overview(steps.fed, shape=shape).to_dict(),
        stored=OVERVIEW_FILE,
        settings={"shape": shape},
        inputs=found.products[False, False],
        says=lambda result: " ".join(Overview.from_dict(result).torn),
    )
    steps.found("overview", result)


# ---------------------------------------------------------------- complete


def _complete(plan: Plan, steps: Steps, found: Found) -> None:
    how, base, kept = plan.complete, found.base, steps.folder / COMPLETE_FOLDER
    assert how is not None
    export = how.export_format if how.export else None
    paths = [COMPLETE_FOLDER, PAIRS_FOLDER, *([EXPORT_FOLDER] if export else [])]

    def fit(_: str) -> dict[str, Any]:
        params = completion_params(how.params, base)
        if plan.config.align.pairs and len(base.names) > 2:
            _align_pairs(plan, steps, base, params)
        steps.listener.stage(COMPLETING)
        with measured(base) as cost:
            model = make(how.name, params, plan.seeds[0])
            model.fit(base, progress=steps.listener.progress)
        mended = Mending.of(
            how.name,
            model,
            rows={party: facts["rows"] for party, facts in base.roster.items()},
            exported=model.export(steps.folder / EXPORT_FOLDER, export) if export else {},
            **cost,
        )
        keep_completion(model.federation, kept)
        return {"dataset": model.federation.dataset, "mending": mended.to_dict()}

    result, entry = steps.do(
        "complete",
        fit,
        stored=f"{COMPLETE_FOLDER}/completion.json",
        take_up=lambda result: restore_completion(base.on(result["dataset"]), kept),
        title=how.name,
        settings={
            "name": how.name,
            "params": how.params,
            "seed": plan.seeds[0],
            "pairs": plan.config.align.pairs,
            "align": plan.align,
            "export": export,
        },
        inputs=found.products[False, False],
        paths=paths,
        says=lambda result: Mending.from_dict(result["mending"]).words,
    )
    found.views[False, True] = base.on(result["dataset"])
    found.products[False, True] = {"complete": entry.product}
    steps.found("mending", result["mending"])


def completion_params(params: Mapping[str, Any], fed: Federation) -> dict[str, Any]:
    """With the rows of the party that labels, unless the file says whose.

    Methods learn nothing from completed rows that nobody has labelled.
    """
    if "source" in params or params.get("direction", "a-to-b") == "both":
        return dict(params)
    able = [
        name
        for name in fed.label_parties
        if fed.roster[name]["features"] and fed.alignment.unaligned[name]
    ]
    return {**params, "source": able[0]} if len(able) == 1 else dict(params)


def _align_pairs(plan: Plan, steps: Steps, fed: Federation, params: Mapping[str, Any]) -> None:
    """Every two parties of which one completes the other's rows find those they share."""
    listener, kept = steps.listener, steps.folder / PAIRS_FOLDER
    listener.stage("Finding the rows that two parties share")
    pairs = list(itertools.combinations(fed.names, 2))
    if params.get("direction", "a-to-b") != "both":
        counts = fed.alignment.unaligned
        source = params.get("source") or max(fed.names, key=lambda name: counts[name])
        pairs = [pair for pair in pairs if source in pair]
    for pair in pairs:
        view = fed.only(*pair)
        if not view.is_aligned and not restore_alignment(view, kept):
            align(view, progress=listener.progress, **plan.align)
            keep_alignment(view, kept)


# ---------------------------------------------------------------- correct


def _learnt_on(fed: Federation, how: CorrectSettings) -> Federation:
    """The parties among which the labels are learnt."""
    return fed if how.among == "all" else fed.only(*(how.labellers or fed.label_parties))


def _trained_on(fed: Federation, how: CorrectSettings) -> Federation:
    """The parties that are still needed once labels are corrected: no other labels-only one."""
    roster = fed.roster
    return fed.only(*(each for each in fed.names if roster[each]["features"] or each == how.to))


def _correct(plan: Plan, steps: Steps, found: Found) -> None:
    how, base, kept = plan.correct, found.base, steps.folder / CORRECT_FOLDER
    assert how is not None

    def restore(result: dict[str, Any]) -> None:
        for dataset in result["datasets"].values():
            restore_completion(base.on(dataset), kept)

    result, entry = steps.do(
        "correct",
        lambda mark: _corrected(plan, steps, found, f"{CHECKPOINTS}/correct-{mark[:8]}"),
        stored=f"{CORRECT_FOLDER}/correction.json",
        take_up=restore,
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
        inputs=found.everything,
        paths=[CORRECT_FOLDER],
        says=lambda result: str(result["found"]["says"]),
    )
    for completed, dataset in result["datasets"].items():
        found.views[True, completed == "True"] = base.on(dataset)
        found.products[True, completed == "True"] = {"correct": entry.product}
    steps.found("correction", result["found"])


def _corrected(plan: Plan, steps: Steps, found: Found, checkpoint: str) -> dict[str, Any]:
    """Learn what the true labels probably are, and put them in place of one party's labels.

    They are a further table there, without and with completed rows; methods that learn from one
    party's labels are then trained on that.
    """
    how, listener, kept = plan.correct, steps.listener, steps.folder / CORRECT_FOLDER
    assert how is not None
    views = {completed: view for (_, completed), view in found.views.items()}
    source = views[True] if how.rows == "completed" else _learnt_on(steps.fed, how)
    listener.stage(CORRECTING)
    with measured(source) as cost:
        model = how.estimator(plan.seeds[0])
        if model.infers:
            model.set_params(epochs=0)  # the labels are wanted, not a network that learnt them
        model.fit(
            source,
            progress=lambda _, done, total, facts: listener.progress("epochs", done, total, facts),
            checkpoint=steps.folder / checkpoint,
            resume=True,
        )
        labelling = None
        if model.expertise_ is not None:
            labelling = AnnotatorSkills.of(model, model.review_labels()).to_dict()
        done = {
            completed: correct_labels(
                view if how.rows == "completed" else source,
                model,
                to=how.to,
                least=how.least,
                into=view,
            )
            for completed, view in views.items()
        }
        for each in done.values():
            keep_completion(each.federation, kept)
    counts = done[how.rows == "completed"]
    return {
        "datasets": {str(completed): each.federation.dataset for completed, each in done.items()},
        "found": {
            "method": METHODS[how.name].shown,
            "parties": list(model.label_parties_),
            "to": how.to,
            "rows": counts.rows,
            "rows_of": how.rows,
            "changed": counts.changed,
            "filled": counts.filled,
            "dropped": counts.dropped,
            "least": how.least,
            "labelling": labelling,
            "says": _words(how.to, counts),
            "history": list(model.history_),
            **cost,
        },
    }


def _words(party: str, found: CorrectedLabels) -> str:
    words = f"On {found.rows:,} rows {found.changed:,} labels of {party} were corrected"
    words += f", {found.filled:,} missing ones filled in" if found.filled else ""
    return words + (f", {found.dropped:,} doubtful ones left out" if found.dropped else "")
