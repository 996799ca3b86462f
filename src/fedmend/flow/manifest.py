"""The folder of a run, and its ``manifest.json``: which stages it went through, from what, to what.

An entry tells a stage (of ``train`` and ``evaluate``: a method under a seed) by its fingerprint,
which is made of its settings and of the hashes of what it started from. A stage whose fingerprint
and outputs are as they were need not be done again.

A run works in ``<folder>.part``, which gets its name only when all of it is there. An interrupted
run leaves its ``.part``, from which it goes on. One that failed leaves it only when stages are done
that took time, or when asked to. A finished run that goes on (because later settings have changed)
is worked on as a copy, and replaced when that is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedmend._json import plain, typed, write_json
from fedmend._version import __version__
from fedmend.errors import ConfigError, DataError, ResumeError
from fedmend.flow.plan import Plan
from fedmend.report.page import LEDGER_FILE, REPORT_FILE

CONFIG_FILE = "federation.toml"
MANIFEST_FILE = "manifest.json"
CHECKPOINTS = "checkpoints"
FORMAT = 1
STAGES = (
    "align", "diagnose", "complete", "correct", "choose", "train", "evaluate", "report",
)  # fmt: skip
"""In their order."""
_WORTH_KEEPING = ("correct", "complete", "choose", "train")


@dataclass
class StageEntry:
    """One stage that was done.

    unit: method and seed of a training, nothing otherwise. inputs, outputs: hashes by name and by
    path in the run folder; what is at a party stands under the party's name. reused: taken over
    by the last call of the run.
    """

    stage: str
    unit: str = ""
    title: str = ""
    started: str = ""
    seconds: float = 0.0
    fingerprint: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    crossings: int = 0
    bytes: int = 0
    reused: bool = False
    says: str = ""

    @property
    def product(self) -> str:
        """One hash of all that came out, for the stages that start from it."""
        return digest(self.outputs)


@dataclass
class Manifest:
    """The entries of a run in their order, kept in a file.

    number: the file system's, of the folder while a run works in it.
    """

    folder: Path
    title: str = ""
    engine: str = "local"
    recipe: str | None = None
    entries: list[StageEntry] = field(default_factory=list)
    number: int = 0

    def require_folder(self, cause: Exception | None = None) -> None:
        """That the folder in which the run began is still there: writing would make a new one."""
        try:
            there = self.folder.stat().st_ino == self.number or not self.number
        except OSError:
            there = False
        if not there:
            if not (self.folder / MANIFEST_FILE).exists():  # what was written since, and no run
                shutil.rmtree(self.folder, ignore_errors=True)
            raise DataError(
                f"the run's folder {self.folder} was deleted or replaced while it was worked in",
                mend="begin the run anew; nothing of it is kept",
            ) from cause

    def find(self, stage: str, unit: str = "") -> StageEntry | None:
        """What was done of this stage before."""
        same = (each for each in self.entries if (each.stage, each.unit) == (stage, unit))
        return next(same, None)

    def record(self, entry: StageEntry) -> None:
        """Put an entry in the place of the earlier one, and write the file."""
        self.forget(entry.stage, entry.unit)
        self.entries.append(entry)
        self.save()

    def forget(self, stage: str, unit: str) -> None:
        """As if this was never done."""
        self.entries = [each for each in self.entries if (each.stage, each.unit) != (stage, unit)]

    def forget_from(self, stage: str) -> None:
        """As if nothing was done from this stage on."""
        before = STAGES[: STAGES.index(stage)]
        self.entries = [each for each in self.entries if each.stage in before]
        self.save()

    def keep_only(self, done: list[tuple[str, str]]) -> None:
        """Drop entries of stages that the run no longer has, and put the rest in its order."""
        place = {each: at for at, each in enumerate(done)}
        kept = [each for each in self.entries if (each.stage, each.unit) in place]
        self.entries = sorted(kept, key=lambda each: place[each.stage, each.unit])
        self.save()

    def report(self, sources: list[str], write: Callable[[], object]) -> None:
        """Do the last stage, whose page shows the manifest with all stages but itself."""
        work, entry = self.folder, StageEntry("report", started=now())
        entry.inputs = {name: hash_of(work / name) for name in sources if (work / name).is_file()}
        entry.fingerprint = fingerprint("report", {}, entry.inputs)
        began = time.perf_counter()
        write()
        entry.seconds = time.perf_counter() - began
        entry.outputs = {REPORT_FILE: hash_of(work / REPORT_FILE)}
        self.record(entry)

    @property
    def seconds(self) -> float:
        """What all stages took, whenever that was."""
        return sum(each.seconds for each in self.entries)

    def save(self) -> None:
        """Write the file, whole or not at all."""
        self.require_folder()
        write_json(
            self.folder / MANIFEST_FILE,
            {
                "format": FORMAT,
                "fedmend": __version__,
                "title": self.title,
                "engine": self.engine,
                "recipe": self.recipe,
                "stages": [asdict(each) for each in self.entries],
            },
        )


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a run folder, finished or not."""
    path = Path(folder) / MANIFEST_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']!r}")
        entries = [typed(StageEntry, each) for each in stored["stages"]]
        told = {name: stored[name] for name in ("title", "engine", "recipe")}
        return typed(Manifest, {"folder": path.parent, "entries": entries, **told})
    except FileNotFoundError:
        raise ResumeError(
            f"{folder} has no {MANIFEST_FILE}, so nothing tells what was done. "
            "Mend: --force starts anew"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ResumeError(f"{path} cannot be read: {error}. Mend: --force starts anew") from error


def fingerprint(stage: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """What tells one doing of a stage from another."""
    return digest({"stage": stage, "settings": settings, "inputs": inputs})


def digest(value: Any) -> str:
    """A short hash of any plain value."""
    text = json.dumps(plain(value), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def hash_of(path: Path) -> str:
    """A short hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def now() -> str:
    """The time as a manifest has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


# ---------------------------------------------------------------- where a run works


@contextmanager
def work_in(
    folder: Path,
    plan: Plan,
    *,
    resume: bool,
    force: bool,
    keep_failed: bool,
    start: str | None = None,
) -> Iterator[Manifest]:
    """The manifest of ``<folder>.part``, where to work; it takes its name when all went well.

    start: the stage from which all is done again, whatever was done before.
    """
    if folder.name in ("", ".."):
        folder = folder.resolve()
    if not folder.name:
        raise ConfigError(f"{folder} can hold no run. Mend: --folder names a folder to be made")
    work = folder.with_name(folder.name + ".part")
    if work.is_dir():
        with _by_itself_in(work):
            pass
    resumed = _take_up(folder, work, resume=resume or start is not None, force=force)
    if resumed:
        manifest = read_manifest(work)
        manifest.title, manifest.engine = plan.config.title, plan.engine
        manifest.recipe = plan.config.recipe
        if start is not None:
            manifest.forget_from(start)
            shutil.rmtree(work / CHECKPOINTS, ignore_errors=True)
    else:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        manifest = Manifest(work, plan.config.title, plan.engine, plan.config.recipe)
    manifest.number = work.stat().st_ino
    manifest.save()
    (work / CONFIG_FILE).write_text(plan.text, encoding="utf-8")
    with _by_itself_in(work):
        try:
            yield manifest
        except Exception as error:
            manifest.require_folder(error)
            done = any(each.stage in _WORTH_KEEPING for each in manifest.entries)
            # A resumed run holds hours of somebody's work, whatever went wrong now.
            if (keep_failed and _has_begun(work)) or resumed or done:
                error.add_note(f"What is done is kept in {work}: --resume goes on from there")
            else:
                shutil.rmtree(work, ignore_errors=True)
            raise
        manifest.require_folder()
        _put_in_place(work, folder)


@contextmanager
def _by_itself_in(work: Path) -> Iterator[None]:
    """No other process runs in this folder meanwhile; a lock ends with whoever holds it."""
    handle = os.open(work, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems have no locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another process is running in {work}. Mend: wait for it, stop it, or "
                    "--folder names another"
                ) from None
        yield
    finally:
        os.close(handle)


def _take_up(folder: Path, work: Path, *, resume: bool, force: bool) -> bool:
    """Whether there is something to go on with in `work`, which may be made of a finished run."""
    if resume and work.is_dir():
        return True
    if resume and (folder / MANIFEST_FILE).is_file():
        _copy(folder, work)
        return True
    if folder.exists() and force and not _is_ours(folder):
        raise ConfigError(
            f"{folder} is no run, and --force replaces runs only. Mend: --folder names another"
        )
    if folder.exists() and not force:
        raise ConfigError(
            f"{folder} exists already. Mend: --resume does again what other settings change, "
            "--force replaces the run, --folder names another"
        )
    if work.exists() and not force:
        raise ConfigError(
            f"an unfinished run is in {work}. Mend: --resume goes on with it, --force starts anew"
        )
    return False


def _copy(folder: Path, work: Path) -> None:
    beside = work.with_name(work.name + ".copy")
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(folder, beside, ignore=shutil.ignore_patterns(REPORT_FILE))
    beside.rename(work)


def _put_in_place(work: Path, folder: Path) -> None:
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    work.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _has_begun(work: Path) -> bool:
    """Whether anything crossed: a run that was refused at once leaves nothing."""
    ledger = work / LEDGER_FILE
    return ledger.is_file() and ledger.stat().st_size > 0


def _is_ours(folder: Path) -> bool:
    """Only what looks like a run is ever replaced."""
    return folder.is_dir() and ((folder / LEDGER_FILE).is_file() or not any(folder.iterdir()))
