"""A mean of opinions over rows that the coordinator chooses: of one row, or of all but one.

The mass of an opinion and the shares that parties carry are kept with each row, and only means of
them leave without a single row's leave. Who names the rows that are judged could read one off a
mean, or off two of them. Measured: whether they are told.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.data.table import Table
from fedmend.errors import Refused, TooFewRows
from fedmend.split.features import ALIGNED

SHARED, ROW = 120, 7
EVERYBODY = np.arange(SHARED)


@pytest.fixture(scope="module")
def trained() -> tuple[fm.Federation, fm.RISA]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SHARED, 4))
    y = np.where(x[:, 0] + x[:, 2] > 0, "yes", "no")
    bank = pd.DataFrame(x[:, :2], columns=["a", "b"]).assign(y=y)
    telco = pd.DataFrame(x[:, 2:], columns=["c", "d"])
    fed = fm.Federation(
        fm.Party("bank", Table(EVERYBODY, bank, label="y")),
        fm.Party("telco", Table(EVERYBODY, telco)),
    )
    fm.align(fed)
    return fed, fm.RISA(epochs=1, members=2, label_party="bank").fit(fed)


@pytest.mark.parametrize("asked", ["mass", "carried"])
def test_a_mean_over_few_rows_or_over_all_but_one(trained, asked):
    fed, model = trained
    network, segments, _ = model._ready(fed, ALIGNED)

    def told(rows: np.ndarray) -> object:
        with network.asking(fed, segments, explain=asked == "carried") as session:
            session.run(rows)
            if asked == "mass":
                return session.top.mass()
            return session.top.carried(ALIGNED, list(network.parties))

    mean = told(EVERYBODY)
    assert told(EVERYBODY) == mean, "the same rows tell nothing new"
    with pytest.raises(Refused):
        told(np.delete(EVERYBODY, ROW))
    with pytest.raises(Refused):
        told(np.concatenate([EVERYBODY, [ROW]]))
    with pytest.raises(TooFewRows):
        told(EVERYBODY[ROW : ROW + 1])
    with pytest.raises(TooFewRows):
        told(np.repeat(EVERYBODY[:9], 20))
    assert told(EVERYBODY[:60]) is not None


def test_shares_carried_of_other_rows_than_are_named(trained):
    """What a row loses without a party would be another row's, where others are judged without."""
    fed, model = trained
    network, segments, _ = model._ready(fed, ALIGNED)
    with network.asking(fed, segments) as session:
        session.judge(EVERYBODY, ALIGNED, ["bank"])
        session._explain = True
        session.judge(np.where(EVERYBODY == ROW, 0, EVERYBODY), ALIGNED, ["telco"])
        with pytest.raises(Refused):
            session.top.carried("bank", list(network.parties))


def test_in_how_many_columns_two_rows_differ(trained):
    fed, model = trained
    network, segments, _ = model._ready(fed, ALIGNED)
    with network.asking(fed, segments) as session:
        telco = session.bottoms["telco"]
        assert telco.additive_columns(EVERYBODY) > 0
        for rows in (EVERYBODY[ROW : ROW + 2], np.delete(EVERYBODY, ROW)):
            with pytest.raises(Refused):
                telco.additive_columns(rows)
