"""`fedmend bench risa`: torn data, runs kept as files, summaries and promises."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend_bench import run_bench
from fedmend_bench.cells import Kept, run_cells
from fedmend_bench.risa.cost import one_piece_epochs, split_epochs
from fedmend_bench.risa.data import (
    ALONE,
    LABELS,
    PARTNER,
    Sides,
    columns_of,
    load_sides,
    pool_rare,
    tear,
)
from fedmend_bench.risa.methods import BASELINES, METHODS, Size, make
from fedmend_bench.risa.runs import Part, doubt_scores, pseudo_scores, run_part
from fedmend_bench.risa.search import (
    Trial,
    drawn_sides,
    measured,
    searched,
    set_trial,
    spaces,
    trials,
)
from fedmend_bench.risa.table import paper_table, promises, run, summary

# ------------------------------------------------------------------ data


def small_sides(n: int = 80) -> Sides:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=n), "y": rng.choice(["a", "b"], n)})
    frame["mark"] = [f"m{i}" for i in range(n)]
    numbers = Table(np.arange(n), frame[["x", "y"]], label="y")
    marks = Table(np.arange(n), frame[["mark"]], kinds={"mark": "nominal"})
    return Sides("small", {LABELS: numbers, PARTNER: marks}, {LABELS: numbers, PARTNER: marks})


def test_a_tear_keeps_pairs_of_the_overlap_and_unlinks_the_rest() -> None:
    sides = small_sides()
    world = tear(sides, 0.25, seed=3)
    assert world.overlap == 20
    tables = {name: world.fed.engine.site(name).table_of("train") for name in (LABELS, PARTNER)}  # type: ignore[attr-defined]
    places = {name: world.fed.engine.site(name).alignments["train"] for name in tables}  # type: ignore[attr-defined]
    x = sides.train[LABELS].frame["x"].to_numpy()
    marks = sides.train[PARTNER].frame["mark"].to_numpy()
    mine = tables[LABELS].frame["x"].to_numpy()
    theirs = tables[PARTNER].frame["mark"].to_numpy()
    for here, there in zip(places[LABELS].aligned, places[PARTNER].aligned, strict=True):
        assert marks[np.flatnonzero(x == mine[here])[0]] == theirs[there]
    rest = places[LABELS].unaligned
    same_place = [
        marks[np.flatnonzero(x == mine[row])[0]] == theirs[other]
        for row, other in zip(rest, places[PARTNER].unaligned, strict=True)
    ]
    assert np.mean(same_place) < 0.2
    assert world.fed.alignment.aligned == 20
    assert dict(world.fed.alignment.unaligned) == {LABELS: 60, PARTNER: 60}
    assert world.fed.on(ALONE).alignment.aligned == 0
    everybody = [marks[np.flatnonzero(x == each)[0]] for each in mine]
    assert theirs[world.same].tolist() == everybody


def test_the_partners_true_labels_are_known_to_the_simulation_only() -> None:
    sides = small_sides()
    world = tear(sides, 0.25, seed=3)
    y = sides.train[LABELS].y.to_numpy()
    marks = sides.train[PARTNER].frame["mark"].tolist()
    site = world.fed.engine.site(PARTNER)  # type: ignore[attr-defined]
    rows = site.alignments["train"].unaligned
    expected = [y[marks.index(mark)] for mark in site.table_of("train").frame["mark"].iloc[rows]]
    assert world.partner_labels.tolist() == expected
    assert site.table_of("train").label is None


def test_numbers_and_categories_part() -> None:
    frame = pd.DataFrame({"age": [1.5, 2.0, 3.0], "PAY_0": [1, 2, 3], "PAY_AMT1": [10, 20, 30]})
    frame["city"] = ["a", "b", "a"]
    found = columns_of(Table(np.arange(3), frame))
    assert found == {LABELS: ["age", "PAY_AMT1"], PARTNER: ["PAY_0", "city"]}
    numbers = pd.DataFrame({name: [1.5, 2.0, 3.0] for name in "abc"})
    assert columns_of(Table(np.arange(3), numbers)) == {LABELS: ["a", "c"], PARTNER: ["b"]}


def test_a_third_party_has_some_of_the_partners_columns() -> None:
    two, three = (load_sides("breast-cancer", 0, 60, 20, parties) for parties in (2, 3))
    first, second = (three.train[name].feature_names for name in (PARTNER, "passive-2"))
    assert sorted([*first, *second]) == sorted(two.train[PARTNER].feature_names)
    world = tear(three, 0.5, seed=0)
    assert dict(world.fed.alignment.unaligned) == {LABELS: 30, PARTNER: 30, "passive-2": 30}


def test_rare_categories_are_one() -> None:
    frame = pd.DataFrame({"C1": [1] * 12 + [2, 3], "I1": range(14), "y": [0, 1] * 7})
    kinds: Any = {"C1": "nominal", "I1": "integer", "y": "binary"}
    train = Table(np.arange(14), frame, kinds=kinds, label="y")
    late = pd.DataFrame({"C1": [1, 2, 9], "I1": [1, 2, 3], "y": [0, 1, 0]})
    pooled, held_out = pool_rare(train, Table(np.arange(3), late, kinds=kinds, label="y"))
    assert pooled.frame["C1"].value_counts().to_dict() == {"1": 12, "rare": 2}
    assert held_out.frame["C1"].tolist() == ["1", "rare", "rare"]
    assert pooled.frame["I1"].tolist() == list(range(14))


def test_digits_are_images_in_two_halves() -> None:
    sides = load_sides("digits", 0, 100, 50)
    assert sides.is_image
    assert sides.metric == "accuracy"
    assert sides.train[PARTNER].blocks["image"].shape == (100, 1, 8, 4)
    assert len(sides.test[LABELS]) == 50
    with pytest.raises(ConfigError, match=r"no data set 'mnist'. Mend: one of"):
        load_sides("mnist", 0, None, None)


# ------------------------------------------------------------------ methods


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("image", [False, True])
def test_every_method_can_be_made(method: str, image: bool) -> None:
    model = make(method, Size(image, 500, 50_000), seed=3)
    assert model.seed == 3
    model._config()


# ------------------------------------------------------------------ doubt


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=12, max_size=60))
def test_doubt_is_judged_like_scikit_learn_does(rows: list[tuple[bool, int]]) -> None:
    wrong = np.array([each for each, _ in rows])
    doubt = np.array([each for _, each in rows]) / 5
    found = doubt_scores(wrong, doubt)
    assert len(found["errors by decile"]) == 10
    if 0 < wrong.sum() < len(wrong):
        assert found["auroc"] == pytest.approx(roc_auc_score(wrong, doubt))
    else:
        assert np.isnan(found["auroc"])


def test_deciles_go_from_sure_to_doubtful() -> None:
    doubt = np.linspace(0, 1, 100)
    found = doubt_scores(np.arange(100) >= 85, doubt)
    assert found["errors by decile"] == pytest.approx([0.0] * 8 + [0.5, 1.0])
    assert found["accuracy of the surest half"] == 1.0


def test_pseudo_labels_are_compared_with_the_truth() -> None:
    classes = np.array(["a", "b"])
    told = {
        "label": np.array([0, 1, 1, 0]),
        "chosen": np.array([True, True, True, False]),
        "kept": np.array([True, True, False, False]),
    }
    found = pseudo_scores(told, classes, np.array(["a", "b", "a", "b"]))
    assert found == {
        "rows before": 3,
        "before": pytest.approx(2 / 3),
        "rows after": 2,
        "after": 1.0,
    }
    assert pseudo_scores({}, classes, np.array(["a"])) == {}


# ------------------------------------------------------------------ runs


def test_a_run_says_what_it_measured() -> None:
    found = run_part(Part("digits", "AbsentMean", 20, 0, 150, 60, 1))
    assert found["metric"] == "accuracy"
    assert 0 <= found["value"] <= 100
    assert found["seconds"] > 0
    assert "label party's side" in found
    assert "partner's side, accuracy" in found
    assert 0 <= found["trust"]["auroc"] <= 1
    assert sum(each["rows"] for each in found["reliability"]) == 60
    right = sum(each["rows"] * each["accuracy"] for each in found["reliability"]) / 60
    assert 100 * right == pytest.approx(found["value"])
    assert 0 <= found["calibration error"] <= 1


def test_a_failed_run_is_a_row_of_its_own() -> None:
    parts = [
        Part("digits", "FedCVT", 0.1, 0, 200, 50, 1),  # not one row of the 200 overlaps
        Part("digits", "Local", 20, 1, 200, 50, 1),
    ]
    found = run_cells(run_part, parts)
    assert [("failed" in each) for each in found] == [True, False]
    (row,) = [row for row in summary(found) if "failed" in row]
    assert row["method"] == "FedCVT"


# ------------------------------------------------------------------ search


@pytest.mark.parametrize("data", ["adult", "cifar10"])
def test_every_trial_is_a_setting_of_its_method(data: str) -> None:
    size = Size(data == "cifar10", 5000, 50_000)
    for method in spaces(data):
        first, *others = trials(data, method, 6)
        assert first == "{}" and len(set(others)) == 5
        for each in others:
            set_trial(make(method, size, 0), each)


def test_on_images_a_trial_multiplies_what_the_method_has() -> None:
    model = make("SFHTL", Size(True, 5000, 50_000), 0)
    lr, epochs = model.lr, model.epochs
    set_trial(model, '{"×lr": 0.5, "×epochs": 1.5, "threshold": 0.8}')
    assert (model.lr, model.epochs, model.threshold) == (lr / 2, 1.5 * epochs, 0.8)


def test_nothing_is_chosen_by_the_fifth_that_is_tested() -> None:
    told, shown = (
        drawn_sides(Trial("digits", "VFL", 10, seed, "{}", 1000, test))
        for seed, test in ((20, False), (5, True))
    )
    rows = {
        name: set(each[LABELS].ids) for name, each in (("train", told.train), ("by", told.test))
    }
    tested = set(shown.test[LABELS].ids)
    assert len(tested) == 359 and len(rows["train"]) == 1000 and len(rows["by"]) == 438
    assert not tested & (rows["train"] | rows["by"] | set(shown.train[LABELS].ids))
    assert not rows["train"] & rows["by"]
    assert len(told.train[PARTNER].feature_names) == 32 and not told.train[PARTNER].blocks


def test_the_best_of_the_held_out_rows_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = trials("adult", "VFL", 4)[2]

    def measure(trial: Trial) -> dict[str, float]:
        return {"value": 70.0 + trial.overlap / 10 + (trial.settings == wanted)}

    monkeypatch.setattr("fedmend_bench.risa.search.measure", measure)
    scores = partial(measured, folder=str(tmp_path))
    (row,) = searched(["adult"], ["VFL"], [1.0, 10.0, 50.0], 4, 3000, scores)
    assert row["chosen"] == wanted
    assert (row["1 %"], row["10 %"], row["50 %"]) == pytest.approx((71.1, 72.0, 76.0))
    cells = [line["cell"] for line in Kept.at(tmp_path).all()]
    assert len(cells) == 4 + 2 * 2 + 9
    assert {each["settings"] for each in cells if each["test"]} == {wanted}
    assert not {each["seed"] for each in cells if each["test"]} & {20, 21, 22}


# ------------------------------------------------------------------ summaries


def made(method: str, overlap: float, value: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    trust = {"auroc": 0.9, "accuracy of the surest half": 1.0}
    return {
        "data": "cifar10",
        "method": method,
        "overlap": overlap,
        "seed": seed,
        "metric": "accuracy",
        "value": value,
        "seconds": 10.0,
        "trust": trust,
    } | more


def test_the_papers_numbers_stand_beside_ours() -> None:
    theirs = paper_table()
    assert theirs["cifar10", "RISA", 10.0] == 88.65
    assert theirs["criteo-tiny", "LocalVFL", 50.0] == 77.27
    assert {method for _, method, _ in theirs} <= set(METHODS)
    (row,) = summary([made("VFL", 10.0, 70.0), made("VFL", 10.0, 72.0, 1)])
    assert (row["10 %"], row["paper 10"], row["seeds"]) == (71.0, 70.47, 2)
    assert row["± 10"] == pytest.approx(2**0.5)


def test_promises_compare_with_local_and_with_the_best() -> None:
    uncertain = {"uncertainty": {"auroc": 0.85, "accuracy of the surest half": 1.0}}
    found = [
        made("Local", 10.0, 82.0),
        made("LocalVFL", 10.0, 86.0),
        made("RISA", 10.0, 85.8, **uncertain),
        made("LocalVFL", 50.0, 90.5),
        made("RISA", 50.0, 90.0, **uncertain),
    ]
    bars = {bar.name: bar for bar in promises(found)}
    assert bars["cifar10, 10 %: RISA over Local"].holds
    assert bars["cifar10, 10 %: RISA over the best (LocalVFL)"].holds
    assert not bars["cifar10, 50 %: RISA over the best (LocalVFL)"].holds
    assert bars["cifar10, 10 %: RISA"].holds
    assert bars["cifar10, 50 %: AUROC of RISA's uncertainty"].value == pytest.approx(0.85)
    assert promises([made("Local", 10.0, 82.0)]) == []


def test_selection_must_raise_the_accuracy_of_pseudo_labels() -> None:
    told = {"pseudo-labels": {"before": 0.7, "after": 0.6}}
    (bar,) = [b for b in promises([made("RISA", 10.0, 80.0, **told)]) if "selection" in b.name]
    assert not bar.holds
    told = {"pseudo-labels": {"before": 0.7, "after": 0.7}}
    runs = [made(method, 10.0, 80.0, **told) for method in ("RISA self-trained", "RISA paper()")]
    (bar,) = promises(runs)
    assert (bar.name, bar.holds) == ("cifar10, 10 %: selection's gain (RISA self-trained)", False)


def test_wrong_options_are_told() -> None:
    for wrong in ({"data": "mnist"}, {"methods": "VLF"}, {"overlaps": [0]}):
        with pytest.raises(ConfigError, match="no 'mnist'|did you mean 'VFL'|between 0 and 100"):
            run(**wrong)


@pytest.mark.slow
def test_a_quick_run_through_the_registry(tmp_path: Path) -> None:
    options = {"methods": "Local,LocalVFL", "epochs": 1, "folder": str(tmp_path)}
    result = run_bench("risa", quick=True, options=options)
    assert [row["method"] for row in result.rows] == ["Local", "LocalVFL"]
    assert len(Kept.at(tmp_path).all()) == 2


@pytest.mark.slow
def test_cost_is_measured_on_the_same_network() -> None:
    rng = np.random.default_rng(0)
    sides = {}
    for name in (LABELS, PARTNER):
        frame = {"y": rng.integers(0, 10, 120)} if name == LABELS else {}
        kinds = {"y": "nominal"} if name == LABELS else None
        images = rng.integers(0, 256, (120, 1, 8, 4), dtype=np.uint8)
        label = "y" if name == LABELS else None
        sides[name] = Table(
            np.arange(120), frame, label=label, kinds=kinds, blocks={"image": images}
        )
    pair = Sides("noise", sides, sides)
    size = Size(True, 120, 120, 4)
    assert len(one_piece_epochs(pair, size)) == 4
    assert len(split_epochs(pair, size)) == 3
