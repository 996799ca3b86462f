"""What columns that lie elsewhere explain is set aside, as by a ridge regression in the clear."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from sklearn.linear_model import LogisticRegression, Ridge

from fedmend.data.table import Table
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.methods.completion.aside import AsideModels
from fedmend.methods.completion.beyond import bins_of, columns_changed, distance, lead_right
from fedmend.methods.completion.board import board_of

ALIGNED, N = 200, 320


@given(seed=st.integers(0, 2**16), n=st.integers(1, 30), m=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_the_distance_is_that_of_kolmogorov_and_smirnov(seed: int, n: int, m: int) -> None:
    column = np.random.default_rng(seed).normal(size=n + m).round(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of p values, which are not asked for
        expected = ks_2samp(column[:n], column[n:], method="asymp").statistic
    assert distance(column, n) == pytest.approx(expected)
    holes = np.concatenate([[np.nan], column[:n], column[n:], [np.nan, np.nan]])
    assert distance(holes, n + 1) == pytest.approx(distance(column, n))


@given(codes=st.lists(st.integers(-2, 4), min_size=2, max_size=40), data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_distance_of_categories_is_total_variation(codes: list[int], data: Any) -> None:
    n = data.draw(st.integers(1, len(codes) - 1))
    one, other = (
        [max(code, -1) for code in codes[:n]],
        [max(code, -1) for code in codes[n:]],
    )
    gaps = [one.count(code) / len(one) - other.count(code) / len(other) for code in range(-1, 5)]
    found = distance(np.array(codes), n)
    assert found == pytest.approx(sum(abs(gap) for gap in gaps) / 2)


def a_table(seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"steady": rng.normal(size=N), "rate": rng.uniform(0, 3, N)})
    frame.loc[ALIGNED:, "rate"] -= 9.0
    frame["month"] = rng.choice(["may", "june", "july"], N)
    frame.loc[ALIGNED:, "month"] = "november"
    frame["phone"] = np.where(rng.random(N) < 0.4, "mobile", "fixed")
    frame.loc[ALIGNED:, "phone"] = np.where(rng.random(N - ALIGNED) < 0.9, "mobile", "fixed")
    frame["still"] = 7.0
    frame.loc[ALIGNED:, "still"] = 1.0
    return Table(np.arange(N), frame)


def test_columns_that_change_are_found_but_not_by_chance() -> None:
    table = a_table()
    assert columns_changed(table, ALIGNED) == ["rate", "month", "phone", "still"]
    assert columns_changed(table.select(["steady", "phone"]), ALIGNED) == ["phone"]
    assert columns_changed(table, N) == columns_changed(table, 0) == []
    # with ten rows on either side such a distance is nothing
    few = table.take(np.r_[:10, ALIGNED : ALIGNED + 10]).select(["phone"])
    assert 0.25 < distance((few.frame["phone"] == "mobile").to_numpy().astype(int), 10) < 0.73
    assert columns_changed(few, 10) == []


def test_bins_tell_aligned_rows_apart() -> None:
    table = a_table()
    found = bins_of(table, ALIGNED, ["rate", "month", "still"])
    assert found.shape[0] == N and set(np.unique(found)) == {0.0, 1.0}
    sums = found[:ALIGNED].sum(axis=0)
    assert (sums >= 10).all() and (sums < ALIGNED).all()
    # every aligned row is in one bin of each column that varies there
    np.testing.assert_array_equal(found[:ALIGNED].sum(axis=1), 2.0)
    assert bins_of(table, ALIGNED, ["still"]).shape == (N, 0)
    months = bins_of(table, ALIGNED, ["month"])
    expected = pd.get_dummies(table.frame["month"].iloc[:ALIGNED].astype(str)).to_numpy(float)
    assert {tuple(row) for row in months[:ALIGNED].T} == {tuple(row) for row in expected.T}
    assert not months[ALIGNED:].any()


def federation(table: Table, targets: pd.DataFrame) -> Federation:
    own = Table(np.arange(ALIGNED), targets.iloc[:ALIGNED])
    fed = Federation(Party("bank", table), Party("telco", own), strict=True)
    rows, rest = np.arange(ALIGNED), np.arange(ALIGNED, N)
    fed.engine.site("bank").alignments["train"] = Alignment(rows, rest)
    fed.engine.site("telco").alignments["train"] = Alignment(rows, rest[:0])
    fed.note_alignment(AlignmentCounts(ALIGNED, {"bank": N - ALIGNED, "telco": 0}))
    return fed


def test_what_is_set_aside_is_a_ridge_regression_on_the_bins() -> None:
    table, rng = a_table(), np.random.default_rng(1)
    frame = table.frame
    month = frame["month"].map({"may": 0.0, "june": 2.0, "july": 3.0, "november": 9.0}).to_numpy()
    targets = pd.DataFrame(
        {
            "level": month.astype(float) + frame["rate"] ** 2 + 0.1 * rng.normal(size=N),
            "taste": frame["steady"] + 0.1 * rng.normal(size=N),
            "season": np.where(rng.random(N) < 0.2, "x", frame["month"].astype(str)),
        }
    )
    targets.loc[5, "taste"] = np.nan
    fed = federation(table, targets)
    with AsideModels(fed, "bank", "telco", own=["taste"], beyond=False) as models:
        assert models.set_aside()
    board = board_of(fed.engine.site("telco"), models.model)
    bins = bins_of(table, ALIGNED, ["rate", "month", "still"])[:ALIGNED]
    for name in ("level", "taste"):
        target = board[name]
        seen = ~np.isnan(target.truth[:ALIGNED])
        part = Ridge(alpha=1.0).fit(bins[seen], target.truth[:ALIGNED][seen]).predict(bins)
        np.testing.assert_allclose(target.aside[:ALIGNED], part, atol=1e-5)
        rest = (target.truth[:ALIGNED] - part)[seen]
        np.testing.assert_allclose(target.labels[:ALIGNED][seen], rest, atol=1e-5)
        assert np.isnan(target.labels[ALIGNED:]).all() and target.outputs is None
        board.release(name)
        np.testing.assert_allclose(target.labels[:ALIGNED][seen], rest, atol=1e-5)
    season = board["season"]
    plain = LogisticRegression(C=1.0, tol=1e-8, max_iter=2000).fit(bins, season.truth[:ALIGNED])
    np.testing.assert_allclose(season.aside[:ALIGNED], plain.predict_proba(bins), atol=0.01)
    np.testing.assert_array_equal(season.labels, season.truth)
    assert np.nanvar(board["level"].goal) < 0.1 < 0.8 < np.nanvar(board["taste"].goal)
    # nothing but what linear models show: no value of a column, and no prediction for A's rows
    kinds = {entry.kind for entry in fed.ledger.entries() if entry.kind != "control"}
    assert kinds <= {"count", "statistic", "masked", "hashed-id"}


def test_nothing_is_set_aside_where_the_columns_left_out_say_nothing() -> None:
    table = a_table().select(["steady", "phone", "still"])
    fed = federation(table, pd.DataFrame({"level": table.frame["steady"]}))
    with AsideModels(fed, "bank", "telco", beyond=False) as models:
        assert models.at_a.left_out() == ["still"] and models.at_a.changed() == ["phone"]
        assert not models.set_aside()
    assert board_of(fed.engine.site("telco"), models.model)["level"].aside is None
    # Which columns changed is something about A's rows, and the ledger says so.
    asked = [each for each in fed.ledger if each.call.endswith((".left_out", ".changed"))]
    assert {each.kind for each in asked if each.sender == "bank"} == {"statistic"}


def test_columns_that_tell_of_those_left_out_rightly_may_go_on() -> None:
    rng = np.random.default_rng(2)
    known = rng.integers(0, 2, N).astype(float)
    known[ALIGNED:] = 1.0
    index = np.where(rng.random(N) < 0.95, known, 1 - known)
    for direction, right in ((1.0, True), (-1.0, False)):
        rate = known + 0.1 * rng.normal(size=N)
        rate[ALIGNED:] += direction * 1.0 - (1.0 if direction < 0 else 0.0)
        frame = pd.DataFrame({"index": index, "rate": rate, "steady": rng.normal(size=N)})
        table = Table(np.arange(N), frame)
        changed = columns_changed(table.select(["index", "steady"]), ALIGNED)
        assert changed == ["index"]
        assert lead_right(table, ALIGNED, changed, ["rate"]) is right
        # by a plain ridge regression
        bins = bins_of(table, ALIGNED, ["index"])
        told = Ridge(alpha=1.0).fit(bins[:ALIGNED], rate[:ALIGNED]).predict(bins[ALIGNED:])
        told = told.clip(rate[:ALIGNED].min(), rate[:ALIGNED].max())
        plain = ((rate[ALIGNED:] - rate[:ALIGNED].mean()) ** 2).mean()
        assert (((told - rate[ALIGNED:]) ** 2).mean() <= 0.75 * plain) is np.bool_(right)
        fed = federation(table, pd.DataFrame({"level": rate}))
        with AsideModels(fed, "bank", "telco", beyond=False) as models:
            assert models.at_a.left_out() == ["rate"]
            assert models.at_a.changed() == ([] if right else ["index"])
    # one that leads the wrong way is enough, and nothing is known without numbers that vary
    both = Table(np.arange(N), frame.assign(other=known + 2.0 * (np.arange(N) >= ALIGNED)))
    assert lead_right(both, ALIGNED, ["index"], ["other"])
    assert not lead_right(both, ALIGNED, ["index"], ["other", "rate"])
    assert not lead_right(a_table(), ALIGNED, ["phone"], ["month", "still"])
