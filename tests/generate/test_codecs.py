"""Codecs: decode undoes encode, and the mixtures of modes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import kstest, norm
from sklearn.mixture import GaussianMixture

from fedmend.federation import wire
from fedmend.generate.codecs import (
    CODECS,
    Levels,
    MinMax,
    Mixture,
    Modes,
    Quantile,
    Spiked,
    fit_mixture,
)

numbers = hnp.arrays(
    np.float64,
    st.integers(10, 60),
    elements=st.integers(-400, 4000).map(lambda whole: whole / 4),
).filter(lambda values: values.min() < values.max())

fits = pytest.mark.parametrize(
    "fit",
    [
        Levels.fit,
        Modes.fit,
        lambda values: Modes.fit(values, spikes=0.0),
        lambda values: Modes.fit(values, long_tails=True),
        Quantile.fit,
        Spiked.fit,
        MinMax.fit,
        lambda values: MinMax.fit(values, (-1.0, 1.0)),
    ],
    ids=[
        "levels",
        "modes",
        "no-spikes",
        "long-tails",
        "quantile",
        "spiked",
        "min-max",
        "min-max-1",
    ],
)


@fits
@given(values=numbers, seed=st.none() | st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_decode_undoes_encode(fit, values: np.ndarray, seed: int | None) -> None:
    codec = fit(values)
    rng = None if seed is None else np.random.default_rng(seed)
    coordinates = codec.encode(values, rng)
    assert coordinates.dtype == np.float32
    assert coordinates.shape == (len(values), sum(piece.width for piece in codec.pieces))
    assert codec.neutral.shape == coordinates.shape[1:]
    # float32 coordinates resolve the range to some 1e-7; quarters are restored by rounding
    assert np.abs(codec.decode(coordinates) - values).max() < 0.1
    again = CODECS[codec.name](**wire.decode(wire.encode(codec.to_dict())))
    assert np.array_equal(again.decode(coordinates), codec.decode(coordinates))


@fits
def test_coordinates_suit_their_activation(fit) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([np.zeros(50), rng.lognormal(2, 1, 100)])
    codec = fit(values)
    coordinates, at = codec.encode(values), 0
    for piece in codec.pieces:
        part = coordinates[:, at : at + piece.width]
        at += piece.width
        if piece.activation == "softmax":
            assert set(np.unique(part)) <= {0.0, 1.0}
            assert (part.sum(1) == 1).all()
        elif piece.activation == "tanh":
            assert np.abs(part).max() <= 1
        elif piece.activation == "sigmoid":
            assert part.min() >= 0
            assert part.max() <= 1


def test_quantile_normal_scores() -> None:
    values = np.random.default_rng(0).exponential(size=3000)
    scores = Quantile.fit(values).encode(values)[:, 0]
    assert kstest(scores, norm.cdf).statistic < 0.01
    ranks = Quantile.fit(values, normal=False).encode(values)[:, 0]
    assert kstest(ranks, "uniform").statistic < 0.01


def test_quantile_draws_ties_apart() -> None:
    values = np.repeat([0.0, 1.0, 5.0], [700, 200, 100])
    codec = Quantile.fit(values)
    assert len(np.unique(codec.encode(values))) == 3
    drawn = codec.encode(values, np.random.default_rng(0))[:, 0]
    assert kstest(drawn, norm.cdf).statistic < 0.04
    assert np.array_equal(codec.decode(drawn[:, None]), values)


def test_quantile_decodes_any_score_into_the_range() -> None:
    values = np.random.default_rng(0).normal(size=100)
    decoded = Quantile.fit(values).decode(np.linspace(-9, 9, 50)[:, None])
    assert decoded.min() == values.min()
    assert decoded.max() == values.max()
    assert (np.diff(decoded) >= 0).all()


def test_modes_keep_spikes_apart_and_exact() -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random(1000) < 0.6, 0.1, rng.normal(50, 5, 1000))
    codec = Modes.fit(values)
    assert 0.1 in codec.centres[codec.scales == 0]
    back = codec.decode(codec.encode(values))
    assert (back[values == 0.1] == 0.1).all()
    assert np.abs(back - values).max() < 1e-4


def test_modes_draw_by_posterior() -> None:
    codec = Modes(np.array([0.0, 1.0]), np.array([4.0, 4.0]), np.array([0.5, 0.5]), np.empty(0))
    values = np.full(4000, 0.5)
    modes = codec.encode(values, np.random.default_rng(0))[:, 1:].argmax(1)
    assert abs(modes.mean() - 0.5) < 0.05
    assert len(set(codec.encode(values)[:, 1:].argmax(1))) == 1


def test_modes_of_spikes_alone_have_no_position() -> None:
    values = np.repeat([1.0, 2.0, 9.0], 30)
    codec = Modes.fit(values)
    assert [piece.activation for piece in codec.pieces] == ["softmax"]
    assert np.array_equal(codec.decode(codec.encode(values)), values)
    assert codec.decode(codec.encode(np.array([8.0])))[0] == 9.0


def test_a_long_tail_is_bent_straight() -> None:
    values = np.random.default_rng(0).lognormal(3, 1.5, 4000)
    plain, bent = Modes.fit(values, 1, 0.0), Modes.fit(values, 1, 0.0, long_tails=True)
    assert not len(plain.log)
    assert len(bent.log)
    spread = [codec.encode(values)[:, 0] for codec in (plain, bent)]
    skew = [abs(((s - s.mean()) ** 3).mean() / s.std() ** 3) for s in spread]
    assert skew[1] < 0.3 * skew[0]


def test_levels_draw_by_score() -> None:
    codec = Levels.fit(np.array([1.0, 4.0, 9.0]))
    scores = np.tile([0.2, 0.0, 0.8], (5000, 1))
    assert (codec.decode(scores) == 9).all()
    drawn = codec.decode(scores, np.random.default_rng(0))
    assert set(drawn) == {1.0, 9.0}
    assert abs((drawn == 1).mean() - 0.2) < 0.02
    assert codec.decode(codec.encode(np.array([3.0])))[0] == 4.0


def test_log_joint_equals_scipy() -> None:
    mixture = Mixture(np.array([0.3, 0.7]), np.array([-1.0, 2.0]), np.array([0.5, 1.5]))
    values = np.linspace(-4, 6, 31)
    expected = np.log([0.3, 0.7]) + norm.logpdf(values[:, None], [-1, 2], [0.5, 1.5])
    assert np.allclose(mixture.log_joint(values), expected)


def test_a_known_mixture_is_found() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(-5, 0.5, 3000), rng.normal(4, 1.0, 7000)])
    found = fit_mixture(values, 10)
    heavy = found.weights > 0.05
    assert np.allclose(np.sort(found.means[heavy])[[0, -1]], [-5, 4], atol=0.6)
    left = found.means < -2
    assert abs(found.weights[left].sum() - 0.3) < 0.01


def test_one_gaussian_is_one_mode() -> None:
    found = fit_mixture(np.random.default_rng(1).normal(3, 2, 5000), 10)
    assert len(found.means) == 1
    assert abs(found.means[0] - 3) < 0.1
    assert abs(found.deviations[0] - 2) < 0.1


def test_as_likely_as_scikit_learns() -> None:
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.normal(m, s, 1500) for m, s in [(-6, 1), (0, 0.5), (5, 2)]])
    ours = fit_mixture(values, 3)
    joint = ours.log_joint(values)
    likelihood = np.log(np.exp(joint).sum(1)).mean()
    theirs = GaussianMixture(3, random_state=0).fit(values[:, None]).score(values[:, None])
    assert likelihood > theirs - 0.02


def test_two_values_and_many_rows() -> None:
    found = fit_mixture(np.array([1.0] * 40 + [2.0] * 60), 10)
    assert np.isfinite(found.means).all()
    assert (found.deviations > 0).all()
