"""Scores of outputs that are not those of the rows beside whose labels they stand.

A coordinator asks for predictions in any order, any number of times, and then for a metric over
enough rows. Whoever chooses which output stands beside which label reads labels off a metric over
all rows: one output for all and another for one, and the accuracy moves by that row's label.
Measured: labels told, of all that were asked for.
"""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.data.table import Table
from fedmend.errors import CryptoError, FedmendError, Refused
from fedmend.methods.auto.folds import FoldWorker
from fedmend.methods.auto.worker import BlendWorker
from fedmend.secure.channel import introduce, seal_exchange
from fedmend.split.workers import BottomWorker, TopWorker

ROWS = 200


@pytest.fixture
def fed():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 4))
    y = np.where(x[:, 0] + x[:, 2] + 0.5 * rng.normal(size=ROWS) > 0, "yes", "no")
    bank = pd.DataFrame(x[:, :2], columns=["a", "b"]).assign(y=y)
    telco = pd.DataFrame(x[:, 2:], columns=["c", "d"])
    ids = np.arange(ROWS)
    made = fm.Federation(
        fm.Party("bank", Table(ids, bank, label="y")), fm.Party("telco", Table(ids, telco))
    )
    fm.align(made)
    return made


def attached(fed, network, *, train=False):
    top = fed.workers(TopWorker, parties=["bank"], model=network.model)["bank"]
    top.attach([["aligned", ROWS]], network.config.to_wire(), train)
    return top


def test_the_metric_of_outputs_of_other_rows(fed):
    """One row's output for everybody, another's for one row: its label, by the accuracy."""
    top = attached(fed, fm.Local(epochs=1).fit(fed).network_)
    everybody, chosen = np.arange(ROWS), np.zeros(ROWS, np.int64)
    for rows in (chosen, everybody[::-1], everybody[:-1], np.append(everybody, 0)):
        for ask in ("metrics", "uncertainty_report"):
            top.predict_chunk(rows)
            with pytest.raises(Refused, match="outputs of other rows"):
                getattr(top, ask)()
            top.predictions()
    top.predict_chunk(everybody)
    assert 0 <= top.metrics()["accuracy"] <= 1


def test_whether_a_training_of_other_rows_has_collapsed(fed):
    top = attached(fed, fm.Local(epochs=1).fit(fed).network_, train=True)
    top.predict_chunk(np.zeros(50, np.int64))
    with pytest.raises(Refused, match="outputs of other rows"):
        top.collapsed(np.arange(50), np.arange(50, ROWS))


def test_the_loss_of_rows_that_were_walked_before(fed):
    """Two rows walked, then all of them named: the loss of the two was told as that of all."""
    network = fm.Local(epochs=1).fit(fed).network_
    top = attached(fed, network, train=True)
    for row in range(5):
        top.set_order(np.array([row, row]))
        with pytest.raises(Refused, match="a step on the labels of fewer than 10"):
            top.epoch_alone(1)
        assert top.loss() is None  # of one row nothing
        top.set_order(np.arange(ROWS))
        assert top.loss() == 0.0  # nothing was walked
    top.epoch_alone(2)
    assert top.loss() > 0.0


def test_which_rows_are_held_out_does_not_tell_their_classes(fed):
    """Few rows below the share, so that one class has enough of them and the other has not.

    The class that had not was held out twice as often: of some forty rows the label at once.
    """
    site = fed.engine.sites["bank"]
    labels = site.tables["train"].y.to_numpy()[site.alignments["train"].aligned]
    top = attached(fed, fm.Local(epochs=1).fit(fed).network_, train=True)
    rng, rows = np.random.default_rng(1), np.arange(ROWS)
    below = top.hold_out(rows, 0.2)
    others, of_one_class, doubled = np.setdiff1d(rows, below), 0, 0
    for _ in range(60):
        some = rng.choice(below, int(rng.integers(10, len(below))), replace=False)
        held = np.setdiff1d(top.hold_out(np.union1d(others, some), 0.2), some)
        doubled += len(held) > 0
        of_one_class += len(held) > 4 and len(set(labels[held])) == 1
    assert doubled and not of_one_class


