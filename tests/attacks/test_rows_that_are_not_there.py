"""Rows looked for in a table that has none of them, which numpy takes for its last one.

The coordinator names tables. Measured: how many labels and cells it is told when it has held-out
rows looked for in a table of others, and orders the tables so that each row is the last one of one.
Before, those of every row: an account of rows has none for a place outside the table.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedmend.data.table import Table
from fedmend.deploy.party_file import install_workers
from fedmend.errors import FedmendError, Refused
from fedmend.federation import Alignment, Site
from fedmend.split.parts import leave_outputs

from .reached import AtSite
from .test_few_rows import ROWS, table

EVERYBODY = np.arange(ROWS)


@pytest.fixture
def bank() -> AtSite:
    install_workers()
    others = Table(ROWS + np.arange(20), {"default": ["no", "yes"] * 10}, label="default")
    made = AtSite(Site("bank", {"train": table(), "test": others}))
    made.site.alignments["train"] = Alignment(EVERYBODY, EVERYBODY[:0])
    return made


def test_labels_by_what_was_said_of_rows_of_another_table(bank):
    """Outputs of test rows, judged by the labels of a fold of others."""
    rng, told = np.random.default_rng(0), 0
    labels = bank.site.tables["train"].y.to_numpy()
    folds = bank.worker("FoldWorker")
    for part in rng.permutation(ROWS).reshape(-1, 10):
        folds.split(train="rest", held="held", rows=part, number=-1, pairs={})
        blend = bank.start("BlendWorker", {"model": "m"}, scope="test")
        bank.call(blend, "create", {"task": "binary"})
        said = np.tile([0.9, 0.1], (20, 1))
        leave_outputs(bank.site, "said", bank.site.tables["test"].ids, said, ["no", "yes"])
        collected = {"names": {"c": "said"}, "fold": 0, "shared": 20, "met": {}}
        bank.call(blend, "collect", collected)
        other = bank.start("BlendWorker", {"model": "m"}, scope="held")
        asked = {"candidates": ["c"], "own": ["c"], "completed": [], "metric": "log_loss"}
        try:
            found = bank.call(other, "choose", asked)["kinds"]["shared"]["candidates"]["c"]
        except Refused:
            continue
        told += ("no" if found["score"] < 0.5 else "yes") == labels[part[-1]]
    assert told == 0


def test_cells_by_an_alignment_of_rows_of_another_table(bank):
    rng, told = np.random.default_rng(0), 0
    income = bank.site.tables["train"].frame["income"].to_numpy()
    folds = bank.worker("FoldWorker")
    for part in rng.permutation(ROWS).reshape(-1, 40):
        folds.split(train="rest", held="held", rows=part, number=-1, pairs={})
        swapped = {"pair": "train", "train": "held", "held": "rest", "rows": part}
        try:
            folds.follow(**swapped, numbers=None, number=0)
            asked = bank.start("CovarianceWorker", {"names": ["income"]}, scope="held")
            (mean,) = bank.call(asked, "moments", {})["means"]
        except FedmendError:
            continue
        told += abs(mean - income[part[-1]]) < 1e-6
    assert told == 0
