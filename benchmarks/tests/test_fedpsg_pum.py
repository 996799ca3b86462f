"""The benchmark of FedPSG-PUM: its scenario, references and scores, and a small run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import f1_score, mean_squared_error, r2_score

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend_bench.completion.scores import REFERENCES, reference, scores, tear_table
from fedmend_bench.completion.table import _bars, run


@pytest.fixture(scope="module")
def table() -> Table:
    rng = np.random.default_rng(0)
    n = 400
    base = rng.normal(size=n)
    frame = pd.DataFrame({f"n{i}": base + 0.5 * rng.normal(size=n) for i in range(4)})
    for i in range(4):
        frame[f"c{i}"] = np.where(base + 0.5 * rng.normal(size=n) > 0, "p", "q")
        frame.loc[rng.choice(n, 30, replace=False), f"c{i}"] = "r"
    frame["y"] = np.where(base > 0, "yes", "no")
    return Table(np.arange(n), frame, label="y")


def test_scenario(table: Table) -> None:
    case = tear_table(table, 0.4, rows=300, test=100, seed=1)
    assert len(case.missing) == 120
    assert len(case.known) == 180
    assert sorted([*case.a.feature_names, *case.b.feature_names]) == sorted(table.feature_names)
    assert len(case.b.feature_names) == 4
    last = tear_table(table, 0.4, rows=300, test=100, seed=1, where="last")
    assert last.missing.tolist() == list(range(180, 300))
    fed = case.federation()
    assert fed.alignment.aligned == 180
    assert fed.alignment.unaligned == {"a": 120, "b": 0}
    assert fed.on("test").alignment.aligned == 100


def test_scores_are_those_of_scikit_learn(table: Table) -> None:
    case = tear_table(table, 0.4, rows=300, test=100, seed=1)
    guess = reference("knn", case)
    found = scores(case, guess)
    truth = case.b.frame.iloc[case.missing].reset_index(drop=True)
    numbers = [name for name in case.columns if name.startswith("n")]
    words = [name for name in case.columns if name.startswith("c")]
    scale = case.b.frame[numbers].std(ddof=0)
    left, right = truth[numbers] / scale, guess[numbers] / scale
    assert found["rmse"] == pytest.approx(np.sqrt(mean_squared_error(left, right)))
    assert found["r2"] == pytest.approx(np.mean([r2_score(left[c], right[c]) for c in numbers]))
    f1 = [f1_score(truth[c], guess[c], average="macro") for c in words]
    assert found["macro_f1"] == pytest.approx(np.mean(f1))
    assert found["accuracy"] == pytest.approx((truth[words] == guess[words]).mean().mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES[1:])
def test_references_beat_the_mean(table: Table, name: str) -> None:
    case = tear_table(table, 0.4, rows=300, test=100, seed=1)
    blind, seeing = (scores(case, reference(each, case)) for each in ("mean/mode", name))
    assert seeing["rmse"] < 0.9 * blind["rmse"]
    assert seeing["accuracy"] > blind["accuracy"] + 0.05


SMALL: dict[str, Any] = {
    "data": "bank", "rows": 300, "test": 100, "shares": 0.5, "generator_epochs": 1, "epochs": 2,
    "settings": {"tree": {"trees": 5}},
}  # fmt: skip


@pytest.mark.slow
def test_a_small_run(table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedmend_bench.completion.runs.datasets.load", lambda name: table)
    options = {**SMALL, "references": ["mean/mode", "knn"], "folder": str(tmp_path)}
    result = run(**options)
    methods = [row["method"] for row in result.rows]
    assert methods[:4] == [
        "FedPSG-PUM", "downstream: FedPSG-PUM", "paper()", "downstream: paper()",
    ]  # fmt: skip
    assert methods[9:] == ["mean/mode", "knn", "vae alone"]
    assert sum(name.startswith("downstream: ") for name in methods) == 7
    by_name: dict[str, dict[str, Any]] = {row["method"]: row for row in result.rows}
    assert by_name["FedPSG-PUM"]["rmse"] < by_name["mean/mode"]["rmse"]
    assert by_name["FedPSG-PUM"]["mb"] > 0
    assert 0 <= by_name["downstream: oracle"]["auc"] <= 1
    assert {bar.name.split(": ")[0] for bar in result.bars} == {"bank, 0.5 missing"}
    assert len(result.bars) == 8
    # what is kept is not measured again
    monkeypatch.delattr("fedmend_bench.completion.runs.datasets.load")
    assert run(**options).rows == result.rows


@pytest.mark.slow
def test_several_processes_and_no_training(tmp_path: Path) -> None:
    """Spawned processes load a bundled table; one that cannot be torn is a line of its own."""
    options = {**SMALL, "data": ["breast-cancer", "letters"], "references": "knn,mean/mode"}
    result = run(**options, parts=(), generators=(), trainings=0, processes=2, folder=str(tmp_path))
    by_data: dict[str, list[dict[str, Any]]] = {}
    for row in result.rows:
        by_data.setdefault(row["data"], []).append(row)
    assert [row["method"] for row in by_data["breast-cancer"]] == ["knn", "mean/mode"]
    assert "letters" in by_data["letters"][0]["failed"]
    kept = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert len(kept) == 2, "what failed is tried anew"


@pytest.mark.parametrize("name", ["gain", pytest.param("vfgain", marks=pytest.mark.slow)])
def test_generators_that_count_steps_are_measured_alone(
    name: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmend_bench.completion.runs.datasets.load", lambda name: table)
    rows = run(**SMALL, parts=(), references="mean/mode", generators=name, trainings=0).rows
    assert [row["method"] for row in rows] == ["mean/mode", f"{name} alone"]
    assert rows[1]["rmse"] > rows[0]["rmse"] > 0


def test_bars_compare_the_seeds_that_both_have() -> None:
    facts = {"data": "bank", "where": "random", "missing": 0.5}
    lines = [
        facts | {"seed": seed, "method": method, "rmse": value}
        for method, values in {"FedPSG-PUM": [0.5, 0.6, 0.9], "knn": [0.4, 0.8]}.items()
        for seed, value in enumerate(values)
    ]
    (bar,) = _bars(pd.DataFrame(lines))
    assert bar.name == "bank, 0.5 missing: RMSE at most knn's (in the clear) (2 seeds)"
    assert (bar.value, bar.target, bar.holds) == (pytest.approx(0.55), "<= 0.6000", True)


def test_of_the_last_rows_only_what_is_as_private_is_a_bar() -> None:
    values = {"FedPSG-PUM": 0.7, "mean/mode": 0.6, "knn": 0.5, "downstream: mean": None}
    lines = [
        {"data": "bank", "where": where, "missing": 0.5, "seed": 0, "method": method, "rmse": value}
        for where in ("last", "random")
        for method, value in values.items()
    ]
    found = {bar.name: bar.holds for bar in _bars(pd.DataFrame(lines))}
    assert found == {
        "bank, 0.5 missing at the end: RMSE at most mean/mode's (1 seeds)": False,
        "bank, 0.5 missing: RMSE at most mean/mode's (1 seeds)": False,
        "bank, 0.5 missing: RMSE at most knn's (in the clear) (1 seeds)": False,
    }


@pytest.mark.parametrize(
    "options",
    [
        {"shares": 1.5}, {"where": "middle"}, {"parts": "some"}, {"data": ""}, {"processes": 0},
        {"parts": (), "generators": (), "references": ()}, {"references": "luck"},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        run(**options)