def test_which_rows_of_a_cut_table_are_held_out_does_not_tell_their_classes(fed):
    """The same with tables that hold no other rows: all of their labelled ones are named."""
    site = fed.engine.sites["bank"]
    labels = site.tables["train"].y.to_numpy()[site.alignments["train"].aligned]
    network = fm.Local(epochs=1).fit(fed).network_
    below = attached(fed, network, train=True).hold_out(np.arange(ROWS), 0.2)
    rng, of_one_class, doubled = np.random.default_rng(1), 0, 0
    with fed.workers(FoldWorker, parties=["bank"]) as folds, contextlib.suppress(Refused):
        for number in range(20):
            out = rng.choice(below, len(below) - int(rng.integers(10, 20)), replace=False)
            folds["bank"].split(f"cut-{number}", "rest", out, 0, {})
            kept, cut = np.setdiff1d(np.arange(ROWS), out), fed.on(f"cut-{number}")
            with cut.workers(TopWorker, parties=["bank"], model=network.model) as tops:
                tops["bank"].attach([["aligned", len(kept)]], network.config.to_wire(), True)
                held = np.setdiff1d(kept[tops["bank"].hold_out(np.arange(len(kept)), 0.2)], below)
            doubled += len(held) > 0
            of_one_class += len(held) > 4 and len(set(labels[held])) == 1
    assert doubled and not of_one_class


def test_a_cut_table_is_known_whatever_it_is_called(fed):
    """By the name of the whole one, with rows beside that somebody made, or with other labels."""
    site = fed.engine.sites["bank"]
    whole = site.tables["train"]
    made = whole.take(np.arange(20))
    made = Table(np.arange(20) + ROWS, made.frame, label="y")
    with fed.workers(FoldWorker, parties=["bank"]) as folds:
        folds["bank"].split("train", "rest", np.arange(30), 0, {})
    cut = site.tables["train"]
    assert len(cut) == ROWS - 30
    joined = [
        Table(np.r_[each.ids, made.ids], pd.concat([each.frame, made.frame]), label="y")
        for each in (whole, cut)
    ]
    known = (whole, joined[0], made, cut, joined[1], cut.with_columns({"y": cut.y[::-1]}))
    assert [site.rows.is_cut(each) for each in known] == [False] * 3 + [True] * 3


class Ranks:
    """A coordinator that has the label party deal its own rows into folds, and learns the folds.

    Whoever is held out of some rows are those of the first fold among them.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        x, shared, own = rng.normal(size=(ROWS, 2)), 60, ROWS - 60
        y = np.where(x[:, 0] > 0, "yes", "no")
        bank = Table(np.arange(ROWS), pd.DataFrame(x, columns=["a", "b"]).assign(y=y), label="y")
        telco = Table(np.arange(shared), pd.DataFrame({"c": rng.normal(size=shared)}))
        self.fed = fm.Federation(
            fm.Party("bank", bank), fm.Party("telco", telco), reproducible=False
        )
        fm.align(self.fed)
        site = self.fed.engine.sites["bank"]
        site.secret = b"the bank's own, of which a test must know what follows"
        self.folds = self.fed.workers(FoldWorker, parties=["bank"])["bank"]
        network = fm.Local(epochs=1).fit(self.fed).network_
        self.top = self.fed.workers(TopWorker, parties=["bank"], model=network.model)["bank"]
        segments = [["aligned", shared], ["bank", own]]
        self.top.attach(segments, network.config.to_wire(), True)
        self.own = np.arange(shared, ROWS)
        self.labels = y[site.alignments["train"].unaligned] == "yes"

    def number(self, folds: int) -> None:
        self.folds.number(np.zeros(0, np.int64), folds, True, [], 0)

    def learnt(self) -> np.ndarray:
        """The fold of each own row."""
        left, found, fold = self.own, np.full(len(self.own), -1), 0
        while len(left):
            first = self.top.hold_out(left, 0.2)
            first = first if len(first) else left
            found[first - self.own[0]] = fold
            left, fold = np.setdiff1d(left, first), fold + 1
        return found

    def right(self, said: np.ndarray) -> float:
        """The share of labels told, by what is said of some rows; which class is which is known."""
        known = said >= 0
        return max((said[known] == self.labels[known]).mean(), (said != self.labels)[known].mean())


@pytest.mark.parametrize("folds", [(12, 11), (70, 69)])
def test_the_folds_of_two_numbers_do_not_tell_the_class_of_a_row(folds):
    """Rows are dealt class after class: the remainders of a row's place tell the place."""
    ranks, rests = Ranks(), []
    for each in folds:
        ranks.number(each)
        rests.append(ranks.learnt())
    places = np.arange(len(ranks.own))
    table = {(place % folds[0], place % folds[1]): place for place in places}
    place = np.array([table.get(each, -1) for each in zip(*rests, strict=True)])
    share = ranks.labels.mean()
    said = np.where(place < 0, -1, place >= round((1 - share) * len(place)))
    by_yes = np.where(place < 0, -1, place < round(share * len(place)))
    assert max(ranks.right(said), ranks.right(by_yes)) < 0.8


