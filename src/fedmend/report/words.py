"""The ledger in words: what each role of a federation got to see, for people who read no code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fedmend.federation.kinds import KINDS
from fedmend.federation.ledger import COORDINATOR, ERROR, REFUSED, Entry
from fedmend.report.amounts import counted, human_bytes

EXPOSURES: dict[str, str] = {
    "nothing": "says nothing about a person: sizes, settings, or values the receiver cannot read",
    "totals": "drawn from many rows together",
    "signals": "one vector a row: not the values, but a determined receiver may infer some of them",
    "clear": "values in the clear",
}


@dataclass(frozen=True)
class Flow:
    """All crossings of one kind from one role to another."""

    sender: str
    receiver: str
    kind: str
    sealed_for: str
    crossings: int
    bytes: int
    calls: tuple[str, ...]
    refused: bool = False
    error: bool = False

    @property
    def exposure(self) -> str:
        """``nothing``, ``totals``, ``signals`` or ``clear``, as the receiver sees it."""
        if self.refused or self.passed_on:
            return "nothing"
        if self.error:
            return "totals"
        return KINDS[self.kind].exposure if self.kind in KINDS else "signals"

    @property
    def passed_on(self) -> bool:
        """Whether it was sealed for somebody else than who received it."""
        return bool(self.sealed_for) and self.sealed_for != self.receiver

    @property
    def words(self) -> str:
        """For instance ``420 batches of embeddings (5.2 MB)``."""
        if self.refused:
            return f"{self.counted(self.crossings)} asked for and refused"
        text = f"{self.counted(self.crossings)} ({human_bytes(self.bytes)})"
        if self.passed_on:
            text += f", sealed for {self.sealed_for}: passed on unread"
        return text

    def counted(self, crossings: int) -> str:
        """So many values of this kind: ``420 batches of embeddings``."""
        if self.error:
            return counted(crossings, "error message")
        if self.kind not in KINDS:  # of a ledger of another version
            return f"{counted(crossings, 'value')} of kind {self.kind!r}"
        kind = KINDS[self.kind]
        return f"{crossings:,} {kind.one if crossings == 1 else kind.many}"


@dataclass
class Saw:
    """What one role received, by sender."""

    role: str
    lines: list[tuple[str, list[Flow]]] = field(default_factory=list)

    @property
    def crossings(self) -> int:
        return sum(flow.crossings for _, group in self.lines for flow in group if not flow.refused)

    @property
    def bytes(self) -> int:
        return sum(flow.bytes for _, group in self.lines for flow in group)

    @property
    def headline(self) -> str:
        """``The coordinator saw 512 messages, 6.1 MB.``"""
        role = name_of(self.role)
        if not self.crossings:
            return f"{role} received nothing."
        verb = "saw" if self.role == COORDINATOR else "received"
        count = counted(self.crossings, "message")
        return f"{role} {verb} {count}, {human_bytes(self.bytes)} in all."

    def graded(self) -> list[tuple[str, str]]:
        """What came, by what it can tell: (exposure, words), the most telling first.

        Who sent it is said where it matters: of what tells nothing only the sums are.
        """
        senders = {sender for sender, _ in self.lines}
        found: dict[str, dict[tuple[str, str], list[Flow]]] = {}
        for sender, group in self.lines:
            for flow in group:
                if flow.refused:
                    continue
                whom = "" if flow.exposure == "nothing" or len(senders) == 1 else sender
                kind = "" if flow.passed_on else ERROR if flow.error else flow.kind
                found.setdefault(flow.exposure, {}).setdefault((kind, whom), []).append(flow)
        words = {
            exposure: _joined([_together(whom, group) for (_, whom), group in kinds.items()])
            for exposure, kinds in found.items()
        }
        return [(each, f"{words[each]}.") for each in reversed(EXPOSURES) if each in words]

    def sentences(self) -> list[str]:
        """One sentence for each sender."""
        return [
            f"From {name_of(sender, start=False)}: {_joined([flow.words for flow in group])}."
            for sender, group in self.lines
        ]


def _together(sender: str, group: Sequence[Flow]) -> str:
    """Flows of one kind: ``580 batches of embeddings from sizes (4.0 MB)``."""
    crossings, size = sum(each.crossings for each in group), sum(each.bytes for each in group)
    whom = f" from {name_of(sender, start=False)}" if sender else ""
    if group[0].passed_on:
        return f"{counted(crossings, 'sealed value')}{whom} passed on unread ({human_bytes(size)})"
    return f"{group[0].counted(crossings)}{whom} ({human_bytes(size)})"


def name_of(role: str, *, start: bool = True) -> str:
    """A role as it stands in a sentence: the coordinator has an article, a party its name."""
    if role == COORDINATOR:
        return "The coordinator" if start else "the coordinator"
    return role


def flows(entries: Iterable[Entry]) -> list[Flow]:
    """Entries added up by sender, receiver, kind and seal, in the order they first happened.

    What a party refused is kept apart: it is in the ledger, but it never crossed. So are errors,
    which are words. Entries that are no crossing are left out.
    """
    groups: dict[tuple[str, str, str, str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        if not entry.is_crossing:
            continue
        note = entry.note if entry.note in (REFUSED, ERROR) else ""
        key = (entry.sender, entry.receiver, entry.readable, entry.sealed_for, note)
        groups[key].append(entry)
    return [
        Flow(
            sender,
            receiver,
            kind,
            sealed_for,
            crossings=sum(entry.count for entry in group),
            bytes=sum(entry.total_bytes for entry in group),
            calls=tuple(dict.fromkeys(entry.call for entry in group)),
            refused=note == REFUSED,
            error=note == ERROR,
        )
        for (sender, receiver, kind, sealed_for, note), group in groups.items()
    ]


def what_was_seen(
    entries: Iterable[Entry], roles: Sequence[str] = (), *, party: str | None = None
) -> list[Saw]:
    """For each role, what it received; the coordinator first, silent roles included."""
    grouped = flows(entries)
    given = {role: at for at, role in enumerate([COORDINATOR, *roles])}
    seen = {role for flow in grouped for role in (flow.sender, flow.receiver)} | set(given)
    order = sorted(seen, key=lambda role: (given.get(role, len(given)), role))
    kinds = list(KINDS)
    grouped.sort(key=lambda flow: kinds.index(flow.kind) if flow.kind in KINDS else len(kinds))
    between: dict[tuple[str, str], list[Flow]] = defaultdict(list)
    for flow in grouped:
        between[flow.sender, flow.receiver].append(flow)
    found = [Saw(role) for role in order if party is None or role == party]
    for saw in found:
        ways = [(sender, between.get((sender, saw.role), [])) for sender in order]
        saw.lines += [way for way in ways if way[1]]
    return found


def _joined(parts: Sequence[str]) -> str:
    if len(parts) < 2:
        return "".join(parts)
    return "; ".join(parts[:-1]) + f"; and {parts[-1]}"
