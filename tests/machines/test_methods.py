"""Methods over real processes give the numbers of one process: images, annotators, rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedmend.data.table import Table
from fedmend.federation import Federation, Party
from fedmend.federation.ledger import read_ledger
from fedmend.flow.reading import read_parties
from fedmend.methods.horizontal.baselines import FedMatch
from fedmend.methods.horizontal.sage import SAGE

from .conftest import TWO_LABELLERS, running, write_tables

pytestmark = pytest.mark.slow

IMAGES = """
[[party]]
name = "left"
data = "left.parquet"
label = "y"

[[party]]
name = "right"
data = "right.parquet"

[align]
order = "seeded"

[[method]]
name = "risa-images"
conv = "cnn"
embedding = 8
top = [8]
batch_size = 32
lr = 0.05
augment = "none"
epochs = 6

[flare]
port = {port}
wait_seconds = 60
"""


def write_halves(folder: Path) -> None:
    """Stripes across, down or none; 140 of 170 pictures are known to both."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 200)
    for name, rows in (("left", slice(0, 170)), ("right", slice(30, 200))):
        bright = np.zeros((170, 3, 8, 4))
        bright[y[rows] == 1, :, ::2] = 120
        bright[y[rows] == 2, :, :, ::2] = 120
        pixels = (bright + rng.normal(60, 25, bright.shape)).clip(0, 255).astype(np.uint8)
        columns = {"y": y[rows]} if name == "left" else {}
        kinds = {"y": "nominal"} if columns else None
        label = "y" if columns else None
        numbers = np.arange(200)[rows]
        table = Table(numbers, columns, label=label, kinds=kinds, blocks={"image": pixels})
        table.to_parquet(folder / f"{name}.parquet")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    with running(
        tmp_path_factory.mktemp("pictures"),
        ("left", "right"),
        tables=write_halves,
        toml=IMAGES,
        probe=False,
    ) as made:
        yield made


def test_halves_of_images_give_the_numbers_of_one_process(pictures):
    over, here = pictures.run("over"), pictures.run_here("here")
    (ours,), (theirs,) = over.methods, here.methods
    assert ours.title == "RISA for images"
    assert ours.scores == pytest.approx(theirs.scores, abs=1e-5)
    assert ours.scores["accuracy"] > 0.5


# ---------------------------------------------------------------- two annotators

ANNOTATORS = (
    TWO_LABELLERS
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
    """The telco has labelled two of three rows only."""
    write_tables(folder)
    bank, telco = (pd.read_csv(folder / f"{name}.csv") for name in ("bank", "telco"))
    known = bank.set_index("id")["y"]
    said = telco["id"].map(known).fillna("no").to_numpy(dtype=object)
    wrong = np.random.default_rng(1).random(len(said)) < 0.2
    telco["y"] = np.where(wrong, np.where(said == "yes", "no", "yes"), said)
    telco.loc[telco["id"] % 3 == 0, "y"] = None
    telco.to_csv(folder / "telco.csv", index=False)


@pytest.fixture(scope="module")
def labellers(tmp_path_factory):
    with running(
        tmp_path_factory.mktemp("labellers"), tables=write_labels, toml=ANNOTATORS, probe=False
    ) as made:
        yield made


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


def test_new_rows_are_predicted_where_they_are(labellers, tmp_path, fedmend):
    """After the run above, from the command line."""
    run = labellers.folder / "over"
    if not run.is_dir():
        labellers.run("over")
    for name in labellers.names:
        path = labellers.kits.party(name) / "party.toml"
        path.write_text(f'new = "{labellers.folder / name}.csv"\n' + path.read_text())
    labellers.up()
    over = ["--engine", "flare", "--kits", labellers.kits.folder]
    code, told, _ = fedmend("predict", run, *over, "--method", "InC", "--out", tmp_path / "said")
    assert code == 0
    place = f"runs/{(run / 'run.name').read_text()}/said/predictions.csv"
    for name in labellers.names:
        assert f"{name} (in its own kit, {place})" in told
        assert (labellers.kits.party(name) / place).is_file()


# ---------------------------------------------------------------- rounds

ROUNDS = (
    TWO_LABELLERS
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
    with running(
        tmp_path_factory.mktemp("clients"), tables=write_clients, toml=ROUNDS, probe=False
    ) as made:
        yield made


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