def test_the_order_of_those_held_out_does_not_tell_what_folds_are_made_of():
    """Ever larger shares tell the order of ids' numbers, in which rows of a class got folds."""
    ranks = Ranks()
    began: dict[int, float] = {}
    for share in np.linspace(0.1, 0.33, 300):
        for row in ranks.top.hold_out(ranks.own, share).tolist():
            began.setdefault(row, share)
    ranks.number(14)
    folds, found = ranks.learnt(), []
    order = [row - ranks.own[0] for row in sorted(began, key=began.__getitem__)][14:]
    for start in itertools.combinations(range(14), 2):  # at the first that are told apart
        said, following = np.full(len(folds), -1), list(start)
        for row in order:
            if folds[row] in following:
                said[row] = following.index(folds[row])
                following[said[row]] = (folds[row] + 1) % 14
        found.append((said >= 0).sum())
    assert len(order) > 20 and max(found) < 0.6 * len(order), "no two classes take turns in it"


def test_outputs_left_for_a_blend_are_of_its_rows(fed):
    """Two tables of the same rows in other orders: the outputs of one, the labels of the other."""
    network = fm.Local(epochs=1).fit(fed).network_
    with fed.workers(FoldWorker) as folds:
        for name, rows in (("one", np.arange(100)), ("other", np.arange(100)[::-1].copy())):
            folds.split(f"{name}-train", name, rows, 0, {})
    with fed.on("one").workers(TopWorker, parties=["bank"], model=network.model) as tops:
        tops["bank"].attach([["aligned", 100]], network.config.to_wire(), False)
        tops["bank"].predict_chunk(np.arange(100))
        tops["bank"].leave_outputs("left")
        tops["bank"].predict_chunk(np.zeros(100, np.int64))
        with pytest.raises(Refused, match="outputs of other rows"):
            tops["bank"].leave_outputs("left again")
    blend = fed.on("other").workers(BlendWorker, parties=["bank"], model="blend")["bank"]
    blend.create("binary")
    blend.attach([["aligned", 100]])
    with pytest.raises(Refused, match="are of other rows than those they would speak for"):
        blend.mix([{"names": ["left"], "weights": [1.0]}])


def sealed(fed, train):
    """The partner's and the label party's workers, attached to all rows, with sealed messages."""
    network = fm.VFL(epochs=1).fit(fed).network_
    how = network.config.to_wire()
    bottoms = fed.workers(BottomWorker, parties=["telco"], model=network.model)
    tops = fed.workers(TopWorker, parties=["bank"], model=network.model)
    seal_exchange(bottoms, tops)
    bottoms.attach([["aligned", ROWS]], how)
    tops["bank"].attach([["aligned", ROWS]], how, train)
    return bottoms, tops["bank"]


