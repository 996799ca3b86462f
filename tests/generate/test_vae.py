from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmend.data.table import Table
from fedmend.generate.vae import VAE


@pytest.fixture(scope="module")
def table() -> Table:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 600)
    return Table(
        np.arange(600),
        {
            "x": np.array([-4.0, 0.0, 5.0])[group] + rng.normal(size=600) * 0.5,
            "group": np.array(["a", "b", "c"])[group],
        },
    )


@pytest.fixture(scope="module")
def fitted(table: Table) -> VAE:
    torch.set_num_threads(1)
    return VAE(epochs=150, latent=4, hidden=(64, 64), patience=5, device="cpu").fit(table)


def test_groups_and_their_values_are_learnt(fitted: VAE, table: Table) -> None:
    made = fitted.sample(2000, seed=0).frame
    shares = made["group"].value_counts(normalize=True)
    assert (shares - table.frame["group"].value_counts(normalize=True)).abs().max() < 0.08
    for name, centre in (("a", -4), ("b", 0), ("c", 5)):
        assert abs(made.loc[made["group"] == name, "x"].median() - centre) < 0.6


def test_known_columns_steer_the_others(fitted: VAE) -> None:
    made = fitted.sample(300, given={"group": ["a", "b", "c"] * 100}, seed=0).frame
    centres = made.groupby("group")["x"].median()
    assert np.allclose(centres[["a", "b", "c"]], [-4, 0, 5], atol=0.8)
    back = fitted.sample(given={"x": [-4.0, 0.0, 5.0] * 50}, seed=0).frame
    assert (back["group"] == ["a", "b", "c"] * 50).mean() > 0.9


def test_candidates_are_weighed_by_likelihood(fitted: VAE, table: Table) -> None:
    encoder = fitted.encoder_
    known = encoder.encode(encoder.raw(table.frame.iloc[:7]))
    known.observed[3, 0] = False
    values = torch.from_numpy(known.values)
    observed = torch.from_numpy(encoder.spread(known.observed))
    pool = torch.randn(5, fitted.latent)
    with torch.no_grad():
        fast = fitted._likelihood(pool, values, observed)
        slow = torch.stack(
            [-fitted._misfit(code.expand(7, -1), values, observed) for code in pool], 1
        )
    # equal up to a constant for each row
    assert torch.allclose(fast - fast[:, :1], slow - slow[:, :1], rtol=1e-3, atol=1e-2)


def test_the_search_stays_near_the_prior(fitted: VAE, table: Table) -> None:
    encoder = fitted.encoder_
    known = encoder.encode(encoder.raw(table.frame.iloc[:200]))
    known.observed[:] = False
    stream = torch.Generator().manual_seed(0)
    free = fitted._search(known, stream)  # nothing known: only the prior draws
    assert free.norm(dim=1).mean() < 0.95 * np.sqrt(fitted.latent)
    known.observed[:, 0] = True
    values = torch.from_numpy(known.values)
    observed = torch.from_numpy(encoder.spread(known.observed))
    code = fitted._search(known, stream)
    pool = torch.randn(200, fitted.latent, generator=stream)
    with torch.no_grad():
        met, any_code = (fitted._misfit(z, values, observed).mean() for z in (code, pool))
    assert met < any_code
    assert code.norm(dim=1).mean() < 1.5 * np.sqrt(fitted.latent)
