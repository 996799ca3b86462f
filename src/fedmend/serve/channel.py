"""Mutual TLS between the label party, which asks, and its partners, which answer.

A frame (`engines.flare.link`) carries a list of messages there and a list of replies back, so that
what a prediction needs of a partner is one round. Both sides show the certificate of their kit;
whoever has none of the federation's authority, or one of a name that is not admitted, is told so
and gets nothing. Connections stay open.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Protocol

from fedmend.deploy.provision import require_kit_valid
from fedmend.errors import ConfigError, FedmendError, PartyAbsent, WireError
from fedmend.federation import wire
from fedmend.federation.engines.flare.link import ABSENT, OK, Frame, Link

HANDSHAKE_SECONDS = 10.0
STALL_SECONDS = 30.0
"""After so long without the rest of a reply a connection is given up."""
IDLE_SECONDS = 0.5
"""So often one looks whether the other side of a silent connection is still there."""
ACCEPT_SECONDS = 0.05
_UNTIMELY = (9, 10)
"""OpenSSL's numbers of certificates that are not valid yet, or not any more."""
MAX_WAITING = 16
"""Connections that have not shown their certificate yet."""
MAX_OF_A_PARTY = 8
MAX_MESSAGES = 64


class Answering(Protocol):
    """What answers the messages of a connection, until that ends."""

    def answer(self, message: bytes) -> bytes: ...

    def close(self, reason: str) -> None: ...


def split_address(text: str, what: str = "address") -> tuple[str, int]:
    """Host and port of ``host:port``."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"{what} must be HOST:PORT, got {text!r}. Mend: for instance telco:8443")
    return host.strip("[]"), int(port)


def _context(kit: Path, *, server: bool) -> ssl.SSLContext:
    """As whose kit it is, believing the federation's authority and nobody else."""
    require_kit_valid(kit)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Kits name parties, not hosts: the name is compared with the party's (`_peer`).
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    startup = kit / "startup"
    try:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.load_verify_locations(startup / "rootCA.pem")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{startup} has no certificate that can be used: {error}. Mend: a kit of "
            "'fedmend provision'; 'fedmend party check' names what is wrong with it"
        ) from error
    return context


def _peer(end: ssl.SSLSocket) -> str:
    """The name in the other side's certificate."""
    shown = end.getpeercert() or {}
    subject: tuple[tuple[tuple[str, str], ...], ...] = shown.get("subject", ())  # type: ignore[assignment]
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if names else ""


def _steady(end: socket.socket) -> None:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


# ---------------------------------------------------------------- at the partner


class Listener:
    """Takes connections of the parties that are admitted, and answers them.

    open_for: makes for a party that connects what answers its messages, given how to hang up.
    told: who was refused.
    """

    def __init__(
        self,
        kit: Path,
        address: str,
        admitted: frozenset[str],
        open_for: Callable[[str, Callable[[], None]], Answering],
        told: Callable[[str], None],
    ) -> None:
        self._context = _context(kit, server=True)
        self._admitted, self._open_for, self._told = admitted, open_for, told
        host, port = split_address(address, "listen")
        try:
            self._ears = socket.create_server((host, port), backlog=64)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {address}: {error.strerror or error}. Mend: --listen another one"
            ) from error
        self._waiting = threading.Semaphore(MAX_WAITING)
        self._lock = threading.Lock()
        self._links: list[tuple[str, Link]] = []
        self._over = False

    @property
    def address(self) -> str:
        host, port = self._ears.getsockname()[:2]
        return f"{host}:{port}"

    def serve(self) -> None:
        """Answer until closed."""
        while not self._over:
            self._waiting.acquire()
            try:
                end, where = self._ears.accept()
            except OSError:  # closed; or of one connection, or for want of room: others may come
                self._waiting.release()
                time.sleep(ACCEPT_SECONDS)
                continue
            threading.Thread(
                target=self._greet, args=(end, where[0]), name="fedmend-asker", daemon=True
            ).start()

    def close(self) -> None:
        self._over = True
        with contextlib.suppress(OSError):
            self._ears.shutdown(socket.SHUT_RDWR)
        self._ears.close()
        for _, link in list(self._links):
            link.close()

    def _greet(self, end: socket.socket, where: str) -> None:
        try:
            party, link = self._admit(end, where)
        finally:
            self._waiting.release()
        if link is None:
            return
        with self._lock:
            self._links.append((party, link))
            theirs = [each for name, each in self._links if name == party]
        if len(theirs) > MAX_OF_A_PARTY:
            theirs[0].close()
        answering = self._open_for(party, link.close)
        try:
            self._talk(link, answering)
        except (FedmendError, OSError) as error:
            if not self._over:
                self._told(f"the connection of {party!r} ended: {error}")
        finally:
            link.close()
            answering.close("the connection ended")
            with self._lock:
                self._links.remove((party, link))

    def _admit(self, end: socket.socket, where: str) -> tuple[str, Link | None]:
        end.settimeout(HANDSHAKE_SECONDS)
        try:
            tls = self._context.wrap_socket(end, server_side=True)
        except (OSError, ssl.SSLError) as error:
            # One that is not TLS, or whose certificate this federation's authority did not sign.
            why = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error
            self._told(f"refused a connection from {where}: {why}")
            end.close()
            return "", None
        party = _peer(tls)
        if party not in self._admitted:
            known = ", ".join(sorted(self._admitted)) or "nobody"
            self._told(
                f"refused {party!r} from {where}: not a partner (partners in party.toml: {known})"
            )
            with contextlib.suppress(OSError, FedmendError):
                link = Link(tls)
                link.receive()  # a connection that is closed on unread words takes ours with it
                link.send(Frame(0, ABSENT, "", f"{party!r} is not a partner here".encode()))
            tls.close()
            return party, None
        tls.settimeout(None)
        _steady(tls)
        return party, Link(tls)

    @staticmethod
    def _talk(link: Link, answering: Answering) -> None:
        while (frame := link.receive()) is not None:
            replies: list[bytes] = []
            messages = wire.decode(frame.payload)
            if not isinstance(messages, list) or len(messages) > MAX_MESSAGES:
                raise WireError("a frame that is no list of messages")
            for message in messages:
                replies.append(answering.answer(message))
                if _is_error(replies[-1]):
                    break  # what follows rests on it
            link.send(Frame(frame.ticket, OK, "", wire.encode(replies)))


