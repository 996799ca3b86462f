from __future__ import annotations

import json

import pytest

from fedmend_bench.foundations import psi
from fedmend_bench.harness import run_bench


@pytest.fixture(autouse=True)
def without_spu(monkeypatch):
    monkeypatch.delenv("FEDMEND_SPU_PYTHON", raising=False)


@pytest.mark.slow
def test_the_benchmark_measures_every_mode_and_finds_the_right_ids(tmp_path):
    result = run_bench("psi", options={"ids": 300})
    modes = [(row["mode"], row["parties"]) for row in result.rows]
    assert modes == [
        ("salted hashes (not private)", 2),
        ("bare group operations", 2),
        ("ecdh", 2),
        ("ecdh", 3),
        ("same-order", 2),
    ]
    exact = result.bars[0]
    assert exact.value == 0 and exact.holds
    assert result.rows[2]["MB sent by parties"] > 300 * 2 * 48 / 1e6
    path = result.write_json(tmp_path / "psi.json")
    assert json.loads(path.read_text())["rows"][2]["ids each"] == 300


def test_the_sets_share_a_half_and_no_more():
    one, other, third = psi.make_sets(3, 101, seed=1)
    assert len(one) == len(set(one)) == 101
    assert len(set(one) & set(other)) == len(set(one) & set(other) & set(third)) == 50
    assert list(one) != sorted(one)
