"""Errors of a column's models, where what was predicted of one row stands beside another's cell.

In completing, B holds the cells and what was predicted of them; the coordinator says which rows are
predicted, and asks for errors over all that were held out. One row's output for everybody, and
another's for one row: the error moves by that row's cell. Measured: cells told.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import fedmend as fm
from fedmend.data.table import Table
from fedmend.errors import CryptoError
from fedmend.federation import Alignment, Site
from fedmend.methods.completion.neural import NeuralModels
from fedmend.split.config import Settings

from .reached import AtSite, install_workers

ROWS = 120


@pytest.fixture
def telco() -> AtSite:
    rng = np.random.default_rng(0)
    columns = {"plan": rng.choice(["a", "b"], ROWS), "use": rng.normal(size=ROWS)}
    columns["rare"] = np.where(np.arange(ROWS) < 70, columns["use"], np.nan)
    site = Site("telco", {"train": Table(np.arange(ROWS), columns)})
    site.alignments["train"] = Alignment(np.arange(ROWS), np.zeros(0, np.int64))
    install_workers()
    return AtSite(site)


def heads(at: AtSite, *targets: str, first: int = 60):
    made = at.worker(
        "NeuralTargets", model="m", segments=[["aligned", ROWS]], targets=list(targets)
    )
    net = {"bottom": [4], "embedding": 2, "top": [], "seed": 0}
    order, held = np.arange(first), np.arange(first, ROWS)
    made.create(net=net, settings=Settings(batch_size=64).to_dict(), order=order, held=held)
    return made


@pytest.mark.parametrize("column", ["plan", "use"])
def test_cells_by_the_error_of_predictions_that_differ_in_one(telco, column):
    made = heads(telco, column)

    def errors(row: int | None) -> dict[str, dict[str, float]]:
        judge = telco.worker("SelfTrainingWorker", model="m", run="r", a="bank", how={})
        judge.attend(names=[column])
        judge.hold_out(part=0, parts=2)
        embedding = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(0))
        if row is not None:
            embedding[row] = -embedding[row]
        made.predict(embedding=embedding, rows=np.arange(ROWS))
        judge.collect(family="x")
        judge.give_back()
        return judge.weigh()

    before = errors(None)
    assert before[column]["x"] > 0 and errors(None) == before
    # Of rows that were not held out nothing has changed.
    assert all(errors(row) in ({}, before) for row in range(30))
    assert sum(errors(row) == {} for row in range(30)) > 5


@pytest.mark.parametrize("first", [60, 61])
def test_the_loss_of_a_column_that_few_rows_have(telco, first):
    """Of the rows held out ten have the column, then nine."""
    embedding = torch.zeros(ROWS - first, 2)
    told = heads(telco, "rare", first=first).validate(embedding=embedding)
    assert (told > 0) is (first == 60)


def test_embeddings_of_other_rows_are_not_believed():
    ids = np.arange(ROWS)
    rng = np.random.default_rng(0)
    bank = pd.DataFrame(rng.normal(size=(ROWS, 2)), columns=["a", "b"])
    telco = pd.DataFrame({"plan": rng.choice(["a", "b"], ROWS)})
    fed = fm.Federation(
        fm.Party("bank", Table(ids, bank)), fm.Party("telco", Table(ids[:100], telco[:100]))
    )
    fm.align(fed)
    with NeuralModels(fed, "bank", "telco", epochs=1, seal=True) as models:
        held, rows = models.at_b, np.arange(20)
        how = models.net, models.settings.to_dict(), np.arange(20, 100)
        held.create(*how, rows)
        models.at_a.create(*how)
        assert held.validate(models.at_a.embed(rows)) > 0
        for others in (np.append(rows[:-1], 50), np.zeros(20, np.int64), rows[::-1].copy()):
            with pytest.raises(CryptoError):
                held.validate(models.at_a.embed(others))
            with pytest.raises(CryptoError):
                held.predict(models.at_a.embed(others), rows)
