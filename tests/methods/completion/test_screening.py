"""Process I: the threshold, columns of A that lie elsewhere or changed, and what is set aside."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression, Ridge
from tests.methods.completion.federations import numbered, stored

from fedmend.data.table import Table
from fedmend.methods.completion.linear import AsideModels
from fedmend.methods.completion.screening import (
    beyond,
    bins_of,
    columns_changed,
    columns_within,
    critical_rho,
    cv_threshold,
    distance,
    held_within,
    lead_right,
)
from fedmend.methods.completion.self_training import FAMILIES, family_of

ALIGNED, N = 200, 320


# ---------------------------------------------------------------------------------- tau


def holm(p_values: np.ndarray, level: float) -> np.ndarray:
    """Which hypotheses are rejected, as Holm (1979) writes it."""
    rejected = np.zeros(len(p_values), dtype=bool)
    for position, index in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[index] > level / (len(p_values) - position):
            break
        rejected[index] = True
    return rejected


@given(
    rho=st.lists(st.floats(-0.9, 0.9), min_size=1, max_size=30),
    rows=st.integers(5, 2000),
    level=st.sampled_from([0.01, 0.05, 0.2]),
)
def test_above_the_critical_value_is_what_holm_rejects(rho, rows, level):
    values = np.array(rho)
    statistic = np.abs(values) * np.sqrt((rows - 2) / (1 - values**2))
    expected = holm(2 * student.sf(statistic, rows - 2), level)
    critical = critical_rho(values.reshape(1, -1), rows, level)
    clear = np.abs(np.abs(values) - critical) > 1e-9
    np.testing.assert_array_equal((np.abs(values) > critical)[clear], expected[clear])


def test_pairs_without_a_correlation_do_not_count():
    values = np.array([[0.3, np.nan], [0.1, np.nan]])
    assert critical_rho(values, 100, 0.05) == critical_rho(values[:, :1], 100, 0.05)
    assert critical_rho(np.full((2, 2), np.nan), 100, 0.05) == 1.0


def test_cv_takes_the_columns_whose_prediction_pays():
    strengths = pd.Series({"a": 0.9, "b": 0.5, "c": 0.2, "d": np.nan})
    errors = {
        "a": {"linear": 0.2, "mean": 1.0},
        "b": {"linear": 0.9, "tree": 0.7, "mean": 1.0},
        "c": {"linear": 1.2, "mean": 1.0},
    }
    assert cv_threshold(strengths, errors) == pytest.approx((0.5 + 0.2) / 2)
    worse = {name: {"linear": 2.0, "mean": 1.0} for name in strengths.index}
    assert cv_threshold(strengths, worse) == 1.0
    better = {name: {"linear": 0.5, "mean": 1.0} for name in strengths.index}
    assert cv_threshold(strengths, better) < 0.2


# ---------------------------------------------------------------------- columns elsewhere


@given(seed=st.integers(0, 2**16), n=st.integers(2, 40), m=st.integers(1, 40))
def test_how_far_a_number_is_beyond(seed, n, m):
    rng = np.random.default_rng(seed)
    column = rng.normal(size=n + m).round(1)
    column[rng.random(n + m) < 0.1] = np.nan
    found = beyond(column, n)
    seen = [value for value in column[:n] if not np.isnan(value)]
    assert found.shape == (m,)
    for value, share in zip(column[n:], found, strict=True):
        if np.isnan(value) or not seen:
            expected = 0.0 if np.isnan(value) else 1.0
        elif min(seen) == max(seen):
            expected = float(value != seen[0])
        else:
            off = max(min(seen) - value, value - max(seen), 0.0)
            expected = min(1.0, off / (max(seen) - min(seen)))
        assert share == pytest.approx(expected)


def elsewhere() -> Table:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"steady": rng.normal(size=N), "rate": rng.normal(size=N)})
    frame.loc[ALIGNED:, "rate"] += 30.0
    frame["month"] = rng.choice(["may", "june"], N)
    frame.loc[ALIGNED:, "month"] = "november"
    frame["city"] = rng.choice(["Ulm", "Bonn"], N)
    frame.loc[N - 1, "city"] = "Kiel"
    frame["level"] = rng.choice([1, 2, 3], N)
    kinds = {"level": [1, 2, 3]}
    return Table(np.arange(N), frame, kinds=kinds)


def test_columns_that_lie_elsewhere_are_left_out():
    assert columns_within(elsewhere(), ALIGNED) == ["steady", "city", "level"]
    assert columns_within(elsewhere(), ALIGNED, most=1.0) == elsewhere().feature_names
    assert columns_within(elsewhere(), N) == elsewhere().feature_names
    # rows of the same kind lie within, and a table of nothing else is better than none
    assert columns_within(elsewhere().take(np.arange(ALIGNED)), 100) == elsewhere().feature_names
    alone = elsewhere().select(["rate", "month"])
    assert columns_within(alone, ALIGNED) == ["rate", "month"]


def test_columns_that_go_beyond_a_little_end_with_the_first_rows():
    rng = np.random.default_rng(0)
    columns = rng.uniform(size=(300, 3))
    columns[200:, 0] += 0.5  # half of the range
    columns[-1, 1] = 1.5  # one row of a hundred, by half of the range
    held = held_within(columns, 200)
    np.testing.assert_array_equal(held[:200], columns[:200])
    np.testing.assert_array_equal(held[:, 1:], columns[:, 1:])
    assert held[200:, 0].max() == columns[:200, 0].max()
    np.testing.assert_array_equal(held_within(columns[:200], 200), columns[:200])


def test_blocks_stay():
    images = np.zeros((N, 3), np.float32)
    images[ALIGNED:] = 9.0
    whole = elsewhere()
    with_block = Table(whole.ids, whole.frame, blocks={"image": images})
    assert "image" in columns_within(with_block, ALIGNED)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_learns_from_a_column_that_is_left_out(family):
    """What is predicted is the same with other values there, and to the bit without the column."""
    settings = {"neural": {"epochs": 2}, "tree": {"trees": 4}}.get(family, {})
    target = elsewhere().frame["steady"] + 0.5 * elsewhere().frame["rate"]
    found = {}
    for case in ("as it is", "other values", "without"):
        a = elsewhere().frame
        if case == "other values":
            a.loc[ALIGNED:, "rate"] += 1000.0
        if case == "without":
            a = a.drop(columns=["rate", "month"])
        fed = numbered(a, pd.DataFrame({"sum": target}), ALIGNED)
        with family_of(family)(fed, "bank", "telco", beyond=False, **settings) as models:
            left_out = models.at_a.left_out()
            models.fit()
            models.predict()
        found[case] = stored(fed, models)["sum"].outputs[ALIGNED:]
        assert left_out == ([] if case == "without" else ["rate", "month"])
    np.testing.assert_allclose(found["as it is"], found["other values"], atol=1e-6)
    np.testing.assert_allclose(found["as it is"], found["without"], atol=1e-6)


# ---------------------------------------------------------------------- columns changed


@given(seed=st.integers(0, 2**16), n=st.integers(1, 30), m=st.integers(1, 30))
def test_the_distance_is_that_of_kolmogorov_and_smirnov(seed, n, m):
    column = np.random.default_rng(seed).normal(size=n + m).round(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of p values, which are not asked for
        expected = ks_2samp(column[:n], column[n:], method="asymp").statistic
    assert distance(column, n) == pytest.approx(expected)
    holes = np.concatenate([[np.nan], column[:n], column[n:], [np.nan, np.nan]])
    assert distance(holes, n + 1) == pytest.approx(distance(column, n))


@given(codes=st.lists(st.integers(-2, 4), min_size=2, max_size=40), data=st.data())
def test_the_distance_of_categories_is_total_variation(codes, data):
    n = data.draw(st.integers(1, len(codes) - 1))
    one, other = ([max(code, -1) for code in codes[:n]], [max(code, -1) for code in codes[n:]])
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


def test_columns_that_change_are_found_but_not_by_chance():
    table = a_table()
    assert columns_changed(table, ALIGNED) == ["rate", "month", "phone", "still"]
    assert columns_changed(table.select(["steady", "phone"]), ALIGNED) == ["phone"]
    assert columns_changed(table, N) == columns_changed(table, 0) == []
    # with ten rows on either side such a distance is nothing
    few = table.take(np.r_[:10, ALIGNED : ALIGNED + 10]).select(["phone"])
    assert 0.25 < distance((few.frame["phone"] == "mobile").to_numpy().astype(int), 10) < 0.73
    assert columns_changed(few, 10) == []


def test_bins_tell_aligned_rows_apart():
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


# ---------------------------------------------------------------------------------- set aside


def test_what_is_set_aside_is_a_ridge_regression_on_the_bins(whole_training):
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
    fed = numbered(table, targets, ALIGNED)
    with AsideModels(fed, "bank", "telco", beyond=False) as models:
        assert models.set_aside()
    store = stored(fed, models)
    bins = bins_of(table, ALIGNED, ["rate", "month", "still"])[:ALIGNED]
    for name in ("level", "taste"):
        target = store[name]
        seen = ~np.isnan(target.truth[:ALIGNED])
        part = Ridge(alpha=1.0).fit(bins[seen], target.truth[:ALIGNED][seen]).predict(bins)
        np.testing.assert_allclose(target.aside[:ALIGNED], part, atol=1e-5)
        rest = (target.truth[:ALIGNED] - part)[seen]
        np.testing.assert_allclose(target.labels[:ALIGNED][seen], rest, atol=1e-5)
        assert np.isnan(target.labels[ALIGNED:]).all() and target.outputs is None
        store.release(name)
        np.testing.assert_allclose(target.labels[:ALIGNED][seen], rest, atol=1e-5)
    season = store["season"]
    plain = LogisticRegression(C=1.0, tol=1e-8, max_iter=2000).fit(bins, season.truth[:ALIGNED])
    np.testing.assert_allclose(season.aside[:ALIGNED], plain.predict_proba(bins), atol=0.01)
    np.testing.assert_array_equal(season.labels, season.truth)
    assert np.nanvar(store["level"].goal) < 0.1 < 0.8 < np.nanvar(store["taste"].goal)
    # nothing but what linear models show: no value of a column, and no prediction for A's rows
    kinds = {entry.kind for entry in fed.ledger.entries() if entry.kind != "control"}
    assert kinds <= {"count", "statistic", "masked", "hashed-id"}


def test_nothing_is_set_aside_where_the_columns_left_out_say_nothing():
    table = a_table().select(["steady", "phone", "still"])
    fed = numbered(table, pd.DataFrame({"level": table.frame["steady"]}), ALIGNED)
    with AsideModels(fed, "bank", "telco", beyond=False) as models:
        assert models.at_a.left_out() == ["still"] and models.at_a.changed() == ["phone"]
        assert not models.set_aside()
    assert stored(fed, models)["level"].aside is None
    # Which columns changed is something about A's rows, and the ledger says so.
    asked = [each for each in fed.ledger if each.call.endswith((".left_out", ".changed"))]
    assert {each.kind for each in asked if each.sender == "bank"} == {"statistic"}


def test_columns_that_tell_of_those_left_out_rightly_may_go_on():
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
        fed = numbered(table, pd.DataFrame({"level": rate}), ALIGNED)
        with AsideModels(fed, "bank", "telco", beyond=False) as models:
            assert models.at_a.left_out() == ["rate"]
            assert models.at_a.changed() == ([] if right else ["index"])
    # one that leads the wrong way is enough, and nothing is known without numbers that vary
    both = Table(np.arange(N), frame.assign(other=known + 2.0 * (np.arange(N) >= ALIGNED)))
    assert lead_right(both, ALIGNED, ["index"], ["other"])
    assert not lead_right(both, ALIGNED, ["index"], ["other", "rate"])
    assert not lead_right(a_table(), ALIGNED, ["phone"], ["month", "still"])
