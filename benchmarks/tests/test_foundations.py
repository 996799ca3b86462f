"""Benchmarks of the foundations, at a size that shows their form and nothing else."""

from __future__ import annotations

import os
import socket
import sys
import threading

import pytest

from fedmend.data import datasets
from fedmend.errors import ConfigError
from fedmend_bench.foundations import correlation, leaks, sealed, serve, split
from fedmend_bench.foundations.engine import _bars, _calls, _local, _share, run
from fedmend_bench.foundations.sockets import carried_bytes
from fedmend_bench.harness import available, run_bench

# ---------------------------------------------------------------- correlation


@pytest.fixture(scope="module")
def measured_correlation():
    return run_bench("correlation", options={"rows": 200, "columns": 4, "repeats": 1, "cells": 1})


@pytest.mark.slow
def test_every_mode_is_exact_and_equal_to_scipy(measured_correlation):
    measured = [row for row in measured_correlation.rows if row["what"] != "published"]
    assert {row["what"] for row in measured} == {"numpy", "plain", "dealer", "bfv"}
    assert len(measured) == 3 * 4
    assert all(row["exact"] for row in measured)
    assert all(row["max |rho - scipy|"] <= 1e-12 for row in measured if row["what"] != "numpy")
    assert all(row["MB sent"] > 0 for row in measured if row["what"] != "numpy")


@pytest.mark.slow
def test_what_is_extrapolated_says_so(measured_correlation):
    published = [row for row in measured_correlation.rows if row["what"] == "published"]
    assert published
    assert all("extrapolated from 1 cells" in row["note"] for row in published)
    assert all(row["CPU s, products"] > 0 for row in published)


@pytest.mark.slow
def test_the_bars(measured_correlation):
    assert available()["correlation"] == correlation.HELP
    names = [bar.name for bar in measured_correlation.bars]
    assert names[0].startswith("max |rho - scipy|")
    assert measured_correlation.bars[0].holds
    # stated for the full size only
    assert not any("dealer, times" in name for name in names)
    assert measured_correlation.to_dict()["bench"] == "correlation"


# ---------------------------------------------------------------- engine


