from __future__ import annotations

import pytest

from fedmend_bench.foundations import sums


@pytest.mark.slow
def test_the_benchmark_measures_every_mode_beside_the_alternatives(monkeypatch):
    monkeypatch.setattr(sums, "PAILLIER_VALUES", 1)
    result = sums.run(rows=300, classes=4, parties=3, rounds=2)
    ways = {(row["sum of"], row["mode"]) for row in result.rows}
    for title in sums.SUMS:
        assert {(title, variant) for variant in ("plain add (not private)", *sums.VARIANTS)} <= ways
    votes = [row for row in result.rows if row["sum of"] == "votes"]
    assert all(row.get("largest error", 0) == 0 for row in votes)
    sizes = {row["mode"]: row.get("MB per party") for row in votes}
    assert 1200 / 1e6 <= sizes["masks"] < 2000 / 1e6
    time_bar, *error_bars = result.bars
    assert time_bar.name == "votes: masks over a plain add, CPU" and time_bar.value > 0
    assert len(error_bars) == 3 and all(bar.holds for bar in error_bars)
