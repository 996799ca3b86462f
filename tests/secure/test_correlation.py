"""Rank correlation between parties: against scipy and pandas, strengths, and what is told."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from fedmend.data.table import Table
from fedmend.errors import AlignmentError, ConfigError, DataError, PrivacyWarning, Refused
from fedmend.federation import (
    COORDINATOR,
    KINDS,
    Alignment,
    AlignmentCounts,
    Federation,
    Party,
    Policy,
)
from fedmend.secure.columns import Columns
from fedmend.secure.correlation import rank_correlation
from fedmend.secure.inner_product import inner_products
from fedmend.secure.ranks import centred_ranks, rank_bounds

OPEN = Policy(allow=frozenset(KINDS), takes=frozenset(KINDS))


def make_federation(left, right, *, policy=None, kinds=(None, None), label=None, rows=None):
    """Tables of the same people; the right one stored backwards."""
    n = len(left)
    tables = [
        Table(np.arange(n), left, kinds=kinds[0], label=label),
        Table(np.arange(n), right.iloc[::-1].reset_index(drop=True), kinds=kinds[1]),
    ]
    fed = Federation(
        *(Party(name, t, policy=policy) for name, t in zip("ab", tables, strict=True)), strict=True
    )
    order = np.arange(n) if rows is None else np.asarray(rows)
    none = np.array([], dtype=int)
    fed.engine.sites["a"].alignments["train"] = Alignment(order, none)
    fed.engine.sites["b"].alignments["train"] = Alignment(n - 1 - order, none)
    fed.note_alignment(AlignmentCounts(len(order), {"a": 0, "b": 0}))
    return fed


def numbers(values, name):
    values = np.asarray(values)
    frame = pd.DataFrame({f"{name}{j}": values[:, j] for j in range(values.shape[1])})
    return frame, {column: "continuous" for column in frame}


def reference(left, right, **options):
    """scipy, pair by pair; NaN where it has no answer."""
    rho = np.full((left.shape[1], right.shape[1]), np.nan)
    p_values = rho.copy()
    for i, x in enumerate(left.T):
        for j, y in enumerate(right.T):
            both = ~(np.isnan(x) | np.isnan(y))
            if len(set(x[both])) > 1 and len(set(y[both])) > 1:
                found = spearmanr(x, y, nan_policy="omit")
                rho[i, j], p_values[i, j] = found.statistic, found.pvalue
    return rho, p_values


def mixed(seed, n, p, missing=0.0):
    """Continuous, tied, skewed and constant columns with something in common."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, 2)) @ rng.normal(size=(2, p)) + rng.normal(size=(n, p))
    values[:, ::3] = np.round(values[:, ::3])
    values[:, 1::4] = np.exp(values[:, 1::4])
    values[rng.random((n, p)) < missing] = np.nan
    return values


def correlate(left, right, **options):
    (frame_a, kinds_a), (frame_b, kinds_b) = numbers(left, "x"), numbers(right, "y")
    policy = options.pop("policy", None)
    fed = make_federation(frame_a, frame_b, kinds=(kinds_a, kinds_b), policy=policy)
    return rank_correlation(fed, "a", "b", **options), fed


# ---------------------------------------------------------------------------------- ranks


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.integers(0, 1 << 30))
def test_centred_ranks_are_scipys(values, seed):
    array = np.array(values)
    n = len(array)
    np.testing.assert_array_equal(centred_ranks(array), 2 * rankdata(array) - (n + 1))
    present = np.random.default_rng(seed).random(n) < 0.7
    ranks = centred_ranks(array, present)
    assert not ranks[~present].any()
    if present.any():
        np.testing.assert_array_equal(
            ranks[present], 2 * rankdata(array[present]) - (present.sum() + 1)
        )
    bounds = rank_bounds(n)
    assert np.abs(ranks).max() <= bounds["bound"]
    assert (ranks**2).sum() <= bounds["square_sum"]


