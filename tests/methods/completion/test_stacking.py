"""Weights of stacked models against scipy's optimiser."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.metrics import f1_score, r2_score

from fedmend.methods.completion.stacking import (
    class_weights,
    decided,
    family_errors,
    leaning,
    news,
    shrinkage,
    skill,
    tempered,
    value_weights,
)


def best(loss: object, count: int) -> np.ndarray:
    start = np.full(count, 1 / count)
    simplex = {"type": "eq", "fun": lambda w: w.sum() - 1}
    found = minimize(loss, start, bounds=[(0, 1)] * count, constraints=simplex, tol=1e-12)
    return found.x


@pytest.mark.parametrize("seed", range(5))
def test_value_weights_are_the_best_mixture(seed):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=60)
    outputs = {
        name: truth * scale + noise * rng.normal(size=60)
        for name, scale, noise in (("a", 1.0, 0.5), ("b", 0.6, 0.3), ("c", -0.2, 1.0))
    }
    members = np.stack(list(outputs.values()), axis=1)
    expected = best(lambda w: ((members @ w - truth) ** 2).mean(), 3)
    found = np.array(list(value_weights(truth, outputs).values()))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_one_outlier_does_not_decide_the_weights():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=200)
    outputs = {"good": truth + 0.2 * rng.normal(size=200), "poor": 2 * rng.normal(size=200)}
    clean = value_weights(truth, outputs)
    truth[0], outputs["poor"][0], outputs["good"][0] = 60.0, 55.0, 0.0
    assert value_weights(truth, outputs)["good"] < 0.6 < clean["good"]
    assert value_weights(truth, outputs, within=3.0)["good"] == pytest.approx(
        clean["good"], abs=0.05
    )


@pytest.mark.parametrize("seed", range(3))
def test_class_weights_are_the_best_mixture(seed):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, 80)
    outputs = {}
    for name, sharp in (("a", 2.0), ("b", 0.5)):
        scores = rng.normal(size=(80, 3))
        scores[np.arange(80), truth] += sharp
        outputs[name] = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    given = np.stack([each[np.arange(80), truth] for each in outputs.values()], axis=1)
    expected = best(lambda w: -np.log(given @ w).mean(), 2)
    found = np.array(list(class_weights(truth, outputs).values()))
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_family_errors():
    errors = family_errors(
        np.array([1.0, 3.0]), {"a": np.array([1.0, 1.0])}, np.array([0.0, 2.0, 4.0])
    )
    assert errors == {"a": 2.0, "mean": 1.0}
    classes = family_errors(np.array([0, 1, 1]), {"a": np.eye(2)[[0, 1, 0]]}, np.array([0, 0, 1]))
    assert classes["a"] == pytest.approx(1 / 3)
    assert classes["mean"] == pytest.approx(2 / 3)


def test_what_says_nothing_is_shrunk_and_what_says_enough_is_left():
    rng = np.random.default_rng(0)
    truth, noise = rng.normal(size=500), rng.normal(size=500)
    assert shrinkage(truth, noise) < 0.15
    assert shrinkage(truth, -truth) == 0.0
    assert shrinkage(truth, 0.5 * truth) == 1.0
    assert shrinkage(truth, np.zeros(500)) == 1.0
    # one wild row among many good ones does not decide
    good = truth + 0.3 * noise
    wild = good.copy()
    wild[0] = 40.0
    slope = float(truth @ wild / (wild @ wild))
    assert slope < 0.35
    assert shrinkage(truth, wild) > slope + 0.15


def test_skill_is_the_share_of_error_spared():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=400)
    assert skill(truth, truth, truth) == 1.0
    assert skill(truth, np.full(400, truth.mean()), truth) == pytest.approx(0.0)
    output = truth + 0.5 * rng.normal(size=400)
    assert skill(truth, output, truth) == pytest.approx(r2_score(truth, output))
    classes = rng.integers(0, 3, size=400)
    shares = np.bincount(classes) / 400
    flat = np.tile(shares, (400, 1))
    assert skill(classes, flat, classes) == pytest.approx(0.0, abs=1e-4)
    assert skill(classes, np.eye(3)[classes], classes) == pytest.approx(1.0)
    sure_and_wrong = np.eye(3)[(classes + 1) % 3]
    assert skill(classes, sure_and_wrong, classes) < -5
    assert skill(np.ones(5), np.ones(5), np.ones(5)) == 0.0


def test_what_is_not_clear_is_not_believed_by_the_careful():
    rng = np.random.default_rng(0)
    output = rng.normal(size=400)
    clear, faint = output + 0.5 * rng.normal(size=400), 0.1 * output + rng.normal(size=400)
    # the robust standard error of a regression without a constant, written out
    slope = (faint * output).sum() / (output**2).sum()
    error = np.sqrt(((output * (faint - slope * output)) ** 2).sum()) / (output**2).sum()
    assert shrinkage(faint, output, 1.0) == pytest.approx(slope + error)
    assert shrinkage(faint, output, -1.0) == pytest.approx(slope - error)
    assert shrinkage(faint, output, -3.0) == 0.0
    assert shrinkage(clear, output, -3.0) > 0.9


def test_only_what_is_new_is_believed_of_classes():
    rng = np.random.default_rng(0)
    n = 4000
    time, own = rng.integers(0, 2, n), rng.normal(size=n)
    phone = np.where(rng.random(n) < 0.9, time, 1 - time)

    def two(odds: np.ndarray) -> np.ndarray:
        high = 1 / (1 + np.exp(-odds))
        return np.stack([1 - high, high], axis=1)

    shares = np.array([0.5, 0.5])
    by_time = two(np.where(time == 1, 2.0, -2.0))
    era = (rng.random(n) < by_time[:, 1]).astype(np.int64)
    # with the time known, phones tell nothing of the era
    by_phone = two(np.where(phone == 1, 1.4, -1.4))
    assert news(era, by_phone, by_time, shares) < 0.02
    # and what a person is like tells as much of its class as without
    kind = (rng.random(n) < two(2 * own)[:, 1]).astype(np.int64)
    level = np.full((n, 2), 0.5)
    assert news(kind, two(2 * own), level, shares) > 0.98
    assert news(kind, two(-2 * own), level, shares) == 0.0
    # half and half: the class follows both
    both = (rng.random(n) < two(2 * own + np.where(time == 1, 2.0, -2.0))[:, 1]).astype(np.int64)
    said = two(1.5 * own + np.where(phone == 1, 1.0, -1.0))
    assert 0.3 < news(both, said, two(np.where(time == 1, 1.4, -1.4)), shares) < 0.95


@given(seed=st.integers(0, 2**16), classes=st.integers(2, 5), trust=st.floats(0, 1))
def test_tempered_probabilities(seed, classes, trust):
    rng = np.random.default_rng(seed)
    output, shares = rng.dirichlet(np.ones(classes), 20), rng.dirichlet(np.ones(classes) * 9)
    found = tempered(output, shares, trust)
    expected = shares * (output / shares) ** trust
    np.testing.assert_allclose(found, expected / expected.sum(axis=1, keepdims=True), atol=1e-9)
    np.testing.assert_allclose(tempered(output, shares, 0.0), np.tile(shares, (20, 1)))
    np.testing.assert_allclose(tempered(output, shares, 1.0), output, atol=1e-9)


def rare_class(strength: float, rows: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A class of one row in ten, and calibrated probabilities that know something of it."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(-3.0, strength, rows)
    share = 1 / (1 + np.exp(-logit))
    return (rng.random(rows) < share).astype(np.int64), np.stack([1 - share, share], 1)


def test_a_rare_class_is_said_where_that_costs_no_accuracy():
    truth, output = rare_class(2.0)
    shares = np.bincount(truth) / len(truth)
    lean = leaning(truth, output, shares)
    assert lean > 0
    before, after = output.argmax(1), decided(output, shares, lean)
    assert after.sum() > before.sum()
    scores = [f1_score(truth, said, average="macro") for said in (before, after)]
    assert scores[1] > scores[0]
    lost = (before == truth).astype(float) - (after == truth)
    assert lost.mean() <= 2 * lost.std() / np.sqrt(len(lost))


def test_where_leaning_costs_accuracy_the_likeliest_class_stays():
    # many rows just below one half: to say the rare class of these is wrong more often than right
    truth = np.repeat([0, 1, 0], [6200, 3800, 10_000])
    output = np.repeat([[0.62, 0.38], [1 - 1e-6, 1e-6]], 10_000, axis=0)
    shares = np.array([0.9, 0.1])
    assert decided(output, shares, 0.4).any()
    assert not decided(output, shares, leaning(truth, output, shares)).any()
