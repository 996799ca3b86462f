"""`fedmend bench tabular`: what is compared, kept, promised and written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend_bench import run_bench
from fedmend_bench.cells import Kept
from fedmend_bench.clear import CLEAR, Clear
from fedmend_bench.risa.data import ALONE, LABELS, PARTNER, columns_of, load_sides, tear
from fedmend_bench.tabular import table as tabular
from fedmend_bench.tabular.page import BEGIN, END
from fedmend_bench.tabular.table import (
    AUTO,
    LEFT_JOIN,
    METHODS,
    Cell,
    measure,
    promises,
    run,
    spread,
    summary,
)


@pytest.fixture(scope="module")
def world() -> Any:
    return tear(load_sides("breast-cancer", 0, 400, 100), 0.3, seed=0)


# ------------------------------------------------------------------ in the clear


def test_the_oracle_is_scikit_learn_on_the_table_before_it_was_torn(world: Any) -> None:
    sides = load_sides("breast-cancer", 0, 400, 100)
    whole = [
        np.concatenate(
            [table[name].features.frame.to_numpy(float) for name in (LABELS, PARTNER)], 1
        )
        for table in (sides.train, sides.test)
    ]
    y, truth = (table[LABELS].y.to_numpy() for table in (sides.train, sides.test))
    # The tear puts rows into another order, which sums of floats can tell.
    own = world.fed.engine.site(LABELS).table_of("train")
    column = own.feature_names[0]
    order = [np.flatnonzero(whole[0][:, 0] == each)[0] for each in own.frame[column]]
    model = HistGradientBoostingClassifier(random_state=0).fit(whole[0][order], y[order])
    expected = roc_auc_score(truth == model.classes_[1], model.predict_proba(whole[1])[:, 1])
    oracle = Clear("GBDT joined (oracle)").fit(world.fed, world.same)
    assert oracle.evaluate(world.fed.on("test"))["auc"] == pytest.approx(expected, abs=0.01)
    assert expected > 0.97


def test_without_the_partner_a_left_join_has_missing_cells(world: Any) -> None:
    left = Clear(LEFT_JOIN).fit(world.fed)
    both, one = (left.predict_proba(world.fed.on(scope)) for scope in ("test", ALONE))
    assert both.shape == one.shape == (100, 2)
    assert np.abs(both - one).max() > 0.1
    own = Clear("GBDT own columns").fit(world.fed)
    both, one = (own.predict_proba(world.fed.on(scope)) for scope in ("test", ALONE))
    assert np.array_equal(both, one)


@pytest.mark.parametrize("name", CLEAR)
def test_all_in_the_clear_learn(name: str, world: Any) -> None:
    model = Clear(name).fit(world.fed, world.same)
    assert model.evaluate(world.fed.on("test"))["auc"] > 0.9


def test_a_class_that_no_aligned_row_has_gets_no_probability() -> None:
    torn = tear(load_sides("breast-cancer", 1, 300, 100), 0.01, seed=1)
    model = Clear("GBDT aligned rows").fit(torn.fed)
    found = model.predict_proba(torn.fed.on("test"))
    assert found.shape == (100, 2) and np.allclose(found.sum(1), 1)


# ------------------------------------------------------------------ cells


def test_seed_by_seed_and_the_longest_first() -> None:
    cells = tabular._cells(["adult"], ["Local", "RISA", AUTO], [1, 10], [5, 6], 6000, 100)
    assert [cell.seed for cell in cells] == [5] * 5 + [6] * 5
    assert [cell.method for cell in cells[:5]] == [AUTO, AUTO, "RISA", "RISA", "Local"]
    # What a party does alone is measured once for all overlaps.
    assert [cell.overlap for cell in cells if cell.method == "Local"] == [1, 1]


@pytest.mark.slow
def test_a_cell_has_both_kinds_of_rows() -> None:
    found = measure(Cell("breast-cancer", "Local", 30, 0, 200, 100))
    assert set(found["one"]) == {"auc", "accuracy", "log_loss"}
    # Without the partner's columns the order is the same; each kind of row is calibrated by itself.
    assert found["both"]["auc"] == found["one"]["auc"]
    assert "one" not in measure(Cell("breast-cancer", "GBDT aligned rows", 30, 0, 200, 100))


# ------------------------------------------------------------------ results


def line(method: str, auc: float, seed: int = 0, share: float = 10, **more: Any) -> dict[str, Any]:
    scores = {"auc": auc, "accuracy": auc, "log_loss": 1 - auc}
    told = {"data": "adult", "method": method, "overlap": share, "seed": seed, "rows": 16_000}
    return told | {"seconds": 1.0, "both": scores, "one": scores} | more


def some_lines() -> list[dict[str, Any]]:
    lines = [line(AUTO, 0.93, seed) for seed in (0, 1)]
    lines += [line(LEFT_JOIN, 0.92 + 0.02 * seed, seed) for seed in (0, 1, 2)]
    lines += [line("LocalTrees", 0.85, share=1), line("LocalTrees", 0.85, seed=1, share=1)]
    return [*lines, line("Local", 0.8, share=1), line("Local", 0.8, seed=1, share=1)]


def test_methods_are_compared_on_the_same_draws() -> None:
    bars = {bar.name: bar for bar in promises(some_lines())}
    # Seed 2 of the left join (.96) has no counterpart: .93 against (.92 + .94) / 2.
    assert bars["adult, 16,000 rows, 10 %, both: auto over GBDT left join"].value == 0
    worse = [
        line(AUTO, 0.9265, each["seed"]) if each["method"] == AUTO else each
        for each in some_lines()
    ]
    assert not next(bar for bar in promises(worse) if "one: auto over" in bar.name).holds
    assert promises([each for each in some_lines() if each["method"] != AUTO]) == []
    whole = promises([line("SecureBoost", 0.92, rows=40_000), line("SecureBoost", 0.92)])
    assert [(bar.name, bar.holds) for bar in whole] == [
        ("adult, all rows, 10 %: AUC of SecureBoost", True)
    ]


def test_what_is_done_alone_stands_for_every_overlap() -> None:
    found = spread(some_lines())
    assert set(found[16_000, "adult", 10, "one"]) == {AUTO, LEFT_JOIN, "LocalTrees", "Local"}
    rows = summary([*some_lines(), line("VFL", 0.5) | {"failed": "no rows"}])
    assert [row["method"] for row in rows] == [AUTO, "LocalTrees", "Local", LEFT_JOIN, "VFL"]
    assert rows[0]["10 % both"] == ".9300 ± .0000" and rows[-1]["failed"] == "no rows"


def test_the_page_is_made_of_lines_and_keeps_what_stands_around(tmp_path: Path) -> None:
    kept = Kept.at(tmp_path / "some.jsonl")
    for each in some_lines():
        names = ("data", "method", "overlap", "seed", "rows")
        cell = Cell(**{name: each[name] for name in names}, test=100)
        kept.add(cell, {key: value for key, value in each.items() if key not in names})
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n\n{BEGIN}\nearlier\n{END}\n\nafter\n")
    result = run(part="page", folder=str(kept.file), page=str(page))
    text = page.read_text()
    assert text.startswith("# Before\n") and text.endswith("\nafter\n") and "earlier" not in text
    assert "### adult, at most 16,000 rows (2 to 3 seeds)" in text
    assert "| auto |  | **.9300 ± .0000** |" in text
    assert all(bar.holds for bar in result.bars)
    page.write_text("nothing")
    with pytest.raises(ConfigError, match="no place for tables"):
        run(part="page", folder=str(kept.file), page=str(page))
    with pytest.raises(ConfigError, match="-o folder="):
        run(part="page")


def test_wrong_options_are_told() -> None:
    for wrong in ({"sets": "adlt"}, {"methods": "RISSA"}, {"overlap": 0}, {"part": "tabel"}):
        with pytest.raises(ConfigError, match="did you mean|between 0 and 100"):
            run(**wrong)  # type: ignore[arg-type]
    assert set(tabular._asked("clear")) == set(CLEAR)
    assert set(tabular._asked("all")) <= set(METHODS)


# ------------------------------------------------------------------ runs


@pytest.mark.slow
def test_trees_on_a_machine_without_cryptography_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('pydantic', 'cryptography'):\n    sys.modules[name] = None\n"
    )
    command = "-m fedmend_bench tabular -o sets=breast-cancer -o methods=SecureBoost -o overlap=30"
    options = f"-o rows=200 -o seeds=1 -o folder={tmp_path}".split()
    subprocess.run(
        [sys.executable, *command.split(), *options],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
    )
    (there,) = Kept.at(tmp_path).all()
    here = measure(Cell(**there["cell"]))
    assert there["found"]["both"] == here["both"] and there["found"]["one"] == here["one"]


@pytest.mark.slow
def test_speed_is_measured_beside_scikit_learn() -> None:
    result = run_bench("tabular", quick=True, options={"part": "speed"})
    (row,) = result.rows
    assert row["rows"] == 569 and row["columns"] == 30 and row["seconds"] > 0
    assert all(bar.holds for bar in result.bars)


def test_keel_is_all_of_its_tables_and_all_alike_columns_are_dealt_out() -> None:
    names = tabular._sets("keel,adult")
    assert len(names) == 31 and "keel-tic-tac-toe" in names and names[-1] == "adult"
    codes = Table(range(4), {name: list("abab") for name in "pqr"} | {"y": [0, 1, 0, 1]}, label="y")
    assert columns_of(codes) == {LABELS: ["p", "r"], PARTNER: ["q"]}


def test_nobody_is_in_both_training_and_test_rows() -> None:
    fed = tear(load_sides("breast-cancer", 1, 60, 40), 0.5, 1).fed
    site = fed.engine.sites[LABELS]
    assert not set(site.tables["train"].ids) & set(site.tables["test"].ids)


def test_tables_whose_label_is_a_number() -> None:
    ours, clear = (
        tabular.measure(Cell("diabetes", name, 50.0, 30, 200, 80))
        for name in ("LocalTrees", "GBDT left join")
    )
    for found in (ours, clear):
        assert {*found["both"]} == {*found["one"]} == {"r2", "rmse", "mae"}
        assert 0.1 < found["one"]["r2"] < 0.7
    lines = [
        {"data": "diabetes", "method": method, "overlap": 50.0, "seed": 30, "rows": 200} | found
        for method, found in (("LocalTrees", ours), ("GBDT left join", clear))
    ]
    told = {row["method"]: row["50 % both"] for row in tabular.summary(lines)}
    assert told["LocalTrees"] == f"{ours['both']['r2']:.4f}".removeprefix("0")
    sets = tabular._sets("numbers")
    cells = tabular._cells(sets, tabular.METHODS, [50.0], [30], 200, 80)
    asked = {cell.method for cell in cells}
    assert "auto" in asked and not asked & {"RISA", "SFHTL", "logistic left join"}
