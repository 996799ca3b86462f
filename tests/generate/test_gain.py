"""GAIN and VGAIN: their parts against plain references."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import functional as F

from fedmend.data.table import Table
from fedmend.generate.encoder import Encoder, Heads
from fedmend.generate.gain import (
    GAIN,
    Critic,
    Duel,
    Game,
    Guess,
    Imputer,
    Rows,
    _turns,
    draw_cells,
    expected_cells,
    hide,
)
from fedmend.generate.training import held_out
from fedmend.generate.vgain import VariationalImputer, divergence
from fedmend.learn.nets import initialise


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def built(frame: pd.DataFrame, **kinds: str) -> tuple[Imputer, Critic, Rows, Encoder]:
    table = Table(np.arange(len(frame)), frame, kinds=kinds)
    encoder = Encoder(numeric="minmax").fit(table)
    encoded = encoder.encode(encoder.raw(table.frame))
    heads = Heads(encoder, torch.device("cpu"))
    net = Imputer(heads, hidden=16, dropout=0.0, bins=8)
    critic = Critic(heads, hidden=16)
    for module in (net, critic):
        initialise(module, stream())
    net.measure(encoded.values, encoded.observed)
    values = torch.from_numpy(encoded.values)
    return net, critic, Rows(values, torch.from_numpy(encoded.observed), values[:, :0]), encoder


def related(rows: int, seed: int = 0) -> pd.DataFrame:
    """Two bumps, a number that follows them, a category that follows the bump."""
    rng = np.random.default_rng(seed)
    high = rng.random(rows) < 0.3
    bump = np.where(high, 6.0, -3.0) + rng.normal(size=rows)
    return pd.DataFrame(
        {
            "bump": bump,
            "side": np.where(high, "high", "low"),
            "twice": 2 * bump + rng.normal(size=rows) * 0.3,
        }
    )


# --- parts ---------------------------------------------------------------------------------


def test_losses_are_squares_and_cross_entropies(mixed):
    net, _, rows, encoder = built(mixed.frame)
    torch.manual_seed(0)
    guess = Guess(torch.randn(rows.values.shape), torch.randn(120, len(net.scalars), 8))
    truth = net.standardised(rows.values)
    losses = net.cell_losses(guess, truth)
    for position, name in enumerate(encoder.columns):
        (span,) = encoder.of(name)
        told, real = guess.cells[:, span.start : span.stop], truth[:, span.start : span.stop]
        if span.activation == "softmax":
            wanted = F.cross_entropy(told, real.argmax(1), reduction="none")
        else:
            wanted = (told - real)[:, 0] ** 2
        torch.testing.assert_close(losses[:, position], wanted)


@given(st.integers(0, 2**31), st.sampled_from(["normal", "few", "spike", "two"]))
def test_shares_lead_back_to_the_values(seed, kind):
    rng = np.random.default_rng(seed)
    values = {
        "normal": rng.normal(size=400),
        "few": rng.integers(0, 5, 400) * 7.0,
        "spike": np.where(rng.random(400) < 0.8, 0.0, rng.exponential(size=400)),
        "two": np.where(rng.random(400) < 0.4, 1.0, 9.0),
    }[kind]
    net, _, rows, _ = built(pd.DataFrame({"x": values, "y": rng.normal(size=400)}), x="continuous")
    bins = net.bins_of(rows.values, stream(seed))
    assert bins.min() >= 0
    assert bins.max() < net.bins
    drawn = net.numbers_of(bins, stream(seed + 1))
    real = rows.values[:, net.scalars]
    # a draw within the value's own bin strays no further than the bin is wide
    knots = net.knots[:, :: net.knots.shape[1] // net.bins]
    assert knots.shape[1] == net.bins + 1
    widest = (knots[:, 1:] - knots[:, :-1]).max(1).values
    assert ((drawn - real).abs() <= widest + 1e-6).all()
    if kind in ("few", "two"):
        assert set(drawn[:, 0].tolist()) <= set(real[:, 0].tolist())


@given(st.integers(0, 2**31), st.floats(0, 1), st.integers(1, 9))
def test_hidden_cells_were_observed_and_get_one_turn(seed, blank, rounds):
    observed = torch.rand(50, 6, generator=stream(seed)) < 0.7
    shown = hide(observed, blank, stream(seed))
    assert not (shown & ~observed).any()
    if blank == 1:
        assert not shown.any()
    turns = _turns(shown, rounds, stream(seed))
    assert ((turns == -1) == shown).all()
    assert turns.max() < rounds
    for row, flags in zip(turns, shown, strict=True):
        hidden = int((~flags).sum())
        counts = torch.bincount(row[row >= 0], minlength=1)
        if hidden:
            assert len(counts) == min(rounds, hidden)
            assert counts.max() - counts.min() <= 1


def test_a_step_trains_generator_and_discriminator_alone(mixed):
    net, critic, rows, _ = built(mixed.frame)
    before = [parameter.clone() for parameter in [*net.parameters(), *critic.parameters()]]
    Duel(net, critic, Game(), stream()).step(rows)
    after = [*net.parameters(), *critic.parameters()]
    assert all(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert all(parameter.requires_grad for parameter in after)


def test_the_discriminator_is_fooled_by_nothing_that_it_is_told():
    # With a hint of 1 every origin is told: its loss must go towards nothing.
    net, critic, rows, _ = built(related(200))
    duel = Duel(net, critic, Game(hint=1.0, lr=1e-2), stream())
    for _ in range(60):
        duel.step(rows)
    shown = hide(rows.known, 0.0, stream(1))
    logits = critic(net.standardised(rows.values), shown.float())
    assert float(((logits > 0) == shown).float().mean()) > 0.97


def test_known_cells_pass_through_and_unknown_do_not_matter(mixed):
    net, _, rows, _ = built(mixed.frame)
    known = hide(rows.known, 0.0, stream(3))
    spread = known[:, net.owner]
    spoilt = rows.values.where(spread, torch.tensor(0.123))
    for fill in (
        lambda part: expected_cells(net, part, Game(), 2, stream(5)),
        lambda part: draw_cells(net, part, Game(), 4, stream(5)),
    ):
        first, second = (fill(Rows(v, known, rows.side)) for v in (rows.values, spoilt))
        torch.testing.assert_close(first[~spread], second[~spread])
    drawn = draw_cells(net, Rows(rows.values, known, rows.side), Game(), 4, stream(5))
    torch.testing.assert_close(drawn[spread], rows.values[spread])
    for start, stop in net.heads.groups:
        torch.testing.assert_close(drawn[:, start:stop].sum(1), torch.ones(120))


def test_a_column_whose_few_cells_are_all_held_out():
    model = GAIN(hidden=16, steps=5, device="cpu")
    _, scored = held_out(300, 0.1, model._numpy_rng("held out"))
    rng, rare = np.random.default_rng(0), np.full(300, np.nan)
    rare[scored[:4]] = [1.5, 2.7, 3.1, 0.2]
    table = Table(np.arange(300), {"x": rng.normal(size=300), "rare": rare})
    made = model.fit(table).sample(40, seed=0).frame["rare"]
    assert made.between(0.2, 3.1).all()
    assert made.std() > 0.1


# --- VGAIN: the latent code and its price ---------------------------------------------


@pytest.fixture
def imputer(mixed):
    heads = Heads(Encoder(numeric="minmax").fit(mixed), torch.device("cpu"))
    torch.manual_seed(0)
    return VariationalImputer(heads, latent=5, hidden=16, dropout=0.0, bins=8)


def test_divergence_is_torchs():
    torch.manual_seed(1)
    means, logs = torch.randn(2, 7, 4), torch.randn(2, 7, 4) * 0.5
    first, second = (Independent(Normal(m, s.exp()), 1) for m, s in zip(means, logs, strict=True))
    ours = divergence((means[0], logs[0]), (means[1], logs[1]))
    torch.testing.assert_close(ours, kl_divergence(first, second))


def test_the_code_may_know_hidden_cells_in_training_only(imputer):
    heads = imputer.heads
    values = torch.randn(6, len(heads.span))
    shown = torch.zeros(6, heads.n_spans)
    seen = torch.ones(6, heads.n_spans)
    code, cost = imputer.code(values, shown, stream(), seen)
    other, _ = imputer.code(values + 1, shown, stream(), seen)
    assert code.shape == (6, 5)
    assert not torch.allclose(code, other)
    assert cost.item() > 0
    code, cost = imputer.code(values, shown, stream())
    other, _ = imputer.code(values + 1, shown, stream())
    assert torch.equal(code, other)
    assert cost.item() == 0


def test_a_code_that_says_no_more_than_is_shown_is_free(imputer):
    imputer.posterior.load_state_dict(imputer.prior.state_dict())
    heads = imputer.heads
    values, seen = torch.randn(6, len(heads.span)), torch.ones(6, heads.n_spans)
    _, cost = imputer.code(values, seen, stream(), seen)
    assert cost.item() == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        imputer.prior.head.bias[:5] += 1.0
    _, cost = imputer.code(values, seen, stream(), seen)
    _, log = imputer.prior(values, seen)
    wanted = (0.5 * (-2 * log).exp().sum(1)).mean() / heads.n_spans
    torch.testing.assert_close(cost, wanted)


@pytest.mark.slow
def test_breast_cancer_with_a_fifth_missing():
    from sklearn.datasets import load_breast_cancer
    from sklearn.impute import KNNImputer
    from sklearn.preprocessing import StandardScaler

    values = load_breast_cancer().data
    missing = np.random.default_rng(0).random(values.shape) < 0.2
    gaps = np.where(missing, np.nan, values)
    table = Table.from_frame(pd.DataFrame(gaps, columns=[f"c{i}" for i in range(30)]))

    def error(filled: np.ndarray) -> float:
        return float(np.sqrt((((values - filled) / values.std(0))[missing] ** 2).mean()))

    ours = error(GAIN(steps=2500, device="cpu").fit(table).impute(table).frame.to_numpy())
    scaler = StandardScaler().fit(gaps)
    neighbours = KNNImputer().fit_transform(scaler.transform(gaps))
    assert ours < 0.46
    assert ours < error(scaler.inverse_transform(neighbours))
    assert ours < error(np.broadcast_to(np.nanmean(gaps, 0), values.shape))
