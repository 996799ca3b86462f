"""The benchmark of SAGE: tables of the paper, runs that go on, what the rows and bars say."""

from __future__ import annotations

import gzip
import json
import os
import signal
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmend.errors import ConfigError
from fedmend.methods.horizontal.rounds import Trainer, Update
from fedmend_bench.harness import run_bench
from fedmend_bench.sage import data as sage_data
from fedmend_bench.sage import table
from fedmend_bench.sage.curves import Curve, bars_of, row_of
from fedmend_bench.sage.data import paper_accuracy, world_of
from fedmend_bench.sage.methods import METHODS, estimator_of
from fedmend_bench.sage.simulator import simulator_of
from fedmend_bench.sage.table import Clock, run


def curve_of(method: str, accuracies: list[float], alpha: float = 0.5, **more: float) -> Curve:
    rounds = [
        {"round": number, "accuracy": value, "training": 2.0, "pseudo_accuracy": 0.9} | more
        for number, value in enumerate(accuracies, 1)
    ]
    return Curve(method, "cifar10", alpha, 0, {}, rounds=rounds)


def test_the_papers_table_is_there() -> None:
    table = paper_accuracy("cifar10", 0.5)
    assert table["SAGE"] == 88.05
    assert table["FixMatch-LPL"] == 84.36
    assert set(table) <= set(METHODS)
    assert paper_accuracy("digits", 0.5) == {}


def test_a_fixed_weight_of_the_local_label() -> None:
    """0 is the global label alone, 1 would be the local one's; SAGE's own follows the gap."""
    local, common = torch.tensor([[0.96, 0.04]]), torch.tensor([[0.02, 0.98]])
    for name, own in (("lambda 0", 0.0), ("lambda 0.75", 0.75), ("CPG only", 1.0)):
        method = estimator_of(name, "default")._method()
        target = method.rule(local, common, torch.tensor([0]), {}).target
        torch.testing.assert_close(target, torch.tensor([[own, 1 - own]]))


def test_every_recipe_has_the_authors_settings() -> None:
    for name in METHODS:
        estimator = estimator_of(name, "paper", rounds=7)
        estimator._check()
        assert estimator.rounds == 7, name
        assert estimator.batch_size == 128
        assert estimator_of(name, "default").batch_size == 32
    assert estimator_of("FedProx+FixMatch", "paper").get_params()["prox"] == 1e-3
    assert estimator_of("CPG only", "paper").get_params()["cdsc"] is False
    with pytest.raises(ConfigError, match="settings"):
        estimator_of("SAGE", "best")


def test_a_name_may_say_what_is_set_otherwise() -> None:
    assert estimator_of("FedMatch l2=0.1 tau=0.5", "paper").get_params()["l2"] == 0.1
    assert estimator_of("CPG only tau=0.5", "default").get_params()["tau"] == 0.5
    with pytest.raises(ConfigError, match="no number"):
        estimator_of("FedMatch l2=much", "default")
    with pytest.raises(ConfigError, match="rounds, which is set already"):
        estimator_of("FedMatch rounds=3", "default", rounds=2)
    with pytest.raises(ConfigError, match="there is no 'FedMatsch'.*FedMatch"):
        run(methods="FedMatsch l2=1", dataset="digits")
    curve = curve_of("FedMatch l2=0.1", [0.5])
    assert curve.name == "cifar10-fedmatch-l2-0.1-0.5-0" and row_of(curve)["paper"] == 77.86


def test_settings_are_chosen_on_rows_that_nobody_trains_on(tmp_path: Path) -> None:
    common = {"clients": 3, "labelled": 10, "split": "plain", "seed": 4}
    whole, cut = (world_of("digits", 0.5, held_out=share, **common) for share in (0.0, 0.25))
    dealt = np.concatenate([each.unlabelled for each in cut.pools])
    rows = [tuple(row) for row in whole.pools[0].views.numeric.tolist()]
    held = {tuple(row) for row in cut.test.numeric.tolist()}
    assert len(dealt) == len(set(dealt)) and len(dealt) + len(cut.labels) == len(rows)
    # What is tested are rows that were dealt out before: not the test's, and nobody's now.
    assert held <= set(rows) and not held & {rows[at] for at in dealt}
    assert all(set(each.labelled.tolist()) <= set(dealt) for each in cut.pools)
    options = {"methods": "FedAvg", "dataset": "digits", "rounds": 1, "device": "cpu"}
    options |= {"settings": "default", "precision": "float32", "folder": str(tmp_path)}
    run(**options, held_out=0.25)
    with pytest.raises(ConfigError, match="held_out is a share below 1"):
        run(**options, held_out=1.0)
    run(**options)
    names = sorted(each.name for each in tmp_path.glob("*.json"))
    assert names == ["digits-fedavg-0.5-0.json", "digits-fedavg-held0.25-0.5-0.json"]


