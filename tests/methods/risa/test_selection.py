"""Who gets a made-up label, and whom the training drops again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.errors import ConfigError
from fedmend.methods.risa.selection import (
    Choice,
    Watch,
    final_threshold,
    precise_thresholds,
)

CPU = torch.device("cpu")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(2, 6),
    st.floats(0.05, 1.0),
    st.booleans(),
    st.booleans(),
)
def test_no_label_is_invented_below_its_threshold(
    seed: int, classes: int, threshold: float, per_class: bool, soft: bool
) -> None:
    p = np.random.default_rng(seed).dirichlet(np.ones(classes) * 0.4, 50)
    choice = Choice(threshold, per_class, soft=soft)
    target, mask = choice.labels(p)
    limits = choice.thresholds(p)
    np.testing.assert_array_equal(mask, p.max(1) >= limits[p.argmax(1)])
    assert (limits <= threshold + 1e-12).all()
    assert (limits >= min(threshold, choice.floor) - 1e-12).all()
    if not per_class:
        assert (p[mask].max(1) >= threshold).all()
    assert target.shape == (p.shape if soft else (50,))


def test_a_class_rarely_reached_gets_an_easier_threshold() -> None:
    often = np.tile([0.97, 0.02, 0.01], (90, 1))
    rarely = np.tile([0.05, 0.96, 0.00], (9, 1))
    unsure = np.tile([0.3, 0.0, 0.7], (5, 1))
    found = Choice(0.95, per_class=True).thresholds(np.concatenate([often, rarely, unsure]))
    assert found[0] == pytest.approx(0.95)
    assert found[1] == found[2] == pytest.approx(0.5)
    _, mask = Choice(0.95, per_class=True).labels(unsure)
    assert mask.all() == bool(0.7 >= 0.5)
    with pytest.raises(ConfigError, match="threshold"):
        Choice(1.5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.floats(0.3, 0.99), st.integers(0, 80))
def test_precise_thresholds_are_the_least_that_are(
    seed: int, classes: int, wanted: float, rows: int
) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(classes) * 0.5, rows)
    truth = np.array([rng.choice(classes, p=each) for each in p], np.int64)
    found = precise_thresholds(p, truth, wanted)
    for number, least in enumerate(found):
        sure, mine = p.max(1), p.argmax(1) == number
        shares = {
            t: ((truth[mine & (sure >= t)] == number).sum() + 1) / ((mine & (sure >= t)).sum() + 2)
            for t in sure[mine]
        }
        good = [t for t, share in shares.items() if share >= wanted]
        assert least == (min(good) if good else 2.0)
    _, mask = Choice(0.0).labels(p, found)
    np.testing.assert_array_equal(mask, p.max(1) >= found[p.argmax(1)])


def test_a_few_rows_that_happen_to_be_right_do_not_make_a_class_precise() -> None:
    p = np.tile([0.99, 0.01], (10, 1))
    right = np.zeros(10, np.int64)
    assert precise_thresholds(p, right, 0.95).tolist() == [2.0, 2.0]
    assert precise_thresholds(p, right, 0.9).tolist() == [0.99, 2.0]
    _, mask = Choice(0.5).labels(p, precise_thresholds(p, right, 0.95))
    assert not mask.any()


def test_rules_of_pseudo_labels() -> None:
    p = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.55, 0.45]])
    u = np.array([0.1, 0.5, 0.2, 0.8])
    target, label, mask = Choice(0.75, rule="evidential").by_rule(p, u)
    assert label.tolist() == [0, 1, 1, 0]
    assert target.tolist() == label.tolist()
    assert mask.tolist() == [True, False, True, False]  # u is at most 1 - .75
    own = np.array([[0.95, 0.05], [0.6, 0.4], [0.5, 0.5], [0.9, 0.1]])
    joint = np.array([[0.6, 0.4], [0.1, 0.9], [0.5, 0.5], [0.1, 0.9]])
    target, label, mask = Choice(0.8, rule="cpg").by_rule(p, u, own, joint)
    assert mask.tolist() == [True, True, False, True]
    assert label[mask].tolist() == [0, 1, 0]  # the party's own where it is sure, else the joint one
    target, label, mask = Choice(0.8, rule="cdsc", kappa=0.0).by_rule(p, u, own, joint)
    assert mask.tolist() == [True, True, False, True]
    np.testing.assert_allclose(target[3], [1.0, 0.0])  # kappa 0 mixes nothing in
    least = np.array([0.95, 0.0])
    _, _, mask = Choice(0.8, rule="cpg").by_rule(p, u, own, joint, least)
    assert mask.tolist() == [False, True, False, False]
    with pytest.raises(ConfigError, match="rule"):
        Choice(0.8, rule="vote")
    with pytest.raises(ConfigError, match="joint"):
        Choice(0.8, rule="cpg").by_rule(p, u)


def test_the_threshold_falls_from_one_to_the_last() -> None:
    steps = [final_threshold(0.3, t / 10) for t in range(11)]
    assert steps[0] == 1.0
    assert steps[-1] == pytest.approx(0.3)
    assert all(a > b for a, b in itertools.pairwise(steps))


def test_rows_above_the_limit_are_dropped_and_unseen_ones_stay() -> None:
    watch = Watch(6, CPU)
    # rows 0..3, two classes: sure and right, sure and wrong, unsure, half
    fused = torch.tensor(
        [[0.9, 0.0, 0.1], [0.9, 0.0, 0.1], [0.1, 0.1, 0.8], [0.5, 0.2, 0.3]], dtype=torch.float32
    )
    for _ in range(2):
        watch.add(torch.arange(4), fused, torch.tensor([0, 1, 0, 0]))
    rows = np.arange(6)
    assert watch.below(rows, 0.35, "uncertainty").tolist() == [0, 1, 3, 4, 5]
    assert watch.below(rows, 0.5, "doubt").tolist() == [0, 2, 3, 4, 5]
    again = Watch(6, CPU)
    again.take(watch.to_wire())
    assert again.below(rows, 0.35, "uncertainty").tolist() == [0, 1, 3, 4, 5]
    watch.clear()
    assert watch.below(rows, 0.0, "doubt").tolist() == rows.tolist()
    with pytest.raises(ConfigError, match="select"):
        watch.below(rows, 0.5, "entropy")


def test_no_more_than_so_many_are_kept_the_surest() -> None:
    watch = Watch(5, CPU)
    doubts = [0.4, 0.1, 0.3, 0.2]
    fused = torch.tensor([[1 - doubt, doubt, 0.0] for doubt in doubts])
    watch.add(torch.arange(4), fused, torch.zeros(4, dtype=torch.int64))
    rows = np.arange(5)
    assert watch.below(rows, 1.0, "doubt", most=5).tolist() == [0, 1, 2, 3, 4]
    assert watch.below(rows, 1.0, "doubt", most=4).tolist() == [0, 1, 2, 3]
    assert watch.below(rows, 1.0, "doubt", most=2).tolist() == [1, 3]
    assert watch.below(rows, 0.15, "doubt", most=2).tolist() == [1]
    assert watch.below(rows, 1.0, "doubt", most=0).tolist() == []


def test_soft_labels_count_by_their_likeliest_class() -> None:
    watch = Watch(1, CPU)
    fused = torch.tensor([[0.6, 0.2, 0.2]])
    watch.add(torch.tensor([0]), fused, torch.tensor([[0.2, 0.8]]))
    assert watch.below(np.array([0]), 0.7, "doubt").tolist() == [0]
    assert watch.below(np.array([0]), 0.69, "doubt").tolist() == []
