"""`fm.Auto`: never worse than alone, per kind of row, with an honest score; kept like any model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.errors import ConfigError, ResumeError
from fedmend.methods.auto import auto as module
from fedmend.report.page import render
from fedmend.report.record import RunRecord

N, KNOWN = 900, 240
QUICK: dict[str, Any] = {"folds": 2, "settings": {"epochs": 6, "trees": 15, "members": 2}}
BRIEF = QUICK | {"settings": {"epochs": 1, "trees": 4, "refit": False}}


def people(seed: int = 0, label: str = "class") -> pd.DataFrame:
    """Half of what decides is the telco's; "noise" columns say nothing."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(N, 6)), columns=list("abcdef"))
    score = frame["a"] + frame["d"] * 1.5 + 0.5 * frame["b"] * frame["a"]
    score += rng.normal(size=N) * 0.4
    frame["y"] = score if label == "number" else np.where(score > 0, "yes", "no")
    if label == "three":
        frame["y"] = np.select([score < -1, score < 1], ["low", "middle"], "high")
    if label == "count":
        frame["y"] = rng.poisson(np.exp(score / 2))
    return frame


def federation(frame: pd.DataFrame, telco: str = "def") -> fm.Federation:
    """600 rows to train on, 240 of them known to the telco; of 250 test rows it knows 150.

    50 further test rows only the telco knows.
    """

    def table(rows: Sequence[int], columns: str, label: str | None = None) -> fm.Table:
        names = [*columns, *([label] if label else [])]
        return fm.Table(list(rows), frame.iloc[list(rows)][names], label=label)

    train, test, both = range(600), range(600, 850), [*range(600, 750), *range(850, N)]
    fed = fm.Federation(
        fm.Party("bank", table(train, "abc", "y"), test=table(test, "abc", "y")),
        fm.Party("telco", table(range(KNOWN), telco), test=table(both, telco)),
        seed=1,
    )
    fm.align(fed)
    fm.align(fed.on("test"))
    return fed


@pytest.fixture(scope="module")
def fitted() -> tuple[fm.Federation, fm.Auto]:
    fed = federation(people())
    return fed, fm.Auto(**QUICK).fit(fed)


def test_partners_are_heard_where_they_help(fitted) -> None:
    fed, model = fitted
    test = fed.on("test")
    choice = model.choice_
    assert "Federation pays here" in choice["why"][0]
    assert [each["name"] for each in choice["candidates"]] == [
        "local", "local-trees", "boosting", "risa",
    ]  # fmt: skip
    own = max(fm.Local(epochs=6).fit(fed).evaluate(test)["auc"], 0.5)
    assert model.evaluate(test, rows="aligned")["auc"] > own + 0.08
    alone = model.evaluate(test, rows="bank")["auc"]
    trees = fm.LocalTrees(trees=15).fit(fed).evaluate(test, rows="bank")["auc"]
    assert alone > trees - 0.05, "100 rows: chance is wide"
    told = choice["kinds"]
    assert (told["shared"]["rows"], told["alone"]["rows"]) == (KNOWN, 360)
    for kind, rows in (("shared", "aligned"), ("alone", "bank")):
        low, high = told[kind]["interval"]
        assert low < told[kind]["score"] < high
        assert low - 0.1 < model.evaluate(test, rows=rows)["auc"] < high + 0.1, "100 rows"


def test_in_folds_nothing_trains_longer_than_a_weight_needs(monkeypatch) -> None:
    trained = []
    fit = fm.LocalTrees.fit

    def noted(model: fm.LocalTrees, *given: Any, **more: Any) -> fm.LocalTrees:
        trained.append((model.refit, model.patience))
        return fit(model, *given, **more)

    monkeypatch.setattr(fm.LocalTrees, "fit", noted)
    settings = {"trees": 4, "patience": 9}
    fm.Auto(candidates=("local-trees",), folds=2, settings=settings).fit(federation(people()))
    assert trained == [(False, 4), (False, 4), (True, 9)], "two folds, and the model that is kept"


