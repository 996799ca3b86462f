"""The benchmarks of the flow: files as a user would write them, one-sided rows, the pre-flight."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedmend.data import datasets
from fedmend.errors import ConfigError
from fedmend.flow.checks import check_data
from fedmend.flow.config import load_config
from fedmend.methods import VFL
from fedmend.methods.recipes import RECIPES
from fedmend.methods.registry import record_of
from fedmend_bench.datasets import DatasetAbsent
from fedmend_bench.flow import one_sided, preflight
from fedmend_bench.flow import table as flow
from fedmend_bench.flow import world as recipes_world
from fedmend_bench.flow.files import all_lines, single_lines, write_config, write_world
from fedmend_bench.flow.preflight import Cell, run_cell
from fedmend_bench.flow.world import BANK, LABELLERS, TELCO, Shape, World, make_world
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
    for line in (each for each in lines if not each.clear):
        config = load_config(write_config(line, SHAPE, tmp_path), recipe=line.recipe)
        assert [party.name for party in config.party] == list(line.parties)
        assert config.run.seed == 3
    # the tables themselves are the same for all: one look at all of them
    assert check_data(config).problems == []


def test_recipes_are_not_among_the_single_methods() -> None:
    assert not any(line.recipe for line in single_lines())
    assert [line.recipe for line in flow.chosen_lines("recipes")] == list(RECIPES)
    assert next(line.name for line in flow.chosen_lines("oracle,single")) == "oracle"
    with pytest.raises(ConfigError, match="no 'nothing'.*oracle"):
        flow.chosen_lines("nothing")


def test_in_the_clear_true_labels_of_all_rows_are_worth_more(bundled: None, tmp_path: Path) -> None:
    torn, mended = (flow.measured(SHAPE, line, tmp_path) for line in all_lines() if line.clear)
    assert mended["auc"] > 95 and mended["auc"] > torn["auc"] > 60
    assert torn["auc, bank alone"] != torn["auc"]


def result(line: str, seed: int, auc: float, alone: float) -> dict[str, object]:
    return {
        "data": "credit", "line": line, "seed": seed, "auc": auc, "auc, bank alone": alone,
        "seconds": 10.0 + seed, "cpu": 8.0, "mb": 5.0, "messages": 100,
    }  # fmt: skip


def test_means_and_bars() -> None:
    found = [
        result("InC → auto", 0, 70.0, 60.0),
        result("InC → auto", 1, 74.0, 60.0),
        result("RISA", 0, 71.0, 61.0),
        result("RISA", 1, 71.0, 61.0),
        {"data": "credit", "line": "VFL", "seed": 0, "failed": "out of memory"},
        result("oracle", 0, 99.0, 99.0),
    ]
    rows = {row["line"]: row for row in flow.summary(found, flow.MEASURES)}
    assert rows["InC → auto"]["auc"] == 72.0
    assert rows["InC → auto"]["se"] == pytest.approx(np.std([70, 74], ddof=1) / 2**0.5)
    assert rows["InC → auto"]["seconds"] == 10.5
    assert rows["VFL"]["seeds"] == 0 and rows["VFL"]["auc"] is None
    both, alone = flow.bars(found, ["RISA", "VFL"], ["InC → auto"])
    assert (both.value, both.target, both.holds) == (72.0, ">= 71", True)
    assert (alone.value, alone.holds) == (60.0, False)
    assert "RISA" in both.name and "the bank alone" in alone.name
    _, close = flow.bars(found, ["RISA", "VFL"], ["InC → auto"], chance=flow.CHANCE)
    assert (close.target, close.holds) == (">= 57", True)
    quick = {line.name for line in flow.chosen_lines(flow.QUICK)}
    assert quick & {line.name for line in single_lines()} and any(
        line.recipe for line in flow.chosen_lines(flow.QUICK)
    )


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
    assert not list(tmp_path.glob("*.json*"))


# ---------------------------------------------------------------- worlds


def said(world: World, party: str) -> tuple[np.ndarray, np.ndarray]:
    """A labeller's votes and where it gave one."""
    votes = world.train[party].y.to_numpy(dtype=object)
    return votes, np.array([vote is not None and vote == vote for vote in votes])


@pytest.mark.real
@pytest.mark.parametrize("noisy", LABELLERS)
def test_a_world_is_torn_as_told(noisy: str) -> None:
    world = make_world(Shape("credit", 3, rows=2000, test=300, overlap=0.1, noisy=noisy))
    ids = {name: table.ids for name, table in world.train.items()}
    assert len(np.intersect1d(ids[BANK], ids[TELCO])) == 200
    assert set(ids["registry"]) == set(ids["agency"]) == set(ids[BANK])
    right = {}
    for name in LABELLERS:
        votes, given = said(world, name)
        assert 0.65 < given.mean() < 0.75
        right[name] = (votes[given] == world.truth[given]).mean()
    assert min(right, key=lambda name: right[name]) == noisy
    assert right[noisy] < 0.75 < min(value for name, value in right.items() if name != noisy)
    assert np.array_equal(world.test[BANK].ids, world.test[TELCO].ids)


