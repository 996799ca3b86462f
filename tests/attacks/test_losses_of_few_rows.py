"""A loss over many rows of which a part of the network learns from one.

An ensemble's loss is a sum over networks, and over the heads of the parties. Who says which network
learns from which row, who knows which rows of a batch, how far a party's side of a row is trusted
and how often a row stands in a batch, leaves a single row to one of the terms, or nearly all the
weight to one row. Measured: whether a loss is told.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

import fedmend as fm
from fedmend.data.table import Table
from fedmend.errors import Refused
from fedmend.federation import Each
from fedmend.methods.risa.columns import models_of
from fedmend.split.features import ALIGNED

SHARED, OWN, ROW = 120, 40, 7
NONE = np.zeros(0, np.int64)
EVERYBODY, ALONE = np.arange(SHARED), np.arange(SHARED, SHARED + OWN)


def federation(unlabelled: int = 0) -> fm.Federation:
    """A label party with rows of its own, of which the first so many have no label; a partner."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SHARED + OWN, 4))
    y = np.where(x[:, 0] + x[:, 2] > 0, "yes", "no").astype(object)
    y[SHARED : SHARED + unlabelled] = None
    bank = pd.DataFrame(x[:, :2], columns=["a", "b"]).assign(y=y)
    telco = pd.DataFrame(x[:SHARED, 2:], columns=["c", "d"])
    fed = fm.Federation(
        fm.Party("bank", Table(np.arange(SHARED + OWN), bank, label="y")),
        fm.Party("telco", Table(np.arange(SHARED), telco)),
    )
    fm.align(fed)
    return fed


@pytest.fixture
def session():
    """Two networks side by side."""
    fed = federation()
    model = fm.RISA(epochs=1, members=2, label_party="bank")
    network = model._make_network(fed, model._parties(fed, "bank"), "bank", model._config())
    with network.session([[ALIGNED, SHARED], ["bank", OWN], ["telco", 0]]) as made:
        yield made


def told(session, shared=EVERYBODY, alone=ALONE) -> bool:
    session.set_pools([shared, alone, NONE])
    return not math.isnan(session.epoch(1))


def unseen(but: int | None = None, member: int = 0) -> np.ndarray:
    """A network that learns from one of the rows known to all, or from none."""
    members = np.full(SHARED + OWN, member)
    if but is not None:
        members[but] = 1 - member
    return members


def leave_to_both(session) -> None:
    halves = np.arange(SHARED + OWN) % 2
    session.top.set_unseen(np.arange(SHARED + OWN), halves)


def test_the_loss_of_a_network_that_learns_from_one_row(session):
    leave_to_both(session)
    assert told(session)
    for member in (0, 1):
        session.top.set_unseen(np.arange(SHARED + OWN), unseen(ROW, member))
        assert not told(session)
    session.top.set_unseen(np.arange(SHARED + OWN), unseen())
    assert told(session), "of no row at all nothing is told"


def test_the_loss_of_a_head_whose_party_knows_one_row(session):
    assert not told(session, shared=EVERYBODY[ROW : ROW + 1])
    assert not told(session, shared=EVERYBODY[:9])
    assert told(session, shared=EVERYBODY[:20])
    assert told(session, shared=NONE)


def test_the_loss_of_a_head_that_believes_one_row(session):
    trusted = np.full(SHARED + OWN, 1e-3)
    trusted[ROW] = 1.0
    session.top.set_reliability({"telco": trusted})
    assert not told(session)


def test_the_loss_of_batches_full_of_one_row(session):
    rows, counts = [EVERYBODY[ROW : ROW + 1], ALONE, NONE], [400, 10, 0]
    session.set_pools([EVERYBODY, ALONE, NONE])
    session.top.set_unseen(EVERYBODY, np.full(SHARED, -1))
    session._batches = session.top.set_groups(rows, counts, 4)
    session.bottoms.set_groups(rows, counts, 4)
    with pytest.raises(Refused, match="a step on the labels of fewer than 10"):
        session.epoch(1)


