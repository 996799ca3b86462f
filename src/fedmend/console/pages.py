"""What each page of the console shows: a function of the party, and a template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from fedmend.audit.result import read_audit
from fedmend.audit.statement import lines_of
from fedmend.console.models import kept_models, who_may_ask
from fedmend.console.party import Party
from fedmend.console.reviews import open_reviews
from fedmend.deploy.consent import Question
from fedmend.deploy.history import decisions, notice_edits
from fedmend.deploy.party_check import check_party
from fedmend.deploy.party_file import unconfirmed
from fedmend.deploy.party_screen import crossing_words
from fedmend.deploy.rules import Asking, refused_kinds
from fedmend.errors import FedmendError
from fedmend.federation.kinds import KINDS
from fedmend.federation.labels import LabelRecords
from fedmend.federation.ledger import Chain, Entry, inspect_ledger, read_line
from fedmend.federation.policy import MACHINES_PREDICTIONS, Policy
from fedmend.federation.rows import asked_about
from fedmend.federation.site import RECORDS, ROWS_FILE
from fedmend.methods.costs import Cost, Facts
from fedmend.methods.registry import METHODS, PUBLIC, estimate
from fedmend.report.record import AUDIT_FILE
from fedmend.report.words import flows, name_of

EVENTS_SHOWN, CROSSINGS_SHOWN, PREVIEW_ROWS = 20, 12, 8
TAIL_BYTES = 1 << 14
Shown = dict[str, Any]


# ---------------------------------------------------------------- the first page


def _inbox(party: Party) -> Shown:
    file, question = party.file, party.question()
    return {
        "question": question,
        "asked": _asked(party, question) if question else None,
        "approve": file.approve,
        "leads": unconfirmed(file),
        "connected": party.daemon.is_connected(),
        "events": party.events(EVENTS_SHOWN),
        "crossings": list(_last_crossings(party)),
    }


def _asked(party: Party, question: Question) -> Shown:
    """A request in plain words: what each kind is, of about how many rows, and what it can tell."""
    file = party.file
    policy = file.policy.build()
    facts = _facts(party)
    rows = max(facts.rows.values()) if facts else None
    return {
        "kinds": [
            {
                "name": kind,
                "words": KINDS[kind].words,
                "rows": _how_many(kind, rows, policy),
                "tells": KINDS[kind].tells,
                "severity": KINDS[kind].severity,
            }
            for kind in question.kinds
            if kind in KINDS
        ],
        "withheld": sorted(refused_kinds(file.rule, question)),
        "methods": [
            (name, METHODS[name].words if name in METHODS else "a stage of a run")
            for name in question.methods
        ],
        "cost": _cost(question, facts) if facts else None,
        "audits": list(_rehearsals(party, question)),
    }


def _how_many(kind: str, rows: int | None, policy: Policy) -> str:
    if KINDS[kind].by_row:
        most = f"up to {rows:,}" if rows else "an unknown number"
        return f"one for each row that you share, {most}; again in every pass of a training"
    if KINDS[kind].aggregate:
        return f"over all rows at once, at least {policy.min_rows} under each answer"
    return f"up to {rows:,} ids" if kind == "hashed-id" and rows else "no row by itself"


def _facts(party: Party) -> Facts | None:
    """Sizes of a federation of this party and one other like it; None if the table is not read."""
    try:
        table = party.table()
    except FedmendError:
        return None
    rows, features = len(table), max(1, len(table.feature_names))
    both = {party.name: rows, "the others": rows}
    return Facts(both, dict.fromkeys(both, features), (party.name,), rows)


def _cost(question: Question, facts: Facts) -> Shown | None:
    """Of all methods together, as far as somebody has measured them."""
    known = [name for name in question.methods if name in METHODS and METHODS[name].rate]
    if not known:
        return None
    total = sum((estimate(name, facts) for name in known), start=Cost(0.0, 0))
    return {"seconds": total.seconds, "bytes": total.bytes, "methods": known}


def _rehearsals(party: Party, run: Asking) -> Iterator[Shown]:
    """What an audit found of these methods, where the party keeps one in its kit."""
    if not (party.kit / AUDIT_FILE).is_file():
        return

    for report in read_audit(party.kit):
        if report.method in PUBLIC and PUBLIC[report.method].name in run.methods:
            yield {"head": report.head(), "lines": report.in_short(), "mends": report.mends()}


def _last_crossings(party: Party) -> Iterator[tuple[float, str]]:
    """Of the latest run; only the end of its ledger is read, as this is done every second."""
    for path in party.ledgers()[:1]:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().split(b"\n")
        shown = 0
        for line in reversed(lines):
            with suppress(ValueError):  # cut off at the beginning, or being written
                entry = read_line(line)
                if entry.is_crossing and shown < CROSSINGS_SHOWN:
                    shown += 1
                    yield entry.until, crossing_words(entry)


# ---------------------------------------------------------------- rules


def _rules(party: Party) -> Shown:
    file = party.file
    notice_edits(party.kit, file.rule)
    policy = file.policy.build()
    return {
        "rules": list(enumerate(file.rule)),
        "approve": file.approve,
        "policy": file.policy.model_dump(exclude_none=True),
        "leaves": sorted(policy.may_leave - {"control"}),
        "kinds": [kind for kind in KINDS if kind != "control"],
        "methods": party.methods(),
        "history": decisions(party.kit)[::-1],
    }


# ---------------------------------------------------------------- what left


def _left(party: Party) -> Shown:
    runs = []
    everything: list[Entry] = []
    for path in party.ledgers():
        chain = inspect_ledger(path)
        everything += chain.entries
        runs.append(
            {
                "name": path.stem,
                "whole": not chain.flaws,
                "chain": _chain_words(chain),
                "left": left_by_recipient(party.name, chain.entries),
            }
        )
    return {
        "all": left_by_recipient(party.name, everything),
        "runs": runs,
        "rows": rows_asked(party),
        "labels": spent_on_labels(party),
        "ceiling": party.file.policy.build().label_epsilon,
    }


def _chain_words(chain: Chain) -> str:
    if chain.flaws:
        first = chain.flaws[0]
        return f"not as it was written: line {first.line:,} {first.words}"
    return (
        f"{chain.head.lines:,} lines, all as written; the last has the hash {chain.head.hash[:16]}"
    )


def left_by_recipient(party: str, entries: Sequence[Entry]) -> list[Shown]:
    """Who can read what left this party: by recipient and kind, how often and how much."""
    mine = [entry for entry in entries if entry.sender == party]
    lines: Counter[tuple[str, str]] = Counter()
    for entry in mine:
        if entry.is_crossing and entry.readable in KINDS and KINDS[entry.readable].by_row:
            lines[entry.sealed_for or entry.receiver, entry.readable] += lines_of(entry)
    found = []
    for flow in flows(mine):
        whom = flow.sealed_for or flow.receiver
        found.append(
            {
                "recipient": name_of(whom),
                "kind": "error messages" if flow.error else flow.kind,
                "words": flow.words,
                "refused": flow.refused,
                "lines": lines[whom, flow.kind] if not flow.refused else 0,
                "exposure": flow.exposure if not flow.passed_on else KINDS[flow.kind].exposure,
                "bytes": flow.bytes,
                "crossings": flow.crossings,
            }
        )
    return sorted(found, key=lambda each: (each["recipient"], each["refused"], each["kind"]))


def rows_asked(party: Party) -> list[Shown]:
    """By run and by what was asked: how many sets of rows, and how often one row was in them."""
    sets: dict[tuple[str, str], list[Any]] = {}
    for run, about, rows in asked_about(party.kit / RECORDS / ROWS_FILE):
        sets.setdefault((run, about), []).append(rows)
    return [
        {
            "run": run,
            "about": about,
            "sets": len(group),
            "rows": len(set().union(*(each.tolist() for each in group))),
            "smallest": min(len(each) for each in group),
            "often": max(Counter(row for each in group for row in each.tolist()).values()),
        }
        for (run, about), group in sets.items()
    ]


def spent_on_labels(party: Party) -> list[Shown]:
    """What was told of labels at random, over all runs."""
    records = LabelRecords(party.name, party.kit / RECORDS)
    return [
        {
            "column": column,
            "spent": records.spent(column),
            "spendings": [each for each in records.spendings if each["column"] == column],
        }
        for column in records.columns()
    ]


# ---------------------------------------------------------------- my table


def _table(party: Party) -> Shown:
    shown: Shown = {"checks": check_party(party.kit, seconds=2.0), "columns": [], "preview": None}
    with suppress(FedmendError):  # the checks say why
        table = party.table()
        first = table.frame.head(PREVIEW_ROWS)
        shown["columns"] = table.describe()
        shown["preview"] = [
            [party.file.id or "row", *map(str, first.columns)],
            *(
                [str(id_), *map(str, row)]
                for id_, row in zip(table.ids[: len(first)], first.itertuples(False), strict=True)
            ),
        ]
        shown["rows"] = len(table)
    return shown


# ---------------------------------------------------------------- the others


def _models(party: Party) -> Shown:
    file = party.file
    policy = file.policy.build()
    return {
        "models": kept_models(party),
        "predictions": MACHINES_PREDICTIONS if policy.predictions is None else policy.predictions,
        "methods": file.policy.methods,
        "served": who_may_ask(file),
    }


def _labels(party: Party) -> Shown:
    return {"reviews": open_reviews(party)}


def _ledgers(party: Party) -> Shown:
    return {
        "ledgers": [(path.stem, _chain_words(inspect_ledger(path))) for path in party.ledgers()],
        "said": None,
    }


PAGES: dict[str, tuple[str, str, Callable[[Party], Shown]]] = {
    "/": ("inbox.html", "Inbox", _inbox),
    "/rules": ("rules.html", "Rules", _rules),
    "/left": ("left.html", "What left", _left),
    "/table": ("table.html", "My table", _table),
    "/models": ("models.html", "Models", _models),
    "/labels": ("labels.html", "Labels in doubt", _labels),
    "/ledgers": ("ledgers.html", "Ledgers and export", _ledgers),
}
"""By path: the template, what the page is called, and what makes it."""
