"""Measurements side by side, kept and gone on with, and the names that options take."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedmend.errors import AlignmentError, ConfigError, DatasetAbsent
from fedmend_bench.cells import run_cells, side_by_side
from fedmend_bench.options import chosen, listed, numbered

THREADS = ["OMP_NUM_THREADS", "MKL_NUM_THREADS"]


def test_processes_have_a_thread_each_and_leave_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(THREADS[0], "3")
    monkeypatch.delenv(THREADS[1], raising=False)
    assert dict(side_by_side(os.getenv, THREADS, 2)) == dict.fromkeys(THREADS, "1")
    assert [os.getenv(name) for name in THREADS] == ["3", None]


def test_one_process_is_this_one() -> None:
    assert list(side_by_side(math.sqrt, [4.0, 9.0], 1)) == [(4.0, 2.0), (9.0, 3.0)]
    assert list(side_by_side(lambda each: os.getpid(), [0], 8)) == [(0, os.getpid())]


@dataclass(frozen=True)
class Cell:
    data: str
    rows: int
    note: str = ""


def test_cells_are_kept_and_not_measured_again(tmp_path: Path) -> None:
    asked: list[Cell] = []

    def measure(cell: Cell) -> dict[str, Any]:
        asked.append(cell)
        return {"rows": cell.rows}

    cells = [Cell("bank: a/b", 600), Cell("bank: a/b", 601)]  # other settings, another cell
    for _ in range(2):
        assert run_cells(measure, cells, tmp_path) == [{"rows": 600}, {"rows": 601}]
    assert asked == cells
    (first,) = tmp_path.glob("bank__a_b-600-*.json")
    assert json.loads(first.read_text())["cell"] == {"data": "bank: a/b", "rows": 600, "note": ""}


def test_a_cell_that_fails_stops_nothing_and_is_tried_again(tmp_path: Path) -> None:
    fail = True

    def measure(cell: Cell) -> dict[str, Any]:
        if fail and cell.rows == 1:
            raise AlignmentError("not one row overlaps")
        return {"rows": cell.rows}

    cells = [Cell("bank", 1), Cell("bank", 2)]
    failed, fine = run_cells(measure, cells, tmp_path)
    assert failed["rows"] == 1 and "not one row overlaps" in failed["failed"]
    assert fine == {"rows": 2} and len(list(tmp_path.iterdir())) == 1
    fail = False
    assert run_cells(measure, cells, tmp_path) == [{"rows": 1}, {"rows": 2}]


def test_without_its_data_nothing_is_measured(tmp_path: Path) -> None:
    def measure(cell: Cell) -> dict[str, Any]:
        raise DatasetAbsent("'credit' is not here")

    with pytest.raises(DatasetAbsent):
        run_cells(measure, [Cell("credit", 1)], tmp_path)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        run_cells(measure, [Cell("credit", 1)], processes=0)


def test_values_of_an_option() -> None:
    assert numbered(2, first=5) == [5, 6] and numbered([7, 9]) == numbered("7,9") == [7, 9]
    assert listed(" bank,, credit ") == ["bank", "credit"]
    assert listed("") == []
    assert listed(0.5) == [0.5]
    assert listed(range(2)) == [0, 1]


def test_names_of_an_option() -> None:
    known = {"VFL": 1, "RISA": 2}
    assert chosen("methods", "all", known) == ["VFL", "RISA"]
    assert chosen("methods", ["none"], known) == []
    assert chosen("methods", "RISA", known) == ["RISA"]
    with pytest.raises(ConfigError) as caught:
        chosen("methods", "VLF,RISA,9", known)
    assert caught.value.problems == [
        "methods: there is no 'VLF': did you mean 'VFL'?",
        "methods: there is no '9': choose from: RISA, VFL",
    ]
