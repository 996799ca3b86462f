"""The terminal of a party: asked before a run, and shown what is asked for and what leaves."""

from __future__ import annotations

import select
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.deploy.consent import TOO_LATE, give_answer, open_question
from fedmend.errors import ConfigError
from fedmend.federation.engines.flare.events import EVENTS_FILE, printable, read_events
from fedmend.federation.engines.flare.host import LEDGER_FOLDER
from fedmend.federation.ledger import Entry, read_line

if TYPE_CHECKING:
    from rich.console import Console

Line = tuple[float, str, str]  # when, what, and in which style
_COLOURS = {"info": "default", "refused": "yellow", "error": "red"}


class PartyScreen:
    """Prints the kit's events and ledger lines as they are written.

    answer: how a question is answered here; None where nobody sits. forget: drops what was typed
    before a question was there to be answered.
    """

    def __init__(
        self,
        kit: Path,
        console: Console,
        answer: Callable[[], bool | None] | None = None,
        forget: Callable[[], None] | None = None,
    ) -> None:
        self.kit = kit
        self.console = console
        self._answer = answer
        self._forget = forget
        self._asked = ""
        self._events_at = _size(kit / EVENTS_FILE)
        self._ledgers = {path: _size(path) for path in (kit / LEDGER_FOLDER).glob("*.jsonl")}

    def tick(self) -> None:
        """Show what is new, in the order in which it happened."""
        lines = [*self._new_events()]
        for path in sorted((self.kit / LEDGER_FOLDER).glob("*.jsonl")):
            lines += self._new_crossings(path)
        # The ledger writes alike crossings of a second as one line, after what came meanwhile.
        for line in sorted(lines, key=lambda each: each[0]):
            self._line(*line)
        self._question()

    def _new_events(self) -> Iterator[Line]:
        for event, offset in read_events(self.kit / EVENTS_FILE, self._events_at):
            self._events_at = offset
            yield event.time, event.words, _COLOURS.get(event.level, "default")

    def _new_crossings(self, path: Path) -> Iterator[Line]:
        with path.open("rb") as file:
            file.seek(self._ledgers.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._ledgers[path] = self._ledgers.get(path, 0) + len(line)
                try:
                    entry = read_line(line)
                except ValueError:
                    yield time.time(), f"a damaged line in {path.name}", "red"
                    continue
                if entry.is_crossing:
                    yield entry.time, crossing_words(entry), "yellow" if entry.note else "dim"

    def _question(self) -> None:
        question = open_question(self.kit)
        if question is None:
            self._asked = ""
            return
        if question.run != self._asked:
            self._asked = question.run
            if self._forget is not None:
                self._forget()
            how = "[y/N] " if self._answer else "(fedmend party allow | refuse)"
            self._line(question.asked, f"may the coordinator {question.words}? {how}", "bold")
        if self._answer is not None:
            said = self._answer()
            if said is not None:
                self._give(said)

    def _give(self, said: bool) -> None:
        try:
            give_answer(self.kit, said)
        except ConfigError:  # the time for it ran out, or the coordinator left, at this very moment
            self._line(time.time(), TOO_LATE, "yellow")

    def _line(self, when: float, words: str, style: str) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(when))
        self.console.print(
            f"{clock}  {words}", style=style, markup=False, highlight=False, soft_wrap=True
        )


def keyboard_answer() -> bool | None:
    """A line typed by now: yes or no; None while nothing was typed."""
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    if not ready:
        return None
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def forget_typed() -> None:
    """A yes that was typed before the question was asked is no answer to it."""
    termios.tcflush(sys.stdin, termios.TCIFLUSH)


def crossing_words(entry: Entry) -> str:
    """A line of the ledger as a screen shows it."""
    times = f" ×{entry.count:,}" if entry.count > 1 else ""
    what = f"{entry.kind} {entry.shape} {entry.dtype}".strip()
    note = f" ({entry.note})" if entry.note else ""
    arrow = "→" if entry.receiver == "coordinator" else "←"
    line = f"{arrow} {entry.call}: {what}, {entry.bytes:,} bytes{times}{note}"
    return printable(line).replace("\n", " ")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
