"""ServingEngine: the label party asks for itself. Its own site is here, its partners' elsewhere.

The same workers as in training answer. What a prediction asks of a partner crosses in one round:
calls that return nothing wait for the next one that does, and workers are kept between predictions
(with the keys they have exchanged), so that only new rows are told. There is no coordinator in
between: what a partner sends is for the label party, and mutual TLS takes it there.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fedmend.errors import FedmendError, PartyAbsent
from fedmend.federation import wire
from fedmend.federation.engines import Call, raise_first
from fedmend.federation.engines.flare.host import Hello
from fedmend.federation.engines.flare.messages import (
    Conversation,
    Pending,
    read_reply,
    request,
)
from fedmend.federation.engines.local import LocalEngine
from fedmend.federation.ledger import COORDINATOR, Ledger
from fedmend.federation.site import Site
from fedmend.serve.channel import Channel

SETUP_SECONDS = 600.0
KEPT_WORKERS = 4
_Sent = tuple[list[Pending], Future[list[bytes]]]


class _Kept:
    """Workers between predictions: one that was stopped is started again as it is."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, ...], list[str]] = defaultdict(list)
        self._of: dict[str, tuple[str, ...]] = {}

    def take_or(self, start: Callable[[], str], *key: str) -> str:
        """An idle one of this kind, or a new one."""
        if self._idle[key]:
            return self._idle[key].pop()
        handle = start()
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
    """A session with one partner; keys: the public ones of its workers, by handle."""

    def __init__(self, channel: Channel, hello: Hello, ledger: Ledger) -> None:
        self.party = channel.party
        self.channel = channel
        self.told: dict[int, Any] = {}
        self._talk = Conversation(channel.party, ledger)
        self._waiting: dict[int, list[Pending]] = defaultdict(list)
        self._kept = _Kept()
        self.keys: dict[str, Any] = {}
        until = time.monotonic() + SETUP_SECONDS
        (answer,) = channel.wait(channel.ask([request("hello", **hello.to_wire())], until), until)
        self._talk.open(read_reply(answer, self.party, "hello"))
        self._talk.note_session()

    def start(self, worker: str, scope: str, params: dict[str, Any], until: float) -> str:
        def begin() -> str:
            self._queue().append(self._talk.start(worker, scope, params))
            return str(self.settle(self.send(until), until))

        return self._kept.take_or(begin, worker, scope, repr(params))

    def stop(self, handle: str) -> None:
        if not self._kept.put(handle):
            self.keys.pop(handle, None)
            self._queue().append(self._talk.stop(handle))

    def begin(self, call: Call, until: float) -> _Sent | None:
        """Send a call with all that waits for it; None where it can wait itself."""
        self._queue().append(self._talk.call(call))
        return None if _can_wait(call) else self.send(until)

    def send(self, until: float) -> _Sent:
        asked = [*self._queue()]
        self._queue().clear()
        return asked, self.channel.ask([each.message for each in asked], until)

    def settle(self, sent: _Sent, until: float) -> Any:
        """The value of the last reply; what came before it brought nothing, or an error."""
        asked, future = sent
        try:
            answers = self.channel.wait(future, until)
        except PartyAbsent:
            for each in asked:
                self._talk.unanswered(each)
            raise
        value: Any = None
        for each, answer in zip(asked, answers, strict=False):
            value = self._talk.settle(each, answer)
            if each.name == TAKE:
                self.told[threading.get_ident()] = value
        if len(answers) < len(asked):
            raise PartyAbsent(self.party, "it answered a part of what it was asked")
        return value

    def flush(self, until: float) -> None:
        """Send what waits, though nothing comes that needs it."""
        if self._queue():
            self.settle(self.send(until), until)

    def forget(self) -> None:
        """What waits in this thread, of a prediction that was given up."""
        self._queue().clear()
        self.told.pop(threading.get_ident(), None)

    def _queue(self) -> list[Pending]:
        return self._waiting[threading.get_ident()]


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
            return self._kept[party].take_or(
                lambda: self.local.start(party, worker, scope, params), worker, scope, repr(params)
            )
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
                if call.method == "public_key" and call.handle in remote.keys:
                    values[number] = remote.keys[call.handle]
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
                    remote.keys[call.handle] = values[number]
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
