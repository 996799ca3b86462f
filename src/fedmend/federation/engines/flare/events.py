"""What happened at a party, in words and as JSON lines, for the party's own screen and log."""

from __future__ import annotations

import json
import logging
import threading
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

EVENTS_FILE = "events.jsonl"


def printable(text: str) -> str:
    """Text from elsewhere as it may stand on a screen.

    A control character could wipe out the line above, or paint one that nobody wrote.
    """
    return "".join(letter if _is_harmless(letter) else "\ufffd" for letter in text)


def _is_harmless(letter: str) -> bool:
    # Python calls spaces of other widths unprintable.
    return letter.isprintable() or letter == "\n" or unicodedata.category(letter) == "Zs"


@dataclass(frozen=True)
class Event:
    """One thing that happened: when, how grave, and what."""

    time: float
    level: str
    words: str


class Events:
    """Appends to a file; a disk that is full never stops what the event is about."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def note(self, words: str, level: str = "info") -> None:
        # Further lines are set in: one that starts at the margin is a line of ours.
        words = printable(words).replace("\n", "\n    ")
        event = Event(time.time(), level, words)
        log = logger.info if level == "info" else logger.warning
        log("%s", words)
        try:
            with self._lock:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(event)) + "\n")
        except OSError as error:
            logger.error("cannot write to %s: %s", self.path, error.strerror)


def read_events(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """Events from a position on, each with the position after it; a half-written line waits."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            try:
                content = json.loads(line)
                yield Event(**content), offset
            except (ValueError, TypeError):
                yield Event(0.0, "error", f"a damaged line in {path.name}"), offset
