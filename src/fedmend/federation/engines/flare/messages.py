"""What coordinator and party say to each other: requests, replies, and errors, all as wire bytes.

A request names an operation; `start`, `call` and `stop` carry the session's secret and a number
that is used once. A reply holds a value or an error. Errors keep their type across the wire, but
not what a party's policy holds back: a value seen in a table, or the words of an exception that
somebody else's code raised over a party's rows.
"""

from __future__ import annotations

from typing import Any

from fedmend.errors import DataError, FedmendError, PartyFailed, Refused, WireError
from fedmend.federation import wire
from fedmend.federation.engines.flare.events import printable
from fedmend.federation.kinds import KINDS
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
    if isinstance(error, (PartyFailed, Refused)):
        error.party = party
    return error


def _text_or_none(value: Any) -> str | None:
    return printable(value) if isinstance(value, str) else None
