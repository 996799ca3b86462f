"""Labels in doubt: where several parties label, what a run thinks of this party's own labels.

A run with ``report.label_review`` leaves its review here, at the party. Its people go through the
suspicious ones; what they say is kept in a file of theirs. The table itself is not touched, and
nothing of it leaves.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedmend._files import write_whole
from fedmend._json import reading
from fedmend.console.party import Party
from fedmend.data.writers import unprotected, write_frame
from fedmend.deploy.history import note
from fedmend.errors import ConfigError
from fedmend.federation.engines.flare.host import RUN_FOLDER
from fedmend.methods.annotators.worker import REVIEW

DECIDED_FILE = "labels-reviewed.csv"
AT_ONCE = 25
_WORDS = ("accept", "reject")
_COLUMNS = ("run", "method", "id", "label", "corrected", "decision", "time")


@dataclass(frozen=True)
class Review:
    """One run's review: the next suspicious rows, and how many are decided and left."""

    run: str
    method: str
    rows: list[dict[str, str]]
    decided: int
    left: int


def open_reviews(party: Party) -> list[Review]:
    """Of every run that left one."""
    decided = {(each["run"], each["method"], each["id"]) for each in _decided(party)}
    found = []
    for path in sorted((party.kit / RUN_FOLDER).glob(f"*/*/{REVIEW}")):
        run, method = path.parts[-3], path.parts[-2]
        rows = _suspicious(path)
        left = [each for each in rows if (run, method, each["id"]) not in decided]
        found.append(Review(run, method, left[:AT_ONCE], len(rows) - len(left), len(left)))
    return found


def decide(party: Party, run: str, method: str, said: Mapping[str, str]) -> str:
    """Keep what was said of some ids: "accept" the corrected label, or "reject" it."""
    reviews = {(each.run, each.method): each for each in open_reviews(party)}
    if (run, method) not in reviews:
        raise ConfigError(f"{run!r} has left no review of {method!r}. Mend: look again")
    asked = {each["id"]: each for each in reviews[run, method].rows}
    wrong = [id_ for id_, word in said.items() if id_ not in asked or word not in _WORDS]
    if wrong:
        raise ConfigError(f"{wrong[0]!r} does not wait for a decision. Mend: look again")
    if not said:
        raise ConfigError("nothing was chosen. Mend: accept or reject at least one row")
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    fresh = [
        {**asked[id_], "run": run, "method": method, "decision": word, "time": now}
        for id_, word in said.items()
    ]
    text = io.StringIO()
    write_frame(pd.DataFrame([*_decided(party), *fresh], columns=list(_COLUMNS)), text)
    write_whole(party.kit / DECIDED_FILE, text.getvalue(), private=True, lasting=True)
    accepted = sum(word == "accept" for word in said.values())
    words = f"{accepted} corrected labels accepted, {len(said) - accepted} rejected"
    note(party.kit, f"labels in doubt of {run}: {words}", where="console")
    return f"{words}; kept in {DECIDED_FILE} of the kit"


def _suspicious(path: Path) -> list[dict[str, str]]:
    needed = ("id", "label", "corrected", "probability", "label_probability", "suspicious")
    with reading(path, "make the run again, with report.label_review = true"):
        rows = [{name: row[name] for name in needed} for row in _rows(path)]
    return [row for row in rows if row["suspicious"].lower() == "true"]


def _decided(party: Party) -> list[dict[str, str]]:
    path = party.kit / DECIDED_FILE
    if not path.is_file():
        return []
    with reading(path, "take it from a backup, or put it elsewhere to begin anew"):
        return [{name: row[name] for name in _COLUMNS} for row in _rows(path)]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return [{key: unprotected(str(value)) for key, value in row.items()} for row in rows]
