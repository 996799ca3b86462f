"""Thresholds: Holm's procedure against its textbook form, and the split with the least error."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from fedmend.methods.completion.thresholds import critical_rho, cv_threshold


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
@settings(max_examples=80, deadline=None)
def test_above_the_critical_value_is_what_holm_rejects(
    rho: list[float], rows: int, level: float
) -> None:
    values = np.array(rho)
    statistic = np.abs(values) * np.sqrt((rows - 2) / (1 - values**2))
    expected = holm(2 * student.sf(statistic, rows - 2), level)
    critical = critical_rho(values.reshape(1, -1), rows, level)
    clear = np.abs(np.abs(values) - critical) > 1e-9
    np.testing.assert_array_equal((np.abs(values) > critical)[clear], expected[clear])


def test_pairs_without_a_correlation_do_not_count() -> None:
    values = np.array([[0.3, np.nan], [0.1, np.nan]])
    assert critical_rho(values, 100, 0.05) == critical_rho(values[:, :1], 100, 0.05)
    assert critical_rho(np.full((2, 2), np.nan), 100, 0.05) == 1.0


def test_cv_takes_the_columns_whose_prediction_pays() -> None:
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
