"""SecureBoost: the trees of the same algorithm in the clear, whoever has which columns and rows."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score, roc_auc_score

import fedmend as fm
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, NotFitted, PrivacyWarning, ResumeError
from fedmend.federation import wire
from fedmend.methods.auto.folds import fold, forget, number_folds
from fedmend.methods.boosting import boost, secureboost
from fedmend.methods.boosting.bins import CutTable, LeftToAsk, bin_table, codes_of
from fedmend.methods.boosting.boost import Boosting, BoostSettings, OwnBins, Target, outputs_of
from fedmend.methods.boosting.grow import Growth
from fedmend.methods.boosting.secureboost import OWN_BINS, OwnColumns, PassiveTrees
from fedmend.serve.models import schema_of
from fedmend.split.labels import keep_confidence
from fedmend.split.parts import part_of

N = 700
OPEN = fm.Policy(min_rows=1)
SMALL: dict[str, Any] = {"trees": 8, "depth": 3, "bins": 12, "validation": 0.0}


def people(label: str = "class", seed: int = 0) -> pd.DataFrame:
    """Numbers, a nominal column and missing cells; the label needs columns of all parties."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(N, 6)).round(3), columns=list("abcdef"))
    frame["town"] = rng.choice(["Ulm", "Bonn", "Kiel", "Jena"], N)
    frame.loc[rng.random(N) < 0.15, "d"] = np.nan
    score = frame["a"] + 2 * np.tanh(frame["d"].fillna(1.0)) + frame["e"] * frame["b"]
    score += 1.5 * (frame["town"] == "Ulm") + rng.normal(size=N) * 0.3
    if label == "class":
        frame["y"] = np.where(score > 0.7, "yes", "no")
    elif label == "three":
        frame["y"] = np.select([score < 0, score < 1.2], ["low", "middle"], "high")
    elif label == "count":
        frame["y"] = rng.poisson(np.exp(score / 3))
    else:
        frame["y"] = score * 10 + 50
    return frame


def federation(
    frame: pd.DataFrame,
    columns: dict[str, list[str]] | None = None,
    *,
    train: slice = slice(0, 500),
    known: slice | dict[str, slice] = slice(0, 500),
    policy: fm.Policy = OPEN,
    policies: dict[str, fm.Policy] | None = None,
    strict: bool = False,
) -> fm.Federation:
    """The label party "bank" has the rows of `train`, the others those of `known`."""
    columns = columns or {"telco": ["d", "e", "town"], "bank": ["a", "b", "c", "f"]}
    parties = []
    for name, own in columns.items():
        tables, here = {}, known[name] if isinstance(known, dict) and name != "bank" else known
        for scope, rows in (("train", train if name == "bank" else here), ("test", slice(500, N))):
            names = [*own, "y"] if name == "bank" else own
            label = "y" if name == "bank" else None
            at = np.arange(N)[rows]
            tables[scope] = fm.Table(at, frame.iloc[at][names].reset_index(drop=True), label=label)
        own_policy = (policies or {}).get(name, policy)
        parties.append(fm.Party(name, tables["train"], test=tables["test"], policy=own_policy))
    fed = fm.Federation(*parties, seed=1, strict=strict)
    fm.align(fed)
    fm.align(fed.on("test"))
    return fed


def in_the_clear(
    frame: pd.DataFrame,
    columns: list[str],
    label: str = "class",
    least: int = 1,
    weights: np.ndarray | None = None,
    trees: int = 8,
    **growth: Any,
) -> np.ndarray:
    """What the same algorithm says of the test rows at one party, without a protocol."""
    table = fm.Table(np.arange(N), frame[columns])
    train = table.take(np.arange(500))
    few, many = bin_table(train, SMALL["bins"], least), bin_table(train, OWN_BINS, 1)
    bins = [b if b.column.name in "abcf" else a for a, b in zip(few, many, strict=True)]
    cuts = CutTable([each.layout for each in bins])
    own = OwnBins(codes_of(bins, table), cuts, [each.column.name for each in bins])
    y, classes, counts = frame["y"].to_numpy(), 0, label == "count"
    mean, scale = (y[:500].mean(), y[:500].std()) if label == "number" else (0.0, 1.0)
    if label in ("class", "three"):
        names, y = np.unique(y, return_inverse=True)
        classes = len(names)
    elif label == "number":
        y = (y - mean) / scale
    boosting = Boosting(
        {"label": Target(y, np.arange(500), classes, counts, weights=weights)},
        CutTable([]),
        own,
        Growth(depth=3, later_missing=True, min_rows=least, **growth),
        BoostSettings(trees, 0.0, 15, None, trees, 0),
        {},
    )
    boosting.grow_at_home(np.arange(500), N)
    found = outputs_of(boosting.tasks[0].final_scores(), classes, counts)[500:]
    return found * scale + mean


def told(model: fm.SecureBoost, fed: fm.Federation, label: str) -> np.ndarray:
    """Probabilities, or numbers, of all test rows."""
    say = model.predict_proba if label in ("class", "three") else model.predict
    return np.asarray(say(fed.on("test"), rows="all"))


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return people()


