"""Weights that the coordinator chose cannot make rows come out (a9).

The attacker is the coordinator of a federation of parties with the same columns. It sends weights
that carry one column to the output as it is, and reads the column off the "predictions". Measured
is the share of a column's variance that anything with one value a row explains which left the
party (R² of a line, over all rows): 1 is the column itself, and a shuffled column reaches about
1 / rows. With the party's consent the attack must get near 1, so that the measure is known to work;
without it nothing of a row's length may have left at all.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedmend as fm
from fedmend.data.table import Table
from fedmend.deploy.party_file import install_workers
from fedmend.errors import ConfigError, Refused
from fedmend.federation import Federation, Party, Policy
from fedmend.federation.policy import LARGEST_WEIGHT, MACHINES_PREDICTIONS
from fedmend.methods.horizontal.estimator import FederatedClients
from fedmend.methods.horizontal.local_methods import Supervised
from fedmend.methods.horizontal.networks import NetSpec
from fedmend.methods.horizontal.worker import ClientWorker
from fedmend.methods.risa.workers import EvidenceTopWorker
from fedmend.serve.predicting import PredictionWorker
from fedmend.split.config import SplitConfig
from fedmend.split.workers import BottomWorker, TopWorker

from .reached import hostile

ROWS = 80
COLUMNS = ["income", "age"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    install_workers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fm.errors.FedmendWarning)
        yield


def people(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"income": rng.normal(5000, 900, ROWS), "age": rng.integers(18, 90, ROWS).astype(float)}
    )
    frame["y"] = np.where(rng.random(ROWS) < 0.5, "yes", "no")
    frame.insert(0, "id", np.arange(ROWS) + 1000 * seed)
    return frame


def federation(**policies: Policy) -> Federation:
    return Federation(
        *(
            Party(
                name,
                Table.from_frame(people(seed), id="id", label="y"),
                policy=policies.get(name),
            )
            for seed, name in enumerate(("north", "south"))
        )
    )


def clients_of(fed: Federation) -> FederatedClients:
    """What the coordinator knows after an honest start: encoding, network, its own weights."""
    return FederatedClients(fed, Supervised(), hidden=(4,))


def carrying(net: NetSpec, column: int) -> torch.Tensor:
    """Weights whose log odds are one column: x and -x through a ReLU, and their difference."""
    assert net.numeric == 2 and net.hidden == (4,)
    first, bias = torch.zeros(4, 2), torch.zeros(4)
    last = torch.zeros(2, 4)
    first[0, column], first[1, column] = 1.0, -1.0
    last[0, 0], last[0, 1] = 1.0, -1.0
    return torch.cat([first.reshape(-1), bias, last.reshape(-1), torch.zeros(2)])


def explained(found: np.ndarray, column: np.ndarray) -> float:
    return float(np.corrcoef(found, column)[0, 1] ** 2)


def log_odds(probabilities: np.ndarray) -> np.ndarray:
    p = probabilities.astype(np.float64)
    return np.log(p[:, 0] / p[:, 1])


def of_a_rows_length(fed: Federation, party: str) -> list[str]:
    """What left a party with a value for each row."""
    return [
        f"{each.call}: {each.kind} {each.shape}"
        for each in fed.ledger.entries()
        if each.sender == party and not each.note and f"{ROWS}" in each.shape
    ]


# ------------------------------------------------------------------ predict, on both engines


def test_nothing_leaves_under_weights_that_carry_a_column() -> None:
    fed = federation()
    clients = clients_of(fed)
    workers = fed.workers(ClientWorker, parties=["north"], run="mine")["north"]
    workers.prepare(clients.common)
    for column in range(2):
        with pytest.raises(Refused, match="predictions of its rows under a model that was sent in"):
            workers.predict(carrying(clients.net, column))
    assert not of_a_rows_length(fed, "north")


def test_with_consent_the_attack_gets_as_many_columns_as_were_agreed_to() -> None:
    """That the measure sees what there is to see; and the count of what may leave."""
    fed = federation(north=Policy(foreign_predictions=1))
    clients = clients_of(fed)
    workers = fed.workers(ClientWorker, parties=["north"], run="mine")["north"]
    workers.prepare(clients.common)
    found = log_odds(workers.predict(carrying(clients.net, 0)))
    truth = people(0)
    assert explained(found, truth["income"].to_numpy()) > 0.999
    assert explained(found, truth["age"].to_numpy()) < 0.1
    workers.predict(carrying(clients.net, 0))  # the same again tells nothing
    with pytest.raises(Refused, match="under 1 models that were sent in have left in this run"):
        workers.predict(carrying(clients.net, 1))
    # Nor by another worker, another view of the rows, or some of them.
    again = fed.only("north").workers(ClientWorker, run="other")["north"]
    again.prepare(clients.common)
    with pytest.raises(Refused, match="have left in this run"):
        again.predict(carrying(clients.net, 1))


def test_nothing_leaves_a_machine_under_weights_that_carry_a_column(tmp_path: Path) -> None:
    common = clients_of(federation()).common
    attacker = hostile(tmp_path, people(0), "fedavg", "predict", "auto", name="north", label="y")
    handle = attacker.worker("ClientWorker", run="mine")
    handle.prepare(common=common)
    net = NetSpec.from_dict(common["net"])
    for column in range(2):
        weights = carrying(net, column)
        with pytest.raises(Refused, match="predictions of its rows under a model that was sent in"):
            handle.predict(weights=weights)
        # Kept at the party for its own file, and by no call to be had.
        handle.predict_here(weights=weights)
        writer = attacker.worker("PredictionWorker")
        writer.claim(group="north")
        writer.take_kept(group="north")
        with pytest.raises(Refused, match=r"PredictionWorker.answers is used by none"):
            writer.answers()
    assert not [each for each in attacker.left if each.kind == "prediction"]


def test_predictions_kept_at_the_party_are_no_way_round() -> None:
    """A variant, in one process: let the party predict for itself, and ask for the answers."""
    fed = federation()
    clients = clients_of(fed)
    workers = fed.workers(ClientWorker, parties=["north"], run="mine")["north"]
    workers.prepare(clients.common)
    workers.predict_here(carrying(clients.net, 0))
    writer = fed.workers(PredictionWorker, parties=["north"])["north"]
    writer.claim("north")
    writer.take_kept("north")
    with pytest.raises(Refused, match="predictions of its rows under a model that was sent in"):
        writer.answers()
    assert not of_a_rows_length(fed, "north")


def test_the_model_is_for_tables_of_ones_own() -> None:
    fed = federation()
    model = fm.FedAvg(rounds=1).fit(fed)
    own = Table.from_frame(people(7), id="id", label="y")
    assert model.predict_proba(own).shape == (ROWS, 2)
    assert set(model.predict(own)) <= {"yes", "no"}
    assert list(model.predict_table(own))[:1] == ["prediction"]
    with pytest.raises(Refused, match="or predict a table of your own"):
        model.predict(fed)


# ------------------------------------------------------------------ what comes in


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (lambda w: w.fill_(float("nan")), Refused, "weights up to nan"),
        (lambda w: w.index_fill_(0, torch.tensor([3]), float("inf")), Refused, "up to inf"),
        (lambda w: w.mul_(2 * LARGEST_WEIGHT), Refused, "weights up to 20000"),
        (lambda w: w[:-1], ConfigError, "weights of shape"),
    ],
)
def test_weights_must_be_numbers_of_a_network(spoil: Any, error: type, words: str) -> None:
    fed = federation()
    clients = clients_of(fed)
    workers = fed.workers(ClientWorker, parties=["north"], run="mine")["north"]
    workers.prepare(clients.common)
    for call in (workers.confusion, workers.odds, lambda w: workers.train_round(w, 1)):
        with pytest.raises(error, match=words):
            call(spoil(carrying(clients.net, 0)))


def test_a_party_may_take_no_weights_at_all() -> None:
    policy = Policy(takes=Policy().takes - {"weights"})
    fed = federation(north=policy)
    with pytest.raises(Refused, match="'north' refused: ClientWorker.train_round would take a"):
        fm.FedAvg(rounds=1).fit(fed)


# ------------------------------------------------------------------ models of two parties


def split_federation(**policies: Policy) -> Federation:
    frame = people(0)
    fed = Federation(
        Party("bank", Table.from_frame(frame[["id", "y"]], id="id", label="y")),
        Party(
            "telco",
            Table.from_frame(frame[["id", *COLUMNS]], id="id"),
            policy=policies.get("telco"),
        ),
    )
    fm.align(fed)
    return fed


def test_a_top_that_was_sent_in_does_not_open_what_was_sealed() -> None:
    """A variant: telco's embeddings are sealed for the bank. So the coordinator gives telco a top
    that passes embeddings through, as if it were to predict alone, and asks for predictions."""
    fed = split_federation(telco=Policy(sealed={"embedding", "gradient"}))
    model = fm.VFL(bottom=(), embedding=2, top=(), epochs=1, seal=True).fit(fed)
    name = model.network_.model
    bank = fed.workers(TopWorker, parties=["bank"], model=name)["bank"]
    top = bank.give_top()
    top["weights"] = {key: torch.eye(2) if value.ndim == 2 else torch.zeros(2)
                      for key, value in top["weights"].items()}  # fmt: skip
    telco = fed.workers(BottomWorker, parties=["telco"], model=name)["telco"]
    telco.take_top(top)
    judge = fed.workers(TopWorker, parties=["telco"], model=name)["telco"]
    judge.attach([["aligned", ROWS]], model._config().to_wire(), False)
    judge.predict_chunk(np.arange(ROWS))
    with pytest.raises(Refused, match="predictions of its rows under a model that was sent in"):
        judge.predictions()
    assert not of_a_rows_length(fed, "telco")


def test_a_top_that_was_sent_in_is_known_as_such_after_it_was_kept(tmp_path: Path) -> None:
    fed = split_federation()
    model = fm.VFL(bottom=(), embedding=2, top=(), epochs=1).fit(fed)
    model.save(tmp_path / "model")
    model.hand_out(tmp_path / "model", ["telco"])
    alone = Federation(Party("telco", fed.engine.site("telco").tables["train"]))
    worker = alone.workers(TopWorker, parties=["telco"], model="m")["telco"]
    worker.load(str(tmp_path / "model"))
    worker.attach([["all", ROWS]], model._config().to_wire(), False)
    worker.predict_chunk(np.arange(ROWS))
    with pytest.raises(Refused, match="predictions of its rows under a model that was sent in"):
        worker.predictions()


def test_a_bottom_that_was_sent_in_shows_no_row_to_the_coordinator(tmp_path: Path) -> None:
    """A variant: RISA lets bottoms of one shape be averaged, so a party takes weights for its
    bottom. With those of an identity its embeddings are its rows."""
    attacker = hostile(tmp_path, people(0)[["id", *COLUMNS]], "risa", name="telco")
    rows = attacker.worker("RosterWorker").rows()["rows"]
    same = attacker.worker("EvidenceBottomWorker", model="m")
    model = fm.RISA(bottom=(), embedding=2)
    options = {"members": 1, "solo": False, "heads": True, "joint": False}
    config = replace(model._config(), options=options).to_wire()
    same.create(config=config)
    shapes = same.bottom_shapes()
    weights = {key: torch.eye(*shape) if len(shape) == 2 else torch.zeros(shape)
               for key, shape in shapes.items()}  # fmt: skip
    same.take_bottom(weights=weights)
    same.attach(segments=[["all", rows]], config=config)
    with pytest.raises(Refused, match="would cross the coordinator in the open"):
        same.embed(rows=np.arange(rows))
    assert not [each for each in attacker.left if each.kind == "embedding"]


def test_predictions_under_nets_of_unknown_weights_are_few(tmp_path: Path) -> None:
    """A variant: nets without hidden layers, drawn afresh again and again. Nobody knows their
    weights, but as many log odds as there are columns are a row, turned; with a few known rows,
    or if columns are independent, they are the row itself."""
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.exponential(size=(ROWS, 9)), columns=[f"x{n}" for n in range(9)])
    wide.insert(0, "id", np.arange(ROWS))
    wide["y"] = np.where(rng.random(ROWS) < 0.5, "yes", "no")
    attacker = hostile(tmp_path, wide, "vfl", label="y")
    rows = attacker.worker("RosterWorker").rows()["rows"]
    got = 0
    with pytest.raises(Refused, match="have left in this run, and no more may"):
        for number in range(9):
            handle = attacker.worker("TopWorker", model=f"m{number}")
            made = SplitConfig(bottom=(), embedding=1, top=(), seed=number)
            config = made.to_wire()
            handle.create(config=config, names=["bank"], widths=[0])
            handle.attach(segments=[["all", rows]], config=config, train=False)
            handle.predict_chunk(rows=np.arange(rows))
            handle.predictions()
            got += 1
    assert got == MACHINES_PREDICTIONS


def test_rows_are_counted_whichever_worker_and_order_asks_for_them() -> None:
    fed = split_federation()
    model = fm.RISA(epochs=1).fit(fed)
    site = fed.engine.site("bank")
    site.policy = Policy(predictions=1)
    assert len(model.predict_proba(fed)) == ROWS
    model.predict_proba(fed)
    with pytest.raises(Refused, match="have left in this run"):
        fm.VFL(epochs=1).fit(fed).predict_proba(fed)
    with pytest.raises(Refused, match="have left in this run"):
        model.contributions(fed)
    assert EvidenceTopWorker.exposures["contributions"].kind == "prediction"
