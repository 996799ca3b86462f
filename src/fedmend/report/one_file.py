"""Pages that are one file: the templates, the style they carry, and writing them whole."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

__all__ = ["style", "templates", "write_page"]


def templates() -> Environment:
    """The templates of all pages; what is put into them is escaped."""
    from jinja2 import Environment, PackageLoader, select_autoescape

    return Environment(
        loader=PackageLoader("fedmend.report", "templates"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )


def style() -> Markup:
    """The style sheet, to stand inside a page."""
    from markupsafe import Markup

    sheet = resources.files("fedmend.report") / "templates" / "report.css"
    return Markup(sheet.read_text(encoding="utf-8"))


def write_page(path: Path, text: str) -> Path:
    """Write a page whole or not at all; returns where."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return path
