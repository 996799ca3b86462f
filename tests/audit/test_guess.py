"""The attacker's learner against scikit-learn's kernel ridge, and where nothing can be learnt."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import LeaveOneOut, cross_val_predict

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
    mean = answers.mean(0)
    told = Guesser([view], known).guess(answers, others)
    view = view - view[known].mean(0)
    reference = KernelRidge(alpha=0.01 * 40 * 6).fit(view[known], answers - mean)
    assert told == pytest.approx(mean + reference.predict(view[others]), abs=1e-8)


def test_the_choice_is_the_least_leave_one_out_error(rows, monkeypatch) -> None:
    view, known, others = rows
    view = view - view[known].mean(0)
    answers = np.sin(2 * view[known, :1])
    monkeypatch.setattr(guess, "WIDTHS", ())
    centred, errors = answers - answers.mean(0), {}
    for ridge in guess.RIDGES:
        model = KernelRidge(alpha=ridge * 40 * 6)
        left_out = cross_val_predict(model, view[known], centred, cv=LeaveOneOut())
        errors[ridge] = float(((centred - left_out.reshape(-1, 1)) ** 2).mean())
    best = min(errors, key=errors.__getitem__)
    model = KernelRidge(alpha=best * 40 * 6).fit(view[known], centred)
    told = Guesser([view], known).guess(answers, others)
    if errors[best] < float((centred**2).mean()) * (40 / 39) ** 2:
        expected = answers.mean(0) + model.predict(view[others]).reshape(-1, 1)
    else:
        expected = np.tile(answers.mean(0), (80, 1))
    assert told == pytest.approx(expected, abs=1e-6)


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
