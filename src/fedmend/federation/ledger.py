"""The ledger: what crossed between whom, written down as it happens.

One line of JSON per crossing. The thousands of alike crossings of a training loop (same sender,
receiver, call, kind, shape, dtype and bytes, within a second) share a line with a `count`, so
that the file stays readable and the counts stay exact. Whatever is not of such a loop's kinds is
on disk before the call goes on; lines are therefore not quite in the order of their times.

Lines are numbered and chained: each ends with the SHA-256 of the hash before it and of its own
text. A line that was taken out, changed, moved or put in is named by whoever reads the file
(:func:`inspect_ledger`). Cutting lines off the end, or writing all of it anew, gives another
*head* (how many lines, and the last hash); others have been told the head, and note it in theirs.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from io import FileIO
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from fedmend._html import html_table
from fedmend._json import typed
from fedmend.errors import DataError
from fedmend.federation.kinds import EXCHANGED
from fedmend.federation.wire import Measure

COORDINATOR = "coordinator"
LOOP_KINDS = EXCHANGED | {"control"}
WINDOW_SECONDS = 1.0
NOTHING = Measure("", "", 0, "")
# Notes of crossings that brought no value.
REFUSED, ERROR = "refused", "error"
# First words of notes of entries that are no crossing.
UNANSWERED, SESSION, CLOSED, CUT_OFF, HEAD = "unanswered", "session", "closed", "cut", "head"
REPRODUCIBLE = "reproducible"
_NO_CROSSING = frozenset({UNANSWERED, SESSION, CLOSED, CUT_OFF, HEAD, REPRODUCIBLE})
_BEGINNING = hashlib.sha256(b"fedmend ledger 1").hexdigest()
_HASH_KEY = ', "hash": "'
_HASH_PART = len(_HASH_KEY) + 64 + len('"}')


@dataclass(frozen=True, slots=True)
class Entry:
    """`count` crossings of `bytes` each, from `time` until `until` (seconds since the epoch).

    message, until_message: the numbers of the first and the last message that they were in, by
    which two machines count what they say in a session; 0 in one process.
    opens: the kind of what becomes readable by them, where that is not what crossed.
    """

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
    message: int = 0
    until_message: int = 0
    opens: str = ""

    @property
    def readable(self) -> str:
        """The kind of what the receiver can read in the end, once shares are added up."""
        return self.opens or self.kind

    @property
    def total_bytes(self) -> int:
        return self.bytes * self.count

    @property
    def is_crossing(self) -> bool:
        """Whether anything crossed; other entries say what happened to the ledger or a session.

        Nor does what a party notes for itself.
        """
        return self.sender != self.receiver and self.note.partition(" ")[0] not in _NO_CROSSING


class Head(NamedTuple):
    """What stands for a whole ledger: how many lines it has, and the hash of the last."""

    lines: int
    hash: str

    @property
    def note(self) -> str:
        """How another ledger notes it."""
        return f"{HEAD} {self.lines} {self.hash}"

    @classmethod
    def of(cls, entry: Entry) -> Head | None:
        """The head that an entry notes, if it notes one."""
        word, _, rest = entry.note.partition(" ")
        lines, _, digest = rest.partition(" ")
        return cls(int(lines), digest) if word == HEAD and lines.isdecimal() else None


class Ledger:
    """Append-only; in memory, and in a file of JSON lines when a path is given.

    >>> ledger = Ledger()
    >>> three_sums = Measure("3", "int64", 44, "")
    >>> ledger.record("bank", "coordinator", "Rank.sums", "statistic", three_sums)
    >>> [(entry.sender, entry.kind, entry.count) for entry in ledger.entries()]
    [('bank', 'statistic', 1)]

    remember: whether `entries` has all that was recorded; a service that runs for months has its
    file.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self.remember = True
        self._lock = threading.Lock()
        self._closed_entries: list[Entry] = []
        # key -> [first time, last time, count, first message, last message]; one window at a time
        self._window: dict[tuple[Any, ...], list[Any]] = {}
        self._window_ends = 0.0
        self._file: FileIO | None = None
        self._owed = b""  # what a full disk has not taken: later lines go on from it
        self._head = Head(0, _BEGINNING)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            cut_off = self._take_up(self.path)
            self._file = FileIO(self.path, "a")
            if cut_off:
                now, lost = time.time(), Measure("", "", cut_off, "")
                self._write([_entry(("", "", "ledger", "control", *lost, CUT_OFF, ""), now, now)])

    def record(
        self,
        sender: str,
        receiver: str,
        call: str,
        kind: str,
        measure: Measure,
        note: str = "",
        message: int = 0,
        opens: str = "",
    ) -> None:
        now = time.time()
        key = (sender, receiver, call, kind, *measure, note, opens)
        with self._lock:
            self._bring()  # what cannot be written down does not cross
            if now >= self._window_ends:
                self._close_window()
                self._window_ends = now + WINDOW_SECONDS
            if kind not in LOOP_KINDS or note:
                self._write([_entry(key, now, now, 1, message, message)])
                return
            tally = self._window.get(key)
            if tally is None:
                self._window[key] = [now, now, 1, message, message]
            else:
                tally[1] = now
                tally[2] += 1
                tally[4] = message

    def flush(self) -> None:
        """Close the open window and bring every line to the disk."""
        with self._lock:
            self._close_window()
            if self._file is not None:
                self._bring()
                os.fsync(self._file.fileno())

    def close(self) -> None:
        try:
            self.flush()
        finally:
            with self._lock:
                file, self._file = self._file, None
                if file is not None:
                    file.close()

    def head(self) -> Head:
        """The head of the file, with all that was recorded until now."""
        with self._lock:
            self._close_window()
            return self._head

    def entries(self) -> list[Entry]:
        with self._lock:
            self._close_window()
            return list(self._closed_entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries())

    def __len__(self) -> int:
        """How many crossings, not how many lines."""
        return sum(entry.count for entry in self.entries() if entry.is_crossing)

    def kinds(self, *, sender: str | None = None, receiver: str | None = None) -> set[str]:
        return {
            entry.kind
            for entry in self.entries()
            if sender in (None, entry.sender) and receiver in (None, entry.receiver)
        }

    def total_bytes(self) -> int:
        return sum(entry.total_bytes for entry in self.entries() if entry.is_crossing)

    def _repr_html_(self) -> str:
        """For notebooks: what went from whom to whom, by kind."""
        times: Counter[tuple[str, str, str]] = Counter()
        sizes: Counter[tuple[str, str, str]] = Counter()
        for entry in filter(attrgetter("is_crossing"), self):
            way = (entry.sender, entry.receiver, entry.kind)
            times[way] += entry.count
            sizes[way] += entry.total_bytes
        rows = [[*way, f"{times[way]:,}", f"{size:,}"] for way, size in sizes.most_common()]
        return html_table(["from", "to", "kind", "times", "bytes"], rows, title="What crossed")

    def _close_window(self) -> None:
        if not self._window:
            return
        fresh = [_entry(key, *tally) for key, tally in self._window.items()]
        self._window.clear()
        self._write(fresh)

    def _write(self, fresh: list[Entry]) -> None:
        if self.remember:
            self._closed_entries += fresh
        if self._file is not None:
            for entry in fresh:
                line, self._head = _line(self._head, entry)
                self._owed += line.encode()
            self._bring()

    def _bring(self) -> None:
        while self._file is not None and self._owed:
            self._owed = self._owed[self._file.write(self._owed) :]

    def _take_up(self, path: Path) -> int:
        """Go on with the chain of the file; how many bytes of a line that was cut off are gone.

        A process that is killed, or a disk that is full, may leave the beginning of a line.
        """
        if not path.is_file():
            return 0
        kept, lost = path.read_bytes(), 0
        last = kept.rpartition(b"\n")[2]
        if _is_beginning(last):
            lost = len(last)
            kept = kept[:-lost]
            os.truncate(path, len(kept))
        if kept:
            lines = kept.removesuffix(b"\n").split(b"\n")
            try:
                number, _, digest = _parsed(lines[-1])
            except ValueError as error:
                raise DataError(
                    f"{path}, line {len(lines):,}: is not a ledger entry: {error}",
                    mend="put the file elsewhere: what crosses from now on begins a new one",
                ) from error
            self._head = Head(number, digest)
            if not kept.endswith(b"\n"):
                with path.open("ab") as file:
                    file.write(b"\n")
        return lost