def test_what_is_kept_of_several_classes_trains_as_long_as_by_itself(monkeypatch) -> None:
    lengths = []
    config = fm.RISA._config

    def noted(model: fm.RISA, rows: int | None = None) -> Any:
        made = config(model, rows)
        if rows is None:  # parameters are looked at
            return made
        lengths.append(made.epochs)
        return replace(made, epochs=1)

    monkeypatch.setattr(fm.RISA, "_config", noted)
    how = {"candidates": ("risa",), "folds": 2, "settings": {"members": 2}}
    fm.Auto(**how).fit(federation(people(label="three")))
    assert lengths == [8, 8, 12], "two folds, and the model that is kept"


def test_the_folds_say_how_many_trees_are_kept(tmp_path) -> None:
    """Of the fold's rows 1 - validation are trained on; of all rows as many more trees."""
    how = {"candidates": ("local-trees",), "folds": 3, "settings": {"trees": 40}}
    model = fm.Auto(**how).fit(federation(people()), checkpoint=tmp_path)
    lengths = json.loads((tmp_path / "folds.json").read_text())["tried"]["local-trees"][2]
    (kept,) = model.network_.members.values()
    assert len(lengths) == 3
    assert kept.trees == round(float(np.median(lengths)) / (2 / 3 * 0.85))
    assert kept.network_.best_epoch == kept.trees and kept.validation == 0
    asked = fm.Auto(**how | {"settings": {"trees": 40, "refit": False}}).fit(federation(people()))
    (own,) = asked.network_.members.values()
    assert own.validation == 0.15, "who does not want it trained on all rows is heard"


def test_of_few_rows_of_several_classes_a_fold_grows_half_as_many_trees(monkeypatch) -> None:
    """Each at twice the learning rate, so that one in a fold is worth two that are kept."""
    grown, fit = [], fm.LocalTrees.fit

    def noted(model: fm.LocalTrees, *given: Any, **how: Any) -> fm.LocalTrees:
        fit(model, *given, **how)
        grown.append((model.learning_rate, model.network_.best_epoch))
        return model

    monkeypatch.setattr(fm.LocalTrees, "fit", noted)
    how = {"candidates": ("local-trees",), "folds": 2, "settings": {"trees": 60}}
    fm.Auto(**how).fit(federation(people(label="three")))
    (rate, one), (_, other), (usual, kept) = grown
    assert (rate, usual) == (0.2, 0.1)
    assert kept == round((one + other) / (1 / 2 * 0.85)), "twice the mean of two, of more rows"


def test_every_kind_of_row_is_answered(fitted) -> None:
    fed, model = fitted
    test = fed.on("test")
    everybody = model.predict_proba(test, rows="all")
    assert everybody.shape == (250, 2) and np.allclose(everybody.sum(1), 1)
    shared = model.predict_table(test, rows="aligned")
    assert {"prediction", "p(yes)", "uncertainty", "share(bank)", "share(telco)"} <= set(shared)
    places = test.engine.site("bank").alignments["test"].aligned
    assert np.allclose(everybody[places, 1], shared["p(yes)"]), "in the order of the table"
    report = model.uncertainty_report(test, rows="aligned")
    assert report["rows"] == 150 and report["auroc"] > 0.55
    foreign = model.predict_proba(test, rows="telco")
    assert foreign.shape == (50, 2) and np.ptp(foreign[:, 1]) > 0.1, "by the partner's columns"


