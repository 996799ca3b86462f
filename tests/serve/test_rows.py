"""New rows are read by the columns that the model has learnt, whatever they hold now."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import DataError, FedmendWarning
from fedmend.flow.config import PartySettings
from fedmend.flow.new_rows import read_rows, rows_of_records

BANK = PartySettings(name="bank", id="customer", label="default", drop=["remarks"])
LEARNT = Table(
    np.arange(8),
    {
        "flag": [0, 1] * 4,
        "sex": ["f", "m"] * 4,
        "grade": ["low", "high"] * 4,
        "income": np.arange(8) / 3,
    },
    kinds={"grade": ["low", "high"]},
).schema
ROW = {"customer": 7, "flag": 1, "sex": "m", "grade": "low", "income": 2}


def test_one_row_has_the_kinds_of_the_training_table():
    table = rows_of_records([ROW], BANK, LEARNT)
    assert [LEARNT[name].kind for name in ("flag", "sex")] == ["binary", "binary"]
    assert table.schema["income"].is_numeric and table.schema["flag"].is_numeric
    assert table.schema["grade"].kind == "ordinal"
    assert tuple(table.schema["grade"].categories) == ("low", "high")


def test_what_had_two_values_may_have_more():
    rows = [ROW, ROW | {"customer": 8, "flag": 2}, ROW | {"customer": 9, "flag": 0}]
    with pytest.warns(FedmendWarning, match="'bank': column 'flag' has 2 in 1 row, .* never"):
        assert rows_of_records(rows, BANK, LEARNT).frame["flag"].tolist() == [1, 2, 0]
    with pytest.warns(FedmendWarning, match="'bank': column 'sex' has 'd' in 1 row, .* never"):
        rows_of_records([ROW | {"sex": "d"}, ROW | {"customer": 8}], BANK, LEARNT)


def test_columns_that_are_not_asked_for_and_columns_that_lack():
    told = ROW | {"default": "yes", "remarks": "none"}
    assert rows_of_records([told], BANK, LEARNT).names == list(ROW)[1:]
    with pytest.warns(FedmendWarning, match="'bank': the model knows no 'shoes': not used"):
        rows_of_records([ROW | {"shoes": 43}], BANK, LEARNT)
    lacking = {name: value for name, value in ROW.items() if name not in ("sex", "grade")}
    with pytest.raises(DataError, match=r"'bank', column 'sex': .* lack it \(and 1 more\)"):
        rows_of_records([lacking], BANK, LEARNT)


def test_a_file_and_records_are_read_alike(tmp_path):
    rows = [ROW, ROW | {"customer": 8, "sex": None, "income": None}]
    pd.DataFrame(rows).to_csv(tmp_path / "new.csv", index=False)
    read, given = read_rows(tmp_path / "new.csv", BANK, LEARNT), rows_of_records(rows, BANK, LEARNT)
    assert read.schema == given.schema and read.ids.tolist() == given.ids.tolist()
    assert read.frame.isna().to_numpy().tolist() == given.frame.isna().to_numpy().tolist()


TOLD = Table(
    np.arange(6),
    {"smoker": [True, False] * 3, "dose": [0.5, 1.5] * 3, "visits": [3, 1, 4, 1, 5, 9]},
)
NEW = [
    {"customer": 1, "smoker": True, "dose": 1.5, "visits": 2},
    {"customer": 2, "smoker": None, "dose": None, "visits": 10.5},
    {"customer": 3, "smoker": False, "dose": 0.5, "visits": None},
]


@pytest.mark.parametrize("rows", [NEW[:1], NEW[1:2], NEW])
def test_true_and_false_and_fractions_mean_what_they_meant_in_training(tmp_path, rows):
    assert [column.kind for column in TOLD.schema.values()] == ["binary", "binary", "integer"]
    pd.DataFrame(rows).to_csv(tmp_path / "new.csv", index=False)
    encoder = Encoder().fit(TOLD)
    meant = [
        encoder.transform(read_rows(tmp_path / "new.csv", BANK, TOLD.schema)),
        encoder.transform(rows_of_records(rows, BANK, TOLD.schema)),
    ]
    learnt = TOLD.frame.to_numpy(float)
    cells = np.array([[row[name] for name in TOLD.names] for row in rows], float)
    expected = (cells - learnt.mean(0)) / learnt.std(0)
    for each in meant:
        np.testing.assert_allclose(each.numeric, np.nan_to_num(expected), atol=1e-6)
        assert each.missing.tolist() == np.isnan(cells).tolist()


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("smoker", "perhaps", "'bank', column 'smoker': must be true or false, .*'perhaps'.*Mend"),
        ("dose", "much", "'bank'.*'dose'.*'much'.*Mend"),
        ("visits", "often", "'bank'.*'visits'.*'often'.*Mend"),
    ],
)
def test_what_is_no_number_is_refused(column, value, problem):
    with pytest.raises(DataError, match=problem):
        rows_of_records([NEW[0] | {column: value}], BANK, TOLD.schema)
