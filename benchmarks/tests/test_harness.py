from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from dataclasses import dataclass

import numpy as np
import pytest

from fedmend._parameters import parse_options
from fedmend.errors import ConfigError
from fedmend_bench import harness
from fedmend_bench.__main__ import main
from fedmend_bench.cells import run_cells
from fedmend_bench.harness import Bar, BenchResult, available, run_bench

SOURCE = '''
"""Adds numbers."""
from fedmend_bench.harness import Bar, BenchResult
NAME = "adding"
HELP = "adds numbers, ours beside numpy"
def run(quick: bool, *, rows: int = 10, device: str = "cpu") -> BenchResult:
    rows = 3 if quick else rows
    total, reference = sum(range(rows)), rows * (rows - 1) / 2
    return BenchResult("adding", [{"rows": rows, "ours": total, "reference": reference}],
                       [Bar.at_most("difference", abs(total - reference), 0)])
'''


@pytest.fixture
def adding(tmp_path, monkeypatch):
    (tmp_path / "bench_adding_for_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(harness.REGISTRY, "adding", "bench_adding_for_test")
    monkeypatch.setitem(harness.REGISTRY, "gone", "bench_that_is_not_there")
    yield
    sys.modules.pop("bench_adding_for_test", None)


def test_available_lists_only_what_is_there_without_importing(adding):
    found = available()
    assert found["adding"] == "adds numbers, ours beside numpy"
    assert "gone" not in found
    assert "bench_adding_for_test" not in sys.modules


def test_run_fills_in_command_and_device(adding):
    result = run_bench("adding", quick=False, options={"rows": 100})
    assert result.rows == [{"rows": 100, "ours": 4950, "reference": 4950.0}]
    assert result.command == "fedmend bench adding -o rows=100"
    assert result.device.startswith("cpu (")
    assert run_bench("adding", quick=True).command == "fedmend bench adding --quick"


def test_unknown_bench_and_option_name_the_closest(adding):
    with pytest.raises(ConfigError, match="did you mean 'adding'"):
        run_bench("ading")
    with pytest.raises(ConfigError, match="no option 'row' .value 5.: did you mean 'rows'"):
        run_bench("adding", options={"row": 5})


def test_json_has_exactly_the_agreed_form(tmp_path):
    rows = [{"n": np.int64(3), "t": np.float32(0.5), "x": float("nan"), "shape": (2, 3)}]
    result = BenchResult(
        "b", rows, [Bar("r", np.float64(1.5), "<= 2", np.bool_(True))], "cmd", "dev"
    )
    written = json.loads(result.write_json(tmp_path / "deep" / "b.json").read_text())
    assert written == {
        "bench": "b",
        "command": "cmd",
        "device": "dev",
        "rows": [{"n": 3, "t": 0.5, "x": None, "shape": [2, 3]}],
        "bars": [{"name": "r", "value": 1.5, "target": "<= 2", "holds": True}],
    }
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["b.json"]


def test_bars_hold_at_their_limit():
    assert Bar.at_most("x", 1.25, 1.25).holds
    assert not Bar.at_most("x", 1.2500001, 1.25).holds
    assert Bar.at_least("x", 2, 2).holds
    assert not Bar.at_least("x", float("nan"), 2).holds


@dataclass(frozen=True)
class Point:
    x: int


def test_resume_keeps_what_was_measured_and_goes_on_from_it(adding, tmp_path, monkeypatch):
    module = types.ModuleType("kept_bench")
    measured = []

    def run(quick, folder=None):
        (found,) = run_cells(
            lambda cell: measured.append(cell) or {"x": cell.x}, [Point(7)], folder
        )
        return BenchResult("kept", [found])

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kept_bench", module)
    monkeypatch.setitem(harness.REGISTRY, "adding", "kept_bench")
    monkeypatch.setattr(harness, "available", lambda: {"adding": ""})
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        result = run_bench("adding", quick=True, resume=True)
        assert result.rows == [{"x": 7}] and "folder=runs/bench/adding-quick" in result.command
    assert len(measured) == 1, "the second time it is read"


def test_a_benchmark_that_is_told_to_end_stops_what_it_started(monkeypatch):
    module, stopped = types.ModuleType("started"), []

    def run(quick):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # whoever asks twice does not cut the stopping off
            stopped.append("server")

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "started_bench", module)
    monkeypatch.setitem(harness.REGISTRY, "split", "started_bench")
    monkeypatch.setattr(harness, "available", lambda: {"split": ""})
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        run_bench("split")
    assert stopped == ["server"] and caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_keeps_nothing_cannot_be_resumed(adding):
    with pytest.raises(ConfigError, match="'adding' keeps nothing to go on from. Mend: run it"):
        run_bench("adding", resume=True)


def test_options_are_json_where_they_can_be():
    assert parse_options(
        ["rows=10", "device=cuda", "share=0.5", "strict=true", "batch-size=2"]
    ) == {
        "rows": 10,
        "device": "cuda",
        "share": 0.5,
        "strict": True,
        "batch_size": 2,
    }
    with pytest.raises(ConfigError) as caught:
        parse_options(["rows", "=3"])
    assert len(caught.value.problems) == 2


def test_module_entry_runs_writes_and_reports_errors(adding, tmp_path, capsys):
    assert main(["adding", "--quick", "--json", str(tmp_path / "x.json")]) == 0
    assert json.loads((tmp_path / "x.json").read_text())["rows"][0]["ours"] == 3
    assert main(["nothing-like-it"]) == ConfigError.exit_code
    assert "no benchmark" in capsys.readouterr().err


def test_harness_imports_without_rich_pydantic_or_torch():
    code = (
        "import sys, fedmend_bench.harness as h; h.available();"
        "print([m for m in ('rich', 'pydantic', 'torch', 'typer') if m in sys.modules])"
    )
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_what_a_gpu_is_borrowed_for_imports_without_pydantic_and_cryptography():
    names = ["sage", "sage-speed", "sage-tables", "risa", "inc", "generators", "tabular"]
    code = (
        "import importlib, sys\nsys.modules |= {'pydantic': None, 'cryptography': None}\n"
        f"for name in {[harness.REGISTRY[name] for name in names]!r}: importlib.import_module(name)"
    )
    paths = os.pathsep.join(filter(None, sys.path))
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": paths})
