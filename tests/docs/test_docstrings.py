"""Examples in docstrings say what the code does."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import fedmend

ROOT = Path(fedmend.__file__).parent
SHOWING = [
    ".".join(["fedmend", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", SHOWING)
def test_examples_in_docstrings_hold(name):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testmod(import_module(name), optionflags=flags)
    assert not found.failed
