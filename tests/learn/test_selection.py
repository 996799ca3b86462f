"""Who gets a made-up label, and whom the training drops again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.errors import ConfigError
from fedmend.learn.evidence.selection import Choice, Watch, final_threshold

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


def test_soft_labels_count_by_their_likeliest_class() -> None:
    watch = Watch(1, CPU)
    fused = torch.tensor([[0.6, 0.2, 0.2]])
    watch.add(torch.tensor([0]), fused, torch.tensor([[0.2, 0.8]]))
    assert watch.below(np.array([0]), 0.7, "doubt").tolist() == [0]
    assert watch.below(np.array([0]), 0.69, "doubt").tolist() == []
