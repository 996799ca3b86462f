"""FlareEngine: the coordinator's half. The same face as the local engine, over the courier.

To open one is to wait for the parties, submit their jobs, and take the relays' calls.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from fedmend._files import held, write_whole
from fedmend.errors import (
    ConfigError,
    FedmendError,
    MissingExtra,
    PartyAbsent,
    WireError,
)
from fedmend.federation.engines import Call, raise_first
from fedmend.federation.engines.flare.host import FINISHED, Hello
from fedmend.federation.engines.flare.kits import ADMIN, note_finished, to_forget
from fedmend.federation.engines.flare.link import READY, Courier, Link
from fedmend.federation.engines.flare.messages import (
    Conversation,
    Pending,
    read_reply,
    request,
)
from fedmend.federation.ledger import (
    CLOSED,
    COORDINATOR,
    NOTHING,
    REPRODUCIBLE,
    SESSION,
    Ledger,
    read_entries,
)

if TYPE_CHECKING:
    from fedmend.federation.engines.flare.collab import Admin

logger = logging.getLogger(__name__)

SERVER = "server"
JOB_SECONDS = 90.0
# A job that ends by an exception of its own, again and again, is not going to start.
MAX_CRASHES = 3
LOCK_FILE = "run.lock"
# The path of a socket file has at most 107 bytes on Linux, 103 elsewhere; its name is a number.
MAX_SCRATCH = 96
# Where one has refused, nobody else's people need to be waited for.
AFTER_REFUSAL_SECONDS = 10.0

Answered = Callable[[str, bool, list[str]], None]
"""Told of a party's answer to hello: whether it takes part, and whose answers are awaited."""


class _Sent(NamedTuple):
    """A request on its way, and where its answer will be."""

    party: str
    asked: Pending
    future: Future[bytes]