@pytest.fixture(scope="module")
def fed(frame: pd.DataFrame) -> fm.Federation:
    return federation(frame)


@pytest.fixture(scope="module")
def fitted(fed: fm.Federation) -> fm.SecureBoost:
    return fm.SecureBoost(**SMALL).fit(fed)


@pytest.fixture(scope="module")
def torn(frame: pd.DataFrame) -> fm.Federation:
    """200 people that both know, 300 that only the bank knows; and some only telco knows."""
    return federation(frame, known=slice(300, 560))


# ---------------------------------------------------------------------------------- lossless


@pytest.mark.daily("class", "count")
@pytest.mark.parametrize("label", ["class", "three", "number", "count"])
def test_trees_are_those_of_the_clear(label: str) -> None:
    """Numbers, a nominal column and missing cells at the partner, for every kind of label."""
    frame = people(label)
    fed = federation(frame)
    task = "count" if label == "count" else "auto"
    model = fm.SecureBoost(**SMALL, task=task).fit(fed)
    clear = in_the_clear(frame, ["d", "e", "town", "a", "b", "c", "f"], label)
    np.testing.assert_allclose(told(model, fed, label), clear, rtol=0, atol=1e-9)
    assert np.ptp(clear) > 0.5


@pytest.mark.daily("three", "number")
@pytest.mark.parametrize("label", ["class", "three", "number", "count"])
def test_whom_a_partner_does_not_know_has_missing_cells_there(label: str) -> None:
    joined = people(label)
    torn = federation(joined, known=slice(300, 560))
    task = "count" if label == "count" else "auto"
    model = fm.SecureBoost(**SMALL, task=task).fit(torn)
    joined.loc[:299, ["d", "e"]] = np.nan
    joined["town"] = joined["town"].where(np.arange(N) >= 300, None)
    clear = in_the_clear(joined, ["d", "e", "town", "a", "b", "c", "f"], label)
    np.testing.assert_allclose(told(model, torn, label), clear, rtol=0, atol=1e-9)


TORN = {"telco": slice(150, 560), "shop": slice(50, 350)}


def three_torn(
    frame: pd.DataFrame, pairs: bool = True, known: dict[str, slice] | None = None, **how: Any
) -> fm.Federation:
    """Rows that the bank knows with telco, with shop, with both, and alone."""
    columns = {"telco": ["d", "e"], "bank": ["a", "b", "c", "f"], "shop": ["town"]}
    fed = federation(frame, columns, known=known or TORN, **how)
    for name in TORN if pairs else ():
        fm.align(fed.only("bank", name))
    return fed


