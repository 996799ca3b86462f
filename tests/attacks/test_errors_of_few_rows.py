"""Errors of column models on as few held-out rows as the coordinator likes.

A completion holds a part of the aligned rows out and tells what its models, and the mean, get wrong
there. The coordinator says how many parts there are: with as many as rows, the error of the mean
tells how far one cell is from it, and of a column of two values which it is.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.data.table import Table
from fedmend.errors import CryptoError
from fedmend.generate.vfgain import VFGAIN
from fedmend.methods.completion.merging import open_rows
from fedmend.methods.completion.self_training import SelfTraining, _Run

ALIGNED, TARGETS = 80, ["amount", "flag"]


def view_of_a_run():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = {"amount": x[:, 0] + rng.normal(size=200), "flag": np.where(x[:, 1] > 0, "a", "b")}
    bank = Table(np.arange(200), pd.DataFrame(x, columns=["a", "b"]))
    telco = Table(np.arange(ALIGNED), pd.DataFrame(y).iloc[:ALIGNED])
    fed = fm.Federation(fm.Party("bank", bank), fm.Party("telco", telco))
    fm.align(fed)
    return open_rows(fed, "bank", "run")["telco"]


def told(view, *parts):
    """Of which columns errors are told after these parts were held out, one after the other."""
    how = SelfTraining(judged=True)
    with _Run(view, "bank", "telco", TARGETS, run="run", how=how) as work:
        for part, of in parts:
            work.try_out(part, of)
        return sorted(work.weigh())


def test_the_error_of_one_row():
    assert told(view_of_a_run(), (3, ALIGNED)) == []


def test_the_errors_of_a_part_with_and_without_a_row():
    view = view_of_a_run()
    assert told(view, (0, 2)) == TARGETS
    assert told(view, (0, 2), (7, ALIGNED)) == []
    assert told(view, (0, 2)) == TARGETS


def test_which_embedding_suits_one_row_best():
    """VF-GAIN says whether a score is the best so far: of one row, which other it is most like."""
    rows = 240
    for seal in (False, True):
        x = np.random.default_rng(0).normal(size=(rows, 2))
        tables = {"bank": {"a": x[:, 0]}, "telco": {"b": x.sum(1)}}
        fed = fm.Federation(
            *(fm.Party(name, Table(np.arange(rows), each)) for name, each in tables.items())
        )
        fm.align(fed)
        made = VFGAIN(steps=2, batch_size=40, hidden=8, device="cpu", seal=seal)
        made.fit(fed, a="bank", b="telco")
        with made._pair(fed) as (bottom, imputer):
            bottom.attach([["aligned", rows]], made._config().to_wire())
            imputer.attach()
            for some in ([7], [7] * 20, range(9)):
                assert imputer.judge(bottom.embed(np.array(some)), np.array(some)) is None
            some = np.arange(30)
            assert imputer.judge(bottom.embed(some), some) is True
            assert imputer.judge(bottom.embed(some[1:]), some[1:]) is None
            if seal:
                with pytest.raises(CryptoError, match="could not read a message"):
                    imputer.judge(bottom.embed(some[::-1]), some)
