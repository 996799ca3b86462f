"""A run: align, diagnose, complete, correct, choose, train, evaluate, report — into one folder.

Every stage leaves its result as files of the run folder (what is the parties' own in their own
folders) and an entry in ``manifest.json``. A run that goes on does again what its changed
settings or tables touch, and takes up the rest.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedmend.federation import Federation
from fedmend.federation.engines.local import LocalEngine
from fedmend.flow.choosing import main_metric
from fedmend.flow.completing import PAIRS_FOLDER
from fedmend.flow.digests import forget_checkpoints
from fedmend.flow.learning import learn
from fedmend.flow.listening import Listener
from fedmend.flow.manifest import Manifest
from fedmend.flow.mending import Found, mend
from fedmend.flow.plan import Plan
from fedmend.flow.scoring import Reference
from fedmend.flow.steps import SALT_FOLDER, Steps, in_stage
from fedmend.flow.training import CHECKPOINTS
from fedmend.flow.workplace import Workplace, workplace
from fedmend.report.page import LEDGER_FILE, REPORT_FILE, write_report
from fedmend.report.record import RECORD_FILE, MethodRun, RunRecord
from fedmend.secure.heads import exchange_heads

__all__ = ["execute", "few_threads"]

SMALL_ROWS = 50_000


ROWS_FOLDER = "rows-asked"


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
    from fedmend.flow.live import LiveListener  # which hears the stages of this room

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
        with fed, few_threads(fed):
            steps = Steps(fed, place, listener)
            found = mend(plan, steps)
            runs, reference = learn(plan, steps, found)
            tested_on = _tested_on(fed.on("test"), plan, runs[0]) if runs else "nothing"
            tested = _rows_tested(fed.on("test"), plan, runs[0]) if runs else None
            if plan.federation is not None:
                forget_checkpoints(fed, place / SALT_FOLDER, place / CHECKPOINTS)
                exchange_heads(fed)
        record = _record(plan, place, found, runs, reference, tested_on)
        record.tested = tested
        record.notes += record.cautions()
        _report(plan, place, steps, record, listener)
        listener.finish()
    return record


def _federation(plan: Plan, work: Path, listener: Listener) -> Federation:
    if plan.federation is not None:
        listener.stage("Asking the parties")
        return plan.federation(work)
    listener.stage("Reading the tables")
    fed = Federation(
        *plan.parties(),
        seed=plan.seeds[0],
        strict=plan.strict,
        ledger=work / LEDGER_FILE,
        device=plan.device,
    )
    if isinstance(fed.engine, LocalEngine):
        for name, site in fed.engine.sites.items():
            # Which rows are held out goes by it: a run that is resumed must find it as it was.
            site.keep_rows(work / CHECKPOINTS / ROWS_FOLDER / f"{name}.jsonl")
    return fed


def _tested_on(test: Federation, plan: Plan, run: MethodRun) -> str:
    if "evaluate" in plan.leave_out:
        return "nothing: the run leaves evaluation out"
    rows = _rows_tested(test, plan, run)
    if plan.horizontal:
        many = f"{rows:,} " if rows else ""
        return f"the {many}labelled test rows of {len(test.label_parties)} parties"
    return f"{rows:,} test rows" + (" known to all" if test.is_aligned else "")


def _rows_tested(test: Federation, plan: Plan, run: MethodRun) -> int | None:
    """How many rows the scores are from, where that is known."""
    if "evaluate" in plan.leave_out:
        return None
    if plan.horizontal:
        # Parties have told how many there are when they told how sure the first method is.
        rows = ((run.uncertainty or {}).get("worth") or {}).get("rows")
        return None if rows is None else int(rows)
    if test.is_aligned:
        return test.alignment.aligned
    return int(test.roster[test.label_party]["rows"])


# ---------------------------------------------------------------- report


def _record(
    plan: Plan,
    place: Workplace,
    found: Found,
    runs: Sequence[MethodRun],
    reference: Reference | None,
    tested_on: str,
) -> RunRecord:
    scores = [run.scores for run in runs if run.scores]
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
        notes=list(found.notes),
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
    _tidy(work, place.manifest)
    shutil.rmtree(work / CHECKPOINTS, ignore_errors=True)
    if not plan.keep_stages:
        for name in ("stages", "seeds"):
            shutil.rmtree(work / name, ignore_errors=True)
    if "report" in plan.leave_out:
        (work / REPORT_FILE).unlink(missing_ok=True)


def _tidy(work: Path, manifest: Manifest) -> None:
    """Remove what stages have left that the run no longer has."""
    told = [name.partition("@")[0] for entry in manifest.entries for name in entry.outputs]
    kept = {work / part for name in told for part in (name, *map(str, Path(name).parents))}
    for pattern in ("model/*", "seeds/*", "stages/*", "stages/train/*", "stages/evaluate/*"):
        for path in work.glob(pattern):
            if path in kept or path.name in (Path(SALT_FOLDER).name, Path(PAIRS_FOLDER).name):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def few_threads(fed: Federation) -> Iterator[None]:
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
