"""ServingEngine: the label party asks for itself. Its own site is here, its partners' elsewhere.

The same workers as in training answer. What a prediction asks of a partner crosses in one round:
calls that return nothing wait for the next one that does, and workers are kept between predictions
(with the keys they have exchanged), so that only new rows are told. There is no coordinator in
between: what a partner sends is for the label party, and mutual TLS takes it there.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fedmend.errors import FedmendError, PartyAbsent, Refused
from fedmend.federation import wire
from fedmend.federation.engines import Call, by_kind, raise_first
from fedmend.federation.engines.flare.host import Hello, session_name
from fedmend.federation.engines.flare.messages import (
    error_measure,
    part,
    read_answer,
    read_reply,
    request,
)
from fedmend.federation.engines.local import LocalEngine
from fedmend.federation.ledger import (
    COORDINATOR,
    ERROR,
    NOTHING,
    REFUSED,
    SESSION,
    UNANSWERED,
    Ledger,
)
from fedmend.federation.site import Site
from fedmend.serve.channel import Channel

SETUP_SECONDS = 600.0
KEPT_WORKERS = 4


@dataclass(frozen=True)
class _Item:
    """A message to a partner, and how the ledger names what comes back."""

    name: str
    kind: str
    number: int
    message: bytes


class _Kept:
    """Workers between predictions: one that was stopped is started again as it is."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, ...], list[str]] = defaultdict(list)
        self._of: dict[str, tuple[str, ...]] = {}

    def take(self, *key: str) -> str | None:
        return self._idle[key].pop() if self._idle[key] else None

    def note(self, handle: str, *key: str) -> str:
        self._of[handle] = key
        return handle

    def put(self, handle: str) -> bool:
        """Whether it is kept."""
        key = self._of.get(handle)
        if key is None or len(self._idle[key]) >= KEPT_WORKERS:
            self._of.pop(handle, None)
            return False
        self._idle[key].append(handle)
        return True

    def clear(self) -> list[str]:
        """Those that are idle; what is at work now is not kept afterwards either."""
        self._of.clear()
        idle = [handle for each in self._idle.values() for handle in each]
        self._idle.clear()
        return idle


class Remote:
    """A session with one partner."""

    def __init__(self, channel: Channel, hello: Hello, ledger: Ledger) -> None:
        self.party = channel.party
        self.channel = channel
        self.ledger = ledger
        self.told: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, list[_Item]] = defaultdict(list)
        self._kept = _Kept()
        self._keys: dict[str, Any] = {}
        until = time.monotonic() + SETUP_SECONDS
        (answer,) = channel.wait(channel.ask([request("hello", **hello.to_wire())], until), until)
        said = read_reply(answer, self.party, "hello")
        self.session = part({"op": "hello", **dict(said)}, "session", bytes)
        begun = f"{SESSION} {session_name(self.session)}"
        ledger.record(COORDINATOR, self.party, SESSION, "control", NOTHING, note=begun)

    def start(self, worker: str, scope: str, params: dict[str, Any], until: float) -> str:
        key = (worker, scope, repr(params))
        kept = self._kept.take(*key)
        if kept is not None:
            return kept
        message = {"worker": worker, "scope": scope, "params": params}
        item = self._item("start", f"{worker}.start", "control", {"control": message}, **message)
        return self._kept.note(str(self.settle(self.send([item], until), until)), *key)

    def stop(self, handle: str) -> None:
        if not self._kept.put(handle):
            self._keys.pop(handle, None)
            self._queue().append(self._item("stop", "stop", "control", {}, handle=handle))

    def begin(self, call: Call, until: float) -> tuple[list[_Item], Future[list[bytes]]] | None:
        """Send a call with all that waits for it; None where it can wait itself."""
        groups = by_kind(call.kwargs, call.exposure.takes)
        content = {"handle": call.handle, "method": call.method, "kwargs": call.kwargs}
        item = self._item("call", call.name, call.exposure.kind, groups, **content)
        self._queue().append(item)
        if _can_wait(call):
            return None
        return self.send([], until)

    def send(self, more: list[_Item], until: float) -> tuple[list[_Item], Future[list[bytes]]]:
        items = [*self._queue(), *more]
        self._queue().clear()
        return items, self.channel.ask([each.message for each in items], until)

    def settle(self, sent: tuple[list[_Item], Future[list[bytes]]], until: float) -> Any:
        """The value of the last reply; what came before it brought nothing, or an error."""
        items, future = sent
        try:
            answers = self.channel.wait(future, until)
        except PartyAbsent:
            for item in items:
                self._note(item, item.kind, NOTHING, UNANSWERED)
            raise
        value: Any = None
        for item, answer in zip(items, answers, strict=False):
            try:
                value, opens = read_answer(answer, self.party, item.name)
            except Refused:
                self._note(item, item.kind, error_measure(answer), REFUSED)
                raise
            except FedmendError as error:
                self._note(item, "control", error_measure(answer), ERROR)
                error.party = self.party  # type: ignore[attr-defined]
                raise
            self._note(item, item.kind, wire.measure(value), opens=opens)
            if item.name == TAKE:
                self.told[threading.get_ident()] = value
        if len(answers) < len(items):
            raise PartyAbsent(self.party, "it answered a part of what it was asked")
        return value

    def flush(self, until: float) -> None:
        """Send what waits, though nothing comes that needs it."""
        if self._queue():
            self.settle(self.send([], until), until)

    def key_of(self, handle: str) -> Any:
        return self._keys.get(handle)

    def keep_key(self, handle: str, key: Any) -> None:
        self._keys[handle] = key

    def forget(self) -> None:
        """What waits in this thread, of a prediction that was given up."""
        self._queue().clear()
        self.told.pop(threading.get_ident(), None)

    def _queue(self) -> list[_Item]:
        return self._waiting[threading.get_ident()]

    def _item(
        self, op: str, name: str, kind: str, groups: Mapping[str, Any], **content: Any
    ) -> _Item:
        number = next(self._numbers)
        for each, group in groups.items():
            size = wire.measure(group)
            self.ledger.record(COORDINATOR, self.party, name, each, size, message=number)
        message = request(op, session=self.session, number=number, **content)
        return _Item(name, kind, number, message)

    def _note(
        self, item: _Item, kind: str, size: wire.Measure, note: str = "", opens: str = ""
    ) -> None:
        number = item.number
        self.ledger.record(self.party, COORDINATOR, item.name, kind, size, note, number, opens)


