"""What the people of a party decided: who, when, what, and what it was before.

A file of JSON lines in the kit. Rules are changed here, in the text of the party's own file, so
that every change is in the history; one that was made with an editor is noticed and noted.
"""

from __future__ import annotations

import getpass
import json
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from fedmend._files import write_whole
from fedmend._json import reading, typed
from fedmend.deploy.party_file import PARTY_FILE, load_party, party_of
from fedmend.deploy.rules import Rule, with_rule, without_rule
from fedmend.errors import ConfigError

HISTORY_FILE = "history.jsonl"
BY_HAND = "somebody, in party.toml itself"


@dataclass(frozen=True)
class Decision:
    """One line of the history. rules: those in force after it, in words; None where untouched."""

    time: float
    who: str
    what: str
    rules: list[str] | None = None


def decisions(kit: Path) -> list[Decision]:
    """All that was decided, the oldest first."""
    path = kit / HISTORY_FILE
    if not path.is_file():
        return []
    with reading(path, "take it from a backup; what is decided from now on begins a new one"):
        return [typed(Decision, json.loads(line)) for line in path.read_bytes().splitlines()]


def note(kit: Path, what: str, *, where: str = "", rules: list[str] | None = None) -> None:
    """Write down what was decided by whoever is logged in here."""
    who = f"{_user()}{f' ({where})' if where else ''}"
    _append(kit, Decision(time.time(), who, what, rules))


def notice_edits(kit: Path, rules: list[Rule]) -> None:
    """Note that the rules are not those that the history ended with."""
    known = [each.rules for each in decisions(kit) if each.rules is not None]
    before, now = known[-1] if known else [], [rule.words for rule in rules]
    if before != now:
        was = "; ".join(before) or "none"
        _append(kit, Decision(time.time(), BY_HAND, f"other rules; before: {was}", now))


def add_rule(kit: Path, rule: Rule, *, where: str) -> None:
    """Put a rule at the end of the party's file, where it decides before all others."""
    text, rules = _present(kit)
    _change(kit, with_rule(text, rule), [*rules, rule], f"new rule: {rule.words}", where)


def remove_rule(kit: Path, number: int, words: str, *, where: str) -> None:
    """Take a rule out; `words` are those of the rule that is meant, should others have changed."""
    text, rules = _present(kit)
    if not 0 <= number < len(rules) or rules[number].words != words:
        raise ConfigError("the rules have changed meanwhile. Mend: look at them again")
    left = [rule for at, rule in enumerate(rules) if at != number]
    _change(kit, without_rule(text, number), left, f"rule taken out: {words}", where)


def _present(kit: Path) -> tuple[str, list[Rule]]:
    rules = load_party(kit).rule
    notice_edits(kit, rules)
    return (kit / PARTY_FILE).read_text(encoding="utf-8"), rules


def _change(kit: Path, text: str, expected: list[Rule], what: str, where: str) -> None:
    """Write the file if the rules in it are those that are meant, and all else is as it was."""
    path = kit / PARTY_FILE
    before = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        found, now = party_of(text, path), tomllib.loads(text)
    except (ConfigError, tomllib.TOMLDecodeError):
        found, now = None, {}
    same = {**before, "rule": 0} == {**now, "rule": 0}
    if found is None or found.rule != expected or not same:
        raise ConfigError(
            "the rules cannot be changed from here, as the file writes them in another way than "
            f"as [[rule]] tables. Mend: change them in {path}"
        )
    mode = path.stat().st_mode & 0o777
    write_whole(path, text, private=True, lasting=True)  # a password may stand in it
    path.chmod(mode)
    note(kit, what, where=where, rules=[rule.words for rule in expected])


def _append(kit: Path, decision: Decision) -> None:
    with (kit / HISTORY_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(decision)) + "\n")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a process of a user without a name
        return "somebody"
