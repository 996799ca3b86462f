"""InC and RISA over real processes: two labellers, and rows that one side alone knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")


from . import conftest

pytestmark = [pytest.mark.xdist_group("machines"), pytest.mark.slow]

TOML = (
    conftest.TWO_LABELLERS
    + """
[align]
order = "seeded"

[[method]]
name = "inc"
epochs = 3
secure = "masks"

[[method]]
name = "risa"
label_party = "bank"
epochs = 3

[evaluate]
reference = "bank"

[flare]
port = {port}
wait_seconds = 60
"""
)


def write_labels(folder: Path) -> None:
    conftest.write_tables(folder)
    bank, telco = (pd.read_csv(folder / f"{name}.csv") for name in ("bank", "telco"))
    known = bank.set_index("id")["y"]
    said = telco["id"].map(known).fillna("no").to_numpy(dtype=object)
    wrong = np.random.default_rng(1).random(len(said)) < 0.2
    telco["y"] = np.where(wrong, np.where(said == "yes", "no", "yes"), said)
    telco.to_csv(folder / "telco.csv", index=False)


@pytest.fixture(scope="module")
def labellers(tmp_path_factory):
    made = conftest.World(
        tmp_path_factory.mktemp("labellers"), tables=write_labels, toml=TOML, probe=False
    )
    try:
        made.up()
        yield made
    finally:
        made.down()


def test_both_methods_give_the_numbers_of_one_process(labellers):
    over, here = labellers.run("over"), labellers.run_here("here")
    assert [run.title for run in over.methods] == ["InC", "RISA"]
    for ours, theirs in zip(over.methods, here.methods, strict=True):
        assert ours.scores == pytest.approx(theirs.scores, abs=1e-6)
    assert over.methods[0].labelling["expertise"] == here.methods[0].labelling["expertise"]
