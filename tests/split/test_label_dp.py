"""Randomised response: its probabilities, its account, and its draws kept."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, Refused
from fedmend.federation import Policy, Site
from fedmend.federation.labels import (
    FILE,
    LabelRecords,
    Noise,
    keep_probability,
    respond,
    response_matrix,
)
from fedmend.split.labels import (
    ReportedLabels,
    ask_for_noise,
    with_reported_labels,
    without_response,
)


@pytest.mark.parametrize(("epsilon", "classes"), [(0.5, 2), (1.0, 5), (3.0, 26)])
def test_no_answer_is_much_likelier_under_one_label_than_another(epsilon, classes):
    matrix = response_matrix(epsilon, classes)
    np.testing.assert_allclose(matrix.sum(1), 1.0)
    worst = (matrix.max(0) / matrix.min(0)).max()
    assert worst == pytest.approx(math.exp(epsilon))
    assert keep_probability(epsilon, classes) == pytest.approx(matrix[0, 0])


def test_true_is_the_class_1_of_another_party():
    noise = Noise((0, 1), 2.0)
    for labels in ([False, True, None], pd.Series([0, 1, np.nan]), pd.Categorical([0, 1, None])):
        assert noise.numbers(pd.Series(labels)).tolist() == [0, 1, -1]


def test_answers_come_as_often_as_they_should():
    votes = np.repeat([0, 1, 2, -1], 6000)
    told = respond(votes, 1.0, 3)
    assert (told[votes < 0] == -1).all()
    for label, expected in enumerate(response_matrix(1.0, 3)):
        counts = np.bincount(told[votes == label], minlength=3)
        assert stats.chisquare(counts, expected * 6000).pvalue > 1e-6


def test_own_expertise_from_what_was_told():
    own = np.array([[0.8, 0.2, 0.0], [0.1, 0.7, 0.2], [0.0, 0.4, 0.6]])
    told = own @ response_matrix(1.5, 3)
    np.testing.assert_allclose(without_response(told, 1.5), own, atol=1e-12)


def test_expertise_stays_one_where_chance_went_beyond_what_can_be():
    """Whoever was told so rarely to be wrong by chance would be less than never wrong."""
    told = np.array([[0.95, 0.05], [0.2, 0.8]])  # keeps .73 of the labels at ε = 1
    own = without_response(told, 1.0)
    np.testing.assert_allclose(own[0], [1.0, 0.0])
    assert (own >= 0).all()
    np.testing.assert_allclose(own.sum(1), 1.0)


def records(folder: Path | None = None) -> LabelRecords:
    return LabelRecords("a", folder)


def drawn(kept: LabelRecords, votes: np.ndarray, epsilon: float, classes: list, **options):
    return kept.drawn(
        "y", "y", Noise(tuple(classes), epsilon), np.arange(len(votes)), votes, **options
    )


def test_other_classes_are_another_answer_and_another_order_is_not():
    votes, kept = np.arange(200) % 2, records()
    two = drawn(kept, votes, 1.0, ["a", "b"])
    np.testing.assert_array_equal(drawn(kept, 1 - votes, 1.0, ["b", "a"]), 1 - two)
    assert kept.spent("y") == 1.0
    three = drawn(kept, votes, 1.0, ["a", "b", "c"])
    assert set(two) == {0, 1} and set(three) == {0, 1, 2}
    assert kept.spent("y") == 2.0


def test_an_answer_once_given_stays_and_costs_once(tmp_path):
    votes = np.random.default_rng(0).integers(0, 3, 200)
    kept, again = records(tmp_path), records(tmp_path)  # two processes, before either draws
    first = drawn(kept, votes, 1.0, ["a", "b", "c"])
    assert (first != votes).any()
    for each in (kept, again, records(tmp_path)):
        np.testing.assert_array_equal(drawn(each, votes, 1.0, ["a", "b", "c"]), first)
    # a file says 1 where Python says 1.0
    np.testing.assert_array_equal(drawn(again, votes, 1, ["a", "b", "c"]), first)
    assert again.spent("y") == 1.0
    drawn(again, votes, 0.5, ["a", "b", "c"])
    assert again.spent("y") == 1.5
    assert again.spent("z") == 0.0
    assert [each["epsilon"] for each in records(tmp_path).spendings] == [1.0, 0.5]


def test_new_ids_are_drawn_and_old_ones_reused(tmp_path):
    votes = np.random.default_rng(0).integers(0, 2, 1120)
    kept = records(tmp_path)
    some = drawn(kept, votes[:120], 1.0, [0, 1], about={"run": "first"})
    every = drawn(records(tmp_path), votes, 1.0, [0, 1], about={"run": "second"})
    np.testing.assert_array_equal(every[:120], some)
    # e / (1 + e) are true, .731 ± .014: six times that is out of chance's reach.
    assert 0.65 < (every[120:] == votes[120:]).mean() < 0.82
    account = records(tmp_path).spendings
    assert [(each["run"], each["ids"], each["total"]) for each in account] == [
        ("first", 120, 1.0),
        ("second", 1000, 1.0),
    ]


def test_a_label_that_changed_is_told_as_before(tmp_path):
    """An answer that changes with the label would say that the label has changed."""
    votes = np.random.default_rng(0).integers(0, 2, 200)
    told = drawn(records(tmp_path), votes, 1.0, [0, 1])
    votes[5] = -1  # a label taken away is missing
    again = drawn(records(tmp_path), np.where(votes < 0, -1, 1 - votes), 1.0, [0, 1])
    np.testing.assert_array_equal(again, np.where(votes < 0, -1, told))
    assert records(tmp_path).spent("y") == 1.0


def test_the_ceiling_is_for_the_sum_and_nothing_is_drawn_beyond_it(tmp_path):
    votes = np.random.default_rng(0).integers(0, 2, 200)
    kept = records(tmp_path)
    drawn(kept, votes, 1.0, [0, 1], ceiling=2.0)
    drawn(kept, votes, 0.75, [0, 1], ceiling=2.0)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(
        Refused, match=r"ε = 1\.75 so far.*make that 2\.25.*ceiling is 2.*Mend: .*0\.75, 1"
    ):
        drawn(kept, votes, 0.5, [0, 1], ceiling=2.0)
    assert (tmp_path / FILE).read_bytes() == before
    # What was drawn before may be said again.
    drawn(kept, votes, 0.75, [0, 1], ceiling=2.0)
    drawn(kept, votes, 0.25, [0, 1], ceiling=2.0)
    assert kept.spent("y") == 2.0


def test_the_file_is_for_the_party_alone_and_damage_is_named(tmp_path):
    votes = np.random.default_rng(0).integers(0, 2, 50)
    drawn(records(tmp_path), votes, 1.0, [0, 1])
    path = tmp_path / FILE
    assert path.stat().st_mode & 0o077 == 0
    for damage in (b"\x00\xff\x12", b"[]", b'{"format": "other"}', path.read_bytes()[:-20]):
        path.write_bytes(damage)
        with pytest.raises(DataError, match=r"labels\.json, cannot be read.*Mend: take it from"):
            records(tmp_path)


def test_what_cannot_be_kept_is_not_told(tmp_path, monkeypatch):
    votes = np.random.default_rng(0).integers(0, 2, 50)
    kept = records(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedmend.federation.labels.write_whole", full)
        with pytest.raises(OSError, match="No space"):
            drawn(kept, votes, 1.0, [0, 1])
    assert kept.spent("y") == 0.0 and kept.spendings == []


def test_no_message_can_make_a_party_forget_what_it_has_told():
    """Results of protocols are kept in the site's state, under names that a coordinator gives."""
    table = Table(np.arange(200), {"y": pd.Series(np.arange(200) % 2)}, label="y")
    party = Site("a", {"train": table})
    ask_for_noise(party, "train", 1.0, by="a test")
    told = party.table_of("train").y.tolist()
    for name in list(party.state):
        party.state[name] = {}
    party.labels._seen.clear()
    assert party.table_of("train").y.tolist() == told != table.y.tolist()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan")])
