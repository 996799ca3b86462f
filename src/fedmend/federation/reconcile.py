"""Comparing ledgers: what the coordinator wrote down against what a party did.

Both sides write the same crossings, each at its own time and with its own windows. Sessions have a
name and messages a number that both know; so crossings are counted by session and by what they
were (and, if they stand on lines of their own, by message), and the counts must be equal.

What a crash explains is as narrow. A call that was never answered leaves a note at the
coordinator; it explains the request of that very message, its answer, and, of the loop's kinds,
what the party may have had in memory when it died: messages after the last it wrote down, of the
last seconds of that session. A coordinator that was killed has not closed its session, and may
lack as much of its end. Nothing explains what another session lacks, or an earlier part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fedmend.federation.ledger import (
    CLOSED,
    COORDINATOR,
    HEAD,
    LOOP_KINDS,
    SESSION,
    UNANSWERED,
    WINDOW_SECONDS,
    Chain,
    Entry,
    Head,
)

CLOCK_SECONDS = 300.0
LAST_SECONDS = 3 * WINDOW_SECONDS
"""How long a window that died with its process may have been open, by the other side's clock."""


class Crossing(NamedTuple):
    """What a crossing was, without when."""

    sender: str
    receiver: str
    call: str
    kind: str
    shape: str
    dtype: str
    bytes: int
    sealed_for: str
    note: str

    @property
    def route(self) -> tuple[str, str, str]:
        return self.sender, self.receiver, self.call

    @property
    def in_loop(self) -> bool:
        """Whether it may share a line, which is not on disk at once."""
        return self.kind in LOOP_KINDS and not self.note

    @property
    def words(self) -> str:
        what = f"{self.kind} {self.shape} {self.dtype}".strip()
        note = f", {self.note}" if self.note else ""
        return f"{self.sender} → {self.receiver} {self.call}: {what}, {self.bytes:,} bytes{note}"


@dataclass
class Tally:
    """The lines of crossings that are alike."""

    lines: list[Entry] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(line.count for line in self.lines)

    @property
    def last_message(self) -> int:
        return max((line.until_message for line in self.lines), default=0)

    @property
    def times(self) -> tuple[float, float]:
        first = min((line.time for line in self.lines), default=0.0)
        return first, max((line.until for line in self.lines), default=0.0)

    def after(self, message: int, since: float) -> int:
        """How many of them were in later messages than this one, and not before a time."""
        return sum(
            line.count
            if line.message > message
            else min(line.count, max(0, line.until_message - message))
            for line in self.lines
            if line.until >= since
        )


Cell = tuple[int, Crossing]  # the number of the message; 0 for what may share a line


@dataclass(frozen=True)
class Difference:
    """One thing on which two ledgers differ. grade: "missing", "altered", "time", "explained"."""

    party: str
    grade: str
    words: str


def reconcile(
    ours: Iterable[Entry], party: str, theirs: Iterable[Entry], *, clock: float = CLOCK_SECONDS
) -> list[Difference]:
    """Every difference between the coordinator's ledger and a party's; none when they agree."""
    mine = _sessions(entry for entry in ours if party in (entry.sender, entry.receiver))
    other = _sessions(theirs)
    found: dict[tuple[str, str], list[int]] = {}
    for name in sorted({*mine, *other}):
        for grade, words, here, there in _Session(mine.get(name), other.get(name, [])).compare(
            party, clock
        ):
            counts = found.setdefault((grade, words), [0, 0])
            counts[0] += here
            counts[1] += there
    return [
        Difference(party, grade, words if grade in ("altered", "time") else f"{words}: {at}")
        for (grade, words), (here, there) in found.items()
        for at in [f"{here:,} at {COORDINATOR}, {there:,} at {party}"]
    ]


def compare_heads(chains: Mapping[str, Chain]) -> tuple[list[Difference], int]:
    """Whether each ledger still has the heads that others noted of it; how many were compared."""
    found, compared = [], 0
    for holder, chain in chains.items():
        for entry in chain.entries:
            head = Head.of(entry)
            if head is None or entry.sender not in chains or entry.sender == holder:
                continue
            compared += 1
            if not chains[entry.sender].holds(head):
                words = (
                    f"{holder} was told that line {head.lines:,} of the ledger of {entry.sender} "
                    f"has the hash {head.hash[:12]}…; "
                )
                has = chains[entry.sender].heads.get(head.lines)
                words += f"it has {has[:12]}…" if has else "there is no such line"
                found.append(Difference(entry.sender, HEAD, words))
    return found, compared


