"""``fedmend watch``: the report of a run while it is going, on this machine alone."""

from __future__ import annotations

import html
import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedmend.errors import ConfigError, FedmendError
from fedmend.live import LIVE_FILE, LiveState, read_live
from fedmend.report.page import LEDGER_FILE, REPORT_FILE, render

__all__ = ["WatchServer", "live_page"]

LOOPBACK = "127.0.0.1"

# Asks every second whether there is news, and puts the new page in place of the old one; where a
# reader has scrolled to and what is unfolded stays.
_SCRIPT = """
<script>
(() => {
  let version = %s;
  const ask = async () => {
    try {
      const state = await (await fetch("state", {cache: "no-store"})).json();
      if (state.version !== version) {
        version = state.version;
        const text = await (await fetch(".", {cache: "no-store"})).text();
        const fresh = new DOMParser().parseFromString(text, "text/html");
        const open = [...document.querySelectorAll("details[open][id]")].map(each => each.id);
        for (const name of ["header", "main"])
          document.querySelector(name).replaceWith(fresh.querySelector(name));
        document.getElementById("live").replaceWith(fresh.getElementById("live"));
        for (const id of open) document.getElementById(id)?.setAttribute("open", "");
      }
      if (!state.finished) setTimeout(ask, 1000);
    } catch { document.getElementById("live").textContent = "fedmend watch has ended"; }
  };
  setTimeout(ask, 1000);
})();
</script>
"""


class WatchServer:
    """Serves one run's page on loopback; use it as a context, or `serve` until interrupted."""

    def __init__(self, run: Path, port: int = 0) -> None:
        self.run = run
        if not run.is_dir() and not self._part.is_dir():
            raise ConfigError(
                f"there is no run in {run}. Mend: name a run's folder, finished or not"
            )
        try:
            self._server = ThreadingHTTPServer((LOOPBACK, port), _handler(self))
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be used: {error.strerror}. Mend: --port another one"
            ) from error
        self._server.daemon_threads = True

    @property
    def _part(self) -> Path:
        return self.run.with_name(self.run.name + ".part")

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_port}/"

    def serve(self) -> None:
        """Answer until interrupted."""
        self._server.serve_forever(poll_interval=0.2)

    def __enter__(self) -> WatchServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def stop(self) -> None:
        """End `serve` in another thread."""
        self._server.shutdown()

    def close(self) -> None:
        self._server.server_close()

    # ------------------------------------------------------------------ what is served

    def state(self) -> dict[str, Any]:
        """Whether the run is finished, and a text that changes with the page."""
        finished = self.run / REPORT_FILE
        if finished.is_file() and not self._part.is_dir():
            return {"finished": True, "version": f"report {finished.stat().st_mtime_ns}"}
        try:
            return {"finished": False, "version": str((self._part / LIVE_FILE).stat().st_mtime_ns)}
        except OSError:
            return {"finished": False, "version": "not begun"}

    def page(self) -> str:
        """The report as it would be now."""
        state = self.state()
        if state["finished"]:
            text = (self.run / REPORT_FILE).read_text(encoding="utf-8")
            return _with_banner(text, "finished", state["version"])
        found = read_live(self._part)
        if found is None:
            return _with_banner(_EMPTY, "the run has not told anything yet", state["version"])
        return live_page(found, self._part / LEDGER_FILE, state["version"])


_EMPTY = (
    "<!doctype html><html lang=en><head><meta charset=utf-8><title>fedmend</title></head>"
    "<body><header></header><main></main></body></html>"
)


def live_page(found: LiveState, ledger: Path, version: str) -> str:
    """The page of a run that is going on."""
    from fedmend.federation.ledger import read_ledger

    try:
        entries = read_ledger(ledger)
    except FedmendError:
        entries = []  # its last line is being written
    told = found.stage
    if found.total:
        told += f": {found.title}, {found.done:,} of {found.total:,}"
    return _with_banner(render(found.record, entries), told, version)


def _with_banner(text: str, words: str, version: str) -> str:
    banner = f'<p id="live" class="note" role="status">{html.escape(words)}</p>'
    script = _SCRIPT % json.dumps(version)
    return text.replace("<body>", f"<body>{banner}", 1).replace("</body>", f"{script}</body>", 1)


def _handler(server: WatchServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page elsewhere could point a name of its own at this machine and read along.
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            if host not in (LOOPBACK, "localhost"):
                self.send_error(HTTPStatus.FORBIDDEN)
            elif self.path == "/":
                self._send(server.page(), "text/html; charset=utf-8")
            elif self.path == "/state":
                self._send(json.dumps(server.state()), "application/json")
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _send(self, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    return Handler