@pytest.mark.parametrize("mode", ["dealer", pytest.param("bfv", marks=pytest.mark.slow)])
def test_of_three_parties_each_takes_part_with_all_rows_it_shares(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trees of the left join in the clear, where each two have aligned their tables."""
    monkeypatch.setattr(secureboost, "WORTH_ASKING_LESS", 1.0)
    joined = people()
    fed = three_torn(joined)
    model = fm.SecureBoost(**SMALL | {"trees": 12}, mode=mode).fit(fed)
    rows = np.arange(N)
    joined.loc[rows < 150, ["d", "e"]] = np.nan
    joined["town"] = joined["town"].where(((rows >= 50) & (rows < 350)) | (rows >= 500), None)
    clear = in_the_clear(joined, ["d", "e", "a", "b", "c", "f", "town"], trees=12)
    np.testing.assert_allclose(told(model, fed, "class"), clear, rtol=0, atol=1e-9)


def test_a_partner_that_shares_few_rows_more_takes_part_with_those_all_know(
    frame: pd.DataFrame,
) -> None:
    """Fewer than its policy lets be told: other methods ask about the rows that all know."""
    few = TORN | {"telco": slice(150, 356)}
    policy = fm.Policy(min_rows=10)
    fed = three_torn(frame, known=few, policy=policy)
    alone = three_torn(frame, pairs=False, known=few, policy=policy)
    fm.align(alone.only("bank", "shop"))
    found = [told(fm.SecureBoost(**SMALL).fit(each), each, "class") for each in (fed, alone)]
    np.testing.assert_array_equal(*found)
    fm.VFL(epochs=1).fit(fed)


def test_folds_hold_out_rows_of_every_two() -> None:
    """What a partner knows besides is held out there, too, and can be predicted with it."""
    fed = three_torn(people())
    pairs = number_folds(fed, "bank", 3, 0, partners=[*TORN])
    assert pairs is not None
    train, held = fold(fed, 1, 3, 0, own="bank", pairs=pairs)
    tables = {name: fed.engine.site(name).tables for name in fed.names}
    everywhere: list[int] = []
    for name in TORN:
        trained, tested = (
            [fed.engine.site(each).alignments[view.only("bank", name).scope].aligned for each in
             ("bank", name)] for view in (train, held)
        )  # fmt: skip
        for dataset, aligned in (("train-fold1", trained), ("train-held1", tested)):
            ids = [
                tables[each][dataset].ids[rows]
                for each, rows in zip(("bank", name), aligned, strict=True)
            ]
            np.testing.assert_array_equal(*ids)
            everywhere += ids[0].tolist() if dataset == "train-held1" else []
        assert len(tested[0]) == held.only("bank", name).alignment.aligned > 30
        assert len(trained[0]) == train.only("bank", name).alignment.aligned
    assert len(everywhere) == len(set(everywhere))
    for own in tables.values():
        assert not set(own["train-fold1"].ids) & set(own["train-held1"].ids)
    model = fm.SecureBoost(**SMALL).fit(train)
    pair = held.only("bank", "shop")
    assert model.predict_proba(pair).shape == (pair.alignment.aligned, 2)
    forget(train, held)
    assert not [scope for scope in fed.engine.site("bank").alignments if "fold1" in scope]


def test_a_fold_without_rows_of_two_trains_on_those_the_label_party_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partner that is not told of it has rows that are held out; their numbers are zero."""
    fed = three_torn(people())
    assert number_folds(fed, "bank", 3, 0) == {}
    train, _ = fold(fed, 1, 3, 0, own="bank")
    for name in TORN:
        pair = train.only("bank", name)
        bank, other = (
            fed.engine.site(each).alignments[pair.scope].aligned for each in ("bank", name)
        )
        ids = [fed.engine.site(each).tables["train-fold1"].ids for each in ("bank", name)]
        held_out = bank == len(ids[0])  # only the bank knows it
        assert len(bank) == len(other) == pair.alignment.aligned and (other >= 0).all()
        assert 0 < held_out.sum() < len(bank) // 3
        np.testing.assert_array_equal(ids[0][bank[~held_out]], ids[1][other[~held_out]])
        assert not set(ids[1][other[held_out]]) & set(ids[0])
    heard = []
    for keeping in (1.0, 0.0):  # products over fewer and fewer bins, or over all
        monkeypatch.setattr(secureboost, "WORTH_ASKING_LESS", keeping)
        model = fm.SecureBoost(**SMALL | {"trees": 60, "depth": 5, "min_leaf": 2}).fit(train)
        heard.append(model.predict_proba(fed.on("test")))
    np.testing.assert_array_equal(*heard)


def test_a_partner_without_a_bin_is_no_hindrance_to_the_others(frame: pd.DataFrame) -> None:
    """Of 30 rows that all know no town is known often enough to have one."""
    policies = {"shop": fm.Policy(min_rows=25)}
    known = {"telco": slice(0, 500), "shop": slice(0, 30)}
    fed = three_torn(frame, pairs=False, known=known, policies=policies)
    model = fm.SecureBoost(**SMALL).fit(fed)
    gains = model.importance().groupby("party")["gain"].sum()
    assert gains["bank"] > 0.5 and gains.get("shop", 0.0) == 0.0


def test_outputs_weighed_at_once_are_those_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = people("three")
    train = fm.Table(np.arange(N), frame.drop(columns="y"))
    bins = bin_table(train, 30, 1)
    names = [each.column.name for each in bins]
    own = OwnBins(codes_of(bins, train), CutTable([each.layout for each in bins]), names)
    classes = np.unique(frame["y"], return_inverse=True)[1]
    targets = {
        "y": Target(classes, np.arange(500), 3),
        "a": Target(frame["a"].to_numpy(), np.arange(100, 600)),
    }

    def grown() -> list[np.ndarray]:
        settings, growth = BoostSettings(5, 0.0, 15, None, 5, 0), Growth(depth=3)
        boosting = Boosting(targets, CutTable([]), own, growth, settings, {})
        boosting.grow_at_home(np.arange(N), N)
        return [task.predictions() for task in boosting.tasks]

    together = grown()
    monkeypatch.setattr(boost, "CELLS", 0)
    for at_once, alone in zip(together, grown(), strict=True):
        assert np.array_equal(at_once, alone)


def test_a_cut_with_too_few_rows_is_passed_over_for_the_next() -> None:
    """Else no root that wants it is split, in any tree to come."""
    frame = people()
    rng = np.random.default_rng(3)
    frame["y"] = np.where(rng.random(N) < 0.1, "yes", "no")
    frame.loc[rng.permutation(500)[:12], ["a", "y"]] = [9.0, "yes"]
    fed = federation(frame, policy=fm.Policy(min_rows=20))
    model = fm.SecureBoost(**SMALL, min_leaf=1).fit(fed)
    part = part_of(fed.engine.sites["bank"], model.network_.model)
    assert all(tree.cut[1] >= 0 for tree in part.trees[0])


def test_leaves_that_a_policy_wants_larger_are_those_of_the_clear(frame: pd.DataFrame) -> None:
    fed = federation(frame, policy=fm.Policy(min_rows=20))
    model = fm.SecureBoost(**SMALL, min_leaf=1).fit(fed)
    columns = ["d", "e", "town", "a", "b", "c", "f"]
    clear = in_the_clear(frame, columns, least=20, min_leaf=1)
    np.testing.assert_allclose(told(model, fed, "class"), clear, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        ("dealer", {"trees": 12, "depth": 3, "bins": 6, "patience": 12}),
        ("bfv", {"trees": 3, "depth": 3, "bins": 4, "validation": 0.0}),
    ],
)
def test_sums_that_follow_from_known_sides_are_not_asked_for(
    torn: fm.Federation, monkeypatch: pytest.MonkeyPatch, mode: str, how: dict[str, Any]
) -> None:
    """Trees are the same to the bit; and no side is asked for twice, for a refit either."""
    asked: list[int] = []
    summed: list[int] = []
    goes_left, complete = CutTable.goes_left, LeftToAsk.complete
    tell = PassiveTrees.sides_for

    def telling(worker: PassiveTrees, to: str, request: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(
                CutTable, "goes_left", lambda *each: asked.append(each[1]) or goes_left(*each)
            )
            return tell(worker, to, request)

    monkeypatch.setattr(PassiveTrees, "sides_for", telling)
    monkeypatch.setattr(
        LeftToAsk, "complete", lambda *each: summed.append(each[1].shape[1]) or complete(*each)
    )
    model = fm.SecureBoost(**how, mode=mode).fit(torn)
    assert len(asked) == len(set(asked)) > 2
    stored = CutTable(part_of(torn.engine.sites["telco"], model.network_.model).layouts)
    assert stored.stored > max(summed)
    monkeypatch.setattr(secureboost, "WORTH_ASKING_LESS", -1.0)
    summed.clear()
    always = fm.SecureBoost(**how, mode=mode).fit(torn)
    assert not summed
    mine, other = (each.predict_proba(torn, rows="all") for each in (model, always))
    assert (mine == other).all()


@pytest.mark.parametrize("mode", ["bfv", "plain"])
def test_modes_grow_the_same_trees(frame: pd.DataFrame, fitted: fm.SecureBoost, mode: str) -> None:
    open_ = fm.Policy(min_rows=1, allow=frozenset({*fm.Policy().allow, "row"}))
    fed = federation(frame, policy=open_ if mode == "plain" else OPEN)
    how = {**SMALL, "trees": 2}
    masked = fm.SecureBoost(**how).fit(fed).predict_proba(fed.on("test"))
    if mode == "plain":
        with pytest.warns(PrivacyWarning, match="in the clear"):
            model = fm.SecureBoost(**how, mode=mode).fit(fed)
    else:
        model = fm.SecureBoost(**how, mode=mode).fit(fed)
    assert (model.predict_proba(fed.on("test")) == masked).all()


def test_three_parties_have_the_trees_of_two(frame: pd.DataFrame, fitted: fm.SecureBoost) -> None:
    three = federation(frame, {"telco": ["d", "e"], "shop": ["town"], "bank": ["a", "b", "c", "f"]})
    model = fm.SecureBoost(**SMALL).fit(three)
    two = fitted.predict_proba(fitted.fed_.on("test"), rows="all")
    mine = model.predict_proba(three.on("test"), rows="all")
    np.testing.assert_allclose(mine, two, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_with_enough_trees_it_is_as_good_as_scikit_learns(frame: pd.DataFrame) -> None:
    fed = federation(frame, policy=fm.Policy())
    model = fm.SecureBoost(trees=80, depth=3, patience=5).fit(fed)
    columns = frame[list("abcdef")].assign(town=frame["town"].astype("category"))
    truth = (frame["y"] == "yes").to_numpy()
    other = HistGradientBoostingClassifier(
        max_iter=80, max_depth=3, categorical_features="from_dtype"
    ).fit(columns[:500], truth[:500])
    theirs = roc_auc_score(truth[500:], other.predict_proba(columns[500:])[:, 1])
    assert model.evaluate(fed.on("test"))["auc"] > theirs - 0.02
    assert 10 < model.best_epoch_ == len(model.history_) <= 80


# ---------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("label", "task", "metric", "theirs"),
    [
        ("number", "auto", "r2", HistGradientBoostingRegressor),
        ("count", "count", "r2", partial(HistGradientBoostingRegressor, loss="poisson")),
        ("three", "auto", "accuracy", HistGradientBoostingClassifier),
    ],
)
def test_numbers_counts_and_several_classes(
    label: str, task: str, metric: str, theirs: Any
) -> None:
    frame = people(label)
    fed = federation(frame)
    model = fm.SecureBoost(trees=20, depth=3, validation=0.0, task=task).fit(fed)
    other = theirs(
        max_iter=20, max_depth=3, early_stopping=False, categorical_features="from_dtype"
    )
    columns = frame[list("abcdef")].assign(town=frame["town"].astype("category"))
    score = other.fit(columns[:500], frame["y"][:500]).score
    reference = score(columns[500:], frame["y"][500:])
    if label == "count":  # scikit-learn's score is the deviance explained
        reference = r2_score(frame["y"][500:], other.predict(columns[500:]))
    assert model.evaluate(fed.on("test"))[metric] > reference - 0.06
    predicted = model.predict(fed.on("test"), rows="all")
    assert set(predicted) <= set(frame["y"]) if label == "three" else (predicted > 0).all()


@pytest.mark.daily("dealer-three", "dealer-count", "bfv-class", "plain-number")
@pytest.mark.parametrize("label", ["class", "three", "number", "count"])
@pytest.mark.parametrize("mode", ["dealer", "bfv", "plain"])
def test_weighted_trees_are_those_of_the_clear(label: str, mode: str) -> None:
    frame = people(label).assign(w=np.random.default_rng(5).exponential(size=N).round(3) + 0.01)
    columns = {"telco": ["d", "e", "town"], "bank": ["a", "b", "c", "f", "w"]}
    allowed = fm.Policy(min_rows=1, allow=frozenset({*fm.Policy().allow, "row"}))
    fed = federation(frame, columns, policy=allowed if mode == "plain" else OPEN)
    how = {**SMALL, "trees": 2 if mode == "bfv" else 8, "mode": mode}
    how["task"] = "count" if label == "count" else "auto"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        model = fm.SecureBoost(**how, weight_column="w").fit(fed)
    names = ["d", "e", "town", "a", "b", "c", "f"]
    clear = in_the_clear(frame, names, label, weights=frame["w"].to_numpy(), trees=how["trees"])
    np.testing.assert_allclose(told(model, fed, label), clear, rtol=0, atol=1e-9)
    assert np.abs(clear - in_the_clear(frame, names, label, trees=how["trees"])).max() > 0.01


@pytest.mark.parametrize("label", ["class", "three", "number", "count"])
def test_a_whole_weight_is_the_row_so_many_times(label: str) -> None:
    """Of columns with few values, whose bins are the same; without a row's own in the model."""
    frame = people(label).drop(columns=["town"])
    frame[list("abcdef")] = frame[list("abcdef")].round(0)
    times = np.random.default_rng(6).integers(0, 4, 500)
    how: dict[str, Any] = {**SMALL, "task": "count" if label == "count" else "auto"}
    test = fm.Table(np.arange(500, N), frame[500:].reset_index(drop=True), label="y")
    said = []
    for train, column in (
        (frame[:500].assign(w=times), "w"),
        (frame.loc[np.repeat(np.arange(500), times)], None),
    ):
        table = fm.Table(np.arange(len(train)), train.reset_index(drop=True), label="y")
        fed = fm.Federation(fm.Party("bank", table, test=test, policy=OPEN))
        said.append(told(fm.LocalTrees(**how, weight_column=column).fit(fed), fed, label))
    np.testing.assert_allclose(*said, rtol=1e-9, atol=1e-9)
    assert np.ptp(said[0]) > 0.5


def test_rows_held_out_are_judged_by_their_weights() -> None:
    """Where all that counts of them is of one class, later trees are judged by that class."""
    y = np.zeros(40, np.int64)
    y[:10] = 1
    held = Target(y, np.arange(40), 2, weights=np.where(y == 1, 1.0, 1e-9))
    boosting = Boosting(
        {"label": held},
        CutTable([]),
        OwnBins.none(40),
        Growth(),
        BoostSettings(1, 0.5, 5, None, 1, 0),
        {},
    )
    (task,) = boosting.tasks
    task.outputs[0].scores = np.full(40, 2.0)
    assert task.loss(task.held_out) == pytest.approx(np.log1p(np.exp(-2.0)), rel=1e-6)
    assert task.starts[0] > 0


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-1.5, r"party 'bank', column 'w'.*number from 0 on.*-1.5.*Mend: "),
        (np.nan, r"party 'bank', column 'w'.*number from 0 on.*nan"),
        (None, r"party 'bank', column 'w'.*less than one leaf's min_leaf=20"),
    ],
)
def test_weights_that_cannot_be(frame: pd.DataFrame, weight: float | None, message: str) -> None:
    weighted = frame.assign(w=1.0 if weight is not None else 1e-3)
    if weight is not None:
        weighted.loc[3, "w"] = weight
    fed = federation(weighted, {"telco": ["d", "e"], "bank": ["a", "b", "w"]})
    with pytest.raises(DataError, match=message):
        fm.SecureBoost(**SMALL, weight_column="w").fit(fed)


