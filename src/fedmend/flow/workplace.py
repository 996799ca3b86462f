"""The folder of a run: worked on as ``<folder>.part``, and named only when all of it is there.

An interrupted run leaves its ``.part``, from which it goes on. One that failed leaves it only
when stages are done that took time, or when asked to. A finished run that goes on (because later
settings have changed) is worked on as a copy, and replaced when that is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.errors import ConfigError
from fedmend.flow.manifest import MANIFEST_FILE, Manifest, read_manifest
from fedmend.report.page import LEDGER_FILE, REPORT_FILE

if TYPE_CHECKING:
    from fedmend.flow.plan import Plan

__all__ = ["CONFIG_FILE", "Workplace", "workplace"]

CONFIG_FILE = "federation.toml"
_WORTH_KEEPING = ("correct", "complete", "choose", "train")


class Workplace:
    """Where a run works, and what its manifest says so far."""

    def __init__(self, folder: Path, manifest: Manifest, resumed: bool) -> None:
        self.folder = folder
        self.manifest = manifest
        self.resumed = resumed

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


@contextmanager
def workplace(
    folder: Path,
    plan: Plan,
    *,
    resume: bool,
    force: bool,
    keep_failed: bool,
    start: str | None = None,
) -> Iterator[Workplace]:
    """``<folder>.part`` to work in; it takes its name when all went well.

    start: the stage from which all is done again, whatever was done before.
    """
    if folder.name in ("", ".."):
        folder = folder.resolve()
    if not folder.name:
        raise ConfigError(f"{folder} can hold no run. Mend: --folder names a folder to be made")
    work = folder.with_name(folder.name + ".part")
    if work.is_dir():
        with _alone_in(work):
            pass
    resumed = _take_up(folder, work, resume=resume or start is not None, force=force)
    if resumed:
        manifest = read_manifest(work)
        manifest.title, manifest.engine, manifest.recipe = plan.title, plan.engine, plan.recipe
        if start is not None:
            manifest.forget_from(start)
            shutil.rmtree(work / "checkpoints", ignore_errors=True)
    else:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        manifest = Manifest(work, plan.title, plan.engine, plan.recipe)
    manifest.save()
    (work / CONFIG_FILE).write_text(plan.config_text, encoding="utf-8")
    with _alone_in(work):
        try:
            yield Workplace(work, manifest, resumed)
        except Exception as error:
            done = any(each.stage in _WORTH_KEEPING for each in manifest.entries)
            # A resumed run holds hours of somebody's work, whatever went wrong now.
            if keep_failed or resumed or done:
                error.add_note(f"What is done is kept in {work}: --resume goes on from there")
            else:
                shutil.rmtree(work, ignore_errors=True)
            raise
        _put_in_place(work, folder)


@contextmanager
def _alone_in(work: Path) -> Iterator[None]:
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
    if folder.exists() and not (force and _is_ours(folder)):
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


def _is_ours(folder: Path) -> bool:
    """Only what looks like a run is ever replaced."""
    return folder.is_dir() and ((folder / LEDGER_FILE).is_file() or not any(folder.iterdir()))
