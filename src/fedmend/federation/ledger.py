"""The ledger: what crossed between whom, written down as it happens.

One line of JSON per crossing. The thousands of alike crossings of a training loop (same sender,
receiver, call, kind, shape, dtype and bytes, within a second) share a line with a `count`, so
that the file stays readable and the counts stay exact. Whatever is not of such a loop's kinds is
on disk before the call goes on; lines are therefore not quite in the order of their times.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from fedmend.errors import DataError
from fedmend.federation.wire import Measure

COORDINATOR = "coordinator"
LOOP_KINDS = frozenset({"control", "embedding", "gradient"})
WINDOW_SECONDS = 1.0
# Notes of entries that are no crossing.
UNANSWERED, RESUMED, REPRODUCIBLE = "unanswered", "resumed", "reproducible"


@dataclass(frozen=True, slots=True)
class Entry:
    """`count` crossings of `bytes` each, from `time` until `until` (seconds since the epoch)."""

    time: float
    until: float
    sender: str
    receiver: str
    call: str
    kind: str
    shape: str
    dtype: str
    bytes: int
    count: int = 1
    sealed_for: str = ""
    note: str = ""

    @property
    def total_bytes(self) -> int:
        return self.bytes * self.count


class Ledger:
    """Append-only; in memory, and in a file of JSON lines when a path is given.

    >>> ledger = Ledger()
    >>> three_sums = Measure("3", "int64", 44, "")
    >>> ledger.record("bank", "coordinator", "Rank.sums", "statistic", three_sums)
    >>> [(entry.sender, entry.kind, entry.count) for entry in ledger.entries()]
    [('bank', 'statistic', 1)]
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self._lock = threading.Lock()
        self._closed_entries: list[Entry] = []
        # key -> [first time, last time, count]; one window at a time
        self._window: dict[tuple[Any, ...], list[float]] = {}
        self._window_ends = 0.0
        self._file: TextIO | None = None
        self.goes_on = False
        """Whether an earlier process began the file."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.goes_on = self.path.is_file() and self.path.stat().st_size > 0
            self._file = self.path.open("a", encoding="utf-8")
            if _is_cut_off(self.path):
                self._file.write("\n")  # what a killed process began must not spoil our first line

    def record(
        self, sender: str, receiver: str, call: str, kind: str, measure: Measure, note: str = ""
    ) -> None:
        now = time.time()
        key = (sender, receiver, call, kind, *measure, note)
        with self._lock:
            if now >= self._window_ends:
                self._close_window()
                self._window_ends = now + WINDOW_SECONDS
            if kind not in LOOP_KINDS or note:
                self._write([_entry(key, now, now, 1)])
                return
            tally = self._window.get(key)
            if tally is None:
                self._window[key] = [now, now, 1]
            else:
                tally[1] = now
                tally[2] += 1

    def flush(self) -> None:
        """Close the open window and bring every line to the disk."""
        with self._lock:
            self._close_window()
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())

    def close(self) -> None:
        try:
            self.flush()
        finally:
            with self._lock:
                file, self._file = self._file, None
                if file is not None:
                    file.close()

    def entries(self) -> list[Entry]:
        with self._lock:
            self._close_window()
            return list(self._closed_entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries())

    def __len__(self) -> int:
        """How many crossings, not how many lines."""
        return sum(entry.count for entry in self.entries())

    def kinds(self, *, sender: str | None = None, receiver: str | None = None) -> set[str]:
        return {
            entry.kind
            for entry in self.entries()
            if sender in (None, entry.sender) and receiver in (None, entry.receiver)
        }

    def total_bytes(self) -> int:
        return sum(entry.total_bytes for entry in self.entries())

    def _close_window(self) -> None:
        if not self._window:
            return
        fresh = [_entry(key, *tally) for key, tally in self._window.items()]
        self._window.clear()
        self._write(fresh)

    def _write(self, fresh: list[Entry]) -> None:
        self._closed_entries += fresh
        if self._file is not None:
            self._file.writelines(json.dumps(asdict(entry)) + "\n" for entry in fresh)
            self._file.flush()


def _is_cut_off(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _entry(key: tuple[Any, ...], first: float, last: float, count: float) -> Entry:
    sender, receiver, call, kind, shape, dtype, nbytes, sealed_for, note = key
    return Entry(
        time=first,
        until=last,
        sender=sender,
        receiver=receiver,
        call=call,
        kind=kind,
        shape=shape,
        dtype=dtype,
        bytes=nbytes,
        count=int(count),
        sealed_for=sealed_for,
        note=note,
    )


def read_ledger(path: str | Path) -> list[Entry]:
    """The entries of a ledger file; a damaged line is named, never skipped."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"no ledger at {path}", mend="name a run folder or its ledger.jsonl")
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entries.append(Entry(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{path}, line {number} is not a ledger entry: {error}",
                mend="the file was altered or cut off; take it from the party's own copy",
            ) from error
    return entries


def write_ledger(path: Path, entries: Iterable[Entry]) -> None:
    """A copy of a ledger, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in entries), "utf-8")
    part.replace(path)
