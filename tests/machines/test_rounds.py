"""Rounds over real processes: parties with the same columns and different people."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

import torch

from fedmend.federation import Federation, Party
from fedmend.flow.reading import read_parties
from fedmend.methods.horizontal.baselines import FedMatch
from fedmend.methods.horizontal.sage import SAGE

from . import conftest

pytestmark = pytest.mark.slow

TOML = (
    conftest.TWO_LABELLERS
    + """
[[method]]
name = "sage"
rounds = 3
epochs = 2
hidden = [8]

[flare]
port = {port}
wait_seconds = 60
"""
)
QUICK = {"rounds": 2, "epochs": 2, "hidden": (8,), "seed": 3}


def write_clients(folder: Path) -> None:
    for number, name in enumerate(("bank", "telco")):
        rng = np.random.default_rng(number)
        x = rng.normal(size=(160, 3))
        y = np.where(x.sum(1) > 0, "yes", "no").astype(object)
        y[rng.random(160) < 0.6] = None
        frame = pd.DataFrame(x, columns=list("abc"))
        frame.insert(0, "id", 1000 * number + np.arange(160))
        frame["y"] = y
        frame.to_csv(folder / f"{name}.csv", index=False)


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    made = conftest.World(
        tmp_path_factory.mktemp("clients"), tables=write_clients, toml=TOML, probe=False
    )
    try:
        made.up()
        yield made
    finally:
        made.down()


def test_a_run_gives_the_numbers_of_one_process(clients):
    over, here = clients.run("over"), clients.run_here("here")
    assert over.methods[0].scores == pytest.approx(here.methods[0].scores, abs=1e-6)
    assert [e["clients"] for e in over.methods[0].history] == [["bank", "telco"]] * 3


def test_weights_and_masked_sums_cross_between_machines(clients):
    def local() -> Federation:
        config = clients.config()
        parties = read_parties(config)
        return Federation(*(Party(p.name, **_tables(p)) for p in parties), seed=0)

    with clients.open("hand", seed=0, methods=["sage", "fedmatch"]) as fed:
        hidden = SAGE(secure="masks", **QUICK).fit(fed)
        matched = FedMatch(**QUICK).fit(fed)
        clear = SAGE(**QUICK).fit(local())
        torch.testing.assert_close(
            hidden.clients_.weights, clear.clients_.weights, rtol=1e-4, atol=1e-6
        )
        same = FedMatch(**QUICK).fit(local())
        torch.testing.assert_close(matched.clients_.weights, same.clients_.weights)


def _tables(party: Party) -> dict:
    return {"table": party.tables["train"], "test": party.tables["test"]}