def _entry(
    key: tuple[Any, ...],
    first: float,
    last: float,
    count: int = 1,
    message: int = 0,
    until_message: int = 0,
) -> Entry:
    *crossing, sealed_for, note, opens = key
    rest = (count, sealed_for, note, message, until_message, opens)
    values: tuple[Any, ...] = (first, last, *crossing, *rest)
    return Entry(*values)


# ---------------------------------------------------------------- lines


_NUMBER = "number"
_FIELDS = tuple(each.name for each in fields(Entry))
_values = attrgetter(*_FIELDS)
_TEMPLATE = "{" + ", ".join(f'"{name}": %s' for name in (_NUMBER, *_FIELDS))


def _line(head: Head, entry: Entry) -> tuple[str, Head]:
    """The line of an entry after a head, and the head with it."""
    # As json.dumps writes it, in less time: a run on a small table has ten thousand lines.
    values = [
        encode_basestring_ascii(value) if isinstance(value, str) else repr(value)
        for value in _values(entry)
    ]
    text = _TEMPLATE % (head.lines + 1, *values)
    digest = _digest(head.hash, text)
    return f'{text}{_HASH_KEY}{digest}"}}\n', Head(head.lines + 1, digest)


def _digest(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()


def _is_beginning(last: bytes) -> bool:
    """Whether the bytes after the last end of a line are of a line that was being written."""
    begins = f'{{"{_NUMBER}": '.encode()
    is_ours = last.startswith(begins) or begins.startswith(last)
    return bool(last) and is_ours and not last.endswith(b'"}')


def _parsed(line: bytes) -> tuple[int, Entry, str]:
    """Number, entry and hash of a line, all of the type they must have; or `ValueError`."""
    try:
        content = json.loads(line.decode())
        if not isinstance(content, dict):
            raise ValueError("it is no object")
        number, digest = content.pop(_NUMBER), content.pop("hash")
        if type(number) is not int or not isinstance(digest, str):
            raise ValueError(f"{_NUMBER} and hash are not what they must be")
        for name, value in content.items():
            if not isinstance(value, str) and not 0 <= value < 1 << 62:
                raise ValueError(f"{name} must lie in 0 … 2^62, got {value}")
        entry = typed(Entry, content)
    except KeyError as error:
        raise ValueError(f"it has no {error.args[0]!r}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(str(error)[:200]) from error
    return number, entry, digest


_MEND = (
    "the file was altered or damaged; take it from a backup, or compare with the copies that "
    "others have ('fedmend ledger RUN --verify')"
)


# ---------------------------------------------------------------- reading


class Flaw(NamedTuple):
    """What is wrong with a line of a ledger file."""

    line: int
    words: str


@dataclass(frozen=True)
class Chain:
    """A ledger file as it was read: what its lines say, how they are chained, what is wrong."""

    entries: list[Entry]
    heads: dict[int, str]
    flaws: list[Flaw]

    @property
    def head(self) -> Head:
        return max((Head(*each) for each in self.heads.items()), default=Head(0, _BEGINNING))

    def holds(self, head: Head) -> bool:
        """Whether the ledger once had this head, and has it still."""
        return head.lines == 0 or self.heads.get(head.lines) == head.hash


def inspect_ledger(path: str | Path) -> Chain:
    """Read a ledger file and name every line that is not as it was written."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"no ledger at {path}", mend="name a run folder or its ledger.jsonl")
    return inspect_bytes(path.read_bytes())


def inspect_bytes(raw: bytes) -> Chain:
    """The same of a copy that somebody sent."""
    entries: list[Entry] = []
    flaws: list[Flaw] = []
    lines: list[tuple[int, int, str, str]] = []  # place in the file, number, hash, text
    ended = raw.count(b"\n")
    for at, line in enumerate(raw.removesuffix(b"\n").split(b"\n") if raw else [], 1):
        if at > ended and _is_beginning(line):
            flaws.append(Flaw(at, "was cut off while it was written (a kill, or a full disk)"))
            continue
        try:
            number, entry, digest = _parsed(line)
        except ValueError as error:
            flaws.append(Flaw(at, f"is not a ledger entry: {error}"))
            continue
        entries.append(entry)
        lines.append((at, number, digest, line.decode()))
    flaws += _broken_links(lines)
    heads = {number: digest for _, number, digest, _ in lines}
    return Chain(entries, heads, sorted(flaws))


def _broken_links(lines: list[tuple[int, int, str, str]]) -> Iterator[Flaw]:
    hashes = {0: _BEGINNING} | {number: digest for _, number, digest, _ in lines}
    seen: set[int] = set()
    last = 0
    for at, number, digest, text in lines:
        gone = [each for each in range(last + 1, number) if each not in hashes]
        if gone:
            which = f"number {gone[0]:,} is" if len(gone) == 1 else f"{len(gone):,} lines are"
            yield Flaw(at, f"{which} missing before it: it has number {number:,}")
        if number in seen:
            yield Flaw(at, f"has number {number:,}, which stands before it already")
        elif number != last + 1 + len(gone):
            yield Flaw(at, f"has number {number:,} and stands out of its place")
        before = hashes.get(number - 1)
        ending = f'{_HASH_KEY}{digest}"}}'
        if not text.endswith(ending) or (
            before is not None and _digest(before, text[:-_HASH_PART]) != digest
        ):
            yield Flaw(at, "was changed, or the one before it was: its hash does not follow")
        seen.add(number)
        last = number


def read_line(line: bytes) -> Entry:
    """The entry of one line, by itself; `ValueError` if it is none."""
    return _parsed(line)[1]


def read_ledger(path: str | Path) -> list[Entry]:
    """The entries of a ledger file; a line that is not as it was written is named, not skipped."""
    return _whole(inspect_ledger(path), str(path))


def read_entries(raw: bytes, whose: str) -> list[Entry]:
    """The entries of a copy that somebody sent."""
    return _whole(inspect_bytes(raw), whose)


def _whole(found: Chain, where: str) -> list[Entry]:
    if found.flaws:
        first, *more = found.flaws
        also = f" (and {len(more):,} more)" if more else ""
        raise DataError(f"{where}, line {first.line:,}: {first.words}{also}", mend=_MEND)
    return found.entries
