"""FlareEngine: the coordinator's half. The same face as the local engine, over the courier."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

from fedmend._files import write_whole
from fedmend._version import __version__
from fedmend.errors import ConfigError, FedmendError, PartyAbsent, Refused, WireError
from fedmend.federation import wire
from fedmend.federation.engines import Call
from fedmend.federation.engines.flare.courier import Courier
from fedmend.federation.engines.flare.host import FINISHED, Hello, session_name
from fedmend.federation.engines.flare.link import Link
from fedmend.federation.engines.flare.messages import (
    error_measure,
    field,
    read_answer,
    read_reply,
    request,
)
from fedmend.federation.engines.local import by_kind
from fedmend.federation.ledger import (
    CLOSED,
    COORDINATOR,
    ERROR,
    NOTHING,
    REFUSED,
    REPRODUCIBLE,
    SESSION,
    UNANSWERED,
    Entry,
    Ledger,
    read_entries,
)
from fedmend.federation.wire_types import VERSION as WIRE_VERSION

logger = logging.getLogger(__name__)

_Sent = tuple[int, Future[bytes]]  # under which number, and where its answer will be


class FlareEngine:
    """Sites in processes of their own; a call is a message there and one back.

    links: one to each party. hello: how this run introduces itself.
    call_timeout: seconds a party may work on one call.
    stall_seconds: seconds without a sign of life after which a party counts as absent.
    ended: called once when the engine closes, to end the jobs, with the reason.
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
    ) -> None:
        self._names = tuple(links)
        self.hello = hello
        self.ledger = ledger
        self.call_timeout = call_timeout
        self.ledgers: Path | None = None
        self._ended = ended
        self._closed = False
        self._courier = Courier(links, stall_seconds=stall_seconds)
        self._numbers = {name: itertools.count(1) for name in self._names}
        self._sessions: dict[str, bytes] = {}
        try:
            self._say_hello()
        except BaseException as error:
            self.close(f"the run did not begin: {error}")
            raise
        for party, session in self._sessions.items():
            begun = f"{SESSION} {session_name(session)}"
            ledger.record(COORDINATOR, party, SESSION, "control", NOTHING, note=begun)
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
        self._known(party)
        call = f"{worker}.start"
        message = {"worker": worker, "scope": scope, "params": params}
        number = self._number(party)
        self.ledger.record(
            COORDINATOR, party, call, "control", wire.measure(message), message=number
        )
        future = self._send(party, "start", number, **message)
        return str(self._settle(party, call, "control", (number, future)))

    def call(self, call: Call) -> Any:
        return self._finish(call, self._begin(call))

    def call_all(self, calls: list[Call]) -> list[Any]:
        """All requests leave before the first reply is awaited; errors wait for all to end."""
        futures = [self._begin(call) for call in calls]
        values: list[Any] = []
        errors: list[Exception] = []
        for call, future in zip(calls, futures, strict=True):
            try:
                values.append(self._finish(call, future))
            except FedmendError as error:
                errors.append(error)
        if errors:
            # Who is gone explains more than who complains about it.
            errors.sort(key=lambda error: not isinstance(error, PartyAbsent))
            for other in errors[1:]:
                errors[0].add_note(f"also: {other}")
            raise errors[0]
        return values

    def stop(self, party: str, handle: str) -> None:
        if party in self.absent or self._closed:
            return
        try:
            self._value(party, "stop", self._send(party, "stop", handle=handle))
        except PartyAbsent as error:
            logger.warning("%s", error)

    def party_ledgers(self) -> dict[str, list[Entry]]:
        """What every party has written down of this run so far; absent parties are left out."""
        return {party: self._ledger_of(party) for party in self._names if party not in self.absent}

    def _ledger_of(self, party: str) -> list[Entry]:
        return read_entries(self._copy_of(party), f"the ledger of {party!r}")

    def _copy_of(self, party: str) -> bytes:
        """A party's ledger as it lies in its kit, byte for byte: its chain is in it."""
        copy = self._value(party, "ledger", self._send(party, "ledger"))
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
        farewells = [
            (party, self._send(party, "bye", reason=reason))
            for party in self._sessions
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
        for party in self._sessions:
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

    def _say_hello(self) -> None:
        greeting = request(
            "hello",
            version=__version__,
            wire=WIRE_VERSION,
            run=self.hello.run,
            title=self.hello.title,
            methods=list(self.hello.methods),
            seed=self.hello.seed,
            test_share=self.hello.test_share,
            resumed=self.hello.resumed,
            reproducible=self.hello.reproducible,
        )
        asked = {
            party: self._courier.ask(party, greeting, self.call_timeout) for party in self._names
        }
        refusals: list[FedmendError] = []
        for party, future in asked.items():
            try:
                answer = self._settle(party, "hello", "control", (0, future), noted=False)
                if not isinstance(answer, dict):
                    raise WireError(
                        f"party {party!r} answered hello with a {type(answer).__name__}"
                    )
                self._sessions[party] = field({"op": "hello", **answer}, "session", bytes)
            except FedmendError as error:
                refusals.append(error)
        if refusals:
            for other in refusals[1:]:
                refusals[0].add_note(f"also: {other}")
            raise refusals[0]

    def _begin(self, call: Call) -> _Sent:
        self._known(call.party)
        name = f"{call.label}.{call.method}"
        number = self._number(call.party)
        for kind, group in by_kind(call.kwargs, call.kinds).items():
            self.ledger.record(
                COORDINATOR, call.party, name, kind, wire.measure(group), message=number
            )
        content = {"handle": call.handle, "method": call.method, "kwargs": call.kwargs}
        return number, self._send(call.party, "call", number, **content)

    def _finish(self, call: Call, sent: _Sent) -> Any:
        name = f"{call.label}.{call.method}"
        return self._settle(call.party, name, call.reply_kind, sent)

    def _number(self, party: str) -> int:
        return next(self._numbers[party])

    def _send(
        self, party: str, operation: str, number: int | None = None, **content: Any
    ) -> Future[bytes]:
        if number is None:
            number = self._number(party)
        message = request(operation, session=self._sessions[party], number=number, **content)
        return self._courier.ask(party, message, self.call_timeout)

    def _settle(self, party: str, name: str, kind: str, sent: _Sent, *, noted: bool = True) -> Any:
        """The value of a reply, noted as it crossed; errors and silence are noted as well."""
        number, future = sent

        def note(kind: str, measure: wire.Measure, words: str = "", opens: str = "") -> None:
            self.ledger.record(party, COORDINATOR, name, kind, measure, words, number, opens)

        try:
            answer = self._answer(party, name, future)
        except PartyAbsent:
            note(kind, NOTHING, UNANSWERED)
            raise
        try:
            value, opens = read_answer(answer, party, name)
        except Refused:
            note(kind, error_measure(answer), REFUSED)
            raise
        except FedmendError:
            note("control", error_measure(answer), ERROR)
            raise
        if noted:
            note(kind, wire.measure(value), opens=opens)
        return value

    def _value(self, party: str, name: str, future: Future[bytes]) -> Any:
        return read_reply(self._answer(party, name, future), party, name)

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

    def _known(self, party: str) -> None:
        if party not in self._names:
            raise ConfigError(
                f"there is no party {party!r}. Mend: name one of {', '.join(self._names)}"
            )
