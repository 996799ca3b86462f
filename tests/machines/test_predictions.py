"""Predictions with parties on machines of their own, and parts that move between the engines."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedmend.cli import app
from fedmend.serve import predict_run
from fedmend.serve.models import chosen
from fedmend.serve.running import predict_over_machines
from fedmend.serve.watching import WatchServer

pytestmark = [
    pytest.mark.filterwarnings("ignore::fedmend.errors.PrivacyWarning"),
]
COLUMNS = ["p(no)", "p(yes)", "uncertainty"]


def command(*words):
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@contextlib.contextmanager
def new_rows(world, files):
    """Every party names its new rows in its own file."""
    before = {}
    for party, path in files.items():
        own = world.kits.party(party) / "party.toml"
        before[own] = own.read_text()
        own.write_text(f'new = "{path}"\n' + before[own])
    try:
        yield
    finally:
        for own, text in before.items():
            own.write_text(text)


def kept(world, run, party, name="predictions"):
    path = world.kits.party(party) / "runs" / run / name / "predictions.csv"
    return pd.read_csv(path).set_index("id")


@pytest.fixture(scope="module")
def far(first, tmp_path_factory):
    """A run over machines, and rows that come later."""
    folder = tmp_path_factory.mktemp("later")
    rng = np.random.default_rng(3)
    people, x = np.arange(1000, 1040), rng.normal(size=(40, 4))
    files = {"bank": folder / "bank.csv", "telco": folder / "telco.csv"}
    bank = pd.DataFrame({"id": people, "a": x[:, 0], "b": x[:, 1]})
    telco = pd.DataFrame({"id": people, "c": x[:, 2], "d": x[:, 3]})
    bank.iloc[:30].to_csv(files["bank"], index=False)
    telco.iloc[10:].to_csv(files["telco"], index=False)
    return SimpleNamespace(run=first.run, files=files, look=first.look)


def test_the_live_page_of_a_run_over_machines(far):
    assert far.look.state["finished"] is False
    assert "Training VFL" in far.look.page.partition('id="live"')[2][:200]
    assert "Finding the rows that are known to all" in far.look.page
    assert "Who saw what" in far.look.page
    with WatchServer(far.run) as server:
        assert server.state()["finished"] and "finished" in server.page()


@pytest.mark.slow
def test_over_machines_as_with_the_parts_in_one_process(world, far, tmp_path):
    with new_rows(world, far.files):
        done = predict_over_machines(far.run, world.kits.folder, tmp_path / "predictions")
    assert [(each.party, each.shared, each.alone, each.path) for each in done] == [
        ("bank", 20, 10, None),
        ("telco", 0, 10, None),
    ]
    # the parties hand their kits over, and the same model loads in one process
    parts = {name: world.kits.party(name) for name in ("bank", "telco")}
    here = predict_run(far.run, far.files, tmp_path / "here", parts=parts)
    name = chosen(far.run, None).run
    for each in here:
        mine = pd.read_csv(each.path).set_index("id")
        theirs = kept(world, name, each.party)
        assert mine["known_to"].tolist() == theirs["known_to"].tolist()
        np.testing.assert_allclose(mine[COLUMNS], theirs[COLUMNS], atol=1e-5)


def test_a_party_alone_on_its_own_machine(world, far, tmp_path):
    """No server, no partner: the kit and a file."""
    out = tmp_path / "alone"
    name = chosen(far.run, None).run
    told = command(
        "party", "predict", world.kits.party("bank"), far.files["bank"], "--out", out,
        "--run", name,
    )  # fmt: skip
    assert "30 rows by VFL" in told
    found = pd.read_csv(out / "bank" / "predictions.csv")
    assert (found["used"] == "bank").all() and len(found) == 30


def test_a_party_that_was_given_nothing_says_so(world, far, tmp_path):
    done = CliRunner().invoke(
        app,
        ["party", "predict", str(world.kits.party("telco")), str(far.files["telco"]), "--out",
         str(tmp_path / "out")],
    )  # fmt: skip
    assert "that can decide alone" in str(done.exception)
    assert '[predict] alone = ["telco"]' in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_run_of_one_process_predicts_over_machines(world, far, tmp_path):
    world.run_here("near")
    run = world.folder / "near"
    for party in ("bank", "telco"):
        assert "part of vfl" in command("party", "adopt", world.kits.party(party), run)
    here = predict_run(run, far.files, tmp_path / "here")
    with new_rows(world, far.files):
        predict_over_machines(run, world.kits.folder, tmp_path / "there")
    for each in here:
        mine = pd.read_csv(each.path).set_index("id")
        theirs = kept(world, "near", each.party, "there")
        np.testing.assert_allclose(mine[COLUMNS], theirs[COLUMNS], atol=1e-5)
