"""`fedmend bench inc` on small data."""

from __future__ import annotations

import numpy as np
import pytest

from fedmend.bench.harness import available, run_bench
from fedmend.bench.inc_crowds import FilterBank
from fedmend.errors import ConfigError


def test_a_bundled_data_set() -> None:
    result = run_bench(
        "inc",
        quick=True,
        options={
            "datasets": "digits",
            "models": "lr",
            "methods": "MJ,EM,InC row,InC product",
            "kinds": "pair-flip",
            "settings": "low-small,high-large",
            "rows": 600,
            "cost": False,
        },
    )
    methods = [row["method"] for row in result.rows]
    assert methods == ["Clean", "MJ", "EM", "InC row", "InC product"]
    ours = result.rows[-1]
    assert ours["high-large corrected"] > result.rows[3]["high-large corrected"]
    assert ours["low-small"] > 0.85
    assert ours["low-small paper"] is None
    assert len(result.bars) == 2
    assert "inc" in available()
    assert "datasets=digits" in result.command


def test_the_cost_of_protection() -> None:
    from fedmend.bench.inc_cost import measure

    rows, bars = measure(rows=300, epochs=2, rounds=1)
    assert [row["method"] for row in rows] == ["Clean", "InC none", "InC masks", "InC he"]
    crossed = {row["method"]: row["MB crossed"] for row in rows}
    assert crossed["InC he"] > crossed["InC masks"] > crossed["Clean"] > 0
    assert [bar.name for bar in bars] == ["cost: InC with masks / Clean", "cost: masks / none"]


@pytest.mark.parametrize(
    ("option", "value"), [("datasets", "leter"), ("methods", "InC"), ("settings", "low")]
)
def test_unknown_names_are_refused(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}: '{value}' is not known.*Mend: all"):
        run_bench("inc", options={"datasets": "digits", "cost": False, option: value})


def test_patch_features_tell_stripes_from_noise() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (80, 3, 32, 16)).astype(np.uint8)
    images[:40] = np.where(np.arange(16) % 4 < 2, 220, 20)
    bank = FilterBank(images, 12, "cpu")
    features = bank.features(images)
    assert features.shape == (80, 24)
    between = np.abs(features[:40].mean(0) - features[40:].mean(0))
    assert (between > 3 * features[40:].std(0)).any()


@pytest.mark.real
@pytest.mark.parametrize("name", ["letter", "covertype", "sensorless", "labelme", "cifar10n"])
def test_the_real_data_sets(name: str) -> None:
    result = run_bench(
        "inc",
        quick=True,
        options={"datasets": name, "models": "lr", "cost": False, "epochs": 2, "rows": 1000},
    )
    assert {row["method"] for row in result.rows} >= {"Clean", "MJ", "EM", "InC product"}