def test_large_integers_that_differ_are_no_ties():
    big = (1 << 60) + np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    other = np.random.default_rng(0).permutation(10) + 0.5
    fed = make_federation(pd.DataFrame({"id": big}), pd.DataFrame({"y": other}))
    found = rank_correlation(fed, "a", "b", mode="dealer")
    expected = spearmanr(np.arange(10), other).statistic
    assert found.matrix.iloc[0, 0] == pytest.approx(expected, abs=1e-12)
    across = np.uint64(1 << 63) + (np.arange(10) - 5).astype(np.uint64)  # half of them beyond int64
    fed = make_federation(pd.DataFrame({"id": across}), pd.DataFrame({"y": other}))
    found = rank_correlation(fed, "a", "b", mode="dealer")
    assert found.matrix.iloc[0, 0] == pytest.approx(expected, abs=1e-12)


# ---------------------------------------------------------------------------------- equal to scipy


@st.composite
def tables(draw):
    n = draw(st.integers(2, 30))
    size = draw(st.sampled_from([1, 2, 10**6]))
    cells = st.integers(-size, size).map(float)

    def side(columns):
        cell_rows = st.lists(cells, min_size=columns, max_size=columns)
        return np.array(draw(st.lists(cell_rows, min_size=n, max_size=n)))

    left, right = side(draw(st.integers(1, 3))), side(draw(st.integers(1, 3)))
    if draw(st.booleans()):
        left[:, 0] = 3.0
    return left, right


@settings(max_examples=25, deadline=None)
@given(tables())
def test_equal_to_scipy_with_ties_and_constants(pair):
    left, right = pair
    found, _ = correlate(left, right, mode="dealer", min_rows=2)
    rho, p_values = reference(left, right)
    np.testing.assert_allclose(found.matrix.to_numpy(), rho, atol=1e-12, rtol=0)
    inner = np.abs(rho) < 1 - 1e-9
    np.testing.assert_allclose(found.p_values.to_numpy()[inner], p_values[inner], atol=1e-9)
    assert found.n == len(left)
    assert found.missing == "none"


def test_equal_to_scipy_under_encryption():
    left, right = mixed(0, 700, 4), mixed(1, 700, 3)
    right[:, 1] = left[:, 0] * -2
    found, _ = correlate(left, right)
    rho, p_values = reference(left, right)
    np.testing.assert_allclose(found.matrix.to_numpy(), rho, atol=1e-12, rtol=0)
    inner = np.abs(rho) < 1 - 1e-9
    np.testing.assert_allclose(found.p_values.to_numpy()[inner], p_values[inner], rtol=1e-9)
    assert found.matrix.loc["x0", "y1"] == pytest.approx(-1, abs=1e-12)
    assert found.p_values.loc["x0", "y1"] < 1e-12


def test_two_rows():
    left, right = np.array([[1.0], [2.0]]), np.array([[5.0], [4.0]])
    found, _ = correlate(left, right, min_rows=2)
    assert found.matrix.iloc[0, 0] == -1
    assert np.isnan(found.p_values.iloc[0, 0])


# ---------------------------------------------------------------------------------- missing cells


@pytest.mark.parametrize("mode", ["bfv", "dealer"])
def test_pairwise_is_scipys_omit(mode):
    left, right = mixed(2, 60, 3, missing=0.2), mixed(3, 60, 2, missing=0.1)
    left[:, 1] = np.nan_to_num(left[:, 1])
    found, fed = correlate(left, right, missing="pairwise", mode=mode, policy=OPEN)
    rho, p_values = reference(left, right)
    np.testing.assert_allclose(found.matrix.to_numpy(), rho, atol=1e-12, rtol=0)
    np.testing.assert_allclose(found.p_values.to_numpy(), p_values, rtol=1e-9)
    assert found.missing == "pairwise"
    present_a, present_b = ~np.isnan(left), ~np.isnan(right)
    np.testing.assert_array_equal(found.counts, present_a.astype(int).T @ present_b.astype(int))
    # the ledger says that the masks were shared, with whom, and that nobody else can read them
    told = [e for e in fed.ledger if e.call == "RankWorker.share_patterns" and e.kind == "row"]
    assert {(e.sender, e.sealed_for) for e in told} == {("a", "b"), ("b", "a")}


