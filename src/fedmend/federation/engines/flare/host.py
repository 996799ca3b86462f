"""PartyHost: a Site behind messages. The party's half of the flare engine, without FLARE in it.

Bytes come in, bytes go out; nothing that comes in can raise. The host keeps the party's own
ledger and its events, admits one session, and takes every numbered request once. An error is an
answer too: it stands in the ledger, and there are only so many of them in a session, since what
works and what does not tells something of the rows.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmend._version import __version__
from fedmend.errors import DataError, FedmendError, Refused, WireError
from fedmend.federation import wire
from fedmend.federation.engines import by_kind
from fedmend.federation.engines.flare.events import EVENTS_FILE, Events
from fedmend.federation.engines.flare.messages import (
    MAX_HELLO_BYTES,
    error_measure,
    error_reply,
    part,
    read_request,
    reply,
    session_name,
)
from fedmend.federation.ledger import (
    COORDINATOR,
    ERROR,
    NOTHING,
    REFUSED,
    REPRODUCIBLE,
    SESSION,
    Ledger,
)
from fedmend.federation.policy import Policy
from fedmend.federation.randomness import COSTS
from fedmend.federation.site import Site
from fedmend.federation.wire import VERSION as WIRE_VERSION

logger = logging.getLogger(__name__)

LEDGER_FOLDER = "ledgers"
RUN_FOLDER = "runs"
FINISHED = "finished"
"""The reason for which a run ends when all is done."""
MAX_ERRORS, MAX_ERRORS_PER_COLUMN = 30, 3
"""After so many errors in one session nothing more is done for it."""


@dataclass(frozen=True)
class Hello:
    """How a run introduces itself to a party: nothing in it is code or a path to follow.

    run: names the party's folder for this run. title, organisation, person, study: words for the
    party's screen and its rules; who asks, as the coordinator says. methods: what
    the run is to be bound to, by names that the party looks up in its own installation.
    seed, test_share: so that all parties set the same people aside. resumed: it goes on with a run
    of this name, with the randomness that the party kept of it. reproducible: all random choices
    are to follow from the seed, which a party refuses unless its policy says otherwise.
    """

    run: str
    title: str
    methods: tuple[str, ...]
    seed: int
    test_share: float
    resumed: bool = False
    reproducible: bool = False
    organisation: str = ""
    person: str = ""
    study: str = ""

    def to_wire(self) -> dict[str, Any]:
        said = asdict(self) | {"methods": list(self.methods)}
        return {"version": __version__, "wire": WIRE_VERSION, **said}

    @classmethod
    def from_wire(cls, content: dict[str, Any]) -> Hello:
        return cls(
            run=_plain_name(part(content, "run", str)),
            title=part(content, "title", str)[:200],
            methods=tuple(str(each)[:80] for each in part(content, "methods", list)[:50]),
            seed=part(content, "seed", int),
            test_share=part(content, "test_share", float),
            resumed=part(content, "resumed", bool),
            reproducible=part(content, "reproducible", bool),
            organisation=part(content, "organisation", str)[:200],
            person=part(content, "person", str)[:200],
            study=part(content, "study", str)[:200],
        )


Opener = Callable[[Hello], Site]
_Task = tuple[dict[str, dict[str, Any]], Callable[[], Any]]
"""What came in, by its kinds, and what is to be done with it."""


class PartyHost:
    """One party's job process: opens its site on `hello`, and answers until `bye`.

    opener: makes the Site from the party's own file, or raises `Refused`.
    patience: seconds without a word from the coordinator after which `lost` is called.
    """

    def __init__(
        self,
        party: str,
        opener: Opener,
        folder: Path,
        *,
        patience: float = 180.0,
        lost: Callable[[], None] | None = None,
    ) -> None:
        self.party = party
        self.folder = folder
        self.events = Events(folder / EVENTS_FILE)
        self._opener = opener
        self._policy = Policy()
        self._site: Site | None = None
        self._ledger: Ledger | None = None
        self._session = b""
        self._title = ""
        self._taken = _Numbers()
        self._failures = _Failures(party)
        self._busy = ""
        self._heard = time.monotonic()
        self._over = threading.Event()
        self._reason = ""
        self._work = ThreadPoolExecutor(1, "fedmend-party")
        self._patience, self._lost = patience, lost
        threading.Thread(target=self._watch, name="fedmend-watch", daemon=True).start()

    # ------------------------------------------------------------------ what comes in

    def answer(self, message: bytes, caller: str = "server") -> bytes:
        """The reply to a request; whatever is wrong with it is in the reply."""
        self._heard = time.monotonic()
        asked = _Asked()
        try:
            if caller != "server":
                raise Refused(self.party, f"{caller} is not the coordinator", "ask through it")
            content = read_request(message)
            operation = content["op"]
            asked.call = _call_of(content)
            if operation == "ping":
                return reply({"busy": self._busy})
            if operation == "hello" and len(message) > MAX_HELLO_BYTES:
                raise WireError(f"a hello of {len(message):,} bytes")
            return self._in_turn(operation, content, asked)
        except Exception as error:
            return self._sorry(error, asked)

    def _in_turn(self, operation: str, content: dict[str, Any], asked: _Asked) -> bytes:
        # One thread for all work: torch keeps its thread teams per calling thread.
        return self._work.submit(self._do, operation, content, asked).result()

    def close(self, reason: str) -> None:
        """End the session: ledger to disk, workers gone."""
        if self._over.is_set():
            return
        self._over.set()
        self._reason = reason
        self._site = None
        if self._ledger is not None:
            try:
                self._ledger.close()
            except OSError as error:
                self.events.note(f"the ledger could not be closed: {error.strerror}", "error")
        if self._session:
            self.events.note(f"run {self._title!r} ended: {reason}")
        elif self._busy:  # with its answer to hello: somebody here may be asked
            self.events.note(f"run {self._title!r} did not begin: {reason}")

    @property
    def over(self) -> bool:
        """Whether the session was ended, for whatever reason."""
        return self._over.is_set()

    @property
    def finished(self) -> bool:
        """Whether the run ended because all was done."""
        return self._reason == FINISHED

    # ------------------------------------------------------------------ what is done

    def _do(self, operation: str, content: dict[str, Any], asked: _Asked) -> bytes:
        if operation == "hello":
            return reply(self._hello(content))
        site, ledger = self._admitted(content, asked)
        if operation in ("start", "call"):
            groups, work = (self._start if operation == "start" else self._call)(
                site, content, asked
            )
            for kind, group in groups.items():
                asked.came(ledger, self.party, kind, wire.measure(group))
            value = self._work_on(asked, work)
            answer = reply(value, asked.opens)
            asked.went(ledger, self.party, wire.measure(value))
            return answer
        if operation == "stop":
            site.stop(part(content, "handle", str))
            return reply(None)
        if operation == "ledger":
            ledger.flush()
            assert ledger.path is not None
            return reply(ledger.path.read_bytes())
        self.close(part(content, "reason", str))
        return reply(None)

    def _hello(self, content: dict[str, Any]) -> dict[str, Any]:
        if self._session:
            raise Refused(self.party, "a session is open already", "start a new job")
        theirs, wire_theirs = part(content, "version", str), part(content, "wire", int)
        if (theirs, wire_theirs) != (__version__, WIRE_VERSION):
            raise Refused(
                self.party,
                f"the coordinator runs fedmend {theirs} (wire {wire_theirs}), "
                f"this party fedmend {__version__} (wire {WIRE_VERSION})",
                "install the same fedmend version at all parties",
            )
        hello = Hello.from_wire(content)
        if self._ledger is not None:
            with contextlib.suppress(OSError):  # of a hello that failed, which has been told
                self._ledger.close()
        # What is wrong with the party's own table or file is an answer, and must be in a ledger.
        self._ledger = Ledger(self.folder / LEDGER_FOLDER / f"{hello.run}.jsonl")
        words = f"the coordinator asks for a run {hello.title!r}: {', '.join(hello.methods)}"
        self.events.note(words)
        self._title, self._busy = hello.title, "reading the table"
        try:
            site = self._opener(hello)
            if site.reproducible:  # whoever opened it, and whatever was asked for
                site.policy.admit_reproducible(self.party)
        finally:
            self._busy = ""
        if self.over:
            raise Refused(self.party, "the job has ended", "start the run anew (--resume)")
        self._policy = site.policy
        session = secrets.token_bytes(16)
        begun = f"{SESSION} {session_name(session)}"
        self._ledger.record(COORDINATOR, self.party, SESSION, "control", NOTHING, note=begun)
        if site.reproducible:
            self._ledger.record(
                COORDINATOR, self.party, "run", "control", NOTHING, note=REPRODUCIBLE
            )
            self.events.note(f"a reproducible run, as the policy allows: {COSTS}")
        site.ledger = self._ledger
        self._site, self._session = site, session
        site.note = self._note
        self.events.note(f"taking part in {hello.title!r} (session open)")
        return {"party": self.party, "version": __version__, "session": self._session}

    def _admitted(self, content: dict[str, Any], asked: _Asked) -> tuple[Site, Ledger]:
        """Site and ledger for a request of this session that has not been made before."""
        if self._site is None or self._ledger is None:
            raise Refused(self.party, "no session is open", "start the run anew (--resume)")
        if not secrets.compare_digest(part(content, "session", bytes), self._session):
            raise Refused(self.party, "the message belongs to another session", "say hello first")
        number = part(content, "number", int)
        if not self._taken.take(number):
            raise Refused(self.party, f"message {number} came before (a replay)", "send it once")
        asked.message = number
        return self._site, self._ledger

    @staticmethod
    def _start(site: Site, content: dict[str, Any], asked: _Asked) -> _Task:
        worker, scope = part(content, "worker", str), part(content, "scope", str)
        params = part(content, "params", dict)
        message = {"worker": worker, "scope": scope, "params": params}
        return {"control": message}, lambda: site.start(worker, scope, params)

    @staticmethod
    def _call(site: Site, content: dict[str, Any], asked: _Asked) -> _Task:
        handle, method = part(content, "handle", str), part(content, "method", str)
        kwargs = part(content, "kwargs", dict)
        exposure = site.exposure(handle, method)
        if exposure is not None:
            asked.kind, asked.opens = exposure.kind, exposure.opens
        groups = by_kind(kwargs, exposure.takes if exposure else {})
        return groups, lambda: site.call(handle, method, kwargs)

    def _work_on(self, asked: _Asked, work: Callable[[], Any]) -> Any:
        self._failures.admit()
        self._busy = asked.call
        try:
            return work()
        except Refused:
            raise
        except Exception as error:
            self._failures.count(error)
            raise
        finally:
            self._busy = ""

    def _note(self, words: str) -> None:
        """What the people here should know: on their screen, and in their ledger to themselves."""
        self.events.note(words)
        if self._ledger is not None:
            self._ledger.record(self.party, self.party, "note", "control", NOTHING, note=words)

    def _sorry(self, error: Exception, asked: _Asked) -> bytes:
        refused = isinstance(error, Refused)
        if not isinstance(error, FedmendError):
            logger.exception("a request could not be answered")
        if not (self.over and asked.call == "hello"):  # which was told when the job ended
            self.events.note(str(error), REFUSED if refused else ERROR)
        answer = error_reply(error, policy=self._policy)
        if self._ledger is not None:
            try:
                asked.went(
                    self._ledger, self.party, error_measure(answer), REFUSED if refused else ERROR
                )
            except OSError as full:
                self.events.note(f"the ledger cannot be written to: {full.strerror}", "error")
        return answer

    # ------------------------------------------------------------------ nobody there

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._over.wait(1.0):
            now = time.monotonic()
            # A machine that slept has heard nobody; that is not the coordinator's silence.
            self._heard += max(0.0, now - last - 2.0)
            last = now
            silent = now - self._heard
            # Before the session is open it may be people who are waited for, not work.
            if silent > self._patience and not (self._busy and self._session):
                self.events.note(
                    f"the coordinator has not been heard for {silent:.0f} s; the job ends here. "
                    "Mend: nothing to do; the run goes on with 'fedmend run --resume'",
                    "error",
                )
                self.close("the coordinator was lost")
                if self._lost is not None:
                    self._lost()


@dataclass
class _Asked:
    """A request as far as it was understood, and how it stands in the ledger.

    kind: of what would leave. opens: of what would become readable by it.
    """

    call: str = "message"
    kind: str = "control"
    opens: str = ""
    message: int = 0

    def came(self, ledger: Ledger, party: str, kind: str, measure: wire.Measure) -> None:
        ledger.record(COORDINATOR, party, self.call, kind, measure, message=self.message)

    def went(self, ledger: Ledger, party: str, measure: wire.Measure, note: str = "") -> None:
        # What was withheld keeps its kind; an error is words.
        kind = "control" if note == ERROR else self.kind
        opens = "" if note else self.opens
        ledger.record(party, COORDINATOR, self.call, kind, measure, note, self.message, opens)


def _call_of(content: dict[str, Any]) -> str:
    """How a request is named in the ledger, whatever is wrong with it."""
    operation = str(content["op"])
    if operation == "start":
        name = f"{content.get('worker')}.start"
    elif operation == "call":
        name = f"{str(content.get('handle')).partition('#')[0]}.{content.get('method')}"
    else:
        name = operation
    return name[:200]


class _Failures:
    """Counts the errors of a session: whoever makes them on purpose asks questions by them.

    Of a column that is named in an error there may be a few, and of all together some more: runs
    try what a table allows, and go on without it.
    """

    def __init__(self, party: str) -> None:
        self.party = party
        self.total = 0
        self.columns: Counter[str] = Counter()

    def count(self, error: Exception) -> None:
        self.total += 1
        if isinstance(error, DataError) and error.column is not None:
            self.columns[error.column] += 1

    def admit(self) -> None:
        worst = max(self.columns.values(), default=0)
        if self.total >= MAX_ERRORS or worst >= MAX_ERRORS_PER_COLUMN:
            raise Refused(
                self.party,
                "too many errors in this session; it does nothing more for it",
                "the party's own log names them; see to them, then go on with --resume",
            )


class _Numbers:
    """Which numbers were taken; consecutive ones are forgotten below a floor."""

    def __init__(self) -> None:
        self._floor = 0
        self._above: set[int] = set()

    def take(self, number: int) -> bool:
        if number <= self._floor or number in self._above or number > self._floor + 1_000_000:
            return False
        self._above.add(number)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.remove(self._floor)
        return True


def _plain_name(name: str) -> str:
    """A run's name as a folder of the party's: nothing that leads anywhere else."""
    if not re.fullmatch(r"[\w-][\w.-]{0,99}", name):
        raise WireError(f"{name!r} is no name for a run")
    return name
