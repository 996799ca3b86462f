"""The stages of a run: read, align, overview, complete, train, score, report — into one folder.

A run works in ``<folder>.part`` and takes its name only when everything is written, so that a
run folder is whole or not there. An interrupted run leaves its ``.part``, from which ``resume``
goes on; one that failed leaves nothing unless asked to.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend._json import write_json
from fedmend.config.catalogue import (
    COMPLETED,
    CROWD,
    METHODS,
    method_class,
    slug_of,
    uses_completed_rows,
)
from fedmend.errors import ConfigError, ResumeError
from fedmend.federation import Federation, Party
from fedmend.flow.completing import Completing, complete
from fedmend.flow.kept import keep_alignment, restore_alignment
from fedmend.flow.listening import Listener
from fedmend.flow.reading import read_parties
from fedmend.flow.scoring import Reference, measure, reference_of
from fedmend.live import LiveListener
from fedmend.report.labelling import Labelling
from fedmend.report.overview import Overview, overview
from fedmend.report.page import LEDGER_FILE, write_report
from fedmend.report.record import MethodRun, RunRecord
from fedmend.report.uncertainty import Uncertainty
from fedmend.secure.align import align

if TYPE_CHECKING:
    from fedmend.config import Config

__all__ = ["Listener", "Method", "Plan", "execute", "plan_of"]

logger = logging.getLogger(__name__)

CONFIG_FILE = "federation.toml"
MODEL_FOLDER = "model"
REVIEW_FOLDER = "labels"
SMALL_ROWS = 50_000
_SCRATCH = ("alignment", "checkpoints", "completion", "results")


@dataclass(frozen=True)
class Method:
    """A method of the comparison: its name in METHODS, how it is shown, its parameters.

    completed: trained on the federation with the completed rows.
    """

    name: str
    title: str
    params: dict[str, Any] = field(default_factory=dict)
    completed: bool = False

    @property
    def slug(self) -> str:
        return slug_of(self.title) or self.name

    @property
    def about(self) -> str:
        words = METHODS[self.name][1]
        return f"{words}; completed rows included" if self.completed else words


@dataclass
class Plan:
    """Everything a run needs, wherever it came from: a federation.toml or the demo."""

    title: str
    parties: Callable[[], list[Party]]
    methods: Sequence[Method]
    seeds: Sequence[int] = (0,)
    metrics: Sequence[str] = ()
    device: str = "cpu"
    strict: bool = False
    align: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    extras: Callable[[Path], None] | None = None
    complete: Completing | None = None
    reference: str | None = None
    label_review: bool = False
    federation: Callable[[Path], Federation] | None = None
    horizontal: bool = False

    @property
    def trainings(self) -> list[Method]:
        """The methods as they are trained: without and with completed rows."""
        if self.complete is None:
            return list(self.methods)
        found = []
        for method in self.methods:
            able = uses_completed_rows(method.name)
            if self.complete.also_unmended or not able:
                found.append(method)
            if able:
                found.append(replace(method, title=method.title + COMPLETED, completed=True))
        return found


# ---------------------------------------------------------------- from the file to a plan


def plan_of(config: Config) -> Plan:
    """The plan of a federation.toml."""
    return Plan(
        title=config.title,
        parties=lambda: read_parties(config),
        methods=[Method(each.name, each.shown_as, each.params) for each in config.method],
        seeds=config.run.all_seeds,
        metrics=config.evaluate.metrics,
        device=config.run.device,
        strict=config.run.strict,
        align=config.align.model_dump(exclude_none=True),
        settings=config.shown(),
        config_text=config.source.read_text(encoding="utf-8"),
        complete=Completing.of(config),
        reference=config.evaluate.reference,
        label_review=config.report.label_review,
        horizontal=config.horizontal,
    )


# ---------------------------------------------------------------- running it


def execute(
    plan: Plan,
    folder: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    keep_failed: bool = False,
    listener: Listener | None = None,
) -> RunRecord:
    """Run a plan into a folder. Returns the record; the folder holds it with everything else."""
    with _workplace(Path(folder), plan, resume, force, keep_failed) as work:
        listener = LiveListener(
            work, listener or Listener(), plan.title, plan.settings, plan.metrics, plan.seeds
        )
        began = time.perf_counter()
        fed = _federation(plan, work, listener)
        with fed, _few_threads(fed):
            found = _align_and_look(fed, plan, work, listener)
            test = fed.on("test")
            reference = _reference(fed, test, plan)
            tested_on = _tested_on(test, plan)
            mended, mending = fed, None
            if plan.complete is not None:
                mended, mending = complete(fed, plan.complete, plan.seeds[0], work, listener)
                listener.mended(mending)
            runs = [
                _train(
                    mended if method.completed else fed,
                    plan,
                    method,
                    seed,
                    reference,
                    work,
                    resume,
                    listener,
                )
                for method in plan.trainings
                for seed in plan.seeds
            ]
        record = RunRecord(
            title=plan.title,
            methods=runs,
            metric=_main_metric(plan, runs),
            overview=found.to_dict(),
            evaluated_on=tested_on,
            measured_against=reference.words,
            mending=mending.to_dict() if mending else None,
            device=plan.device,
            seeds=list(plan.seeds),
            settings=plan.settings,
            seconds=time.perf_counter() - began,
        )
        listener.stage("Writing the report")
        record.save(work)
        if plan.extras is not None:
            plan.extras(work)
        write_report(work)
        for name in _SCRATCH:
            shutil.rmtree(work / name, ignore_errors=True)
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


def _align_and_look(fed: Federation, plan: Plan, work: Path, listener: Listener) -> Overview:
    if len(fed.names) > 1 and not plan.horizontal:
        listener.stage("Finding the rows the parties share")
        for view in (fed, fed.on("test")):
            if not restore_alignment(view, work / "alignment"):
                align(view, progress=listener.progress, **plan.align)
                keep_alignment(view, work / "alignment")
    found = overview(fed, shape="horizontal" if plan.horizontal else "vertical")
    listener.overview(found)
    return found


def _reference(fed: Federation, test: Federation, plan: Plan) -> Reference:
    if plan.horizontal and test.label_parties:
        return Reference(tuple(test.label_parties), own=True)
    crowd = any(method.name in CROWD for method in plan.methods)
    several = len(fed.label_parties) > 1
    return reference_of(test, plan.reference, crowd=crowd, several=several)


def _tested_on(test: Federation, plan: Plan) -> str:
    if plan.horizontal:
        return f"the labelled test rows of {len(test.label_parties)} parties"
    if test.is_aligned:
        return f"{test.alignment.aligned:,} test rows known to all"
    return f"{test.roster[test.label_party]['rows']:,} test rows"


def _train(
    fed: Federation,
    plan: Plan,
    method: Method,
    seed: int,
    reference: Reference,
    work: Path,
    resume: bool,
    listener: Listener,
) -> MethodRun:
    """Fit and score one method under one seed, or take its result from before."""
    slug = f"{method.slug}-{seed}"
    stored = work / "results" / f"{slug}.json"
    if resume and stored.is_file():
        run = MethodRun(**json.loads(stored.read_text(encoding="utf-8")))
        listener.scored(run)
        return run
    several = f", seed {seed}" if len(plan.seeds) > 1 else ""
    listener.stage(f"Training {method.title}{several}")
    crossings, crossed = len(fed.ledger), fed.ledger.total_bytes()
    began = time.perf_counter()
    estimator = method_class(method.name)(**method.params)
    if "seed" in estimator.get_params():
        estimator.set_params(seed=seed)
    if plan.horizontal and estimator.watch is None:
        estimator.set_params(watch="test")
    title = "rounds" if plan.horizontal else "epochs"
    estimator.fit(
        fed,
        progress=lambda _, done, total, facts: listener.progress(title, done, total, facts),
        checkpoint=work / "checkpoints" / slug,
        resume=resume,
    )
    seconds = time.perf_counter() - began
    scores = measure(estimator, fed.on("test"), reference)
    crossings, crossed = len(fed.ledger) - crossings, fed.ledger.total_bytes() - crossed
    if seed == plan.seeds[0]:
        estimator.save(work / MODEL_FOLDER / method.slug)
    run = MethodRun(
        name=method.name,
        title=method.title,
        seed=seed,
        params=estimator.get_params(),
        history=list(estimator.history_),
        scores=_chosen(scores, plan.metrics),
        seconds=seconds,
        crossings=crossings,
        bytes=crossed,
        about=method.about,
        labelling=_labelling(estimator, plan, method, work) if seed == plan.seeds[0] else None,
        uncertainty=_uncertainty(estimator, fed) if seed == plan.seeds[0] else None,
    )
    write_json(stored, asdict(run))
    listener.scored(run)
    return run


def _labelling(estimator: Any, plan: Plan, method: Method, work: Path) -> dict[str, Any] | None:
    """What a method found out about the labellers; each may keep the review of its own labels."""
    if not hasattr(estimator, "expertise_"):
        return None
    path = work / REVIEW_FOLDER / method.slug if plan.label_review else None
    return Labelling.of(estimator, estimator.review_labels(path=path)).to_dict()


def _uncertainty(estimator: Any, fed: Federation) -> dict[str, Any] | None:
    """What a method's uncertainty is worth, where it has one."""
    if not hasattr(estimator, "uncertainty_report"):
        return None
    return Uncertainty.of(estimator, fed.on("test")).to_dict()


