from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedmend.generate.adversarial import Conditions
from fedmend.generate.encoder import Encoded, Span

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
