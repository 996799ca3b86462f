"""Pseudo-label rules on tables made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.errors import ConfigError
from fedmend.learn.pseudo import (
    PseudoLabels,
    cdsc,
    cpg,
    dirichlet_evidence,
    evidential,
    probability,
    published,
    select,
    spread,
)


def test_published_is_the_distance_from_the_labelled_mean() -> None:
    labelled = np.array([1.0, 3.0, 5.0, 7.0])  # mean 4, deviation sqrt(5)
    labels = published(np.array([4.0, 5.0, 9.0]), labelled, alpha=0.5)
    expected = [1.0, 1 - 1 / math.sqrt(5), 1 - 5 / math.sqrt(5)]
    np.testing.assert_allclose(labels.score, expected)
    assert labels.mask.tolist() == [True, True, False]
    np.testing.assert_allclose(labels.weight, [1.0, 1 - 1 / math.sqrt(5), 0.0])
    assert labels.target.tolist() == [4.0, 5.0, 9.0]


def test_published_where_all_labelled_values_are_the_same() -> None:
    labels = published(np.array([2.0, 2.5]), np.array([2.0, 2.0]), alpha=0.0)
    assert labels.mask.tolist() == [True, False]
    assert labels.weight.tolist() == [1.0, 0.0]


def test_probability_takes_the_largest_class() -> None:
    table = np.array([[0.2, 0.7, 0.1], [0.4, 0.3, 0.3], [0.05, 0.05, 0.9]])
    labels = probability(table, alpha=0.7)
    assert labels.target.tolist() == [1, 0, 2]
    assert labels.mask.tolist() == [True, False, True]
    assert labels.weight.tolist() == [0.7, 0.4, 0.9]


def test_spread_of_values() -> None:
    members = np.array([[1.0, 0.0, 10.0], [3.0, 0.0, -10.0]])  # deviations 1, 0, 10
    labels = spread(members, alpha=0.75, scale=4.0)
    assert labels.score.tolist() == [0.75, 1.0, 0.0]
    assert labels.target.tolist() == [2.0, 0.0, 0.0]
    assert labels.mask.tolist() == [True, True, False]


def test_spread_of_probabilities() -> None:
    members = np.array([[[0.9, 0.1], [1.0, 0.0]], [[0.7, 0.3], [0.0, 1.0]]])
    labels = spread(members, alpha=0.7)
    # Row 1: mean .8/.2, total variation .1; row 2: mean .5/.5, total variation .5.
    np.testing.assert_allclose(labels.score, [0.8 * 0.9, 0.5 * 0.5])
    assert labels.target.tolist() == [0, 0]
    assert labels.mask.tolist() == [True, False]


def test_spread_of_values_needs_a_scale() -> None:
    with pytest.raises(ConfigError, match="scale"):
        spread(np.zeros((2, 3)), 0.5)
    agreed = spread(np.array([[1.0, 1.0], [1.0, 2.0]]), 0.5, scale=0.0)
    assert agreed.score.tolist() == [1.0, 0.0]


def test_evidential_numbers() -> None:
    evidence = np.array([[0.0, 0.0], [8.0, 0.0], [1.0, 1.0]])
    labels = evidential(evidence, most_uncertainty=0.5)
    np.testing.assert_allclose(labels.weight, [0.0, 0.8, 0.5])
    assert labels.mask.tolist() == [False, True, True]
    assert labels.target[1] == 0


LOCAL = np.array([[0.9, 0.1], [0.6, 0.4], [0.55, 0.45], [0.1, 0.9]])
WORLD = np.array([[0.2, 0.8], [0.1, 0.9], [0.5, 0.5], [0.3, 0.7]])


def test_cpg_local_first_then_global_then_none() -> None:
    labels = cpg(LOCAL, WORLD, tau=0.8)
    assert labels.target[[0, 1, 3]].tolist() == [0, 1, 1]
    assert labels.mask.tolist() == [True, True, False, True]
    assert labels.weight[[0, 1, 3]].tolist() == [0.9, 0.9, 0.9]


def test_cdsc_mixes_by_the_difference_of_confidence() -> None:
    labels = cdsc(LOCAL, WORLD, tau=0.8, kappa=2.0)
    mixture = math.exp(-2.0 * (0.9 - 0.8))
    np.testing.assert_allclose(labels.target[0], [mixture, 1 - mixture])
    np.testing.assert_allclose(labels.target[1], [0.0, 1.0])  # the global class alone
    np.testing.assert_allclose(labels.target[3], [0.0, 1.0])  # both say the second
    assert labels.mask.tolist() == [True, True, False, True]
    np.testing.assert_allclose(labels.target.sum(1), 1.0)


def test_sage_rules_give_tensors_for_tensors() -> None:
    for rule in (lambda p, q: cpg(p, q, 0.8), lambda p, q: cdsc(p, q, 0.8, 2.0)):
        arrays, tensors = rule(LOCAL, WORLD), rule(torch.tensor(LOCAL), torch.tensor(WORLD))
        for name in ("target", "mask", "weight"):
            assert isinstance(getattr(tensors, name), torch.Tensor)
            np.testing.assert_array_equal(getattr(tensors, name).numpy(), getattr(arrays, name))


def of_scores(scores: list[float], alpha: float) -> PseudoLabels:
    values = np.array(scores)
    return PseudoLabels(values, values >= alpha, values, values)


def test_select_alpha_first_then_the_top_share_of_those() -> None:
    labels = of_scores([0.9, 0.2, 0.7, 0.8, 0.95], alpha=0.6)  # four qualify
    assert select(labels, 0.5).tolist() == [4, 0]
    assert select(labels, 1.0).tolist() == [4, 0, 3, 2]
    assert select(labels, 0.01).tolist() == [4]
    among = np.array([True, True, True, True, False])
    assert select(labels, 0.5, among).tolist() == [0, 3]
    assert select(of_scores([0.1, 0.2], alpha=0.6), 0.5).tolist() == []


def test_select_of_equals_takes_the_first() -> None:
    assert select(of_scores([0.8, 0.8, 0.8, 0.8], alpha=0.5), 0.5).tolist() == [0, 1]


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_shares_out_of_range(bad: float) -> None:
    for call in (
        lambda: published(np.zeros(2), np.zeros(2), bad),
        lambda: probability(LOCAL, bad),
        lambda: spread(LOCAL, bad, scale=1.0),
        lambda: evidential(LOCAL, bad),
        lambda: cpg(LOCAL, WORLD, bad),
        lambda: cdsc(LOCAL, WORLD, bad, 1.0),
        lambda: select(of_scores([0.5], 0.1), bad),
    ):
        with pytest.raises(ConfigError, match="must lie in"):
            call()
    with pytest.raises(ConfigError, match=r"share must lie in \(0, 1\]"):
        select(of_scores([0.5], 0.1), 0.0)
    with pytest.raises(ConfigError, match="kappa"):
        cdsc(LOCAL, WORLD, 0.5, -1.0)


@given(
    scores=st.lists(st.floats(0, 1), min_size=1, max_size=40),
    alpha=st.floats(0, 1),
    share=st.floats(0.01, 1),
)
@settings(max_examples=60, deadline=None)
def test_select_never_takes_a_lesser_row_before_a_surer_one(
    scores: list[float], alpha: float, share: float
) -> None:
    labels = of_scores(scores, alpha)
    chosen = select(labels, share)
    assert len(set(chosen.tolist())) == len(chosen)
    qualified = int(labels.mask.sum())
    assert len(chosen) == math.ceil(share * qualified - 1e-9)
    if len(chosen):
        rest = np.setdiff1d(np.flatnonzero(labels.mask), chosen)
        assert labels.score[chosen].min() >= (labels.score[rest].max() if len(rest) else 0)


def test_members_that_agree_are_evidence() -> None:
    mean = np.array([[0.8, 0.2], [0.8, 0.2]])
    apart = np.array([[[0.85, 0.15], [1.0, 0.0]], [[0.75, 0.25], [0.6, 0.4]]])
    evidence = dirichlet_evidence(mean, apart)
    # Variances .0025 and .04 per class: S = .32 / .005 - 1 and .32 / .08 - 1.
    np.testing.assert_allclose(evidence[0], [63 * 0.8 - 1, 63 * 0.2 - 1])
    np.testing.assert_allclose(evidence[1], [3 * 0.8 - 1, 0.0])
    labels = evidential(evidence, most_uncertainty=0.5)
    assert labels.mask.tolist() == [True, False]


def test_what_members_share_counts_as_spread() -> None:
    members = np.array([[0.0, 3.0], [0.0, -3.0]])
    labels = spread(members, 0.5, scale=10.0, residual=4.0)
    np.testing.assert_allclose(labels.score, [0.6, 0.5])


def test_a_share_that_is_a_whole_number_of_rows_takes_so_many() -> None:
    """0.07 times 100 is a little more than 7 in floating point."""
    rows = probability(np.full((100, 2), 0.5), 0.5)
    assert len(select(rows, 0.07)) == 7
    assert len(select(rows, 0.071)) == 8
