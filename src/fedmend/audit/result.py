"""What an audit found: readings of a ledger, findings of attacks, and both as text and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend._json import plain, write_json
from fedmend.errors import DataError
from fedmend.report.amounts import pretty, text_table
from fedmend.report.record import AUDIT_FILE

if TYPE_CHECKING:
    import pandas as pd

STRONG_SHARE, SOME_SHARE = 0.5, 0.1
"""From which share of what there was to find, beyond the guess, a leak is called so."""

GRADES = ("strong", "some", "little", "not shown")


@dataclass(frozen=True)
class Finding:
    """What one role could infer about something, beside what it could guess without the messages.

    role: who infers; from_: out of which messages; about: whose secret; what: which one. metric:
    how `score` is measured, with `low` and `high` the ends of its 95 % bootstrap interval. guess:
    the same metric for the best guess without the messages; gain: score − guess, with its own
    interval. known: how many rows' answers both were given. rows: on how many others they are
    scored. mend: what lowers it.
    """

    attack: str
    role: str
    from_: str
    about: str
    what: str
    metric: str
    score: float
    low: float
    high: float
    guess: float
    gain: float
    gain_low: float
    gain_high: float
    known: int
    rows: int
    paper: str
    mend: str

    @property
    def grade(self) -> str:
        """How much of what there was to find was found: one of `GRADES`."""
        if not self.gain_low > 0:
            return "not shown"
        left = 1.0 - self.guess
        share = self.gain / left if left > 0 else 0.0
        return "strong" if share >= STRONG_SHARE else "some" if share >= SOME_SHARE else "little"

    @property
    def words(self) -> str:
        """One sentence."""
        given = f", given {self.known:,} known rows" if self.known else ""
        return (
            f"{self.role} infers {self.what} of {self.about} from {self.from_}{given}: "
            f"{self.metric} {self.score:.3f} [{self.low:.3f}, {self.high:.3f}], "
            f"{self.guess:.3f} without the messages ({self.grade})"
        )


@dataclass(frozen=True)
class Reading:
    """What a ledger alone says about one role and one kind of value it received.

    lines: how many lines, one a row, crossed in all; looks: how many that are for each row, None
    where the rows are not known or the kind has no lines. tells: what such values are known to
    tell. severity: "none", "low", "medium" or "high". mend: what lowers it.
    """

    role: str
    sender: str
    kind: str
    crossings: int
    bytes: int
    lines: int
    looks: float | None
    severity: str
    tells: str
    mend: str


@dataclass
class AuditReport:
    """Everything one audit found; `print` shows it, `to_json` keeps it.

    option: the setting it was compared under, "" for the method as given. scores: the model's own,
    on its test rows where there are some. left_out: attacks that do not apply, and why. other: the
    audit under another setting, to be read beside this one.
    """

    method: str
    params: dict[str, Any] = field(default_factory=dict)
    parties: list[str] = field(default_factory=list)
    rows: int = 0
    option: str = ""
    findings: list[Finding] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    scored_on: str = ""
    seconds: float = 0.0
    other: AuditReport | None = None

    # ------------------------------------------------------------------ as data

    def table(self) -> pd.DataFrame:
        """One line for each finding."""
        import pandas as pd

        lines = [asdict(each) | {"grade": each.grade} for each in self.findings]
        frame = pd.DataFrame(lines).rename(columns={"from_": "from"})
        return frame.drop(columns=["paper", "mend"], errors="ignore")

    def to_dict(self) -> dict[str, Any]:
        return plain(asdict(self))

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> AuditReport:
        values = dict(saved)
        values["findings"] = [
            Finding(**{key: _number(key, value) for key, value in each.items()})
            for each in values["findings"]
        ]
        values["readings"] = [Reading(**each) for each in values["readings"]]
        values["other"] = None if values["other"] is None else cls.from_dict(values["other"])
        return cls(**values)

    def to_json(self, path: str | Path) -> Path:
        """Write it as JSON; returns where."""
        return write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> AuditReport:
        """One that was kept with `to_json`."""
        return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))

    # ------------------------------------------------------------------ as text

    def head(self) -> list[str]:
        """What was audited, in a few words a line."""
        if not self.method:
            return ["From a ledger alone: what was received, and what such values can tell."]
        lines = [
            f"{self.method}{f' with {self.option}' if self.option else ''}, rehearsed in one "
            f"process with {', '.join(self.parties)} ({self.rows:,} rows)."
        ]
        if self.scores:
            told = ", ".join(f"{pretty(name)} {value:.3f}" for name, value in self.scores.items())
            lines.append(f"The model's own scores on {self.scored_on}: {told}.")
        return lines

    def in_short(self) -> list[str]:
        """One sentence for each attack, role and party: the best score, and how many leaks."""
        groups: dict[tuple[str, str, str], list[Finding]] = {}
        for each in self.findings:
            groups.setdefault((each.attack, each.role, each.about), []).append(each)
        found = []
        for (attack, role, about), group in groups.items():
            best = max(group, key=lambda each: (-GRADES.index(each.grade), each.gain))
            strong = sum(each.grade == "strong" for each in group)
            many = f"{strong} of {len(group)} strong; " if len(group) > 1 else ""
            found.append(
                f"{attack}: {role} about {about}: {many}at most {best.what}, {best.metric} "
                f"{best.score:.3f} beside {best.guess:.3f} without ({best.grade})"
            )
        return found

    def lines(self) -> list[list[str]]:
        """A table for people: head, then a line for each finding."""
        head = ["who", "infers", "from", "leak", "score", "interval", "without", "metric", "known"]
        return [head, *(_line(each) for each in self.findings)]

    def beside(self) -> list[list[str]]:
        """The findings of both settings side by side; only the head where there is one setting."""
        if self.other is None:
            return [[]]
        option = self.other.option
        head = ["who", "infers", "from", "as given", option, "without", "metric", "known"]
        found = [head]
        both = (self, self.other)
        by_key = [{_key(each): each for each in report.findings} for report in both]
        everything = by_key[0] | {k: v for k, v in by_key[1].items() if k not in by_key[0]}
        for key, each in everything.items():
            told = [
                report._told(each, own.get(key)) for report, own in zip(both, by_key, strict=True)
            ]
            line = _line(each)
            found.append([*line[:3], *told, line[6], line[7], line[8]])
        for name in self.scores:
            if name in self.other.scores:
                scores = [f"{self.scores[name]:.3f}", f"{self.other.scores[name]:.3f}"]
                found.append(["the model itself", pretty(name), "", *scores, "", "", ""])
        return found

    def _told(self, asked: Finding, found: Finding | None) -> str:
        """A finding as it stands beside another setting's; "sealed" where nobody could look."""
        if found is not None:
            return f"{found.score:.3f} ({found.grade})"
        kind = asked.from_.removesuffix("s")
        passed = [each for each in self.readings if (each.role, each.kind) == (asked.role, kind)]
        return "sealed" if passed and all(each.severity == "none" for each in passed) else "–"

    def readings_table(self) -> list[list[str]]:
        """What the ledger says: head, then a line for each role and kind that tells something."""
        groups: dict[tuple[str, ...], list[Reading]] = {}
        for each in self.readings:
            if each.severity != "none":
                key = (each.role, each.kind, each.severity, each.tells)
                groups.setdefault(key, []).append(each)
        found = [["who", "received", "from", "messages", "looks a row", "severity", "tells"]]
        for (role, kind, severity, tells), group in groups.items():
            senders = ", ".join(dict.fromkeys(each.sender for each in group))
            looks = [each.looks for each in group if each.looks is not None]
            crossings = sum(each.crossings for each in group)
            shown = f"{max(looks):.1f}" if looks else "–"
            found.append([role, kind, senders, f"{crossings:,}", shown, severity, tells])
        return found

    def mends(self) -> list[str]:
        """What would lower each leak that was shown, each said once."""
        shown = [each for each in self.findings if each.grade != "not shown"]
        found = [f"{each.attack}: {each.mend}" for each in shown]
        if not self.method:
            found = [f"{each.kind}: {each.mend}" for each in self.readings if each.mend]
        mends = list(dict.fromkeys(found))
        # A mend that another one begins with is said there.
        return [each for each in mends if not any(x.startswith(f"{each};") for x in mends)]

    def __str__(self) -> str:
        parts = [*self.head(), *self.in_short()]
        parts += text_table(self.lines()) if self.findings else []
        parts += [*self.facts, *(f"not run: {name}: {why}" for name, why in self.left_out.items())]
        if self.other is not None:
            parts += ["", *text_table(self.beside())]
        parts += [f"what lowers it: {each}" for each in self.mends()]
        groups: dict[str, list[str]] = {}
        for role, kind, _, _, _, severity, tells in self.readings_table()[1:]:
            groups.setdefault(f"{kind} ({severity}) tells {tells}", []).append(role)
        parts += [f"{', '.join(roles)} received {told}" for told, roles in groups.items()]
        return "\n".join(parts)


def _key(finding: Finding) -> tuple[str, ...]:
    """What makes a finding the same under another setting, of which there may be fewer looks."""
    source = re.sub(r"\d+ (looks|rounds)", r"\1", finding.from_)
    known = str(finding.known)
    return (finding.attack, finding.role, source, finding.about, finding.what, known)


def _line(each: Finding) -> list[str]:
    return [
        each.role,
        f"{each.what} of {each.about}",
        each.from_,
        each.grade,
        f"{each.score:.3f}",
        f"{each.low:.3f} – {each.high:.3f}",
        f"{each.guess:.3f}",
        each.metric,
        f"{each.known:,}",
    ]


def _number(key: str, value: Any) -> Any:
    """JSON has no NaN."""
    numbers = ("score", "low", "high", "guess", "gain", "gain_low", "gain_high")
    return float("nan") if key in numbers and value is None else value


def read_audit(folder: str | Path) -> list[AuditReport]:
    """The reports that a folder holds; none where there are none."""
    path = Path(folder) / AUDIT_FILE
    if not path.is_file():
        return []
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return [AuditReport.from_dict(each) for each in stored["reports"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is no audit: {error}", mend="remove it, and audit again"
        ) from error
