from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedmend.data.table import Table
from fedmend.generate import Generator
from fedmend.generate.convolutional import SquareCritic
from fedmend.generate.ctabgan import CTABGAN


@pytest.fixture(scope="module")
def table() -> Table:
    rng = np.random.default_rng(0)
    group = rng.choice(3, 600, p=[0.6, 0.3, 0.1])
    debt = np.where(rng.random(600) < 0.4, 0.0, np.round(np.exp(rng.normal(6, 1.2, 600)), 2))
    return Table(
        np.arange(600),
        {
            "x": np.array([-4.0, 0.0, 5.0])[group] + rng.normal(size=600) * 0.5,
            "debt": debt,
            "group": np.array(["a", "b", "c"])[group],
        },
        label="group",
    )


@pytest.fixture(scope="module")
def fitted(table: Table) -> CTABGAN:
    torch.set_num_threads(1)
    return CTABGAN(
        epochs=25,
        batch_size=100,
        channels=16,
        penalty=0.02,
        hidden=32,
        latent=8,
        lr=2e-3,
        average=0.98,
        candidates=2000,
        device="cpu",
    ).fit(table)


def test_groups_and_their_values_are_learnt(fitted: CTABGAN, table: Table) -> None:
    made = fitted.sample(2000, seed=0).frame
    shares = made["group"].value_counts(normalize=True)
    assert (shares - table.frame["group"].value_counts(normalize=True)).abs().max() < 0.1
    for name, centre in (("a", -4), ("b", 0), ("c", 5)):
        assert abs(made.loc[made["group"] == name, "x"].median() - centre) < 1


def test_mixed_columns_have_a_mode_of_their_own_and_a_logarithm(
    fitted: CTABGAN, table: Table
) -> None:
    codec = fitted.encoder_._coded["debt"].codec
    assert codec.centres[codec.scales == 0].tolist() == [0.0]
    assert len(codec.log) == 2
    made = fitted.sample(2000, seed=0).frame["debt"]
    assert abs((made == 0).mean() - 0.4) < 0.15
    real = np.log(table.frame["debt"][table.frame["debt"] > 0])
    assert abs(np.log(made[made > 0]).median() - real.median()) < 0.6


def test_conditions_cover_the_modes_of_numbers(fitted: CTABGAN) -> None:
    covered = {span.column for span in fitted._conditional()}
    assert covered == {"x", "debt", "group"}
    widths = sum(span.stop - span.start for span in fitted._conditional())
    assert fitted.conditions_.width == widths
    # the mode of a number says not all there is to know about it
    whole = fitted._whole_columns()
    assert whole.sum() == 3


def test_the_critic_is_told_the_conditions(
    table: Table, small: Callable[..., Generator], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    features = SquareCritic.features

    def spy(critic: SquareCritic, rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows.detach().clone())
        return features(critic, rows)

    monkeypatch.setattr(SquareCritic, "features", spy)
    small("ctabgan", epochs=1).fit(table)
    real, asked = seen[0].chunk(2, dim=1)
    assert (asked.sum(1) == 1).all()
    assert (asked.sum(0) > 0).sum() > 3
    assert ((real * asked).sum(1) == 1).all()  # real rows were drawn for their conditions
    assert torch.equal(seen[1].chunk(2, dim=1)[1], asked)  # and made rows asked for the same


def test_known_columns_steer_the_others(fitted: CTABGAN) -> None:
    made = fitted.sample(300, given={"group": ["a", "b", "c"] * 100}, seed=0).frame
    medians = made.groupby("group")["x"].median()
    assert np.allclose(medians[["a", "b", "c"]], [-4, 0, 5], atol=1)
    back = fitted.sample(given={"x": [-4.0, 0.0, 5.0] * 50}, seed=0).frame
    assert (back["group"] == ["a", "b", "c"] * 50).mean() > 0.8