def test_rows_and_bars() -> None:
    ours = curve_of("SAGE", [0.5, 0.72, 0.81, 0.885], utilisation=0.8)
    rival = curve_of("FixMatch-LPL", [0.5, 0.6, 0.7], utilisation=0.7)
    row = row_of(ours)
    assert row["best"] == pytest.approx(88.5) and row["paper"] == 88.05
    assert (row["to 70 %"], row["to 80 %"], row["to 85 %"]) == (2, 3, 4)
    assert row_of(rival)["to 80 %"] is None
    bars = {bar.name: bar for bar in bars_of([ours, rival])}
    assert bars["SAGE, alpha .5, best of 4 rounds"].holds
    beside = bars["SAGE beside FixMatch-LPL, alpha 0.5, round 3"]
    assert beside.value == pytest.approx(81.0) and beside.holds
    lucky = curve_of("FixMatch-GPL", [0.5, 0.86, 0.6], utilisation=0.7)
    told = {bar.name: bar for bar in bars_of([ours, lucky])}
    where = "beside FixMatch-GPL, alpha 0.5, round 3"
    assert told[f"SAGE {where}"].holds
    assert not told[f"SAGE, best so far, {where}"].holds
    assert told[f"SAGE, mean of ten rounds, {where}"].value == pytest.approx(100 * 2.03 / 3)
    assert bars["rows used, beside FixMatch-LPL, alpha 0.5, round 3"].holds
    assert bars_of([rival]) == []


def test_a_world_shares_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of("digits", 0.5, clients=4, labelled=5, split="paired", seed=1)
    assert len({id(pool.views) for pool in world.pools}) == 1
    rows = np.concatenate([pool.unlabelled.numpy() for pool in world.pools])
    assert len(set(rows.tolist())) == len(rows) == 1797 - 450
    assert sum(len(pool.labelled) for pool in world.pools) == 50
    full = world_of("digits", 0.5, clients=4, labelled=5, split="paired", seed=1, all_labels=True)
    assert sum(len(pool.labelled) for pool in full.pools) == len(rows)
    with pytest.raises(ConfigError, match="cifar10, fashion-mnist, digits"):
        world_of("cifar", 0.5, clients=4, labelled=5, split="paired", seed=1)


def write_idx(path: Path, values: np.ndarray) -> None:
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}i", *values.shape)
    path.write_bytes(gzip.compress(head + values.astype(np.uint8).tobytes()))


def test_grey_images_are_dealt_out_and_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fashion-MNIST's files and shape, 28 x 28 in one channel, with images of our own making."""
    monkeypatch.setenv("FEDMEND_DATA", str(tmp_path))
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for stem, n in (("train", 160), ("t10k", 40)):
        labels = np.arange(n) % 4
        write_idx(
            folder / f"{stem}-images-idx3-ubyte.gz",
            60 * labels[:, None, None] + rng.integers(0, 40, (n, 28, 28)),
        )
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", labels)
    sage_data._pictures.cache_clear()
    world = world_of("fashion-mnist", 5.0, clients=2, labelled=10, split="plain", seed=0)
    sage_data._pictures.cache_clear()
    assert world.net.channels == 1 and world.net.classes == 4 and world.published is None
    assert not world.pools[0].views.flip  # a shoe points to one side
    assert sum(len(pool.unlabelled) for pool in world.pools) == 160
    estimator = estimator_of("SAGE", "paper", per_round=1, epochs=1)
    net = replace(world.net, width=8)
    simulator = simulator_of(estimator, world.pools, net, device="cpu")
    report = simulator.run_round()
    assert np.isfinite(report.loss)
    assert 0 <= simulator.accuracy(world.on(simulator).test, world.labels) <= 1


@pytest.mark.slow
def test_a_run_goes_on_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"methods": ["FedAvg"]}
    whole = run(quick=True, rounds=2, folder=str(tmp_path / "whole"), **options)
    run(quick=True, rounds=1, folder=str(tmp_path / "parts"), **options)
    kept = tmp_path / "parts" / "digits-fedavg-0.5-0.json"
    assert len(json.loads(kept.read_text())["rounds"]) == 1
    on = run(quick=True, rounds=2, folder=str(tmp_path / "parts"), **options)
    assert on.rows[0]["rounds"] == 2
    assert on.rows[0]["last"] == whole.rows[0]["last"]
    # Out of time: nothing more is done, and what there is is shown.
    late = run(quick=True, rounds=6, minutes=-1.0, folder=str(tmp_path / "parts"), **options)
    assert late.rows[0]["rounds"] == 2


