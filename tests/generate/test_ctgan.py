from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from fedmend.data.table import Table
from fedmend.generate import load
from fedmend.generate.ctgan import CTGAN, PackedCritic


@pytest.fixture(scope="module")
def table() -> Table:
    rng = np.random.default_rng(0)
    group = rng.choice(3, 600, p=[0.5, 0.3, 0.2])
    flag = (group > 0) ^ (rng.random(600) < 0.05)
    return Table(
        np.arange(600),
        {
            "x": np.array([-4.0, 0.0, 5.0])[group] + rng.normal(size=600) * 0.5,
            "group": np.array(["a", "b", "c"])[group],
            "flag": np.where(flag, "yes", "no"),
        },
    )


@pytest.fixture(scope="module")
def fitted(table: Table) -> CTGAN:
    torch.set_num_threads(1)
    return CTGAN(
        epochs=120,
        batch_size=100,
        hidden=64,
        latent=8,
        lr=1e-3,
        average=0.98,
        candidates=2000,
        device="cpu",
    ).fit(table)


def test_the_penaltys_gradient_is_autograds() -> None:
    critic = PackedCritic(12, 8, 0.0).double()
    packs = torch.randn(9, 12, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(critic(packs).sum(), packs, create_graph=True)
    assert torch.allclose(critic.gradient(packs), expected)
    # and so is what the penalty teaches the weights
    first = torch.autograd.grad((expected.norm(dim=1) - 1).square().mean(), _weights(critic))
    closed = (critic.gradient(packs).norm(dim=1) - 1).square().mean()
    second = torch.autograd.grad(closed, _weights(critic))
    for one, two in zip(first, second, strict=True):
        assert torch.allclose(one, two)


def _weights(critic: PackedCritic) -> list[torch.Tensor]:
    return [critic.first.weight, critic.second.weight, critic.last.weight]


def test_the_gradient_drops_what_dropout_drops() -> None:
    stream = torch.Generator().manual_seed(3)
    critic = PackedCritic(6, 50, 0.5, stream)
    packs = torch.randn(20, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(critic(packs).sum(), packs)
    stream.manual_seed(3)
    assert torch.allclose(critic.gradient(packs), expected, atol=1e-6)


def test_groups_and_their_values_are_learnt(fitted: CTGAN, table: Table) -> None:
    made = fitted.sample(2000, seed=0).frame
    shares = made["group"].value_counts(normalize=True)
    assert (shares - table.frame["group"].value_counts(normalize=True)).abs().max() < 0.08
    for name, centre in (("a", -4), ("b", 0), ("c", 5)):
        assert abs(made.loc[made["group"] == name, "x"].median() - centre) < 0.8
    agree = (made["flag"] == "yes") == (made["group"] != "a")
    assert agree.mean() > 0.85


def test_one_category_is_asked_for_by_the_conditional_vector(fitted: CTGAN) -> None:
    encoder = fitted.encoder_
    wanted = encoder.encode(encoder.raw(pd.DataFrame({"group": ["c", "a"] * 150})))
    made = encoder.decode(fitted._generate(300, wanted, torch.Generator().manual_seed(0)))
    # before anything is pasted: the network itself makes the rare category
    assert np.array_equal(made["group"], encoder.decode(wanted.values)["group"])
    medians = pd.Series(made["x"]).groupby(made["group"]).median()
    assert np.allclose(medians, [-4, 5], atol=0.8)
    rows = pd.DataFrame(made).round(6)
    assert len(rows.drop_duplicates()) > 290


def test_numbers_and_several_columns_are_matched(fitted: CTGAN) -> None:
    back = fitted.sample(given={"x": [-4.0, 0.0, 5.0] * 50}, seed=0).frame
    assert (back["group"] == ["a", "b", "c"] * 50).mean() > 0.8
    both = fitted.sample(200, given={"group": "b", "flag": "no"}, seed=0).frame
    assert set(both["group"]) == {"b"}
    assert set(both["flag"]) == {"no"}
    assert both["x"].between(-2, 2).mean() > 0.6
    assert both["x"].nunique() > 10


def test_rows_that_know_different_columns_are_filled_each_by_its_own(fitted: CTGAN) -> None:
    given = pd.DataFrame(
        {
            "x": [5.0, np.nan, np.nan, -4.0] * 25,
            "group": [None, "c", None, "a"] * 25,
        }
    )
    made = fitted.sample(given=given, seed=1).frame
    assert (made["x"].iloc[::4] == 5.0).all()
    assert (made["group"].iloc[1::4] == "c").all()
    assert made["x"].iloc[1::4].median() > 3
    assert (made["group"].iloc[::4] == "c").mean() > 0.6
    assert set(made["group"].iloc[2::4]) >= {"a", "b"}


def test_gaps_take_the_mean_of_rows_that_agree(fitted: CTGAN, table: Table) -> None:
    holes = Table(
        np.arange(90),
        {"x": [np.nan] * 60 + [5.0] * 30, "group": ["a", "b"] * 30 + [None] * 30},
        schema=table.schema.select(["x", "group"]),
    )
    filled = fitted.impute(holes).frame
    means = filled.iloc[:60].groupby("group")["x"]
    assert np.allclose(means.mean(), [-4, 0], atol=0.8)
    # of the same 50 candidates' worth each: the spread is that of a mean, not of the rows
    assert (means.std() < table.frame.groupby("group")["x"].std()[["a", "b"]]).all()
    assert (filled["group"].iloc[60:] == "c").mean() > 0.8
    drawn = fitted.impute(holes, draws=1).frame
    assert drawn.iloc[:60].groupby("group")["x"].std().mean() > means.std().mean()


def test_a_loaded_one_knows_the_frequencies(fitted: CTGAN, tmp_path) -> None:  # type: ignore[no-untyped-def]
    loaded = load(fitted.save(tmp_path / "ctgan"))
    assert torch.equal(loaded.conditions_.counts, fitted.conditions_.counts)  # type: ignore[attr-defined]
    given = {"group": ["a", "c"], "x": [0.0, 1.0]}
    assert loaded.sample(given=given, seed=0).equals(fitted.sample(given=given, seed=0))


def test_numbers_alone_have_no_conditions(table: Table) -> None:
    numbers = Table(table.ids, {"x": table.frame["x"], "y": table.frame["x"] * 2 + 1})
    generator = CTGAN(epochs=2, batch_size=50, hidden=8, device="cpu").fit(numbers)
    assert generator.conditions_.width == 0
    assert generator.sample(5, given={"x": 1.0}, seed=0).n_rows == 5


def test_a_category_column_that_is_nearly_empty(table: Table) -> None:
    """So that no held-out row shows it."""
    note = pd.Series([None] * table.n_rows, dtype=object)
    note.iloc[:4] = ["x", "y", "x", "y"]
    sparse = Table(table.ids, {"x": table.frame["x"], "note": note})
    generator = CTGAN(epochs=1, batch_size=50, hidden=8, device="cpu").fit(sparse)
    assert set(generator.sample(50, seed=0).frame["note"]) <= {"x", "y"}
