"""Start-up kits: where they are, how kits and jobs know each other, and what jobs leave in them.

FLARE leaves something of every job for ever: a folder at the party, an entry at the server. Of
runs that finished, the last few are kept; of those that failed many more, for their logs. Neither
is needed to go on with a run: what a run keeps is in folders of its own.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmend._json import write_json
from fedmend.errors import ConfigError

ADMIN = "coordinator@fedmend.org"
PARTY_CLASS = "fedmend.deploy.party_job.PartyJob"
RELAY_CLASS = "fedmend.federation.engines.flare.collab.CollabRelay"
# FLARE's own, that call them.
CONTROLLER_CLASS = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR_CLASS = "nvflare.collab.runtime.executor.CollabExecutor"
KEEP_JOBS = 5
KEEP_FAILED = 20
MAX_NOTED_JOBS = 1000
FINISHED_MARK = "finished"
FINISHED_JOBS = "finished_jobs.json"
STORE_FOLDER = "jobs"
_JOB_FOLDER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Kits:
    """The kits of a federation, as `fedmend provision` lays them out."""

    folder: Path

    @property
    def server(self) -> Path:
        return self.folder / "coordinator" / "server"

    @property
    def admin(self) -> Path:
        return self.folder / "coordinator" / "admin"

    def party(self, name: str) -> Path:
        return self.folder / name

    @property
    def parties(self) -> list[str]:
        """The parties that have a kit here."""
        return sorted(
            each.name
            for each in self.folder.iterdir()
            if (each / "startup" / "fed_client.json").is_file()
        )


def owner_of(kit: Path) -> str:
    """Whose kit it is."""
    with _readable(kit) as content:
        return str(content["client"]["fqsn"])


def server_of(kit: Path) -> tuple[str, int]:
    """Host and port of the server, as a party's kit has them, or the server's own."""
    with _readable(kit) as content:
        host, _, port = str(content["servers"][0]["service"]["target"]).rpartition(":")
        return host, int(port)


@contextmanager
def _readable(kit: Path) -> Iterator[Any]:
    """What a kit says of itself; one that was damaged on its way is told as that."""
    startup = kit / "startup"
    file = next(startup.glob("fed_server.json"), startup / "fed_client.json")
    try:
        yield json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{file} is damaged ({type(error).__name__}). Mend: ask for a new kit"
        ) from error


# ---------------------------------------------------------------- folders at a party


def mark_finished(folder: Path) -> None:
    """Note in a job's folder that its run finished."""
    if folder.is_dir():
        (folder / FINISHED_MARK).touch()


def clear_folders(kit: Path, keep: int) -> None:
    """Remove the folders of older jobs. One that is still running is among the newest.

    keep: how many of finished runs stay.
    """
    folders = [each for each in kit.iterdir() if _JOB_FOLDER.fullmatch(each.name)]
    folders.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    finished = [each for each in folders if (each / FINISHED_MARK).is_file()]
    failed = [each for each in folders if each not in finished]
    for each in [*finished[keep:], *failed[KEEP_FAILED:]]:
        shutil.rmtree(each, ignore_errors=True)


# ---------------------------------------------------------------- entries at the server


def note_finished(admin: Path, jobs: Sequence[str]) -> None:
    """Remember that these jobs are of a run that finished: FLARE calls many of them aborted."""
    write_json(admin / FINISHED_JOBS, [*_finished(admin), *jobs])


def to_forget(admin: Path, ended: Sequence[str], keep: int) -> list[str]:
    """Which of the jobs that are over nobody needs; `ended` has them in their order.

    keep: how many jobs of finished runs stay.
    """
    known = _finished(admin)
    finished = [each for each in ended if each in known]
    failed = [each for each in ended if each not in known]
    gone = [*finished[: max(0, len(finished) - keep)], *failed[: max(0, len(failed) - KEEP_FAILED)]]
    # Jobs that are not over yet are still to be known as finished next time.
    left = [each for each in known if each not in gone]
    write_json(admin / FINISHED_JOBS, left[-MAX_NOTED_JOBS:])
    return gone


def clear_store(server: Path) -> None:
    """What a server that was killed left unfinished would be begun again by the next one."""
    for each in server.glob(f"{STORE_FOLDER}/*"):
        try:
            status = str(json.loads((each / "meta").read_text(encoding="utf-8"))["status"])
        except (OSError, ValueError, LookupError, TypeError):
            status = ""
        if not status.startswith("FINISHED"):
            shutil.rmtree(each, ignore_errors=True)


def _finished(admin: Path) -> list[str]:
    try:
        found = json.loads((admin / FINISHED_JOBS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [str(each) for each in found] if isinstance(found, list) else []
