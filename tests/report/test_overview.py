from __future__ import annotations

import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.errors import FedmendWarning
from fedmend.federation import Federation, Party, Policy
from fedmend.report import overlap
from fedmend.report.amounts import percent
from fedmend.report.overview import Overview, PartyOverview, overview
from fedmend.report.tears import what_is_torn


def test_sizes_labels_and_tears(torn):
    found = overview(torn())
    bank, telco = found.parties
    assert (bank.rows, bank.unaligned, bank.missing) == (10, 6, 0)
    assert sum(bank.columns.values()) == 2
    assert (bank.labelled_rows, bank.labelled_aligned) == (9, 4)
    assert (telco.rows, telco.unaligned, telco.missing, telco.labelled) == (7, 3, 1, False)
    assert found.aligned == 4
    assert found.label is not None and found.label["counts"] == {"no": 7, "yes": 2}
    text = "\n".join(found.torn)
    assert "6 of bank's 10 rows (60 %) are not linked to telco: they lack telco's 1 " in text
    assert "3 of telco's 7 rows (43 %) are not linked to bank" in text
    assert "telco has no label for its 3 unlinked rows" in text
    assert "bank has a label for 9 of its 10 rows" in text
    assert "telco misses 1 cell (14 %)" in text


def test_text_and_json_form(torn):
    found = overview(torn())
    text = str(found)
    assert "default: no 7, yes 2" in text and "What is torn:" in text
    assert Overview.from_dict(found.to_dict()) == found


def test_only_counts_and_statistics_leave_the_parties(torn):
    fed = torn()
    before = len(fed.ledger.entries())
    overview(fed)
    kinds = {e.kind for e in fed.ledger.entries()[before:] if e.receiver == "coordinator"}
    assert kinds == {"control", "count", "statistic"}


def test_a_party_that_refuses_is_shown_as_withheld(torn):
    found = overview(torn(telco=Policy(workers={"FirstRowsWorker"})))
    assert found.parties[1].withheld is not None and "telco" in found.parties[1].withheld
    assert "telco withholds its sizes by its policy." in found.torn
    assert "withheld" in str(found)


def test_label_counts_may_be_refused_alone(torn):
    found = overview(torn(bank=Policy(refuse={"statistic"})))
    assert found.label is None
    assert found.parties[0].rows == 10


def one_table(label, name="y", **columns):
    frame = pd.DataFrame({"x": range(len(label)), name: label, **columns})
    return Federation(Party("solo", Table.from_frame(frame, label=name)), strict=True)


def test_nothing_torn_is_said_too():
    found = overview(one_table(["a", "b"] * 5))
    assert found.torn == ["Nothing: every row is known to all, complete and labelled."]


def test_numeric_label_is_told_by_its_mean():
    found = overview(one_table([float(number) + 0.5 for number in range(100)]))
    assert found.label is not None and found.label["mean"] == pytest.approx(50.0)
    assert "mean 50" in found.label_in_words()


def test_rare_and_single_classes_are_named():
    (rare,) = overview(one_table(["a"] * 588 + ["b"] * 12)).torn
    assert rare == "The class 'b' is rare: 2.0 % of the labels."
    (fewer,) = overview(one_table(["a"] * 98 + ["b"] * 2)).torn
    assert fewer.startswith("The class 'b' is rare: 2.0 % of the labels, 2 in all. So few can")
    assert "The label has one value only, 'a'." in overview(one_table(["a"] * 9)).torn


def test_empty_column_and_scarce_labels():
    with pytest.warns(FedmendWarning, match="empty"):
        fed = one_table(["a", "b", *[None] * 8], empty=[None] * 10)
    found = overview(fed)
    assert "solo has 1 column without any value." in found.torn
    assert "Labels are scarce: solo has a label for 2 of its 10 rows." in found.torn


def test_before_alignment_nothing_is_known_of_shared_rows():
    frame = pd.DataFrame({"x": [1.5, 2.5], "y": ["a", "b"]})
    fed = Federation(
        Party("a", Table.from_frame(frame, label="y")), Party("b", Table.from_frame(frame[["x"]]))
    )
    found = overview(fed)
    assert found.aligned is None
    assert found.torn[0] == "Not aligned yet: which rows the parties share is unknown."


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.0004, "under 0.1 %"), (0.042, "4.2 %"), (0.0996, "10 %")]
)
def test_percent(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({str(digit): 50 for digit in range(12)}, None),  # a twelfth of many classes is its share
        ({"a": 500, "b": 40}, "The class 'b' is rare: 7.4 % of the labels."),
        ({"a": 500, "b": 500, "c": 60}, None),
        ({"a": 500, "b": 500, "c": 9}, "9 in all. So few can neither be learnt nor scored"),
        ({"a": 500, "b": 500, "c": 10}, "The class 'c' is rare: 1.0 % of the labels."),
        ({"a": 500}, "The label has one value only, 'a'."),
    ],
)
def test_a_class_is_rare_for_the_number_of_classes(counts, words):
    rows = sum(counts.values())
    bank = PartyOverview("bank", rows, {"continuous": 2}, labelled=True, labelled_rows=rows)
    told = " ".join(what_is_torn([bank], None, {"name": "y", "counts": counts}))
    assert ("is rare" in told or "one value" in told) == (words is not None)
    assert words is None or words in told


def test_of_many_classes_the_most_frequent_are_counted():
    often = [f"c{number:02}" for number in range(60) for _ in range(2 + (number >= 10))]
    label = overview(one_table(often)).label
    assert label is not None
    assert label["counts"] == {f"c{number}": 3 for number in range(10, 60)}


def test_bands_of_the_picture_count_every_row_once():
    told = [("bank", 1000, True), ("lab", 800, True), ("telco", 500, False)]
    parties = [
        PartyOverview(name, rows, {"continuous": 1}, labelled=labelled)
        for name, rows, labelled in told
    ]
    found = Overview(parties, 100, None, ["…"], labellers_share=700)
    bands = overlap._bands(parties, found)
    assert [([each.name for each in owners], rows) for owners, rows, _ in bands] == [
        (["bank", "lab", "telco"], 100),
        (["bank", "lab"], 600),
        (["bank"], 300),
        (["lab"], 100),
        (["telco"], 400),
    ]
    # Every band holds its two lines of text, however few its rows are.
    thin = overlap._bands(parties[:2], Overview(parties[:2], 1, None, ["…"]))
    assert thin[0][1] == 1 and thin[0][2] == 0.14 < thin[1][2]
