"""Conditions, matching, and the frame of the adversarial generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedmend.data.table import Table
from fedmend.generate import Generator
from fedmend.generate.adversarial import Conditions, Matcher, joint_gap, settle
from fedmend.generate.convolutional import SquareCritic
from fedmend.generate.ctgan import CTGAN, PackedCritic
from fedmend.generate.encoder import Encoded, Encoder, Span
from fedmend.generate.training import EMA

CPU = torch.device("cpu")
SPANS = [Span("a", 1, 4, "softmax"), Span("b", 5, 7, "softmax")]


def _rows(n: int, seed: int = 0) -> torch.Tensor:
    """Column a is 0, 1 or 2 with shares .9, .09, .01, column b is even; some cells are missing."""
    rng = np.random.default_rng(seed)
    values = np.zeros((n, 8), np.float32)
    values[:, [0, 4, 7]] = rng.normal(size=(n, 3))
    values[np.arange(n), 1 + rng.choice(3, n, p=[0.9, 0.09, 0.01])] = 1.0
    values[np.arange(n), 5 + rng.integers(0, 2, n)] = 1.0
    values[rng.random(n) < 0.1, 1:4] = 0.0
    return torch.from_numpy(values)


def _fitted(n: int = 3000, **how: str) -> tuple[Conditions, torch.Tensor]:
    conditions, rows = Conditions(SPANS, CPU), _rows(n)
    conditions.fit(rows, **how)
    return conditions, rows


@given(seed=st.integers(0, 1000), n=st.integers(20, 200))
@settings(max_examples=20, deadline=None)
def test_every_row_drawn_holds_the_category_it_was_drawn_for(seed: int, n: int) -> None:
    conditions, rows = Conditions(SPANS, CPU), _rows(n, seed)
    conditions.fit(rows)
    drawn, wanted = conditions.draw(300, torch.Generator().manual_seed(seed))
    assert wanted is not None
    assert (rows[drawn, conditions.positions[wanted]] == 1).all()
    assert (conditions.counts[wanted] > 0).all()


@pytest.mark.parametrize("sampling", ["log-frequency", "frequency"])
def test_columns_are_drawn_evenly_and_categories_as_asked(sampling: str) -> None:
    conditions, rows = _fitted(sampling=sampling)
    _, wanted = conditions.draw(60_000, torch.Generator().manual_seed(0))
    assert wanted is not None
    found = torch.bincount(wanted, minlength=5) / len(wanted)
    counts = rows[:, [1, 2, 3, 5, 6]].sum(0)
    masses = torch.log(counts + 1) if sampling == "log-frequency" else counts
    expected = torch.cat([masses[:3] / masses[:3].sum(), masses[3:] / masses[3:].sum()]) / 2
    assert torch.allclose(found, expected, atol=0.01)


def test_free_sampling_asks_as_often_as_the_table_has_it() -> None:
    conditions, rows = _fitted()
    wanted = conditions.natural(60_000, torch.Generator().manual_seed(0))
    assert wanted is not None
    found = torch.bincount(wanted, minlength=5) / len(wanted)
    counts = rows[:, [1, 2, 3, 5, 6]].sum(0)
    expected = torch.cat([counts[:3] / counts[:3].sum(), counts[3:] / counts[3:].sum()]) / 2
    assert torch.allclose(found, expected, atol=0.01)


def test_all_rows_of_a_category_are_drawn() -> None:
    conditions, rows = _fitted(300)
    drawn, wanted = conditions.draw(20_000, torch.Generator().manual_seed(0))
    assert wanted is not None
    for category, position in enumerate(conditions.positions.tolist()):
        holding = rows[:, position].nonzero()[:, 0]
        assert torch.equal(drawn[wanted == category].unique(), holding)


def test_vector_and_cross_entropy() -> None:
    conditions, _ = _fitted()
    wanted = torch.tensor([0, 2, 4, 3])
    assert torch.equal(conditions.vector(wanted, 4), torch.eye(5)[wanted])
    logits = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    by_hand = torch.stack(
        [
            F.cross_entropy(logits[0, 1:4], torch.tensor(0)),
            F.cross_entropy(logits[1, 1:4], torch.tensor(2)),
            F.cross_entropy(logits[2, 5:7], torch.tensor(1)),
            F.cross_entropy(logits[3, 5:7], torch.tensor(0)),
        ]
    ).mean()
    assert torch.allclose(conditions.cross_entropy(logits, wanted), by_hand)


def test_missed_finds_rows_that_show_another_category_of_the_column() -> None:
    conditions, _ = _fitted()
    made = torch.zeros(3, 8)
    made[0, 2] = made[1, 6] = made[2, 1] = 0.8
    made[:, 5] += 0.1
    assert conditions.missed(made, torch.tensor([1, 4, 1])).tolist() == [2]


def test_rarest_known_category() -> None:
    conditions, rows = _fitted()
    known = Encoded(rows.numpy(), np.ones((len(rows), 2), bool))
    observed = np.zeros((len(rows), 8), bool)
    observed[::2, 1:4] = True
    observed[::3, 5:7] = True
    found = conditions.rarest(known, observed)
    counts = conditions.counts.numpy()
    for row in range(200):
        held = [
            category
            for category, position in enumerate([1, 2, 3, 5, 6])
            if observed[row, position] and rows[row, position] == 1
        ]
        assert found[row] == min(held, key=lambda category: counts[category], default=-1)


def test_without_columns_there_are_no_conditions() -> None:
    conditions = Conditions([], CPU)
    conditions.fit(_rows(50))
    drawn, wanted = conditions.draw(500, torch.Generator().manual_seed(0))
    assert wanted is None
    assert drawn.min() >= 0
    assert len(drawn.unique()) == 50
    assert conditions.natural(5, torch.Generator()) is None
    assert conditions.vector(None, 3).shape == (3, 0)
    assert conditions.cross_entropy(torch.ones(3, 8), None) == 0
    known = Encoded(np.zeros((4, 8), np.float32), np.ones((4, 2), bool))
    assert (conditions.rarest(known, np.ones((4, 8), bool)) == -1).all()


def test_columns_without_any_cell_ask_for_nothing() -> None:
    rows = _rows(30)
    rows[:, 1:4] = rows[:, 5:7] = 0.0
    conditions = Conditions(SPANS, CPU)
    conditions.fit(rows)
    drawn, wanted = conditions.draw(500, torch.Generator().manual_seed(0))
    assert wanted is None
    assert len(drawn.unique()) == 30
    assert conditions.natural(5, torch.Generator()) is None
    assert (conditions.vector(None, 3) == 0).all()


def test_a_plane_has_a_condition_where_a_row_has_the_category() -> None:
    conditions, rows = _fitted()
    drawn, wanted = conditions.draw(200, torch.Generator().manual_seed(0))
    assert wanted is not None
    plane = conditions.plane(wanted, 200, rows.shape[1])
    assert torch.equal(plane[:, conditions.positions], conditions.vector(wanted, 200))
    assert (plane.sum(1) == 1).all()
    assert ((plane * rows[drawn]).sum(1) == 1).all()
    assert not conditions.plane(None, 5, 8).any()


def _encoded_rows(mixed: Table) -> tuple[Encoder, Encoded]:
    encoder = Encoder(numeric="mode").fit(mixed)
    return encoder, encoder.encode(encoder.raw(mixed.frame))


def test_distances_are_what_they_say(mixed: Table) -> None:
    encoder, rows = _encoded_rows(mixed)
    matcher = Matcher(torch.from_numpy(rows.values[40:]), encoder)
    observed = np.random.default_rng(0).random((40, len(encoder.columns))) < 0.5
    fast = matcher.distances(Encoded(rows.values[:40], observed)).numpy()
    raw = encoder.decode(rows.values)
    slow = np.zeros((40, 80))
    for place, name in enumerate(encoder.columns):
        wanted, there = raw[name][:40, None], raw[name][None, 40:]
        if mixed.schema[name].is_categorical:
            gap = (wanted != there).astype(float)
        else:
            gap = 0.5 * ((wanted - there) / raw[name][40:].std()) ** 2
        slow += gap * observed[:, place, None]
    # equal up to a constant for each row
    assert np.allclose(fast - fast[:, :1], slow - slow[:, :1], atol=1e-3)


def test_a_candidate_that_agrees_is_taken(mixed: Table) -> None:
    encoder, rows = _encoded_rows(mixed)
    matcher = Matcher(torch.from_numpy(rows.values), encoder, neighbours=1)
    drawn = matcher.draw(rows, torch.Generator().manual_seed(0))
    same = (drawn == torch.from_numpy(rows.values)).all(1)
    assert same.float().mean() > 0.95


def test_of_equally_good_candidates_all_are_taken(mixed: Table) -> None:
    encoder, rows = _encoded_rows(mixed)
    city = encoder.columns.index("city")
    observed = np.zeros((2000, len(encoder.columns)), bool)
    observed[:, city] = True
    known = Encoded(np.repeat(rows.values[:1], 2000, axis=0), observed)
    drawn = Matcher(torch.from_numpy(rows.values), encoder).draw(known, torch.Generator())
    codes = encoder.decode(drawn.numpy())["city"]
    wanted = encoder.decode(rows.values[:1])["city"][0]
    assert (codes == wanted).all()
    holding = (encoder.decode(rows.values)["city"] == wanted).sum()
    assert len(drawn.unique(dim=0)) == holding


def test_nothing_known_takes_any(mixed: Table) -> None:
    encoder, rows = _encoded_rows(mixed)
    known = Encoded(rows.values[:1].repeat(3000, 0), np.zeros((3000, len(encoder.columns)), bool))
    drawn = Matcher(torch.from_numpy(rows.values), encoder).draw(known, torch.Generator())
    assert len(drawn.unique(dim=0)) == len(np.unique(rows.values, axis=0))


def test_categories_that_never_occurred_are_no_matter(mixed: Table) -> None:
    rows = np.flatnonzero(mixed.frame["grade"] != "mid")
    encoder, known = _encoded_rows(mixed.take(rows))
    matcher = Matcher(torch.from_numpy(known.values), encoder, neighbours=1)
    drawn = matcher.draw(known, torch.Generator().manual_seed(0))
    agree = encoder.decode(drawn.numpy())["grade"] == encoder.decode(known.values)["grade"]
    assert agree.mean() > 0.95
    assert set(encoder.categories("grade")) == {"low", "high"}


def test_joint_gap_sees_means_and_relations() -> None:
    rng = np.random.default_rng(0)
    real = rng.multivariate_normal([1, 2, 3], [[1, 0.9, 0], [0.9, 1, 0], [0, 0, 4]], 4000)
    rows = torch.from_numpy(real).float()
    assert joint_gap(rows, rows) == pytest.approx(0, abs=1e-3)
    fresh = torch.from_numpy(
        rng.multivariate_normal([1, 2, 3], [[1, 0.9, 0], [0.9, 1, 0], [0, 0, 4]], 4000)
    ).float()
    shuffled = rows.clone()
    shuffled[:, 0] = rows[torch.randperm(4000, generator=torch.Generator().manual_seed(0)), 0]
    # two of nine products are off by 0.9
    assert joint_gap(rows, shuffled) == pytest.approx(np.sqrt(2 * 0.81 / 9), rel=0.1)
    assert joint_gap(rows, fresh) < 0.1
    assert joint_gap(rows, rows + torch.tensor([0.5, 0, 0])) > 0.2


def test_settle_gives_batch_normalisation_the_statistics_at_hand() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    inputs = torch.randn(500, 3) * 5 + 2
    settle(network, inputs)
    assert not network.training
    outputs = network(inputs)
    assert torch.allclose(outputs.mean(0), torch.zeros(4), atol=1e-4)
    assert torch.allclose(outputs.std(0), torch.ones(4), atol=1e-2)


def test_the_average_of_the_weights_generates(
    mixed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    averages: list[EMA] = []
    monkeypatch.setattr(
        "fedmend.generate.adversarial.EMA",
        lambda *given, **how: averages.append(EMA(*given, **how)) or averages[-1],
    )
    model = CTGAN(epochs=2, batch_size=20, hidden=16, device="cpu").fit(mixed)
    found, wanted = model.modules_["generator"].state_dict(), averages[0].average.state_dict()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def test_gaps_do_not_show_in_what_is_learnt() -> None:
    """A column whose cells are missing, and another that says where, keep their distributions."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 600)
    size = np.where(group == 0, -3.0, 3.0) + rng.normal(size=600) * 0.3
    size[rng.random(600) < np.where(group == 0, 0.7, 0.1)] = np.nan
    table = Table(np.arange(600), {"size": size, "group": pd.Series(group).map({0: "a", 1: "b"})})
    made = CTGAN(
        epochs=70, batch_size=100, hidden=64, latent=8, lr=1e-3, average=0.98, device="cpu"
    ).fit(table)
    frame = made.sample(1000, seed=0).frame
    assert abs((frame["group"] == "a").mean() - (group == 0).mean()) < 0.1
    # of the 300 rows of group a only 90 show their size
    assert abs((frame["size"] < 0).mean() - (group == 0).mean()) < 0.15