def test_pairwise_needs_the_policies_consent():
    left, right = mixed(2, 60, 2, missing=0.2), mixed(3, 60, 2)
    with pytest.raises(Refused, match="kind 'row'"):
        correlate(left, right, missing="pairwise", mode="dealer")
    # without a gap there is nothing to tell, and nothing is asked for
    found, fed = correlate(right, right, missing="pairwise", mode="dealer")
    assert found.missing == "none"
    assert "row" not in fed.ledger.kinds()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.05, 0.3]), st.booleans(), st.booleans())
def test_own_ranks_are_pandas_correlation_of_ranks(seed, share, gaps_left, gaps_right):
    left = mixed(seed, 50, 3, missing=share if gaps_left else 0)
    right = mixed(seed + 1, 50, 2, missing=share if gaps_right else 0)
    found, fed = correlate(left, right, mode="dealer")
    frame = pd.DataFrame(np.concatenate([left, right], axis=1))
    expected = frame.rank().corr().to_numpy()[:3, 3:]
    np.testing.assert_allclose(found.matrix.to_numpy(), expected, atol=1e-12)
    present = frame.notna().to_numpy().astype(int)
    np.testing.assert_array_equal(found.counts, (present.T @ present)[:3, 3:])
    assert not {"row", "label"} & fed.ledger.kinds()


def test_own_ranks_under_encryption_and_close_to_scipy():
    left, right = mixed(5, 900, 2, missing=0.1), mixed(6, 900, 2, missing=0.05)
    right[:, 0] += 2 * np.nan_to_num(left[:, 0])
    found, _ = correlate(left, right)
    frame = pd.DataFrame(np.concatenate([left, right], axis=1))
    np.testing.assert_allclose(
        found.matrix.to_numpy(), frame.rank().corr().to_numpy()[:2, 2:], atol=1e-12
    )
    np.testing.assert_allclose(found.matrix.to_numpy(), reference(left, right)[0], atol=0.01)
    assert found.missing == "own-ranks"


def test_a_column_without_values():
    left, right = mixed(1, 30, 2), mixed(2, 30, 2)
    left[:, 1], right[:28, 0] = np.nan, np.nan
    with pytest.warns(Warning, match="missing"):
        found, _ = correlate(left, right, mode="dealer")
    assert found.matrix.loc["x1"].isna().all()
    # two complete rows are too few to be told
    assert np.isnan(found.matrix.loc["x0", "y0"])
    assert found.counts.loc["x0", "y0"] == 2
    assert np.isfinite(found.matrix.loc["x0", "y1"])
    assert found.order == ["y1", "y0"]


# ---------------------------------------------------------------------------------- kinds


def test_nominal_ordinal_and_binary_columns():
    rng = np.random.default_rng(4)
    n = 80
    x = rng.normal(size=n)
    city = np.array(["oslo", "rome", "wien"])[np.digitize(x + rng.normal(size=n), [-1, 1])]
    grade = np.array(["low", "mid", "high"])[rng.integers(0, 3, n)]
    frame = pd.DataFrame(
        {"city": city, "grade": grade, "member": np.where(x > 0, "yes", "no"), "y": x**3}
    )
    kinds = {"grade": ["low", "mid", "high"]}
    fed = make_federation(pd.DataFrame({"x": x}), frame, kinds=(None, kinds))
    found = rank_correlation(fed, "a", "b", mode="dealer")
    assert found.matrix.columns.tolist() == ["city", "grade", "member", "y"]
    per_city = {c: spearmanr(x, city == c).statistic for c in ("oslo", "rome", "wien")}
    strongest = max(per_city.values(), key=abs)
    assert found.matrix.loc["x", "city"] == pytest.approx(strongest, abs=1e-12)
    np.testing.assert_allclose(
        found.indicators.filter(like="city#").to_numpy()[0], list(per_city.values()), atol=1e-12
    )
    codes = pd.Series(grade).map({"low": 0, "mid": 1, "high": 2})
    assert found.matrix.loc["x", "grade"] == pytest.approx(spearmanr(x, codes).statistic, abs=1e-12)
    assert found.matrix.loc["x", "member"] == pytest.approx(
        spearmanr(x, x > 0).statistic, abs=1e-12
    )
    assert found.order[0] == "y"
    assert found.strengths["city"] == pytest.approx(abs(strongest), abs=1e-12)
    # the names of categories stay at the party
    assert not any("oslo" in name for name in found.indicators.columns)