# ---------------------------------------------------------------- rows that one party knows


@pytest.mark.slow
def test_quick_run_has_every_kind_of_row():
    found = one_sided.run(quick=True, methods="VFL")
    assert {(each["known to"], each["absent side"]) for each in found.rows} == {
        ("both", "–"), ("labels only", "fill"), ("labels only", "guess"),
        ("other only", "fill"), ("other only", "guess"),
    }  # fmt: skip
    assert all(each["seeds"] == 2 and 0 <= each["auc"] <= 1 for each in found.rows)
    assert len(found.bars) == 4


def test_promises_are_those_of_vfl():
    assert not [*one_sided._bars("x", [{"set": "x", "known to": "both", "method": "Local"}])]
    with pytest.raises(ConfigError, match="no 'VLF': did you mean 'VFL'"):
        one_sided.run(quick=True, methods="Local,VLF")


def test_fill_is_the_mean_row_and_guess_is_not():
    fed, truth = one_sided.torn("breast-cancer", 300, 0.4, 0)
    model = VFL(epochs=2, seed=0).fit(fed)
    fill, guess = one_sided._scored(model, fed, one_sided.LABELS, truth)
    assert (fill["absent side"], guess["absent side"]) == ("fill", "guess")
    assert fill["log_loss"] != guess["log_loss"] and model.network_.has_imputed
    # all test people are at both parties in one order, so that the same rows are compared
    tables = {name: site.tables["test"] for name, site in fed.engine.sites.items()}
    assert np.array_equal(tables["labels"].ids, tables["other"].ids)


# ---------------------------------------------------------------- pre-flight


@pytest.mark.parametrize("method", ["vfl", pytest.param("majority", marks=pytest.mark.slow)])
def test_a_cost_is_measured_beside_its_estimate(method, monkeypatch):
    import fedmend

    name = {"vfl": "VFL", "majority": "MJ"}[method]
    monkeypatch.setitem(vars(fedmend), name, lambda: preflight_class(name)(epochs=2))
    row = run_cell(Cell("cost", "breast-cancer", 240, method, 3))
    assert row["seconds"] > 0 and row["bytes"] > 0
    assert row["foretold s"] > 0


def test_costs_are_measured_of_any_number_of_parties():
    fed, _ = preflight._scene(Cell("cost", "breast-cancer", 120, "boosting", 3, 4, 1.0))
    facts = preflight.facts_of(fed)
    assert (facts.parties, facts.shared, facts.classes) == (4, 120, 2)
    assert sum(facts.features.values()) == 30


def preflight_class(name):
    import fedmend.methods

    return getattr(fedmend.methods, name)


def test_bars_of_the_preflight():
    rows = [
        {"part": "cost", "seconds ratio": 0.5, "bytes ratio": 1.1},
        {"part": "cost", "seconds ratio": 3.0, "bytes ratio": None},
        {"part": "curve", "gain": 0.02, "real gain": 0.01, "gain inside": True, "inside": True},
        {"part": "curve", "gain": 0.02, "real gain": 0.05, "gain inside": True, "inside": True}
        | {"metric": "rmse"},
    ]
    bars = {bar.name: bar for bar in preflight._bars(rows)}
    assert bars["seconds, off by a factor of (median)"].value == 2.5
    assert bars["bytes, off by a factor of (median)"].holds
    gain = "gain of twice the overlap, mean error"
    assert bars[f"{gain} (classes)"].value == pytest.approx(0.01)
    assert bars[f"{gain} (numbers, as a share of the error)"].value == pytest.approx(0.03)
    assert not any("interval" in name for name in bars)  # of two curves it says nothing
    intervals = [bar for bar in preflight._bars(3 * rows) if "interval" in bar.name]
    assert len(intervals) == 2 and all(bar.holds for bar in intervals)
    known = preflight.VERTICAL | preflight.CROWD | preflight.HORIZONTAL
    assert all(record_of(method).rate for method in known if method != "auto")


@pytest.mark.slow
def test_the_worth_of_overlap_beside_what_came_of_it():
    row = run_cell(Cell("curve", "breast-cancer", 160, seed=1))
    assert row["rows"] == 120
    assert 0.9 < row["really twice"] <= 1
    assert row["from"] <= row["twice"] <= row["to"]
