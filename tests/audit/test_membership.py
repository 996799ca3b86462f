"""Who was trained on: told where a model has learnt its rows by heart, not where it has not."""

import numpy as np
import pandas as pd
import pytest
import torch

import fedmend as fm
from fedmend.audit import Audit
from fedmend.audit.context import Context
from fedmend.audit.membership import Membership, _Losses
from fedmend.audit.recorder import Observations, Observed
from fedmend.data.table import Table


def clients(n: int = 40, parties: int = 3, *, test: bool = True, noise: float = 0.5):
    """Labels that are partly chance: whoever fits them has learnt them by heart."""
    rng, made = np.random.default_rng(0), []
    for number in range(parties):
        tables = []
        for _ in range(2):
            values = rng.normal(size=(n, 12))
            said = np.where(rng.random(n) < noise, rng.random(n) < 0.5, values[:, 0] > 0)
            frame = pd.DataFrame(values, columns=[f"x{at}" for at in range(12)])
            frame["y"] = np.where(said, "yes", "no")
            tables.append(Table(np.arange(n), frame, label="y"))
        more = {"test": tables[1]} if test else {}
        made.append(fm.Party(f"p{number}", tables[0], **more))
    return fm.Federation(*made)


BY_HEART = {"rounds": 4, "epochs": 60, "hidden": (128,), "lr": 0.05}


def audit(fed, **params):
    return Audit(attacks=["membership"]).run(fed, fm.FedAvg(**params))


@pytest.fixture(scope="module")
def by_heart():
    return audit(clients(), **BY_HEART)


def test_what_was_learnt_by_heart_is_told(by_heart):
    by_role = by_heart.table().groupby("role")["score"].max()
    assert by_role["coordinator"] > 0.75
    assert (by_heart.table()["gain_low"] > 0).all()
    assert list(by_heart.table()["about"]) == ["p0 + p1 + p2", "p0", "p1", "p2"]
    assert (by_heart.table()["guess"] == 0.5).all()


@pytest.mark.slow
def test_the_common_model_is_the_one_that_is_told(by_heart):
    averaged = audit(clients(), **BY_HEART, average_rounds=4)
    mean, last = (each.table()["score"].tolist() for each in (averaged, by_heart))
    assert mean[0] != last[0]  # the common model: another one
    assert mean[1:] == last[1:]  # updates: training goes on as it would


def test_a_model_that_has_hardly_learnt_tells_nobody():
    # What a single update changed tells a little even then; the common model does not.
    report = audit(clients(120), rounds=1, epochs=1, lr=1e-4)
    common = report.findings[0]
    assert common.role == "anybody"
    assert common.grade == "not shown"
    assert common.low <= 0.5 <= common.high


def test_secure_averaging_leaves_no_single_update():
    report = audit(clients(), rounds=4, epochs=1, secure="masks")
    assert list(report.table()["role"]) == ["anybody"]
    assert any("12 were averaged securely" in fact for fact in report.facts)


def test_rows_nobody_trained_on_are_needed():
    report = audit(clients(test=False), rounds=1)
    assert "no party has a test table" in report.left_out["membership from weights"]
    report = audit(clients(12, 1), rounds=1)
    assert "20 of each are needed" in report.left_out["membership from weights"]
    some = audit(clients(15, 2), rounds=1)
    assert [each.role for each in some.findings] == ["anybody"]
    assert any("p1 has 15 labelled rows, too few" in fact for fact in some.facts)


def test_rows_without_a_label_are_no_members_and_rounds_no_more_than_granted():
    fed = clients(40, 2)
    table = fed.engine.site("p0").tables["train"]
    y = table.y.astype(object).where(np.arange(40) >= 10, None)
    fed.engine.site("p0").tables["train"] = table.with_columns({"y": y})
    report = Audit(attacks=["membership"], looks=2).run(fed, fm.FedAvg(rounds=3, epochs=1))
    by_whom = {each.about: each for each in report.findings}
    assert by_whom["p0"].rows == 30 + 80
    assert by_whom["p1"].rows == 40 + 80
    assert by_whom["p0 + p1"].rows == 70 + 80
    assert by_whom["p0"].from_ == "its updates (2 rounds)"


def test_losses_are_those_of_the_models_own_probabilities():
    fed = clients(30, 2)
    model = fm.FedAvg(**BY_HEART).fit(fed)
    losses = _Losses(Context(fed, model, Audit()), model.clients_)
    for name, table in losses.members.items():
        own = fed.engine.site(name).tables["train"]
        order = [list(own.ids).index(each) for each in table.ids]
        likely = model.predict_proba(own)[order]
        classes = list(model.classes_)
        right = likely[np.arange(len(table)), [classes.index(each) for each in table.y]]
        found = losses.of(table, model.clients_.averaged)
        assert found == pytest.approx(-np.log(right), abs=1e-4)
    far = np.concatenate([losses.of(each, model.clients_.averaged) for each in losses.others])
    assert far.max() > 3  # of rows it is sure and wrong about


def test_weights_are_kept_as_they_crossed():
    attack = Membership(Observations("train", 0, 3))
    before, after = torch.zeros(3), torch.ones(3)
    heard = {"weights": before}, {"weights": after}
    attack.hear(Observed("p0", "ClientWorker", "", "train_round", "train", *heard, "weights"))
    before += 7
    after += 7
    ((then, later),) = attack.updates["p0"]
    assert (then == 0).all() and (later == 1).all()


def test_split_training_trains_no_common_model(make_fed, make_frame):
    report = Audit(attacks=["membership"]).run(make_fed(make_frame(60)), fm.VFL(epochs=1))
    assert "in rounds" in report.left_out["membership from weights"]
