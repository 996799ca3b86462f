"""Columns worth a second look: what is noticed, and what is left in peace."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.flow.doubts import doubtful_columns


def notes(values: list[object], kind: str | None = None) -> list[str]:
    frame = pd.DataFrame({"x": values})
    kinds = {"x": kind} if kind else None
    return doubtful_columns(Table(np.arange(len(values)), frame, kinds=kinds), "clinic")


def test_dates_and_addresses_as_text() -> None:
    (note,) = notes([f"{day:02d}.07.2022" for day in range(1, 31)])
    assert note.startswith("party 'clinic', column 'x': its values are dates")
    assert "'01.07.2022'" in note and note.endswith("drop = ['x']")
    (note,) = notes([f"Mill Lane {house}" for house in range(1, 31)])
    assert note.startswith("party 'clinic', column 'x': 30 different values in 30 rows")
    assert "'Mill Lane 1'" in note and note.endswith("drop = ['x']")
    assert notes(["Ulm", "Bonn", "Kiel"] * 30) == []


@pytest.mark.parametrize(
    "form", ["9,{:06.2f}", "{:.1f} %", "€ {:.2f}", "{:.0f} kg", "{:.2f} EUR", "1.{:03.0f},50"]
)
def test_amounts_as_text(form: str) -> None:
    (note,) = notes([form.format(100.25 + 37 * number) for number in range(24)])
    assert "its values look like numbers" in note and "without units" in note


@pytest.mark.parametrize("form", ["{:05d}", "ABC{:03d}", "{:d}a", "D-{:05d}"])
def test_codes_are_no_amounts(form: str) -> None:
    found = notes([form.format(number % 12) for number in range(60)], kind="nominal")
    assert not any("look like numbers" in note for note in found)


def test_numbers_among_which_a_word_stands() -> None:
    (note,) = notes([str(number) for number in range(40)] + ["<5", "?"])
    assert "40 of its 42 values are numbers" in note and "'<5', '?'" in note
    assert "missing = ['<5']" in note
    # A code made of digits is what the party says it is.
    assert notes([str(number % 7) for number in range(40)], kind="nominal") == []


@pytest.mark.parametrize("value", ["DE", 7, 1.5])
def test_a_column_that_never_changes(value: object) -> None:
    (note,) = notes([value] * 40)
    assert f"{value!r} in all 40 cells that are not empty" in note and "drop = ['x']" in note
    assert notes([value] * 5) == []


def test_values_that_differ_by_their_case() -> None:
    (note,) = notes(["yes", "no", "Yes "] * 5)
    assert "'yes' and 'Yes ' are taken for different values. Mend: write them alike" in note


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([*range(1, 60), -999, -999], "2 cells are -999, all others 1 or more"),
        ([float(each) for each in range(1, 60)] + [-9.0], "1 cell is -9"),
        ([*range(-30, 30)], None),
        ([-1] * 40 + [1] * 10, None),
        ([1.0, -999.0], None),
    ],
)
def test_a_number_that_stands_for_nothing(values: list[object], told: str | None) -> None:
    found = notes(values)
    assert (told is None and not found) or (told in found[0] and "missing = [" in found[0])
