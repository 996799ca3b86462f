from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.generate import Generator
from fedmend.generate.adversarial import joint_gap, settle
from fedmend.generate.convolutional import SquareCritic
from fedmend.generate.ctgan import CTGAN, PackedCritic
from fedmend.generate.encoder import Span
from fedmend.generate.training import EMA


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


def test_all_mistakes_in_one_message(mixed: Table) -> None:
    with pytest.raises(ConfigError) as raised:
        CTGAN(latent=0, pac=0, average=1.0, sampling="even", patience=-1).fit(mixed)
    for name in ("latent=0", "pac=0", "average=1.0", "sampling='even'", "patience=-1"):
        assert name in str(raised.value)


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
