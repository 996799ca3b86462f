import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.errors import ConfigError, DataError
from fedmend.secure.identifiers import (
    better_rule,
    describe_ids,
    normalised,
    shared_by_rule,
    type_of_ids,
)

words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)


def ids(*values: object) -> np.ndarray:
    if all(isinstance(value, int) for value in values):
        return np.array(values, np.int64)
    return np.array(values, object)


def one(value: object, rule: str) -> bytes:
    return normalised(ids(value), rule, "bank")[0]


@given(words, words)
def test_exact_keeps_all_differences(a, b):
    assert (one(a, "exact") == one(b, "exact")) == (a == b)


def test_exact_keeps_types_apart_and_text_does_not():
    assert one(7, "exact") != one("7", "exact")
    assert one(7, "text") == one("7", "text") == one(" 7 ", "text")
    assert one(-7, "text") == one("-7", "text")
    assert one("007", "text") != one(7, "text")
    assert one("007", "number") == one(7, "number") == one(" 7", "number")
    assert one("000", "number") == one(0, "number") != one("00a", "number")
    assert one("0a", "number") == one("0A ", "number") != one("a", "number")
    assert one("i7", "exact") != one(7, "exact")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Ann", "aNN"),
        ("  Ann   Lee ", "ann lee"),
        ("Ann\tLee\n", "ann lee"),
        ("Ann\u00a0Lee", "ann lee"),  # a no-break space
        ("Zoë", "Zoe\u0308"),  # composed and decomposed
        ("STRASSE", "straße"),
        ("ΑΣ", "ας"),  # the two small sigmas
        ("Å", "\u212b"),  # the letter and the unit
        ("\u1fc3", "\u03b7\u0345"),  # case folding takes the iota subscript apart
    ],
)
def test_text_sees_through_how_an_id_is_typed(a, b):
    assert one(a, "text") == one(b, "text")
    assert one(a, "exact") != one(b, "exact")


@given(words.filter(lambda word: word.strip()))
@settings(max_examples=100)
def test_text_is_stable_under_what_it_ignores(word):
    key = one(word, "text")
    for form in ("NFC", "NFD"):
        assert one(unicodedata.normalize(form, word), "text") == key
    assert one(f"  {word}\t", "text") == key
    assert one(word.casefold(), "text") == key


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=100)
def test_integers_match_only_themselves(a, b):
    for rule in ("exact", "text"):
        assert (one(a, rule) == one(b, rule)) == (a == b)


def test_ids_that_become_one_are_an_error_that_names_rows_and_no_ids():
    with pytest.raises(
        DataError, match=r"rows 0 and 2 are one id under normalise='text'"
    ) as caught:
        normalised(ids("Ann", "bob", "ANN "), "text", "bank")
    assert "party 'bank'" in str(caught.value) and "ann" not in str(caught.value).lower()
    with pytest.raises(DataError, match="row 1 is empty"):
        normalised(ids("Ann", "  "), "text", "bank")
    with pytest.raises(DataError, match="not valid unicode"):
        normalised(ids("\ud800"), "exact", "bank")
    with pytest.raises(ConfigError, match="normalise='exakt': did you mean 'exact'"):
        normalised(ids("a"), "exakt", "bank")


def test_a_description_tells_how_ids_are_written_and_holds_none():
    assert describe_ids(ids(1, 2)) == "integers" and type_of_ids(ids(1, 2)) == "integers"
    assert describe_ids(ids("01", "7")) == "text, digits only, with leading zeros"
    told = describe_ids(ids("Ann  Lee", "Zoe\u0308"))
    assert "capital" in told and "spaces" in told and "NFC" in told and "Ann" not in told
    assert describe_ids(np.empty(0, object)) == "text"


def test_how_many_are_shared_by_each_rule():
    bank, telco, shop = ["007", "12", "Ann"], [7, 12, 30], ["ann ", "7", "x"]
    assert shared_by_rule([bank, telco]) == {"exact": 0, "text": 1, "number": 2}
    assert shared_by_rule([bank, telco, shop]) == {"exact": 0, "text": 3, "number": 5}
    # "007" and "7" of one party would be one person.
    assert shared_by_rule([["007", "7"], [7]]) == {"exact": 0, "text": 1}


def test_zeros_that_one_of_three_parties_lost_are_noticed():
    whole = [f"{number:05d}" for number in range(3_333, 100_000, 3_333)]
    shared = shared_by_rule([whole, [int(each) for each in whole], whole])
    assert shared == {"exact": 30, "text": 84, "number": 90}
    assert better_rule(shared, "exact") == "number"


@pytest.mark.parametrize(
    ("shared", "rule", "better"),
    [
        ({"exact": 0, "text": 0, "number": 0}, "exact", "exact"),
        ({"exact": 0, "text": 1, "number": 2}, "exact", "number"),
        ({"exact": 100, "text": 101, "number": 102}, "exact", "exact"),
        ({"exact": 100, "text": 150, "number": 152}, "exact", "text"),
        ({"exact": 100, "text": 100, "number": 180}, "text", "number"),
        ({"exact": 100, "text": 180}, "number", "text"),
    ],
)
def test_a_looser_rule_is_for_many_more(shared, rule, better):
    assert better_rule(shared, rule) == better
