"""``fedmend watch``: the report of a run while it is going, on this machine alone."""

from __future__ import annotations

import html
import json
import threading
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fedmend.errors import ConfigError, FedmendError
from fedmend.federation.ledger import read_ledger
from fedmend.flow.live import LIVE_FILE, LiveState, read_live
from fedmend.report.page import (
    LEDGER_FILE,
    REPORT_FILE,
    content_policy,
    render,
    with_policy,
)
from fedmend.report.record import RECORD_FILE, read_stages
from fedmend.serve.loopback import LoopbackHandler, LoopbackServer

# Asks every second whether there is news, and puts the new page in place of the old one; where a
# reader has scrolled to and what is unfolded stays.
_SCRIPT = """
(() => {
  const ask = async () => {
    try {
      const state = await (await fetch("state", {cache: "no-store"})).json();
      if (state.version !== document.getElementById("live").dataset.version) {
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
"""


GONE = "gone"


class WatchServer(LoopbackServer):
    """Serves one run's page on loopback; use it as a context, or `serve` until interrupted.

    patience: a page is drawn anew after this many times the time that drawing it took.
    """

    patience = 3.0

    def __init__(self, run: Path, port: int = 0) -> None:
        self.run = run
        if not self._is_there():
            raise ConfigError(
                f"there is no run in {run}. Mend: name a run's folder, finished or not"
            )
        self._drawn = ("", "")
        self._again = 0.0
        self._lock = threading.Lock()
        super().__init__(port, _Handler)

    @property
    def _part(self) -> Path:
        return self.run.with_name(self.run.name + ".part")

    def _is_there(self) -> bool:
        return self.run.is_dir() or self._part.is_dir()

    def state(self) -> dict[str, Any]:
        """Whether the run is finished, and a text that changes with the page."""
        if not self._is_there():
            return {"finished": True, "version": GONE}
        finished = self.run / RECORD_FILE
        if finished.is_file() and not self._part.is_dir():
            return {"finished": True, "version": f"record {finished.stat().st_mtime_ns}"}
        if self._drawn[0] and time.monotonic() < self._again:
            return {"finished": False, "version": self._drawn[0]}
        try:
            return {"finished": False, "version": str((self._part / LIVE_FILE).stat().st_mtime_ns)}
        except OSError:
            return {"finished": False, "version": "not begun"}

    def page(self) -> str:
        """The report as it would be now; drawn once for all who look, as long as nothing is new."""
        with self._lock:
            version = self.state()["version"]
            if self._drawn[0] != version:
                began = time.monotonic()
                self._drawn = (version, self._draw())
                ended = time.monotonic()
                # The page is as new as it can be without taking the run's time.
                self._again = ended + self.patience * (ended - began)
            return self._drawn[1]

    def _draw(self) -> str:
        state, report = self.state(), self.run / REPORT_FILE
        if state["version"] == GONE:
            return _with_banner(_EMPTY, f"the run's folder is gone: {self.run}", GONE)
        if not state["finished"]:
            found = read_live(self._part)
            if found is not None:
                return live_page(found, self._part, state["version"])
            return _with_banner(_EMPTY, "the run has not reported anything yet", state["version"])
        if not report.is_file():
            words = "finished, and the run leaves the report out"
            return _with_banner(_EMPTY, words, state["version"])
        text = report.read_text(encoding="utf-8", errors="replace")
        return _with_banner(text, "finished", state["version"])


_EMPTY = (
    "<!doctype html><html lang=en><head><meta charset=utf-8><title>fedmend</title></head>"
    "<body><header></header><main></main></body></html>"
)


def live_page(found: LiveState, folder: Path, version: str) -> str:
    """The page of a run that is going on in a folder: stages, ledger and record so far."""
    try:
        entries = read_ledger(folder / LEDGER_FILE)
    except FedmendError:
        entries = []  # its last line is being written
    words, share = found.stage, None
    if found.total:
        words += f": {found.title}, {found.done:,} of {found.total:,}"
        share = min(1.0, found.done / found.total)
    page = render(found.record, entries, read_stages(folder))
    return _with_banner(page, words, version, share)


def _with_banner(text: str, words: str, version: str, share: float | None = None) -> str:
    bar = "" if share is None else f'<progress max="1" value="{share:.3f}"></progress>'
    about = f'id="live" class="note" role="status" data-version="{html.escape(version)}"'
    banner = f"<p {about}>{html.escape(words)}{bar}</p>"
    text = with_policy(text, content_policy([_SCRIPT]))
    script = f"<script>{_SCRIPT}</script>"
    return text.replace("<body>", f"<body>{banner}", 1).replace("</body>", f"{script}</body>", 1)


class _Handler(LoopbackHandler):
    policy = content_policy([_SCRIPT])

    def do_GET(self) -> None:
        if not self.is_from_here():
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path == "/":
            self.send(self.app.page(), "text/html; charset=utf-8")
        elif self.path == "/state":
            self.send(json.dumps(self.app.state()), "application/json")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)
