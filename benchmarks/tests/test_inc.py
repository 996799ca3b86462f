"""`fedmend bench inc` on small data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmend.errors import ConfigError
from fedmend_bench.harness import available, run_bench
from fedmend_bench.inc.crowds import votes_alone
from fedmend_bench.inc.data import FilterBank, draw_votes, human_worlds, paper_table
from fedmend_bench.inc.federated import cost

DIGITS = {"datasets": "digits", "models": "lr", "cost": False}


def bench(**options: Any) -> Any:
    return run_bench("inc", quick=True, options=DIGITS | options)


@pytest.mark.slow
def test_a_bundled_data_set() -> None:
    result = bench(
        methods="MJ,EM,InC row,InC product",
        kinds="pair-flip",
        settings="low-small,high-large",
        rows=600,
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


@pytest.mark.slow
def test_runs_that_were_kept_are_not_trained_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"methods": "MJ,InC product", "settings": "low-small", "rows": 300}
    options |= {"epochs": 2, "folder": str(tmp_path)}
    first = bench(**options, kinds="symmetric")
    (kept,) = tmp_path.iterdir()
    written = kept.read_text("utf-8")
    both = bench(**options)
    assert both.rows[: len(first.rows)] == first.rows, "seconds included: taken, not trained"
    more = kept.read_text("utf-8")
    assert more.startswith(written) and more != written, "the other kind of noise is a further line"
    other = bench(**options | {"epochs": 3}, kinds="symmetric")
    assert kept.read_text("utf-8") != more, "other settings are other runs"
    assert other.rows != first.rows


@pytest.mark.slow
def test_a_corrector_beside_the_tables(tmp_path: Path) -> None:
    options: dict[str, Any] = {"kinds": "symmetric", "settings": "high-large", "rows": 400}
    options |= {"corrector": "mlp-wide", "epochs": 6, "seeds": 1, "folder": str(tmp_path)}
    found = bench(**options)
    assert {row["corrector"] for row in found.rows} == {"mlp-wide"}
    assert [(row["of"], row["method"]) for row in found.rows] == [
        ("accuracy", "Clean"),
        ("accuracy", "InC product"),
        ("corrected", "InC product"),
    ]
    values = [row["high-large"] for row in found.rows]
    assert min(values) > 0.5
    (kept,) = tmp_path.iterdir()
    written = kept.read_text("utf-8")
    assert len(written.splitlines()) == 2, "Clean and InC"
    assert [row["high-large"] for row in bench(**options).rows] == values
    assert kept.read_text("utf-8") == written


def test_errors_that_depend_on_the_row_are_shared_and_follow_its_columns() -> None:
    rng = np.random.default_rng(0)
    columns, y = rng.normal(size=(6000, 5)), rng.integers(0, 4, 6000)
    votes, _ = draw_votes(y, 4, "median-small", "instance", 0, columns)
    wrong = votes != y[:, None]
    assert 0.3 < wrong.mean() < 0.4
    apart, _ = draw_votes(y, 4, "median-small", "symmetric", 0)
    together = [np.corrcoef(each.T)[0, 1] for each in (wrong, apart != y[:, None])]
    assert together[0] > 0.12 > 0.05 > abs(together[1])
    rows = np.flatnonzero(wrong[:, 0] & (y == 0))
    held, used = rows[::2], rows[1::2]
    means = {c: columns[used][votes[used, 0] == c].mean(0) for c in (1, 2, 3)}
    guess = np.array([max(means, key=lambda c: float(means[c] @ x)) for x in columns[held]])
    assert (guess == votes[held, 0]).mean() > 0.5


@pytest.mark.slow
def test_annotators_who_label_a_part() -> None:
    options = {"methods": "MJ,EM,InC product", "kinds": "symmetric", "settings": "median-small"}
    found = bench(**options, rows=400, labelled=0.5)
    right = {row["method"]: row["median-small"] for row in found.rows if row["of"] == "corrected"}
    everything = bench(**options, rows=400)
    most = {row["method"]: row["median-small"] for row in everything.rows[-3:]}
    assert right["MJ"] < right["InC product"] < most["InC product"]
    assert {row["median-small, paper"] for row in found.rows} == {None}


@pytest.mark.slow
def test_one_stage_alone() -> None:
    methods = "InC initialise only,InC product,InC product correct only"
    options = {"kinds": "symmetric", "settings": "high-large", "rows": 500}
    rows = bench(methods=methods, **options).rows
    right = {row["method"]: row["high-large"] for row in rows if row["of"] == "corrected"}
    majority = bench(methods="MJ", **options).rows[-1]["high-large"]
    # votes as they are, ties apart; and correction from the first epoch on is another training
    assert right["InC initialise only"] == pytest.approx(majority, abs=0.03)
    assert right["InC product"] > right["InC initialise only"]
    assert right["InC product correct only"] not in (right["InC product"], majority)


@pytest.mark.slow
def test_defaults_beside_dawid_skene_and_the_majority(tmp_path: Path) -> None:
    options: dict[str, Any] = {"crowds": "breast-cancer", "annotators": 3, "rows": 250}
    options |= {"seeds": 2, "folder": str(tmp_path)}
    found = bench(**options)
    assert [row["method"] for row in found.rows] == ["InC", "EM", "MJ"]
    right = [row["labels right"] for row in found.rows]
    assert right[0] >= right[1] >= right[2] > 0.9
    assert min(row["auc"] for row in found.rows) > 0.95
    assert [bar.name.split(",")[1] for bar in found.bars] == [
        " 3 annotators: AUC behind EM",
        " 3 annotators: AUC behind MJ",
    ]
    assert bench(**options).rows == found.rows, "taken from the folder"
    with pytest.raises(ConfigError, match="annotators: there is no '4'"):
        bench(**options | {"annotators": 4})


def test_votes_alone_among_many_annotators() -> None:
    lines, (bar,) = votes_alone(rows=300, seeds=1, count=20)
    found = {line["method"]: line for line in lines}
    masks, none = found["Dawid–Skene, masks"], found["Dawid–Skene, none"]
    assert masks["labels right"] == none["labels right"] > 0.75
    assert masks["rounds"] == none["rounds"] > 1 and found["majority, masks"]["rounds"] == 0
    assert bar.value == masks["labels right"]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["LR", "default"])
def test_the_cost_of_protection(network: str) -> None:
    data = "Sensorless" if network == "default" else "Letter"
    rows, bars = cost(200, 2, 1, network, data)
    methods = ["Clean", "InC none", "InC masks", "InC he", "Random masks", "MJ masks", "EM masks"]
    assert [row["method"] for row in rows] == methods
    if network == "LR":
        theirs = [134.03, None, None, 185.71, 125.93, 137.01, 312.68]
        assert [row["100 epochs, paper"] for row in rows] == theirs
    crossed = {row["method"]: row["MB crossed"] for row in rows}
    assert crossed["InC he"] > crossed["InC masks"] > crossed["Clean"] > 0
    assert [bar.name for bar in bars] == [
        f"{network}: InC with masks / Clean",
        f"{network}: masks / none",
    ]


@pytest.mark.parametrize(
    ("option", "value"),
    [("datasets", "leter"), ("methods", "InC"), ("settings", "low"), ("part", "crowds")],
)
def test_unknown_names_are_refused(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}: there is no '{value}': "):
        run_bench("inc", options=DIGITS | {option: value})


def test_draws_that_cannot_tell_are_drawn_again() -> None:
    y = np.random.default_rng(0).integers(0, 2, 4000)
    redrawn = 0
    for seed in range(40):
        votes, again = draw_votes(y, 2, "high-large", "symmetric", seed)
        redrawn += again
        assert (votes == y[:, None]).mean() > 0.5
    assert redrawn > 0
    flips, _ = draw_votes(np.arange(26).repeat(200), 26, "median-large", "pair-flip", 0)
    moved = (flips - np.arange(26).repeat(200)[:, None]) % 26
    assert set(np.unique(moved)) == {0, 1}
    errors = (moved[:, 0] == 1).reshape(26, 200).mean(1)
    assert (errors < 0.12).sum() == 13


def test_the_papers_numbers() -> None:
    assert paper_table("accuracy", "letter", "lr")["InC", "high-large"] == 0.7667
    assert paper_table("correction", "covertype", "lr")["InC", "low-small"] == 0.9172
    assert paper_table("correction", "letter", "mlp") == {}
    assert paper_table("accuracy", "digits", "lr") == {}


def test_patch_features_tell_stripes_from_noise() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (80, 3, 32, 16)).astype(np.uint8)
    images[:40] = np.where(np.arange(16) % 4 < 2, 220, 20)
    features = FilterBank(images, 12, "cpu").features(images)
    assert features.shape == (80, 24)
    between = np.abs(features[:40].mean(0) - features[40:].mean(0))
    assert (between > 3 * features[40:].std(0)).any()


@pytest.mark.real
@pytest.mark.parametrize("name", ["letter", "covertype", "sensorless", "labelme", "cifar10n"])
def test_the_real_data_sets(name: str) -> None:
    result = bench(datasets=name, epochs=2, rows=1000)
    assert {row["method"] for row in result.rows} >= {"Clean", "MJ", "EM", "InC product"}


@pytest.mark.real
def test_some_of_the_sheets() -> None:
    worlds = human_worlds("cifar10n", 2, "cpu", rows=40, sheets=1)
    assert worlds.train.shape == (2, 40, 2 * 2 * 400) and worlds.classes == 10
    assert worlds.votes.shape == (2, 1, 40, 3)
    right = worlds.votes[0, 0] == worlds.y_train[0][:, None]
    assert right.mean() > 0.6, "votes belong to the images"
