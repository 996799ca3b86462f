from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.generate.tabddpm import TabDDPM


@pytest.fixture(scope="module")
def table() -> Table:
    rng = np.random.default_rng(0)
    group = rng.choice(3, 800, p=[0.5, 0.3, 0.2])
    return Table(
        np.arange(800),
        {
            "x": np.array([-4.0, 0.0, 5.0])[group] + rng.normal(size=800) * 0.5,
            "group": np.array(["a", "b", "c"])[group],
        },
    )


SMALL = {
    "hidden": (64, 64, 64),
    "steps": 900,
    "lr": 5e-3,
    "batch_size": 128,
    "sampling_steps": 25,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def fitted(table: Table) -> TabDDPM:
    torch.set_num_threads(1)
    return TabDDPM(**SMALL).fit(table)


def test_a_known_mixture_is_recovered(fitted: TabDDPM, table: Table) -> None:
    made = fitted.sample(3000, seed=0).frame
    assert ks_2samp(made["x"], table.frame["x"]).statistic < 0.08
    shares = made["group"].value_counts(normalize=True)
    assert (shares - table.frame["group"].value_counts(normalize=True)).abs().max() < 0.06
    for name, centre in (("a", -4), ("b", 0), ("c", 5)):
        assert abs(made.loc[made["group"] == name, "x"].median() - centre) < 0.4


@pytest.mark.parametrize(("condition", "right"), [(0.5, 0.9), (0.0, 0.75)])
def test_known_columns_steer_the_others(
    fitted: TabDDPM, table: Table, condition: float, right: float
) -> None:
    model = fitted if condition else TabDDPM(**SMALL, condition=0.0, resample=3).fit(table)
    made = model.sample(300, given={"group": ["a", "b", "c"] * 100}, seed=0).frame
    centres = made.groupby("group")["x"].median()
    assert np.allclose(centres[["a", "b", "c"]], [-4, 0, 5], atol=0.7)
    back = model.sample(given={"x": [-4.0, 0.0, 5.0] * 50}, seed=0).frame
    assert (back["group"] == ["a", "b", "c"] * 50).mean() > right


def test_bad_parameters(table: Table) -> None:
    with pytest.raises(ConfigError) as caught:
        TabDDPM(sampling_steps=0, resample=0, condition=1.5).fit(table)
    assert len(caught.value.problems) == 3


def test_the_published_form(table: Table) -> None:
    published = TabDDPM.paper(steps=2, hidden=(16, 16), sampling_steps=3)
    assert (published.batch_size, published.levels, published.condition) == (4096, 0, 0.0)
    assert published.fit(table).sample(5, seed=0).schema == table.schema
