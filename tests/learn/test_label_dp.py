"""Randomised response: its probabilities, its account, and its draws kept."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError
from fedmend.federation import Site
from fedmend.learn.label_dp import (
    Responses,
    ToldLabels,
    keep_probability,
    respond,
    response_matrix,
    with_told_labels,
    without_response,
)


def site(home: Path | None = None) -> Site:
    table = Table(np.arange(2), pd.DataFrame({"x": [0.1, 0.2]}))
    return Site("a", {"train": table}, home=home)


@pytest.mark.parametrize(("epsilon", "classes"), [(0.5, 2), (1.0, 5), (3.0, 26)])
def test_no_answer_is_much_likelier_under_one_label_than_another(
    epsilon: float, classes: int
) -> None:
    matrix = response_matrix(epsilon, classes)
    np.testing.assert_allclose(matrix.sum(1), 1.0)
    worst = (matrix.max(0) / matrix.min(0)).max()
    assert worst == pytest.approx(math.exp(epsilon))
    assert keep_probability(epsilon, classes) == pytest.approx(matrix[0, 0])


def test_answers_come_as_often_as_they_should() -> None:
    votes = np.repeat([0, 1, 2, -1], 6000)
    told = respond(votes, 1.0, 3)
    assert (told[votes < 0] == -1).all()
    for label, expected in enumerate(response_matrix(1.0, 3)):
        counts = np.bincount(told[votes == label], minlength=3)
        assert stats.chisquare(counts, expected * 6000).pvalue > 1e-6


def test_own_expertise_from_what_was_told() -> None:
    own = np.array([[0.8, 0.2, 0.0], [0.1, 0.7, 0.2], [0.0, 0.4, 0.6]])
    told = own @ response_matrix(1.5, 3)
    np.testing.assert_allclose(without_response(told, 1.5), own, atol=1e-12)


def test_expertise_stays_one_where_chance_went_beyond_what_can_be() -> None:
    """Whoever was told so rarely to be wrong by chance would be less than never wrong."""
    told = np.array([[0.95, 0.05], [0.2, 0.8]])  # keeps .73 of the labels at ε = 1
    own = without_response(told, 1.0)
    np.testing.assert_allclose(own[0], [1.0, 0.0])
    assert (own >= 0).all()
    np.testing.assert_allclose(own.sum(1), 1.0)


def test_other_classes_are_another_answer() -> None:
    votes = np.arange(300) % 2
    responses = Responses(site())
    two = responses.of("train|y", votes, 1.0, ["a", "b"])
    three = responses.of("train|y", votes, 1.0, ["a", "b", "c"])
    assert set(two) == {0, 1} and set(three) == {0, 1, 2}
    assert responses.spent("train|y") == 2.0


def test_an_answer_once_given_stays_and_costs_once(tmp_path: Path) -> None:
    votes = np.random.default_rng(0).integers(0, 3, 200)
    responses = Responses(site(tmp_path))
    first = responses.of("train|y", votes, 1.0, ["a", "b", "c"])
    assert (first != votes).any()
    np.testing.assert_array_equal(responses.of("train|y", votes, 1.0, ["a", "b", "c"]), first)
    # another process at the same party
    again = Responses(site(tmp_path))
    np.testing.assert_array_equal(again.of("train|y", votes, 1.0, ["a", "b", "c"]), first)
    assert again.spent("train|y") == 1.0
    again.of("train|y", votes, 0.5, ["a", "b", "c"])
    assert again.spent("train|y") == 1.5
    changed = np.roll(votes, 1)
    again.of("train|y", changed, 0.5, ["a", "b", "c"])
    assert again.spent("train|y") == 2.0
    assert again.spent("test|y") == 0.0


def test_labels_that_changed_are_told_anew_once(tmp_path: Path) -> None:
    """Answers to the same question, drawn again and again, would average out to the label."""
    votes = np.random.default_rng(0).integers(0, 2, 200)
    responses = Responses(site(tmp_path))
    first = responses.of("train|y", votes, 1.0, [0, 1])
    second = responses.of("train|y", 1 - votes, 1.0, [0, 1])
    for _ in range(2):
        np.testing.assert_array_equal(responses.of("train|y", 1 - votes, 1.0, [0, 1]), second)
        np.testing.assert_array_equal(responses.of("train|y", votes, 1.0, [0, 1]), first)
        responses = Responses(site(tmp_path))
    assert responses.spent("train|y") == 2.0


def test_no_message_can_make_a_party_forget_what_it_has_told() -> None:
    """Results of protocols are kept in the site's state, under names that a coordinator gives."""
    votes, party = np.random.default_rng(0).integers(0, 2, 200), site()
    told = Responses(party).of("train|y", votes, 1.0, [0, 1])
    for name in list(party.state):
        party.state[name] = {}
    np.testing.assert_array_equal(Responses(party).of("train|y", votes, 1.0, [0, 1]), told)