class FlareEngine:
    """Sites in processes of their own; a call is a message there and one back.

    links: one to each party. hello: how this run introduces itself.
    call_timeout: seconds a party may work on one call.
    stall_seconds: seconds without a sign of life after which a party counts as absent.
    ended: called once when the engine closes, to end the jobs, with the reason.
    answered: called with every party's answer to hello.
    """

    apart = True

    def __init__(
        self,
        links: Mapping[str, Link],
        hello: Hello,
        *,
        ledger: Ledger,
        call_timeout: float = 3600.0,
        stall_seconds: float = 60.0,
        ended: Callable[[str], None] | None = None,
        answered: Answered | None = None,
    ) -> None:
        self._names = tuple(links)
        self.hello = hello
        self.ledger = ledger
        self.call_timeout = call_timeout
        self.ledgers: Path | None = None
        self._ended = ended
        self._closed = False
        self._courier = Courier(links, stall_seconds=stall_seconds)
        self._talks = {party: Conversation(party, ledger) for party in links}
        self._open: dict[tuple[str, int], Pending] = {}
        try:
            self._say_hello(answered or (lambda party, yes, left: None))
        except BaseException as error:
            self.close(f"the run did not begin: {str(error) or 'interrupted'}")
            raise
        for party, talk in self._talks.items():
            talk.note_session()
            if hello.reproducible:
                ledger.record(COORDINATOR, party, "run", "control", NOTHING, note=REPRODUCIBLE)

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    @property
    def absent(self) -> dict[str, str]:
        """Parties that stopped answering, each with the reason."""
        return self._courier.absent

    # ------------------------------------------------------------------ what a federation asks

    def start(self, party: str, worker: str, scope: str, params: dict[str, Any]) -> str:
        return str(self._settle(self._send(party, self._talk(party).start(worker, scope, params))))

    def call(self, call: Call) -> Any:
        return self.call_all([call])[0]

    def call_all(self, calls: list[Call]) -> list[Any]:
        """All requests leave before the first reply is awaited; errors wait for all to end."""
        asked = [self._send(call.party, self._talk(call.party).call(call)) for call in calls]
        values: list[Any] = []
        errors: list[Exception] = []
        for sent in asked:
            try:
                values.append(self._settle(sent))
            except FedmendError as error:
                errors.append(error)
        # Who is gone explains more than who complains about it.
        raise_first(sorted(errors, key=lambda error: not isinstance(error, PartyAbsent)))
        return values

    def stop(self, party: str, handle: str) -> None:
        if party in self.absent or self._closed:
            return
        try:
            self._settle(self._send(party, self._talks[party].stop(handle)))
        except PartyAbsent as error:
            logger.warning("%s", error)

    def _copy_of(self, party: str) -> bytes:
        """A party's ledger as it lies in its kit, byte for byte: its chain is in it."""
        future = self._ask(party, self._talks[party].message("ledger"))
        copy = read_reply(self._answer(party, "ledger", future), party, "ledger")
        if not isinstance(copy, bytes):
            raise WireError(
                f"party {party!r} sent a {type(copy).__name__} as its ledger. "
                "Mend: install the same fedmend version at all parties"
            )
        return copy

    def close(self, reason: str = FINISHED) -> None:
        """Say goodbye to every party that is there, with the reason, and end the jobs."""
        if self._closed:
            return
        if self.ledgers is not None and reason == FINISHED:
            self._fetch_ledgers(self.ledgers)
        self._closed = True
        gone = self.absent
        if gone and reason == FINISHED:
            reason = "; ".join(f"{party} {words}" for party, words in gone.items())
        begun = [party for party, talk in self._talks.items() if talk.session]
        farewells = [
            (party, self._ask(party, self._talks[party].message("bye", reason=reason)))
            for party in begun
            if party not in gone
        ]
        for party, future in farewells:
            try:
                future.result(10.0)
            except (FedmendError, FutureTimeout):
                logger.warning("party %r did not hear the end of the run", party)
        self._courier.close()
        if self._ended is not None:
            self._ended(reason)
        for (party, _), asked in list(self._open.items()):  # whoever was waiting was interrupted
            self._talks[party].unanswered(asked)
        for party in begun:
            self.ledger.record(COORDINATOR, party, SESSION, "control", NOTHING, note=CLOSED)
        self.ledger.close()

    def _fetch_ledgers(self, folder: Path) -> None:
        """Copies of the parties' ledgers; one that cannot be had must not keep the jobs running."""
        for party in self._names:
            if party in self.absent:
                continue
            try:
                copy = self._copy_of(party)
                read_entries(copy, f"the ledger of {party!r}")
                write_whole(folder / f"{party}.jsonl", copy)
            except (FedmendError, OSError) as error:
                logger.warning("there is no copy of the ledger of %r: %s", party, error)

    # ------------------------------------------------------------------ messages

    def _say_hello(self, answered: Answered) -> None:
        """Ask every party; its answer may take as long as its people do."""
        greeting = request("hello", **self.hello.to_wire())
        left = {party: self._ask(party, greeting) for party in self._names}
        refusals: dict[str, Exception] = {}
        while left:
            seconds = AFTER_REFUSAL_SECONDS if refusals else self.call_timeout + 30.0
            done = wait_for(left.values(), seconds, FIRST_COMPLETED).done
            if refusals and not done:
                break
            for party in [each for each, future in left.items() if future in done] or [*left]:
                future = left.pop(party)
                hello = _Sent(party, Pending("hello", "control", 0, greeting, False), future)
                try:
                    self._talks[party].open(self._settle(hello))
                    answered(party, True, list(left))
                except FedmendError as error:
                    refusals[party] = error
                    answered(party, False, list(left))
        raise_first([refusals[party] for party in self._names if party in refusals])

    def _talk(self, party: str) -> Conversation:
        if party not in self._talks:
            raise ConfigError(
                f"there is no party {party!r}. Mend: name one of {', '.join(self._names)}"
            )
        return self._talks[party]

    def _ask(self, party: str, message: bytes) -> Future[bytes]:
        return self._courier.ask(party, message, self.call_timeout)

    def _send(self, party: str, asked: Pending) -> _Sent:
        self._open[party, asked.number] = asked
        return _Sent(party, asked, self._ask(party, asked.message))

    def _settle(self, sent: _Sent) -> Any:
        """The value of a reply; what an interrupt leaves open is noted when the engine closes."""
        try:
            value = self._noted(sent)
        except Exception:
            self._open.pop((sent.party, sent.asked.number), None)
            raise
        self._open.pop((sent.party, sent.asked.number), None)
        return value

    def _noted(self, sent: _Sent) -> Any:
        """The value of a reply, noted as it crossed; errors and silence are noted as well."""
        talk, asked = self._talks[sent.party], sent.asked
        try:
            answer = self._answer(sent.party, asked.name, sent.future)
        except PartyAbsent:
            talk.unanswered(asked)
            raise
        return talk.settle(asked, answer)

    def _answer(self, party: str, name: str, future: Future[bytes]) -> bytes:
        try:
            # The relay ends a call on time; this is for a relay that does not.
            return future.result(self.call_timeout + 30.0)
        except FutureTimeout:
            raise PartyAbsent(
                party, f"did not answer {name} within {self.call_timeout:.0f} s"
            ) from None
        except PartyAbsent as error:
            raise PartyAbsent(party, error.reason, name) from error


