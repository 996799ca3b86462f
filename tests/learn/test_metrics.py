"""Metrics against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from fedmend.learn import metrics


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.booleans())
def test_classification_equals_scikit_learn(seed: int, classes: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, 40)])
    probabilities = rng.dirichlet(np.ones(classes), len(y))
    if ties:
        probabilities = np.round(probabilities, 1) + 0.05
        probabilities /= probabilities.sum(1, keepdims=True)
    ours = metrics.classification(y, probabilities)
    predicted = probabilities.argmax(1)
    scores = probabilities[:, 1] if classes == 2 else probabilities
    assert ours["accuracy"] == pytest.approx(reference.accuracy_score(y, predicted))
    assert ours["f1"] == pytest.approx(reference.f1_score(y, predicted, average="macro"))
    assert ours["log_loss"] == pytest.approx(reference.log_loss(y, probabilities))
    assert ours["auc"] == pytest.approx(reference.roc_auc_score(y, scores, multi_class="ovr"))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_regression_equals_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, predicted = rng.normal(size=(2, 30)) * 100
    ours = metrics.regression(y, predicted)
    assert ours["rmse"] == pytest.approx(reference.root_mean_squared_error(y, predicted))
    assert ours["mae"] == pytest.approx(reference.mean_absolute_error(y, predicted))
    assert ours["r2"] == pytest.approx(reference.r2_score(y, predicted))


def test_undefined_metrics_are_not_numbers() -> None:
    probabilities = np.array([[0.4, 0.6], [0.7, 0.3]])
    assert np.isnan(metrics.auc(np.array([1, 1]), probabilities))
    assert np.isnan(metrics.regression(np.ones(3), np.ones(3))["r2"])
    empty = metrics.classification(np.zeros(0, int), np.zeros((0, 2)))
    assert all(np.isnan(value) for value in empty.values())


def test_of_no_rows_no_metric_is_a_number() -> None:
    for found in (
        metrics.regression(np.zeros(0), np.zeros(0)),
        metrics.classification(np.zeros(0, np.int64), np.zeros((0, 2))),
    ):
        assert found
        assert np.isnan(list(found.values())).all()


def test_better_knows_the_direction_and_never_prefers_nan() -> None:
    nan = float("nan")
    assert metrics.better("accuracy", 0.9, 0.8)
    assert not metrics.better("log_loss", 0.9, 0.8)
    assert metrics.better("rmse", 1.0, nan)
    assert not metrics.better("rmse", nan, 1.0)
