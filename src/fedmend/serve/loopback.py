"""Small servers for this machine alone: where they listen, whom they answer, how they end."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, Self

from fedmend.errors import ConfigError

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 64
SWITCH_SECONDS = 0.0005
_BODY = {"content-length", "transfer-encoding"}


class LoopbackHandler(BaseHTTPRequestHandler):
    """Answers, pages of errors too, under a policy of what a browser may do with them.

    app: the `LoopbackServer` that is asked, with whatever its kind can answer.
    """

    policy = "default-src 'none'; base-uri 'none'; form-action 'none'"
    timeout = 20.0  # of silence, after which a connection is closed
    app: Any

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", f"{self.policy}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def send(
        self,
        content: str | bytes,
        kind: str,
        status: HTTPStatus = HTTPStatus.OK,
        more: Mapping[str, str] | None = None,
    ) -> None:
        data = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: HTTPStatus, words: str) -> None:
        self.send_error(status, explain=words)

    def parse_request(self) -> bool:
        known = super().parse_request()
        if known and self.command != "POST" and _BODY & {each.lower() for each in self.headers}:
            self.close_connection = True  # what nobody reads would be taken for the next request
        return known

    def body(self, most: int) -> bytes | None:
        """What was posted; None where that has no length, or too much of it, and is refused."""
        length, *others = self.headers.get_all("Content-Length", [""])
        # A proxy that goes by other lengths would take what comes next for somebody else's.
        several = "Transfer-Encoding" in self.headers or any(each != length for each in others)
        if several or not (length.isascii() and length.isdigit()):
            wrong = HTTPStatus.LENGTH_REQUIRED, "the request needs one Content-Length"
        elif len(length) > len(str(most)) or int(length) > most:
            words = f"{length[:12]} bytes, at most {most:,}"
            wrong = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words
        else:
            return self.rfile.read(int(length))
        self.close_connection = True
        self.refuse(*wrong)
        return None

    def is_from_here(self) -> bool:
        """A page elsewhere could point a name of its own at this machine and read along."""
        host = (self.headers.get("Host") or "").partition(":")[0]  # without a port where that is 80
        return host in (LOOPBACK, "localhost")

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


class _Server(ThreadingHTTPServer):
    """One thread for each connection, and so many at once; the next ones wait to be accepted."""

    daemon_threads = True
    request_queue_size = 128  # a connection that finds no place is tried again after a second

    def __init__(self, most: int, *args: Any) -> None:
        self._free = threading.BoundedSemaphore(most)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._free.acquire()  # a silent connection is closed in time, and makes room
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # else whoever asked has gone away
            super().handle_error(request, client_address)


class Stoppable(Protocol):
    """What serves until it is stopped from another thread."""

    def serve(self) -> None: ...

    def stop(self) -> None: ...


class LoopbackServer:
    """A server on loopback; use it as a context, and `serve` until it is stopped."""

    most_connections: int | None = None
    """If other than usual."""

    def __init__(self, port: int, handler: type[LoopbackHandler]) -> None:
        mine = type(handler.__name__, (handler,), {"app": self})
        most = self.most_connections or MOST_CONNECTIONS
        try:
            self._server = _Server(most, (LOOPBACK, port), mine)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port {port} cannot be used: {getattr(error, 'strerror', None) or error}. "
                "Mend: --port another one"
            ) from error

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_port}/"

    def serve(self) -> None:
        """Answer until stopped."""
        self._server.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """End `serve` in another thread."""
        self._server.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.server_close()


def serve_until_told(server: Stoppable, tell: Callable[[], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; `tell` is called when both would be heard."""
    ended = threading.Event()

    def end(*_: object) -> None:
        if not ended.is_set():
            ended.set()
            # Not in the main thread: `shutdown` waits for the loop that it would interrupt.
            threading.Thread(target=server.stop).start()

    before = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
    # An answer goes through several threads: none is to wait for 5 ms while another one computes.
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        tell()
        server.serve()
    finally:
        sys.setswitchinterval(usual)
        for each, handler in before.items():
            signal.signal(each, handler)
