"""What a ledger alone says: who received which kinds of value, and what these are known to tell.

Any finished run has a ledger, whichever engine it ran on. It holds no contents, so this is a
reading, not a measurement: what could be inferred from such values, and what lowers it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from fedmend.audit.result import Reading
from fedmend.federation.kinds import AGGREGATES, EXCHANGED, KINDS
from fedmend.federation.ledger import COORDINATOR, Entry
from fedmend.report.words import Flow, flows

SEVERITIES = ("high", "medium", "low", "none")


def statement(entries: Iterable[Entry], *, rows: int | None = None) -> list[Reading]:
    """One reading for each role, sender and kind; the most telling first.

    rows: how many rows the values are about, where that is known; it makes looks per row.
    """
    entries = [_by_shape(entry, rows) for entry in entries]
    lines: dict[tuple[str, str, str], int] = defaultdict(int)
    for entry in entries:
        if entry.readable in KINDS and KINDS[entry.readable].by_row and not entry.note:
            lines[entry.sender, entry.receiver, entry.readable] += lines_of(entry)
    found = [
        _reading(flow, lines[flow.sender, flow.receiver, flow.kind], rows)
        for flow in flows(entries)
        if not flow.refused
    ]
    return sorted(found, key=lambda each: (SEVERITIES.index(each.severity), each.role))


def _by_shape(entry: Entry, rows: int | None) -> Entry:
    """What calls itself a total and has a number for every row is read as rows."""
    by_row = rows is not None and rows > 1 and lines_of(entry) >= rows * entry.count
    return replace(entry, opens="row") if by_row and entry.readable in AGGREGATES else entry


def lines_of(entry: Entry) -> int:
    """How many lines crossed: the first dimension of what the message holds, times its count.

    Of several arrays in one message (embeddings of several parties) the longest counts. Messages do
    not tell how many lines are in them.
    """
    sizes = []
    for shape in entry.shape.replace(" …", "").split(", "):
        first, _, rest = shape.partition("x")
        if first.isdecimal() and (rest or not entry.dtype.endswith("bytes")):
            sizes.append(int(first))
    return max(sizes, default=0) * entry.count


def _reading(flow: Flow, lines: int, rows: int | None) -> Reading:
    severity, mend = "medium", "ask its maker"
    tells = f"unknown: kind {flow.kind!r} is not of this version"
    if flow.kind in KINDS:
        kind = KINDS[flow.kind]
        severity, tells, mend = kind.severity, kind.tells, kind.lowered_by
    if flow.passed_on:
        severity, mend = "none", ""
        tells = f"nothing: sealed for {flow.sealed_for}, passed on unread"
    elif flow.error:
        severity, mend = "low", ""
        tells = "that a table is not as it was asked for; a party stops after a few"
    elif flow.receiver == COORDINATOR and flow.kind in EXCHANGED:
        mend = f"{mend}; against the coordinator seal = true, unless the method has its top there"
    looks = lines / rows if rows and lines and not flow.passed_on else None
    return Reading(
        role=flow.receiver,
        sender=flow.sender,
        kind=flow.kind,
        crossings=flow.crossings,
        bytes=flow.bytes,
        lines=lines,
        looks=looks,
        severity=severity,
        tells=tells,
        mend=mend,
    )