@pytest.mark.slow
def test_the_mean_over_rounds_is_told_beside_the_last_model(tmp_path: Path) -> None:
    options = {"methods": ["FedAvg"], "average_rounds": [1, 30]}
    whole = run(quick=True, rounds=6, folder=str(tmp_path / "whole"), **options)
    curve = json.loads((tmp_path / "whole" / "digits-fedavg-0.5-0.json").read_text())
    told = {each["round"]: each.get("accuracy_averaged") for each in curve["rounds"]}
    assert [number for number, means in told.items() if means] == [5, 6]
    assert told[5]["1"] == curve["rounds"][4]["accuracy"] != told[5]["30"]
    assert whole.rows[0]["mean of 30"] == 100 * told[6]["30"]
    # It goes on from the checkpoint, and begins later where there was none.
    run(quick=True, rounds=3, folder=str(tmp_path / "parts"), **options)
    on = run(quick=True, rounds=6, folder=str(tmp_path / "parts"), **options)
    assert on.rows[0]["mean of 30"] == whole.rows[0]["mean of 30"]
    run(quick=True, rounds=5, folder=str(tmp_path / "late"), methods=["FedAvg"], average_rounds=9)
    late = run(quick=True, rounds=6, folder=str(tmp_path / "late"), **options)
    assert late.rows[0]["mean of 30"] == late.rows[0]["last"] == on.rows[0]["last"]


def test_quick_compares_sage_with_fixmatch() -> None:
    result = run_bench("sage", quick=True, options={"rounds": 2})
    assert [row["method"] for row in result.rows] == ["FixMatch-LPL", "SAGE"]
    assert all(row["last"] > 30 for row in result.rows)
    assert result.rows[1]["gap"] is not None and result.rows[0]["gap"] is None
    with pytest.raises(ConfigError, match="did you mean 'FedDure'"):
        run(quick=True, methods="FedDur")
    told = [bar.name.partition(", best")[0] for bar in result.bars]
    assert told[:2] == ["digits: FixMatch-LPL", "digits: SAGE"] and len(told) == 3


@pytest.mark.real
def test_cifar_is_dealt_out_as_the_authors_do() -> None:
    world = world_of("cifar10", 0.5, clients=20, labelled=100, split="paired", seed=0, sheets=[1])
    assert {len(pool.labelled) for pool in world.pools} == {50}
    assert {len(pool.unlabelled) for pool in world.pools} == {500}
    assert world.net.kind == "resnet8" and world.published is not None
    assert len(world.labels) == 10_000


# ---------------------------------------------------------------- the end of a sitting


def test_asked_to_end_a_run_breaks_its_round_off_and_keeps_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(quick=True, methods="FedAvg", rounds=4)
    trained, train = [], Trainer.train

    def interrupted(*given: object, **more: object) -> Update:
        trained.append(given)
        if len(trained) == 12:  # the second client of the third round
            os.kill(os.getpid(), signal.SIGTERM)
        return train(*given, **more)

    monkeypatch.setattr(Trainer, "train", interrupted)
    monkeypatch.setattr(table, "KEEP_EVERY", 0.0)
    result = run(quick=True, methods="FedAvg,SAGE", rounds=4, folder=str(tmp_path))
    assert [row["rounds"] for row in result.rows] == [2, 0] and len(trained) == 12
    monkeypatch.undo()
    on = run(quick=True, methods="FedAvg", rounds=4, folder=str(tmp_path)).rows[0]
    assert on["rounds"] == 4 and on["last"] == whole.rows[0]["last"]


def test_too_late_for_a_round_is_too_late_for_the_next_run() -> None:
    assert not Clock().late()
    assert Clock(time.monotonic() - 1).late()
    clock = Clock(time.monotonic() + 50)
    clock.took(500.0)  # something else was on the card
    clock.took(1.0)
    assert clock.late()
    clock.took(1.0)
    assert clock.late()
    clock = Clock(time.monotonic() + 50)
    for seconds in (500.0, 1.0, 2.0):
        clock.took(seconds)
    assert not clock.late()
    clock.end()  # between two rounds: nothing to break off
    assert clock.late()
    with pytest.raises(table.BrokenOff), clock.round():
        clock.end()
