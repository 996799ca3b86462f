"""Models this party is part of: what it keeps of each run, who may ask it, and taking it away.

Without its part nobody can be answered, neither the coordinator nor the party itself. A part that
was revoked lies beside the runs, in the same kit, and can be put back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fedmend.console.party import Party
from fedmend.deploy.history import note
from fedmend.deploy.party_file import PartyFile
from fedmend.errors import ConfigError
from fedmend.federation.engines.flare.host import RUN_FOLDER
from fedmend.split.parts import FILE, MANIFEST

REVOKED_FOLDER = "revoked"
_PLAIN = re.compile(r"[\w-][\w.-]*")  # as parties let runs be named


@dataclass(frozen=True)
class KeptPart:
    """A party's part of one model. alone: it can decide without the others."""

    run: str
    method: str
    time: float
    bytes: int
    alone: bool
    revoked: bool


def kept_models(party: Party) -> list[KeptPart]:
    """All parts in the kit, the latest first."""
    found = []
    for folder, revoked in ((RUN_FOLDER, False), (REVOKED_FOLDER, True)):
        for path in (party.kit / folder).glob("*/*/"):
            files = [each for each in path.iterdir() if each.is_file()]
            names = {each.name for each in files}
            if names & {FILE, MANIFEST}:
                found.append(
                    KeptPart(
                        path.parent.name,
                        path.name,
                        max(each.stat().st_mtime for each in files),
                        sum(each.stat().st_size for each in files),
                        MANIFEST in names,
                        revoked,
                    )
                )
    return sorted(found, key=lambda part: part.time, reverse=True)


def who_may_ask(file: PartyFile) -> dict[str, str]:
    """What party.toml says of answers while the models here are served."""
    named, settings = ", ".join, file.serve
    if file.label is not None:
        who = (
            f"{named(settings.askers)}, each by a token"
            if settings.askers
            else "whoever can use this machine: askers under [serve] would name who may"
        )
    elif file.policy.methods is not None and "serve" not in file.policy.methods:
        who = 'nobody: methods under [policy] does not name "serve"'
    elif not file.partners:
        who = "nobody: party.toml names no partners"
    else:
        who = f"the one who has the labels among {named(file.partners)}, by its certificate"
    quota = settings.quota
    return {
        "who may ask": who,
        "how often": "as often as they like: quota under [serve] would bound it"
        if quota is None
        else f"{quota} answer{'s' * (quota > 1)} about one person a day, to each who asks",
        "which models": "all below that are not revoked"
        if settings.runs is None
        else f"those of {named(settings.runs) or 'no run'}",
    }


def revoke(party: Party, run: str, method: str) -> str:
    """Take a part away from where it is looked for."""
    _move(party, run, method, RUN_FOLDER, REVOKED_FOLDER)
    note(party.kit, f"revoked: {method} of {run}", where="console")
    return f"{method} of {run} is revoked: nobody is answered with it any more"


def put_back(party: Party, run: str, method: str) -> str:
    """Put a part back to where it is looked for."""
    _move(party, run, method, REVOKED_FOLDER, RUN_FOLDER)
    note(party.kit, f"put back: {method} of {run}", where="console")
    return f"{method} of {run} is back"


def _move(party: Party, run: str, method: str, source: str, target: str) -> None:
    there: list[Path] = [party.kit / each / run / method for each in (source, target)]
    plain = _PLAIN.fullmatch(run) and _PLAIN.fullmatch(method)
    if not plain or not there[0].is_dir() or there[1].exists():
        raise ConfigError(
            f"there is no model {method!r} of the run {run!r} to be moved. Mend: look again"
        )
    there[1].parent.mkdir(parents=True, exist_ok=True)
    there[0].rename(there[1])
