"""What coordinator and party say to each other: requests, replies, and errors, all as wire bytes.

A request names an operation; `start`, `call` and `stop` carry the session's secret and a number
that is used once. A reply holds a value or an error. Errors keep their type across the wire, but
not what a party's policy holds back: a value seen in a table, or the words of an exception that
somebody else's code raised over a party's rows.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedmend.errors import DataError, FedmendError, PartyFailed, Refused, WireError
from fedmend.federation import wire
from fedmend.federation.engines import Call, by_kind
from fedmend.federation.engines.flare.events import printable
from fedmend.federation.kinds import KINDS
from fedmend.federation.ledger import (
    COORDINATOR,
    ERROR,
    NOTHING,
    REFUSED,
    SESSION,
    UNANSWERED,
    Ledger,
)
from fedmend.federation.policy import Policy

OPERATIONS = ("hello", "start", "call", "stop", "ping", "ledger", "bye")
# Settings of a run fit into a few kilobytes; more is a mistake or an attack.
MAX_HELLO_BYTES = 1 << 20


def request(operation: str, **content: Any) -> bytes:
    return wire.encode({"op": operation, **content})


def read_request(message: bytes, *, max_bytes: int = wire.MAX_BYTES) -> dict[str, Any]:
    """The content of a request; `WireError` for anything else."""
    content = wire.decode(message, max_bytes=max_bytes)
    if not isinstance(content, dict) or content.get("op") not in OPERATIONS:
        raise WireError("a message that is no request of a known operation")
    return content


def part(content: dict[str, Any], name: str, kind: type) -> Any:
    """A part of a request that must be there and of this type."""
    value = content.get(name)
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise WireError(
            f"{content.get('op')}: {name} must be {kind.__name__}, got "
            f"{type(value).__name__}. Mend: install the same fedmend version at all parties"
        )
    return value


def reply(value: Any, opens: str = "") -> bytes:
    """An answer; `opens` is the kind of what becomes readable by it, for the other's ledger."""
    return wire.encode({"value": value, "opens": opens} if opens else {"value": value})


def error_measure(answer: bytes) -> wire.Measure:
    """How the reply that brings an error stands in the ledger: as so many bytes of words."""
    return wire.Measure("", "text", len(answer), "")


def error_reply(error: BaseException, *, policy: Policy) -> bytes:
    content = describe(error, policy)
    # A file's name may hold bytes that are no text; an error about it must arrive all the same.
    return wire.encode(
        {
            "error": {
                key: value.encode(errors="backslashreplace").decode()
                for key, value in content.items()
                if isinstance(value, str)
            }
        }
    )


def read_reply(message: bytes, party: str, call: str) -> Any:
    """The value of a reply, or its error raised."""
    return read_answer(message, party, call)[0]


def read_answer(message: bytes, party: str, call: str) -> tuple[Any, str]:
    """The value of a reply and the kind that it opens, or its error raised."""
    content = wire.decode(message)
    if isinstance(content, dict) and "value" in content:
        opens = content.get("opens", "")
        return content["value"], opens if opens in KINDS else ""
    if isinstance(content, dict) and isinstance(content.get("error"), dict):
        raise rebuild(content["error"], party, call)
    raise WireError(f"party {party!r} answered {call} with something that is no reply")


# ---------------------------------------------------------------- who asks


class Pending(NamedTuple):
    """A request, and how the ledger names what comes back.

    noted: whether its value is a crossing; an error always is.
    """

    name: str
    kind: str
    number: int
    message: bytes
    noted: bool = True