def test_a_whole_epsilon_is_the_same_as_a_fraction() -> None:
    """A file says 2 where Python says 2.0."""
    votes = np.random.default_rng(0).integers(0, 2, 200)
    responses = Responses(site())
    told = responses.of("train|y", votes, 2, [0, 1])
    np.testing.assert_array_equal(responses.of("train|y", votes, 2.0, [0, 1]), told)
    assert responses.spent("train|y") == 2.0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan")])
def test_epsilon_must_be_a_positive_number(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="label_dp"):
        keep_probability(epsilon, 3)


# ------------------------------------------------------------------ a table of one labeller


@pytest.mark.parametrize("classes", [("no", "yes"), (0, 1, 2)])
def test_a_tables_labels_are_told_as_often_as_they_should(classes) -> None:
    labels = pd.Series([classes[at % len(classes)] for at in range(6000)])
    table = Table(np.arange(6000), {"x": np.arange(6000.0), "y": labels}, label="y")
    told = with_told_labels(table, 1.0)
    kept = float((told.y == table.y).mean())
    assert abs(kept - keep_probability(1.0, len(classes))) < 0.03
    assert told.schema == table.schema
    assert told.frame["x"].equals(table.frame["x"])
    assert set(told.y) == set(classes)


def test_missing_labels_stay_missing_and_numbers_are_refused() -> None:
    said = pd.Series(["no", None, "yes", "no"], dtype=object)
    table = Table(np.arange(4), {"y": said}, label="y")
    assert with_told_labels(table, 5.0).y.isna().tolist() == [False, True, False, False]
    with pytest.raises(DataError, match="label is a number"):
        with_told_labels(Table(np.arange(40), {"y": np.arange(40) * 0.5}, label="y"), 1.0)
    with pytest.raises(DataError, match="no label column"):
        with_told_labels(table.with_label(None), 1.0)
    with pytest.raises(ConfigError, match="positive"):
        with_told_labels(table, 0.0)


# ------------------------------------------------------------------ in training


@given(
    classes=st.integers(2, 6),
    rows=st.integers(12, 60),
    epsilon=st.floats(0.05, 9.0),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=40, deadline=None)
def test_told_labels_of_any_table(classes: int, rows: int, epsilon: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.array([f"c{at}" for at in range(classes)], object)[np.arange(rows) % classes]
    labels[rng.random(rows) < 0.2] = None
    labels[:classes] = [f"c{at}" for at in range(classes)]  # every class is there
    table = Table(rng.permutation(rows), {"y": pd.Series(labels)}, label="y")
    party = Site("a", {"train": table})
    told = ToldLabels.of(party, "train", epsilon)
    missing = table.y.isna().to_numpy()
    np.testing.assert_array_equal(told.table.y.isna().to_numpy(), missing)
    np.testing.assert_array_equal(told.numbers < 0, missing)
    assert set(told.table.y.dropna()) <= set(told.classes)
    # No row is likelier under one class than e^ε times what it is under another.
    likely = told.belief.of(told.classes)
    np.testing.assert_allclose(likely.max(1) / likely.min(1), np.where(missing, 1, np.exp(epsilon)))
    np.testing.assert_array_equal(likely.argmax(1)[~missing], told.numbers[~missing])
    # A part of the table is told as the whole is, and costs nothing.
    some = np.flatnonzero(rng.random(rows) < 0.5)
    party.tables["part"] = table.take(some)
    part = ToldLabels.of(party, "part", epsilon)
    np.testing.assert_array_equal(part.numbers, told.numbers[some])
    assert part.spent == told.spent == epsilon
