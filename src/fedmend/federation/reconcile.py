"""Comparing ledgers: what the coordinator wrote down against what a party did.

Both sides write the same crossings, each at its own time and with its own windows; so crossings
are counted by what they were, and the counts must be equal. A call that was never answered leaves
a note at the coordinator, which explains a request the party did not see, an answer that did not
arrive, and the second of loop entries that a killed process had not yet written. So does the note
of a coordinator that went on with the ledger of a process before it, which may have been killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from fedmend.federation.ledger import (
    COORDINATOR,
    LOOP_KINDS,
    RESUMED,
    UNANSWERED,
    WINDOW_SECONDS,
    Entry,
)

__all__ = ["Difference", "reconcile"]

Span = tuple[float, float]
CLOCK_SECONDS = 300.0
REACH = 3 * WINDOW_SECONDS
LONGEST_SILENCE = 600.0


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
    def words(self) -> str:
        what = f"{self.kind} {self.shape} {self.dtype}".strip()
        note = f", {self.note}" if self.note else ""
        return f"{self.sender} → {self.receiver} {self.call}: {what}, {self.bytes:,} bytes{note}"


@dataclass
class Tally:
    """How often, and from when until when."""

    count: int = 0
    first: float = float("inf")
    last: float = 0.0
    spans: list[tuple[float, int]] = field(default_factory=list)

    def within(self, gaps: Iterable[Span]) -> int:
        """How many of them ended in one of these spans of time."""
        gaps = list(gaps)
        return sum(
            count
            for until, count in self.spans
            if any(first <= until <= last for first, last in gaps)
        )


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
    ours = [entry for entry in ours if party in (entry.sender, entry.receiver)]
    theirs = list(theirs)
    silences = [entry for entry in ours if entry.note == UNANSWERED]
    gaps = [_gap(silence, theirs, REACH) for silence in silences]
    crossed = [entry for entry in ours if entry.note not in (UNANSWERED, RESUMED)]
    deaths = [_gap(entry, crossed, 0.0) for entry in ours if entry.note == RESUMED]
    mine = _tallies(crossed)
    other = _tallies(theirs)
    more_here, more_there, found = [], [], []
    for crossing in sorted({*mine, *other}):
        here, there = mine.get(crossing, Tally()), other.get(crossing, Tally())
        if here.count > there.count:
            more_here.append((crossing, here, there))
        elif there.count > here.count:
            more_there.append((crossing, here, there))
        elif abs(here.first - there.first) > clock or abs(here.last - there.last) > clock:
            words = f"{crossing.words}: the times lie more than {clock:.0f} s apart"
            found.append(Difference(party, "time", words))
    open_calls: dict[str, int] = defaultdict(int)
    for entry in silences:
        open_calls[entry.call] += entry.count
    for crossing, here, there in more_here:
        grade = _grade_here(crossing, here, there, gaps, open_calls)
        if grade == "missing" and _asked_in_vain(crossing, here, there, deaths):
            grade = "explained"
        twin = next((each for each in more_there if each[0].route == crossing.route), None)
        if grade == "missing" and twin is not None:
            more_there.remove(twin)
            words = f"{COORDINATOR} has {crossing.words}; {party} has {twin[0].words}"
            found.append(Difference(party, "altered", words))
        else:
            found.append(Difference(party, grade, _counts(crossing, here, there, party)))
    for crossing, here, there in more_there:
        # An answer that did not arrive: one for each call that was not answered, and no more.
        unheard = there.count - here.count
        answered = crossing.sender == party and unheard <= open_calls[crossing.call]
        open_calls[crossing.call] -= unheard if answered else 0
        explained = answered or unheard <= _unwritten(crossing, there, deaths)
        grade = "explained" if explained else "missing"
        found.append(Difference(party, grade, _counts(crossing, here, there, party)))
    return found


def _grade_here(
    crossing: Crossing,
    here: Tally,
    there: Tally,
    gaps: list[Span],
    open_calls: dict[str, int],
) -> str:
    """More here than there: a request that was not seen, or entries a killed process lost."""
    lacking = here.count - there.count
    if crossing.receiver != COORDINATOR and lacking <= open_calls[crossing.call]:
        return "explained"
    if crossing.kind not in LOOP_KINDS:
        return "missing"
    # Entries of the last window before a silence were in the memory of the process that died.
    return "explained" if lacking <= here.within(gaps) else "missing"


def _unwritten(crossing: Crossing, there: Tally, deaths: list[Span]) -> int:
    """How many of a party's entries a coordinator that was killed may not have written.

    Those of the loop's kinds in its last window, and one answer that came too late for it.
    """
    if crossing.kind in LOOP_KINDS:
        return there.within(deaths)
    if crossing.sender == COORDINATOR:
        return 0
    return sum(min(1, there.within([death])) for death in deaths)


def _asked_in_vain(crossing: Crossing, here: Tally, there: Tally, deaths: list[Span]) -> bool:
    """A coordinator that was killed had written what it was about to ask."""
    asked = sum(min(1, here.within([death])) for death in deaths)
    return crossing.sender == COORDINATOR and here.count - there.count <= asked


def _gap(noticed: Entry, written: Iterable[Entry], leeway: float) -> Span:
    """From the last that a side wrote down before it fell silent, until that was noticed.

    What it wrote after it came back does not matter: a resumed run goes on in the same ledger.
    leeway: by how much the clocks of who wrote and who noticed may differ.
    """
    before = [entry.until for entry in written if entry.until <= noticed.time + leeway]
    return max(before, default=noticed.time - LONGEST_SILENCE) - REACH, noticed.time + REACH


def _tallies(entries: Iterable[Entry]) -> dict[Crossing, Tally]:
    found: dict[Crossing, Tally] = {}
    for entry in entries:
        crossing = Crossing(
            entry.sender,
            entry.receiver,
            entry.call,
            entry.kind,
            entry.shape,
            entry.dtype,
            entry.bytes,
            entry.sealed_for,
            entry.note,
        )
        tally = found.setdefault(crossing, Tally())
        tally.count += entry.count
        tally.first, tally.last = min(tally.first, entry.time), max(tally.last, entry.until)
        tally.spans.append((entry.until, entry.count))
    return found


def _counts(crossing: Crossing, here: Tally, there: Tally, party: str) -> str:
    return f"{crossing.words}: {here.count:,} at {COORDINATOR}, {there.count:,} at {party}"
