"""CSV files that people open in a spreadsheet: no cell of theirs is taken for a formula.

Ids, classes and names of columns are somebody's text, and a spreadsheet runs ``=cmd|…`` as soon as
the file is opened. A text that it would take for a formula gets an apostrophe in front, one that
is a number stays a number. Another locale's spreadsheet begins a new cell at ``;`` or a tab, which
quotes do not hinder behind the first cell, so the same holds behind those. `read` takes exactly
these apostrophes off again: fedmend's own files come back as they were. Parquet needs none.

    >>> [protected(text) for text in ("=1+1", "-5", "-5 to 0", "'=x", "a;=x", "plain")]
    ["'=1+1", '-5', "'-5 to 0", "''=x", "a;'=x", 'plain']
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["APOSTROPHES", "protected", "unprotected", "write_frame"]

# The wide forms are taken for the four signs where text is written in Chinese or Japanese.
_SIGNS = "=+@＝＋－＠-"
_CUTS = r";|\t\r\n"
APOSTROPHES = (r"(^)'('* *[\t\r\n])", rf"(^|[{_CUTS}])'('* *[{_SIGNS}])")
"""What `protected` put in, without which the two groups remain; in the words of RE2, too."""

_FORMULA = re.compile(rf"(?:^|(?<=[{_CUTS}]))(?='* *[{_SIGNS}])|^(?='* *[\t\r\n])")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:[.,][0-9]+)*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?")


def protected(text: str) -> str:
    """A cell or a column's name as it is written."""

    def apostrophe(at: re.Match[str]) -> str:
        piece = re.split(f"[{_CUTS}]", text[at.start() :], maxsplit=1)[0] if at.start() else text
        return "" if _NUMBER.fullmatch(piece) else "'"

    return _FORMULA.sub(apostrophe, text)


def unprotected(text: str) -> str:
    """The text that `protected` wrote."""
    if "'" in text:
        for written in APOSTROPHES:
            text = re.sub(written, r"\1\2", text)
    return text


def write_frame(frame: pd.DataFrame, path: Any, **form: Any) -> None:
    """Write a frame without its index; `form` is that of `DataFrame.to_csv`."""
    columns = [_protected_column(frame.iloc[:, at]) for at in range(frame.shape[1])]
    names = [protected(str(name)) for name in frame.columns]
    texts = [text for column in columns for text in column.unique() if isinstance(text, str)]
    # pandas leaves a lone CR unquoted, at which readers begin a line.
    loose = any("\r" in text for text in (*names, *texts))
    safe = frame.iloc[:, :0].assign(**{str(at): column for at, column in enumerate(columns)})
    form["quoting"] = csv.QUOTE_NONNUMERIC if loose else csv.QUOTE_MINIMAL
    safe.to_csv(path, index=False, header=names, **form)


def _protected_column(column: pd.Series) -> pd.Series:
    words = {text: protected(text) for text in column.unique() if isinstance(text, str)}
    if all(text == word for text, word in words.items()):
        return column
    return column.astype(object).map(lambda cell: words.get(cell, cell))
