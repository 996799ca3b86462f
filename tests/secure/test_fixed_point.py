"""Fixed-point columns: covariances against numpy within the stated bound."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.errors import ConfigError, DataError
from fedmend.secure.fixed_point import (
    covariance,
    encode,
    fitting_bits,
    product_error,
    standard_bounds,
)
from fedmend.secure.inner_product import LIMIT_BITS

from .parties import aligned


def federation_of(values, split):
    return aligned(values[:, :split], values[:, split:])


# ---------------------------------------------------------------------------------- encoding


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(0, 30))
def test_one_cell_is_off_by_half_a_unit_at_most(values, bits):
    array = np.array(values)
    off = np.abs(encode(array, bits) / 2.0**bits - array)
    assert (off <= 0.5 ** (bits + 1) + 1e-9 * np.abs(array)).all()


def test_what_has_no_fixed_point_form():
    for values in ([np.inf], [np.nan], [1e18]):
        with pytest.raises(DataError, match="no fixed-point form"):
            encode(np.array(values), 20)
    with pytest.raises(ConfigError, match="bits"):
        encode(np.array([1.0]), 31)


@pytest.mark.parametrize("mode", ["bfv", "dealer"])
@pytest.mark.parametrize("rows", [2, 1000, 100_000, 1_000_000])
def test_as_many_bits_as_fit(mode, rows):
    bits = fitting_bits(rows, mode)
    assert standard_bounds(rows, bits)[1].bit_length() <= LIMIT_BITS[mode]
    assert bits == 30 or standard_bounds(rows, bits + 1)[1].bit_length() > LIMIT_BITS[mode]
    assert product_error(rows, bits) / rows < 1e-5


# ---------------------------------------------------------------------------------- covariance


@settings(max_examples=12)
@given(
    st.integers(0, 10_000),
    st.integers(2, 60),
    st.sampled_from([4, 12, 20]),
    st.sampled_from([1e-6, 1.0, 1e9]),
)
def test_covariance_is_numpys_within_the_bound(seed, n, bits, unit):
    rng = np.random.default_rng(seed)
    values = (
        rng.normal(size=(n, 2)) @ rng.normal(size=(2, 5)) + rng.standard_cauchy((n, 5))
    ) * unit
    values[:, 1] += 100 * unit
    found = covariance(federation_of(values, 3), "a", "b", mode="dealer", bits=bits)
    expected = np.cov(values.T)[:3, 3:]
    off = np.abs(found.values.to_numpy() - expected)
    assert (off <= found.error_bound.to_numpy()).all()
    assert (found.n, found.bits) == (n, bits)


def test_under_encryption_with_all_the_bits_there_are():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(3000, 5)) @ rng.normal(size=(5, 5)) * 7 + 3
    found = covariance(federation_of(values, 2), "a", "b")
    expected = np.cov(values.T)[:2, 2:]
    off = np.abs(found.values.to_numpy() - expected)
    bound = found.error_bound.to_numpy()
    assert (off <= bound).all()
    assert (bound < 1e-5 * np.outer(values.std(0)[:2], values.std(0)[2:])).all()
    np.testing.assert_allclose(found.correlations(), np.corrcoef(values.T)[:2, 2:], atol=1e-6)
    np.testing.assert_allclose(found.rows["mean"], values[:, :2].mean(axis=0))
    np.testing.assert_allclose(found.columns["deviation"], values[:, 2:].std(axis=0))


def test_the_bound_is_worth_something():
    """Coarse rounding must be able to come near it: a bound of a thousand times is no bound."""
    rng = np.random.default_rng(2)
    worst = 0.0
    for _ in range(20):
        values = rng.choice([-1.0, 1.0], size=(6, 2)) + rng.normal(size=(6, 2)) * 1e-3
        found = covariance(federation_of(values, 1), "a", "b", mode="dealer", bits=3)
        off = abs(found.values.iloc[0, 0] - np.cov(values.T)[0, 1])
        worst = max(worst, off / found.error_bound.iloc[0, 0])
    assert 0.001 < worst <= 1


def test_joint_matrix_gives_the_ridge_solution():
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(3)
    values = rng.normal(size=(400, 6))
    values[:, 5] = values[:, :5] @ np.arange(1, 6) + rng.normal(size=400)
    found = covariance(federation_of(values, 3), "a", "b", joint=True, mode="dealer")
    assert found.values.index.tolist() == ["a.x0", "a.x1", "a.x2", "b.y0", "b.y1", "b.y2"]
    expected = np.cov(values.T)
    assert (np.abs(found.values.to_numpy() - expected) <= found.error_bound.to_numpy()).all()
    gram = found.values.to_numpy() * (found.n - 1)
    weights = np.linalg.solve(gram[:5, :5] + 2.0 * np.eye(5), gram[:5, 5])
    np.testing.assert_allclose(
        weights, Ridge(2.0).fit(values[:, :5], values[:, 5]).coef_, atol=1e-5
    )


def test_constant_columns_have_no_covariance():
    values = np.array([[0.1, 1.0], [0.1, 2.0], [0.1, 4.0]])
    found = covariance(federation_of(values, 1), "a", "b", mode="dealer")
    assert found.values.iloc[0, 0] == 0
    assert np.isnan(found.correlations().iloc[0, 0])


def test_kinds_and_missing_cells():
    left = pd.DataFrame({"x": [1.0, np.nan, 3.0, 8.0], "member": ["no", "yes", "yes", "no"]})
    right = pd.DataFrame({"y": [1.5, 2.5, 0.5, 4.5], "town": ["u", "v", "w", "u"]})
    fed = aligned(left, right)
    with pytest.raises(DataError, match="has missing cells.*seen: 1") as caught:
        covariance(fed, "a", "b", mode="dealer")
    assert (caught.value.party, caught.value.column) == ("a", "x")
    found = covariance(fed, "a", "b", mode="dealer", missing="mean")
    assert found.values.shape == (2, 1)
    filled = np.array([[1.0, 4.0, 3.0, 8.0], [0, 1, 1, 0], [1.5, 2.5, 0.5, 4.5]])
    off = np.abs(found.values.to_numpy() - np.cov(filled)[:2, 2:])
    assert (off <= found.error_bound.to_numpy()).all()
    with pytest.raises(DataError, match="nominal"):
        covariance(fed, "a", "b", columns_b=["town"], mode="dealer", missing="mean")
    with pytest.raises(ConfigError, match="got 'zero'"):
        covariance(fed, "a", "b", missing="zero")


def test_what_leaves():
    values = np.random.default_rng(0).normal(size=(50, 4))
    fed = federation_of(values, 2)
    covariance(fed, "a", "b")
    for party in "ab":
        assert fed.ledger.kinds(sender=party) == {
            "control", "count", "statistic", "ciphertext", "masked"
        }  # fmt: skip


def test_too_many_bits_for_the_mode():
    values = np.random.default_rng(0).normal(size=(50, 2))
    with pytest.raises(DataError, match="exact below 2\\^58"):
        covariance(federation_of(values, 1), "a", "b", bits=28)
