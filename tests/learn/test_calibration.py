"""Calibration measures against scikit-learn and by hand."""

import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score

from fedmend.learn import calibration as cal


@pytest.fixture
def some():
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(4) * 0.6, 500)
    y = np.array([rng.choice(4, p=row) for row in p])
    return p, 1 - p.max(1) + rng.normal(0, 0.01, 500), y


def test_reliability_agrees_with_scikit_learn(some):
    p, _, y = some
    found = cal.reliability(p, y)
    truth, mean = calibration_curve(p.argmax(1) == y, p.max(1), n_bins=10)
    np.testing.assert_allclose([each["accuracy"] for each in found], truth)
    np.testing.assert_allclose([each["confidence"] for each in found], mean)
    gap = sum(abs(each["accuracy"] - each["confidence"]) * each["rows"] for each in found) / 500
    assert cal.calibration_error(p, y) == pytest.approx(gap)


def test_auroc_agrees_with_scikit_learn(some):
    p, u, y = some
    wrong = p.argmax(1) != y
    assert cal.area(u, wrong) == pytest.approx(roc_auc_score(wrong, u))
    assert math.isnan(cal.area(u, np.zeros(500, bool)))


def test_deciles_and_selection_by_hand():
    u = np.arange(20) / 20
    wrong = np.arange(20) >= 15
    deciles = cal.error_by_uncertainty(u, wrong)
    assert [each["error"] for each in deciles] == [0, 0, 0, 0, 0, 0, 0, 0.5, 1, 1]
    chosen = cal.selective_accuracy(u, wrong, (0.5, 1.0))
    assert [each["accuracy"] for each in chosen] == [1.0, 0.75]


def test_describe_holds_all_of_it(some):
    p, u, y = some
    found = cal.describe(p, u.clip(0, 1), y)
    histogram = found["histogram"]
    assert sum(histogram["right"]) + sum(histogram["wrong"]) == found["rows"] == 500
    assert sum(histogram["wrong"]) == round(found["error"] * 500)
    assert cal.describe(p[:0], u[:0], y[:0])["rows"] == 0