def test_epsilon_must_be_a_positive_number(epsilon):
    with pytest.raises(ConfigError, match="label_dp"):
        keep_probability(epsilon, 3)


# ------------------------------------------------------------------ a table of one labeller


@pytest.mark.parametrize("classes", [("no", "yes"), (0, 1, 2)])
def test_a_tables_labels_are_told_as_often_as_they_should(classes):
    labels = pd.Series([classes[at % len(classes)] for at in range(6000)])
    table = Table(np.arange(6000), {"x": np.arange(6000.0), "y": labels}, label="y")
    told = with_reported_labels(table, 1.0)
    kept = float((told.y == table.y).mean())
    assert abs(kept - keep_probability(1.0, len(classes))) < 0.03
    assert told.schema == table.schema
    assert told.frame["x"].equals(table.frame["x"])
    assert set(told.y) == set(classes)


def test_missing_labels_stay_missing_and_numbers_are_refused():
    said = pd.Series(["no", None, "yes", "no"], dtype="category")
    table = Table(np.arange(4), {"y": said}, label="y")
    assert with_reported_labels(table, 5.0).y.isna().tolist() == [False, True, False, False]
    with pytest.raises(DataError, match="label is a number"):
        with_reported_labels(Table(np.arange(40), {"y": np.arange(40) * 0.5}, label="y"), 1.0)
    with pytest.raises(DataError, match="no label column"):
        with_reported_labels(table.with_label(None), 1.0)
    with pytest.raises(ConfigError, match="positive"):
        with_reported_labels(table, 0.0)


