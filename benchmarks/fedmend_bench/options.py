"""Options that name several things: ``-o methods=VFL,RISA``, a list from Python, or one value."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError

__all__ = ["chosen", "listed", "numbered"]


def listed(given: Any) -> list[Any]:
    """The values of an option, however it was given.

    >>> listed("bank, credit"), listed((1, 2)), listed(3)
    (['bank', 'credit'], [1, 2], [3])
    """
    if isinstance(given, str):
        return [each.strip() for each in given.split(",") if each.strip()]
    return list(given) if isinstance(given, Iterable) else [given]


def numbered(given: Any, first: int = 0) -> list[int]:
    """The seeds of an option: so many, or which.

    >>> numbered(3, first=5), numbered("7,9")
    ([5, 6, 7], [7, 9])
    """
    if isinstance(given, int):
        return list(range(first, first + given))
    return [int(each) for each in listed(given)]


def chosen(option: str, given: Any, known: Collection[str]) -> list[str]:
    """The names of an option, which must be known; ``all`` of them, or ``none``.

    >>> chosen("parts", "all", ("cost", "curve"))
    ['cost', 'curve']
    """
    names = listed(given)
    if names in (["all"], ["none"]):
        return list(known) if names == ["all"] else []
    problems = [
        f"{option}: there is no {name!r}: {did_you_mean(str(name), list(known))}"
        for name in names
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    return names
