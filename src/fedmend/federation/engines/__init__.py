"""Engines run the same workers in different places.

An engine knows how to start a worker at a party, call it, and write down what crossed. `local`
keeps all sites in this process; others put each site on a machine of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fedmend.federation.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one party: which worker, which method, arguments by name and by kind.

    in_turn: in one process, do not run beside the same call to another party.
    """

    party: str
    handle: str
    label: str
    method: str
    kwargs: dict[str, Any]
    kinds: Mapping[str, str]
    reply_kind: str
    in_turn: bool = False


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
