"""Tallies of several parties say what all their rows together would say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedmend.learn.evidence.calibration import describe
from fedmend.learn.metrics import normalised_entropy
from fedmend.learn.tallies import describe_tallies, tally


@pytest.mark.parametrize("classes", [2, 4])
def test_sums_of_parts_are_the_whole(classes):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(classes, 0.6), 3000)
    y = np.array([rng.choice(classes, p=row) for row in p])
    whole = describe(p, normalised_entropy(p), y)
    parts = [tally(p[at], y[at]) for at in np.array_split(np.arange(3000), 3)]
    found = describe_tallies(parts)
    assert found["rows"] == 3000 and found["histogram"] == whole["histogram"]
    for name in ("error", "calibration_error"):
        assert math.isclose(found[name], whole[name], abs_tol=1e-9)
    assert found["reliability"] == [pytest.approx(each, abs=1e-9) for each in whole["reliability"]]
    # what depends on the order within a bin is as near as the bins are narrow
    assert abs(found["auroc"] - whole["auroc"]) < 0.01
    for mine, theirs in zip(found["deciles"], whole["deciles"], strict=True):
        assert abs(mine["error"] - theirs["error"]) < 0.06
        assert abs(mine["uncertainty"] - theirs["uncertainty"]) < 0.06
    for mine, theirs in zip(found["selective"], whole["selective"], strict=True):
        assert abs(mine["accuracy"] - theirs["accuracy"]) < 0.03


def test_nothing_to_tell():
    empty = describe_tallies([tally(np.zeros((0, 2)), np.zeros(0, int))])
    assert empty["rows"] == 0 and math.isnan(empty["error"]) and empty["deciles"] == []
    right = describe_tallies([tally(np.array([[0.9, 0.1]]), np.array([0]))])
    assert right["error"] == 0 and math.isnan(right["auroc"])
