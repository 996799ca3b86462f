"""Pools of models: weights, how few models do, and honest scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fedmend.learn.metrics import auc
from fedmend.methods.auto import blend
from fedmend.methods.auto.blend import (
    Held,
    Pool,
    fitted,
    losses,
    nested,
    pool_of,
    pooled,
    score_of,
    weights_of,
)

N = 1200


def world(noise: tuple[float, ...], seed: int = 0, share: float = 0.5) -> Held:
    """Models that see the same truth through so much noise each."""
    rng = np.random.default_rng(seed)
    score = rng.normal(size=N) * 2
    y = (rng.random(N) < 1 / (1 + np.exp(-score))).astype(int)
    outputs = []
    for each in noise:
        p = 1 / (1 + np.exp(-(score + rng.normal(size=N) * each)))
        outputs.append(np.column_stack([1 - p, p]))
    kind = (np.arange(N) >= share * N).astype(int)
    return Held(np.stack(outputs), np.eye(2)[y], kind, np.arange(N) % 5, y)


def test_the_pool_is_the_logistic_regression_of_log_odds(monkeypatch) -> None:
    """Of two classes and without a ridge, as scikit-learn has it."""
    monkeypatch.setattr(blend, "RIDGE", 1e-6)
    held = world((1.0, 1.5))
    odds = np.log(held.outputs[:, :, 1] / held.outputs[:, :, 0]).T
    reference = LogisticRegression(C=1e6, fit_intercept=False).fit(odds, held.classes)
    found = weights_of(held, np.full(2, 0.5))
    assert found == pytest.approx(reference.coef_[0], abs=0.02)


def test_weights_are_never_negative_and_few_rows_keep_the_prior() -> None:
    held = world((0.5, 0.5))
    backwards = Held(held.outputs[:, :, ::-1], held.truth, held.kind, held.fold, held.classes)
    assert weights_of(backwards, np.full(2, 0.5)).max() < 0.05
    few = held.rows(np.arange(2))
    assert weights_of(few, np.full(2, 0.5)) == pytest.approx([0.5, 0.5], abs=0.2)
    assert weights_of(held.rows(np.arange(0)), np.array([0.3, 0.7])).tolist() == [0.3, 0.7]


def test_own_models_stay_and_partners_are_left_out_where_they_add_nothing() -> None:
    """Of few rows one standard error is much: alone, any of these would seem to do."""
    held = world((0.3, 0.3, 0.3)).rows(np.arange(0, N, 15))
    assert (pool_of(held).weights > 0).all()
    beside = replace(held, groups=((), (2,)))
    assert (pool_of(beside).weights > 0).any(0).tolist() == [True, True, False]
    assert replace(held, groups=((2,), (1, 2))).members([2, 1]).groups == ((0,), (1, 0))
    # Where nobody has columns of his own, partners cannot be done without.
    assert (pool_of(replace(held, groups=((), (0, 1, 2)))).weights > 0).all()


def test_partners_that_stand_in_for_each_other_are_not_left_out_one_by_one() -> None:
    """Two of a kind: without either nothing is lost, without both a lot."""
    held = world((3.0, 0.3, 0.3))
    held = replace(held, groups=((1, 2),), outputs=held.outputs[[0, 1, 1]])
    assert (pool_of(held).weights[:, 1:] > 0).all()


def test_somebody_is_heard_even_where_all_mislead() -> None:
    held = world((0.1, 0.1))
    backwards = Held(held.outputs[:, :, ::-1], held.truth, held.kind, held.fold, held.classes)
    assert (pool_of(backwards).weights.sum(1) > 0).all()


def test_a_pool_is_better_than_its_best_model_and_calibrated() -> None:
    held = world((1.5, 1.5, 1.5))
    found = fitted(held)(held)
    best = min(losses(each, held.truth).mean() for each in held.outputs)
    assert losses(found, held.truth).mean() < best - 0.02
    sure = found.max(1)
    assert sure.mean() == pytest.approx((found.argmax(1) == held.classes).mean(), abs=0.02)


def test_the_dearest_group_goes_first_and_what_adds_nothing_goes() -> None:
    """Completed rows, then all partners: those that learn from completed ones are among these."""
    noise = np.full((1, N, 2), 0.5)
    other = world((1.5, 1.5))
    three = replace(other, outputs=np.concatenate([other.outputs, noise]))
    for groups in (((2,), (1, 2)), ((), (2,))):
        weights = pool_of(replace(three, groups=groups)).weights
        assert (weights > 0).any(0).tolist() == [True, True, False]


def test_kinds_of_rows_have_weights_of_their_own() -> None:
    """The second model is right where partners know the row, and guesses elsewhere."""
    held = world((1.5, 0.2))
    outputs = held.outputs.copy()
    outputs[1, held.kind == 1] = 0.5
    found = pool_of(Held(outputs, held.truth, held.kind, held.fold, held.classes)).weights
    assert found[0, 1] > 3 * found[0, 0]
    assert found[1, 0] > 0.1


def test_likelihoods_of_labels_stand_in_for_labels() -> None:
    held = world((0.5, 3.0))
    doubtful = np.full_like(held.truth, 1.0)
    unknown = Held(held.outputs, doubtful, held.kind, held.fold)
    assert weights_of(unknown, np.full(2, 0.5)) == pytest.approx([0.5, 0.5])
    sure = np.where(held.truth > 0, 0.9, 0.1)
    found = weights_of(Held(held.outputs, sure, held.kind, held.fold), np.full(2, 0.5))
    assert found[0] > found[1]


def test_numbers_are_pooled_by_squared_error() -> None:
    rng = np.random.default_rng(1)
    y = rng.normal(size=N) * 10 + 50
    outputs = np.stack([y + rng.normal(size=N) * each for each in (2.0, 2.0, 20.0)])
    held = Held(outputs, y, np.zeros(N, int), np.arange(N) % 4)
    found = pool_of(held)
    assert found.weights[0, :2] == pytest.approx([0.5, 0.5], abs=0.05)
    assert np.sqrt(losses(nested(held), y).mean()) < 1.6
    told = score_of(held, nested(held), "rmse", outputs[0])
    assert told["interval"][0] < told["score"] < told["interval"][1] and told["apart"] < 0


def test_weights_of_numbers_are_those_of_a_ridge_regression() -> None:
    """In closed form: sixty rows' worth of evidence (twenty a model) speak for equal weights."""
    rng = np.random.default_rng(3)
    truth = rng.normal(size=90)
    outputs = truth + rng.normal(size=(3, 90)) * np.array([[0.9], [0.8], [0.5]])
    held = Held(outputs, truth, np.zeros(90, int), np.arange(90) % 3)
    prior = np.full(3, 1 / 3)
    spread, strength = ((outputs - truth) ** 2).mean(1).min(), 20 * 3
    expected = np.linalg.solve(
        outputs @ outputs.T / spread + strength * np.eye(3),
        outputs @ truth / spread + strength * prior,
    )
    assert expected.min() > 0
    np.testing.assert_allclose(blend.weights_of(held, prior), expected, atol=1e-5)


