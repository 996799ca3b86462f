"""The first lines of a report: what left the parties, what that can tell, and what would lower it.

The same sentences stand at the end of a run, at the top of its report and in an audit, so that none
of them sounds better than the others. What values can tell is the grade of their kind
(`fedmend.federation.kinds`); where an audit was made, what it measured stands in its place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedmend.data.encode import NUMBERS
from fedmend.federation.kinds import EXCHANGED, KINDS, SEAL, Switch
from fedmend.federation.ledger import COORDINATOR, Entry
from fedmend.methods.registry import METHODS
from fedmend.report.amounts import listed
from fedmend.report.record import task_told
from fedmend.report.words import flows, name_of

if TYPE_CHECKING:
    from fedmend.audit.result import AuditReport, Finding

GRADES = ("high", "medium", "low", "none")
_CITED = re.compile(r" \([^()]*\d{4}\)$")
SHOWN = 3
"""Findings of an audit that are told; its own section has all."""


@dataclass(frozen=True)
class Banner:
    """grade: of the most telling kind that left, as the audit grades them."""

    grade: str
    left: str
    tells: list[str] = field(default_factory=list)
    lowers: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """What left; what it can tell; what would lower it."""
        return [self.left, " ".join(self.tells), " ".join(self.lowers)]

    @property
    def tone(self) -> str:
        """How a page shows it: ``alarm``, ``caution`` or ``calm``."""
        return {"high": "alarm", "medium": "caution"}.get(self.grade, "calm")


@dataclass
class _Left:
    """Values of one kind: from whom, and who can read them."""

    kind: str
    senders: set[str] = field(default_factory=set)
    readers: set[str] = field(default_factory=set)

    @property
    def noun(self) -> str:
        if self.kind not in KINDS:
            return f"values of kind {self.kind!r}"
        return KINDS[self.kind].many.rpartition(" of ")[2]

    @property
    def grade(self) -> str:
        return KINDS[self.kind].severity if self.kind in KINDS else "medium"

    @property
    def words(self) -> str:
        """``gradients of bank to telco and the coordinator``"""
        # Nobody learns from what he sent himself and gets back by way of the coordinator.
        others = self.readers - self.senders if len(self.senders) == 1 else self.readers
        whose = f" of {listed(sorted(self.senders))}" if self.senders and others else ""
        readers = sorted(others or self.readers, key=lambda each: (each == COORDINATOR, each))
        return f"{self.noun}{whose} to {listed([name_of(each, start=False) for each in readers])}"


def banner_of(
    entries: Iterable[Entry],
    trained: Sequence[tuple[str, Mapping[str, Any]]] = (),
    audits: Sequence[AuditReport] = (),
) -> Banner:
    """Of a ledger. trained: the methods' names and parameters, where they are known."""
    found = [
        (each.kind, each.sender, each.receiver, each.exposure != "nothing")
        for each in flows(entries)
        if not each.refused and not each.error
    ]
    return _banner(found, trained, audits)


def banner_of_audit(report: AuditReport) -> Banner:
    """Of an audit, which has a ledger of its own."""
    found = [
        (each.kind, each.sender, each.role, each.severity != "none") for each in report.readings
    ]
    trained = [("", report.params | task_told(report.scores))] if report.method else []
    return _banner(found, trained, [report] if report.method else [])


def _banner(
    crossed: Iterable[tuple[str, str, str, bool]],
    trained: Sequence[tuple[str, Mapping[str, Any]]],
    audits: Sequence[AuditReport],
) -> Banner:
    left = _telling(crossed)
    bounds = _label_bounds(trained)
    grades = {each.kind: _graded(each, bounds, trained) for each in left}
    # Labels first: gradients tell of nothing else.
    left.sort(key=lambda each: (GRADES.index(grades[each.kind]), each.kind != "gradient"))
    findings = [each for report in audits for each in report.findings]
    tells = _measured(findings, audits) if findings else _known(left, grades, bounds)
    return Banner(
        min(grades.values(), key=GRADES.index, default="none"),
        _in_words(left),
        tells,
        list(_lowered(left, trained)),
    )


def _telling(crossed: Iterable[tuple[str, str, str, bool]]) -> list[_Left]:
    """What tells of single rows, or of who is among them: all above totals over many."""
    found: dict[str, _Left] = {}
    for kind, sender, receiver, readable in crossed:
        if kind in KINDS and KINDS[kind].severity in ("none", "low"):
            continue
        each = found.setdefault(kind, _Left(kind))
        # The coordinator passes on what parties have sent.
        if sender != COORDINATOR:
            each.senders.add(sender)
        if readable:
            each.readers.add(receiver)
    return [each for each in found.values() if each.readers]


def _in_words(left: Sequence[_Left]) -> str:
    clear = [each for each in left if each.kind in KINDS and KINDS[each.kind].exposure == "clear"]
    if clear:
        rest = [each for each in left if each not in clear]
        beside = f" Besides: {listed([each.words for each in rest])}." if rest else ""
        return f"Values left in the clear: {listed([each.words for each in clear])}.{beside}"
    if not left:
        return (
            "No row and no label left a party, and no value about a single row: what others could "
            "read are counts and totals over many rows."
        )
    return (
        "No row and no label left a party in the clear, but values made of them did: "
        f"{'; '.join(each.words for each in left)}."
    )


