"""A run: align, diagnose, complete, correct, choose, train, evaluate, report — into one folder.

Every stage leaves its result as files of the run folder (what is the parties' own in their own
folders) and an entry in ``manifest.json``. A run that goes on does again what its changed
settings or tables touch, and takes up the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmend.federation import Federation
from fedmend.federation.engines.local import LocalEngine
from fedmend.flow.live import Listener, LiveListener
from fedmend.flow.manifest import CHECKPOINTS, work_in
from fedmend.flow.mending import PAIRS_FOLDER, mend
from fedmend.flow.plan import Plan
from fedmend.flow.reading import read_parties, seen_in_training
from fedmend.flow.scoring import Reference
from fedmend.flow.steps import SALT_FOLDER, Steps, in_stage
from fedmend.flow.training import learn
from fedmend.methods.threads import few_threads
from fedmend.report.page import LEDGER_FILE, REPORT_FILE, write_report
from fedmend.report.record import RECORD_FILE, MethodRun, RunRecord, main_metric
from fedmend.secure.heads import exchange_heads

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
    with work_in(
        Path(folder), plan, resume=resume, force=force, keep_failed=keep_failed, start=start
    ) as manifest:
        live = LiveListener(manifest, listener or Listener(), plan)
        fed = _federation(plan, manifest.folder, live)
        with fed, few_threads(fed):
            steps = Steps(fed, manifest, live)
            seen = _seen(fed, plan)  # before any label is corrected
            found = mend(plan, steps)
            runs, reference = learn(plan, steps, found)
            rows = _rows_tested(fed.on("test"), plan, runs)
            tested_on = _tested_on(fed.on("test"), plan, runs, rows) if runs else "nothing"
            if plan.federation is not None:
                steps.forget_checkpoints()
                exchange_heads(fed)
        record = _record(plan, steps, runs, reference, tested_on, found.notes)
        record.tested, record.seconds, record.seen = rows, manifest.seconds, seen
        record.notes += record.cautions()
        _report(plan, steps, record)
        live.finish()
    return record


def _federation(plan: Plan, work: Path, listener: Listener) -> Federation:
    if plan.federation is not None:
        listener.stage("Asking the parties")
        return plan.federation(work)
    listener.stage("Reading the tables")
    fed = local_federation(plan, ledger=work / LEDGER_FILE)
    if isinstance(fed.engine, LocalEngine):
        for name, site in fed.engine.sites.items():
            # Which rows are held out goes by it: a run that is resumed must find it as it was.
            site.keep_rows(work / CHECKPOINTS / ROWS_FOLDER / f"{name}.jsonl")
    return fed


def local_federation(plan: Plan, **more: Any) -> Federation:
    """All parties of a file in this process, with their tables read."""
    run = plan.config.run
    return Federation(
        *read_parties(plan.config),
        seed=plan.seeds[0],
        strict=run.strict,
        device=run.device,
        **more,
    )


def _seen(fed: Federation, plan: Plan) -> dict[str, list[int]]:
    """By party: labelled test rows that are training rows, too, and all labelled test rows.

    Only of tables in this process.
    """
    found: dict[str, list[int]] = {}
    unscored = plan.federation is not None or plan.leaves_out("evaluate")
    if isinstance(fed.engine, LocalEngine) and not unscored:
        for party in [each for each in plan.config.party if each.has_test]:
            tables = fed.engine.sites[party.name].tables
            train, test = tables["train"], tables["test"]
            known, _, rows = seen_in_training(plan.config, party, train, test)
            found |= {party.name: [known, rows]} if known else {}
    return found


def _tested_on(test: Federation, plan: Plan, runs: Sequence[MethodRun], rows: int | None) -> str:
    if plan.leaves_out("evaluate"):
        return "nothing: the run leaves evaluation out"
    if not any(run.scores for run in runs):
        return "nothing: the test rows are too few"
    if plan.config.horizontal:
        many = f"{rows:,} " if rows else ""
        return f"the {many}labelled test rows of {len(test.label_parties)} parties"
    labelled = "labelled " if rows is not None and rows < _all_tested(test) else ""
    return f"{rows:,} {labelled}test rows" + (" known to all" if test.is_aligned else "")


def _rows_tested(test: Federation, plan: Plan, runs: Sequence[MethodRun]) -> int | None:
    """How many rows the scores are from, where that is known."""
    if not any(run.scores for run in runs):
        return None
    # How many have a label was told when it was told how sure the first method is.
    rows = ((runs[0].uncertainty or {}).get("worth") or {}).get("rows")
    if rows is not None or plan.config.horizontal:
        return None if rows is None else int(rows)
    if not isinstance(test.engine, LocalEngine) or len(test.label_parties) > 1:
        return _all_tested(test)
    site = test.engine.sites[test.label_party]
    labelled = site.table_of(test.scope).y.notna().to_numpy()
    return int(labelled[site.alignments[test.scope].aligned if test.is_aligned else ...].sum())


def _all_tested(test: Federation) -> int:
    """Test rows known to all, with labels or without; else the label party's."""
    if test.is_aligned:
        return test.alignment.aligned
    return int(test.roster[test.label_party]["rows"])


def _set_aside(plan: Plan) -> float | None:
    """The share of all rows that test rows were made of, where that is known.

    (Over machines parties have test tables, or have none, without telling.)
    """
    given = plan.federation is not None or any(each.has_test for each in plan.config.party)
    return None if given else plan.config.test_share


# ---------------------------------------------------------------- report


def _record(
    plan: Plan,
    steps: Steps,
    runs: Sequence[MethodRun],
    reference: Reference | None,
    tested_on: str,
    notes: list[str],
) -> RunRecord:
    config, scores = plan.config, [run.scores for run in runs if run.scores]
    return RunRecord(
        title=config.title,
        methods=list(runs),
        metric=main_metric(config.evaluate.metrics, scores) if scores else "auc",
        evaluated_on=tested_on,
        measured_against=reference.words if reference else "",
        set_aside=_set_aside(plan),
        recipe=config.recipe,
        device=config.run.device,
        seeds=list(plan.seeds),
        settings=config.shown(),
        notes=notes,
        **steps.results,
    )


def _report(plan: Plan, steps: Steps, record: RunRecord) -> None:
    """Write what people look at; quick, so that it is always done anew."""
    work, manifest, reported = steps.folder, steps.manifest, not plan.leaves_out("report")
    record.save(work)
    if plan.extras is not None:
        plan.extras(work)
    if reported:
        steps.listener.stage("Writing the report")
        steps.done.append(("report", ""))
        with in_stage("report"):
            manifest.report([RECORD_FILE, LEDGER_FILE], lambda: write_report(work))
    manifest.keep_only(steps.done)
    _tidy(steps)
    shutil.rmtree(work / CHECKPOINTS, ignore_errors=True)
    if not plan.config.run.keep_stages:
        for name in ("stages", "seeds"):
            shutil.rmtree(work / name, ignore_errors=True)
    if not reported:
        (work / REPORT_FILE).unlink(missing_ok=True)


def _tidy(steps: Steps) -> None:
    """Remove what stages have left that the run no longer has."""
    work = steps.folder
    names = [name.partition("@")[0] for each in steps.manifest.entries for name in each.outputs]
    kept = {work / part for name in names for part in (name, *map(str, Path(name).parents))}
    kept |= {work / SALT_FOLDER, work / PAIRS_FOLDER}
    for pattern in ("model/*", "seeds/*", "stages/*", "stages/train/*", "stages/evaluate/*"):
        for path in work.glob(pattern):
            if path not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
