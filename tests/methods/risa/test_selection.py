"""Which imputed rows the training drops again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedmend.methods.risa.selection import Watch, falling_threshold

CPU = torch.device("cpu")


def test_the_threshold_falls_from_one_to_the_last() -> None:
    steps = [falling_threshold(0.3, t / 10) for t in range(11)]
    assert steps[0] == 1.0
    assert steps[-1] == pytest.approx(0.3)
    assert all(a > b for a, b in itertools.pairwise(steps))


def test_rows_above_the_limit_are_dropped_and_unseen_ones_stay() -> None:
    watch = Watch(6, CPU)
    for uncertainty in ([0.1, 0.3, 0.8, 0.3], [0.1, 0.1, 0.8, 0.5]):
        watch.add(torch.arange(4), torch.tensor(uncertainty))
    rows = np.arange(6)
    again = Watch(6, CPU)
    again.take(watch.to_wire())
    for each in (watch, again):
        assert each.below(rows, 0.35).tolist() == [0, 1, 4, 5]
    assert watch.below(np.array([3, 1]), 0.35).tolist() == [1]
    watch.clear()
    assert watch.below(rows, 0.01).tolist() == rows.tolist()