@pytest.mark.parametrize("name", ["ctgan", "ctabgan", "tablegan"])
def test_made_rows_are_judged_with_the_gaps_of_real_ones(
    name: str, gappy: Table, small: Callable[..., Generator], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    for net, method in ((PackedCritic, "forward"), (SquareCritic, "features")):
        judge = getattr(net, method)

        def spy(critic: nn.Module, rows: torch.Tensor, judge: Any = judge) -> torch.Tensor:
            seen.append(rows.detach().clone())
            return judge(critic, rows)

        monkeypatch.setattr(net, method, spy)
    fitted = small(name, epochs=1, **({"pac": 1} if name == "ctgan" else {})).fit(gappy)
    # CTGAN's critic judges both at once, made rows first
    judged = seen[0].chunk(2)[::-1] if name == "ctgan" else seen[:2]
    real, fake = (
        torch.stack([rows[:, span.start : span.stop].sum(1) for span in _categories(fitted)], 1)
        for rows in judged
    )
    missing = real == 0  # an observed category has a one
    assert 0.1 < missing.float().mean() < 0.5
    assert torch.equal(missing, fake == 0)
    assert torch.allclose(fake[~missing], torch.ones(1), atol=1e-4)


def _categories(fitted: Generator) -> list[Span]:
    return [span for span in fitted.encoder_.spans if span.activation == "softmax"]


def test_training_stops_where_nothing_gets_better(mixed: Table) -> None:
    generator = CTGAN(epochs=400, batch_size=20, hidden=8, latent=4, lr=1e-12, patience=3)
    history = generator.set_params(device="cpu").fit(mixed).history_
    assert history.stopped_early
    assert history.steps < 400 * 6
    assert history.best_step is not None
