"""Weights that leave, before and after a training on one row: their difference is that row.

A party that may predict alone gets a copy of the top, and parties with bottoms of one shape share
them; both cross in the open. Whoever says which rows make a batch, and asks for the weights before
and after it, has its gradient. Measured: labels and cells told.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedmend as fm
from fedmend.data.table import Table
from fedmend.errors import Refused
from fedmend.federation import Alignment, Policy, Site
from fedmend.methods.horizontal.rounds import RoundSettings
from fedmend.methods.risa.workers import EvidenceBottomWorker
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.partial import PartialBottomWorker

from .reached import AtSite
from .test_few_rows import ROWS, Model, table
from .test_rows_in_disguise import EVERYBODY, site


def strict() -> Site:
    """Of which batches may be that are fewer rows than a top that leaves rests on."""
    made = Site("bank", {"train": table()}, policy=Policy(min_rows=20))
    made.alignments["train"] = Alignment(EVERYBODY, EVERYBODY[:0])
    return made


def taught(top: Any, rows: Any) -> None:
    top.set_order(rows=np.asarray(rows))
    top.epoch_alone(epoch=1)


def test_labels_by_the_top_of_one_row(tmp_path):
    model = Model(AtSite(site()), ROWS)
    model.top.give_top()
    taught(model.top, EVERYBODY)
    model.top.give_top()
    for rows in ([7], [7] * 20, [*range(9), *[7] * 50]):
        with pytest.raises(Refused, match="a step on the labels of fewer than 10"):
            taught(model.top, rows)
    for rows in (range(12), [*range(12), *range(12)]):
        model = Model(AtSite(strict()), ROWS)
        taught(model.top, rows)
        with pytest.raises(Refused, match="few rows at a time"):
            model.top.give_top()
        model.top.save_checkpoint(path=str(tmp_path), epoch=1)
        model.top.save(path=str(tmp_path))
        other = Model(model.top._at, ROWS)
        taught(other.top, EVERYBODY)
        with pytest.raises(Refused, match="few rows at a time"):
            other.top.give_top()  # the same model by its name, begun again
        at = AtSite(strict())
        other = Model(at, ROWS)
        other.top.set_order(rows=EVERYBODY)
        other.top.load_checkpoint(path=str(tmp_path), epoch=1)
        with pytest.raises(Refused, match="few rows at a time"):
            other.top.give_top()
        loaded = AtSite(strict()).worker("TopWorker", model="loaded")
        loaded.load(path=str(tmp_path))
        with pytest.raises(Refused, match="few rows at a time"):
            loaded.give_top()


def test_labels_by_the_top_after_one_batch_of_one_row():
    model = Model(AtSite(site()), ROWS, batch_size=1)
    model.top.set_order(rows=EVERYBODY)
    model.top.start_epoch(epoch=1)
    with pytest.raises(Refused, match="a step on the labels of fewer than 10"):
        model.top.step(embeddings={})


def test_labels_by_predictions_before_and_after_a_step_on_one_row():
    """A prediction goes towards the label of the row that was learnt from."""
    at, told = AtSite(site()), 0
    truth = at.site.tables["train"].y == "yes"
    for row in range(20):
        model, seen = Model(at, ROWS), []
        for teaches in (False, True):
            with suppress(Refused):
                if teaches:
                    taught(model.top, [row])
                model.top.predict_chunk(rows=np.array([row]))
                seen.append(float(model.top.predictions()[0, 1]))
        told += len(seen) == 2 and (seen[1] > seen[0]) == truth[row]
    assert told == 0


def test_the_mean_of_the_embedding_of_one_row():
    model = Model(AtSite(site()), ROWS)
    model.top.see(rows=np.array([7]), embeddings={})
    model.top.learn_imputation(fixed={})
    with pytest.raises(Refused, match="few rows at a time"):
        model.top.give_top()


def test_an_embedding_by_two_means_of_embeddings():
    """Of all rows, and of all but one; what the label party itself embeds never crosses."""
    model = Model(AtSite(site()), ROWS)
    for rows in (EVERYBODY, EVERYBODY, EVERYBODY[:60]):
        model.top.see(rows=rows, embeddings={})
        model.top.learn_imputation(fixed={})
        model.top.give_top()
    model.top.see(rows=np.delete(EVERYBODY, 7), embeddings={})
    model.top.learn_imputation(fixed={})
    with pytest.raises(Refused, match="few rows at a time"):
        model.top.give_top()


@pytest.mark.parametrize("worker", [PartialBottomWorker, EvidenceBottomWorker])
def test_cells_by_the_bottom_of_one_row(worker):
    """Its first layer moves by the row itself, times something, whatever the gradient is."""
    rng = np.random.default_rng(0)
    bank = pd.DataFrame({"a": rng.normal(size=ROWS), "y": ["no", "yes"] * (ROWS // 2)})
    telco = pd.DataFrame(rng.normal(size=(ROWS, 3)), columns=["c", "d", "e"])
    fed = fm.Federation(
        fm.Party("bank", Table(EVERYBODY, bank, label="y")),
        fm.Party("telco", Table(EVERYBODY, telco)),
    )
    fm.align(fed)
    options = {"members": 1, "solo": False}
    config = SplitConfig(bottom=(4,), embedding=2, settings=Settings(), options=options).to_wire()
    with fed.workers(worker, parties=["telco"], model="made up") as workers:
        bottom = workers["telco"]
        bottom.create(config)
        bottom.attach([["aligned", ROWS]], config)

        def learns(rows: np.ndarray) -> None:
            bottom.set_groups([rows], [len(rows)], 1)
            given = bottom.step(epoch=1)
            bottom.finish(torch.ones_like(given))

        learns(EVERYBODY[:20])
        assert bottom.bottom_weights()
        learns(EVERYBODY[7:8])
        assert bottom.bottom_weights() == {}
        bottom.attach([["aligned", ROWS]], config)
        learns(EVERYBODY[:20])
        assert bottom.bottom_weights() == {}, "the row before may weigh more than these"


def test_rounds_of_steps_of_one_row():
    """A decay that forgets all steps but the last one: what is left is the gradient of its row."""
    at = AtSite(site())
    common = {"settings": RoundSettings(batch_size=128).to_dict()}
    for size in (1, 9):
        common["settings"]["batch_size"] = size
        for worker in ("ClientWorker", "HiddenClientWorker"):
            with pytest.raises(Refused, match="a batch_size from 10 on"):
                at.worker(worker, run="x").prepare(common=common)
