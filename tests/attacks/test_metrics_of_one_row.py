"""Metrics of one row are that row's label; after a training with label_dp they must not be.

The coordinator trains with label_dp = 0.1, as it was agreed, and then asks the label party's
workers for metrics of rows and models of its own choice. It guesses each label from the answers.
The party has even lowered its `min_rows`, so that nothing but label_dp protects it: guesses may
then be right as often as a draw is, e^ε / (e^ε + 1), within four standard errors.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.federation.labels import response_matrix
from fedmend.methods.annotators.worker import LabelWorker
from fedmend.methods.horizontal.networks import initial_weights
from fedmend.methods.horizontal.worker import ClientWorker
from fedmend.split.config import SplitConfig
from fedmend.split.workers import TopWorker

EPSILON = 0.1
ROWS = 400
ASKED = 160
LABELS = np.random.default_rng(1).integers(0, 2, ROWS)
QUICK: dict[str, Any] = {"epochs": 1, "bottom": (), "embedding": 2, "top": ()}
_LOW = "min_rows" in {each.name for each in dataclasses.fields(fm.Policy)}


def by_one_draw(guesses: np.ndarray, truth: np.ndarray) -> bool:
    """Whether guesses are right as often as a draw with ε is, and no more."""
    p = math.exp(EPSILON) / (math.exp(EPSILON) + 1)
    right = float((guesses == truth).mean())
    return abs(right - p) < 4 * math.sqrt(p * (1 - p) / len(truth))


def federation(*labellers: str) -> fm.Federation:
    rng = np.random.default_rng(0)
    policy = fm.Policy(**({"min_rows": 1} if _LOW else {}))
    parties = []
    for name in ("clinic", "laboratory"):
        frame = pd.DataFrame({f"{name}-{column}": rng.normal(size=ROWS) for column in "ab"})
        if name in labellers:
            frame["sick"] = LABELS
        table = fm.Table.from_frame(frame, label="sick" if name in labellers else None)
        parties.append(fm.Party(name, table, policy=policy))
    fed = fm.Federation(*parties, strict=True)
    fm.align(fed)
    return fed


def check(fed: fm.Federation, guesses: np.ndarray) -> None:
    """The attack works, as far as there is something to get: it gets the draws."""
    site = fed.engine.site("clinic")  # type: ignore[attr-defined]
    asked = site.alignments["train"].aligned[: len(guesses)]  # in the coordinator's order
    np.testing.assert_array_equal(guesses, site.table_of("train").y.to_numpy()[asked])
    assert by_one_draw(guesses, LABELS[asked])


def test_metrics_of_a_model_of_ones_own_give_the_draw_of_a_row() -> None:
    fed = federation("clinic")
    fm.VFL(**QUICK, label_dp=EPSILON).fit(fed)
    config = SplitConfig(bottom=(4,), embedding=1, top=(4,)).to_wire()
    guesses = []
    with fed.workers(TopWorker, parties=["clinic"], model="mine") as workers:
        top = workers["clinic"]
        top.create(config, ["clinic"], [0])
        top.attach([["aligned", ROWS]], config, False)
        for row in range(ASKED):
            one = np.array([row])
            top.predict_chunk(one)
            likelier = int(top.predictions()[0].argmax())
            top.predict_chunk(one)
            right = top.metrics(rows=one)["accuracy"]
            guesses.append(likelier if right == 1.0 else 1 - likelier)
    check(fed, np.array(guesses))


def test_losses_of_chosen_predictions_give_the_draws_of_many_rows() -> None:
    """One log loss over all rows has a bit for each of twenty: min_rows does not see that."""
    fed = federation("clinic", "laboratory")
    with fed.workers(LabelWorker) as workers:  # as InC and its relatives begin
        workers.attach([0, 1], EPSILON)
    keep = response_matrix(EPSILON, 2)[0, 0]
    at_a_time, unit = 20, 2.0**-16
    guesses = np.zeros(ASKED, int)
    with fed.workers(LabelWorker, parties=["clinic"]) as workers:
        for first in range(0, ASKED, at_a_time):
            odds = np.zeros(ROWS)
            odds[first : first + at_a_time] = 2.0 ** np.arange(at_a_time) * unit
            p = 1 / (1 + np.exp(-odds))
            told = workers["clinic"].metrics(np.stack([1 - p, p], 1), [0, 1])
            # Saying 1 instead of 0 lowers a row's loss by its odds, stretched as estimates are.
            base = float(-(np.log(1 - p) * keep - np.log(p) * (1 - keep)).sum()) / (2 * keep - 1)
            bits = round((base - told["log_loss"] * ROWS) * (2 * keep - 1) / unit)
            guesses[first : first + at_a_time] = [bits >> at & 1 for at in range(at_a_time)]
    check(fed, guesses)


def test_a_client_that_was_prepared_before_counts_draws_afterwards() -> None:
    """Its rows were encoded when labels were still as they are."""
    rng = np.random.default_rng(0)
    policy = fm.Policy(foreign_predictions=1, **({"min_rows": 1} if _LOW else {}))
    frame = pd.DataFrame({"a": rng.normal(size=ROWS), "b": rng.normal(size=ROWS), "sick": LABELS})
    tables = {
        "one": fm.Table.from_frame(frame, label="sick"),
        "two": fm.Table.from_frame(frame.iloc[::-1].reset_index(drop=True), label="sick"),
    }
    fed = fm.Federation(*(fm.Party(name, each, policy=policy) for name, each in tables.items()))
    model = fm.FedAvg(rounds=1, epochs=1, hidden=(4,)).fit(fed)
    clients = model.clients_
    weights = initial_weights(clients.net, 0).to(clients.settings.dtype)
    with fed.workers(ClientWorker, parties=["one"], run="mine") as workers:
        workers["one"].prepare(clients.common)
        predicted = workers["one"].predict(weights).argmax(1)
        truth = int((predicted == LABELS).sum())
        assert int(np.trace(workers["one"].confusion(weights)["counts"])) == truth
        fm.FedAvg(rounds=1, epochs=1, hidden=(4,), label_dp=EPSILON).fit(fed)
        counts = workers["one"].confusion(weights)["counts"]
    site = fed.engine.site("one")  # type: ignore[attr-defined]
    told = site.table_of("train").y.to_numpy()
    assert by_one_draw(told, LABELS)
    inverse = np.linalg.inv(response_matrix(EPSILON, 2))
    drawn = np.array([[((told == y) & (predicted == p)).sum() for p in (0, 1)] for y in (0, 1)])
    np.testing.assert_allclose(counts, inverse.T @ drawn, atol=1e-6)


@pytest.mark.daily("VFL")
@pytest.mark.parametrize("name", ["VFL", "RISA"])
def test_scores_and_what_uncertainty_is_worth_do_not_change_with_a_label(name: str) -> None:
    """Turn round every label that was not drawn anew: an answer that changes has seen one."""
    fed = federation("clinic")
    model = getattr(fm, name)(**QUICK, label_dp=EPSILON).fit(fed)
    before = model.evaluate(fed), model.uncertainty_report(fed)
    site = fed.engine.site("clinic")  # type: ignore[attr-defined]
    table = site.tables["train"]
    site.tables["train"] = table.with_columns({"sick": 1 - table.y})
    after = model.evaluate(fed), model.uncertainty_report(fed)
    assert str(after) == str(before)