def test_nominal_on_both_sides_and_few_indicators():
    rng = np.random.default_rng(7)
    one = rng.integers(0, 4, 200)
    other = np.where(rng.random(200) < 0.7, one, rng.integers(0, 4, 200))
    frames = [pd.DataFrame({name: [f"v{v}" for v in x]}) for name, x in (("s", one), ("t", other))]
    found = rank_correlation(make_federation(*frames), "a", "b", mode="dealer")
    table = np.array(
        [[spearmanr(one == i, other == j).statistic for j in range(4)] for i in range(4)]
    )
    np.testing.assert_allclose(found.indicators.to_numpy(), table, atol=1e-12)
    assert abs(found.matrix.loc["s", "t"]) == pytest.approx(np.abs(table).max(), abs=1e-12)
    fewer = rank_correlation(make_federation(*frames), "a", "b", mode="dealer", max_categories=2)
    assert fewer.indicators.shape == (2, 2)
    common = np.sort(np.argsort(-np.bincount(one), kind="stable")[:2])
    assert [name.split("#")[1] for name in fewer.indicators.index] == [str(c) for c in common]


def test_labels_and_blocks_stay_out():
    n = 12
    frame = pd.DataFrame({"x": np.arange(n) * 1.5, "y": np.arange(n) * -1.0})
    fed = make_federation(frame, frame, label="y")
    found = rank_correlation(fed, "a", "b", mode="dealer")
    assert found.matrix.index.tolist() == ["x"]
    named = {"columns_a": ["y"], "columns_b": ["x"], "mode": "dealer"}
    with pytest.raises(Refused, match="its label column takes no part"):
        rank_correlation(fed, "a", "b", **named)
    fed = make_federation(frame, frame, label="y", policy=Policy(label_sums=True))
    named = rank_correlation(fed, "a", "b", **named)
    assert named.matrix.loc["y", "x"] == pytest.approx(-1)
    with pytest.raises(DataError, match="no such column") as caught:
        rank_correlation(fed, "a", "b", columns_b=["z"], mode="dealer")
    assert caught.value.party == "b"


# ---------------------------------------------------------------------------------- strengths


def test_strengths():
    left, right = mixed(8, 120, 3), mixed(9, 120, 4)
    right[:, 3] = left[:, 0]
    found, _ = correlate(left, right, mode="dealer")
    rho = reference(left, right)[0]
    np.testing.assert_allclose(found.strengths, np.abs(rho).max(axis=0), atol=1e-12)
    assert found.order == [f"y{j}" for j in np.argsort(-np.abs(rho).max(axis=0))]
    for strength, expected in (("mean", rho.mean(axis=0)), ("mean-abs", np.abs(rho).mean(axis=0))):
        other, _ = correlate(left, right, mode="dealer", strength=strength)
        np.testing.assert_allclose(other.strengths, expected, atol=1e-12)
        assert other.order == [f"y{j}" for j in np.argsort(-expected)]


def test_a_mean_of_signed_values_cancels():
    x = np.random.default_rng(0).normal(size=50)
    left = np.stack([x, -x], axis=1)
    found, _ = correlate(left, x[:, None], mode="dealer", strength="mean")
    assert found.strengths["y0"] == pytest.approx(0)
    found, _ = correlate(left, x[:, None], mode="dealer")
    assert found.strengths["y0"] == pytest.approx(1)


