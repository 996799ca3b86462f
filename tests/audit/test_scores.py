"""Scores against scikit-learn's, intervals against what is known of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, r2_score, roc_auc_score

from fedmend.audit.scores import balanced_accuracy, best_matching, bootstrap, label_score, r2


def test_scores_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=300)
    belief = rng.normal(size=(300, 2))
    belief[:, 1] += truth
    assert label_score(truth, belief) == pytest.approx(roc_auc_score(truth, belief[:, 1]))
    three = rng.integers(3, size=300)
    guess = np.where(rng.random(300) < 0.6, three, rng.integers(3, size=300))
    assert balanced_accuracy(three, guess) == pytest.approx(balanced_accuracy_score(three, guess))
    assert label_score(three, np.eye(3)[guess]) == pytest.approx(balanced_accuracy(three, guess))
    number = rng.normal(size=300)
    told = number + rng.normal(size=300)
    assert r2(number, told) == pytest.approx(r2_score(number, told))
    assert np.isnan(r2(np.ones(5), np.ones(5)))


def test_r2_of_several_numbers_is_over_all_of_them() -> None:
    rng = np.random.default_rng(1)
    truth, guess = rng.normal(size=(2, 50, 3))
    weights = truth.var(0) / truth.var(0).sum()
    assert r2(truth, guess) == pytest.approx(
        float((r2_score(truth, guess, multioutput="raw_values") * weights).sum())
    )


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 1000))
def test_best_matching_undoes_any_renaming(names: list[int], seed: int) -> None:
    truth = np.random.default_rng(seed).integers(4, size=60)
    truth[:4] = range(4)
    clusters = np.asarray(names)[truth]
    assert (best_matching(truth, clusters, 4)[clusters] == truth).all()


def test_a_cluster_too_many_has_no_class() -> None:
    match = best_matching(np.array([0, 0, 1, 1]), np.array([0, 1, 2, 2]), 2)
    assert sorted(match) == [-1, 0, 1]
    assert match[2] == 1


def test_a_rare_class_counts_as_much_as_a_common_one_in_a_matching() -> None:
    truth = np.repeat([0, 1, 0, 1], [50, 9, 40, 1])
    clusters = np.repeat([0, 0, 1, 1], [50, 9, 40, 1])
    # By rows it would be the other way round: 50 + 1 against 9 + 40.
    assert best_matching(truth, clusters, 2).tolist() == [1, 0]


def test_an_interval_is_as_wide_as_95_of_100_are() -> None:
    sample = np.random.default_rng(4).normal(size=1000)
    point, low, high = bootstrap(
        lambda values: float(values.mean()), sample, rng=np.random.default_rng(0), draws=1500
    )
    assert point == sample.mean()
    error = sample.std() / np.sqrt(1000)
    assert (high - low) / (2 * error) == pytest.approx(1.96, rel=0.08)


def test_draws_that_cannot_be_scored_are_left_out() -> None:
    values = np.array([0.0, 1.0, 1.0])
    point, low, high = bootstrap(
        lambda drawn: float(drawn.sum()) if drawn.any() else float("nan"),
        values, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert point == 2
    assert 1 <= low <= high <= 3


def test_bootstrap_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng, held = np.random.default_rng(2), 0
    for _ in range(60):
        sample = rng.normal(loc=1.0, size=80)
        _, low, high = bootstrap(lambda values: float(values.mean()), sample, rng=rng)
        held += low <= 1.0 <= high
    assert held >= 50


def test_bootstrap_of_what_cannot_be_scored_is_not_a_number() -> None:
    point, low, high = bootstrap(
        lambda values: float("nan"), np.ones(4), rng=np.random.default_rng(0), draws=5
    )
    assert np.isnan([point, low, high]).all()
