"""One declared rule by which ids of different parties are compared.

    exact   the same type and the same characters: 7 is not '7', 'Ann' is not 'ann'
    text    as people read them: numbers as decimal digits, unicode in form NFC, letters without
            case (Unicode case folding), spaces trimmed and runs of them made one: 7 is '7',
            ' ANN  Lee' is 'ann lee'. Leading zeros count: '007' is not '7'.
    number  the same, but digits are a number: '007' is '7' and 7

All parties must use the same rule; it travels with what they send each other and is checked.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError, DataError


def _exact(value: int | str) -> bytes:
    # Without the letter in front, the number 7 and the text '7' would be the same bytes.
    return b"s" + value.encode() if isinstance(value, str) else b"i%d" % value


def _text(value: int | str) -> bytes:
    if not isinstance(value, str):
        return b"%d" % value
    # Case folding can undo the normal form and can ask for it first (Unicode, definition D145).
    folded = unicodedata.normalize("NFD", value).casefold()
    return " ".join(unicodedata.normalize("NFC", folded).split()).encode()


def _number(value: int | str) -> bytes:
    text = _text(value)
    return (text.lstrip(b"0") or b"0") if text.isdigit() else text


RULES: dict[str, Callable[[int | str], bytes]] = {
    "exact": _exact,
    "text": _text,
    "number": _number,
}


# A looser rule is worth a word when it finds so many more people. Of numbers of a fixed width one
# in ten begins with a zero, and with more parties fewer pairs have lost them.
MANY_MORE = 1.02


def shared_by_rule(known: Sequence[Collection[int | str]]) -> dict[str, int]:
    """How many ids every two of the parties share, all in all, by each rule.

    A rule that makes one id of two of a party is left out.
    """
    found = {}
    for rule, make in RULES.items():
        made = [{make(each) for each in own} for own in known]
        if all(len(keys) == len(own) for keys, own in zip(made, known, strict=True)):
            found[rule] = sum(len(one & two) for one, two in itertools.combinations(made, 2))
    return found


def better_rule(shared: Mapping[str, int], rule: str) -> str:
    """The strictest rule that finds most people, or all but a few of them."""
    for other in RULES:
        if shared.get(other, 0) > MANY_MORE * shared.get(rule, 0):
            rule = other
    return rule


def check_rule(rule: str) -> str:
    if rule not in RULES:
        raise ConfigError(f"there is no rule normalise={rule!r}: {did_you_mean(rule, RULES)}")
    return rule


def normalised(ids: np.ndarray, rule: str, party: str) -> list[bytes]:
    """The ids as the bytes that are compared; ids that become one under the rule are an error.

    Errors name rows, never ids: they may be read by others.
    """
    make = RULES[check_rule(rule)]
    try:
        keys = [make(value) for value in ids.tolist()]
    except UnicodeEncodeError as error:
        raise DataError(
            "an id is not valid unicode text",
            party=party,
            mend="read the file with its right encoding",
        ) from error
    first: dict[bytes, int] = {}
    for row, key in enumerate(keys):
        earlier = first.setdefault(key, row)
        if earlier != row:
            raise DataError(
                f"the ids of rows {earlier} and {row} are one id under normalise={rule!r}",
                party=party,
                mend="keep one of the two rows, or align with normalise='exact'",
            )
        if not key:
            raise DataError(
                f"the id of row {row} is empty under normalise={rule!r}",
                party=party,
                mend="give the row an id or drop it",
            )
    return keys


def type_of_ids(ids: np.ndarray) -> str:
    return "integers" if np.issubdtype(ids.dtype, np.integer) else "text"


def describe_ids(ids: np.ndarray) -> str:
    """How the ids are written, without a single one of them: for finding out why none match."""
    if type_of_ids(ids) == "integers":
        return "integers"
    texts: list[str] = ids.tolist()
    traits = {
        "digits only": all(text.isdecimal() for text in texts),
        "with leading zeros": any(text.startswith("0") and text.isdecimal() for text in texts),
        "with capital letters": any(text != text.lower() for text in texts),
        "with spaces at the ends or doubled": any(text != " ".join(text.split()) for text in texts),
        "not in unicode form NFC": any(
            not unicodedata.is_normalized("NFC", text) for text in texts
        ),
    }
    return ", ".join(["text", *(trait for trait, holds in traits.items() if holds and texts)])
