"""Opening a flare engine: wait for the parties, submit their jobs, and take the relays' calls.

Every party has a job of its own: FLARE aborts a job when a party of it dies, and the others must
live to hear of it. For each job the coordinator's process listens on a socket file that only its
user can open; the job's process at the server, on the same machine, connects to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import re
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from fedmend.errors import ConfigError, MissingExtra, PartyAbsent
from fedmend.federation.engines.flare.engine import FlareEngine
from fedmend.federation.engines.flare.host import FINISHED, Hello
from fedmend.federation.engines.flare.kits import ADMIN, PARTY_CLASS
from fedmend.federation.engines.flare.leftovers import KEEP_JOBS, note_finished, to_forget
from fedmend.federation.engines.flare.link import READY, Link
from fedmend.federation.ledger import Ledger

if TYPE_CHECKING:
    from fedmend.federation.engines.flare.collab import Admin

logger = logging.getLogger(__name__)

SERVER = "server"
JOB_SECONDS = 90.0
# A job that ends by an exception of its own, again and again, is not going to start.
MOST_CRASHES = 3
LOCK_FILE = "run.lock"
Waiting = Callable[[list[str]], None]


@dataclass(frozen=True)
class Reach:
    """How the server is reached, and how long anything is waited for.

    admin: the coordinator's own kit. wait_seconds: for parties that are not connected yet.
    keep_jobs: how many finished runs leave their jobs in the server's store.
    """

    admin: Path
    wait_seconds: float = 60.0
    call_timeout: float = 3600.0
    stall_seconds: float = 60.0
    keep_jobs: int = KEEP_JOBS


def open_engine(
    reach: Reach,
    parties: Sequence[str],
    hello: Hello,
    *,
    ledger: Ledger,
    waiting: Waiting | None = None,
) -> FlareEngine:
    """Start the parties' jobs and say hello to them. `waiting` is told who is missing."""
    opening = _Opening(reach, hello, waiting)
    try:
        links = opening.links(parties)
        return FlareEngine(
            links,
            hello,
            ledger=ledger,
            call_timeout=reach.call_timeout,
            stall_seconds=reach.stall_seconds,
            ended=opening.end,
        )
    except BaseException as error:
        opening.end(str(error))
        raise
    finally:
        opening.tidy()


def connected(reach: Reach) -> list[str]:
    """The parties that are connected to the server now."""
    admin = _login(reach)
    try:
        return admin.clients()
    finally:
        admin.close()


@dataclass
class _Job:
    """One party's job: its number at the server, where its relay will call, and the link then."""

    party: str
    ears: socket.socket
    id: str = ""
    link: Link | None = None
    refused: str = ""


