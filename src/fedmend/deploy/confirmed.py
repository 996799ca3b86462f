"""Where a party.toml leads, seen and confirmed by the party before it is first used.

The coordinator's `fedmend provision` writes a party's file, and whoever writes ``uri`` or
``${NAME}`` there decides which database is called and which of the party's environment variables
goes to it. So each of these is shown and confirmed once, at the party, by its people; what they
confirmed is remembered as hashes in the kit, and a change has to be confirmed again. A file that
names nothing but tables beside it has nothing to confirm, and a federation in one process is its
owner's own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedmend._files import write_whole
from fedmend.data.sql import replace_passwords
from fedmend.errors import ConfigError, Refused
from fedmend.federation.engines.flare.events import printable
from fedmend.flow.config.references import REFERENCED, is_reference, look_up_names

if TYPE_CHECKING:
    from fedmend.deploy.party_file import PartyFile

__all__ = ["CONFIRMED_FILE", "Lead", "confirm", "require_confirmed", "unconfirmed"]

CONFIRMED_FILE = "confirmed.json"


class Lead(NamedTuple):
    """A line of a party.toml that leads out of its folder: its key, as it is shown, its hash."""

    key: str
    words: str
    digest: str


def unconfirmed(file: PartyFile) -> list[Lead]:
    """What the party's people have not seen yet."""
    known = _known(file.at(CONFIRMED_FILE))
    return [lead for lead in _leads(file) if lead.digest not in known]


def confirm(file: PartyFile) -> None:
    """Remember all that the file leads to now, and nothing that it led to before."""
    content = json.dumps({"confirmed": sorted(lead.digest for lead in _leads(file))})
    write_whole(file.at(CONFIRMED_FILE), content, private=True)


def require_confirmed(file: PartyFile) -> None:
    """Nothing is called or looked up that the party has not confirmed.

    The refusal goes to the coordinator, and names keys only.
    """
    missing = unconfirmed(file)
    if missing:
        keys = ", ".join(dict.fromkeys(lead.key for lead in missing))
        raise Refused(
            file.name,
            f"its people have not confirmed where its party.toml leads ({keys})",
            "'fedmend party confirm' there shows it and asks",
        )


def _leads(file: PartyFile) -> Iterator[Lead]:
    for key in REFERENCED:
        value = getattr(file, key)
        names = look_up_names(value) if value is not None else []
        if names or (key == "uri" and value is not None):
            reads = f"   (reads {', '.join(names)} from the environment)" if names else ""
            yield _lead(key, value, reads)
    for key in ("sql", "test_sql"):
        if getattr(file, key) is not None:
            yield _lead(key, getattr(file, key))
    for party, address in sorted(file.spu_addresses.items()):
        yield _lead(f"spu_addresses.{party}", address)


def _lead(key: str, value: str, more: str = "") -> Lead:
    plain = replace_passwords(value, lambda secret: secret if is_reference(secret) else "***")
    shown = re.sub(r"\s+", " ", printable(plain))
    digest = hashlib.sha256(json.dumps([key, value]).encode()).hexdigest()
    return Lead(key, f'{key} = "{shown}"{more}', digest)


def _known(path: Path) -> set[str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(each) for each in content["confirmed"]}
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged ({type(error).__name__}). Mend: remove it, and confirm again with "
            "'fedmend party confirm'"
        ) from error