def test_what_is_said_of_a_fold_does_not_hang_on_its_labels() -> None:
    held = world((0.5, 2.0))
    here = held.fold == 0
    classes = np.where(here, 1 - held.classes, held.classes)
    other = Held(held.outputs, np.eye(2)[classes], held.kind, held.fold, classes)
    one, two = nested(held), nested(other)
    np.testing.assert_array_equal(one[here], two[here])
    assert not np.allclose(one[~here], two[~here])


def test_nested_scores_are_honest_where_there_is_nothing_to_learn() -> None:
    """Twelve models of noise on few rows: the best of them looks good, the procedure does not."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 120)
    p = rng.random((12, 120))
    held = Held(np.stack([1 - p, p], -1), np.eye(2)[y], np.zeros(120, int), np.arange(120) % 5, y)
    best = max(score_of(held, each, "auc")["score"] for each in held.outputs)
    honest = score_of(held, nested(held), "auc")
    assert best > 0.55
    assert honest["interval"][0] < 0.5


@pytest.mark.parametrize("classes", [2, 3])
def test_the_interval_of_an_auc_is_that_of_rows_drawn_again(classes, whole_training) -> None:
    rng = np.random.default_rng(4)
    said = rng.dirichlet(np.ones(classes), 60).round(1)  # with ties
    truth = rng.integers(0, classes, 60)
    kinds = np.zeros(60, np.int64)
    held = Held(said[None], np.eye(classes)[truth], kinds, kinds, truth)
    draws = np.random.default_rng(0)
    drawn = [draws.integers(0, 60, 60) for _ in range(200)]
    wanted = np.quantile([auc(truth[rows], said[rows]) for rows in drawn], [0.025, 0.975])
    assert score_of(held, said, "auc")["interval"] == wanted.tolist()


def test_classes_that_a_model_does_not_know_have_the_least_probability() -> None:
    outputs = np.array([[[1.0, 0.0]], [[0.5, 0.5]]])
    assert pooled(outputs, np.array([0.5, 0.5]))[0, 1] > 0.005
    assert (
        Pool(np.ones((2, 1)))(Held(outputs[:1], np.eye(2)[:1], np.zeros(1), np.zeros(1))).sum() == 1
    )


@pytest.mark.parametrize("shape", [(3, 501), (3, 501, 4)])
def test_who_is_not_heard_does_not_change_a_bit(shape) -> None:
    outputs, weights = np.random.default_rng(0).dirichlet(np.ones(4), 3 * 501), [0.3, 0.0, 0.6]
    outputs = (outputs if len(shape) == 3 else 100 * outputs[:, 0]).reshape(shape)
    heard = blend.pooled(outputs[[0, 2]], np.array([0.3, 0.6]))
    assert np.array_equal(blend.pooled(outputs, np.array(weights)), heard)
