"""InC and RISA over real processes: two labellers, and rows that one side alone knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

from fedmend.cli import main
from fedmend.federation.ledger import read_ledger

from . import conftest

pytestmark = pytest.mark.slow

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
name = "inc"
title = "InC, a line corrected by a network"
epochs = 3
secure = "masks"
bottom = []
top = []
corrector = {{ bottom = [8], embedding = 4, top = [8] }}

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


def test_every_method_gives_the_numbers_of_one_process(labellers):
    over, here = labellers.run("over"), labellers.run_here("here")
    titles = [run.title for run in over.methods]
    assert titles == ["InC", "InC, a line corrected by a network", "RISA"]
    for ours, theirs in zip(over.methods, here.methods, strict=True):
        assert ours.scores == pytest.approx(theirs.scores, abs=1e-6)
    for ours, theirs in zip(over.methods[:2], here.methods[:2], strict=True):
        assert ours.labelling["expertise"] == theirs.labelling["expertise"]
    # The line learns what the network made of the labels; neither shows one on the way.
    plain, corrected = (run.labelling["expertise"] for run in over.methods[:2])
    assert plain != corrected
    entries = read_ledger(labellers.folder / "over" / "ledger.jsonl")
    assert not {entry.kind for entry in entries} & {"label", "row"}


def test_new_rows_are_predicted_where_they_are(labellers, tmp_path, capsys):
    """After the run above, from the command line."""
    run = labellers.folder / "over"
    if not run.is_dir():
        labellers.run("over")
    for name in labellers.names:
        path = labellers.kits.party(name) / "party.toml"
        path.write_text(f'new = "{labellers.folder / name}.csv"\n' + path.read_text())
    labellers.up()
    over = ["--engine", "flare", "--kits", str(labellers.kits.folder)]
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(run), *over, "--method", "InC", "--out", str(tmp_path / "said")])
    assert not ended.value.code
    told = capsys.readouterr().out
    place = f"runs/{(run / 'run.name').read_text()}/said/predictions.csv"
    for name in labellers.names:
        assert f"{name} (in its own kit, {place})" in told
        assert (labellers.kits.party(name) / place).is_file()
