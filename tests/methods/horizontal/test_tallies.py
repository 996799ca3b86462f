"""Tallies of several parties say what all their rows together would say."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.metrics import roc_auc_score

from fedmend.learn.calibration import describe
from fedmend.learn.metrics import counted, expected_error, selves
from fedmend.methods.horizontal.tallies import (
    auc_of,
    describe_tallies,
    odds_moments,
    ranks,
    scale_of,
    tally,
)


@pytest.mark.parametrize("classes", [2, 4])
def test_sums_of_parts_are_the_whole(classes):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(classes, 0.6), 3000)
    y = np.array([rng.choice(classes, p=row) for row in p])
    whole = describe(p, expected_error(p), y)
    parts = [tally(p[at], counted(y[at], classes)) for at in np.array_split(np.arange(3000), 3)]
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
    empty = describe_tallies([tally(np.zeros((0, 2)), np.zeros((0, 2)))])
    assert empty["rows"] == 0 and math.isnan(empty["error"]) and empty["deciles"] == []
    right = describe_tallies([tally(np.array([[0.9, 0.1]]), np.array([[1.0, 0.0]]))])
    assert right["error"] == 0 and math.isnan(right["auroc"])


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("sureness", [0.05, 1.0, 20.0])
def test_the_area_of_summed_counts_is_that_of_all_rows(classes, sureness):
    rng = np.random.default_rng(classes)
    y = rng.integers(classes, size=2000)
    logits = rng.normal(size=(2000, classes)) + 1.2 * np.eye(classes)[y]
    p = np.exp(sureness * (logits - logits.max(1, keepdims=True)))
    p = (p / p.sum(1, keepdims=True)).astype(np.float32)
    parts = np.array_split(np.arange(2000), 4)
    scale = scale_of([odds_moments(p[at]) for at in parts])
    counts = sum(ranks(p[at], counted(y[at], classes), scale) for at in parts)
    assert counts.sum() == 2000 * (1 if classes == 2 else classes)
    # scikit-learn on the odds themselves: float32 probabilities near one are tied.
    areas = []
    for c in range(classes):
        others = logsumexp(np.delete(sureness * logits, c, 1), 1)
        areas.append(roc_auc_score(y == c, sureness * logits[:, c] - others))
    whole = areas[1] if classes == 2 else np.mean(areas)
    found = auc_of(counts, selves(counted(y, classes)))
    assert found == pytest.approx(whole, abs=2e-3 if sureness <= 1 else 1e-2)


def test_no_area_without_two_sides():
    p = np.array([[0.2, 0.8], [0.9, 0.1]])
    scale = scale_of([odds_moments(p)])
    assert math.isnan(auc_of(ranks(p, np.eye(2)[[1, 1]], scale), [0.0]))
    assert auc_of(ranks(p, np.eye(2)[[1, 0]], scale), [0.0]) == 1.0
    # A model that tells all rows alike.
    flat = np.full((4, 2), 0.5)
    said = ranks(flat, np.eye(2)[[1, 0, 1, 1]], scale_of([odds_moments(flat)]))
    assert auc_of(said, [0.0]) == 0.5