# ------------------------------------------------------------------ in training


def test_rows_without_a_label_stay_a_table_of_the_same_columns():
    table = Table(np.arange(4), {"y": pd.Series(["no", None, "yes", None])}, label="y")
    party = Site("a", {"train": table})
    ask_for_noise(party, "train", 1.0, by="a test")
    for rows in ([1, 3], []):
        party.tables["part"] = table.take(np.array(rows, int))
        told = ReportedLabels.of(party, "part")
        assert told is not None and (told.numbers == -1).all()
        assert party.table_of("part").schema == table.schema


@given(
    classes=st.integers(2, 6),
    rows=st.integers(12, 60),
    epsilon=st.floats(0.05, 9.0),
    seed=st.integers(0, 2**16),
    kind=st.sampled_from([object, "category", "string"]),
)
def test_told_labels_of_any_table(classes, rows, epsilon, seed, kind):
    rng = np.random.default_rng(seed)
    labels = np.array([f"c{at}" for at in range(classes)], object)[np.arange(rows) % classes]
    labels[rng.random(rows) < 0.2] = None
    labels[:classes] = [f"c{at}" for at in range(classes)]  # every class is there
    table = Table(rng.permutation(rows), {"y": pd.Series(labels, dtype=kind)}, label="y")
    party = Site("a", {"train": table}, policy=Policy(label_epsilon=math.inf))
    assert ReportedLabels.of(party, "train") is None
    account = ask_for_noise(party, "train", epsilon, by="a test")
    told, seen = ReportedLabels.of(party, "train"), party.table_of("train")
    assert told is not None
    missing = table.y.isna().to_numpy()
    np.testing.assert_array_equal(seen.y.isna().to_numpy(), missing)
    np.testing.assert_array_equal(told.numbers < 0, missing)
    assert set(seen.y.dropna()) <= set(told.classes)
    # No row is likelier under one class than e^ε times what it is under another.
    likely = told.likelihood.of(told.classes)
    np.testing.assert_allclose(likely.max(1) / likely.min(1), np.where(missing, 1, np.exp(epsilon)))
    np.testing.assert_array_equal(likely.argmax(1)[~missing], told.numbers[~missing])
    # A part of the table is told as the whole is, and costs nothing.
    some = np.flatnonzero(rng.random(rows) < 0.5)
    party.tables["part"] = table.take(some)
    part = ReportedLabels.of(party, "part")
    assert part is not None
    np.testing.assert_array_equal(part.numbers, told.numbers[some])
    assert part.account["spent"] == account["spent"] == account["new"] == epsilon