@pytest.mark.parametrize(("column", "message"), [("x", "column 'x'"), ("y", "besides the label")])
def test_a_weight_column_is_another_column(fed: fm.Federation, column: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"party 'bank'.*{message}"):
        fm.SecureBoost(**SMALL, weight_column=column).fit(fed)


@pytest.mark.daily("False")
@pytest.mark.parametrize("auto", [False, True])
def test_new_rows_need_no_weights(frame: pd.DataFrame, tmp_path: Path, auto: bool) -> None:
    columns = {"telco": ["d", "e"], "bank": ["a", "b", "w"]}
    fed = federation(frame.assign(w=2.0), columns)
    how = {**SMALL, "weight_column": "w"}
    method: Any = fm.SecureBoost(**how)
    if auto:
        method = fm.Auto(candidates=("local-trees", "boosting"), folds=2, settings=how)
    model = method.fit(fed)
    model.save(tmp_path / "model")
    schema = schema_of(tmp_path / "model" / "bank")
    assert schema is not None and list(schema) == ["a", "b"]
    other = federation(frame, columns | {"bank": ["a", "b"]})
    again = type(model).load(tmp_path / "model", other)
    mine, later = (each.predict_proba(at.on("test")) for each, at in ((model, fed), (again, other)))
    assert (mine == later).all()


