"""Several processes at one plan: each run is one's own, and seconds beside others do not count."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedmend_bench.sage import table
from fedmend_bench.sage.curves import Curve, row_of
from fedmend_bench.sage.table import run
from fedmend_bench.sage.workers import Clock, Workers, stop_kindly


def test_a_run_belongs_to_one_worker_and_workers_are_counted(tmp_path: Path) -> None:
    one, two = Workers(tmp_path), Workers(tmp_path)
    assert one.others() == 0
    with one.present():
        assert (one.others(), two.others()) == (0, 1)
        with two.present(), one.claim("a") as mine:
            assert (one.others(), two.others()) == (1, 1)
            with two.claim("a") as also, two.claim("b") as other:
                assert (mine, also, other) == (True, False, True)
        assert one.others() == 0
        with two.claim("a") as free:
            assert free


def test_a_worker_that_is_killed_leaves_nothing_locked(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from fedmend_bench.sage.workers import Workers\n"
        "w = Workers(Path(sys.argv[1]))\n"
        "with w.present(), w.claim('a'):\n    print('at work', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "at work\n"
        workers = Workers(tmp_path)
        with workers.claim("a") as ours:
            assert not ours
        assert workers.others() == 1
        process.kill()
        process.wait()
    assert workers.others() == 0
    with workers.claim("a") as ours:
        assert ours


def test_a_run_that_another_worker_is_at_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(quick=True, methods="FedAvg", rounds=1, folder=str(tmp_path))
    other = Workers(tmp_path)
    with other.present(), other.claim("digits-fedavg-0.5-0"):
        result = run(quick=True, methods="FedAvg,FixMatch-LPL", rounds=2, folder=str(tmp_path))
    assert [(row["method"], row["rounds"]) for row in result.rows] == [
        ("FedAvg", 1),
        ("FixMatch-LPL", 2),
    ]
    kept = json.loads((tmp_path / "digits-fixmatch-lpl-0.5-0.json").read_text())
    assert [each["beside"] for each in kept["rounds"]] == [1, 1]
    # What another worker does meanwhile is told at the end.
    monkeypatch.setattr(table, "_curve", lambda unit, setting: setting.curve(unit))
    told = run(quick=True, methods="FedAvg,FixMatch-LPL", rounds=2, folder=str(tmp_path))
    assert [row["rounds"] for row in told.rows] == [1, 2]
    # Seconds are told of rounds without neighbours only.
    assert result.rows[1]["s/round"] is None and result.rows[0]["s/round"] > 0


def test_seconds_are_those_of_rounds_alone() -> None:
    rounds = [
        {"round": number, "accuracy": 0.5, "training": seconds, "beside": beside}
        for number, (seconds, beside) in enumerate([(1.0, 0), (9.0, 1), (3.0, 0)], 1)
    ]
    assert row_of(Curve("SAGE", "cifar10", 0.5, 0, {}, rounds=rounds))["s/round"] == 2.0


def test_asked_to_end_a_run_finishes_its_round_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = table._round

    def interrupted(*given: object) -> dict[str, object]:
        entry = once(*given)
        if entry["round"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return entry

    monkeypatch.setattr(table, "_round", interrupted)
    result = run(quick=True, methods="FedAvg,SAGE", rounds=4, folder=str(tmp_path))
    assert [row["rounds"] for row in result.rows] == [2, 0]
    monkeypatch.setattr(table, "_round", once)
    assert run(quick=True, methods="FedAvg", rounds=4, folder=str(tmp_path)).rows[0]["rounds"] == 4


def test_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_kindly() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)
        assert asked.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


def test_too_late_for_a_round_is_too_late_for_the_next_run() -> None:
    assert not Clock().late()
    assert Clock(time.monotonic() - 1).late()
    clock = Clock(time.monotonic() + 50)
    clock.took(500.0)  # something else was on the card
    clock.took(1.0)
    assert clock.late()
    clock.took(1.0)
    assert clock.late()
    clock = Clock(time.monotonic() + 50)
    for seconds in (500.0, 1.0, 2.0):
        clock.took(seconds)
    assert not clock.late()
    clock.asked.set()
    assert clock.late()
