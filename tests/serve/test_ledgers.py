"""What a prediction over machines writes down: at the coordinator what the parties write, too."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from tests.serve.conftest import people
from typer.testing import CliRunner

from fedmend.cli import app
from fedmend.deploy.ledgers import reconcile_run, verify_run
from fedmend.deploy.party_file import load_party, open_site
from fedmend.errors import ConfigError, DataError, Refused
from fedmend.federation.engines.flare.engine import Opening
from fedmend.federation.engines.flare.host import PartyHost
from fedmend.federation.engines.flare.kits import Kits
from fedmend.federation.engines.flare.link import OK, SECONDS, Frame, Link
from fedmend.flow.manifest import StageEntry, hash_of, read_manifest
from fedmend.serve import running as ways

pytestmark = pytest.mark.filterwarnings("ignore::fedmend.errors.PrivacyWarning")
AGREE = ["bank: agrees", "telco: agrees"]


@pytest.fixture
def world(vertical, tmp_path, monkeypatch):
    """A run's folder and kits with its parts, whose parties answer in threads: no FLARE."""
    run, kits = tmp_path / "run", Kits(tmp_path / "kits")
    shutil.copytree(vertical, run)
    rows = people(30, 9).drop(columns="y")
    for each in (kits.server, kits.admin / "startup"):
        each.mkdir(parents=True)
    for name, columns in (("bank", ["a", "b", "city"]), ("telco", ["c", "d", "e"])):
        kit = kits.party(name)
        shutil.copytree(vertical / "model" / "vfl" / name, kit / "runs" / "run" / "vfl")
        shutil.copy(vertical.parent / f"{name}.csv", kit)
        rows[["id", *columns]].to_csv(kit / "new.csv", index=False)
        label = 'label = "y"\n' if name == "bank" else ""
        text = f'name = "{name}"\ndata = "{name}.csv"\nid = "id"\n{label}'
        (kit / "party.toml").write_text(f'{text}new = "new.csv"\nthreads = 1\n')
    made = SimpleNamespace(run=run, kits=kits, refuses=[], hosts=[])

    def site_for(name, hello):
        if name in made.refuses:
            raise Refused(name, "not today", "ask tomorrow")
        return open_site(load_party(kits.party(name)), hello, kits.party(name))

    def answering(name, end):
        host = PartyHost(name, lambda hello: site_for(name, hello), kits.party(name))
        made.hosts.append(host)
        while (frame := end.receive()) is not None:
            answer = host.answer(frame.payload[SECONDS.size :])
            with contextlib.suppress(OSError):
                end.send(Frame(frame.ticket, OK, name, answer))
        host.close("the link ended")
        end.close()

    def links(opening, parties):
        found = {}
        for name in parties:
            ours, theirs = socket.socketpair()
            found[name] = Link(ours)
            given = (name, Link(theirs))
            threading.Thread(target=answering, args=given, daemon=True).start()
        return found

    monkeypatch.setattr(Opening, "links", links)
    monkeypatch.setattr(ways, "server_up", lambda kits: contextlib.nullcontext())
    yield made
    until = time.monotonic() + 10
    while not all(host.over for host in made.hosts):
        assert time.monotonic() < until
        time.sleep(0.02)


def predict(world):
    done = ways.predict_over_machines(world.run, world.kits.folder, world.run / "out", method="vfl")
    assert [(each.party, each.shared) for each in done] == [("bank", 30)]
    shutil.rmtree(world.kits.party("bank") / "runs" / "run" / "out")


def own(world):
    """Their own ledgers, as parties that do not trust the copies name them."""
    return [f"{name}={world.kits.party(name)}/ledgers/run.jsonl" for name in ("bank", "telco")]


def as_over_machines(world):
    """The folder as a run over machines leaves it, with a report that was made of its ledger."""
    (world.run / "run.name").write_text("run")
    (world.run / "ledger.jsonl").unlink()
    predict(world)
    stages = read_manifest(world.run)
    stages.record(
        StageEntry("report", inputs={"ledger.jsonl": hash_of(world.run / "ledger.jsonl")})
    )


def test_a_prediction_is_in_the_ledger_of_the_run(world):
    as_over_machines(world)
    before = (world.run / "ledger.jsonl").read_bytes()
    predict(world)
    assert (world.run / "ledger.jsonl").read_bytes().startswith(before)
    assert len((world.run / "ledger.jsonl").read_bytes()) > len(before)
    assert reconcile_run(world.run, own(world)) == AGREE
    assert reconcile_run(world.run, []) == AGREE  # by the copies that were fetched
    assert verify_run(world.run, [])[-1].endswith("heads that others were told agree")
    told = CliRunner().invoke(app, ["ledger", str(world.run), "--json"], catch_exceptions=False)
    assert told.exit_code == 0 and "prediction" in told.output


def test_what_was_altered_before_a_prediction_is_named_after_it(world):
    as_over_machines(world)
    ledger = world.run / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-3]))
    predict(world)
    with pytest.raises(ConfigError, match="lines were added or cut off"):
        verify_run(world.run, [])


def test_a_run_of_one_process_keeps_its_predictions_ledgers_apart(world):
    before = hash_of(world.run / "ledger.jsonl")
    for _ in range(2):
        predict(world)
        assert reconcile_run(world.run / "machines", own(world)) == AGREE
    assert reconcile_run(world.run / "machines", []) == AGREE
    assert hash_of(world.run / "ledger.jsonl") == before


def test_a_prediction_that_fails_accuses_nobody(world):
    as_over_machines(world)
    world.refuses.append("telco")
    with pytest.raises(Refused, match="not today"):
        predict(world)
    with pytest.raises(ConfigError, match="no ledger of a party. Mend: --with"):
        reconcile_run(world.run, [])
    assert reconcile_run(world.run, own(world)) == AGREE
    world.refuses.clear()
    for name in ("bank", "telco"):
        file = world.kits.party(name) / "party.toml"
        file.write_text(file.read_text().replace("new =", "# new ="))
    with pytest.raises(DataError, match="no party has new rows"):
        predict(world)
    assert reconcile_run(world.run, []) == reconcile_run(world.run, own(world)) == AGREE
    assert verify_run(world.run, [])