def test_the_kernel_counts_what_a_connection_carries():
    def drain(end, count):
        while count:
            count -= len(end.recv(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as ears:
        port = ears.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near, ears.accept()[0] as far:
            assert carried_bytes(port) == 0
            reader = threading.Thread(target=drain, args=(far, 300_000))
            reader.start()
            near.sendall(b"x" * 300_000)
            reader.join()
            far.sendall(b"y" * 5_000)
            drain(near, 5_000)
            near.sendall(b"z")  # carries the acknowledgement of the rest
            drain(far, 1)
            assert carried_bytes(port) == 305_001
    assert carried_bytes(port) == 0


def test_calls_are_measured_on_the_local_engine():
    table = datasets.load("iris")
    shares = {f"p{number}": _share(table, number, 2) for number in range(2)}
    with _local(["p0", "p1"], shares, 0) as fed:
        rows = _calls("local", fed, 5, throughput=False)
    assert [row["what"] for row in rows] == ["step, 2 parties"]
    assert rows[0]["times"] == 5
    assert 0 < rows[0]["median ms"] <= rows[0]["p95 ms"]


def test_the_shares_cut_the_columns_and_keep_the_label_with_one():
    table = datasets.load("iris")
    shares = [_share(table, number, 3) for number in range(3)]
    columns = [set(share.columns) - {"id", "label"} for share in shares]
    assert set.union(*columns) == set(table.feature_names)
    assert sum(map(len, columns)) == len(table.feature_names)
    assert ["label" in share for share in shares] == [True, False, False]


def test_the_bars_say_when_a_promise_is_broken():
    step = {"engine": "flare", "what": "step, 2 parties", "median ms": 30.0}
    local = {"engine": "local", "what": "VFL", "accuracy": 0.9, "log loss": 0.3}
    flare = local | {"engine": "flare", "accuracy": 0.91, "wire over tensors": 1.01}
    assert [bar.holds for bar in _bars([step, local, flare])] == [False, True, False, True]


def test_bars_of_a_quick_service_are_no_wall_times():
    row = {"where": "2 parties", "p50 ms": 90.0, "p99 ms": 300.0, "CPU ms": 1.2, "rows/s": 2000.0}
    table = [
        row | {"what": "1 row, 8 askers"},
        row | {"what": "1000 rows, 1 asker"},
        {"what": "partners killed", "unanswered": 0},
    ]
    assert all(bar.holds for bar in serve._bars(table, 2, quick=True))
    assert [bar.holds for bar in serve._bars(table, 2, quick=False)] == [False, False, False, True]


@pytest.mark.slow
def test_serving_leaves_no_request_without_an_answer():
    pytest.importorskip("nvflare", reason="kits need nvflare")
    result = serve.run(quick=True)
    assert result.bars[-1].holds
    kills = next(row for row in result.rows if row["what"] == "partners killed")
    assert kills["kills"] and kills["partial"] and kills["complete"]


@pytest.mark.slow
def test_the_quick_run_holds_what_does_not_depend_on_the_machine(monkeypatch):
    pytest.importorskip("nvflare", reason="the flare engine needs nvflare")
    # Parties of their own load a worker of the benchmark, as `fedmend bench` lets them.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    result = run(quick=True, epochs=2)
    held = {bar.name: bar.holds for bar in result.bars}
    assert held["|accuracy − local|"]
    assert held["|log loss − local|"]
    assert {row["engine"] for row in result.rows} == {"local", "flare"}


# ---------------------------------------------------------------- leaks


@pytest.mark.slow
def test_a_line_for_each_setting_with_its_price() -> None:
    settings = ["VFL", "VFL, randomised-response labels, ε = 1"]
    found = leaks.run(quick=True, settings=settings, rows=240, epochs=3)
    plain, told = found.rows
    assert [plain["method"], told["method"]] == settings
    assert plain["labels by direction"] > 0.95
    assert told["labels by direction"] < 0.9
    assert plain["columns, coordinator"].endswith(" of 15")
    assert plain["mean, coordinator"] > 0.6 > plain["without, coordinator"]
    assert plain["known"] == 80
    assert 0.5 < plain["model AUC"] <= 1
    (bar,) = found.bars
    assert bar.holds
    assert "leaks" in available()


@pytest.mark.slow
@pytest.mark.parametrize("part", ["width", "labels"])
def test_a_line_for_each_width_and_for_each_way_to_know_labels(part: str) -> None:
    found = leaks.run(quick=True, part=part, settings=["VFL"], rows=240, epochs=2, seeds=1)
    assert {line["method"] for line in found.rows} == {"VFL"}
    if part == "width":
        narrow, wider = found.rows
        assert (narrow["width"], wider["width"]) == (2, 4)
        assert narrow["mean, coordinator"] < wider["mean, coordinator"]
    else:
        ways = [(line["epsilon"], line["loss"]) for line in found.rows]
        assert ways == [(None, "plain"), (2.0, "plain"), (2.0, "corrected")]
        assert all(0.5 < line["auc"] <= 1 for line in found.rows)
        right = [line["accuracy"] * 72 for line in found.rows]  # of the test rows
        assert right == pytest.approx([round(each) for each in right]), "not by true labels"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:two labels of a row:fedmend.errors.FedmendWarning")  # ε = 1
def test_labellers_and_rounds() -> None:
    found = leaks.run(part="others", epochs=4)
    by_method = {(line["method"], line["from"]): line for line in found.rows}
    assert by_method["InC", "sums of votes and evidence, and T"]["score"] > 0.95
    assert by_method["InC", "sums of votes"]["score"] < 0.9
    masked = [source for method, source in by_method if method.endswith("masks")]
    assert masked == ["the common model"]


# ---------------------------------------------------------------- sealed


@pytest.mark.slow
def test_encryption_is_measured_beside_the_open(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ((split.Size(120, 6, 32, sealed.LIMIT), (2,)),)
    monkeypatch.setattr(sealed, "QUICK", tiny)
    result = split.run(quick=True, epochs=1, part="sealed")
    assert [row["method"] for row in result.rows] == ["VFL", "RISA"]
    for row in result.rows:
        assert row["differ by"] == 0
        assert 1 < row["bytes ratio"] < 1.1  # a head, a tag and two names a message
        assert row["sealed CPU s/epoch"] > 0
    assert len(result.bars) == 4


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ConfigError, match="one-piece, sealed"):
        split.run(part="folded")
