"""Pages that are one file: the templates, the style they carry, and writing them whole."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

__all__ = ["content_policy", "style", "templates", "with_policy"]

_META = '<meta http-equiv="Content-Security-Policy" content="{}">'


def templates() -> Environment:
    """The templates of all pages; what is put into them is escaped."""
    from jinja2 import Environment, PackageLoader, select_autoescape
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("fedmend.report", "templates"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["policy"] = Markup(_META.format(content_policy()))
    return environment


def content_policy(scripts: Sequence[str] = ()) -> str:
    """What a page may do, as its Content-Security-Policy: show itself, and nothing else.

    Should a value ever get into a page unescaped, it runs nothing and loads nothing: the style
    sheet, the pictures inside the page and `scripts` (which may ask their own server) are all
    that a browser admits, by their hashes.
    """
    admitted = " ".join(map(_hash, scripts))
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src {_hash(style())}",
            "img-src data:",
            *([f"script-src {admitted}", "connect-src 'self'"] if scripts else []),
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def with_policy(page: str, policy: str) -> str:
    """A page under another policy than the one it was written with."""
    rest = re.sub(_META.format('[^"]*'), "", page, count=1)
    return re.sub("(?<=<head>)", lambda _: _META.format(policy), rest, count=1)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def style() -> Markup:
    """The style sheet, to stand inside a page."""
    from markupsafe import Markup

    sheet = resources.files("fedmend.report") / "templates" / "report.css"
    return Markup(sheet.read_text(encoding="utf-8"))
