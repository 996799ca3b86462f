"""How many rounds, and how far a common model is to be believed: as rows held out say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedmend.data.table import Table
from fedmend.federation import Federation, Party, Policy
from fedmend.learn.metrics import softmax
from fedmend.methods.auto.folds import fold
from fedmend.methods.horizontal.baselines import FedAvg, FedDB
from fedmend.methods.horizontal.length import (
    TEMPERATURES,
    UNJUDGED,
    UNSURE,
    Judges,
    losses_of,
)
from fedmend.methods.horizontal.sage import SAGE
from fedmend.secure.sums import SumSession, SumWorker
from fedmend.split.features import folds_of

SURE = {"hidden": (32,), "lr": 0.1}


def table_of(rows: int, seed: int, labelled: int | None = None, first: int = 0) -> Table:
    """Two classes by a weak column among many that say nothing: easily learnt by heart."""
    rng = np.random.default_rng([seed, 4])
    x = rng.normal(size=(rows, 12))
    y = np.where(x[:, 0] + 1.5 * rng.normal(size=rows) > 0, "ill", "well").astype(object)
    y[len(y) if labelled is None else labelled :] = None
    frame = pd.DataFrame(x).add_prefix("x").assign(state=y)
    return Table(first + np.arange(rows), frame, label="state", kinds={"state": "nominal"})


def federation(labelled: tuple[int | None, ...] = (60, 60, 60), **more: Any) -> Federation:
    parties = [
        Party(
            f"p{number}",
            table_of(90, number, count, 1000 * number),
            test=table_of(300, 50 + number, None, 1000 * number + 500),
            **more,
        )
        for number, count in enumerate(labelled)
    ]
    return Federation(*parties, strict=True)


def at_parties(clients: Any) -> dict[str, Any]:
    """The workers themselves, which only a simulation can look at."""
    handles, sites = clients._training()._handles, clients.fed.engine.sites
    return {name: sites[name]._workers[handle] for name, handle in handles.items()}


# ---------------------------------------------------------------------------------- by hand


def test_losses_at_every_temperature_by_hand():
    p, weight = np.array([[0.9, 0.1], [0.4, 0.6]]), np.eye(2)[[0, 0]]
    found = losses_of(p, weight)
    assert found[0] == 2 and len(found) == 1 + len(TEMPERATURES)
    for temperature, loss in zip(TEMPERATURES, found[1:], strict=True):
        power = p ** (1 / temperature)
        right = power[:, 0] / power.sum(1)
        assert loss == pytest.approx(-np.log(right).sum())


def test_rounds_are_counted_by_the_best_and_waited_for():
    judges, ones = Judges(patience=2), np.ones(len(TEMPERATURES))
    heard = [judges.hear(np.array([10.0, *(each * ones)])) for each in (9, 7, 8, 7.5)]
    assert heard == [True, True, False, False]
    assert judges.best == judges.length.rounds == 2 and judges.out_of_patience
    assert judges.length.temperature == 1.0, "where all lose alike, what is said is believed"


def test_what_is_no_number_is_no_best_round():
    judges = Judges(patience=3)
    judges.hear(np.full(1 + len(TEMPERATURES), np.nan))
    judges.hear(np.full(1 + len(TEMPERATURES), 5.0))
    assert judges.best == 2


# ---------------------------------------------------------------------------------- a training


@pytest.mark.parametrize("model", [FedAvg(**SURE), SAGE(**SURE)])
def test_few_rows_are_learnt_for_few_rounds_and_not_believed_too_much(model):
    fed = federation()
    model.fit(fed)
    long = type(model)(**SURE, patience=None, rounds=30).fit(federation())
    assert len(model.history_) < 15 and len(long.history_) == 30
    short, longer = (each.evaluate(each.fed_.on("test")) for each in (model, long))
    assert short["auc"] > longer["auc"]
    assert short["log_loss"] < longer["log_loss"] - 0.2
    told = model.uncertainty_report(fed.on("test"))["calibration_error"]
    assert told < long.uncertainty_report(long.fed_.on("test"))["calibration_error"] - 0.1


def test_the_sum_of_losses_is_that_of_rows_nobody_was_trained_on():
    fed = federation(policy=Policy(foreign_predictions=1000))
    with FedAvg(**SURE)._clients(fed, judges=True) as clients:
        assert clients.can_judge()
        clients.run_round()
        with SumSession(fed.workers(SumWorker)) as session:
            told = clients.held_out_losses(session)
        said, total = clients.probabilities(), np.zeros(1 + len(TEMPERATURES))
        for name, worker in at_parties(clients).items():
            pool, held = worker._ready()[1], worker._held
            assert 10 <= len(held) <= 15
            assert not set(held) & {*pool.labelled.tolist(), *pool.unlabelled.tolist()}
            truth = pool.labels.numpy()[held]
            assert (truth >= 0).all()
            total += losses_of(said[name][held], np.eye(2)[truth])
        np.testing.assert_allclose(told, total, atol=1e-4)
        # Another table is looked at as it is.
        workers = clients._workers(fed.on("test"))
        assert not any(workers.holds_out().values())


def test_the_model_that_is_kept_is_trained_on_all_rows_for_as_long():
    model = FedAvg(**SURE).fit(federation())
    rounds = len(model.history_)
    plain = FedAvg(**SURE, patience=None, rounds=rounds).fit(federation())
    assert torch.equal(model.clients_.weights, plain.clients_.weights)
    assert {each["rows"] for each in model.history_[-1]["per_client"]} == {60}


def test_a_party_with_few_labels_judges_nothing_and_without_judges_rounds_are_few():
    fed = federation((20, 20, 20))
    told: list[str] = []
    model = FedAvg(**SURE).fit(fed, progress=lambda stage, *_: told.append(stage))
    assert len(model.history_) == UNJUDGED and set(told) == {"train"}
    assert model.clients_.common["temperature"] == 1.0
    model.evaluate(fed.on("test"))
    assert model.notes_ == [UNSURE]
    assert "masked" not in {entry.kind for entry in fed.ledger}
    mixed = FedAvg(**SURE).fit(federation((60, 20, 60)))
    assert len(mixed.history_) < 15


def test_a_sum_over_one_party_is_not_asked_for():
    model = FedAvg(**SURE).fit(federation((60,)))
    assert len(model.history_) == UNJUDGED


def test_under_masks_no_weights_reach_the_coordinator_from_either_training():
    fed = federation()
    model = FedAvg(**SURE, secure="masks").fit(fed)
    assert np.isfinite(model.evaluate(fed.on("test"))["log_loss"])
    told = {(entry.kind, entry.receiver) for entry in fed.ledger}
    assert ("masked", "coordinator") in told and ("weights", "coordinator") not in told


def test_labels_that_are_told_at_random_are_told_once_for_both_trainings():
    model = FedAvg(**SURE, label_dp=3.0).fit(federation())
    assert (
        model.privacy_["spent"] == model.privacy_["new"] == dict.fromkeys(("p0", "p1", "p2"), 3.0)
    )


def test_servers_that_look_at_single_updates_are_judged_by_sums_too():
    fed = federation()
    FedDB(**SURE).fit(fed)
    assert "masked" in {entry.kind for entry in fed.ledger}


def test_how_far_it_is_believed_is_kept_with_the_model(tmp_path):
    fed = federation(policy=Policy(foreign_predictions=1000))
    model = FedAvg(**SURE, epochs=20).fit(fed)
    temperature = model.clients_.common["temperature"]
    model.save(tmp_path / "model")
    back = FedAvg.load(tmp_path / "model", fed)
    assert back.clients_.common["temperature"] == temperature != 1.0
    said = model.predict_proba(fed.on("test"))["p0"]
    np.testing.assert_array_equal(back.predict_proba(fed.on("test"))["p0"], said)
    ours = fed.engine.sites["p0"].tables["test"]
    np.testing.assert_allclose(back.predict_proba(ours), said, atol=1e-6)
    back.clients_.common["temperature"] = 1.0
    raw = back.predict_proba(ours)
    np.testing.assert_allclose(softmax(np.log(raw) / temperature), said, atol=1e-5)


def test_the_rounds_of_a_fold_are_counted_by_another_one():
    """Otherwise every fold would be judged by a part of the same rows, and their differences tell
    of few."""
    fed = federation()
    for number, other in ((0, 1), (1, 0)):
        train, held = fold(fed, number, 4, fed.seed, horizontal=True)
        model = FedAvg(**SURE)
        model.shorten()
        model.fit(train)
        assert not model.history_, "what is compared is not trained again"
        assert model.judge(held)["auc"] > 0.5
        with FedAvg(**SURE)._clients(train, judges=True) as clients:
            for name, worker in at_parties(clients).items():
                found = folds_of(fed.engine.sites[name], worker.table.ids[worker._held])
                assert set(found.tolist()) == {other}


def test_a_training_that_was_stopped_while_rounds_were_counted_ends_the_same(tmp_path):
    class Stopped(Exception):
        pass

    def stop(stage: str, done: int, *_: Any) -> None:
        if (stage, done) == ("length", 7):
            raise Stopped

    whole = FedAvg(**SURE).fit(federation())
    with pytest.raises(Stopped):
        FedAvg(**SURE).fit(federation(), checkpoint=tmp_path, progress=stop)
    told: list[tuple[str, int]] = []
    again = FedAvg(**SURE).fit(
        federation(),
        checkpoint=tmp_path,
        resume=True,
        progress=lambda stage, done, *_: told.append((stage, done)),
    )
    assert told[0] == ("length", 6)
    assert torch.equal(again.clients_.weights, whole.clients_.weights)
    assert again.clients_.common["temperature"] == whole.clients_.common["temperature"]
