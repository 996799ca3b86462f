"""The courier: the coordinator's end of the link. Requests go out with a ticket, replies come back.

A party that does not answer is absent: when the relay says so, when it has been silent for too
long (pings go to every party all the time, also while it works), or when the link itself is gone.
"""

from __future__ import annotations

import itertools
import logging
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from fedmend.errors import PartyAbsent, WireError
from fedmend.federation.engines.flare.link import ABSENT, OK, Frame, Link
from fedmend.federation.engines.flare.messages import request

logger = logging.getLogger(__name__)

SECONDS = struct.Struct("<d")
BEAT = 2.0
SLOW = 30.0


class Courier:
    """Carries requests to parties over one link, and knows who is there."""

    def __init__(self, link: Link, names: Sequence[str], *, stall_seconds: float) -> None:
        self._link = link
        self._stall = stall_seconds
        self._tickets = itertools.count(1)
        self._open: dict[int, tuple[str, Future[bytes], float]] = {}
        self._lock = threading.Lock()
        self._heard = dict.fromkeys(names, time.monotonic())
        self._absent: dict[str, str] = {}
        self._pings: dict[int, str] = {}
        self._over = threading.Event()
        threading.Thread(target=self._receive, name="fedmend-receive", daemon=True).start()
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
        try:
            self._link.send(Frame(ticket, OK, party, SECONDS.pack(seconds) + payload))
        except OSError as error:
            self._all_absent(f"the link to the job broke: {error.strerror}")
        return future

    def close(self) -> None:
        self._over.set()
        self._link.close()

    # ------------------------------------------------------------------ threads

    def _receive(self) -> None:
        while True:
            try:
                frame = self._link.receive()
            except WireError as error:
                logger.error("%s", error)
                frame = None
            if frame is None:
                if not self._over.is_set():
                    self._all_absent(
                        "the job's process at the server ended (server killed, stopped, or the "
                        "job aborted)"
                    )
                return
            with self._lock:
                pinged = self._pings.pop(frame.ticket, None)
                party, future, _ = self._open.pop(frame.ticket, ("", None, 0.0))
                if frame.status == OK and (pinged or party):
                    self._heard[pinged or party] = time.monotonic()
            if frame.status == ABSENT and party:
                self._gone(party, frame.payload.decode())
            if future is not None and not future.done():
                if frame.status == OK:
                    future.set_result(frame.payload)
                else:
                    future.set_exception(PartyAbsent(party, frame.payload.decode()))

    def _beat(self) -> None:
        told: set[int] = set()
        while not self._over.wait(min(BEAT, self._stall / 4)):
            now = time.monotonic()
            with self._lock:
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
                    if now - since > SLOW and ticket not in told
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
        try:
            payload = SECONDS.pack(self._stall) + request("ping")
            self._link.send(Frame(ticket, OK, party, payload))
        except OSError as error:
            self._all_absent(f"the link to the job broke: {error.strerror}")

    # ------------------------------------------------------------------ absence

    def _gone(self, party: str, reason: str) -> None:
        with self._lock:
            self._absent.setdefault(party, reason)
            waiting = [t for t, (who, _, _) in self._open.items() if who == party]
            futures = [self._open.pop(ticket)[1] for ticket in waiting]
        for future in futures:
            if not future.done():
                future.set_exception(PartyAbsent(party, reason))

    def _all_absent(self, reason: str) -> None:
        for party in list(self._heard):
            self._gone(party, reason)
