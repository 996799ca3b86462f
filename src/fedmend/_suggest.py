"""The closest known word to one that was not understood."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word nearest to ``word``, or None when nothing is near."""
    by_plain = {_plain(option): option for option in known}
    matches = difflib.get_close_matches(_plain(word), by_plain, n=1, cutoff=0.6)
    return by_plain[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean 'epochs'?``, or the list of what there is.

    >>> did_you_mean("epoch", ["epochs", "batch_size"])
    "did you mean 'epochs'?"
    >>> did_you_mean("colour", ["epochs", "batch_size"])
    'choose from: batch_size, epochs'
    """
    options = list(known)
    near = closest(word, options)
    if near is not None:
        return f"did you mean {near!r}?"
    return "choose from: " + ", ".join(sorted(options)) if options else "there is nothing to choose"


def one_of_these(word: str, known: Iterable[str], what: str, most: int | None = None) -> str:
    """What there is, and what may have been meant; of many only the first.

    >>> one_of_these("agee", ["age", "income"], "columns")
    "did you mean 'age'? the columns are: age, income"
    """
    options = list(known)
    near, shown = closest(word, options), ", ".join(options[:most])
    more = ", …" if len(options) > len(options[:most]) else ""
    start = f"did you mean {near!r}? " if near is not None else ""
    return f"{start}the {what} are: {shown or '(none)'}{more}"


def _plain(word: str) -> str:
    return word.lower().replace("_", "-")
