"""What the forms of the console do. Each is a function of the party and the form's fields."""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedmend._json import plain
from fedmend._suggest import did_you_mean
from fedmend._version import __version__
from fedmend.console.models import kept_models, put_back, revoke
from fedmend.console.pages import left_by_recipient, rows_asked, spent_on_labels
from fedmend.console.party import Party
from fedmend.console.reviews import decide
from fedmend.deploy.consent import give_answer
from fedmend.deploy.history import add_rule, decisions, note, remove_rule
from fedmend.deploy.ledgers import ACCOUNT_FORMAT, reconcile_run, signed
from fedmend.deploy.party_file import confirm, unconfirmed
from fedmend.deploy.rules import WHO, Rule
from fedmend.errors import ConfigError
from fedmend.federation.ledger import inspect_ledger

Form = Mapping[str, str]
HERE = "console"


@dataclass(frozen=True)
class Download:
    """A file for the browser to keep."""

    name: str
    kind: str
    content: str


def _decide(party: Party, form: Form) -> str:
    said = form.get("answer")
    if said not in ("yes", "no", "until"):
        raise ConfigError(f"{said!r} is no answer. Mend: yes, no, or yes until a day")
    until = _day(form.get("until", "")) if said == "until" else None
    if said == "until" and until is None:
        raise ConfigError("the day is missing. Mend: choose until when")
    question = give_answer(
        party.kit, said != "no", mark=form.get("question", ""), until=until, where=HERE
    )
    how = f"yes until {until}" if until else said
    return f"{how}: {question.words}"


def _day(text: str) -> datetime.date | None:
    if not text:
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no day. Mend: write it as 2026-12-31") from None


def _new_rule(party: Party, form: Form) -> str:
    given: dict[str, Any] = {name: form.get(name, "").strip() or None for name in WHO}
    given["methods"] = _names(form.get("methods", "")) or None
    given["refuse"] = _names(form.get("refuse", ""))
    given["answer"] = form.get("answer") or None
    given["until"] = _day(form.get("until", ""))
    try:
        rule = Rule(**given)
    except ValidationError as error:
        words = [str(each["msg"]).removeprefix("Value error, ") for each in error.errors()]
        raise ConfigError(f"this is no rule: {'; '.join(words)}") from None
    known = party.methods()
    for name in rule.methods or ():
        if name not in known:
            raise ConfigError(f"no method {name!r} is installed here: {did_you_mean(name, known)}")
    add_rule(party.kit, rule, where=HERE)
    return f"new rule: {rule.words}"


def _names(text: str) -> list[str]:
    return [each for each in re.split(r"[\s,]+", text) if each]


def _drop_rule(party: Party, form: Form) -> str:
    number, words = form.get("number", ""), form.get("words", "")
    at = int(number) if number.isascii() and number.isdigit() and len(number) < 5 else -1
    remove_rule(party.kit, at, words, where=HERE)
    return f"rule taken out: {words}"


def _confirm(party: Party, form: Form) -> str:
    file = party.file
    seen = set(_names(form.get("leads", "")))
    fresh = unconfirmed(file)
    if not fresh or {lead.digest for lead in fresh} != seen:
        raise ConfigError("party.toml leads elsewhere by now. Mend: read its lines again")
    confirm(file)
    note(party.kit, f"confirmed: {'; '.join(lead.words for lead in fresh)}", where=HERE)
    return "confirmed: a change of these lines has to be confirmed again"


def _start(party: Party, form: Form) -> str:
    if unconfirmed(party.file):
        raise ConfigError("party.toml leads to what nobody has confirmed. Mend: confirm it first")
    found = party.daemon.start()
    note(party.kit, "started the party", where=HERE)
    return f"{party.name} takes part (process {found.supervisor})"


def _stop(party: Party, form: Form) -> str:
    if not party.daemon.stop():
        raise ConfigError(f"{party.name} was not running. Mend: nothing to do")
    note(party.kit, "stopped the party", where=HERE)
    return f"{party.name} has ended, and takes part in nothing"


def _revoke(party: Party, form: Form) -> str:
    return revoke(party, form.get("run", ""), form.get("method", ""))


def _put_back(party: Party, form: Form) -> str:
    return put_back(party, form.get("run", ""), form.get("method", ""))


def _labels(party: Party, form: Form) -> str:
    said = {name.removeprefix("row:"): form[name] for name in form if name.startswith("row:")}
    return decide(party, form.get("run", ""), form.get("method", ""), said)


def _reconcile(party: Party, form: Form) -> dict[str, Any]:
    """Compare an own ledger with the copy that the coordinator sent."""
    ledgers = {path.stem: path for path in party.ledgers()}
    run, theirs = form.get("run", ""), form.get("theirs", "").strip()
    if run not in ledgers:
        raise ConfigError(f"there is no ledger of the run {run!r}. Mend: choose one of the list")
    if not theirs:
        raise ConfigError("the coordinator's ledger is missing. Mend: name its file, or run folder")
    place = Path(theirs).expanduser()
    return {"said": reconcile_run(place, [f"{party.name}={ledgers[run]}"])}


def _account_of(party: Party) -> dict[str, Any]:
    """All that this party decided and let out, for a data-protection officer: one signed file.

    Ledgers are in it line by line, so that their chains can be checked by whoever gets it; a
    ledger that was altered is in it too, and is told by the check.
    """
    file = party.file
    entries = [entry for path in party.ledgers() for entry in inspect_ledger(path).entries]
    content: dict[str, Any] = {
        "format": ACCOUNT_FORMAT,
        "fedmend": __version__,
        "party": party.name,
        "exported": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "in words": [
            f"{each['recipient']}: {each['words']}"
            for each in left_by_recipient(party.name, entries)
        ],
        "policy": file.policy.model_dump(exclude_none=True),
        "approve": file.approve,
        "rules": [rule.words for rule in file.rule],
        "history": [asdict(each) for each in decisions(party.kit)],
        "labels told at random": spent_on_labels(party),
        "rows asked about": rows_asked(party),
        "models": [asdict(each) for each in kept_models(party)],
        "ledgers": {
            path.stem: path.read_text(encoding="utf-8", errors="replace").splitlines()
            for path in party.ledgers()
        },
    }
    return signed(content, file)


def _export(party: Party, form: Form) -> Download:
    text = json.dumps(plain(_account_of(party)), indent=2, ensure_ascii=False)
    note(party.kit, "exported the account of this party, signed", where=HERE)
    name = f"fedmend-{party.name}-{datetime.date.today()}.json"
    return Download(name, "application/json", text)


ACTIONS: dict[str, tuple[str, Callable[[Party, Form], str | dict[str, Any] | Download]]] = {
    "/decide": ("/", _decide),
    "/confirm": ("/", _confirm),
    "/start": ("/", _start),
    "/stop": ("/", _stop),
    "/rules/new": ("/rules", _new_rule),
    "/rules/drop": ("/rules", _drop_rule),
    "/models/revoke": ("/models", _revoke),
    "/models/back": ("/models", _put_back),
    "/labels/decide": ("/labels", _labels),
    "/ledgers/compare": ("/ledgers", _reconcile),
    "/ledgers/export": ("/ledgers", _export),
}
"""By path: the page that shows what came of it, and what is done. Words are shown there once."""
