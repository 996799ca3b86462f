"""The overview of parties with the same columns and different people."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.errors import FedmendWarning
from fedmend.federation import Federation, Party, Policy
from fedmend.report.overlap import overlap
from fedmend.report.overview import Overview, overview
from fedmend.report.page import render
from fedmend.report.record import RunRecord


def table_of(start: int, labels: list[str | None]) -> Table:
    rows = len(labels)
    frame = pd.DataFrame({"age": np.arange(rows) + 0.5, "y": pd.Series(labels, dtype=object)})
    return Table(np.arange(start, start + rows), frame, label="y", kinds={"y": "nominal"})


@pytest.fixture
def clinics() -> Federation:
    with pytest.warns(FedmendWarning, match="all 2 cells are missing"):
        west = table_of(30, [None, None])
    return Federation(
        Party("north", table_of(0, ["flu", "cold", "cough", None, None, None])),
        Party("south", table_of(10, ["flu", None, None, None, None, None, None, None])),
        Party("west", west),
        strict=True,
    )


def test_what_is_torn_across_parties(clinics: Federation) -> None:
    found = overview(clinics, shape="horizontal")
    assert found.torn == [
        "Labels are scarce: 4 of 16 rows have one (25 %).",
        "west has no labelled row: it learns from the others' labels only.",
        "south has labels of 1 of the 3 classes only.",
    ]
    assert found.label is not None
    assert found.label["counts"] == {"cold": 1, "cough": 1, "flu": 2}
    assert found.rows()[0] == ["party", "rows", "columns", "missing cells", "label"]
    assert "known to all" not in str(found)
    assert Overview.from_dict(found.to_dict()) == found


def test_a_party_may_withhold_its_classes(clinics: Federation) -> None:
    tables = {name: clinics.engine.site(name).tables["train"] for name in clinics.names}
    silent = Federation(
        Party("north", tables["north"]),
        Party("south", tables["south"], policy=Policy(refuse=frozenset({"statistic"}))),
        Party("west", tables["west"], policy=Policy(refuse=frozenset({"count"}))),
    )
    found = overview(silent, shape="horizontal")
    assert found.label is not None and found.label["counts"]["flu"] == 1
    assert found.torn[-1] == "west withholds its sizes by its policy."


def test_rows_are_drawn_one_below_the_other(clinics: Federation) -> None:
    found = overview(clinics, shape="horizontal")
    text = " ".join(ElementTree.fromstring(overlap(found)).itertext())
    assert "north  6 rows, 3 labelled" in text
    assert "the same 1 columns + label" in text
    many = Overview(found.parties * 12, None, None, ["…"], "horizontal")
    assert "and 12 more" in " ".join(ElementTree.fromstring(overlap(many)).itertext())
    page = render(RunRecord("clinics", [], "accuracy", overview=found.to_dict()), [])
    assert "the same columns of different people" in page
    assert "nobody can look up" not in page
