"""Class skew: equal to what one computes with all labels in one place, and no counts leave."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data.table import Table
from fedmend.errors import DataError, Refused
from fedmend.federation import Federation, Party, Policy
from fedmend.flow.doubts import class_doubts
from fedmend.preflight.skew import PartySkew, by_chance, distance, label_skew
from fedmend.report.amounts import percent
from fedmend.report.overview import overview


def clinics(labels: dict[str, list], **policies: Policy) -> Federation:
    parties = []
    for number, (name, said) in enumerate(labels.items()):
        frame = pd.DataFrame(
            {"age": np.arange(len(said)) + 0.5, "y": pd.Series(said, dtype=object)}
        )
        ids = np.arange(len(said)) + 1000 * number
        table = Table(ids, frame, label="y", kinds={"y": "nominal"})
        parties.append(Party(name, table, policy=policies.get(name)))
    return Federation(*parties, strict=True)


ACROSS = "horizontal"
LABELS = {
    "north": ["flu"] * 90 + ["cold"] * 10,
    "south": ["flu"] * 10 + ["cold"] * 90 + [None] * 5,
    "west": ["flu"] * 50 + ["cold"] * 50,
}


@pytest.mark.parametrize("parties", [["north", "south", "west"], ["north", "south"]])
def test_equal_to_the_labels_in_one_place(parties):
    found = label_skew(clinics({name: LABELS[name] for name in parties}))
    everyone = pd.Series([each for name in parties for each in LABELS[name]])
    pooled = everyone.value_counts(normalize=True)
    assert found.pooled == everyone.value_counts().to_dict()
    assert found.label == "y"
    for name in parties:
        own = pd.Series(LABELS[name]).value_counts(normalize=True)
        expected = own.sub(pooled, fill_value=0).abs().sum() / 2
        assert found.parties[name].distance == pytest.approx(expected)
        assert found.parties[name].rows == 100
    assert found.notable == ["north", "south"]
    assert "north and south have clearly other shares" in found.words[0]
    assert "40 % of its labels would have to change" in found.words[0]


@pytest.mark.parametrize("parties", [2, 3])
def test_whole_numbers_are_the_same_classes_where_a_label_is_missing(parties):
    """A column of codes with gaps holds fractions: 1.0 there is the 1 of the others."""
    codes = ([0, 1] * 20, [0.0, 1.0] * 15 + [np.nan] * 10, [1, 0] * 20)
    wards = [
        Table(np.arange(40) + 100 * at, {"age": np.arange(40.0), "y": said}, label="y")
        for at, said in enumerate(codes[:parties])
    ]
    fed = Federation(*(Party(f"ward-{at}", ward) for at, ward in enumerate(wards)), strict=True)
    found = label_skew(fed)
    rows = 70 if parties == 2 else 110
    assert found.pooled == {"0": rows // 2, "1": rows // 2} and not found.notable
    assert overview(fed, shape="horizontal").torn == [
        f"{rows} of {40 * parties} rows have a label ({percent(rows / (40 * parties))})."
    ]
    assert not [*class_doubts({"a": wards[0], "b": wards[1]})]
    alone = overview(Federation(Party("ward", wards[1])))
    assert alone.label is not None and alone.label["counts"] == {"0": 15, "1": 15}


def test_of_three_parties_no_counts_leave():
    fed = clinics(LABELS)
    label_skew(fed)
    calls = {entry.call for entry in fed.ledger.entries()}
    assert "ClassWorker.masked" in calls and "ClassWorker.counts" not in calls
    assert not {entry.kind for entry in fed.ledger.entries()} & {"label", "row"}


@pytest.mark.parametrize("parties", [2, 3])
def test_labels_of_small_classes_are_told_to_be_untold(parties):
    """Four colds are too few to be counted, and are labels and a class all the same."""
    said = {name: ["flu"] * 30 + ["cold"] * 4 for name in ("a", "b", "c")[:parties]}
    policies = {name: Policy(min_rows=3) for name in said} | {"b": Policy(min_rows=10)}
    found = overview(clinics(said | {"b": ["flu"] * 20 + ["cold"] * 4}, **policies), shape=ACROSS)
    assert not any("classes only" in line for line in found.torn)
    others = parties - 1
    told = f"y: cold {4 * others}, flu {30 * others}, others 24 (small classes are untold)"
    assert found.label_in_words() == told


def test_a_party_may_refuse():
    with pytest.raises(Refused, match="south"):
        label_skew(clinics(LABELS, south=Policy(refuse={"statistic"})))


def test_even_shares_are_said_to_be_even():
    even = {name: ["flu", "cold"] * 40 for name in ("a", "b", "c")}
    found = label_skew(clinics(even))
    assert found.words == ["The classes are shared alike among the parties."]
    assert found.mean == 0


def test_labels_that_are_numbers_are_no_classes():
    frame = pd.DataFrame({"x": range(1500), "y": np.arange(1500) + 0.25})
    fed = Federation(Party("a", Table.from_frame(frame, label="y")), strict=True)
    with pytest.raises(DataError, match="1500 different labels"):
        label_skew(fed)


@given(st.lists(st.integers(0, 50), min_size=3, max_size=3), st.integers(0, 10**6))
def test_distance_is_a_distance(counts, seed):
    one = np.array(counts)
    two = np.random.default_rng(seed).integers(1, 50, 3)
    found = distance(one, two)
    if not one.sum():
        assert found is None
        return
    assert 0 <= found <= 1
    assert found == pytest.approx(distance(two, one))
    assert distance(one, 7 * one) == pytest.approx(0)


@pytest.mark.parametrize("rows", [60, 800])
def test_chance_is_what_drawing_at_random_brings(rows):
    rng = np.random.default_rng(0)
    pooled = np.array([500, 300, 200])
    people = np.repeat(np.arange(3), pooled)
    drawn = [
        distance(np.bincount(rng.choice(people, rows, replace=False), minlength=3), pooled)
        for _ in range(2000)
    ]
    assert by_chance(pooled, rows) == pytest.approx(np.mean(drawn), rel=0.05)
    assert by_chance(pooled, 0) is None


def test_what_chance_may_bring_is_not_notable():
    assert not PartySkew(0.2, 0.11, 30, 2).notable, "not even twice as far as by chance"
    assert PartySkew(0.23, 0.11, 30, 2).notable
    assert not PartySkew(0.09, 0.01, 3000, 2).notable, "sure, but nothing to speak of"


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")  # all cells missing
def test_only_parties_with_labels_are_counted():
    uneven = {name: [cls] * 60 + ["x"] * 10 for name, cls in zip("abcd", "uvwz", strict=True)}
    words = label_skew(clinics(uneven | {"e": [None] * 60})).words[0]
    assert "all 4 parties with labels have clearly other shares" in words
