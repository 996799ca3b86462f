"""Protocols are tested on columns short enough to be reckoned by hand."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _toys(toy_tables):
    """Tables here have a handful of rows."""