def test_a_network_that_learns_from_one_row_more_the_second_time(session):
    """Between two losses of networks that hardly move: what the row loses, and so its label."""
    halves = np.arange(SHARED + OWN) % 2
    leave_to_both(session)
    assert told(session) and told(session)
    for member in (-1, 1 - halves[ROW]):
        one = halves.copy()
        one[ROW] = member
        session.top.set_unseen(np.arange(SHARED + OWN), one)
        assert not told(session)
    leave_to_both(session)
    assert told(session)


def test_a_row_that_is_believed_a_little_more_the_second_time(session):
    believed = np.ones(SHARED + OWN)
    session.top.set_reliability({"telco": believed})
    assert told(session)
    session.top.set_reliability({"telco": np.where(np.arange(SHARED + OWN) == ROW, 0.9, 1.0)})
    assert not told(session)


@pytest.mark.parametrize("how", ["unseen", "reliable"])
def test_how_rows_count_is_changed_before_the_loss_is_asked(session, how):
    """A term is of one row of the first batch and of none of the others; in the end, of all."""
    top, bottoms, groups = session.top, session.bottoms, [EVERYBODY, ALONE, NONE]
    bottoms.set_groups(groups, [30, 10, 0], 4)
    top.set_groups(groups, [30, 10, 0], 4)
    top.start_epoch(1)
    embeddings = bottoms.step(epoch=1)
    site = session.fed.engine.sites["bank"]
    (worker,) = (each for each in site._workers.values() if hasattr(each, "trained"))
    first = int(worker.trained.order.shuffled[0])
    for batch in range(4):
        one = np.arange(SHARED + OWN) == (first if batch == 0 else -1)
        if how == "unseen":
            top.set_unseen(np.arange(SHARED + OWN), one.astype(np.int64))
        else:
            top.set_reliability({"telco": one.astype(float)})
        gradients = top.step(embeddings)
        if batch < 3:
            embeddings = bottoms.step(Each(gradients))
    top.set_unseen(EVERYBODY, np.full(SHARED, -1))
    top.set_reliability({})
    assert top.loss() is None


def test_which_ridge_suits_one_row(session):
    """The shares of ridges are of the losses of rows: of one row, its label."""
    leave_to_both(session)
    told(session)
    session.finish()
    session.judge(EVERYBODY, ALIGNED, [ALIGNED, *session.network.parties])

    def shares(places, folds=(0, 1)):
        models = models_of((10.0, 20.0), folds)
        plan = {group: [list(each) for each in models] for group in (ALIGNED, "telco")}
        session.top.additive_begin(EVERYBODY, np.asarray(places), plan)
        zeros = torch.zeros(len(places), 2 * len(models) * 2)
        return session.top.additive_shares({"telco": zeros})

    assert set(shares(EVERYBODY)) == {ALIGNED, "telco"}
    session.top.set_unseen(EVERYBODY, unseen(ROW)[:SHARED])
    for places, folds in (([ROW], (0, 1)), (EVERYBODY[:9], (0, 1)), (EVERYBODY, (1,))):
        with pytest.raises(Refused, match=r"bank.*fewer than 10 of its rows.*Mend"):
            shares(places, folds)
    with pytest.raises(Refused, match="together with what was answered before"):
        shares(np.delete(EVERYBODY, ROW), (0,))


def test_the_loss_of_one_labelled_row_in_a_network_for_whoever_knows_a_row():
    """It walks rows without a label, too, and as often as they are put into its batches."""
    fed = federation(unlabelled=OWN - 1)
    model = fm.AbsentPartner(epochs=1, label_party="bank")
    network = model._make_network(fed, model._parties(fed, "bank"), "bank", model._config())

    def told_of(shared: np.ndarray, alone: np.ndarray, counts: list[int]) -> bool:
        groups = [shared, alone, NONE]
        made._batches = made.top.set_groups(groups, [*counts, 0], 4)
        made.bottoms.set_groups(groups, [*counts, 0], 4)
        try:
            return not math.isnan(made.epoch(1))
        except Refused:  # a step of one row
            return False

    with network.session([[ALIGNED, SHARED], ["bank", OWN], ["telco", 0]]) as made:
        assert not told_of(EVERYBODY[ROW : ROW + 1], EVERYBODY, [400, 10])
        assert not told_of(NONE, ALONE, [0, OWN])
        assert told_of(EVERYBODY, ALONE, [30, 10])
