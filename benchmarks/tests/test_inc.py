"""`fedmend bench inc` on small data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedmend.errors import ConfigError
from fedmend_bench.harness import available, run_bench
from fedmend_bench.inc.crowds import FilterBank, cifar10n


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
    methods = ["Clean", "MJ", "EM", "InC row", "InC product"]
    accuracy, corrected = result.rows[:5], result.rows[5:]
    assert [row["method"] for row in accuracy] == methods
    assert [row["method"] for row in corrected] == ["Clean (ceiling)", *methods[1:]]
    assert {row["of"] for row in accuracy} == {"accuracy"}
    assert accuracy[-1]["low-small"] > 0.85
    assert accuracy[-1]["low-small, paper"] is None
    ceiling, row_rule, product = corrected[0], corrected[3], corrected[4]
    assert row_rule["high-large"] < product["high-large"] <= ceiling["high-large"] + 0.01
    assert len(result.bars) == 2
    assert "inc" in available()
    assert "datasets=digits" in result.command


def test_a_kept_fleet_is_not_trained_again(tmp_path: Path) -> None:
    options = {
        "datasets": "digits",
        "models": "lr",
        "methods": "MJ,InC product",
        "settings": "low-small",
        "rows": 300,
        "epochs": 2,
        "cost": False,
        "keep": str(tmp_path),
    }
    first = run_bench("inc", quick=True, options=options | {"kinds": "symmetric"})
    (kept,) = tmp_path.iterdir()
    written = kept.read_text("utf-8")
    both = run_bench("inc", quick=True, options=options)
    assert both.rows[: len(first.rows)] == first.rows, "seconds included: taken, not trained"
    assert kept.read_text("utf-8") == written
    assert len(list(tmp_path.iterdir())) == 2, "the other kind of noise has a file of its own"
    other = run_bench("inc", quick=True, options=options | {"epochs": 3, "kinds": "symmetric"})
    assert len(list(tmp_path.iterdir())) == 3, "other settings are another fleet"
    assert other.rows != first.rows


def test_a_corrector_beside_the_tables(tmp_path: Path) -> None:
    options = {
        "datasets": "digits",
        "models": "lr",
        "kinds": "symmetric",
        "settings": "high-large",
        "corrector": "mlp-wide",
        "keep": str(tmp_path),
        "rows": 400,
        "epochs": 6,
        "seeds": 1,
    }
    found = run_bench("inc", quick=True, options=options)
    assert {row["corrector"] for row in found.rows} == {"mlp-wide"}
    assert [(row["of"], row["method"]) for row in found.rows] == [
        ("accuracy", "Clean"),
        ("accuracy", "InC product"),
        ("corrected", "InC product"),
    ]
    clean, ours, corrected = (row["high-large"] for row in found.rows)
    assert min(ours, clean, corrected) > 0.5
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 2, "Clean and InC"
    written = [path.stat().st_mtime_ns for path in kept]
    again = run_bench("inc", quick=True, options=options)
    assert [row["high-large"] for row in again.rows] == [clean, ours, corrected]
    assert [path.stat().st_mtime_ns for path in kept] == written, "taken, not trained"


@pytest.mark.parametrize("network", ["LR", "default"])
def test_the_cost_of_protection(network: str) -> None:
    from fedmend_bench.inc.cost import measure

    rows, bars = measure(200, 2, 1, network)
    assert [row["method"] for row in rows] == ["Clean", "InC none", "InC masks", "InC he"]
    crossed = {row["method"]: row["MB crossed"] for row in rows}
    assert crossed["InC he"] > crossed["InC masks"] > crossed["Clean"] > 0
    assert [bar.name for bar in bars] == [
        f"{network}: InC with masks / Clean",
        f"{network}: masks / none",
    ]


@pytest.mark.parametrize(
    ("option", "value"), [("datasets", "leter"), ("methods", "InC"), ("settings", "low")]
)
def test_unknown_names_are_refused(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}: there is no '{value}': "):
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


@pytest.mark.real
def test_some_of_the_sheets() -> None:
    problem = cifar10n("cpu", rows=40, sheets=1, filters=4)
    assert problem.train.shape == (40, 2 * 2 * 4)
    assert problem.votes.shape == (40, 3)
    assert (problem.votes == problem.y_train[:, None]).mean() > 0.6, "votes belong to the images"
