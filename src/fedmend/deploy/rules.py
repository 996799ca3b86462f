"""``[[rule]]`` of a party.toml: to whom this party says yes, no, or wants to be asked.

    [[rule]]
    study = "readmissions"
    methods = ["vfl", "predict"]
    answer = "yes"
    until = 2026-12-31

The last rule that fits a run decides; without one `approve` does. Kinds in the `refuse` of any rule
that fits do not leave in that run. Organisation, person and study are the coordinator's words: a
rule is as strong as the trust in it. Methods and kinds are looked up in this installation.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedmend.federation.kinds import KINDS
from fedmend.federation.policy import unknown_kind

WHO = ("organisation", "person", "study")
_BEGINS = re.compile(r"\s*\[\[\s*rule\s*\]\]")


class Asking(Protocol):
    """A run that asks, as far as rules look at it."""

    @property
    def organisation(self) -> str: ...
    @property
    def person(self) -> str: ...
    @property
    def study(self) -> str: ...
    @property
    def methods(self) -> tuple[str, ...]: ...


class Rule(BaseModel):
    """One rule; what it does not name it does not look at.

    methods: a yes is for runs that use no others, everything else for runs that use any of them.
    until: the last day on which it counts. refuse: kinds that do not leave in such runs.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    organisation: str | None = Field(default=None, min_length=1, max_length=200)
    person: str | None = Field(default=None, min_length=1, max_length=200)
    study: str | None = Field(default=None, min_length=1, max_length=200)
    methods: list[str] | None = Field(default=None, min_length=1)
    answer: Literal["yes", "no", "ask"] | None = None
    until: datetime.date | None = None
    refuse: list[str] = Field(default_factory=list)

    @field_validator("refuse")
    @classmethod
    def _known(cls, kinds: list[str]) -> list[str]:
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(unknown_kind(kind, "refuse"))
        return kinds

    @model_validator(mode="after")
    def _says_something(self) -> Rule:
        if self.answer is None and not self.refuse:
            raise ValueError('says nothing. Mend: answer = "yes", "no" or "ask", or refuse = ["…"]')
        return self

    def fits(self, run: Asking, today: datetime.date) -> bool:
        if self.until is not None and today > self.until:
            return False
        if any(getattr(self, name) not in (None, getattr(run, name)) for name in WHO):
            return False
        if self.methods is None:
            return True
        named, asked = set(self.methods), set(run.methods)
        return asked <= named if self.answer == "yes" else bool(asked & named)

    @property
    def words(self) -> str:
        whom = [f"{name} {getattr(self, name)!r}" for name in WHO if getattr(self, name)]
        whom += [f"methods {', '.join(self.methods)}"] if self.methods else []
        said: list[str] = [self.answer] if self.answer else []
        said += [f"without {', '.join(self.refuse)}"] if self.refuse else []
        until = f" until {self.until:%Y-%m-%d}" if self.until else ""
        return f"{', '.join(said)} to {', '.join(whom) or 'every run'}{until}"

    @property
    def text(self) -> str:
        """As it stands in a party.toml."""
        lines = ["[[rule]]"]
        for name, value in self.model_dump(exclude_none=True).items():
            if value != []:
                lines.append(f"{name} = {_toml(value)}")
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, datetime.date):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False)


def standing(rules: Sequence[Rule], run: Asking) -> Rule | None:
    """The rule that decides on a run."""
    today = datetime.date.today()
    fitting = [rule for rule in rules if rule.answer is not None and rule.fits(run, today)]
    return fitting[-1] if fitting else None


def refused_kinds(rules: Sequence[Rule], run: Asking) -> frozenset[str]:
    """What does not leave in this run by the rules, besides what the policy refuses."""
    today = datetime.date.today()
    return frozenset(kind for rule in rules if rule.fits(run, today) for kind in rule.refuse)


# ---------------------------------------------------------------- in the text of a party.toml


def with_rule(text: str, rule: Rule) -> str:
    """The text with one rule more, at its end, where a table may always stand."""
    return f"{text.rstrip()}\n\n{rule.text}"


def without_rule(text: str, number: int) -> str:
    """The text without its rule of this number, from 0; all other lines as they were."""
    kept, seen, inside = [], -1, False
    for line in text.splitlines(keepends=True):
        if _BEGINS.match(line):
            seen += 1
            inside = seen == number
        elif line.lstrip().startswith("["):
            inside = False
        if not inside:
            kept.append(line)
    return "".join(kept)