class Conversation:
    """The asking side of a session with one party: numbers what it sends, and notes what crosses.

    How messages get there and back is the engine's.
    """

    def __init__(self, party: str, ledger: Ledger) -> None:
        self.party = party
        self.ledger = ledger
        self.session = b""
        """The party's secret for it; empty before its answer to hello."""
        self._numbers = itertools.count(1)

    def open(self, said: Any) -> None:
        """Take what the party answered to hello."""
        if not isinstance(said, dict):
            raise WireError(f"party {self.party!r} answered hello with a {type(said).__name__}")
        self.session = part({"op": "hello", **said}, "session", bytes)

    def note_session(self) -> None:
        begun = f"{SESSION} {session_name(self.session)}"
        self.ledger.record(COORDINATOR, self.party, SESSION, "control", NOTHING, note=begun)

    def message(self, operation: str, number: int | None = None, **content: Any) -> bytes:
        """A request that is no crossing of its own."""
        number = next(self._numbers) if number is None else number
        return request(operation, session=self.session, number=number, **content)

    def start(self, worker: str, scope: str, params: dict[str, Any]) -> Pending:
        message = {"worker": worker, "scope": scope, "params": params}
        return self._pending("start", f"{worker}.start", "control", {"control": message}, message)

    def call(self, call: Call) -> Pending:
        groups = by_kind(call.kwargs, call.exposure.takes)
        content = {"handle": call.handle, "method": call.method, "kwargs": call.kwargs}
        return self._pending("call", call.name, call.exposure.kind, groups, content)

    def stop(self, handle: str) -> Pending:
        number = next(self._numbers)
        message = self.message("stop", number, handle=handle)
        return Pending("stop", "control", number, message, noted=False)

    def _pending(
        self, operation: str, name: str, kind: str, groups: Mapping[str, Any], content: Any
    ) -> Pending:
        """Write down what is about to be sent, by its kinds."""
        number = next(self._numbers)
        message = self.message(operation, number, **content)
        for each, group in groups.items():
            size = wire.measure(group)
            self.ledger.record(COORDINATOR, self.party, name, each, size, message=number)
        return Pending(name, kind, number, message)

    def settle(self, asked: Pending, answer: bytes) -> Any:
        """The value of a reply, noted as it crossed; an error is noted as well, and raised."""
        try:
            value, opens = read_answer(answer, self.party, asked.name)
        except FedmendError as error:
            refused = isinstance(error, Refused)
            kind, note = (asked.kind, REFUSED) if refused else ("control", ERROR)
            self._note(asked, kind, error_measure(answer), note)
            raise
        if asked.noted:
            self._note(asked, asked.kind, wire.measure(value), opens=opens)
        return value

    def unanswered(self, asked: Pending) -> None:
        self._note(asked, asked.kind, NOTHING, UNANSWERED)

    def _note(
        self, asked: Pending, kind: str, size: wire.Measure, note: str = "", opens: str = ""
    ) -> None:
        name, number = asked.name, asked.number
        self.ledger.record(self.party, COORDINATOR, name, kind, size, note, number, opens)


def session_name(session: bytes) -> str:
    """By which both ledgers call a session, whose own bytes are a secret."""
    return hashlib.sha256(b"fedmend session" + session).hexdigest()[:12]


# ---------------------------------------------------------------- errors


def describe(error: BaseException, policy: Policy) -> dict[str, Any]:
    """An error as it may leave the party."""
    open_rows = "row" in policy.may_leave
    if isinstance(error, DataError):
        value = error.value
        if value is not None and not open_rows:
            value = "withheld; the party's own log has it"
        return {
            "type": type(error).__name__,
            "text": error.problem,
            "column": error.column,
            "value": None if value is None else str(value),
            "mend": error.mend,
        }
    if isinstance(error, PartyFailed) and not open_rows:
        return {"type": "PartyFailed", "text": told(error.__cause__ or error)}
    if isinstance(error, FedmendError):
        return {"type": type(error).__name__, "text": str(error)}
    return {"type": "PartyFailed", "text": told(error)}


def told(error: BaseException) -> str:
    """An exception of somebody else's code, without words that may hold a party's values."""
    name = type(error).__name__
    if isinstance(error, FedmendError):
        return f"{name}: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{name}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"{name}: out of memory"
    return f"{name} {_place(error)}(what it says is in the party's own log)"


def _place(error: BaseException) -> str:
    trace, place = error.__traceback__, ""
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.startswith("fedmend."):
            place = f"in {module}, line {trace.tb_lineno} "
        trace = trace.tb_next
    return place


def _kinds() -> dict[str, type[FedmendError]]:
    """fedmend's own kinds of errors, by name: no other class is ever made from a reply."""
    found: dict[str, type[FedmendError]] = {}
    todo = [FedmendError]
    while todo:
        kind = todo.pop()
        if kind.__module__ == FedmendError.__module__:
            found[kind.__name__] = kind
        todo += kind.__subclasses__()
    return found


def rebuild(content: dict[str, Any], party: str, call: str) -> FedmendError:
    """The error of a reply, of its own type; what is unknown here becomes a PartyFailed."""
    name, text = str(content.get("type")), printable(str(content.get("text")))
    kind = _kinds().get(name, PartyFailed)
    if issubclass(kind, DataError):
        return kind(
            text,
            party=party,
            column=_text_or_none(content.get("column")),
            value=_text_or_none(content.get("value")),
            mend=_text_or_none(content.get("mend")),
        )
    if kind is PartyFailed:
        text = f"party {party!r} failed in {call}: {text}"
    # These classes build their text from parts that are already in it.
    error: FedmendError = kind.__new__(kind)
    Exception.__init__(error, text)
    if isinstance(error, PartyFailed):
        error.call = call
    error.party = party  # type: ignore[attr-defined]
    return error


def _text_or_none(value: Any) -> str | None:
    return printable(value) if isinstance(value, str) else None
