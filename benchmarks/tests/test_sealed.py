"""`fedmend bench split -o part=sealed`: both ways to train, to the same bit."""

from __future__ import annotations

import pytest

from fedmend.errors import ConfigError
from fedmend_bench.foundations import sealed, split


def test_boxes_are_measured_beside_the_open(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ((split.Size(120, 6, 32, sealed.LIMIT), (2,)),)
    monkeypatch.setattr(sealed, "QUICK", tiny)
    result = split.run(quick=True, epochs=1, part="sealed")
    assert [row["method"] for row in result.rows] == ["VFL", "RISA"]
    for row in result.rows:
        assert row["differ by"] == 0
        assert 1 < row["bytes ratio"] < 1.1  # a head, a tag and two names a box
        assert row["sealed CPU s/epoch"] > 0
    assert len(result.bars) == 4


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ConfigError, match="one-piece, sealed"):
        split.run(part="boxes")