# ---------------------------------------------------------------------------------- published


def test_published_is_right_without_ties_and_biased_with():
    rng = np.random.default_rng(3)
    left, right = rng.normal(size=(10, 1)), rng.normal(size=(10, 1))
    open_rows = {"policy": Policy(allow=frozenset(KINDS)), "protocol": "published"}
    with pytest.warns(PrivacyWarning, match="difference of every row"):
        found, fed = correlate(left, right, key_bits=1024, **open_rows)
    np.testing.assert_allclose(found.matrix.to_numpy(), reference(left, right)[0], atol=1e-12)
    assert "ciphertext" in fed.ledger.kinds(receiver=COORDINATOR)
    tied = np.round(left)
    with pytest.warns(PrivacyWarning):
        found, _ = correlate(tied, right, key_bits=1024, **open_rows)
    d = rankdata(tied[:, 0]) - rankdata(right[:, 0])
    assert found.matrix.iloc[0, 0] == pytest.approx(1 - 6 * (d**2).sum() / 990, abs=1e-12)
    assert abs(found.matrix.iloc[0, 0] - reference(tied, right)[0][0, 0]) > 1e-3


def test_published_has_no_rule_for_missing_cells():
    left, right = mixed(0, 20, 1, missing=0.2), mixed(1, 20, 1)
    with pytest.raises(DataError, match="missing"):
        correlate(left, right, protocol="published")


# ---------------------------------------------------------------------------------- refusals


def test_wrong_options_are_all_named():
    fed = make_federation(pd.DataFrame({"x": [1.0]}), pd.DataFrame({"y": [1.0]}))
    with pytest.raises(ConfigError) as caught:
        rank_correlation(
            fed, "a", "b", mode="x", strength="y", missing="z", protocol="w", min_rows=1
        )
    assert len(caught.value.problems) == 5


def test_a_handful_of_rows_is_refused():
    left = mixed(0, 9, 1)
    with pytest.raises(AlignmentError, match="9 aligned rows are too few"):
        correlate(left, left, mode="dealer")


def test_what_leaves_and_what_stays_behind():
    left, right = mixed(0, 40, 2, missing=0.1), mixed(1, 40, 2, missing=0.1)
    _, fed = correlate(left, right)
    allowed = {"control", "count", "statistic", "ciphertext", "masked"}
    for party in ("a", "b"):
        assert fed.ledger.kinds(sender=party) <= allowed
        assert fed.ledger.kinds(receiver=party) <= {"control", "ciphertext"}
        assert not [k for k in fed.engine.sites[party].state if k.startswith("rank-correlation")]
        assert not fed.engine.sites[party]._workers


def test_ranks_as_a_provider():
    left, right = mixed(0, 30, 2), mixed(1, 30, 2)
    (frame_a, kinds_a), (frame_b, kinds_b) = numbers(left, "x"), numbers(right, "y")
    fed = make_federation(frame_a, frame_b, kinds=(kinds_a, kinds_b))
    ranks = [Columns(party, "centred-ranks") for party in "ab"]
    result = inner_products(fed, *ranks, mode="dealer")
    expected = [[2 * rankdata(x) - 31 for x in side.T] for side in (left, right)]
    np.testing.assert_array_equal(result, np.array(expected[0]) @ np.array(expected[1]).T)
    left[3, 0] = np.nan
    frame_a, kinds_a = numbers(left, "x")
    fed = make_federation(frame_a, frame_b, kinds=(kinds_a, kinds_b))
    with pytest.raises(DataError, match="missing cells"):
        inner_products(fed, *ranks, mode="dealer")


@pytest.mark.slow
def test_ten_thousand_rows_under_encryption():
    left, right = mixed(0, 10_000, 5), mixed(1, 10_000, 6)
    found, _ = correlate(left, right)
    np.testing.assert_allclose(found.matrix, reference(left, right)[0], atol=1e-12, rtol=0)
