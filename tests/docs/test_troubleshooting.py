"""The messages on the page are the program's own: none is invented, none has changed since."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
GAP = "…"


def texts(path: Path) -> list[str]:
    """Every text of a module; a value that is put in shows as a gap."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [
                str(each.value) if isinstance(each, ast.Constant) else GAP for each in node.values
            ]
            found.append("".join(parts))
    return found


@pytest.fixture(scope="module")
def everything() -> str:
    sources = sorted((ROOT / "src" / "fedmend").rglob("*.py"))
    return "\n".join(text for path in sources for text in texts(path))


def messages() -> list[str]:
    rows = re.findall(r"^\| (`.+?) \| .* \| .* \|$", PAGE, flags=re.MULTILINE)
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row)]


def test_there_are_many() -> None:
    assert len(messages()) > 60


@pytest.mark.parametrize("message", messages())
def test_the_program_says_it(message: str, everything: str) -> None:
    for piece in message.split(GAP):
        if piece.strip(" :.,"):
            assert piece.strip() in everything, piece
