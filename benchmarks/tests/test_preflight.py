"""The benchmark of the pre-flight at its smallest: rows, bars, and cells that are kept."""

from __future__ import annotations

import pytest

from fedmend.errors import ConfigError
from fedmend.methods.registry import record_of
from fedmend_bench.flow import preflight
from fedmend_bench.flow.preflight import Cell, run_cell


@pytest.mark.parametrize("method", ["vfl", "majority", "fedavg"])
def test_a_cost_is_measured_beside_its_estimate(method, monkeypatch):
    import fedmend

    name = {"vfl": "VFL", "majority": "MJ", "fedavg": "FedAvg"}[method]
    short = {"rounds": 2} if method == "fedavg" else {"epochs": 2}
    monkeypatch.setitem(vars(fedmend), name, lambda: preflight_class(name)(**short))
    row = run_cell(Cell("cost", "breast-cancer", 240, method, 3))
    assert row["seconds"] > 0 and row["bytes"] > 0
    assert row["foretold s"] > 0 and row["units"] > 0


def preflight_class(name):
    import fedmend.methods

    return getattr(fedmend.methods, name)


@pytest.mark.parametrize("option", [{"methods": "vfl,rsia"}, {"parts": "costs"}])
def test_what_there_is_not_is_told_before_anything_runs(option):
    with pytest.raises(ConfigError, match="there is no '(rsia|costs)': did you mean"):
        preflight.run(quick=True, **option)


def test_bars():
    rows = [
        {"part": "cost", "seconds ratio": 0.5, "bytes ratio": 1.1},
        {"part": "cost", "seconds ratio": 3.0, "bytes ratio": None},
        {"part": "curve", "gain": 0.02, "real gain": 0.01, "gain inside": True, "inside": True},
        {"part": "curve", "gain": 0.02, "real gain": 0.05, "gain inside": True, "inside": True}
        | {"metric": "rmse"},
    ]
    bars = {bar.name: bar for bar in preflight._bars(rows)}
    assert bars["seconds, off by a factor of (median)"].value == 2.5
    assert bars["bytes, off by a factor of (median)"].holds
    gain = "gain of twice the overlap, mean error"
    assert bars[f"{gain} (classes)"].value == pytest.approx(0.01)
    assert bars[f"{gain} (numbers, as a share of the error)"].value == pytest.approx(0.03)
    known = preflight.VERTICAL | preflight.HORIZONTAL
    assert all(record_of(method).rate for method in known)


@pytest.mark.slow
def test_the_worth_of_overlap_beside_what_came_of_it():
    row = run_cell(Cell("curve", "breast-cancer", 160, seed=1))
    assert row["rows"] == 120
    assert 0.9 < row["really twice"] <= 1
    assert row["from"] <= row["twice"] <= row["to"]
