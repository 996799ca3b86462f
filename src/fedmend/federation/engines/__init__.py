"""Engines run the same workers in different places.

An engine knows how to start a worker at a party, call it, and write down what crossed. `local`
keeps all sites in this process; `flare` puts each site on a machine of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fedmend.federation.ledger import Ledger
    from fedmend.federation.worker import Exposure, Worker


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one party: which worker under which handle, what of it, arguments by name."""

    party: str
    handle: str
    worker: type[Worker]
    exposure: Exposure
    kwargs: dict[str, Any]

    @property
    def method(self) -> str:
        return self.exposure.method

    @property
    def name(self) -> str:
        """How the ledger names it."""
        return f"{self.worker.worker_name()}.{self.method}"


class Engine(Protocol):
    """What a federation needs of an engine.

    apart: whether parties and coordinator are processes of their own, from whom there is
    something to hide.
    """

    ledger: Ledger
    apart: bool

    @property
    def names(self) -> tuple[str, ...]: ...

    def start(self, party: str, worker: str, scope: str, params: dict[str, Any]) -> str: ...

    def call(self, call: Call) -> Any: ...

    def call_all(self, calls: list[Call]) -> list[Any]: ...

    def stop(self, party: str, handle: str) -> None: ...

    def close(self, reason: str = "finished") -> None: ...


def by_kind(kwargs: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Arguments grouped into one message per kind; a call without arguments is one control."""
    if not kinds or not kwargs:
        return {"control": dict(kwargs)}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in kwargs.items():
        groups.setdefault(kinds.get(name, "control"), {})[name] = value
    return groups


def raise_first(errors: list[Exception]) -> None:
    """Raise the first of several errors, which names the others."""
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"also: {other}")
        raise errors[0]