def test_a_negative_count_is_named() -> None:
    frame = people("count")
    frame.loc[3, "y"] = -2
    with pytest.raises(DataError, match=r"party 'bank', column 'y'.*-2.*Mend: task = "):
        fm.SecureBoost(**SMALL, task="count").fit(federation(frame))


def test_labels_through_randomised_response(frame: pd.DataFrame) -> None:
    fed = federation(frame)
    model = fm.SecureBoost(trees=30, depth=2, validation=0.0, label_dp=3.0).fit(fed)
    assert model.privacy_["epsilon"] == 3.0
    assert model.evaluate(fed.on("test"))["auc"] > 0.8


# ---------------------------------------------------------------------------------- rows


def test_every_kind_of_row_is_answered(torn: fm.Federation) -> None:
    model = fm.SecureBoost(trees=30, depth=3, validation=0.0).fit(torn)
    local = fm.LocalTrees(trees=30, depth=3, validation=0.0).fit(torn)
    test = torn.on("test")
    both = model.evaluate(test, rows="aligned")
    assert both["auc"] > local.evaluate(test)["auc"] + 0.03
    # Of the bank's 500 people 300 are known to it alone: they train the trees, and are predicted.
    alone = model.predict_proba(torn, rows="bank")
    assert alone.shape == (300, 2)
    assert model.evaluate(torn, rows="bank")["auc"] > 0.7
    strangers = model.predict_proba(torn, rows="telco")
    assert strangers.shape == (60, 2) and np.ptp(strangers[:, 0]) > 0.2
    said = model.predict_table(test)
    shares = said[["share(bank)", "share(telco)"]]
    assert shares.sum(axis=1).round(4).eq(1).all()


