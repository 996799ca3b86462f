"""GAIN: its parts against plain references, and what it learns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedmend.data.table import Table
from fedmend.generate.encoder import Encoder
from fedmend.generate.gain import (
    GAIN,
    Critic,
    Duel,
    Game,
    Guess,
    Imputer,
    Layout,
    Rows,
    _turns,
    draw_cells,
    expected_cells,
    hide,
)
from fedmend.generate.training import held_out, seed_parameters


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def built(frame: pd.DataFrame, **kinds: str) -> tuple[Imputer, Critic, Rows, Encoder]:
    table = Table(np.arange(len(frame)), frame, kinds=kinds)
    encoder = Encoder(numeric="minmax").fit(table)
    encoded = encoder.encode(encoder.raw(table.frame))
    layout = Layout.of(encoder)
    net = Imputer(layout, hidden=16, blocks=1, dropout=0.0, bins=8)
    critic = Critic(layout, hidden=16)
    for module in (net, critic):
        seed_parameters(module, stream())
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


def test_the_layout_knows_every_column(mixed: Table) -> None:
    encoder = Encoder(numeric="minmax").fit(mixed)
    layout = Layout.of(encoder)
    assert layout.width == encoder.width
    assert layout.columns == len(encoder.columns)
    firsts = [*layout.scalars, *(start for start, _ in layout.groups)]
    assert sorted(layout.owner[firsts]) == list(range(layout.columns))


def test_losses_are_squares_and_cross_entropies(mixed: Table) -> None:
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


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["normal", "few", "spike", "two"]))
def test_shares_lead_back_to_the_values(seed: int, kind: str) -> None:
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


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 1), st.integers(1, 9))
def test_hidden_cells_were_observed_and_get_one_turn(seed: int, blank: float, rounds: int) -> None:
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


def test_hide_covers_every_share() -> None:
    shown = hide(torch.ones(4000, 10, dtype=torch.bool), 0.1, stream())
    shares = shown.float().mean(1)
    assert abs(float(shares.mean()) - 0.45) < 0.02
    assert float((shares == 0).float().mean()) > 0.1
    assert float((shares > 0.9).float().mean()) > 0.03


def test_a_step_trains_generator_and_discriminator_alone(mixed: Table) -> None:
    net, critic, rows, _ = built(mixed.frame)
    before = [parameter.clone() for parameter in [*net.parameters(), *critic.parameters()]]
    Duel(net, critic, Game(), stream()).step(rows)
    after = [*net.parameters(), *critic.parameters()]
    assert all(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert all(parameter.requires_grad for parameter in after)


def test_the_discriminator_is_fooled_by_nothing_that_it_is_told() -> None:
    # With a hint of 1 every origin is told: its loss must go towards nothing.
    net, critic, rows, _ = built(related(200))
    duel = Duel(net, critic, Game(hint=1.0, lr=1e-2), stream())
    for _ in range(60):
        duel.step(rows)
    shown = hide(rows.known, 0.0, stream(1))
    logits = critic(net.standardised(rows.values), shown.float())
    assert float(((logits > 0) == shown).float().mean()) > 0.97


def test_known_cells_pass_through_and_unknown_do_not_matter(mixed: Table) -> None:
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
    for start, stop in net.layout.groups:
        torch.testing.assert_close(drawn[:, start:stop].sum(1), torch.ones(120))


# --- what it learns --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted() -> GAIN:
    table = Table(np.arange(500), related(500))
    return GAIN(hidden=48, steps=600, lr=3e-3, patience=0, device="cpu").fit(table)


def test_it_fills_gaps_better_than_mean_and_neighbours(
    fitted: GAIN, quiet_table: Callable[..., Table]
) -> None:
    from sklearn.impute import KNNImputer

    truth = related(300, seed=1)
    gaps = truth.copy()
    where = np.random.default_rng(0).permutation(300)[:100]
    gaps.loc[where, "twice"] = np.nan
    gaps.loc[np.setdiff1d(np.arange(300), where)[:60], "side"] = None
    filled = fitted.impute(quiet_table(np.arange(300), gaps)).frame
    error = np.sqrt(np.mean((filled["twice"] - truth["twice"])[where] ** 2))
    mean = truth["twice"].std()
    neighbours = KNNImputer().fit_transform(gaps[["bump", "twice"]])[where, 1]
    assert error < 0.2 * mean
    assert error < 1.5 * np.sqrt(np.mean((neighbours - truth["twice"][where]) ** 2))
    assert (filled["side"] == truth["side"]).mean() > 0.97


def test_its_rows_have_both_bumps_and_hang_together(fitted: GAIN) -> None:
    from scipy.stats import ks_2samp

    real, made = related(500), fitted.sample(2000, seed=0).frame
    assert ks_2samp(real["bump"], made["bump"]).statistic < 0.08
    assert abs((made["side"] == "high").mean() - (real["side"] == "high").mean()) < 0.06
    assert ((made["bump"] > 1.5) == (made["side"] == "high")).mean() > 0.93
    assert np.corrcoef(made["bump"], made["twice"])[0, 1] > 0.95


def test_what_is_given_decides_the_rest(fitted: GAIN) -> None:
    made = fitted.sample(300, given={"side": "high"}, seed=0).frame
    assert (made["bump"] > 1.5).mean() > 0.93
    made = fitted.sample(300, given={"bump": -3.0}, seed=0).frame
    assert (made["side"] == "low").mean() > 0.95
    assert abs(made["twice"].mean() + 6) < 1


def test_one_draw_keeps_the_spread_and_many_do_not(
    fitted: GAIN, quiet_table: Callable[..., Table]
) -> None:
    gaps = quiet_table(
        np.arange(300),
        {"bump": [None] * 300, "side": ["high"] * 300, "twice": [None] * 300},
        schema=fitted.schema_,
    )
    assert fitted.impute(gaps, draws=1).frame["bump"].std() > 0.6
    expected = fitted.impute(gaps).frame["bump"]
    assert expected.std() < 0.2
    assert abs(expected.mean() - 6) < 0.7


def test_training_stops_when_nothing_gets_better() -> None:
    rng = np.random.default_rng(0)
    noise = Table(np.arange(250), {"a": rng.normal(size=250), "b": rng.normal(size=250)})
    model = GAIN(hidden=64, steps=5000, lr=3e-3, patience=2, device="cpu").fit(noise)
    assert model.history_.stopped_early
    assert model.history_.steps < 5000
    assert model.history_.best_step == model.history_.steps - 200


def test_a_column_whose_few_cells_are_all_held_out() -> None:
    model = GAIN(hidden=16, steps=5, device="cpu")
    _, scored = held_out(300, 0.1, model._numpy_rng("held out"))
    rng, rare = np.random.default_rng(0), np.full(300, np.nan)
    rare[scored[:4]] = [1.5, 2.7, 3.1, 0.2]
    table = Table(np.arange(300), {"x": rng.normal(size=300), "rare": rare})
    made = model.fit(table).sample(40, seed=0).frame["rare"]
    assert made.between(0.2, 3.1).all()
    assert made.std() > 0.1


@pytest.mark.slow
def test_breast_cancer_with_a_fifth_missing() -> None:
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