def _sessions(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Entries by the name of the session they belong to, in their order."""
    found: dict[str, list[Entry]] = {}
    name = ""
    for entry in entries:
        word, _, rest = entry.note.partition(" ")
        if word == SESSION:
            name = rest
        found.setdefault(name, []).append(entry)
    return found


class _Side:
    """One session as one side wrote it down."""

    def __init__(self, entries: list[Entry]) -> None:
        crossings = [entry for entry in entries if entry.is_crossing]
        self.cells: dict[Cell, Tally] = {}
        for entry in crossings:
            self.cells.setdefault(_cell(entry), Tally()).lines.append(entry)
        in_loop = [entry.until_message for entry in crossings if _cell(entry)[1].in_loop]
        # What shares a line is written at once: whatever came later was in memory only.
        self.written = max(in_loop, default=0)
        self.last_message = max((entry.until_message for entry in crossings), default=0)
        ended = max((entry.until for entry in crossings), default=0.0)
        self.last_seconds = ended - LAST_SECONDS


class _Session:
    """One session as both sides wrote it down.

    ours: None where the coordinator has no such session at all.
    """

    def __init__(self, ours: list[Entry] | None, theirs: list[Entry]) -> None:
        self.here, self.there = _Side(ours or []), _Side(theirs)
        self.unanswered = {
            (entry.message, entry.call) for entry in ours or [] if entry.note == UNANSWERED
        }
        self.unheard = set(self.unanswered)  # each explains one answer
        self.killed = ours is not None and all(entry.note != CLOSED for entry in ours)

    def compare(self, party: str, clock: float) -> Iterator[tuple[str, str, int, int]]:
        """Grade, words and both counts of every difference."""
        more_here, more_there = [], []
        for cell in sorted({*self.here.cells, *self.there.cells}):
            here = self.here.cells.get(cell, Tally())
            there = self.there.cells.get(cell, Tally())
            if here.count > there.count:
                more_here.append((cell, here, there))
            elif there.count > here.count:
                more_there.append((cell, here, there))
            elif any(abs(a - b) > clock for a, b in zip(here.times, there.times, strict=True)):
                words = f"{cell[1].words}: the times lie more than {clock:.0f} s apart"
                yield "time", words, here.count, there.count
        for cell, here, there in more_here:
            crossing = cell[1]
            twin = next((each for each in more_there if _same_call(each[0], cell)), None)
            if here.count - there.count <= self._lost_there(cell, here):
                yield "explained", crossing.words, here.count, there.count
            elif twin is None:
                yield "missing", crossing.words, here.count, there.count
            else:
                more_there.remove(twin)
                words = f"{COORDINATOR} has {crossing.words}; {party} has {twin[0][1].words}"
                yield "altered", words, here.count, there.count
        for cell, here, there in more_there:
            lacking = there.count - here.count
            lost = lacking <= self._lost_here(cell, there, lacking)
            yield "explained" if lost else "missing", cell[1].words, here.count, there.count

    def _lost_there(self, cell: Cell, here: Tally) -> int:
        """How many of these a crash explains that the party's ledger lacks."""
        message, crossing = cell
        asked = crossing.sender == COORDINATOR
        if crossing.in_loop and self.unanswered:
            return here.after(self.there.written, self.here.last_seconds)
        if asked and (message, crossing.call) in self.unanswered:
            return 1  # a request that did not arrive
        # A coordinator that was killed had written what it was about to ask.
        unasked = self.here.last_message > self.there.last_message
        was_last = here.last_message == self.here.last_message
        return int(asked and self.killed and unasked and was_last)

    def _lost_here(self, cell: Cell, there: Tally, lacking: int) -> int:
        """How many of these a crash explains that the coordinator's ledger lacks."""
        message, crossing = cell
        answered = crossing.receiver == COORDINATOR
        last = there.last_message
        if crossing.in_loop:
            # What a killed coordinator had not written, and answers that did not arrive.
            if self.killed:
                return there.after(self.here.written, self.there.last_seconds)
            if not answered:
                return 0
            late = [each for each in self.unheard if each[1] == crossing.call and each[0] <= last]
            self.unheard.difference_update(late[:lacking])
            return len(late)
        if answered and (message, crossing.call) in self.unanswered:
            return 1
        return int(answered and self.killed and message == self.there.last_message)


def _cell(entry: Entry) -> Cell:
    crossing = Crossing(*(getattr(entry, name) for name in Crossing._fields))
    return 0 if crossing.in_loop else entry.message, crossing


def _same_call(one: Cell, other: Cell) -> bool:
    """Of the same call, and of the same message as far as that is known."""
    return one[1].route == other[1].route and (one[0] == other[0] or not one[0] * other[0])
