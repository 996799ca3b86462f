"""The attacker's learner and its scores against scikit-learn's; where nothing can be learnt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics import balanced_accuracy_score, r2_score, roc_auc_score
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.preprocessing import KernelCenterer

from fedmend.audit import learner
from fedmend.audit.learner import (
    balanced_accuracy,
    best_matching,
    bootstrap,
    guessed,
    label_score,
    one_score_auc,
    r2,
    standardised,
)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    view = standardised(rng.normal(size=(120, 6)))
    return view, np.arange(40), np.arange(40, 120)


def test_one_ridge_is_scikit_learns(rows, monkeypatch):
    view, known, others = rows
    answers = view[known, :2] ** 2 + view[known, 2:4]
    monkeypatch.setattr(learner, "RIDGES", (0.01,))
    monkeypatch.setattr(learner, "WIDTHS", ())
    told = guessed([view], known, answers, others)
    reference = Ridge(alpha=0.01 * 40 * 6).fit(view[known], answers)
    assert told == pytest.approx(reference.predict(view[others]), abs=1e-8)


@pytest.mark.daily("60")
@pytest.mark.parametrize("width", [6, 60])
def test_the_choice_is_the_least_error_of_models_fitted_without_each_row(width, monkeypatch):
    """Also where there are more columns than rows, and a model can fit anything."""
    rng = np.random.default_rng(3)
    view = standardised(rng.normal(size=(90, width)))
    known, others = np.arange(30), np.arange(30, 90)
    answers = view[known, :3] + 0.5 * rng.normal(size=(30, 3))
    monkeypatch.setattr(learner, "WIDTHS", ())
    errors = []
    for ridge in learner.RIDGES:
        model = Ridge(alpha=ridge * 30 * width)
        left_out = cross_val_predict(model, view[known], answers, cv=LeaveOneOut())
        errors.append(((answers - left_out) ** 2).mean(0))
    best = np.argmin(errors, axis=0)
    told = guessed([view], known, answers, others)
    for column, at in enumerate(best):
        model = Ridge(alpha=learner.RIDGES[at] * 30 * width).fit(view[known], answers[:, column])
        assert told[:, column] == pytest.approx(model.predict(view[others]), abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_the_mean_is_kept_unless_something_does_better_on_rows_left_out(seed, monkeypatch):
    """Of few rows the mean itself looks better than it is, by (m / (m - 1))²."""
    rng = np.random.default_rng(seed)
    view, known = standardised(rng.normal(size=(12, 1))), np.arange(6)
    answers = 0.6 * view[known] + rng.normal(size=(6, 1))
    monkeypatch.setattr(learner, "WIDTHS", ())
    monkeypatch.setattr(learner, "RIDGES", (1.0,))
    errors = []
    for model in (Ridge(alpha=1e12), Ridge(alpha=6.0)):
        left_out = cross_val_predict(model, view[known], answers[:, 0], cv=LeaveOneOut())
        errors.append(np.square(answers[:, 0] - left_out).mean())
    told = guessed([view], known, answers, known)
    assert (told == answers.mean()).all() == (errors[0] <= errors[1])


@pytest.mark.parametrize("width", [0.5, 4.0])
def test_a_gaussian_kernel_is_scikit_learns(rows, width, monkeypatch):
    view, known, others = rows
    answers = np.sin(2 * view[known, :1] / max(1.0, width))  # a wide kernel for gentle waves
    monkeypatch.setattr(learner, "RIDGES", (0.001,))
    monkeypatch.setattr(learner, "WIDTHS", (width,))
    squares = ((view[known][:, None] - view[known][None]) ** 2).sum(2)
    gamma = 1 / (2 * np.median(squares[~np.eye(40, dtype=bool)]) * width**2)
    inner = KernelCenterer().fit(rbf_kernel(view[known], gamma=gamma))
    model = KernelRidge(alpha=0.001 * 40, kernel="precomputed")
    model.fit(inner.transform(rbf_kernel(view[known], gamma=gamma)), answers - answers.mean())
    outer = inner.transform(rbf_kernel(view[others], view[known], gamma=gamma))
    monkeypatch.setattr(learner, "_kernels", _gaussian_only(learner._kernels))
    told = guessed([view], known, answers, others)
    assert told == pytest.approx(answers.mean() + model.predict(outer), abs=1e-8)


def _gaussian_only(kernels):
    """The plain kernel as if it told nothing."""

    def made(own, others, width):
        inner, outer = kernels(own, others, width)
        return (inner, outer) if width is not None else (0 * inner, 0 * outer)

    return made


def test_the_view_that_tells_more_is_taken_for_each_target(rows):
    """A linear column is found exactly in either view, and a bent one nearly."""
    view, known, others = rows
    noise = standardised(np.random.default_rng(1).normal(size=(120, 3)))
    targets = np.stack([view @ np.arange(6), noise @ np.arange(3), np.tanh(view[:, 0])], 1)
    told = guessed([view, noise], known, targets[known], others)
    assert np.abs(told - targets[others])[:, :2].max() < 1e-2
    assert np.corrcoef(told[:, 2], targets[others, 2])[0, 1] > 0.9


def test_with_nothing_to_learn_from_the_mean_is_guessed(rows):
    _, known, others = rows
    answers = np.arange(40.0)[:, None]
    assert (guessed([], known, answers, others) == answers.mean()).all()
    assert (guessed([np.zeros((120, 0))], known, answers, others) == answers.mean()).all()


def test_a_column_varies_if_it_does_so_beyond_rounding():
    wave = np.array([-1.0, 1.0, -1.0, 1.0, 0.0])
    rounding = 1e6 + 1e-5 * wave  # a hundred-billionth of what stands there
    little = 1 + 1e-6 * wave
    small = 1e-7 * wave  # of numbers around one: not nothing
    found = standardised(np.stack([rounding, little, small], 1))
    assert found.shape == (5, 2)
    assert np.abs(found - (wave / wave.std())[:, None]).max() < 1e-6


def test_scores_are_scikit_learns():
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=300)
    belief = rng.normal(size=(300, 2))
    belief[:, 1] += truth
    area = pytest.approx(roc_auc_score(truth, belief[:, 1] - belief[:, 0]))
    assert one_score_auc(truth, belief[:, 1] - belief[:, 0]) == area
    assert label_score(truth, belief) == pytest.approx(roc_auc_score(truth, belief[:, 1]))
    three = rng.integers(3, size=300)
    guess = np.where(rng.random(300) < 0.6, three, rng.integers(3, size=300))
    assert balanced_accuracy(three, guess) == pytest.approx(balanced_accuracy_score(three, guess))
    assert label_score(three, np.eye(3)[guess]) == pytest.approx(balanced_accuracy(three, guess))
    number = rng.normal(size=300)
    told = number + rng.normal(size=300)
    assert r2(number, told) == pytest.approx(r2_score(number, told))
    several = rng.normal(size=(2, 50, 3))
    weighted = r2_score(*several, multioutput="variance_weighted")
    assert r2(*several) == pytest.approx(weighted)
    assert np.isnan(r2(np.ones(5), np.ones(5)))


@given(st.permutations(range(4)), st.integers(0, 1000))
def test_best_matching_undoes_any_renaming(names, seed):
    truth = np.random.default_rng(seed).integers(4, size=60)
    truth[:4] = range(4)
    clusters = np.asarray(names)[truth]
    assert (best_matching(truth, clusters, 4)[clusters] == truth).all()


def test_a_cluster_too_many_has_no_class():
    match = best_matching(np.array([0, 0, 1, 1]), np.array([0, 1, 2, 2]), 2)
    assert sorted(match) == [-1, 0, 1]
    assert match[2] == 1


def test_a_rare_class_counts_as_much_as_a_common_one_in_a_matching():
    truth = np.repeat([0, 1, 0, 1], [50, 9, 40, 1])
    clusters = np.repeat([0, 0, 1, 1], [50, 9, 40, 1])
    # By rows it would be the other way round: 50 + 1 against 9 + 40.
    assert best_matching(truth, clusters, 2).tolist() == [1, 0]


def test_an_interval_is_as_wide_as_95_of_100_are():
    sample = np.random.default_rng(4).normal(size=1000)
    point, low, high = bootstrap(
        lambda values: float(values.mean()), sample, rng=np.random.default_rng(0), draws=1500
    )
    assert point == sample.mean()
    error = sample.std() / np.sqrt(1000)
    assert (high - low) / (2 * error) == pytest.approx(1.96, rel=0.08)


def test_draws_that_cannot_be_scored_are_left_out():
    def score(drawn: np.ndarray) -> float:
        return float(drawn.sum()) if drawn.any() else float("nan")

    point, low, high = bootstrap(score, np.array([0.0, 1.0, 1.0]), rng=np.random.default_rng(0))
    assert point == 2
    assert 1 <= low <= high <= 3
    assert np.isnan(bootstrap(score, np.zeros(4), rng=np.random.default_rng(0), draws=5)).all()