# ---------------------------------------------------------------- what it can tell


def _label_bounds(trained: Sequence[tuple[str, Mapping[str, Any]]]) -> list[float]:
    """ε of all trainings with partners, if every one of them has one."""
    given = [
        params.get("label_dp")
        for name, params in trained
        if name not in METHODS or METHODS[name].partners
    ]
    return [float(each) for each in given if each is not None] if all(given) else []


def _graded(
    left: _Left, bounds: Sequence[float], trained: Sequence[tuple[str, Mapping[str, Any]]]
) -> str:
    """ε is a bound on labels, whatever the attack; narrow embeddings still tell of columns."""
    if bounds and left.kind == "gradient":
        return "low"
    asked = [each for each in trained if each[0] not in METHODS or METHODS[each[0]].partners]
    switch = KINDS[left.kind].switch if left.kind == "embedding" else None
    if switch is not None and asked:
        narrow = (
            name not in switch.not_for and switch.is_on(params.get(switch.parameter))
            for name, params in asked
        )
        return "medium" if all(narrow) else left.grade
    return left.grade


def _known(left: Sequence[_Left], grades: Mapping[str, str], bounds: Sequence[float]) -> list[str]:
    """What such values are known to tell."""
    said = []
    for each in left:
        if each.kind == "gradient" and bounds:
            epsilon = max(bounds)
            kept = math.exp(epsilon) / (math.exp(epsilon) + 1)
            said.append(
                f"From gradients nobody can be surer of a label than label_dp = {epsilon:g} lets "
                f"them be (of two classes {100 * kept:.0f} %)."
            )
        else:
            tells = KINDS[each.kind].tells if each.kind in KINDS else "what is not known here"
            noun = each.noun[0].upper() + each.noun[1:]
            said.append(f"{noun} ({grades[each.kind]}) can tell {_CITED.sub('', tells)}.")
    if said:
        said.append("That is known of such values and was not measured here: 'fedmend audit' does.")
    return said


def _measured(findings: Sequence[Finding], audits: Sequence[AuditReport]) -> list[str]:
    """What the attacks of an audit have shown: the worst for each role and secret."""
    from fedmend.audit.result import GRADES as SHARES

    best: dict[tuple[str, str, bool], Finding] = {}
    for each in findings:
        key = (each.role, each.about, each.what == "labels")
        if key not in best or _rank(each) < _rank(best[key]):
            best[key] = each
    shown = sorted((each for each in best.values() if each.grade != SHARES[-1]), key=_rank)
    of = listed(list(dict.fromkeys(report.method for report in audits)))
    if not shown:
        return [f"The audit of {of} showed no leak, which is no proof that there is none."]
    told = "; ".join(
        f"{name_of(each.role, start=False)} inferred {each.what} of {each.about} with "
        f"{each.metric} {each.score:.3f}, "
        f"{each.guess:.3f} without the messages ({each.grade})"
        for each in shown[:SHOWN]
    )
    more = f"; and {len(shown) - SHOWN} more, below" if len(shown) > SHOWN else ""
    return [f"Measured by the audit of {of}: {told}{more}."]


def _rank(finding: Finding) -> tuple[int, bool, float]:
    from fedmend.audit.result import GRADES as SHARES

    return SHARES.index(finding.grade), finding.what != "labels", -finding.gain


# ---------------------------------------------------------------- what would lower it


def _lowered(
    left: Sequence[_Left], trained: Sequence[tuple[str, Mapping[str, Any]]]
) -> Iterable[str]:
    """The switches that these methods have, each with its measured price."""
    lowered: dict[Switch, str] = {}
    if any(COORDINATOR in each.readers and each.kind in EXCHANGED for each in left):
        lowered[SEAL] = "what the coordinator reads of it"
    by_switch: dict[Switch, list[str]] = {}
    for each in left:
        if each.kind in KINDS and (switch := KINDS[each.kind].switch) is not None:
            by_switch.setdefault(switch, []).append(each.noun)
    lowered |= {switch: f"what {listed(nouns)} tell" for switch, nouns in by_switch.items()}
    told = [
        f"{switch.written} lowers {what}, at {switch.price}"
        for switch, what in lowered.items()
        if _is_offered(switch, trained)
    ]
    if told:
        yield f"What lowers it: {'; '.join(told)} (docs/how-to/lower-what-leaks.md)."
    elif left:
        known = [each for each in left if each.kind in KINDS and KINDS[each.kind].lowered_by]
        others = "; ".join(f"of {each.noun}, {KINDS[each.kind].lowered_by}" for each in known)
        yield "No further switch of measured price lowers it." + (
            f" What does, at a price of its own: {others}." if others else ""
        )


def _is_offered(switch: Switch, trained: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """Not where no method has such a parameter, or all that have it use it already."""
    # What `auto` is given it hands on to its candidates.
    given = [
        {switch.parameter: None, **params, **(params.get("settings") or {})}
        if name == "auto"
        else params
        for name, params in trained
        if name not in switch.not_for
    ]
    known = [params for params in given if switch.parameter in params]
    if switch.parameter == "label_dp":  # which is for classes
        known = [params for params in known if params.get("task") not in NUMBERS]
    return not trained or not all(switch.is_on(params[switch.parameter]) for params in known)
