"""The ledger in words: what each role of a federation got to see, for people who read no code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fedmend.federation.kinds import KINDS
from fedmend.federation.ledger import COORDINATOR, ERROR, REFUSED, Entry
from fedmend.report.amounts import human_bytes

__all__ = [
    "Flow",
    "Saw",
    "flows",
    "verdict",
    "what_was_seen",
]

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
        if self.error:
            return _errors(self.crossings, self.bytes)
        noun = _noun(self.kind, self.crossings)
        if self.refused:
            return f"{self.crossings:,} {noun} asked for and refused"
        text = f"{self.crossings:,} {noun} ({human_bytes(self.bytes)})"
        if self.sealed_for and self.sealed_for != self.receiver:
            text += f", sealed for {self.sealed_for}: passed on unread"
        return text


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
        noun = "message" if self.crossings == 1 else "messages"
        return f"{role} {verb} {self.crossings:,} {noun}, {human_bytes(self.bytes)} in all."

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
        return [
            (
                exposure,
                _joined([_together(whom, flows) for (_, whom), flows in found[exposure].items()])
                + ".",
            )
            for exposure in reversed(EXPOSURES)
            if exposure in found
        ]

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
        noun = "sealed value" if crossings == 1 else "sealed values"
        return f"{crossings:,} {noun}{whom} passed on unread ({human_bytes(size)})"
    if group[0].error:
        return _errors(crossings, size, whom)
    return f"{crossings:,} {_noun(group[0].kind, crossings)}{whom} ({human_bytes(size)})"


def _noun(kind: str, count: int) -> str:
    if kind not in KINDS:  # of a ledger of another version
        return f"value{'s' * (count != 1)} of kind {kind!r}"
    return KINDS[kind].one if count == 1 else KINDS[kind].many


def _errors(crossings: int, size: int, whom: str = "") -> str:
    noun = "error message" if crossings == 1 else "error messages"
    return f"{crossings:,} {noun}{whom} ({human_bytes(size)})"


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
    seen = {flow.receiver for flow in grouped} | {flow.sender for flow in grouped} | set(roles)
    order = [COORDINATOR, *sorted(seen - {COORDINATOR}, key=_rank(roles))]
    kind_order = {kind: number for number, kind in enumerate(KINDS)}
    result = []
    for role in order:
        if party is not None and role != party:
            continue
        saw = Saw(role)
        for sender in [COORDINATOR, *(name for name in order if name != COORDINATOR)]:
            group = [flow for flow in grouped if (flow.sender, flow.receiver) == (sender, role)]
            if group:
                group.sort(key=lambda flow: kind_order.get(flow.kind, len(kind_order)))
                saw.lines.append((sender, group))
        result.append(saw)
    return result


def verdict(entries: Iterable[Entry]) -> str:
    """The sentence most people look for: did rows or labels leave a party in the clear?"""
    clear = [flow for flow in flows(entries) if flow.exposure == "clear"]
    if not clear:
        return "No row and no label left a party in the clear."
    parts = [
        f"{name_of(flow.sender, start=False)} gave {flow.words} "
        f"to {name_of(flow.receiver, start=False)}"
        for flow in clear
    ]
    return f"Values left in the clear: {_joined(parts)}."


def _joined(parts: Sequence[str]) -> str:
    if len(parts) < 2:
        return "".join(parts)
    return "; ".join(parts[:-1]) + f"; and {parts[-1]}"


def _rank(roles: Sequence[str]) -> Callable[[str], tuple[int, str]]:
    given = {role: number for number, role in enumerate(roles)}
    return lambda role: (given.get(role, len(given)), role)
