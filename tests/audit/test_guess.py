"""The attacker's learner against scikit-learn's kernel ridge, and where nothing can be learnt."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.preprocessing import KernelCenterer

from fedmend.audit import guess
from fedmend.audit.guess import Guesser, standardised


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    view = standardised(rng.normal(size=(120, 6)))
    return view, np.arange(40), np.arange(40, 120)


def test_one_ridge_is_scikit_learns(rows, monkeypatch) -> None:
    view, known, others = rows
    answers = view[known, :2] ** 2 + view[known, 2:4]
    monkeypatch.setattr(guess, "RIDGES", (0.01,))
    monkeypatch.setattr(guess, "WIDTHS", ())
    told = Guesser([view], known).guess(answers, others)
    reference = Ridge(alpha=0.01 * 40 * 6).fit(view[known], answers)
    assert told == pytest.approx(reference.predict(view[others]), abs=1e-8)


@pytest.mark.parametrize("width", [6, 60])
def test_the_choice_is_the_least_error_of_models_fitted_without_each_row(
    width: int, monkeypatch
) -> None:
    """Also where there are more columns than rows, and a model can fit anything."""
    rng = np.random.default_rng(3)
    view = standardised(rng.normal(size=(90, width)))
    known, others = np.arange(30), np.arange(30, 90)
    answers = view[known, :3] + 0.5 * rng.normal(size=(30, 3))
    monkeypatch.setattr(guess, "WIDTHS", ())
    errors = []
    for ridge in guess.RIDGES:
        model = Ridge(alpha=ridge * 30 * width)
        left_out = cross_val_predict(model, view[known], answers, cv=LeaveOneOut())
        errors.append(((answers - left_out) ** 2).mean(0))
    best = np.argmin(errors, axis=0)
    told = Guesser([view], known).guess(answers, others)
    for column, at in enumerate(best):
        model = Ridge(alpha=guess.RIDGES[at] * 30 * width).fit(view[known], answers[:, column])
        assert told[:, column] == pytest.approx(model.predict(view[others]), abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_the_mean_is_kept_unless_something_does_better_on_rows_left_out(
    seed: int, monkeypatch
) -> None:
    """Of few rows the mean itself looks better than it is, by (m / (m - 1))²."""
    rng = np.random.default_rng(seed)
    view, known = standardised(rng.normal(size=(12, 1))), np.arange(6)
    answers = 0.6 * view[known] + rng.normal(size=(6, 1))
    monkeypatch.setattr(guess, "WIDTHS", ())
    monkeypatch.setattr(guess, "RIDGES", (1.0,))
    errors = []
    for model in (Ridge(alpha=1e12), Ridge(alpha=6.0)):
        left_out = cross_val_predict(model, view[known], answers[:, 0], cv=LeaveOneOut())
        errors.append(np.square(answers[:, 0] - left_out).mean())
    told = Guesser([view], known).guess(answers, known)
    assert (told == answers.mean()).all() == (errors[0] <= errors[1])


@pytest.mark.parametrize("width", [0.5, 1.0, 4.0])
def test_a_gaussian_kernel_is_scikit_learns(rows, width: float, monkeypatch) -> None:
    view, known, others = rows
    answers = np.sin(2 * view[known, :1] / max(1.0, width))  # a wide kernel for gentle waves
    monkeypatch.setattr(guess, "RIDGES", (0.001,))
    monkeypatch.setattr(guess, "WIDTHS", (width,))
    squares = ((view[known][:, None] - view[known][None]) ** 2).sum(2)
    gamma = 1 / (2 * np.median(squares[~np.eye(40, dtype=bool)]) * width**2)
    inner = KernelCenterer().fit(rbf_kernel(view[known], gamma=gamma))
    model = KernelRidge(alpha=0.001 * 40, kernel="precomputed")
    model.fit(inner.transform(rbf_kernel(view[known], gamma=gamma)), answers - answers.mean())
    outer = inner.transform(rbf_kernel(view[others], view[known], gamma=gamma))
    monkeypatch.setattr(guess, "_kernels", _gaussian_only(guess._kernels))
    told = Guesser([view], known).guess(answers, others)
    assert told == pytest.approx(answers.mean() + model.predict(outer), abs=1e-8)


def _gaussian_only(kernels):
    """The plain kernel as if it told nothing."""

    def made(own, others, width):
        inner, outer = kernels(own, others, width)
        return (inner, outer) if width is not None else (0 * inner, 0 * outer)

    return made


def test_a_linear_column_is_found_exactly_and_a_bent_one_nearly(rows) -> None:
    view, known, others = rows
    both = np.stack([view @ np.arange(6), np.tanh(view[:, 0])], 1)
    told = Guesser([view], known).guess(both[known], others)
    assert np.abs(told[:, 0] - both[others, 0]).max() < 1e-2
    assert np.corrcoef(told[:, 1], both[others, 1])[0, 1] > 0.9


def test_the_view_that_tells_more_is_taken_for_each_target(rows) -> None:
    view, known, others = rows
    noise = standardised(np.random.default_rng(1).normal(size=(120, 3)))
    both = np.stack([view @ np.arange(6), noise @ np.arange(3)], 1)
    told = Guesser([view, noise], known).guess(both[known], others)
    assert np.abs(told - both[others]).max() < 1e-2


def test_with_nothing_to_learn_from_the_mean_is_guessed(rows) -> None:
    _, known, others = rows
    answers = np.arange(40.0)[:, None]
    assert (Guesser([], known).guess(answers, others) == answers.mean()).all()
    assert (Guesser([np.zeros((120, 0))], known).guess(answers, others) == answers.mean()).all()


def test_standardised_drops_what_never_varies() -> None:
    values = np.stack([np.arange(5.0), np.full(5, 7.0)], 1)
    found = standardised(values)
    assert found.shape == (5, 1)
    assert found.mean() == pytest.approx(0)
    assert found.std() == pytest.approx(1)


def test_a_column_varies_if_it_does_so_beyond_rounding() -> None:
    wave = np.array([-1.0, 1.0, -1.0, 1.0, 0.0])
    rounding = 1e6 + 1e-5 * wave  # a hundred-billionth of what stands there
    little = 1 + 1e-6 * wave
    small = 1e-7 * wave  # of numbers around one: not nothing
    found = standardised(np.stack([rounding, little, small], 1))
    assert found.shape == (5, 2)
    assert np.abs(found - (wave / wave.std())[:, None]).max() < 1e-6
