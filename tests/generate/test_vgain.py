"""VGAIN: the latent code and its price."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from fedmend.data.table import Table
from fedmend.generate.encoder import Encoder
from fedmend.generate.gain import Layout
from fedmend.generate.vgain import VGAIN, VariationalImputer, divergence


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def imputer(mixed: Table) -> VariationalImputer:
    layout = Layout.of(Encoder(numeric="minmax").fit(mixed))
    torch.manual_seed(0)
    return VariationalImputer(layout, latent=5, beta=2.0, hidden=16, blocks=1, dropout=0.0, bins=8)


def test_divergence_is_torchs() -> None:
    torch.manual_seed(1)
    means, logs = torch.randn(2, 7, 4), torch.randn(2, 7, 4) * 0.5
    first, second = (Independent(Normal(m, s.exp()), 1) for m, s in zip(means, logs, strict=True))
    ours = divergence((means[0], logs[0]), (means[1], logs[1]))
    torch.testing.assert_close(ours, kl_divergence(first, second))


def test_the_code_may_know_hidden_cells_in_training_only(imputer: VariationalImputer) -> None:
    layout = imputer.layout
    values = torch.randn(6, layout.width)
    shown = torch.zeros(6, layout.columns)
    seen = torch.ones(6, layout.columns)
    code, cost = imputer.code(values, shown, stream(), seen)
    other, _ = imputer.code(values + 1, shown, stream(), seen)
    assert code.shape == (6, 5)
    assert not torch.allclose(code, other)
    assert cost.item() > 0
    code, cost = imputer.code(values, shown, stream())
    other, _ = imputer.code(values + 1, shown, stream())
    assert torch.equal(code, other)
    assert cost.item() == 0


def test_a_code_that_says_no_more_than_is_shown_is_free(imputer: VariationalImputer) -> None:
    imputer.posterior.load_state_dict(imputer.prior.state_dict())
    layout = imputer.layout
    values, seen = torch.randn(6, layout.width), torch.ones(6, layout.columns)
    _, cost = imputer.code(values, seen, stream(), seen)
    assert cost.item() == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        imputer.prior.head.bias[:5] += 1.0
    _, cost = imputer.code(values, seen, stream(), seen)
    _, log = imputer.prior(values, seen)
    wanted = 2.0 * (0.5 * (-2 * log).exp().sum(1)).mean() / layout.columns
    torch.testing.assert_close(cost, wanted)


@pytest.fixture(scope="module")
def fitted() -> VGAIN:
    return VGAIN(hidden=48, latent=4, steps=600, lr=3e-3, patience=0, device="cpu").fit(
        _clouds(500)
    )


def _clouds(rows: int, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    which = rng.integers(0, 3, rows)
    frame = pd.DataFrame(
        {
            "x": np.array([-4.0, 0.0, 4.0])[which] + rng.normal(size=rows) * 0.5,
            "y": np.array([3.0, -3.0, 3.0])[which] + rng.normal(size=rows) * 0.5,
            "cloud": np.array(["left", "middle", "right"])[which],
        }
    )
    return Table(np.arange(rows), frame)


def test_its_rows_lie_in_the_clouds(fitted: VGAIN) -> None:
    from scipy.stats import ks_2samp

    real, made = _clouds(1500, seed=2).frame, fitted.sample(1500, seed=0).frame
    for name in ("x", "y"):
        assert ks_2samp(real[name], made[name]).statistic < 0.1
    centres = made["cloud"].map({"left": -4.0, "middle": 0.0, "right": 4.0})
    assert ((made["x"] - centres).abs() < 2).mean() > 0.9
    assert made["cloud"].value_counts(normalize=True).min() > 0.2


def test_several_codes_come_closer_than_one(fitted: VGAIN) -> None:
    table = _clouds(300, seed=3)
    frame = table.frame.copy()
    frame.loc[::2, "y"] = np.nan
    holes = Table(table.ids, frame, schema=table.schema)
    truth = table.frame["y"][::2]

    def error(draws: int | None) -> float:
        filled = fitted.impute(holes, draws=draws).frame["y"][::2]
        return float(np.sqrt(((filled - truth) ** 2).mean()))

    assert error(20) < error(1)
    assert error(None) < error(1)  # several are the default
    assert error(20) < 0.8 < table.frame["y"].std()
