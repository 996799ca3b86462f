"""Rows that some of several parties know are predicted by a model that all of them trained."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedmend as fm

N = 240


@pytest.fixture(scope="module")
def three() -> tuple[fm.Federation, fm.Federation]:
    """Telco and shop know two thirds of the bank's rows each, a third is known to all; and the two
    of them that meet without the shop."""
    x = np.random.default_rng(0).normal(size=(N, 6))
    y = np.where(x.sum(1) > 0, "yes", "no")

    def table(rows: slice, columns: list[int], **label: Any) -> fm.Table:
        frame = pd.DataFrame(x[rows][:, columns], columns=[f"x{at}" for at in columns])
        ids = np.arange(N)[rows]
        return fm.Table(ids, frame.assign(y=y[rows]) if label else frame, **label)

    fed = fm.Federation(
        fm.Party("bank", table(slice(N), [0, 1], label="y")),
        fm.Party("telco", table(slice(160), [2, 3])),
        fm.Party("shop", table(slice(80, N), [4, 5])),
    )
    fm.align(fed)
    fm.align(two := fed.only("bank", "telco"))
    return fed, two


@pytest.mark.parametrize(
    "model",
    [
        fm.SecureBoost(trees=5, validation=0.0),
        fm.VFL(epochs=2),
        fm.LocalVFL(epochs=2),
        fm.RISA(epochs=2),
        fm.Auto(candidates=("local-trees", "vfl"), folds=2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_those_who_know_a_row_are_enough(model: Any, three) -> None:
    fed, two = three
    fitted = model.fit(fed)
    p = fitted.predict_proba(two)
    assert p.shape == (160, 2)
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-5)
    np.testing.assert_allclose(fitted.predict_uncertainty(two), 1 - p.max(1), atol=1e-6)
    own = fitted.predict_proba(fed, rows="bank")
    assert fitted.predict_uncertainty(fed, rows="bank").shape == own[:, 0].shape


def test_shares_are_of_those_who_know_the_rows(three) -> None:
    fed, two = three
    for model in (fm.VFL(epochs=2), fm.AbsentPartner(epochs=2), fm.SecureBoost(trees=5)):
        told = model.fit(fed).predict_table(two)
        shares = [name for name in told if name.startswith("share")]
        assert len(told) == 160 and shares == ["share(bank)", "share(telco)"]
        np.testing.assert_allclose(told[shares].sum(axis=1), 1.0, atol=1e-5)
