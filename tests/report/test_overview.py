"""The overview of a federation: what is asked of parties, and what is torn, in words and drawn."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.errors import FedmendWarning
from fedmend.federation import Federation, Party, Policy
from fedmend.methods.costs import Facts, cost_of_alignment
from fedmend.report import plots
from fedmend.report.overview import Overview, PartyOverview, overview, what_is_torn
from fedmend.secure.align import align


def test_sizes_labels_and_tears(torn):
    fed = torn()
    before = len(fed.ledger.entries())
    found = overview(fed)
    bank, telco = found.parties
    assert (bank.rows, bank.unaligned, bank.missing) == (10, 6, 0)
    assert sum(bank.columns.values()) == 2
    assert (bank.labelled_rows, bank.labelled_aligned) == (9, 4)
    assert (telco.rows, telco.unaligned, telco.missing, telco.labelled) == (7, 3, 1, False)
    assert found.aligned == 4
    assert found.label is not None and found.label["counts"] == {"no": 7, "yes": 2}
    text = str(found)
    assert "6 of bank's 10 rows (60 %) are not linked to telco: they lack telco's 1 " in text
    assert "3 of telco's 7 rows (43 %) are not linked to bank" in text
    assert "telco has no label for its 3 unlinked rows" in text
    assert "bank has a label for 9 of its 10 rows" in text
    assert "telco misses 1 cell (14 %)" in text
    assert "default: no 7, yes 2" in text and "What is torn:" in text
    assert Overview.from_dict(found.to_dict()) == found
    # Only counts and statistics leave the parties.
    kinds = {e.kind for e in fed.ledger.entries()[before:] if e.receiver == "coordinator"}
    assert kinds == {"control", "count", "statistic"}


def test_what_a_party_refuses_is_shown_as_withheld(torn):
    found = overview(torn(telco=Policy(workers={"FirstRowsWorker"})))
    assert found.parties[1].withheld is not None and "telco" in found.parties[1].withheld
    assert "telco withholds its sizes by its policy." in found.torn
    assert "withheld" in str(found)
    without = overview(torn(bank=Policy(refuse={"statistic"})))
    assert without.label is None and without.parties[0].rows == 10
    silent = overview(torn(bank=Policy(workers={"FirstRowsWorker"})))
    assert not any("No party has a label" in line for line in silent.torn)  # the bank has one
    nobody = Overview([PartyOverview("bank", withheld="no")], None, None, ["…"])
    assert plots.overlap(nobody) is None


def one_table(label, name="y", **columns):
    frame = pd.DataFrame({"x": range(len(label)), name: label, **columns})
    return Federation(Party("solo", Table.from_frame(frame, label=name)), strict=True)


def test_labels_of_one_table():
    whole = overview(one_table(["a", "b"] * 5))
    assert whole.torn == ["Nothing: every row is known to all, complete and labelled."]
    numbers = overview(one_table([float(number) + 0.5 for number in range(100)]))
    assert numbers.label is not None and numbers.label["mean"] == pytest.approx(50.0)
    assert "mean 50" in numbers.label_in_words()
    often = [f"c{number:02}" for number in range(60) for _ in range(2 + (number >= 10))]
    many = overview(one_table(often)).label
    assert many is not None and many["counts"] == {f"c{number}": 3 for number in range(10, 60)}
    with pytest.warns(FedmendWarning, match="empty"):
        fed = one_table(["a", "b", *[None] * 8], empty=[None] * 10)
    found = overview(fed)
    assert "solo has 1 column without any value." in found.torn
    assert "Labels are scarce: solo has a label for 2 of its 10 rows." in found.torn


@pytest.mark.parametrize(
    ("values", "numeric"),
    [
        ([0.5, 1.5, 2.5, 2.0], True),
        (list(range(40)), True),
        ([0, 1] * 20, False),
        ([str(each) for each in range(90)], False),
    ],
)
def test_a_label_is_taken_as_methods_take_it(values, numeric):
    found = overview(one_table(values))
    assert ("mean" in found.label) == numeric
    assert numeric or len(found.label["counts"]) <= 50


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


def test_rows_that_are_not_known_to_all():
    def party(name, rows, labelled, columns):
        return PartyOverview(name, rows, columns, labelled=labelled > 0, labelled_rows=labelled)

    four = {"continuous": 4}
    parties = [
        party("bank", 90, 90, four),
        party("agency", 80, 80, {}),
        party("telco", 70, 0, four),
    ]
    # All that some of them lack may be a label of the agency's.
    who = "telco has no label for rows that none of bank and agency knows"
    assert what_is_torn(parties, 20, None) == [
        "70 of bank's 90 rows (78 %) are not known to all.",
        "60 of agency's 80 rows (75 %) are not known to all.",
        "50 of telco's 70 rows (71 %) are not known to all.",
        f"{who}: 50 of 70 at most.",
    ]
    assert what_is_torn(parties, 20, None, joined=65) == [
        "25 of bank's 90 rows (28 %) are not linked to telco: they lack telco's 4 continuous "
        "columns.",
        "60 of agency's 80 rows (75 %) are not known to all.",
        "5 of telco's 70 rows (7.1 %) are not linked to bank: they lack bank's 4 continuous "
        "columns.",
        f"{who}: 5 of 70 at most.",
    ]
    # The telco may know those that the shop lacks, and the other way round.
    parties[1] = party("shop", 80, 0, {"nominal": 1})
    assert what_is_torn(parties, 20, None)[0] == (
        "70 of bank's 90 rows (78 %) are not known to all: they lack shop's 1 nominal column or "
        "telco's 4 continuous columns."
    )
    told = "shop has no label for rows that bank does not know: 60 of 80 at most."
    assert told in what_is_torn(parties, 20, None)
    parties[1] = PartyOverview("shop", withheld="refused")
    assert what_is_torn(parties, 20, None)[0] == "70 of bank's 90 rows (78 %) are not known to all."
    unknown = what_is_torn(parties, None, None)[0]
    assert unknown == "Not aligned yet: which rows the parties share is unknown."


def test_many_annotators_are_told_of_in_a_sentence():
    many = [
        PartyOverview(f"n{number}", 90, {}, labelled=True, labelled_rows=2 * number)
        for number in range(1, 41)
    ]
    (torn,) = what_is_torn(many, 90, None)
    assert torn == (
        "40 annotators have labels for some of their rows only: 2 to 80, half of them for at "
        "most 40."
    )
    labels = {party.name: {"name": "y", "counts": {"a": 12}} for party in many}
    told = Overview(many, 90, None, [torn], labels=labels).label_in_words().splitlines()
    assert len(told) == 13 and told[-1].startswith("of 28 more parties")


def test_bands_of_the_picture_count_every_row_once():
    told = [("bank", 1000, True), ("lab", 800, True), ("telco", 500, False)]
    parties = [
        PartyOverview(name, rows, {"continuous": 1}, labelled=labelled)
        for name, rows, labelled in told
    ]
    found = Overview(parties, 100, None, ["…"], labellers_share=700)
    bands = plots._bands(parties, found)
    assert [([each.name for each in owners], rows) for owners, rows, _ in bands] == [
        (["bank", "lab", "telco"], 100),
        (["bank", "lab"], 600),
        (["bank"], 300),
        (["lab"], 100),
        (["telco"], 400),
    ]
    # Every band holds its two lines of text, however few its rows are.
    thin = plots._bands(parties[:2], Overview(parties[:2], 1, None, ["…"]))
    assert thin[0][1] == 1 and thin[0][2] == 0.14 < thin[1][2]


def test_a_curve_that_cannot_be_drawn_says_why(torn):
    found = overview(torn(), curve=True)
    assert found.curve is not None
    assert "4 aligned rows with a label are too few" in found.curve["words"][0]


# ---------------------------------------------------------------- several annotators


def doctors(policy=None, lab_rows=60):
    rng = np.random.default_rng(0)
    truth = rng.choice(["flu", "cold"], 60)
    parties = []
    for number, error in enumerate((0.0, 0.4, 0.4)):
        wrong = rng.random(60) < error
        said = np.where(wrong, np.where(truth == "flu", "cold", "flu"), truth)
        table = Table(np.arange(60), pd.DataFrame({"y": said}), label="y")
        parties.append(Party(f"dr-{number}", table, policy=policy if number == 1 else None))
    fever = pd.DataFrame({"fever": rng.normal(size=lab_rows)})
    parties.append(Party("lab", Table(np.arange(lab_rows), fever)))
    fed = Federation(*parties, strict=True)
    align(fed)
    return fed


def test_annotators_are_compared_on_all_rows_they_share():
    fed = doctors(lab_rows=20)
    first = overview(fed)
    assert {pair["rows"] for pair in first.agreement["pairs"]} == {20}
    align(fed.only("dr-0", "dr-1", "dr-2"))
    found = overview(fed)
    assert found.aligned == 20 and found.labellers_share == 60
    assert {pair["rows"] for pair in found.agreement["pairs"]} == {60}
    assert found.agreement["lowest"] < 0.5 and len(found.agreement["pairs"]) == 3
    assert found.torn[-1].startswith("Annotators disagree: two of them have a kappa of ")
    assert sum(found.labels["dr-1"]["counts"].values()) == 60
    assert list(found.labels) == ["dr-0", "dr-1", "dr-2"]
    text = str(found)
    assert "dr-0, dr-1 and dr-2, who label, share 60 rows with each other." in text
    assert "Label dr-0, y: cold " in text
    assert "How far the annotators agree:" in text and "What would mend it:" in text
    assert "InC corrects the labels" in text
    assert Overview.from_dict(found.to_dict()) == found


def test_classes_that_are_not_told_are_not_taken_for_none():
    """Six typed otherwise: were 'yes' told, the total would tell of these few."""
    said = ["no"] * 30 + ["yes"] * 20 + ["Yes "] * 3 + ["No "] * 3
    table = Table(list(range(56)), {"x": [0.5] * 56, "y": said}, label="y")
    rest = Table(list(range(56)), {"z": [1.5] * 56})
    fed = Federation(Party("bank", table, policy=Policy(min_rows=10)), Party("telco", rest))
    align(fed, mode="same-order")
    found = overview(fed)
    assert found.label_in_words() == "y: no 30, others 26 (small classes are untold)"
    assert not any("one value only" in line for line in found.torn)


def test_tables_in_the_same_order_have_no_rows_to_be_found():
    votes = {"y": ["yes", "no"] * 20}
    tables = {f"a{at}": Table(list(range(40)), votes, label="y") for at in range(6)}
    told = {}
    for mode in ("same-order", "ecdh"):
        fed = Federation(*(Party(*each) for each in tables.items()))
        align(fed, mode=mode)
        told[mode] = overview(fed)
    assert [each.same_order for each in told.values()] == [True, False]
    facts = Facts(dict.fromkeys(tables, 40), dict.fromkeys(tables, 0), tuple(tables), 40)
    search, look = (cost_of_alignment(replace(facts, same_order=each)) for each in (False, True))
    seconds = {mode: (each.advice or {})["seconds"] for mode, each in told.items()}
    assert seconds["ecdh"] - seconds["same-order"] == pytest.approx(search.seconds - look.seconds)


def test_an_annotator_may_keep_its_agreement_to_itself():
    found = overview(doctors(Policy(refuse={"statistic"})))
    assert found.agreement is None
    assert "whether they agree is not known" in str(found)


# ---------------------------------------------------------------- the same columns, other people


def clinic(start: int, labels: list[str | None]) -> Table:
    rows = len(labels)
    frame = pd.DataFrame({"age": np.arange(rows) + 0.5, "y": pd.Series(labels, dtype=object)})
    return Table(np.arange(start, start + rows), frame, label="y", kinds={"y": "nominal"})


@pytest.fixture(scope="module")
def clinics() -> dict[str, Table]:
    with pytest.warns(FedmendWarning, match="all 2 cells are missing"):
        west = clinic(30, [None, None])
    return {
        "north": clinic(0, ["flu", "cold", "cough", None, None, None]),
        "south": clinic(10, ["flu", None, None, None, None, None, None, None]),
        "west": west,
    }


def test_what_is_torn_across_parties(clinics):
    fed = Federation(*(Party(*each) for each in clinics.items()), strict=True)
    found = overview(fed, shape="horizontal")
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
    text = " ".join(ElementTree.fromstring(plots.overlap(found)).itertext())
    assert "north  6 rows, 3 labelled" in text
    assert "the same 1 columns + label" in text
    many = Overview(found.parties * 12, None, None, ["…"], "horizontal")
    assert "and 12 more" in " ".join(ElementTree.fromstring(plots.overlap(many)).itertext())


def test_a_party_may_withhold_its_classes(clinics):
    silent = Federation(
        Party("north", clinics["north"]),
        Party("south", clinics["south"], policy=Policy(refuse=frozenset({"statistic"}))),
        Party("west", clinics["west"], policy=Policy(refuse=frozenset({"count"}))),
    )
    found = overview(silent, shape="horizontal")
    assert found.label is not None and found.label["counts"]["flu"] == 1
    assert found.torn[-1] == "west withholds its sizes by its policy."


def test_clients_have_their_skew():
    parties = []
    for number, share in enumerate((0.9, 0.1, 0.5)):
        labels = ["a"] * int(100 * share) + ["b"] * int(100 * (1 - share))
        parties.append(Party(f"c{number}", clinic(1000 * number, labels)))
    found = overview(Federation(*parties, strict=True), shape="horizontal")
    assert found.skew is not None and found.skew["notable"] == ["c0", "c1"]
    assert "The classes are shared unevenly" in str(found)
    assert found.advice["settings"]["methods"] == [{"name": "auto"}]
    assert found.advice["words"][-1].startswith("To compare by name: FedProx, FedAvg; ")