# How a reply that brings an error begins (`messages.error_reply`), without reading all of it.
_ERROR = wire.encode({"error": None})[wire.HEADER.size : -1]


def _is_error(reply: bytes) -> bool:
    return reply.startswith(_ERROR, wire.HEADER.size)


# ---------------------------------------------------------------- at the label party


_Job = tuple[bytes, float, Future[list[bytes]]]
"""Messages as they are sent, until when, and where the replies go."""


class Channel:
    """A connection to one partner: lists of messages there, lists of replies back.

    One is under way at a time. Whoever asks waits as long as it likes; a reply that comes later is
    read all the same, so that the connection goes on. One that ends while nobody asks is noticed.
    """

    def __init__(self, party: str, address: str, kit: Path) -> None:
        self.party = party
        host, port = split_address(address, f"partner {party}")
        context = _context(kit, server=False)
        try:
            end = socket.create_connection((host, port), HANDSHAKE_SECONDS)
            tls = context.wrap_socket(end, server_hostname=None)
        except ssl.SSLCertVerificationError as error:
            timely = error.verify_code not in _UNTIMELY
            wrong = "not of this federation's authority" if timely else "not valid now"
            raise PartyAbsent(
                party,
                f"whoever answers at {address} shows a certificate that is {wrong} "
                f"({error.verify_message})",
            ) from error
        except OSError as error:
            raise PartyAbsent(party, f"cannot be reached at {address}: {error}") from error
        shown = _peer(tls)
        if shown != party:
            tls.close()
            raise PartyAbsent(party, f"{address} is {shown!r}, by its certificate")
        tls.settimeout(STALL_SECONDS)
        _steady(tls)
        self._end, self._link = tls, Link(tls)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.gone = ""
        threading.Thread(target=self._carry, name=f"fedmend-{party}", daemon=True).start()

    def ask(self, messages: list[bytes], until: float) -> Future[list[bytes]]:
        """Replies to these messages; if they cannot be sent before `until` they are not."""
        future: Future[list[bytes]] = Future()
        if self.gone:
            future.set_exception(PartyAbsent(self.party, self.gone))
        else:
            self._jobs.put((wire.encode(messages), until, future))
            if self.gone:  # meanwhile, and nobody looks at what waits any more
                self._give_up_waiting()
        return future

    def wait(self, future: Future[list[bytes]], until: float) -> list[bytes]:
        try:
            return future.result(max(0.0, until - time.monotonic()))
        except FutureTimeout:
            raise PartyAbsent(self.party, "late") from None

    def close(self) -> None:
        self.gone = self.gone or "closed"
        self._jobs.put(None)
        self._link.close()

    def _carry(self) -> None:
        ticket = 0
        while (job := self._next_job()) is not None:
            payload, until, future = job
            if time.monotonic() > until:
                future.set_exception(PartyAbsent(self.party, "late"))
                continue
            ticket += 1
            try:
                self._link.send(Frame(ticket, OK, "", payload))
                future.set_result(self._replies(ticket))
            except (OSError, FedmendError) as error:
                self.gone = self.gone or _why(error)
                self._link.close()
                future.set_exception(PartyAbsent(self.party, self.gone))
                break
        self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                if (left := self._jobs.get_nowait()) is not None:
                    left[2].set_exception(PartyAbsent(self.party, self.gone))

    def _next_job(self) -> _Job | None:
        """None when there will be none: this side was closed, or the other one is gone."""
        while True:
            try:
                return self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                gone = self._ended_idle()
            if gone:
                self.gone = self.gone or gone
                self._link.close()
                return None

    def _ended_idle(self) -> str:
        """Why a connection on which nothing was asked is over; nothing while it is not."""
        try:
            self._end.settimeout(0.0)
            said = self._end.recv(1)
        except (ssl.SSLWantReadError, BlockingIOError):
            return ""  # TLS may have had something to say to itself
        except OSError as error:
            return _why(error)
        finally:
            with contextlib.suppress(OSError):
                self._end.settimeout(STALL_SECONDS)
        return "it spoke without being asked" if said else "the connection ended"

    def _replies(self, ticket: int) -> list[bytes]:
        frame = self._link.receive()
        if frame is None:
            raise WireError("the connection ended")
        if frame.status != OK:
            raise WireError(f"refused: {frame.payload.decode(errors='replace')[:200]}")
        replies = wire.decode(frame.payload)
        if frame.ticket != ticket or not isinstance(replies, list):
            raise WireError("it answered something else")
        return replies


def _why(error: Exception) -> str:
    if isinstance(error, WireError):
        return str(error)
    return getattr(error, "reason", None) or str(error) or type(error).__name__