def test_completed_cells_are_missing_ones_to_trees(
    frame: pd.DataFrame, torn: fm.Federation
) -> None:
    site = (mended := federation(frame)).engine.sites["telco"]
    seen = np.where(np.arange(500) < 300, 0.6, 1.0)
    keep_confidence(site, "train", {name: seen for name in ("d", "e", "town")})
    model = fm.SecureBoost(**SMALL).fit(mended)
    mine = model.predict_proba(mended.on("test"), rows="all")
    known = fm.SecureBoost(**SMALL).fit(torn).predict_proba(torn.on("test"), rows="all")
    np.testing.assert_allclose(mine, known, rtol=0, atol=1e-9)
    strangers = model.predict_proba(mended, rows="all")[:300]
    np.testing.assert_allclose(strangers, model.to(torn).predict_proba(torn, rows="bank"))


@pytest.mark.parametrize(
    ("party", "changed", "message"),
    [
        ("bank", {"a": "high"}, "party 'bank', column 'a': the type changed: expected numbers"),
        ("telco", {"town": 7.5}, "party 'telco', column 'town': the type changed: expected text"),
        ("telco", {"town": None}, "party 'telco', column 'town': there is no such column"),
    ],
)
def test_new_rows_have_the_columns_of_training(
    frame: pd.DataFrame, party: str, changed: dict[str, Any], message: str
) -> None:
    fed = federation(frame)
    model = fm.SecureBoost(**SMALL).fit(fed)
    site = fed.engine.site(party)  # type: ignore[attr-defined]
    rows = site.tables["test"].frame.assign(**changed)
    new = rows.dropna(axis=1, how="all")
    site.tables["test"] = fm.Table(site.tables["test"].ids, new, label=site.tables["test"].label)
    with pytest.raises(DataError, match=message):
        model.predict(fed.on("test"))


def test_the_label_partys_trees_need_nobody(frame: pd.DataFrame) -> None:
    own = fm.Table(np.arange(N), frame[["a", "b", "c", "y"]], label="y")
    fed = fm.Federation(fm.Party("bank", own))
    model = fm.LocalTrees(**SMALL).fit(fed)
    assert model.evaluate(fed)["auc"] > 0.7
    assert not {"side", "masked"} & fed.ledger.kinds()
    bare = fm.Table(np.arange(N), frame[["y"]], label="y")
    with pytest.raises(DataError, match="labels only"):
        fm.LocalTrees().fit(fm.Federation(fm.Party("bank", bare)))


# ---------------------------------------------------------------------------------- going on


class Killed(Exception):
    """Stands for a process that is ended between two trees."""


def killed_at(tree: int, stage: int) -> Any:
    seen: list[int] = []

    def progress(name: str, done: int, total: int, metrics: dict[str, float]) -> None:
        seen.append(done)
        if done == tree and seen.count(1) == stage:
            raise Killed

    return progress