TAKE = "ServeWorker.take"


def _can_wait(call: Call) -> bool:
    """Whether nothing is learnt from the reply, or not before the next one."""
    return call.exposure.signature.return_annotation in (None, "None") or call.name == TAKE


class ServingEngine:
    """Sites in this process, the label party's first, and remote ones while there is a session."""

    apart = False

    def __init__(self, sites: list[Site], partners: list[str], ledger: Ledger) -> None:
        self.local = LocalEngine(sites, ledger=ledger)
        self.remotes: dict[str, Remote] = {}
        self.ledger = ledger
        self._kept = {site.name: _Kept() for site in sites}
        here = [site.name for site in sites]
        self._names = (*here, *(name for name in partners if name not in here))
        self._until = threading.local()

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    @property
    def sites(self) -> dict[str, Site]:
        return self.local.sites

    def give(self, until: float | None) -> None:
        """How long calls of this thread may take from now on; None as long as a start takes."""
        self._until.at = until

    def forget(self) -> None:
        for remote in list(self.remotes.values()):
            remote.forget()

    def flush(self) -> None:
        """Let partners do all that they were asked to."""
        for remote in list(self.remotes.values()):
            remote.flush(self._deadline())

    def told(self, party: str) -> Any:
        """What a partner said when it took rows, once the round is over."""
        remote = self.remotes.get(party)
        return None if remote is None else remote.told.get(threading.get_ident())

    def start(self, party: str, worker: str, scope: str, params: dict[str, Any]) -> str:
        if party in self.local.sites:
            key = (worker, scope, repr(params))
            kept = self._kept[party].take(*key)
            if kept is not None:
                return kept
            return self._kept[party].note(self.local.start(party, worker, scope, params), *key)
        return self._remote(party).start(worker, scope, params, self._deadline())

    def call(self, call: Call) -> Any:
        return self.call_all([call])[0]

    def call_all(self, calls: list[Call]) -> list[Any]:
        """Partners work while this party does."""
        values: list[Any] = [None] * len(calls)
        errors: list[Exception] = []
        until, asked = self._deadline(), []
        for number, call in enumerate(calls):
            if call.party in self.local.sites:
                continue
            try:
                remote = self._remote(call.party)
                if call.method == "public_key" and remote.key_of(call.handle) is not None:
                    values[number] = remote.key_of(call.handle)
                    continue
                sent = remote.begin(call, until)
                if sent is not None:
                    asked.append((number, call, remote, sent))
            except FedmendError as error:
                errors.append(error)
        for number, call in enumerate(calls):
            if call.party in self.local.sites:
                values[number] = self._here(call)
        for number, call, remote, sent in asked:
            try:
                values[number] = remote.settle(sent, until)
                if call.method == "public_key":
                    remote.keep_key(call.handle, values[number])
            except FedmendError as error:
                errors.append(error)
        raise_first(sorted(errors, key=lambda error: not isinstance(error, PartyAbsent)))
        return values

    def _here(self, call: Call) -> Any:
        """A call to a site of this process; the label party's own crosses nothing but answers."""
        if call.party != self._names[0]:
            return self.local.call(call)
        value = self.local.sites[call.party].call(call.handle, call.method, call.kwargs)
        if call.exposure.kind == "prediction":
            size = wire.measure(value)
            self.ledger.record(call.party, COORDINATOR, call.name, call.exposure.kind, size)
        return value

    def stop(self, party: str, handle: str) -> None:
        if party in self.local.sites:
            if not self._kept[party].put(handle):
                self.local.stop(party, handle)
        elif party in self.remotes:
            self.remotes[party].stop(handle)

    def renew(self) -> None:
        """End the workers that are kept here: those they have met are gone."""
        for party, kept in self._kept.items():
            for handle in kept.clear():
                self.local.stop(party, handle)

    def close(self, reason: str = "finished") -> None:
        for remote in list(self.remotes.values()):
            remote.channel.close()
        self.remotes.clear()
        self.local.close(reason)

    def _deadline(self) -> float:
        until = getattr(self._until, "at", None)
        return time.monotonic() + SETUP_SECONDS if until is None else float(until)

    def _remote(self, party: str) -> Remote:
        remote = self.remotes.get(party)
        if remote is None:
            raise PartyAbsent(party, "down")
        return remote
