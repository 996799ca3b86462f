"""The benchmark of the whole flow: files as a user would write them, figures as a run leaves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedmend.data import datasets
from fedmend.errors import ConfigError, DatasetAbsent
from fedmend.flow.checks import check_data
from fedmend.flow.config import load_config
from fedmend.methods.recipes import RECIPES
from fedmend_bench.flow import table as flow
from fedmend_bench.flow import world as recipes_world
from fedmend_bench.flow.files import all_lines, single_lines, write_config, write_world
from fedmend_bench.flow.world import BANK, LABELLERS, TELCO, Shape
from fedmend_bench.risa.data import LABELS, PARTNER, Sides

SHAPE = Shape("bundled", 3, rows=200, test=100, overlap=0.3)


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds of scikit-learn's breast-cancer table, which needs no data folder."""

    def load_sides(name: str, seed: int, rows: int, test: int) -> Sides:
        table = datasets.load("breast-cancer")
        order = np.random.default_rng(seed).permutation(len(table))
        parts = []
        for own in (order[:rows], order[rows : rows + test]):
            some = table.take(own)
            half = some.feature_names[:8], some.feature_names[8:12]
            parts.append(
                {LABELS: some.select([*half[0], "diagnosis"]), PARTNER: some.select(half[1])}
            )
        return Sides(name, parts[0], parts[1])

    monkeypatch.setattr(recipes_world.risa_data, "load_sides", load_sides)


def test_the_files_are_the_torn_world(bundled: None, tmp_path: Path) -> None:
    write_world(SHAPE, tmp_path)
    ids = {name: set(pd.read_csv(tmp_path / f"{name}.csv")["customer"]) for name in (BANK, TELCO)}
    assert len(ids[BANK] & ids[TELCO]) == 60
    test = pd.read_csv(tmp_path / "bank-test.csv")
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert dict(zip(test["customer"], test["said"], strict=True)) == truth
    assert not ids[BANK] & set(test["customer"])
    new = pd.read_csv(tmp_path / "new.csv")
    assert "said" not in new and list(new["customer"]) == list(test["customer"])
    wrong = {}
    for name in LABELLERS[1:]:
        votes = pd.read_csv(tmp_path / f"{name}-test.csv").set_index("customer")["said"]
        wrong[name] = np.mean([votes[each] != truth[each] for each in truth])
    assert all(0 < share < 0.3 for share in wrong.values())


def test_every_line_is_a_sound_federation_toml(bundled: None, tmp_path: Path) -> None:
    write_world(SHAPE, tmp_path)
    lines = all_lines()
    assert len({line.slug for line in lines}) == len(lines)
    for line in lines:
        config = load_config(write_config(line, SHAPE, tmp_path), recipe=line.recipe)
        assert [party.name for party in config.party] == list(line.parties)
        assert config.run.seed == 3
    # the tables themselves are the same for all: one look at all of them
    assert check_data(config).problems == []


def test_recipes_that_correct_are_not_among_the_single_methods() -> None:
    single = {line.recipe for line in single_lines()} - {None}
    assert all("correct" not in RECIPES[str(name)].tables for name in single)
    asked = [line.name for line in flow.chosen_lines("recipes")]
    assert asked == [name for name, each in RECIPES.items() if "correct" in each.tables]
    assert next(line.name for line in flow.chosen_lines("oracle,single")) == "oracle"
    with pytest.raises(ConfigError, match="no 'nothing'.*oracle"):
        flow.chosen_lines("nothing")


def result(line: str, seed: int, auc: float, alone: float) -> dict[str, object]:
    return {
        "data": "credit", "line": line, "seed": seed, "auc": auc, "auc, bank alone": alone,
        "seconds": 10.0 + seed, "cpu": 8.0, "mb": 5.0, "messages": 100,
    }  # fmt: skip


def test_means_and_bars() -> None:
    found = [
        result("correct-complete-vfl", 0, 70.0, 60.0),
        result("correct-complete-vfl", 1, 74.0, 60.0),
        result("RISA", 0, 71.0, 61.0),
        result("RISA", 1, 71.0, 61.0),
        {"data": "credit", "line": "VFL", "seed": 0, "failed": "out of memory"},
        result("oracle", 0, 99.0, 99.0),
    ]
    rows = {row["line"]: row for row in flow.summary(found, flow.MEASURES)}
    assert rows["correct-complete-vfl"]["auc"] == 72.0
    assert rows["correct-complete-vfl"]["se"] == pytest.approx(np.std([70, 74], ddof=1) / 2**0.5)
    assert rows["correct-complete-vfl"]["seconds"] == 10.5
    assert rows["VFL"]["seeds"] == 0 and rows["VFL"]["auc"] is None
    both, alone = flow.bars(found, ["RISA", "VFL"], ["correct-complete-vfl"])
    assert (both.value, both.target, both.holds) == (72.0, ">= 71", True)
    assert (alone.value, alone.holds) == (60.0, False)
    assert "RISA" in both.name and "the bank alone" in alone.name


@pytest.mark.slow
def test_a_line_is_run_and_read(bundled: None, tmp_path: Path) -> None:
    (line,) = flow.chosen_lines("Local")
    told = flow.measured(SHAPE, line, tmp_path / "one")
    left = json.loads((tmp_path / "one/run/metrics.json").read_text())
    assert told["auc"] == pytest.approx(100 * left["methods"][0]["scores"]["auc"])
    # the label party's own columns are all that it looks at, whoever else knows the rows
    assert told["auc, bank alone"] == pytest.approx(told["auc"], abs=1e-6)
    crossed = sum(
        each["bytes"] * each.get("count", 1)
        for each in map(json.loads, (tmp_path / "one/run/ledger.jsonl").read_text().splitlines())
    )
    assert told["mb"] == pytest.approx(crossed / 1e6)
    assert told["cpu"] > 1
    assert told["seconds"] > sum(each["seconds"] for each in told["stages"].values())


def test_without_its_data_nothing_is_measured_or_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMEND_DATA", str(tmp_path / "nothing here"))
    with pytest.raises(DatasetAbsent, match="'credit'"):
        flow.run(quick=True, folder=str(tmp_path))
    assert not list(tmp_path.glob("*.json"))
