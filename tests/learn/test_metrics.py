"""Metrics against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from fedmend.federation.labels import response_matrix
from fedmend.learn import metrics
from fedmend.learn.calibration import describe


@given(st.integers(0, 10_000), st.integers(2, 5), st.booleans())
def test_classification_equals_scikit_learn(seed, classes, ties):
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


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_of_drawn_labels_are_in_the_mean_those_of_the_labels(classes):
    rng = np.random.default_rng(classes)
    y = rng.integers(0, classes, 1500)
    logits = rng.normal(size=(1500, classes)) + 1.5 * np.eye(classes)[y]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    p[:40] = p[0]  # ties
    noise = response_matrix(1.0, classes)
    other = (y + rng.integers(1, classes, (60, 1500))) % classes
    draws = np.where(rng.random((60, 1500)) < noise[0, 0], y, other)
    found = [metrics.classification(told, p, noise) for told in draws]
    whole = [describe(p, metrics.expected_error(p), told, noise=noise) for told in draws]
    for name, exact in metrics.classification(y, p).items():
        values = [each[name] for each in found]
        assert np.mean(values) == pytest.approx(exact, abs=4 * np.std(values) / 60**0.5 + 0.003)
        assert np.std(values) < 0.12
    exact = describe(p, metrics.expected_error(p), y)
    for name in ("error", "auroc"):
        values = [each[name] for each in whole]
        error = 4 * np.std(values) / 60**0.5 + 0.003
        assert np.mean(values) == pytest.approx(exact[name], abs=error)
    assert whole[0]["rows"] == sum(map(sum, (whole[0]["histogram"][k] for k in ("right", "wrong"))))


def test_a_row_is_no_pair_with_itself_in_the_area_of_drawn_labels():
    """Against all pairs of different rows, one by one; some rows count below zero."""
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6, 40) + 0.5 * (np.arange(40) % 2)
    inside = metrics.counted(np.arange(40) % 2, 2, response_matrix(1.5, 2))[:, 1]
    assert inside.min() < 0
    pairs = np.outer(inside, 1 - inside)
    np.fill_diagonal(pairs, 0.0)
    wins = (scores[:, None] > scores) + 0.5 * (scores[:, None] == scores)
    expected = (pairs * wins).sum() / pairs.sum()
    assert 0.1 < expected < 0.9
    assert metrics.area(scores, inside) == pytest.approx(expected)


def test_estimates_stay_what_a_metric_can_be():
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    exact = metrics.classification(np.array([0, 1, 1]), p)
    assert metrics.classification(np.array([0, 1, 1]), p, np.eye(2)) == pytest.approx(exact)
    for told in np.ndindex(2, 2, 2):
        found = metrics.classification(np.array(told), p, response_matrix(0.2, 2))
        assert all(0 <= found[name] <= 1 for name in ("accuracy", "f1"))
        assert found["log_loss"] >= 0 and (np.isnan(found["auc"]) or 0 <= found["auc"] <= 1)


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_regression_equals_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    y, predicted = rng.normal(size=(2, 30)) * 100
    ours = metrics.regression(y, predicted)
    assert ours["rmse"] == pytest.approx(reference.root_mean_squared_error(y, predicted))
    assert ours["mae"] == pytest.approx(reference.mean_absolute_error(y, predicted))
    assert ours["r2"] == pytest.approx(reference.r2_score(y, predicted))


def test_undefined_metrics_are_not_numbers():
    probabilities = np.array([[0.4, 0.6], [0.7, 0.3]])
    assert np.isnan(metrics.auc(np.array([1, 1]), probabilities))
    assert np.isnan(metrics.regression(np.ones(3), np.ones(3))["r2"])
    for empty in (
        metrics.regression(np.zeros(0), np.zeros(0)),
        metrics.classification(np.zeros(0, int), np.zeros((0, 2))),
        metrics.classification(np.zeros(0, int), np.zeros((0, 2)), response_matrix(1.0, 2)),
    ):
        assert empty and np.isnan(list(empty.values())).all()