def test_saved_and_loaded_it_says_the_same(fitted, tmp_path) -> None:
    fed, model = fitted
    test = fed.on("test")
    expected = model.predict_proba(test, rows="all")
    model.save(tmp_path / "kept")
    assert model.hand_out(tmp_path / "kept", parties=["telco"])[0].startswith("telco cannot")
    loaded = fm.Auto.load(tmp_path / "kept", fed)
    assert np.array_equal(loaded.predict_proba(test, rows="all"), expected)
    assert loaded.choice_ == model.choice_ and loaded.get_params() == model.get_params()
    moved = model.to(federation(people()))
    assert np.array_equal(moved.predict_proba(moved.fed_.on("test"), rows="all"), expected)
    # The label party by itself, with nothing but its own folder.
    table = fed.engine.site("bank").tables["test"]
    alone = fm.Federation(fm.Party("bank", table, home=tmp_path / "kept"))
    own = fm.Auto.load(tmp_path / "kept" / "bank", alone).predict_proba(alone, rows="all")
    assert own.shape == (250, 2)
    unknown = np.setdiff1d(np.arange(250), test.engine.site("bank").alignments["test"].aligned)
    assert np.allclose(own[unknown], expected[unknown]), "rows that nobody else knows"


@pytest.fixture(scope="module")
def three() -> fm.Federation:
    """Of 600 rows telco and shop know 250 each, 20 of them both; 250 test rows all know."""
    frame, test = people(), range(600, 850)

    def party(name: str, rows: range, columns: str, label: str | None = None) -> fm.Party:
        names = [*columns, *([label] if label else [])]
        train, tested = (
            fm.Table(list(each), frame.iloc[list(each)][names], label=label)
            for each in (rows, test)
        )
        return fm.Party(name, train, test=tested)

    fed = fm.Federation(
        party("bank", range(600), "abc", "y"),
        party("telco", range(250), "d"),
        party("shop", range(230, 480), "ef"),
        seed=1,
    )
    fm.align(fed)
    fm.align(fed.on("test"))
    return fed


def test_rows_that_one_of_several_partners_knows_are_judged_with_it(three, tmp_path) -> None:
    """Where the two have aligned their tables: 20 rows known to all are too few to judge by."""
    how = QUICK | {"candidates": ("local-trees", "boosting", "local-vfl")}
    without = fm.Auto(**how).fit(three).evaluate(three.on("test"))["auc"]
    for name in ("telco", "shop"):
        fm.align(three.only("bank", name))
    model = fm.Auto(**how).fit(three, checkpoint=tmp_path)
    scores = model.choice_["candidates"]
    rows = {kind: told["rows"] for kind, told in model.choice_["kinds"].items()}
    assert rows == {"shared": 480, "alone": 120}
    assert model.choice_["words"]["shared"] == "rows known to a partner"
    trees, boosting, _ = (each["scores"]["shared"]["score"] for each in scores)
    assert boosting > trees + 0.05
    assert model.evaluate(three.on("test"))["auc"] > without + 0.05
    again = fm.Auto(**how).fit(three, checkpoint=tmp_path, resume=True)
    assert again.choice_["kinds"] == model.choice_["kinds"]


def test_a_useless_partner_is_not_heard() -> None:
    frame = people(3)
    frame[["d", "e", "f"]] = np.random.default_rng(9).normal(size=(N, 3))
    how = QUICK | {"candidates": ("local", "local-trees", "vfl"), "folds": 2}
    model = fm.Auto(**how).fit(federation(frame))
    assert "does not pay" in model.choice_["why"][0] or "not certain" in model.choice_["why"][0]
    weights = model.network_.weights["alone"]
    assert not weights.get("vfl")


@pytest.mark.parametrize(
    ("apart", "interval", "heard", "said"),
    [
        (0.02, [0.01, 0.03], 0.5, "Federation pays here"),
        (0.01, [-0.01, 0.03], 0.0, "Whether federation pays here is not certain"),
        (0.0, [-0.01, 0.01], 0.4, "Whether federation pays here is not certain"),
        (0.0, [-0.01, 0.01], 0.0, "Federation does not pay here: beside the label party's own"),
        (0.0, [0.0, 0.0], 0.0, "Federation does not pay here: no model that asks partners"),
        (-0.02, [-0.03, -0.01], 0.4, "Federation does not pay here"),
    ],
)
def test_whether_federation_pays_agrees_with_who_is_heard(apart, interval, heard, said) -> None:
    candidates = [
        {"name": "local", "weights": {"shared": 0.6}},
        {"name": "risa", "weights": {"shared": heard}},
    ]
    kinds = {"shared": {"apart": apart, "apart_interval": interval}}
    choice = {"metric": "auc", "kinds": kinds, "candidates": candidates, "chosen": ""}
    assert module._worth(choice).startswith(said)


