"""The courier: the coordinator's end of every link. Requests go out, replies come back.

A party that does not answer is absent: when the relay says so, when it has been silent for too
long (pings go to every party all the time, also while it works), or when its link is gone.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future

from fedmend.errors import PartyAbsent, WireError
from fedmend.federation.engines.flare.link import OK, Frame, Link
from fedmend.federation.engines.flare.messages import request

logger = logging.getLogger(__name__)

SECONDS = struct.Struct("<d")
BEAT = 2.0
GRACE = 1.0
SLOW = 30.0


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
        time.sleep(GRACE)
        if len(self._ended) == len(self._links) > 1:
            return "the jobs of all parties ended at once (the server was killed or stopped)"
        return "its job ended (its process died, or somebody stopped it)"

    def _beat(self) -> None:
        told: set[int] = set()
        beat, last = min(BEAT, self._stall / 4), time.monotonic()
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
