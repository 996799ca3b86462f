"""Benchmarks are run, not believed: their trainings are short here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def short_trainings() -> Iterator[None]:
    """As in tests/conftest.py, which must find these as they are when its turn comes: an epoch goes
    through the rows once, and nothing is begun again."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("network", "annotators.estimator"):
            patch.setattr(f"fedmend.methods.{module}.EPOCH_STEPS", 1)
            patch.setattr(f"fedmend.methods.{module}.RESTARTS", 0)
        yield