def test_a_smaller_error_is_told_as_a_smaller_error() -> None:
    kinds = {"shared": {"apart": -342.889, "apart_interval": [-439.904, -268.49]}}
    choice = {"metric": "rmse", "kinds": kinds, "candidates": [], "chosen": ""}
    assert module._worth(choice) == (
        "Federation pays here: beside the label party's own models RMSE -342.9, 95 % interval "
        "-439.9 to -268.5."
    )


def test_completed_rows_that_say_nothing_are_left_out(whole_training) -> None:
    frame = people(4)
    frame[["d", "e", "f"]] = np.random.default_rng(8).normal(size=(N, 3))
    fed = federation(frame)
    quick = {"model": "linear", "correlation_mode": "dealer", "generator_params": {"epochs": 1}}
    mended = fm.FedPSGPUM(source="bank", tau=0.0, min_skill=None, **quick).fit(fed)
    how = QUICK | {"candidates": ("local", "vfl"), "folds": 2}
    model = fm.Auto(**how).fit(fed, completed=mended.federation)
    completed = next(each for each in model.choice_["candidates"] if each["completed"])
    assert not completed["skipped"] and not any(completed["weights"].values())
    assert list(model.network_.members) == ["local"]
    (said,) = [line for line in model.choice_["why"] if line.startswith("Completing rows")]
    assert said.startswith("Completing rows does not pay here")


@pytest.mark.daily("number-auto-rmse")
@pytest.mark.parametrize(
    ("label", "task", "metric"),
    [("number", "auto", "rmse"), ("count", "count", "rmse"), ("three", "auto", "auc")],
)
def test_every_kind_of_label(label, task, metric) -> None:
    fed = federation(people(1, label))
    names = ("local-trees", "boosting")
    how = {"candidates": names, "task": task, "folds": 2, "settings": {"trees": 10}}
    model = fm.Auto(**how).fit(fed)
    assert model.choice_["metric"] == metric
    test, one = fed.on("test"), fm.LocalTrees(trees=10, task=task).fit(fed)
    together, alone = model.evaluate(test)[metric], one.evaluate(test, rows="aligned")[metric]
    # Of 150 counts chance decides more than the partner.
    slack = 1.1 if label == "count" else 1.0
    assert (together < alone * slack) if metric == "rmse" else (together > alone)
    assert len(model.predict(test, rows="all")) == 250


def test_a_score_that_no_row_can_tell_is_left_out() -> None:
    """A class that is typed otherwise in a few rows, all of them known to the telco."""
    frame = people()
    frame.loc[range(0, 36, 3), "y"] = "Yes "
    model = fm.Auto(candidates=["local", "local-trees"], **BRIEF).fit(federation(frame))
    assert model.choice_ is not None
    (alone,) = (line for line in model.choice_["why"] if "only the label party knows" in line)
    assert "AUC cannot be told, as a class is not among these 360 rows." in alone
    assert not any("nan" in line.split() for line in model.choice_["why"])
    assert [[*each["scores"]] for each in model.choice_["candidates"]] == [["shared"]] * 2
    record = RunRecord("few of a class", [], "auc", choice=model.choice_)
    assert "cannot be told" in render(record, [])


