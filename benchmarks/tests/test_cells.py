"""Measurements side by side, kept and gone on with, and the names that options take."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedmend.errors import AlignmentError, ConfigError
from fedmend_bench.cells import Kept, run_cells, side_by_side
from fedmend_bench.datasets import DatasetAbsent
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
    (file,) = tmp_path.iterdir()
    first, _ = map(json.loads, file.read_text().splitlines())
    assert first["cell"] == {"data": "bank: a/b", "rows": 600, "note": ""}
    assert [line["found"]["rows"] for line in Kept.at(file).all()] == [600, 601]


def _slow(cell: Cell) -> dict[str, Any]:
    time.sleep(0.3)
    return {"rows": cell.rows, "by": os.getpid()}


def _together(folder: str) -> list[dict[str, Any]]:
    return run_cells(_slow, [Cell("bank", rows) for rows in range(4)], folder)


@pytest.mark.slow
def test_processes_share_a_folder_and_none_measures_what_another_has_taken(tmp_path: Path) -> None:
    found = [each for _, each in side_by_side(_together, [str(tmp_path), f"{tmp_path}/."], 2)]
    assert found[0] == found[1] and [each["rows"] for each in found[0]] == [0, 1, 2, 3]
    assert len({each["by"] for each in found[0]}) == 2
    (file,) = tmp_path.iterdir()
    assert len(file.read_text().splitlines()) == 4


def test_a_cell_of_a_process_that_died_is_free(tmp_path: Path) -> None:
    cell, kept = Cell("bank", 1), Kept.at(tmp_path)
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        with kept.taken(cell):
            os.write(tell, b".")
            os.kill(os.getpid(), signal.SIGSTOP)
    os.read(told, 1)
    try:
        with kept.taken(cell) as mine:
            assert not mine
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert run_cells(lambda each: {"rows": each.rows}, [cell], tmp_path) == [{"rows": 1}]


def test_when_time_is_up_nothing_is_begun(tmp_path: Path) -> None:
    cells = [Cell("bank", rows) for rows in range(3)]
    assert run_cells(_slow, cells[:1], tmp_path)[0]["rows"] == 0
    first, *late = run_cells(_slow, cells, tmp_path, minutes=0)
    assert first["rows"] == 0 and late == [None, None]
    first, second, third = run_cells(_slow, cells, tmp_path, minutes=0.2 / 60)
    assert second["rows"] == 1 and third is None


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
