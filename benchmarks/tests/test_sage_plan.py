"""Plans of the benchmark of SAGE: their order, files, mistakes in them, and working one off."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmend.errors import ConfigError, FedmendWarning
from fedmend_bench.datasets import DatasetAbsent
from fedmend_bench.sage import data as sage_data
from fedmend_bench.sage import table as sage
from fedmend_bench.sage.data import paper_accuracy
from fedmend_bench.sage.methods import METHODS
from fedmend_bench.sage.plan import Unit, read_plan
from fedmend_bench.sage.table import run


def test_the_default_plan_has_every_row_of_the_tables_and_the_most_wanted_first() -> None:
    plan = read_plan("default")
    assert plan[0] == Unit("SAGE", 300, 0.5, "cifar10", 0)
    assert [unit.method for unit in plan[1:3]] == ["FixMatch-LPL", "FixMatch-GPL"]
    assert {unit.method for unit in plan} == set(METHODS) >= set(paper_accuracy("cifar10", 0.5))
    assert {unit.alpha for unit in plan if unit.method == "SAGE"} == {0.1, 0.5, 1.0}
    assert {unit.dataset for unit in plan} == {"cifar10", "fashion-mnist"}
    assert len(set(plan)) == len(plan)
    assert {unit.method for unit in read_plan("quick")} == set(METHODS)


def test_a_plan_out_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[[unit]]\nmethod = "SAGE"\nrounds = 3\n'
        '[[unit]]\nmethod = "FedAvg"\nrounds = 2\nalpha = 1\ndataset = "digits"\nseed = 4\n'
    )
    assert read_plan(str(path)) == [Unit("SAGE", 3), Unit("FedAvg", 2, 1.0, "digits", 4)]


def test_all_mistakes_of_a_plan_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[[unit]]\nmethod = "SAGGE"\nrounds = 0\n'
        '[[unit]]\nmethod = "SAGE"\nround = 3\nalpha = -1\ndataset = "cifar"\nseed = 0.5\n'
    )
    with pytest.raises(ConfigError) as caught:
        read_plan(str(path))
    said = "\n".join(caught.value.problems)
    for words in (
        "unit 1: method = 'SAGGE': did you mean 'SAGE'?",
        "unit 1: rounds must be a number from 1, got 0",
        "unit 2: there is no 'round': did you mean 'rounds'?",
        "unit 2: dataset = 'cifar': did you mean 'cifar10'?",
        "unit 2: alpha must be a number from 1e-09, got -1",
        "unit 2: seed must be a number from 0, got 0.5",
    ):
        assert words in said
    path.write_text("unit = 3\n")
    with pytest.raises(ConfigError, match="has no unit"):
        read_plan(str(path))
    path.write_text("[[unit]\n")
    with pytest.raises(ConfigError, match=r"plan\.toml"):
        read_plan(str(path))
    with pytest.raises(ConfigError, match="did you mean 'default'"):
        read_plan("defaults")


def test_a_plan_is_worked_off_in_order_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = [Unit("SAGE", 1, dataset="digits"), Unit("FedAvg", 1, dataset="digits")]
    monkeypatch.setattr(sage, "read_plan", lambda plan: units)
    trained = []
    train = sage._train
    monkeypatch.setattr(
        sage, "_train", lambda *given: trained.append(given[0].method) or train(*given)
    )
    # A run that is there already is not trained again; one that is longer than asked is cut.
    run(quick=True, methods="SAGE", rounds=2, folder=str(tmp_path))
    result = run(quick=True, plan="of the test", folder=str(tmp_path))
    assert trained == ["SAGE", "FedAvg"]
    assert [(row["method"], row["rounds"]) for row in result.rows] == [("SAGE", 1), ("FedAvg", 1)]
    # A finished run needs its checkpoint no more.
    (tmp_path / "digits-fedavg-0.5-0.fmw").unlink()
    run(quick=True, plan="of the test", folder=str(tmp_path))
    assert trained == ["SAGE", "FedAvg"]
    # Out of time: units that have not begun have no row.
    late = run(quick=True, plan="of the test", minutes=-1.0, folder=str(tmp_path / "none"))
    assert late.rows == []


def test_a_data_set_that_is_not_here_does_not_end_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMEND_DATA", str(tmp_path))
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[[unit]]\nmethod = "SAGE"\nrounds = 1\ndataset = "fashion-mnist"\n'
        '[[unit]]\nmethod = "FedAvg"\nrounds = 1\ndataset = "digits"\n'
    )
    sage_data._pictures.cache_clear()
    with pytest.warns(FedmendWarning, match="SAGE is left out.*fashion-mnist"):
        result = run(quick=True, plan=str(plan))
    assert [row["method"] for row in result.rows] == ["FedAvg"]
    with pytest.raises(DatasetAbsent):
        run(methods="SAGE", dataset="fashion-mnist", rounds=1, device="cpu")
