"""Who hears how a run goes on: nobody, the terminal, or ``live.json``, for `fedmend watch`.

The file in the run's folder holds the record as far as it goes, the curve of the present training
included. It is written whole, at most once a second, and is gone when the report is there.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmend._json import typed, write_json
from fedmend.errors import DataError
from fedmend.flow.manifest import Manifest, StageEntry
from fedmend.flow.plan import Plan
from fedmend.report.record import MethodRun, RunRecord, main_metric

LIVE_FILE = "live.json"
SECONDS = 1.0


class Listener:
    """Hears how a run goes on; the command line draws it, the library stays silent."""

    def stage(self, words: str) -> None:
        """A stage begins."""

    def progress(
        self, title: str, done: int, total: int, facts: dict[str, float] | None = None
    ) -> None:
        """A part of a stage is done: rows of an alignment, epochs of a training."""

    def found(self, what: str, value: dict[str, Any]) -> None:
        """The record's overview, mending, correction, choice or scores alone are there."""

    def done(self, entry: StageEntry) -> None:
        """A stage is done, or taken up from before."""

    def scored(self, run: MethodRun) -> None:
        """A method was trained and scored."""


@dataclass(frozen=True)
class LiveState:
    """Where a run stands: the stage in words, how far it is, and the record so far."""

    stage: str
    done: int
    total: int
    title: str
    record: RunRecord


class LiveListener(Listener):
    """Keeps the file, and passes everything on to another listener."""

    def __init__(self, manifest: Manifest, then: Listener, plan: Plan) -> None:
        self.manifest = manifest
        self.path = manifest.folder / LIVE_FILE
        self.then = then
        config = plan.config
        self.record = RunRecord(
            title=config.title,
            methods=[],
            metric=next(iter(config.evaluate.metrics), "auc"),
            settings=config.shown(),
            seeds=plan.seeds,
        )
        self._stage = ""
        self._progress = ("", 0, 0)
        self._curve: list[dict[str, Any]] = []
        self._written = 0.0

    def stage(self, words: str) -> None:
        self._stage, self._progress, self._curve = words, ("", 0, 0), []
        self._write()
        self.then.stage(words)

    def progress(
        self, title: str, done: int, total: int, facts: dict[str, float] | None = None
    ) -> None:
        self._progress = (title, done, total)
        if facts:
            self._curve.append({"epoch": done, **facts})
        if time.monotonic() - self._written >= SECONDS:
            self._write()
        self.then.progress(title, done, total, facts)

    def found(self, what: str, value: dict[str, Any]) -> None:
        setattr(self.record, what, value)
        self._write()
        self.then.found(what, value)

    def done(self, entry: StageEntry) -> None:
        self.then.done(entry)

    def scored(self, run: MethodRun) -> None:
        self.record.methods.append(run)
        if run.scores and self.record.metric not in run.scores:
            self.record.metric = main_metric([], [run.scores])
        self._curve = []
        self._write()
        self.then.scored(run)

    def finish(self) -> None:
        """The report tells everything now."""
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        self._written = time.monotonic()
        self.manifest.require_folder()
        title, done, total = self._progress
        methods = list(self.record.methods)
        if self._curve:
            name = self._stage.removeprefix("Training ").partition(", seed")[0]
            methods.append(MethodRun(name, name, 0, {}, self._curve, {}, 0.0))
        write_json(
            self.path,
            {
                "stage": self._stage,
                "title": title,
                "done": done,
                "total": total,
                "record": replace(self.record, methods=methods).to_dict(),
            },
        )


def read_live(folder: Path) -> LiveState | None:
    """Where the run in this folder stands; None if it tells nothing (any more)."""
    try:
        stored = json.loads((folder / LIVE_FILE).read_text(encoding="utf-8"))
        return typed(LiveState, stored | {"record": RunRecord.from_dict(stored["record"])})
    except (OSError, ValueError, LookupError, TypeError, RecursionError, DataError):
        return None  # not there, or of another version
