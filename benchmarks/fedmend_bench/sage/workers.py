"""Several processes work off one plan: who trains what, and who is at work beside whom.

The files are locks of the operating system: they are let go when a process ends, however it ends,
so that nothing has to be tidied up. A card that one process does not fill is better used by two.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any

__all__ = ["Clock", "Workers", "stop_kindly"]

LOCKS = "workers"


class Workers:
    """The processes that share a folder of runs; this one is counted among them when it begins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / LOCKS
        self.folder.mkdir(parents=True, exist_ok=True)
        self._own: tuple[Path, IO[Any]] | None = None

    @contextmanager
    def present(self) -> Iterator[Workers]:
        """While this lasts the others see this process."""
        number = 0
        while (lock := _lock(path := self.folder / f"at-work-{number}")) is None:
            number += 1
        self._own = path, lock
        try:
            yield self
        finally:
            self._own = None
            lock.close()

    def others(self) -> int:
        """How many processes are at work besides this one."""
        count = 0
        for path in self.folder.glob("at-work-*"):
            if self._own is not None and path == self._own[0]:
                continue
            lock = _lock(path)
            count += lock is None
            if lock is not None:
                lock.close()
        return count

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Is this run ours to train? While this lasts no other process gets it."""
        lock = _lock(self.folder / name)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.close()


def _lock(path: Path) -> IO[Any] | None:
    """The locked file, or None where another process (or an open file here) holds it."""
    file = path.open("a")
    try:
        import fcntl
    except ImportError:  # no such locks on this system: every process is alone
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


class Clock:
    """Is there time for another round? It is taken to last as long as the longer of the last two.

    until: by the monotonic clock; None is for ever. asked: set when the process is to end.
    """

    def __init__(self, until: float | None = None, asked: threading.Event | None = None) -> None:
        self.until = until
        self.asked = asked or threading.Event()
        self._last: tuple[float, ...] = ()

    def took(self, seconds: float) -> None:
        """A round took so long."""
        self._last = (*self._last[-1:], seconds)

    def late(self) -> bool:
        """Once it is too late for a round it stays so: the next run would not get far either."""
        ahead = time.monotonic() + max(self._last, default=0.0)
        if self.until is not None and ahead > self.until:
            self.asked.set()
        return self.asked.is_set()


@contextmanager
def stop_kindly() -> Iterator[threading.Event]:
    """An event that is set when the process is asked to end (SIGTERM): a round can be finished."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: FrameType | None) -> None:
        asked.set()

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