def test_an_interrupted_choice_goes_on(tmp_path, monkeypatch) -> None:
    how = BRIEF | {"candidates": ("local",)}
    whole = fm.Auto(**how).fit(federation(people()))
    one, done = module._Contest._one, []

    def until(last: int) -> None:
        def counted(self, number, *given):
            if number == last:
                raise KeyboardInterrupt
            done.append(number)
            one(self, number, *given)

        monkeypatch.setattr(module._Contest, "_one", counted)

    until(1)
    with pytest.raises(KeyboardInterrupt):
        fm.Auto(**how).fit(federation(people()), checkpoint=tmp_path)
    until(99)
    again = fm.Auto(**how).fit(federation(people()), checkpoint=tmp_path, resume=True)
    assert done == [0, 1], "no fold twice"
    assert again.choice_["kinds"] == whole.choice_["kinds"]


@pytest.mark.slow
def test_a_choice_of_other_settings_is_not_resumed(tmp_path) -> None:
    how = BRIEF | {"candidates": ("local",)}
    fm.Auto(**how).fit(federation(people()), checkpoint=tmp_path)
    other = how | {"settings": {"epochs": 5}}
    with pytest.raises(ResumeError, match="other settings or rows"):
        fm.Auto(**other).fit(federation(people()), checkpoint=tmp_path, resume=True)
    file = tmp_path / "folds.json"
    saved = json.loads(file.read_text())
    earlier = {slug: each[:2] for slug, each in saved["tried"].items()}  # as before lengths
    mark = saved["mark"].replace(f"({module.FOLDS_FORM}, ", "(", 1)
    file.write_text(json.dumps(saved | {"tried": earlier, "mark": mark}))
    with pytest.raises(ResumeError, match="other settings or rows"):
        fm.Auto(**how).fit(federation(people()), checkpoint=tmp_path, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize(("column", "party"), [("e", "telco"), ("y", "bank")])
def test_a_choice_does_not_go_on_with_other_rows(tmp_path, monkeypatch, column, party) -> None:
    """Broken off between two folds, when only what candidates said is kept."""
    how, one = BRIEF | {"candidates": ("local-trees", "boosting")}, module._Contest._one

    def broken_off(self, number, *given):
        if number == 1:
            raise TimeoutError
        one(self, number, *given)

    monkeypatch.setattr(module._Contest, "_one", broken_off)
    frame = people()
    with pytest.raises(TimeoutError):
        fm.Auto(**how).fit(federation(frame), checkpoint=tmp_path)
    frame.loc[[7, 8, 9], column] = frame.loc[[8, 9, 7], column].to_numpy()
    with pytest.raises(ResumeError, match=f"party '{party}': .*other rows"):
        fm.Auto(**how).fit(federation(frame), checkpoint=tmp_path, resume=True)


@pytest.mark.slow
def test_several_seeds_ask_about_the_same_folds() -> None:
    """With folds of its own each would ask about other rows, and all together about few."""
    fed = federation(people())
    how = BRIEF | {"candidates": ("vfl",), "folds": 3}
    for seed in (0, 1):
        model = fm.Auto(**how, seed=seed).fit(fed)
        assert not [each["skipped"] for each in model.choice_["candidates"] if each["skipped"]]


def test_scores_rest_on_enough_labelled_rows() -> None:
    """Of rows without a label nothing is told, however many there are."""
    frame = people()
    frame.loc[8:KNOWN, "y"] = None
    fed = federation(frame)
    model = fm.Auto(**BRIEF | {"candidates": ("local", "local-trees")}).fit(fed)
    assert list(model.choice_["kinds"]) == ["alone"], "8 labels among the rows known to all"


@pytest.mark.slow
def test_scarce_labels_make_fewer_folds() -> None:
    """Folds of the rows known to all go by no label: with five of them some would have few."""
    frame = people()
    frame.loc[np.random.default_rng(0).permutation(N)[120:], "y"] = None
    model = fm.Auto(**BRIEF | {"folds": 5, "candidates": ("local", "local-trees", "risa")})
    choice = model.fit(federation(frame)).choice_
    assert not [each["skipped"] for each in choice["candidates"] if each["skipped"]]
    assert set(choice["kinds"]) == {"shared", "alone"} and 2 <= choice["folds"] < 5


def test_what_cannot_be_trained_is_told_and_left_out() -> None:
    fed = federation(people(0, "number"))
    model = fm.Auto(**BRIEF | {"candidates": ("local-trees", "risa")}).fit(fed)
    risa = model.choice_["candidates"][1]
    assert risa["skipped"] and not risa["scores"]
    with pytest.raises(ConfigError, match="found no method that can be trained"):
        fm.Auto(**QUICK | {"candidates": ("risa",)}).fit(fed)


def test_a_party_with_labels_only_is_not_judged_on_rows_of_its_own() -> None:
    frame = people()
    tables = {name: fm.Table(range(200), frame.iloc[:200][list(name)]) for name in ("ab", "de")}
    labels = fm.Table(range(300), frame.iloc[:300][["y"]], label="y")
    fed = fm.Federation(fm.Party("registry", labels), *map(fm.Party, tables, tables.values()))
    fm.align(fed)
    model = fm.Auto(**BRIEF | {"folds": 2, "candidates": ("vfl", "risa")}).fit(fed)
    assert list(model.choice_["kinds"]) == ["shared"]
    assert not [each["skipped"] for each in model.choice_["candidates"] if each["skipped"]]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"candidates": ("sage",)}, "'sage' cannot be one"),
        ({"candidates": ("auto",)}, "'auto' cannot be one"),
        ({"folds": 1}, "folds"),
        ({"budget": 0.0}, "budget"),
        ({"candidates": ("vfl",), "settings": {"epochs": -1}}, "epochs"),
        ({"settings": {"weight_column": "w"}}, "would take the weight_column 'w' for one to learn"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_trained(params, said) -> None:
    with pytest.raises(ConfigError, match=said):
        fm.Auto(**params).check_params()


def test_few_common_rows() -> None:
    """They are trained on in every fold, and the others choose; without others nothing can."""
    frame = people()

    def few(rows: int) -> fm.Federation:
        table = fm.Table(range(rows), frame.iloc[:rows][["a", "y"]], label="y")
        other = fm.Table(range(rows - 15, rows), frame.iloc[rows - 15 : rows][["d"]])
        fed = fm.Federation(fm.Party("bank", table), fm.Party("telco", other))
        fm.align(fed, minimum=5)
        return fed

    how = BRIEF | {"candidates": ("local", "local-vfl")}
    model = fm.Auto(**how).fit(few(200))
    assert list(model.choice_["kinds"]) == ["alone"] and model.choice_["rows"] == 185
    assert model.predict_proba(model.fed_, rows="aligned").shape == (15, 2)
    with pytest.raises(ConfigError, match="15 rows known to all parties are too few"):
        fm.Auto(**how).fit(few(30))


def test_candidates_fit_the_tears() -> None:
    def slugs(fed: fm.Federation, completed: bool = False, numbers: bool = False) -> list[str]:
        return [each.slug for each in fm.Auto().entering(fed, numbers, completed)]

    torn, frame = federation(people()), people()
    assert slugs(torn) == ["local", "local-trees", "boosting", "risa"]
    assert slugs(torn, True)[4:] == ["vfl-completed"]
    # evidence is of classes; where the label is a number another network stands for it
    names = ["local", "local-trees", "boosting", "local-vfl"]
    assert slugs(torn, numbers=True) == names
    numbers = fm.Auto(**BRIEF).fit(federation(people(1, "number")))
    assert [each["name"] for each in numbers.choice_["candidates"]] == names
    assert not any(each["skipped"] for each in numbers.choice_["candidates"])
    table = fm.Table(range(N), frame[["a", "y"]], label="y")
    whole = fm.Federation(
        fm.Party("bank", table), fm.Party("telco", fm.Table(range(N), frame[["d"]]))
    )
    fm.align(whole)
    assert slugs(whole) == ["local", "local-trees", "vfl", "boosting"]
