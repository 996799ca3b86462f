"""Labels that are believed more or less: what they become, and that training uses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmend as fm
from fedmend.data.table import Table
from fedmend.learn.belief import believed, keep_trust, label_trust


@given(classes=st.integers(2, 6), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_soft_labels_are_distributions(classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    targets = rng.integers(-1, classes, 30)
    trust = rng.uniform(1 / classes, 1, 30)
    soft = believed(targets, trust, classes)
    known = targets >= 0
    np.testing.assert_allclose(soft[known].sum(1), 1.0)
    assert (soft[~known] == 0).all() and (soft >= 0).all()
    np.testing.assert_allclose(soft[known, targets[known]], trust[known])
    np.testing.assert_array_equal(
        soft[known].argmax(1)[trust[known] > 0.51], targets[known][trust[known] > 0.51]
    )


def fitted(method: Any, trust: np.ndarray | None) -> np.ndarray:
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = y + 0.1 * rng.normal(size=200)
    table = Table(np.arange(200), {"x": x, "y": np.array(["no", "yes"])[y]}, label="y")
    other = Table(np.arange(200), {"z": rng.normal(size=200)})
    fed = fm.Federation(fm.Party("a", table), fm.Party("b", other), strict=True)
    fm.align(fed)
    if trust is not None:
        keep_trust(fed.engine.site("a"), "train", trust)  # type: ignore[attr-defined]
    model = method(epochs=30, batch_size=32, lr=0.01, validation=0.0, patience=None).fit(fed)
    return model.predict_proba(fed, rows="all")[:, 1]


@pytest.mark.parametrize("method", [fm.VFL, fm.LocalVFL, fm.Local])
def test_a_model_of_doubtful_labels_is_no_surer_than_they_are(method: Any) -> None:
    sure, doubting = fitted(method, None), fitted(method, np.full(200, 0.7))
    y = np.arange(200) % 2
    assert abs(sure[y == 1].mean() - 0.98) < 0.05
    assert abs(doubting[y == 1].mean() - 0.7) < 0.05
    assert abs(doubting[y == 0].mean() - 0.3) < 0.05


def test_full_trust_changes_nothing_but_rounding() -> None:
    np.testing.assert_allclose(fitted(fm.VFL, None), fitted(fm.VFL, np.ones(200)), atol=1e-4)


def test_other_tables_have_no_trust() -> None:
    fed = fm.Federation(fm.Party("a", Table(np.arange(3), {"x": np.arange(3.0)})))
    assert label_trust(fed.engine.site("a"), "train") is None  # type: ignore[attr-defined]