@dataclass
class _Opening:
    """What is open while an engine is being opened, and what its end must close."""

    reach: Reach
    hello: Hello
    waiting: Waiting | None
    jobs: list[_Job] = field(default_factory=list)
    scratch: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="fedmend-")))
    lock: TextIO | None = None
    admin: Any = None

    def links(self, parties: Sequence[str]) -> dict[str, Link]:
        """A link to every party; jobs that do not start are tried again while there is time."""
        self.lock = _lock(self.reach.admin)
        self.admin = _login(self.reach)
        deadline = time.monotonic() + self.reach.wait_seconds
        self._clean_up()
        left = list(parties)
        crashes: Counter[str] = Counter()
        while left:
            self._wait_for(left, deadline)
            tried = [self._submit(party) for party in left]
            self._take_calls(tried)
            failed = [job for job in tried if job.link is None]
            crashes.update(job.party for job in failed if "EXCEPTION" in job.refused)
            for job in failed:
                if time.monotonic() > deadline or crashes[job.party] == MOST_CRASHES:
                    raise PartyAbsent(
                        job.party,
                        f"its job did not start (FLARE says {job.refused or 'nothing'}); "
                        "log.txt in its kit and in the server's says why",
                    )
                logger.warning("the job of %s did not start (%s)", job.party, job.refused)
            left = [job.party for job in failed]
        found = {job.party: job.link for job in self.jobs if job.link is not None}
        return {party: found[party] for party in parties}

    def _clean_up(self) -> None:
        """A job whose coordinator or server died stays listed as running."""
        for stale in self.admin.running():
            logger.info("ending the stale job %s", stale)
            self.admin.abort(stale)

    def _wait_for(self, parties: Sequence[str], deadline: float) -> None:
        told: list[str] = []
        while True:
            there = self.admin.clients()
            missing = [name for name in parties if name not in there]
            if not missing:
                return
            if missing != told and self.waiting is not None:
                self.waiting(missing)
            told = missing
            if time.monotonic() > deadline:
                also = f", nor {', '.join(missing[1:])}" if missing[1:] else ""
                others = f" (there are {', '.join(there)})" if there else ""
                raise PartyAbsent(
                    missing[0],
                    f"not connected to the server within {self.reach.wait_seconds:.0f} s"
                    f"{also}{others}",
                )
            time.sleep(0.5)

    def _submit(self, party: str) -> _Job:
        from fedmend.federation.engines.flare.collab import write_job

        ears = socket.socket(socket.AF_UNIX)
        job = _Job(party, ears)
        self.jobs.append(job)
        address = self.scratch / str(len(self.jobs))
        ears.bind(str(address))
        ears.listen(1)
        ears.settimeout(0.2)
        name = re.sub(r"[^A-Za-z0-9_-]", "-", f"{self.hello.run}-{party}-{len(self.jobs)}")
        path = write_job(self.scratch, name, PARTY_CLASS, str(address), party)
        job.id = self.admin.submit(path)
        return job

    def _take_calls(self, jobs: Sequence[_Job]) -> None:
        """Wait until every job's relay has called, or its job is over."""
        deadline = time.monotonic() + JOB_SECONDS
        asked = 0.0
        while open_ := [job for job in jobs if job.link is None and not job.refused]:
            for job in open_:
                with contextlib.suppress(TimeoutError):
                    job.link = _greet(job.ears, job.party)
            if time.monotonic() - asked < 1.0:
                continue
            asked = time.monotonic()
            for job in open_:
                status = self.admin.status(job.id)
                if job.link is None and status.startswith(("FINISHED", "ABANDONED", "FAILED")):
                    job.refused = status
                elif job.link is None and asked > deadline:
                    job.refused = f"{status}, and nothing happens"
                    self.admin.abort(job.id)

    def tidy(self) -> None:
        """Nobody calls any more."""
        for job in self.jobs:
            job.ears.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def end(self, reason: str) -> None:
        """The relays end by themselves when their links close; whatever is left is aborted."""
        for job in self.jobs:
            if job.link is not None:
                job.link.close()
        if self.admin is not None:
            # FLARE's threads keep a process alive that does not log out, whoever is gone.
            steps = [self._see_jobs_end, partial(self._clear_store, reason), self.admin.close]
            for step in steps:
                try:
                    step()
                except Exception as error:  # the server may be the one that is gone
                    logger.info("logging out: %s", error)
        if self.lock is not None:
            self.lock.close()

    def _see_jobs_end(self) -> None:
        open_ = [job.id for job in self.jobs if job.id and not job.refused]
        deadline = time.monotonic() + 10.0
        while open_ and time.monotonic() < deadline:
            open_ = [each for each in open_ if not self.admin.status(each).startswith("FINISHED")]
            time.sleep(0.3 if open_ else 0.0)
        for each in open_:
            self.admin.abort(each)

    def _clear_store(self, reason: str) -> None:
        """Jobs of earlier runs that nobody will look at go; the server would keep all for ever."""
        if reason == FINISHED:
            note_finished(self.reach.admin, [job.id for job in self.jobs if job.link is not None])
        parties = len({job.party for job in self.jobs})
        kept = self.reach.keep_jobs * parties
        for each in to_forget(self.reach.admin, self.admin.ended(), kept):
            self.admin.delete(each)


def _greet(ears: socket.socket, party: str) -> Link | None:
    """The link to a job's process that calls; None when it is the wrong one."""
    end, _ = ears.accept()
    end.settimeout(None)
    link = Link(end)
    frame = link.receive()
    if frame is None or frame.status != READY or party not in json.loads(frame.payload):
        link.close()
        return None
    return link


def _lock(admin: Path) -> TextIO:
    """One run at a time: whatever else is listed as running is then known to be stale."""
    file = (admin / LOCK_FILE).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(
            "another run uses these kits now. Mend: wait until it ends, or stop it"
        ) from None
    return file


def _login(reach: Reach) -> Admin:
    try:
        from fedmend.federation.engines.flare.collab import Admin
    except ImportError as error:
        raise MissingExtra("nvflare", "flare", "a federation of several machines") from error
    deadline = time.monotonic() + reach.wait_seconds
    while True:
        try:
            return Admin(reach.admin, ADMIN)
        except Exception as error:  # FLARE raises a dozen kinds for "not there (yet)"
            if time.monotonic() > deadline:
                raise PartyAbsent(SERVER, f"the FLARE server cannot be reached: {error}") from error
            time.sleep(1.0)
