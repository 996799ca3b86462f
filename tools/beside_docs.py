"""Puts pages that stand outside docs/ into the documentation: architecture, measured tables.

A hook of mkdocs (see mkdocs.yml). The files keep the place where a reader of the repository looks
for them, and links are written as they work there; here they are turned into those of the site.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")
_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def beside() -> dict[str, str]:
    """The files outside docs/ that are pages, or are linked from one: place on the site by path."""
    found = {
        "ARCHITECTURE.md": "architecture.md",
        "CONTRIBUTING.md": "contributing.md",
        "RELEASING.md": "releasing.md",
        "CHANGELOG.md": "changelog.md",
        "benchmarks/README.md": "results/index.md",
    }
    for path in sorted((ROOT / "benchmarks" / "results").iterdir()):
        found[path.relative_to(ROOT).as_posix()] = f"results/{path.name}"
    return {path: place for path, place in found.items() if (ROOT / path).exists()}


def for_site(text: str, page: str) -> str:
    """A page with its links as the site needs them; `page` is its path in the repository.

    >>> for_site("[table](../benchmarks/results/sage.md#digits)", "docs/benchmarks.md")
    '[table](results/sage.md#digits)'
    """
    places = beside()
    here = _place(page, places)

    def turned(link: re.Match[str]) -> str:
        target = normpath(str(PurePosixPath(page).parent / link[2]))
        if not (ROOT / target).exists():
            return link[0]  # made when the site is built, or wrong: the strict build says so
        place = relpath(_place(target, places), str(PurePosixPath(here).parent))
        return f"{link[1]}{place}{link[3] or ''}{link[4]}"

    parts = _CODE.split(text)
    return "".join(each if n % 2 else _LINK.sub(turned, each) for n, each in enumerate(parts))


def _place(path: str, places: dict[str, str]) -> str:
    return places.get(path) or path.removeprefix("docs/")


# ---------------------------------------------------------------- mkdocs


def on_config(config: Any) -> Any:
    """Called by mkdocs before anything else: decisions are in the navigation, newest first."""
    dated = sorted((ROOT / "docs" / "decisions").glob("*.md"), reverse=True)
    config.nav.append({"Decisions": [f"decisions/{path.name}" for path in dated]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs once it has found the pages under docs/."""
    from mkdocs.structure.files import File

    for path, place in beside().items():
        content = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Called by mkdocs with the text of every page."""
    origin = {place: path for path, place in beside().items()}
    return for_site(markdown, origin.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
