"""``${NAME}`` in a federation.toml or party.toml: what stands in the environment, not in the file.

The settings keep the reference as it is written. Its value is looked up when a table is read, and
goes nowhere but to the reader: copies of the file, reports, manifests, kits and messages of errors
show the reference. A password that stands in the file itself gets a reference in its copies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from fedmend.data.sql import replace_passwords, without_password
from fedmend.errors import DataError, ReadError

if TYPE_CHECKING:
    from fedmend.flow.config.settings import PartySettings

REFERENCED = ("data", "test", "uri", "new")
"""The keys of a party in which references stand: where its tables are."""

_SIGN = re.compile(r"\$(?:\$|\{([^}]*)(\}?))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
# A password stands behind "//user:" and before "@", or in an option of that name.
_BEFORE_PASSWORD = re.compile(r"//[^/?#@]*:[^/?#@]*$|password=[^&]*$", re.IGNORECASE)
# A shorter value would be found in half of all sentences.
_SHORTEST_HIDDEN = 3


class Looked(NamedTuple):
    """A value with its references looked up, as it was written, and what they stood for."""

    text: str
    written: str
    values: dict[str, str]

    def hidden(self, words: str) -> str:
        """Words with the references in place of what they stand for."""
        if not self.values:
            return words
        words = words.replace(without_password(self.text), without_password(self.written))
        for name, value in self.values.items():
            for each in (value, quote(value, safe="")):
                if len(each) >= _SHORTEST_HIDDEN:
                    words = words.replace(each, f"${{{name}}}")
        return words

    @contextmanager
    def as_written(self) -> Iterator[None]:
        """Errors inside show what was written."""
        try:
            yield
        except DataError as error:
            if not self.values:
                raise
            error.problem = self.hidden(error.problem)
            error.mend = None if error.mend is None else self.hidden(error.mend)
            if isinstance(error.value, str):
                error.value = self.hidden(error.value)
            # The cause is in a driver's words, which may hold the whole address.
            raise error from None


def look_up(written: str, key: str) -> Looked:
    """A value of a file with its references looked up; ``$$`` is a dollar sign.

    What stands for a password in an address is the password itself: an ``@`` in it needs no
    ``%40``.
    """
    values: dict[str, str] = {}

    def found(sign: re.Match[str]) -> str:
        name = sign[1]
        if name is None:
            return "$"
        if name not in os.environ:
            raise ReadError(
                f"{key} names the environment variable {name}, which is not set",
                mend=f"export {name}=… where fedmend is started, or write $${{{name}}} if this is "
                "no reference",
            )
        value = values[name] = os.environ[name]
        before, after = sign.string[: sign.start()], sign.string[sign.end() :]
        option = before.lower().endswith("password=")
        if key == "uri" and _BEFORE_PASSWORD.search(before) and (option or "@" in after):
            return quote(value, safe="")
        return value

    text = _SIGN.sub(found, written)
    return Looked(text, written, values)


def look_up_names(written: str) -> list[str]:
    """The environment variables that `look_up` would read."""
    return list(dict.fromkeys(sign[1] for sign in _SIGN.finditer(written) if sign[1] is not None))


def begins_elsewhere(path: str) -> bool:
    """Whether a path begins with a reference, so that where it leads is not known here."""
    return _REFERENCE.match(path) is not None


def is_reference(text: str) -> bool:
    """Whether nothing but a reference stands here."""
    return _REFERENCE.fullmatch(text) is not None


def reference_problems(where: str, party: PartySettings) -> Iterator[str]:
    """References of a party that lead nowhere, or that stand where none are looked up."""
    for key in REFERENCED:
        for sign in _SIGN.finditer(getattr(party, key, None) or ""):
            name, closed = sign[1], sign[2]
            if name is not None and not (closed and _NAME.fullmatch(name)):
                yield (
                    f"{where}.{key} has {sign[0]!r}, which names no environment variable. "
                    "Mend: ${NAME} with letters, digits and _, or $${ for the signs themselves"
                )
    for key in ("sql", "test_sql"):
        reference = _REFERENCE.search(getattr(party, key) or "")
        if reference is not None:
            yield (
                f"{where}.{key} has {reference[0]!r}, but environment variables are looked up in "
                f"{', '.join(REFERENCED[:-1])} only. Mend: write the value into the query"
            )


# ---------------------------------------------------------------- passwords


def password_notes(party: PartySettings) -> Iterator[str]:
    """A sentence where a party's address holds a password as it is."""
    if party.uri is not None and with_references(party.uri, party.name) != party.uri:
        name = _variable(party.name)
        yield (
            f"party {party.name!r}: uri holds a password, for all who can read the file. Mend: "
            f"write ${{{name}}} in its place, and export {name}=… where fedmend is started"
        )


def with_references(uri: str, party: str) -> str:
    """A party's address with references in place of passwords; those that are there stay."""
    name, used = _variable(party), 0

    def reference(password: str) -> str:
        nonlocal used
        if not password or is_reference(password):
            return password
        used += 1
        return f"${{{name}}}" if used == 1 else f"${{{name}_{used}}}"

    return replace_passwords(uri, reference)


def _variable(party: str) -> str:
    return f"PASSWORD_{re.sub(r'[^A-Za-z0-9]', '_', party).upper()}"
