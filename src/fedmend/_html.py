"""Small tables for notebooks: what ``_repr_html_`` of our objects gives."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def html_table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    below: Iterable[str] = (),
) -> str:
    """A table, with a line above and lines below it; whatever is in it is escaped.

    >>> html_table(["a"], [["<b>"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    lines = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return (
        (f"<p>{html.escape(title)}</p>" if title else "")
        + f"<table><thead><tr>{_cells('th', head)}</tr></thead><tbody>{lines}</tbody></table>"
        + "".join(f"<p>{html.escape(line)}</p>" for line in below)
    )


def _cells(tag: str, values: Sequence[object]) -> str:
    shown = ("" if value is None else html.escape(str(value)) for value in values)
    return "".join(f"<{tag}>{each}</{tag}>" for each in shown)
