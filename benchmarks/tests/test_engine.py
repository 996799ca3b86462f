from __future__ import annotations

import socket
import threading

import pytest

from fedmend.data import datasets
from fedmend_bench.foundations.engine import _bars, _calls, _local, _share, run
from fedmend_bench.foundations.sockets import carried_bytes


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


@pytest.mark.slow
def test_the_quick_run_holds_what_does_not_depend_on_the_machine():
    pytest.importorskip("nvflare", reason="the flare engine needs nvflare")
    result = run(quick=True, epochs=2)
    held = {bar.name: bar.holds for bar in result.bars}
    assert held["|accuracy − local|"]
    assert held["|log loss − local|"]
    assert {row["engine"] for row in result.rows} == {"local", "flare"}
