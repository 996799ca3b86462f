"""Passwords that stand in a file: told by `check`, and left out of the copy in a run folder."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedmend.data.sql import replace_passwords
from fedmend.flow.config.environment import is_reference
from fedmend.flow.config.mended import toml_text

if TYPE_CHECKING:
    from fedmend.flow.config.settings import PartySettings

__all__ = ["password_notes", "without_passwords"]

_IN_COMMENT = re.compile(r"(#.*?//[^:@/?\s]*:)([^@\s]+)(?=@)")


def password_notes(party: PartySettings) -> Iterator[str]:
    """A sentence where a party's address holds a password as it is."""
    name = _variable(party.name)
    if party.uri is not None and _referring(party.uri, name) != party.uri:
        yield (
            f"party {party.name!r}: uri holds a password, for all who can read the file. Mend: "
            f"write ${{{name}}} in its place, and export {name}=… where fedmend is started"
        )


def without_passwords(text: str) -> str:
    """A federation.toml with references in place of its passwords.

    >>> print(without_passwords('party = [{name = "bank", uri = "postgresql://me:pw@db/x"}]'))
    party = [{name = "bank", uri = "postgresql://me:${PASSWORD_BANK}@db/x"}]
    """
    content = tomllib.loads(text)
    for party in content.get("party", []):
        uri = party.get("uri")
        if isinstance(uri, str):
            party["uri"] = _referring(uri, _variable(str(party.get("name", ""))))
            text = text.replace(uri, party["uri"]) if uri else text
    commented = _IN_COMMENT.sub(_starred, text)
    for candidate in (commented, text):
        if _parsed(candidate) == content:
            return candidate
    return toml_text(content)  # an address that is written with escapes: comments are lost


def _referring(uri: str, name: str) -> str:
    """The address with references in place of passwords; those that are there stay."""
    used = 0

    def reference(password: str) -> str:
        nonlocal used
        if not password or is_reference(password):
            return password
        used += 1
        return f"${{{name}}}" if used == 1 else f"${{{name}_{used}}}"

    return replace_passwords(uri, reference)


def _variable(party: str) -> str:
    return f"PASSWORD_{re.sub(r'[^A-Za-z0-9]', '_', party).upper()}"


def _starred(found: re.Match[str]) -> str:
    return found[0] if is_reference(found[2]) else f"{found[1]}***"


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
