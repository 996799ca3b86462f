"""Protocols are tested on columns short enough to be reckoned by hand."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _toys(toy_tables: None) -> None:
    """Tables here have a handful of rows."""
