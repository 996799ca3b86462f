"""Pseudo-label rules on tables made by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.errors import ConfigError
from fedmend.learn.pseudo import PseudoLabels, probability, published, select, spread


def test_published_is_the_distance_from_the_labelled_mean():
    labelled = np.array([1.0, 3.0, 5.0, 7.0])  # mean 4, deviation sqrt(5)
    labels = published(np.array([4.0, 5.0, 9.0]), labelled, alpha=0.5)
    expected = [1.0, 1 - 1 / math.sqrt(5), 1 - 5 / math.sqrt(5)]
    np.testing.assert_allclose(labels.score, expected)
    assert labels.mask.tolist() == [True, True, False]
    np.testing.assert_allclose(labels.weight, [1.0, 1 - 1 / math.sqrt(5), 0.0])
    assert labels.target.tolist() == [4.0, 5.0, 9.0]
    same = published(np.array([2.0, 2.5]), np.array([2.0, 2.0]), alpha=0.0)
    assert (same.mask.tolist(), same.weight.tolist()) == ([True, False], [1.0, 0.0])


def test_probability_takes_the_largest_class():
    table = np.array([[0.2, 0.7, 0.1], [0.4, 0.3, 0.3], [0.05, 0.05, 0.9]])
    labels = probability(table, alpha=0.7)
    assert labels.target.tolist() == [1, 0, 2]
    assert labels.mask.tolist() == [True, False, True]
    assert labels.weight.tolist() == [0.7, 0.4, 0.9]


def test_spread_of_values():
    members = np.array([[0.25, 0.0, 2.5], [0.75, 0.0, -2.5]])  # deviations .25, 0, 2.5
    labels = spread(members, alpha=0.75)
    assert labels.score.tolist() == [0.75, 1.0, 0.0]
    assert labels.target.tolist() == [0.5, 0.0, 0.0]
    assert labels.mask.tolist() == [True, True, False]
    shared = spread(np.array([[0.0, 0.3], [0.0, -0.3]]), 0.5, residual=0.4)
    np.testing.assert_allclose(shared.score, [0.6, 0.5])  # what members are off by together


def test_spread_of_probabilities():
    members = np.array([[[0.9, 0.1], [1.0, 0.0]], [[0.7, 0.3], [0.0, 1.0]]])
    labels = spread(members, alpha=0.7)
    # Row 1: mean .8/.2, total variation .1; row 2: mean .5/.5, total variation .5.
    np.testing.assert_allclose(labels.score, [0.8 * 0.9, 0.5 * 0.5])
    assert labels.target.tolist() == [0, 0]
    assert labels.mask.tolist() == [True, False]


def of_scores(scores: list[float], alpha: float) -> PseudoLabels:
    values = np.array(scores)
    return PseudoLabels(values, values >= alpha, values, values)


def test_select_alpha_first_then_the_top_share_of_those():
    labels = of_scores([0.9, 0.2, 0.7, 0.8, 0.95], alpha=0.6)  # four qualify
    assert select(labels, 0.5).tolist() == [4, 0]
    assert select(labels, 1.0).tolist() == [4, 0, 3, 2]
    assert select(labels, 0.01).tolist() == [4]
    assert select(of_scores([0.1, 0.2], alpha=0.6), 0.5).tolist() == []
    # of equals the first; 0.07 times 100 is a little more than 7 in floating point
    assert select(of_scores([0.8] * 4, alpha=0.5), 0.5).tolist() == [0, 1]
    assert len(select(of_scores([0.5] * 100, 0.5), 0.07)) == 7
    assert len(select(of_scores([0.5] * 100, 0.5), 0.071)) == 8


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_shares_out_of_range(bad):
    for call in (
        lambda: published(np.zeros(2), np.zeros(2), bad),
        lambda: probability(np.zeros((2, 2)), bad),
        lambda: spread(np.zeros((2, 2)), bad),
        lambda: select(of_scores([0.5], 0.1), bad),
    ):
        with pytest.raises(ConfigError, match="must lie in"):
            call()
    with pytest.raises(ConfigError, match=r"share must lie in \(0, 1\]"):
        select(of_scores([0.5], 0.1), 0.0)


@given(
    scores=st.lists(st.floats(0, 1), min_size=1, max_size=40),
    alpha=st.floats(0, 1),
    share=st.floats(0.01, 1),
)
def test_select_never_takes_a_lesser_row_before_a_surer_one(scores, alpha, share):
    labels = of_scores(scores, alpha)
    chosen = select(labels, share)
    assert len(set(chosen.tolist())) == len(chosen)
    qualified = int(labels.mask.sum())
    assert len(chosen) == math.ceil(share * qualified - 1e-9)
    if len(chosen):
        rest = np.setdiff1d(np.flatnonzero(labels.mask), chosen)
        assert labels.score[chosen].min() >= (labels.score[rest].max() if len(rest) else 0)