def test_an_embedding_of_other_rows(fed):
    """The partner's embedding of one row in place of another's, sealed and passed on."""
    bottoms, top = sealed(fed, train=False)
    rows = np.arange(ROWS)
    top.predict_chunk(rows, bottoms.embed(rows))
    assert 0 <= top.metrics()["accuracy"] <= 1
    others = rows.copy()
    others[3] = 7
    with pytest.raises(CryptoError, match="could not read a message from 'telco'"):
        top.predict_chunk(rows, bottoms.embed(others))


@pytest.mark.parametrize("same", [True, False])
def test_steps_in_another_order_than_the_label_partys(fed, same):
    """Losses of batches whose embeddings are of rows that stand elsewhere in the order."""
    bottoms, top = sealed(fed, train=True)
    rows = np.arange(ROWS)
    bottoms.set_order(rows if same else rows[::-1].copy())
    top.set_order(rows)
    top.start_epoch(1)
    embedded = bottoms.step(epoch=1)
    refused = pytest.raises(CryptoError, match="could not read a message")
    with contextlib.nullcontext() if same else refused:
        assert top.step(embedded)["telco"].recipient == "telco"


def test_parties_that_hold_out_other_rows_have_no_secret_in_common(fed):
    """Row 3 of a fold is one person here and another there, as the coordinator has told them."""
    with fed.workers(FoldWorker) as folds:
        folds["bank"].split("train-0", "held-0", np.arange(50), 0, {})
        folds["telco"].split("train-0", "held-0", np.arange(50)[::-1].copy(), 0, {})
    network = fm.VFL(epochs=1).fit(fed).network_
    held = fed.on("held-0")
    bottoms = held.workers(BottomWorker, parties=["telco"], model=network.model)
    tops = held.workers(TopWorker, parties=["bank"], model=network.model)
    introduce(bottoms, tops)
    seal_exchange(bottoms, tops)
    bottoms.attach([["aligned", 50]], network.config.to_wire())
    tops["bank"].attach([["aligned", 50]], network.config.to_wire(), False)
    with pytest.raises(CryptoError, match="could not read a message"):
        tops["bank"].predict_chunk(np.arange(50), bottoms.embed(np.arange(50)))


def test_evidence_is_judged_on_the_rows_it_is_of(fed):
    """RISA collects by kind of row; rows that are named do not stand in for those at hand."""
    network = fm.RISA(epochs=1).fit(fed).network_
    how, rows = network.config.to_wire(), np.arange(ROWS)
    with network.workers(fed) as (bottoms, top):
        bottoms.attach([["aligned", ROWS]], how)

        def collect(asked):
            top.attach([["aligned", ROWS]], how, False)
            top.take_chunk(asked, ["bank", "telco"], ["aligned"], bottoms.embed(asked))

        collect(rows)
        assert 0 <= top.metrics()["accuracy"] <= 1
        collect(np.zeros(ROWS, np.int64))
        for ask in (top.metrics, top.uncertainty_report, lambda: top.calibrate(rows)):
            with pytest.raises(Refused, match="outputs of other rows"):
                ask()
        # the account is of the rows that are judged, whichever are named
        collect(rows)
        few = np.zeros(ROWS, np.int64)
        assert top.metrics(few)["accuracy"] >= 0


@pytest.mark.parametrize("epoch", ["0/../../../../other/part", "../epoch"])
def test_a_checkpoint_stays_in_the_folder_of_its_run(fed, epoch, tmp_path):
    top = attached(fed, fm.Local(epochs=1).fit(fed).network_, train=True)
    top.set_order(np.arange(ROWS))
    with pytest.raises(FedmendError):
        top.save_checkpoint(str(tmp_path / "run"), epoch)
    with pytest.raises(FedmendError):
        top.load_checkpoint(str(tmp_path / "run"), epoch)
    assert not list(tmp_path.rglob("*.fmw"))
