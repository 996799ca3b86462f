"""Links: local sockets between the coordinator's process and the parties' jobs, and who reads them.

    frame = ticket (u64) | status (u8) | length of name (u8) | length (u64) | name | payload

Towards the job the name is a party's. The socket is a file that only this user can open; nothing
of a payload is read on the way.

The courier is the coordinator's end of all links. A party that does not answer is absent: when the
relay says so, when it has been silent for too long (pings go to every party all the time, also
while it works), or when its link is gone.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

from fedmend.errors import PartyAbsent, WireError
from fedmend.federation.engines.flare.messages import request
from fedmend.federation.wire import MAX_BYTES

logger = logging.getLogger(__name__)

HEAD = struct.Struct("<QBBQ")
OK, ABSENT, READY = 0, 1, 2
SECONDS = struct.Struct("<d")
PING_SECONDS = 2.0
GRACE_SECONDS = 1.0
SLOW_SECONDS = 30.0


class Frame(NamedTuple):
    """One message over the link; `seconds` of patience ride in front of a request's payload."""

    ticket: int
    status: int
    name: str
    payload: bytes


class Link:
    """One end of the socket. Sending is safe from several threads; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, frame: Frame, *, wait: bool = True) -> bool:
        """Whether it was sent: without `wait`, not while another thread is sending."""
        name = frame.name.encode()
        head = HEAD.pack(frame.ticket, frame.status, len(name), len(frame.payload)) + name
        if not self._sending.acquire(blocking=wait):
            return False
        try:
            if len(frame.payload) < 1 << 16:
                self._end.sendall(head + frame.payload)
            else:
                self._end.sendall(head)
                self._end.sendall(frame.payload)
        finally:
            self._sending.release()
        return True

    def receive(self) -> Frame | None:
        """The next frame; None when the other end is gone."""
        head = self._exactly(HEAD.size)
        if head is None:
            return None
        ticket, status, width, length = HEAD.unpack(head)
        if length > MAX_BYTES:
            raise WireError(f"a frame of {length:,} bytes is over the limit of {MAX_BYTES:,}")
        name, payload = self._exactly(width), self._exactly(length)
        if name is None or payload is None:
            return None
        return Frame(ticket, status, name.decode(), bytes(payload))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the other end may have been quicker
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _exactly(self, count: int) -> bytearray | None:
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            try:
                got = self._end.recv_into(view[at:])
            except OSError:
                return None
            if not got:
                return None
            at += got
        return data


class Courier:
    """Carries requests to parties, each over its own link, and knows who is there."""

    def __init__(self, links: Mapping[str, Link], *, stall_seconds: float) -> None:
        self._links = dict(links)
        self._stall = stall_seconds
        self._tickets = itertools.count(1)
        self._open: dict[int, tuple[str, Future[bytes], float]] = {}
        self._lock = threading.Lock()
        self._heard = dict.fromkeys(links, time.monotonic())
        self._absent: dict[str, str] = {}
        self._pings: dict[int, str] = {}
        self._ended: set[str] = set()
        self._over = threading.Event()
        for party in links:
            threading.Thread(
                target=self._receive, args=(party,), name="fedmend-receive", daemon=True
            ).start()
        threading.Thread(target=self._beat, name="fedmend-beat", daemon=True).start()

    @property
    def absent(self) -> dict[str, str]:
        """Parties that are gone, each with the reason."""
        with self._lock:
            return dict(self._absent)

    def ask(self, party: str, payload: bytes, seconds: float) -> Future[bytes]:
        """Send a request; the future holds the reply's bytes, or PartyAbsent."""
        future: Future[bytes] = Future()
        ticket = next(self._tickets)
        with self._lock:
            reason = self._absent.get(party)
            if reason is None:
                self._open[ticket] = (party, future, time.monotonic())
        if reason is not None:
            future.set_exception(PartyAbsent(party, reason))
            return future
        self._send(Frame(ticket, OK, party, SECONDS.pack(seconds) + payload))
        return future

    def close(self) -> None:
        self._over.set()
        for link in self._links.values():
            link.close()

    # ------------------------------------------------------------------ threads

    def _receive(self, party: str) -> None:
        link = self._links[party]
        while True:
            try:
                frame = link.receive()
            except WireError as error:
                logger.error("%s", error)
                frame = None
            if frame is None:
                break
            with self._lock:
                self._pings.pop(frame.ticket, None)
                _, future, _ = self._open.pop(frame.ticket, ("", None, 0.0))
                if frame.status == OK:
                    self._heard[party] = time.monotonic()
            if frame.status == OK:
                if future is not None and not future.done():
                    future.set_result(frame.payload)
            elif future is not None:
                self._gone(party, frame.payload.decode())
                future.set_exception(PartyAbsent(party, frame.payload.decode()))
        if not self._over.is_set() and party not in self.absent:
            self._gone(party, self._why_gone(party))

    def _why_gone(self, party: str) -> str:
        """A party's job ended. When those of all end at once, it was the server."""
        with self._lock:
            self._ended.add(party)
        time.sleep(GRACE_SECONDS)
        if len(self._ended) == len(self._links) > 1:
            return "the jobs of all parties ended at once (the server was killed or stopped)"
        return "its job ended (its process died, or somebody stopped it)"

    def _beat(self) -> None:
        told: set[int] = set()
        beat, last = min(PING_SECONDS, self._stall / 4), time.monotonic()
        while not self._over.wait(beat):
            now = time.monotonic()
            # If this very process stood still, the silence was ours.
            asleep, last = max(0.0, now - last - 2 * beat), now
            with self._lock:
                if asleep:
                    self._heard = {party: heard + asleep for party, heard in self._heard.items()}
                waiting = set(self._pings.values())
                due = [p for p in self._heard if p not in waiting and p not in self._absent]
                silent = [
                    (party, now - heard)
                    for party, heard in self._heard.items()
                    if now - heard > self._stall and party not in self._absent
                ]
                slow = [
                    (ticket, party, now - since)
                    for ticket, (party, _, since) in self._open.items()
                    if now - since > SLOW_SECONDS and ticket not in told
                ]
            for ticket, party, since in slow:
                told.add(ticket)
                logger.warning("party %r has been working for %.0f s; waiting", party, since)
            for party, seconds in silent:
                self._gone(
                    party, f"has not answered for {seconds:.0f} s (stopped, cut off or hung)"
                )
            for party in due:
                self._ping(party)

    def _ping(self, party: str) -> None:
        ticket = next(self._tickets)
        with self._lock:
            self._pings[ticket] = party
        ping = Frame(ticket, OK, party, SECONDS.pack(self._stall) + request("ping"))
        # Waiting behind a message that nobody takes would end the watch over all parties.
        if not self._send(ping, wait=False):
            with self._lock:
                self._pings.pop(ticket, None)

    def _send(self, frame: Frame, *, wait: bool = True) -> bool:
        # A link that is gone is noticed by the thread that listens to it.
        with contextlib.suppress(OSError):
            return self._links[frame.name].send(frame, wait=wait)
        return True

    # ------------------------------------------------------------------ absence

    def _gone(self, party: str, reason: str) -> None:
        with self._lock:
            self._absent.setdefault(party, reason)
            waiting = [t for t, (who, _, _) in self._open.items() if who == party]
            futures = [self._open.pop(ticket)[1] for ticket in waiting]
        for future in futures:
            if not future.done():
                future.set_exception(PartyAbsent(party, reason))
        # Whoever is still sending to it would wait for ever.
        self._links[party].close()
