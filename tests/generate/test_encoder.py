"""Codecs, the encoder made of them, and the activations of its spans: there and back."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import kstest, norm
from sklearn.mixture import GaussianMixture

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError
from fedmend.federation import wire
from fedmend.generate.codecs import CODECS, Levels, MinMax, Modes, Quantile, Spiked, fit_mixture
from fedmend.generate.encoder import Encoder, Heads

FEW_MODES = False
numbers = hnp.arrays(
    np.float64, st.integers(10, 60), elements=st.integers(-400, 4000).map(lambda whole: whole / 4)
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
@settings(max_examples=10)
def test_decode_undoes_encode(fit, values, seed):
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
def test_coordinates_suit_their_activation(fit):
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


def test_quantile_normal_scores():
    values = np.random.default_rng(0).exponential(size=3000)
    scores = Quantile.fit(values).encode(values)[:, 0]
    assert kstest(scores, norm.cdf).statistic < 0.01
    ranks = Quantile.fit(values, normal=False).encode(values)[:, 0]
    assert kstest(ranks, "uniform").statistic < 0.01


def test_quantile_draws_ties_apart():
    values = np.repeat([0.0, 1.0, 5.0], [700, 200, 100])
    codec = Quantile.fit(values)
    assert len(np.unique(codec.encode(values))) == 3
    drawn = codec.encode(values, np.random.default_rng(0))[:, 0]
    assert kstest(drawn, norm.cdf).statistic < 0.04
    assert np.array_equal(codec.decode(drawn[:, None]), values)


def test_modes_keep_spikes_apart_and_exact():
    rng = np.random.default_rng(0)
    values = np.where(rng.random(1000) < 0.6, 0.1, rng.normal(50, 5, 1000))
    codec = Modes.fit(values)
    assert 0.1 in codec.centres[codec.scales == 0]
    back = codec.decode(codec.encode(values))
    assert (back[values == 0.1] == 0.1).all()
    assert np.abs(back - values).max() < 1e-4


def test_modes_draw_by_posterior():
    codec = Modes(np.array([0.0, 1.0]), np.array([4.0, 4.0]), np.array([0.5, 0.5]), np.empty(0))
    values = np.full(4000, 0.5)
    modes = codec.encode(values, np.random.default_rng(0))[:, 1:].argmax(1)
    assert abs(modes.mean() - 0.5) < 0.05
    assert len(set(codec.encode(values)[:, 1:].argmax(1))) == 1


def test_modes_of_spikes_alone_have_no_position():
    values = np.repeat([1.0, 2.0, 9.0], 30)
    codec = Modes.fit(values)
    assert [piece.activation for piece in codec.pieces] == ["softmax"]
    assert np.array_equal(codec.decode(codec.encode(values)), values)
    assert codec.decode(codec.encode(np.array([8.0])))[0] == 9.0


def test_a_long_tail_is_bent_straight():
    values = np.random.default_rng(0).lognormal(3, 1.5, 4000)
    plain, bent = Modes.fit(values, 1, 0.0), Modes.fit(values, 1, 0.0, long_tails=True)
    assert not len(plain.log)
    assert len(bent.log)
    spread = [codec.encode(values)[:, 0] for codec in (plain, bent)]
    skew = [abs(((s - s.mean()) ** 3).mean() / s.std() ** 3) for s in spread]
    assert skew[1] < 0.3 * skew[0]


def test_levels_draw_by_score():
    codec = Levels.fit(np.array([1.0, 4.0, 9.0]))
    scores = np.tile([0.2, 0.0, 0.8], (5000, 1))
    assert (codec.decode(scores) == 9).all()
    drawn = codec.decode(scores, np.random.default_rng(0))
    assert set(drawn) == {1.0, 9.0}
    assert abs((drawn == 1).mean() - 0.2) < 0.02
    assert codec.decode(codec.encode(np.array([3.0])))[0] == 4.0


def test_a_known_mixture_is_found():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(-5, 0.5, 3000), rng.normal(4, 1.0, 7000)])
    found = fit_mixture(values, 10)
    heavy = found.weights > 0.05
    assert np.allclose(np.sort(found.means[heavy])[[0, -1]], [-5, 4], atol=0.6)
    left = found.means < -2
    assert abs(found.weights[left].sum() - 0.3) < 0.01


def test_as_likely_as_scikit_learns():
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.normal(m, s, 1500) for m, s in [(-6, 1), (0, 0.5), (5, 2)]])
    ours = fit_mixture(values, 3)
    joint = ours.log_joint(values)
    likelihood = np.log(np.exp(joint).sum(1)).mean()
    theirs = GaussianMixture(3, random_state=0).fit(values[:, None]).score(values[:, None])
    assert likelihood > theirs - 0.02


# --- the encoder ----------------------------------------------------------------------

forms = pytest.mark.parametrize("numeric", ["mode", "quantile", "spiked", "rank", "minmax"])


@forms
@pytest.mark.parametrize("levels", [0, 12])
def test_cells_come_back_exactly(numeric, levels, mixed):
    encoder = Encoder(numeric, levels=levels).fit(mixed)
    for rng in (None, np.random.default_rng(0)):
        encoded = encoder.encode(encoder.raw(mixed.frame), rng)
        assert encoded.is_complete
        back = encoder.restore(encoder.decode(encoded.values))
        # all but the one column of full float32 precision
        rest = [name for name in mixed.names if name != "score"]
        pd.testing.assert_frame_equal(back[rest], mixed.frame[rest])
        assert np.allclose(back["score"], mixed.frame["score"], atol=1e-4)
        assert back["score"].dtype == np.float32


@forms
def test_the_wire_form_is_the_encoder(numeric, gappy):
    encoder = Encoder(numeric, levels=5).fit(gappy)
    again = Encoder.from_dict(wire.decode(wire.encode(encoder.to_dict())))
    assert again.schema == encoder.schema
    assert again.spans == encoder.spans
    raw = encoder.raw(gappy.frame)
    assert np.array_equal(again.encode(raw).values, encoder.encode(raw).values)
    noise = np.random.default_rng(0).normal(size=(30, encoder.width)).astype(np.float32)
    pd.testing.assert_frame_equal(
        again.restore(again.decode(noise)), encoder.restore(encoder.decode(noise))
    )


@forms
def test_any_coordinates_decode_into_range_and_categories(numeric, mixed):
    encoder = Encoder(numeric).fit(mixed)
    noise = 10 * np.random.default_rng(0).normal(size=(200, encoder.width)).astype(np.float32)
    made = encoder.restore(encoder.decode(noise))
    for name, column in mixed.schema.items():
        if column.is_numeric:
            assert made[name].between(mixed.frame[name].min(), mixed.frame[name].max()).all()
        else:
            assert set(made[name]) <= set(mixed.frame[name])


def test_missing_cells_are_neutral_and_marked(gappy):
    encoder = Encoder("minmax").fit(gappy)
    encoded = encoder.encode(encoder.raw(gappy.frame))
    expected = gappy.frame[encoder.columns].notna().to_numpy()
    assert np.array_equal(encoded.observed, expected)
    gaps = ~encoder.spread(encoded.observed)
    assert np.array_equal(encoded.values[gaps], np.broadcast_to(encoder.neutral, gaps.shape)[gaps])
    back = encoder.raw(gappy.frame)
    for name, numbers in back.items():
        assert np.array_equal(np.isnan(numbers), gappy.frame[name].isna().to_numpy())


def test_columns_with_nothing_to_learn_take_no_room(quiet_table):
    table = quiet_table(
        range(12),
        {
            "x": np.arange(12.0),
            "same": [5] * 12,
            "none": [np.nan] * 12,
            "nobody": pd.Series([None] * 12, dtype=object),
            "unused": pd.Categorical(["a"] * 12, categories=["a", "b"]),
        },
    )
    encoder = Encoder("quantile").fit(table)
    assert encoder.columns == ["x"]
    made = encoder.restore(encoder.decode(np.zeros((3, 1), np.float32)))
    assert made["same"].tolist() == [5] * 3
    assert made[["none", "nobody"]].isna().all(axis=None)
    assert made["unused"].dtype == table.frame["unused"].dtype


def test_declared_categories_that_never_occur_are_not_made():
    values = pd.Categorical(["a", "c"] * 10, categories=["a", "b", "c"])
    encoder = Encoder().fit(Table(range(20), {"x": values}))
    assert encoder.categories("x") == ["a", "c"]
    assert encoder.width == 2
    made = encoder.restore(encoder.decode(np.eye(2, dtype=np.float32)))
    assert made["x"].tolist() == ["a", "c"]
    assert np.isnan(encoder.raw(pd.DataFrame({"x": ["b"]}))["x"]).all()


def test_unseen_categories(mixed):
    encoder = Encoder().fit(mixed)
    frame = pd.DataFrame({"city": ["Rome", "Paris"]})
    assert np.isnan(encoder.raw(frame)["city"]).tolist() == [False, True]
    with pytest.raises(DataError, match="'city'.*never saw.*'Paris'.*use one of 'Lima'"):
        encoder.raw(frame, strict=True)
    with pytest.raises(DataError, match="'age'.*numbers were expected.*'old'"):
        encoder.raw(pd.DataFrame({"age": ["old"]}))


def test_average_is_mean_or_majority(mixed):
    encoder = Encoder().fit(mixed)
    averaged = encoder.average(
        {
            "age": np.array([[20.0, 30], [21, 31], [23, 36]]),
            "city": np.array([[0.0, 2], [1, 1], [1, 2]]),
        }
    )
    assert averaged["age"].tolist() == [21.0, 32.0]
    assert averaged["city"].tolist() == [1.0, 2.0]


def test_decimals_are_learnt():
    rng = np.random.default_rng(0)
    table = Table(range(300), {"cents": np.round(rng.normal(size=300), 2), "full": rng.random(300)})
    encoder = Encoder("quantile").fit(table)
    made = encoder.decode(rng.normal(size=(500, 2)).astype(np.float32))
    assert np.array_equal(made["cents"], np.round(made["cents"], 2))
    assert not np.array_equal(made["full"], np.round(made["full"], 6))


def test_bad_options_and_blocks():
    with pytest.raises(ConfigError, match="numeric must be one of"):
        Encoder("modes")
    table = Table([1, 2], blocks={"photo": np.zeros((2, 1, 2, 2), np.uint8)})
    with pytest.raises(DataError, match="'photo'.*not blocks"):
        Encoder().fit(table)


# --- activations ----------------------------------------------------------------------


@pytest.fixture
def encoder(mixed):
    return Encoder("mode").fit(mixed)


@pytest.fixture
def heads(encoder):
    return Heads(encoder, torch.device("cpu"))


def spans_of(encoder: Encoder, activation: str) -> list[slice]:
    return [slice(s.start, s.stop) for s in encoder.spans if s.activation == activation]


def test_log_softmax_equals_torch_span_by_span(encoder, heads):
    logits = 100 * torch.randn(40, encoder.width, dtype=torch.float64)
    logits.requires_grad_()
    ours = heads.log_softmax(logits)
    for part in spans_of(encoder, "softmax"):
        assert torch.allclose(ours[:, part], logits[:, part].log_softmax(1))
    assert (ours[:, heads.scalar] == 0).all()
    weights = torch.randn_like(logits)
    (gradient,) = torch.autograd.grad((ours * weights).sum(), logits)
    twin = logits.detach().clone().requires_grad_()
    total = sum(
        (twin[:, part].log_softmax(1) * weights[:, part]).sum()
        for part in spans_of(encoder, "softmax")
    )
    (expected,) = torch.autograd.grad(total, twin)
    assert torch.allclose(gradient, expected)


def test_activate(encoder, heads):
    logits = torch.randn(30, encoder.width)
    row = heads.activate(logits)
    for part in spans_of(encoder, "softmax"):
        assert torch.allclose(row[:, part], logits[:, part].softmax(1))
    for part in spans_of(encoder, "tanh"):
        assert torch.allclose(row[:, part], logits[:, part].tanh())
    sigmoid = Encoder("minmax").fit(Table(range(10), {"x": np.arange(10.0)}))
    assert Heads(sigmoid, torch.device("cpu")).activate(torch.zeros(1, 1)).item() == 0.5


def test_categories_are_drawn_by_probability(encoder, heads):
    logits = torch.randn(1, encoder.width).expand(8000, -1)
    stream = torch.Generator().manual_seed(0)
    relaxed = heads.activate(logits, gumbel=0.2, generator=stream)
    drawn = heads.draw(7 * heads.log_softmax(logits).exp(), stream)  # any sum will do
    for part in spans_of(encoder, "softmax"):
        wanted = logits[0, part].softmax(0)
        winners = torch.nn.functional.one_hot(relaxed[:, part].argmax(1), len(wanted))
        assert torch.allclose(winners.float().mean(0), wanted, atol=0.03)
        assert torch.allclose(relaxed[:, part].sum(1), torch.ones(8000), atol=1e-5)
        assert torch.allclose(drawn[:, part].mean(0), wanted, atol=0.03)
        assert (drawn[:, part].sum(1) == 1).all()
    assert (drawn[:, heads.scalar] == 0).all()


def test_cross_entropy_equals_torch(encoder, heads, mixed):
    target = torch.from_numpy(encoder.encode(encoder.raw(mixed.frame)).values)
    logits = torch.randn(target.shape)
    expected = sum(
        torch.nn.functional.cross_entropy(
            logits[:, part], target[:, part].argmax(1), reduction="none"
        )
        for part in spans_of(encoder, "softmax")
    )
    assert torch.allclose(heads.cross_entropy(logits, target), expected, atol=1e-4)
    assert (heads.cross_entropy(logits, torch.zeros_like(target)) == 0).all()