@pytest.mark.parametrize(("stage", "strict"), [(1, True), (2, False)])
def test_an_interrupted_training_goes_on_to_the_bit(
    frame: pd.DataFrame, tmp_path: Path, stage: int, strict: bool
) -> None:
    """In the stage that counts trees and in the one that grows them on all rows."""
    how: dict[str, Any] = {"trees": 16, "depth": 3, "bins": 12}
    whole = federation(frame, known=slice(200, 560))
    undisturbed = fm.SecureBoost(**how).fit(whole)
    fed = federation(frame, known=slice(200, 560), strict=strict)
    with pytest.raises(Killed):
        fm.SecureBoost(**how).fit(fed, checkpoint=tmp_path, progress=killed_at(14, stage))
    done: list[int] = []
    fresh = federation(frame, known=slice(200, 560), strict=strict)
    resumed = fm.SecureBoost(**how).fit(
        fresh, checkpoint=tmp_path, resume=True, progress=lambda _, tree, *rest: done.append(tree)
    )
    assert done[0] == 11 and done.count(1) == (stage == 1)
    assert resumed.best_epoch_ == undisturbed.best_epoch_
    mine = resumed.predict_proba(fresh.on("test"), rows="all")
    assert (mine == undisturbed.predict_proba(whole.on("test"), rows="all")).all()
    assert resumed.importance().equals(undisturbed.importance())
    other = {**how, "depth": 2}
    with pytest.raises(ResumeError, match="other settings, parties or rows"):
        fm.SecureBoost(**other).fit(fresh, checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize(("column", "party"), [("d", "telco"), ("a", "bank"), ("y", "bank")])
def test_trees_do_not_go_on_with_other_rows(
    frame: pd.DataFrame, tmp_path: Path, column: str, party: str
) -> None:
    """The two rows swapped have one bin, or one class, more and less: layouts are the same."""
    how: dict[str, Any] = {"trees": 12, "depth": 2, "bins": 8, "validation": 0.0}
    fm.SecureBoost(**how).fit(federation(frame), checkpoint=tmp_path)
    other = frame.copy()
    rows = frame.index[:500][[frame[column][:500].argmin(), frame[column][:500].argmax()]]
    other.loc[rows, column] = frame.loc[rows[::-1], column].to_numpy()
    with pytest.raises(ResumeError, match=f"party '{party}': .*other rows.*Mend"):
        fm.SecureBoost(**how).fit(federation(other), checkpoint=tmp_path, resume=True)
    assert fm.SecureBoost(**how).fit(federation(frame), checkpoint=tmp_path, resume=True)


def test_without_a_refit_the_trees_up_to_the_best_stay(frame: pd.DataFrame) -> None:
    fed = federation(frame)
    model = fm.SecureBoost(trees=40, depth=3, patience=5, refit=False).fit(fed)
    part = part_of(fed.engine.sites["bank"], model.network_.model)
    assert [len(trees) for trees in part.trees] == [model.best_epoch_] == [len(model.history_)]


# ---------------------------------------------------------------------------------- importance


def test_what_both_parties_tell_together_is_not_stopped_by_rows_of_one() -> None:
    """The label is the sign of a product across parties: most held-out rows can tell nothing."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(rng.normal(size=(N, 4)), columns=list("abde"))
    frame["y"] = np.where(frame["a"] * frame["d"] + 0.2 * rng.normal(size=N) > 0, "yes", "no")
    columns = {"telco": ["d", "e"], "bank": ["a", "b"]}
    fed = federation(frame, columns, known=slice(0, 160))
    model = fm.SecureBoost(trees=60, depth=4, validation=0.3, seed=1).fit(fed)
    assert model.network_.best_epoch > boost.HARDLY and not model.notes_
    assert model.evaluate(fed.on("test"))["auc"] > 0.8
    asks_more = replace(OPEN, min_rows=boost.SHARED_TO_JUDGE + 1)
    kept = federation(frame, columns, known=slice(0, 160), policy=asks_more)
    model = fm.SecureBoost(trees=60, depth=4, validation=0.3, seed=1).fit(kept)
    assert model.network_.best_epoch <= boost.HARDLY, "so few rows may not tell how many trees"
    frame["y"] = rng.permutation(frame["y"])
    alone = fm.LocalTrees(trees=60, validation=0.3, seed=1).fit(federation(frame, columns))
    assert alone.network_.best_epoch <= boost.HARDLY
    assert "LocalTrees keeps" in alone.notes_[0] and "A larger patience" in alone.notes_[0]


@pytest.mark.parametrize(
    ("model", "classes", "rows", "worth", "rate", "patience"),
    [
        (fm.SecureBoost(), 4, 600, 2, 0.2, 4),
        (fm.LocalTrees(), 3, 999, 2, 0.2, 4),
        (fm.SecureBoost(), 2, 600, 1, 0.1, 7),
        (fm.SecureBoost(), 4, 1_000, 1, 0.1, 7),
        (fm.SecureBoost(validation=0.0), 4, 600, 1, 0.1, 7),
        (fm.SecureBoost(learning_rate=0.6), 4, 600, 1, 0.6, 7),
    ],
)
def test_to_be_compared_fewer_trees_are_grown(
    model: fm.SecureBoost, classes: int, rows: int, worth: int, rate: float, patience: int
) -> None:
    assert model.shorten(classes, rows) == worth
    assert (model.learning_rate, model.patience, model.refit) == (rate, patience, False)


def test_columns_have_their_share_of_the_gains(frame: pd.DataFrame, torn: fm.Federation) -> None:
    model = fm.SecureBoost(trees=20, depth=3, validation=0.0)
    with pytest.raises(NotFitted, match=r"call fit\(fed\) first"):
        model.importance()
    told = model.fit(torn).importance()
    assert (
        list(told.columns) == ["party", "column", "gain"] and told["gain"].is_monotonic_decreasing
    )
    assert told["gain"].sum() == pytest.approx(1.0)
    worth = told.set_index("column")["gain"]
    # The label is made of a, d, e, b and the town; c and f have nothing to do with it.
    assert set(worth.index) == {*"abcdef", "town"}
    assert worth[["a", "d"]].min() > 3 * worth[["c", "f"]].max() > 0
    assert set(told["party"][told["column"].isin(["d", "e", "town"])]) == {"telco"}
    alone = fm.LocalTrees(trees=5, depth=3, validation=0.0).fit(torn).importance()
    assert set(alone["party"]) == {"bank"}


def test_a_partner_that_tells_no_statistics_has_numbered_columns(
    frame: pd.DataFrame, fitted: fm.SecureBoost
) -> None:
    silent = fm.Policy(min_rows=1, allow=fm.Policy().allow - {"statistic"})
    fed = federation(frame, policies={"telco": silent})
    model = fm.SecureBoost(**SMALL).fit(fed)
    told = model.importance()
    columns = set(told["column"][told["party"] == "telco"])
    assert columns == {f"column {at} of telco" for at in (1, 2, 3)}
    assert told["gain"].tolist() == fitted.importance()["gain"].tolist()


# ---------------------------------------------------------------------------------- kept, told


def test_a_saved_model_is_the_same_model(
    fed: fm.Federation, fitted: fm.SecureBoost, frame: pd.DataFrame, tmp_path: Path
) -> None:
    before = fitted.predict_proba(fed.on("test"))
    fitted.save(tmp_path / "model")
    assert (
        fm.SecureBoost.load(tmp_path / "model", fed).predict_proba(fed.on("test")) == before
    ).all()
    moved = fitted.to(federation(frame))
    assert (moved.predict_proba(moved.fed_.on("test")) == before).all()
    assert fitted.hand_out(tmp_path / "model", ["telco"]) == [
        "telco cannot predict alone: party 'bank' refused: trees tell of its labels and stay with "
        "it. Mend: predict at 'bank', or a method whose top can be handed out"
    ]


def test_thousands_of_columns_are_kept() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 4000))
    table = Table(np.arange(40), pd.DataFrame(rows, columns=[f"x{at}" for at in range(4000)]))
    own = OwnColumns.fit(table, None, 4, 5)
    kept = OwnColumns.from_wire(wire.decode(wire.encode(own.to_wire())))
    assert (kept.codes(table) == own.codes(table)).all() and len(kept.columns) == 4000
    before = {"encoder": None, "columns": [each.to_dict() for each in own.columns[:2]]}
    assert len(OwnColumns.from_wire(before).columns) == 2


def test_what_crosses_is_masked_or_encrypted(frame: pd.DataFrame) -> None:
    fed = federation(frame)
    fm.SecureBoost(**SMALL).fit(fed)
    kinds = {each.kind for each in fed.ledger if "Trees." in each.call}
    assert kinds == {"control", "count", "masked", "side"}


def test_bins_and_leaves_have_as_many_rows_as_the_policy_asks_for(frame: pd.DataFrame) -> None:
    fed = federation(frame, policy=fm.Policy(min_rows=40))
    model = fm.SecureBoost(trees=3, depth=6, min_leaf=1, validation=0.0).fit(fed)
    part = part_of(fed.engine.sites["bank"], model.network_.model)
    fitted = part_of(fed.engine.sites["telco"], model.network_.model).columns
    table = fed.engine.sites["telco"].tables["train"]
    for each in fitted:
        counts = np.bincount(each.codes(table.frame[each.column.name]))
        assert counts[counts > 0].min() >= 40
    scores = np.round(model.predict_proba(fed, rows="all")[:, 0], 12)
    assert part.used() and np.unique(scores, return_counts=True)[1].min() >= 1
    leaves = [int((tree.value != 0).sum()) for trees in part.trees for tree in trees]
    assert max(leaves) <= 500 // 40


def test_a_cut_that_is_not_there_is_not_told(fed: fm.Federation, fitted: fm.SecureBoost) -> None:
    with fitted.network_.workers(fed) as (passive, _):
        passive.attach([["aligned", 500]])
        (bank,) = fed.engine.sites["bank"]._workers.values()
        request = bank.seal([10_000], to="telco", kind="control")
        with pytest.raises(DataError, match="cuts only"):
            passive["telco"].sides_for("bank", request)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trees": 0}, "trees must be at least 1, got 0"),
        ({"depth": 13}, "depth must be in 1 … 12, got 13"),
        ({"bins": 1}, "bins must be in 2 … 1024, got 1"),
        ({"mode": "he"}, "mode must be one of dealer, bfv, plain, got 'he'"),
        ({"task": "counts"}, "task must be one of"),
        ({"validation": 1.0}, "validation must be"),
        ({"label_dp": 1.0, "task": "count"}, "label_dp is for classes"),
        ({"label_party": "shop"}, "not in the federation. Mend: one of telco, bank"),
    ],
)
def test_settings_that_cannot_be(fed: fm.Federation, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fm.SecureBoost(**settings).fit(fed)
