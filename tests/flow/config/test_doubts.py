"""Columns worth a second look: what is noticed, and what is left in peace."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.flow.doubts import doubtful_columns, told_elsewhere


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


def test_the_amount_that_is_shown_has_the_signs_that_are_meant() -> None:
    (note,) = notes([*["0,00"] * 20, "7.688,00", *["401,00"] * 20])
    assert "such as '7.688,00'" in note


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


def test_blanks_that_are_taken_for_a_value() -> None:
    (note,) = notes(["Ulm", "  ", "Bonn", "  ", "Kiel"] * 5)
    assert "10 cells read '  ', which is taken for a value. Mend: missing = ['  ']" in note
    (note,) = notes([" ", "yes", "yes"] * 5)
    assert "5 cells read ' '" in note
    assert notes(["none", "-", "some"] * 5) == []
    for mark in (" ", ".", "?", "None"):
        said = ["yes", "no", mark] * 10
        (note,) = doubtful_columns(labelled(said), "clinic")
        assert note.startswith(f"party 'clinic', label 'y': 10 cells read {mark!r}")
        assert f"taken for a class. Mend: missing = [{mark!r}]" in note


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([*range(1, 60), -999, -999], "2 cells are -999, all others 1 or more"),
        ([float(each) for each in range(1, 60)] + [-9.0], "1 cell is -9"),
        ([*range(-30, 30)], None),
        ([-1] * 40 + [1] * 10, None),
        ([1.0, -999.0], None),
        ([*np.arange(60) / 7, -3.4028235e38, 1.7e308], "2 cells are as large as -3.40282e+38"),
    ],
)
def test_a_number_that_stands_for_nothing(values: list[object], told: str | None) -> None:
    found = notes(values)
    assert (told is None and not found) or (told in found[0] and "missing" in found[0])


# ---------------------------------------------------------------- the label


def labelled(label: list[object], **columns: list[object]) -> Table:
    return Table(np.arange(len(label)), {**columns, "y": label}, label="y")


COUNTS = [0] * 60 + [1] * 80 + [2] * 55 + [3] * 30 + [4] * 12 + [5] * 7 + [6] * 4 + [7] + [8]


def test_whole_numbers_are_asked_about() -> None:
    (note,) = doubtful_columns(labelled(COUNTS), "clinic")
    assert "9 different whole numbers, 0 to 8, are taken for 9 classes without order" in note
    assert "though they look like counts" in note
    for task in ("count", "regression", "multiclass"):
        assert f'task = "{task}"' in note
        assert doubtful_columns(labelled(COUNTS), "clinic", task=task) == []
    (note,) = doubtful_columns(labelled([1, 2, 3, 4] * 30), "clinic")
    assert "4 classes without order. Mend" in note
    (note,) = doubtful_columns(labelled(list(range(90))), "clinic")
    assert "are taken for a measured number" in note
    assert doubtful_columns(labelled(["a", "b", "c"] * 30), "clinic") == []
    assert doubtful_columns(labelled([0, 1] * 30), "clinic") == []


def test_a_number_to_predict_that_is_no_number_everywhere() -> None:
    numbers = [f"{each / 7:.2f}" for each in range(90)]
    (note,) = doubtful_columns(labelled([*numbers, "n/k"]), "clinic")
    assert note.startswith("party 'clinic', label 'y': 90 of its 91 values are numbers, but it is")
    assert "taken for classes, as others read 'n/k'" in note and "missing = ['n/k']" in note
    (note,) = doubtful_columns(labelled([each.replace(".", ",") for each in numbers]), "clinic")
    assert "taken for classes" in note and "decimal = ','" in note
    measured = [each / 7 for each in range(90)]
    (note,) = doubtful_columns(labelled([*measured, -999.0]), "clinic")
    assert note.startswith("party 'clinic', label 'y': 1 cell is -999, all others 0 or more")
    assert doubtful_columns(labelled([-1, 0, 1] * 30), "clinic", task="multiclass") == []


@pytest.mark.parametrize(
    "tells",
    [
        lambda y: y,
        lambda y: np.array(["x7", "a2", "m1"])[y],  # other codes
        lambda y: np.where(y == 2, np.nan, y * 3.0),  # empty for one class
        lambda y: y + np.linspace(0, 0.5, len(y)),
    ],
)
def test_a_column_that_gives_classes_away_is_named(tells) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    table = labelled(
        np.array(["low", "mid", "high"])[y].tolist(),
        good=(y + rng.normal(0, 0.8, 300)).tolist(),
        late=tells(y).tolist(),
        noise=rng.normal(size=300).tolist(),
    )
    (note,) = doubtful_columns(table, "bank")
    assert "party 'bank', column 'late': it tells the label 'y' by itself (AUC 1.000" in note
    assert "drop = ['late']" in note


def test_a_column_beyond_the_range_of_a_tree_is_looked_at() -> None:
    y = [0, 0, 1, 1] * 75
    far = labelled(y, x=[1.7e308 * each - 8e307 for each in y])
    assert any("it tells the label 'y' by itself" in each for each in doubtful_columns(far, "bank"))


def test_a_column_that_gives_a_number_away_is_named() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=400)
    table = labelled(
        y.tolist(), good=(y + rng.normal(0, 0.3, 400)).tolist(), euros=(y * 900 + 7).tolist()
    )
    (note,) = doubtful_columns(table, "bank")
    assert "column 'euros'" in note and "R²" in note
    # Of a count, its own rare values do not hide it.
    counted = labelled(COUNTS, tens=[10 * each for each in COUNTS])
    (note,) = doubtful_columns(counted, "clinic", task="count")
    assert "column 'tens'" in note


def test_a_partner_s_copy_and_a_second_annotator() -> None:
    rng = np.random.default_rng(1)
    y = pd.Series(np.where(rng.random(300) < 0.4, "yes", "no"), name="default")
    wrong = y.where(rng.random(300) > 0.15, y.map({"yes": "no", "no": "yes"}))
    theirs = pd.DataFrame({"Default": wrong, "calls": rng.normal(size=300)})
    (note,) = told_elsewhere("bank", y, "telco", theirs)
    assert "column 'Default'" in note and "agrees with it in 8" in note
    assert "label = 'Default' at 'telco' too if it is a second annotator's" in note
    (note,) = told_elsewhere("bank", y, "telco", theirs.assign(Default=y.str.upper()))
    assert "in 300 shared rows: a copy" in note and "drop = ['Default'] at 'telco'" in note
    (note,) = told_elsewhere("bank", y, "telco", pd.DataFrame({"code": y.map({"yes": 7, "no": 9})}))
    assert "it tells the label 'default' of 'bank' by itself" in note
