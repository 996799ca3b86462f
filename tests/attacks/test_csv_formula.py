"""A label party whose ids, classes and column names are formulas, and a person with a spreadsheet.

Measured: every cell of every CSV file that fedmend writes for people, cut as spreadsheets of three
locales cut it; none may begin with a sign that starts a formula, unless it is a number.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedmend as fm
from fedmend.data import Table, read
from fedmend.data.writers import protected, unprotected, write_frame
from fedmend.federation import Site
from fedmend.flow.config.sniffing import csv_lines, looked_at
from fedmend.methods.annotators import worker as inc_labels
from fedmend.serve.predicting import PREDICTIONS_FILE, PredictionWorker

FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(1+1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    " =1+1",
    "＝1+1",
    "'=1+1",
    'a";=1+1;"',
    "a;=1+1",
    "a\r=1+1",
    "a|=1+1",
    "a\t=1+1",
]
STARTS = tuple("=+-@＝＋－＠")


def number(cell: str) -> bool:
    """Or several, as where a line of them is cut at another sign than the comma."""
    each = r"(?:[0-9]+(?:[.,][0-9]+)*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?"
    return re.fullmatch(rf"[+-]?{each}(?:,{each})*", cell.strip()) is not None


def armed(text: str) -> list[str]:
    """The cells that a spreadsheet would run, wherever it cuts the text into cells."""
    found = []
    for delimiter in ",;\t|":
        # Some begin a line at a lone CR; one inside quotes is none.
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            found += [cell for cell in row if cell.lstrip().startswith(STARTS) and not number(cell)]
    return found


def test_the_measure_sees_what_pandas_writes() -> None:
    frame = pd.DataFrame({"id": FORMULAS})
    assert len(armed(frame.to_csv(index=False))) >= len(FORMULAS) - 1  # one is disarmed already


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_a_table_holds_no_formula_and_comes_back(tmp_path: Path, ending: str) -> None:
    size = len(FORMULAS)
    ids = [f"{text}{i}" for i, text in enumerate(FORMULAS)]
    frame = pd.DataFrame(
        {"=HYPERLINK(1)": np.arange(size) - 7.5, "@word": FORMULAS, "+": ["-1", "+2", "=3"] * 5}
    )
    table = Table(np.array(ids, dtype=object), frame)
    table.to_csv(tmp_path / f"bank.{ending}", id="-id")
    raw = (tmp_path / f"bank.{ending}").read_bytes()
    text = (gzip.decompress(raw) if ending.endswith("gz") else raw).decode()
    assert armed(text) == []
    back = read(tmp_path / f"bank.{ending}", id="-id")
    assert list(back.names) == list(table.names)
    assert [each.strip() for each in back.ids] == [each.strip() for each in ids]
    assert back.frame["@word"].tolist() == FORMULAS
    assert back.frame["+"].tolist() == ["-1", "+2", "=3"] * 5
    assert back.frame["=HYPERLINK(1)"].tolist() == frame["=HYPERLINK(1)"].tolist()
    assert looked_at(tmp_path / f"bank.{ending}").header == ["-id", *table.names]
    lines = csv_lines(tmp_path / f"bank.{ending}", looked_at(tmp_path / f"bank.{ending}"))
    assert [line["@word"] for line in lines] == FORMULAS


def test_parquet_is_exact(tmp_path: Path) -> None:
    table = Table(np.array(FORMULAS, dtype=object), pd.DataFrame({"=x": FORMULAS}))
    table.to_parquet(tmp_path / "bank.parquet", id="@id")
    assert read(tmp_path / "bank.parquet").equals(table)


def test_predictions_hold_no_formula(tmp_path: Path) -> None:
    ids = np.array([f"{text}{i}" for i, text in enumerate(FORMULAS)], dtype=object)
    fed = fm.Federation(fm.Party("bank", Table(ids, pd.DataFrame({"x": np.arange(len(ids))}))))
    classes = ["=1+1", "-", "-2"]
    numbers = np.arange(len(ids)) % 3
    with fed.workers(PredictionWorker) as workers:
        workers["bank"].claim("bank")
        answers = {"prediction": numbers, "p(=1+1)": np.linspace(-1, 1, len(ids))}
        workers["bank"].take("bank", "bank", "bank", answers, classes)
        workers["bank"].write(str(tmp_path))
    file = tmp_path / "bank" / PREDICTIONS_FILE
    assert armed(file.read_bytes().decode()) == []
    back = read(file, id="id")
    assert [each.strip() for each in back.ids] == [each.strip() for each in ids]
    assert back.frame["prediction"].tolist() == [classes[i] for i in numbers]


def test_a_review_of_labels_holds_no_formula(tmp_path: Path) -> None:
    ids = np.array([f"{text}{i}" for i, text in enumerate(FORMULAS)], dtype=object)
    site = Site("bank", {"train": Table(ids, pd.DataFrame({"x": np.arange(len(ids))}))})
    reviewed = pd.DataFrame({"id": ids, "label": FORMULAS, "corrected": FORMULAS[::-1]})
    site.state[inc_labels._SHELF] = {"train": reviewed}
    inc_labels.LabelWorker.write_review(inc_labels.LabelWorker(site), str(tmp_path))
    file = tmp_path / "bank" / inc_labels.REVIEW
    assert armed(file.read_bytes().decode()) == []
    assert read(file, id="id").frame["label"].tolist() == FORMULAS


def test_numbers_stay_numbers() -> None:
    for text in ("-5", "+3.25", "-1e-5", "-1,5", "-.5", "-1.234,5", "7", ""):
        assert protected(text) == text
    text = io.StringIO()
    write_frame(pd.DataFrame({"x": [-1.5, np.nan], "y": [-1, 2], "z": [True, False]}), text)
    assert text.getvalue() == "x,y,z\n-1.5,-1,True\n,2,False\n"
    for text_ in ("-5 to 0", "-1-1", "+", "-", "--5", "-1;2"):
        assert protected(text_) == f"'{text_}"


@settings(max_examples=500)
@given(st.text(alphabet="'=+-@\t\r\n ＝1a.,;|\"", max_size=6))
def test_any_text_comes_back(text: str) -> None:
    assert unprotected(protected(text)) == text
    assert not re.match(r"[=+\-@\t\r\n＝]", protected(text)) or number(protected(text))


@settings(max_examples=100)
@given(st.lists(st.text(alphabet="=+-@\t\r ;|,\"a1'", min_size=1, max_size=8), min_size=1))
@example([";-1\t"])
@example(["-,1"])
def test_any_file_holds_no_formula(cells: list[str]) -> None:
    text = io.StringIO(newline="")
    write_frame(pd.DataFrame({"id": cells, "n": range(len(cells))}), text)
    rows = list(csv.reader(io.StringIO(text.getvalue(), newline="")))
    assert [unprotected(row[0]) for row in rows[1:]] == cells
    assert armed(text.getvalue()) == []
    assert not any(row[0].lstrip(" ").startswith(("\t", "\r", "\n")) for row in rows[1:])
