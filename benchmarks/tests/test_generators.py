"""The benchmark's measures against independent references, and one small run of it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ks_2samp

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend_bench.generators import peers as generator_peers
from fedmend_bench.generators.data import gap_measure, prepared
from fedmend_bench.generators.imputers import BASELINES
from fedmend_bench.generators.scores import (
    column_shapes,
    copying,
    imputation_error,
    pair_trends,
    train_synthetic_test_real,
)
from fedmend_bench.generators.table import bars_of, means, quick_bars, run


def mixed_frame(rows: int, seed: int) -> pd.DataFrame:
    """Columns that hang together."""
    rng = np.random.default_rng(seed)
    level = rng.normal(size=rows)
    city = np.array(["Oslo", "Rome", "Lima"])[np.clip((level + 1.5).astype(int), 0, 2)]
    age = np.clip(40 + 12 * level + rng.normal(size=rows) * 5, 18, 90).astype("int64")
    income = np.round(30_000 + 9_000 * level + rng.normal(size=rows) * 500, 2)
    default = np.where(level + rng.normal(size=rows) * 0.3 > 0.5, "yes", "no")
    member = rng.random(rows) < 0.3
    return pd.DataFrame(
        {"income": income, "age": age, "city": city, "member": member, "default": default}
    )


@pytest.fixture
def tables() -> tuple[Table, ...]:
    return tuple(
        Table(np.arange(600), mixed_frame(600, seed=seed), label="default") for seed in (0, 1)
    )


def shuffled(table: Table) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return table.frame.apply(lambda column: rng.permutation(column.to_numpy()))


def test_column_shapes_follow_the_definition(tables: tuple[Table, Table]) -> None:
    first, second = tables
    expected = [
        1 - ks_2samp(first.frame[name], second.frame[name]).statistic for name in ("income", "age")
    ]
    for name in ("city", "member", "default"):
        ours, theirs = (t.frame[name].value_counts(normalize=True) for t in tables)
        expected.append(1 - 0.5 * (ours - theirs).abs().sum())
    assert column_shapes(first.frame, second.frame, first.schema) == pytest.approx(
        np.mean(expected)
    )
    assert column_shapes(first.frame, first.frame, first.schema) == 1


def test_pair_trends_see_what_shuffling_breaks(tables: tuple[Table, Table]) -> None:
    first, second = tables
    schema = first.schema.select(["income", "age"])
    similarity = 1 - 0.5 * abs(
        np.corrcoef(first.frame["income"], first.frame["age"])[0, 1]
        - np.corrcoef(second.frame["income"], second.frame["age"])[0, 1]
    )
    assert pair_trends(first.frame, second.frame, schema) == pytest.approx(similarity)
    schema = first.schema.select(["city", "member"])
    ours, theirs = (pd.crosstab(t.frame["city"], t.frame["member"], normalize=True) for t in tables)
    expected = 1 - 0.5 * float((ours - theirs).abs().to_numpy().sum())
    assert pair_trends(first.frame, second.frame, schema) == pytest.approx(expected)
    broken = shuffled(first)
    assert column_shapes(first.frame, broken, first.schema) == 1
    assert pair_trends(first.frame, broken, first.schema) < 0.9


def test_training_on_shuffled_rows_is_of_no_use(tables: tuple[Table, Table]) -> None:
    first, second = tables
    args = (second.frame, "default", first.schema)
    assert train_synthetic_test_real(first.frame, *args) > 0.9
    assert abs(train_synthetic_test_real(shuffled(first), *args) - 0.5) < 0.2
    assert np.isnan(train_synthetic_test_real(first.frame.assign(default="no"), *args))


def test_copies_are_found_out(tables: tuple[Table, Table]) -> None:
    first, second = tables
    third = Table(np.arange(600), mixed_frame(600, seed=2)).frame
    honest = copying(first.frame, second.frame, third, first.schema)
    assert 0.8 < honest["dcr"] < 1.25
    assert 0.4 < honest["dcr share"] < 0.6
    assert honest["copies"] < 0.05
    thief = copying(first.frame, second.frame, first.frame.sample(frac=1), first.schema)
    assert thief["dcr"] == pytest.approx(0, abs=1e-3)
    assert thief["copies"] == 1
    assert thief["dcr share"] > 0.95


def test_imputation_error_counts_gaps_only(tables: tuple[Table, Table]) -> None:
    truth = tables[0].frame
    schema = tables[0].schema
    gaps = np.zeros(truth.shape, bool)
    gaps[:100, 0] = gaps[:50, 2] = True
    filled = truth.copy()
    filled.loc[:99, "income"] += truth["income"].std(ddof=0)
    filled.loc[:24, "city"] = "Atlantis"
    filled.loc[300:, "age"] = 0
    error = imputation_error(truth, filled, gaps, schema)
    assert error == {"rmse": pytest.approx(1.0), "accuracy": pytest.approx(0.5)}


def test_gaps_are_in_rows_that_nobody_learns_from() -> None:
    data = prepared("breast-cancer", 200, seed=3)
    whole = data.whole("block")
    assert not set(data.train.ids) & set(whole.ids)
    block = data.gaps["block"]
    features = len(whole.names) - 1
    assert (block.sum(axis=1) == features // 2).all()
    assert not block[:, whole.names.index(str(whole.label))].any()
    assert len(np.unique(block, axis=0)) == 5  # other columns in every fifth of the rows
    assert data.gaps["20%"].mean() == pytest.approx(0.2, abs=0.02)
    torn = data.torn("block").frame
    assert (torn.isna().to_numpy() == block).all()


@pytest.mark.parametrize("name", list(BASELINES))
def test_plain_imputers(name: str) -> None:
    mixed = Table(np.arange(120), mixed_frame(120, 0), label="default")
    data = prepared("breast-cancer", 200, seed=3)
    whole = Table(np.arange(500, 560), mixed_frame(60, 1), label="default")
    gaps = {"20%": np.random.default_rng(0).random((60, 5)) < 0.2}
    gappy = replace(data, test=whole, gaps=gaps).torn("20%")
    filled = BASELINES[name](mixed, gappy, 0)
    assert not filled.isna().to_numpy().any()
    for column in gappy.names:
        there = gappy.frame[column].notna().to_numpy()
        same = filled[column].astype(object) == gappy.frame[column].astype(object)
        assert same.to_numpy()[there].all(), column
    if name == "mean":
        hole = int(gappy.frame["age"].isna().to_numpy().argmax())
        assert filled["age"].iloc[hole] == round(mixed.frame["age"].mean())


@pytest.mark.slow
def test_a_small_run() -> None:
    result = run(
        quick=True, datasets="breast-cancer", generators="vae", peers="ctgan CTGAN", rows=200,
        device="cpu", peers_python=sys.executable, imputation=False,
    )  # fmt: skip
    by = {row["method"]: row for row in result.rows}
    assert set(by) == {"real rows", "vae", "ctgan CTGAN"}
    assert by["real rows"]["AUC"] > 0.95
    assert 0 < by["vae"]["shapes"] <= 1
    assert by["vae"]["copies"] == 0  # it is the made rows that are judged
    assert by["vae"]["shapes"] < by["real rows"]["shapes"]
    assert by["vae"]["fit s"] > 0
    assert by["vae"]["fit CPU s"] > 0
    assert "left out" in by["ctgan CTGAN"]["failed"]
    assert [bar.name for bar in result.bars] == ["best fidelity, a fiftieth of the training"]
    json.dumps(result.to_dict())


def test_the_small_size_has_promises_of_its_own() -> None:
    whole = {"shapes": 0.9, "pairs": 0.9}
    table = [{"method": "mean", "20% RMSE": 1.0, "block RMSE": 1.0}]
    table += [{"method": "vgain", "20% RMSE": 0.9, "block RMSE": 1.1} | whole]
    table += [{"method": "vae", "20% RMSE": 0.1, "block RMSE": 0.1, "shapes": 0.5, "pairs": 0.1}]
    assert [bar.holds for bar in quick_bars(table)] == [True, True, False]


def test_options_that_are_not_there() -> None:
    for wrong in ("2000", "0x5", "2000x5x1", "axb"):
        with pytest.raises(ConfigError, match="ROWSxBLOCKS"):
            gap_measure(wrong)
    with pytest.raises(ConfigError, match="did you mean 'tabddpm'"):
        run(generators="tabdpm,vea")
    for wrong in ("", "20x", "20x0", "axb", "1x2x3x4x5"):
        with pytest.raises(ConfigError, match="20x5x50x64"):
            run(forest=wrong)


def test_bars() -> None:
    def row(method: str, **scores: object) -> dict[str, object]:
        base = {"shapes": 0.9, "pairs": 0.8, "AUC": 0.85, "fit s": 10.0, "on": "cuda"}
        return {"data": "adult", "method": method} | base | scores

    gaps = {"20% RMSE": 0.5, "20% acc": 0.8, "block RMSE": 0.6, "block acc": 0.7}
    table = [
        row("real rows", AUC=0.9),
        row("ctgan"),
        row("ctgan CTGAN", shapes=0.95, **{"fit s": 20.0}),
        row("tabddpm", AUC=0.89),
        row("gain", **gaps),
        {"data": "adult", "method": "mean", "20% RMSE": 0.9, "20% acc": 0.5}
        | {"block RMSE": 0.9, "block acc": 0.75},
        {"data": "adult", "method": "ForestDiffusion", "note": "left out"},
    ]
    bars = {bar.name: bar.holds for bar in bars_of(table)}
    assert bars == {
        "adult: fidelity of ctgan": False,
        "adult: seconds to fit ctgan": True,
        "adult: best fidelity, against peers": False,
        "adult: best AUC, against peers": True,
        "adult: RMSE / accuracy of the GAIN family's worst, 20% missing": True,
        "adult: RMSE / accuracy of the GAIN family's worst, block missing": False,
        "adult: AUC of tabddpm": True,
    }


@pytest.mark.slow
def test_a_peer_is_another_process(tmp_path: Path) -> None:
    assert set(generator_peers.found(sys.executable)) <= set(generator_peers.PEERS)
    assert generator_peers.found("/does/not/exist") == []
    job = {"train": "nothing.csv", "discrete": [], "rows": 1, "out": "o.csv", "seed": 0}
    asked = generator_peers.Asked(sys.executable, 60, "1x1")
    failed = generator_peers.measure("ctgan TVAE", asked, job, tmp_path)
    assert "nothing.csv" in failed["error"]


def test_means_over_seeds() -> None:
    rows = [
        {"data": "adult", "method": "vae", "seed": 1, "AUC": 0.8, "on": "cpu"},
        {"data": "adult", "method": "vae", "seed": 2, "AUC": 0.6, "on": "cpu"},
        {"data": "adult", "method": "peer", "seed": 1, "failed": "over 5 s"},
        {"data": "adult", "method": "peer", "seed": 2, "AUC": None, "shapes": 0.5},
    ]
    assert means(rows) == [
        {"data": "adult", "method": "vae", "seeds": 2, "AUC": pytest.approx(0.7), "on": "cpu"},
        {"data": "adult", "method": "peer", "seeds": 1, "shapes": 0.5},
    ]
    assert means(rows[2:3])[0]["failed"] == "over 5 s"


def test_on_a_cpu_its_own_seconds_are_compared() -> None:
    score = {"data": "adult", "shapes": 0.9, "pairs": 0.8, "AUC": 0.8, "on": "cpu, 1 threads"}
    table = [
        score | {"method": "ctgan", "fit s": 9.0, "fit CPU s": 3.0},
        score | {"method": "ctgan CTGAN", "fit s": 8.0, "fit CPU s": 4.0},
    ]
    (bar,) = (bar for bar in bars_of(table) if "seconds" in bar.name)
    assert bar.name == "adult: CPU seconds to fit ctgan"
    assert bar.value == 3.0
    assert bar.holds