def _chosen(scores: dict[str, float], metrics: Sequence[str]) -> dict[str, float]:
    if not metrics:
        return dict(scores)
    wrong = [metric for metric in metrics if metric not in scores]
    if wrong:
        raise ConfigError(
            f"evaluate.metrics: {wrong[0]!r} does not fit this label. "
            f"Mend: choose from {', '.join(scores)}"
        )
    return {metric: scores[metric] for metric in metrics}


def _main_metric(plan: Plan, runs: Sequence[MethodRun]) -> str:
    if plan.metrics:
        return plan.metrics[0]
    names = list(runs[0].scores)
    return next((name for name in ("auc", "accuracy", "rmse") if name in names), names[0])


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


# ---------------------------------------------------------------- the folder


@contextmanager
def _workplace(
    folder: Path, plan: Plan, resume: bool, force: bool, keep_failed: bool
) -> Iterator[Path]:
    """``<folder>.part`` to work in; renamed when all went well, removed when something failed."""
    work = folder.with_name(folder.name + ".part")
    if folder.exists() and not (force and _is_ours(folder)):
        raise ConfigError(
            f"{folder} exists already. Mend: name another folder, or --force to replace a run"
        )
    resumed = resume and work.is_dir()
    if resumed:
        _same_plan(work, plan)
    elif work.exists() and not force:
        raise ConfigError(
            f"an unfinished run is in {work}. Mend: --resume goes on with it, --force starts anew"
        )
    else:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        (work / CONFIG_FILE).write_text(plan.config_text, encoding="utf-8")
    try:
        yield work
    except Exception:
        # A resumed run holds hours of somebody's work, whatever went wrong now.
        if not (keep_failed or resumed):
            shutil.rmtree(work, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(folder)
    work.rename(folder)


def _is_ours(folder: Path) -> bool:
    """Only what looks like a run is ever replaced."""
    return folder.is_dir() and ((folder / LEDGER_FILE).is_file() or not any(folder.iterdir()))


def _same_plan(work: Path, plan: Plan) -> None:
    config = work / CONFIG_FILE
    if not config.is_file() or config.read_text(encoding="utf-8") != plan.config_text:
        raise ResumeError(
            f"the unfinished run in {work} was started with other settings. "
            f"Mend: bring them back (they are in {config}), or --force to start anew"
        )
