"""Completed rows that count as far as their cells are believed, in a split network."""

from __future__ import annotations

import numpy as np
import pytest

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.federation.engines.local import LocalEngine
from fedmend.learn.belief import keep_confidence
from fedmend.methods.baselines import VFL

KNOWN, COMPLETED = 80, 120


def mended(confidence: float | None) -> Federation:
    """The telco's column tells the class, but in the completed rows it is the wrong way round."""
    rng = np.random.default_rng(0)
    rows = KNOWN + COMPLETED
    y = np.arange(rows) % 2
    z = np.where(np.arange(rows) < KNOWN, y, 1 - y) + 0.1 * rng.normal(size=rows)
    bank = Table(np.arange(rows), {"x": rng.normal(size=rows), "late": y}, label="late")
    fed = Federation(
        Party("bank", bank), Party("telco", Table(np.arange(rows), {"z": z})), strict=True
    )
    assert isinstance(fed.engine, LocalEngine)
    for name in fed.names:
        own = Alignment(np.arange(rows), np.zeros(0, np.int64))
        fed.engine.site(name).alignments[fed.scope] = own
    fed.note_alignment(AlignmentCounts(rows, dict.fromkeys(fed.names, 0), COMPLETED))
    if confidence is not None:
        cells = np.where(np.arange(rows) < KNOWN, 1.0, confidence)
        keep_confidence(fed.engine.site("telco"), "train", {"z": cells})
    return fed


def right(fed: Federation, **params: str) -> float:
    """The share of the rows really known to both that are told rightly."""
    how = {"epochs": 15, "lr": 0.02, "validation": 0.0, "patience": None}
    found = VFL(**how, **params).fit(fed).predict(fed, rows="aligned")[:KNOWN]
    return float((found == np.arange(KNOWN) % 2).mean())


def test_rows_that_are_hardly_believed_hardly_count() -> None:
    assert right(mended(0.05), completed="weighed") > 0.9
    assert right(mended(0.05)) < 0.5
    assert right(mended(1.0), completed="weighed") < 0.5


def test_where_nothing_was_completed_nothing_is_asked() -> None:
    fed = mended(None)
    VFL(epochs=1, completed="weighed").fit(fed)
    calls = {entry.call for entry in fed.ledger.entries()}
    assert not any(call.endswith("weigh") for call in calls)
    with pytest.raises(ConfigError, match="completed must be one of alike, weighed"):
        VFL(completed="half").fit(fed)