# ---------------------------------------------------------------- opening one

Waiting = Callable[[list[str]], None]


def connected(admin: Path, wait_seconds: float) -> list[str]:
    """The parties that are connected to the server now."""
    session = _login(admin, wait_seconds)
    try:
        return session.clients()
    finally:
        session.close()


@dataclass
class _Job:
    """One party's job: its number at the server, where its relay will call, and the link then."""

    party: str
    ears: socket.socket
    id: str = ""
    link: Link | None = None
    refused: str = ""


@dataclass
class Opening:
    """What is open while an engine is being opened, and what its end must close.

    Every party has a job of its own: FLARE aborts a job when a party of it dies, and the others
    must live to hear of it. For each job the coordinator's process listens on a socket file that
    only its user can open; the job's process at the server, on the same machine, connects to it.

    kit: the coordinator's own. wait_seconds: for parties that are not connected yet, of whom
    `waiting` is told. keep_jobs: how many finished runs leave their jobs in the server's store.
    """

    kit: Path
    run: str
    wait_seconds: float
    keep_jobs: int
    waiting: Waiting | None
    jobs: list[_Job] = field(default_factory=list)
    scratch: Path = field(default_factory=lambda: _scratch())
    lock: TextIO | None = None
    admin: Any = None

    def engine(self, parties: Sequence[str], hello: Hello, **how: Any) -> FlareEngine:
        """Start the parties' jobs and say hello to them; `how` is the engine's."""
        try:
            return FlareEngine(self.links(parties), hello, ended=self.end, **how)
        except BaseException as error:
            self.end(str(error))
            raise
        finally:
            self.tidy()

    def links(self, parties: Sequence[str]) -> dict[str, Link]:
        """A link to every party; jobs that do not start are tried again while there is time."""
        # One run at a time: whatever else is listed as running is then known to be stale.
        taken = "another run uses these kits now. Mend: wait until it ends, or stop it"
        self.lock = held(self.kit / LOCK_FILE, taken)
        self.admin = _login(self.kit, self.wait_seconds)
        deadline = time.monotonic() + self.wait_seconds
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
                if time.monotonic() > deadline or crashes[job.party] == MAX_CRASHES:
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
        for stale in self.admin.jobs(over=False):
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
                    f"not connected to the server within {self.wait_seconds:.0f} s{also}{others}",
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
        name = re.sub(r"[^A-Za-z0-9_-]", "-", f"{self.run}-{party}-{len(self.jobs)}")
        path = write_job(self.scratch, name, str(address), party)
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
            note_finished(self.kit, [job.id for job in self.jobs if job.link is not None])
        parties = len({job.party for job in self.jobs})
        kept = self.keep_jobs * parties
        for each in to_forget(self.kit, self.admin.jobs(over=True), kept):
            self.admin.delete(each)


def _scratch() -> Path:
    """A folder of this user's for socket files, whose paths the system wants short."""
    found = Path(tempfile.mkdtemp(prefix="fedmend-"))
    if len(os.fsencode(found)) <= MAX_SCRATCH:
        return found
    found.rmdir()
    return Path(tempfile.mkdtemp(prefix="fedmend-", dir="/tmp"))


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


def _login(kit: Path, wait_seconds: float) -> Admin:
    try:
        from fedmend.federation.engines.flare.collab import Admin
    except ImportError as error:
        raise MissingExtra("nvflare", "flare", "a federation of several machines") from error
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return Admin(kit, ADMIN)
        except Exception as error:  # FLARE raises a dozen kinds for "not there (yet)"
            if time.monotonic() > deadline:
                raise PartyAbsent(SERVER, f"the FLARE server cannot be reached: {error}") from error
            time.sleep(1.0)
