"""Rank correlation between parties: against scipy and pandas, strengths, and what is told."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from fedmend.errors import AlignmentError, ConfigError, DataError, PrivacyWarning, Refused
from fedmend.federation import COORDINATOR, KINDS, Policy
from fedmend.secure.columns import Columns
from fedmend.secure.correlation import centred_ranks, rank_bounds, rank_correlation
from fedmend.secure.inner_product import inner_products

from .parties import aligned

OPEN = Policy(allow=frozenset(KINDS), takes=frozenset(KINDS), min_rows=1, min_intersection=1)


def reference(left, right):
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


def correlate(left, right, policy=None, **options):
    fed = aligned(left, right, policy=policy)
    return rank_correlation(fed, "a", "b", **options), fed


def assert_scipys(found, left, right):
    rho, p_values = reference(left, right)
    np.testing.assert_allclose(found.matrix.to_numpy(), rho, atol=1e-12, rtol=0)
    inner = np.abs(rho) < 1 - 1e-9
    np.testing.assert_allclose(found.p_values.to_numpy()[inner], p_values[inner], atol=1e-9)


# ---------------------------------------------------------------------------------- ranks


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.integers(0, 1 << 30))
def test_centred_ranks_keep_within_their_bounds(values, seed):
    array, bounds = np.array(values), rank_bounds(len(values))
    present = np.random.default_rng(seed).random(len(array)) < 0.7
    ranks = centred_ranks(array, present)
    assert not ranks[~present].any() and ranks.sum() == 0
    assert (
        np.sign(ranks[present][:, None] - ranks[present])
        == np.sign(array[present][:, None] - array[present])
    ).all()
    assert np.abs(ranks).max() <= bounds["bound"]
    assert (ranks**2).sum() <= bounds["square_sum"]


def test_large_integers_that_differ_are_no_ties():
    other = np.random.default_rng(0).permutation(10) + 0.5
    expected = spearmanr(np.arange(10), other).statistic
    across = np.uint64(1 << 63) + (np.arange(10) - 5).astype(np.uint64)  # half of them beyond int64
    for big in ((1 << 60) + np.arange(10), across):
        fed = aligned(pd.DataFrame({"id": big}), pd.DataFrame({"y": other}))
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


@settings(max_examples=15)
@given(tables())
def test_equal_to_scipy_with_ties_and_constants(pair):
    found, _ = correlate(*pair, mode="dealer", min_rows=2)
    assert_scipys(found, *pair)
    assert (found.n, found.missing) == (len(pair[0]), "none")


def test_equal_to_scipy_under_encryption():
    left, right = mixed(0, 300, 4), mixed(1, 300, 3)
    right[:, 1] = left[:, 0] * -2
    found, _ = correlate(left, right)
    assert_scipys(found, left, right)
    assert found.matrix.loc["x0", "y1"] == pytest.approx(-1, abs=1e-12)
    assert found.p_values.loc["x0", "y1"] < 1e-12


def test_two_rows():
    left, right = np.array([[1.0], [2.0]]), np.array([[5.0], [4.0]])
    found, _ = correlate(left, right, min_rows=2, mode="dealer")
    assert found.matrix.iloc[0, 0] == -1
    assert np.isnan(found.p_values.iloc[0, 0])


# ---------------------------------------------------------------------------------- missing cells


def test_pairwise_is_scipys_omit():
    left, right = mixed(2, 60, 3, missing=0.2), mixed(3, 60, 2, missing=0.1)
    left[:, 1] = np.nan_to_num(left[:, 1])
    found, fed = correlate(left, right, missing="pairwise", mode="dealer", policy=OPEN)
    assert_scipys(found, left, right)
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


@settings(max_examples=10)
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
    fed = aligned(pd.DataFrame({"x": x}), frame, kinds=(None, kinds))
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
    found = rank_correlation(aligned(*frames), "a", "b", mode="dealer")
    table = np.array(
        [[spearmanr(one == i, other == j).statistic for j in range(4)] for i in range(4)]
    )
    np.testing.assert_allclose(found.indicators.to_numpy(), table, atol=1e-12)
    assert abs(found.matrix.loc["s", "t"]) == pytest.approx(np.abs(table).max(), abs=1e-12)
    fewer = rank_correlation(aligned(*frames), "a", "b", mode="dealer", max_categories=2)
    assert fewer.indicators.shape == (2, 2)
    common = np.sort(np.argsort(-np.bincount(one), kind="stable")[:2])
    assert [name.split("#")[1] for name in fewer.indicators.index] == [str(c) for c in common]


def test_labels_and_blocks_stay_out():
    n = 12
    frame = pd.DataFrame({"x": np.arange(n) * 1.5, "y": np.arange(n) * -1.0})
    fed = aligned(frame, frame, label="y")
    found = rank_correlation(fed, "a", "b", mode="dealer")
    assert found.matrix.index.tolist() == ["x"]
    named = {"columns_a": ["y"], "columns_b": ["x"], "mode": "dealer"}
    with pytest.raises(Refused, match="its label column takes no part"):
        rank_correlation(fed, "a", "b", **named)
    fed = aligned(frame, frame, label="y", policy=Policy(label_sums=True))
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
    for strength, expected in (("mean", 0), ("max-abs", 1)):
        found, _ = correlate(left, x[:, None], mode="dealer", strength=strength)
        assert found.strengths["y0"] == pytest.approx(expected)


# ---------------------------------------------------------------------------------- published


def test_published_is_right_without_ties_and_biased_with():
    rng = np.random.default_rng(3)
    left, right = rng.normal(size=(6, 1)), rng.normal(size=(6, 1))
    open_rows = {"policy": OPEN, "protocol": "published", "min_rows": 2}
    with pytest.warns(PrivacyWarning, match="difference of every row"):
        found, fed = correlate(left, right, key_bits=1024, **open_rows)
    np.testing.assert_allclose(found.matrix.to_numpy(), reference(left, right)[0], atol=1e-12)
    assert "ciphertext" in fed.ledger.kinds(receiver=COORDINATOR)
    tied = np.round(left)
    with pytest.warns(PrivacyWarning):
        found, _ = correlate(tied, right, key_bits=1024, **open_rows)
    d = rankdata(tied[:, 0]) - rankdata(right[:, 0])
    assert found.matrix.iloc[0, 0] == pytest.approx(1 - 6 * (d**2).sum() / 210, abs=1e-12)
    assert abs(found.matrix.iloc[0, 0] - reference(tied, right)[0][0, 0]) > 1e-3


def test_a_missing_cell_has_the_middle_rank_in_the_published_protocol():
    left, right = mixed(0, 20, 2, missing=0.2), mixed(1, 20, 1)
    found, _ = correlate(left, right, protocol="published", mode="dealer")
    ranks = [np.nan_to_num(rankdata(x, nan_policy="omit") - (1 + np.sum(~np.isnan(x))) / 2)
             for x in left.T]  # fmt: skip
    other = rankdata(right[:, 0]) - 10.5
    expected = [1 - 6 * np.sum((own - other) ** 2) / (20 * 399) for own in ranks]
    np.testing.assert_allclose(found.matrix["y0"], expected, atol=1e-12)
    assert found.missing == "middle-rank" and (found.counts == 20).all(axis=None)


# ---------------------------------------------------------------------------------- refusals


def test_refusals():
    with pytest.raises(ConfigError) as caught:
        correlate(
            *[np.ones((1, 1))] * 2, mode="x", strength="y", missing="z", protocol="w", min_rows=1
        )
    assert len(caught.value.problems) == 5
    with pytest.raises(AlignmentError, match="9 aligned rows are too few"):
        correlate(mixed(0, 9, 1), mixed(0, 9, 1), mode="dealer")


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
    ranks = [Columns(party, "centred-ranks") for party in "ab"]
    result = inner_products(aligned(left, right), *ranks, mode="dealer")
    expected = [[2 * rankdata(x) - 31 for x in side.T] for side in (left, right)]
    np.testing.assert_array_equal(result, np.array(expected[0]) @ np.array(expected[1]).T)
    left[3, 0] = np.nan
    with pytest.raises(DataError, match="missing cells"):
        inner_products(aligned(left, right), *ranks, mode="dealer")
