from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.generate.tablegan import TableGAN


@pytest.fixture(scope="module")
def table() -> Table:
    rng = np.random.default_rng(0)
    group = rng.choice(3, 600, p=[0.5, 0.3, 0.2])
    return Table(
        np.arange(600),
        {
            "x": np.array([-4.0, 0.0, 5.0])[group] + rng.normal(size=600) * 0.5,
            "zeros": np.where(rng.random(600) < 0.6, 0.0, rng.exponential(50, 600)),
            "group": np.array(["a", "b", "c"])[group],
        },
        label="group",
    )


@pytest.fixture(scope="module")
def fitted(table: Table) -> TableGAN:
    torch.set_num_threads(1)
    return TableGAN(
        epochs=40,
        batch_size=100,
        channels=16,
        latent=8,
        lr=2e-3,
        average=0.97,
        candidates=2000,
        device="cpu",
    ).fit(table)


def test_labels_go_with_their_rows(fitted: TableGAN, table: Table) -> None:
    made = fitted.sample(2000, seed=0).frame
    shares = made["group"].value_counts(normalize=True)
    assert (shares - table.frame["group"].value_counts(normalize=True)).abs().max() < 0.1
    for name, centre in (("a", -4), ("b", 0), ("c", 5)):
        assert abs(made.loc[made["group"] == name, "x"].median() - centre) < 1.2


def test_a_value_many_rows_share_comes_out_exactly(fitted: TableGAN) -> None:
    made = fitted.sample(2000, seed=0).frame
    assert abs((made["zeros"] == 0).mean() - 0.6) < 0.15


def test_known_columns_steer_the_others(fitted: TableGAN) -> None:
    made = fitted.sample(300, given={"group": ["a", "b", "c"] * 100}, seed=0).frame
    medians = made.groupby("group")["x"].median()
    assert np.allclose(medians[["a", "b", "c"]], [-4, 0, 5], atol=1.2)
    assert made["x"].nunique() > 100


def test_slack_lets_the_information_loss_be_content() -> None:
    real = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    strict, content = TableGAN(), TableGAN(mean_slack=100.0, deviation_slack=100.0)
    assert strict._information(real, real + 1) > 2
    assert content._information(real, real + 1) == 0


def test_the_classifiers_target(table: Table) -> None:
    with pytest.raises(ConfigError, match="did you mean 'zeros'"):
        TableGAN(target="zero", device="cpu").fit(table)
    small = {"epochs": 1, "channels": 4, "device": "cpu"}
    generator = TableGAN(**small).fit(table)
    assert generator._target().spans[0].column == "group"
    assert TableGAN(target="x", **small).fit(table)._target().spans[0].column == "x"
    assert not TableGAN(**small).fit(table.with_label(None))._target().is_used


def test_the_published_form(table: Table) -> None:
    published = TableGAN.paper(epochs=1, device="cpu", channels=8).fit(table)
    settings = published._optimizer(torch.nn.Linear(1, 1)).defaults
    assert (settings["lr"], settings["betas"], settings["eps"]) == (2e-4, (0.5, 0.999), 1e-8)
    assert {span.activation for span in published.encoder_.of("x")} == {"tanh"}
    assert published.sample(5, seed=0).schema == table.schema
