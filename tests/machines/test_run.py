"""Whole runs over real processes and mutual TLS: the same numbers as in one process."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedmend as fm
from fedmend.cli import main
from fedmend.errors import ConfigError, Refused, WireError
from fedmend.federation import read_ledger, wire
from fedmend.federation.engines.flare.messages import read_reply, request
from fedmend.federation.ledger import inspect_ledger, read_entries
from fedmend.federation.reconcile import reconcile

from .conftest import wait_until
from .machine_probe import MachineProbe


@pytest.fixture(scope="module")
def record(first):
    return first.record


def test_scores_equal_those_of_one_process(world, record):
    # As long a name: paths are in what crosses. Between machines messages are the default.
    here = world.run_here("local", seal="seal = true")
    for ours, theirs in zip(record.methods, here.methods, strict=True):
        assert ours.scores.keys() == theirs.scores.keys()
        for name, value in ours.scores.items():
            assert value == pytest.approx(theirs.scores[name], abs=1e-6)
        assert ours.history == theirs.history
        assert ours.crossings == theirs.crossings
        # Names of workers and models are in what crosses, and may be a digit longer.
        assert ours.bytes == pytest.approx(theirs.bytes, rel=1e-3)


def test_embeddings_and_gradients_cross_in_messages(world, record):
    crossed = [
        entry
        for entry in read_ledger(world.folder / "first" / "ledger.jsonl")
        if entry.kind in ("embedding", "gradient") and entry.shape
    ]
    assert {entry.sealed_for for entry in crossed} == {"bank", "telco"}
    told = (world.folder / "first" / "report.html").read_text()
    assert "passed on unread" in told


def test_the_coordinator_has_no_part_of_the_parties(world, record):
    run = world.folder / "first"
    model = {path.name for path in run.rglob("*") if path.is_file()}
    assert "model.json" in model
    assert not [path for path in run.rglob("*") if path.name in ("bank", "telco")]
    kept = world.kits.party("telco") / "runs" / (run / "run.name").read_text()
    assert any(kept.rglob("*"))


def test_a_finished_run_leaves_no_checkpoints_and_says_that_it_finished(world, record):
    kit = world.kits.party("telco")
    kept = kit / "runs" / (world.folder / "first" / "run.name").read_text()
    assert any(kept.rglob("part.fmw")) and not any(kept.rglob("epoch-*.fmw"))
    wait_until(lambda: any(kit.glob("*-*-*-*-*/finished")))


def test_all_ledgers_agree(world, record, capsys):
    run = world.folder / "first"
    main_without_exit(["ledger", str(run), "--reconcile"])
    assert capsys.readouterr().out == "bank: agrees\ntelco: agrees\n"


def test_an_entry_taken_out_of_a_ledger_is_found(world, record, tmp_path):
    run = world.folder / "first"
    # The copy of the run's end: predictions with its model are in the party's own ledger by now.
    lines = (run / "ledgers" / "telco.jsonl").read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if '"PairWorker.keep"' in line)
    less, other = tmp_path / "less.jsonl", tmp_path / "other.jsonl"
    less.write_text("".join(lines[:at] + lines[at + 1 :]))
    entry = json.loads(lines[at])
    other.write_text(
        "".join([*lines[:at], json.dumps(entry | {"bytes": 1}) + "\n", *lines[at + 1 :]])
    )
    for path, grade in ((less, "missing"), (other, "altered")):
        changed = inspect_ledger(path)
        assert {flaw.line for flaw in changed.flaws} == {at + 1}
        (found,) = reconcile(read_ledger(run / "ledger.jsonl"), "telco", changed.entries)
        assert found.grade == grade
        with pytest.raises(SystemExit) as ended:
            main(["ledger", str(run), "--reconcile", "--with", f"telco={path}"])
        assert ended.value.code == ConfigError.exit_code


def test_each_party_saw_what_it_was_asked_for(world, record):
    for name in ("bank", "telco"):
        assert "asks for a run 'bank and telco': vfl" in world.events(name)
        assert "ended: finished" in world.events(name)


def main_without_exit(arguments):
    try:
        main(arguments)
    except SystemExit as ended:
        assert not ended.code


# ---------------------------------------------------------------- a federation in hand


@pytest.fixture(scope="module")
def fed(world, record):
    with world.open("hand", seed=3, methods=["fedpsg-pum"]) as fed:
        yield fed


@pytest.mark.slow
def test_random_choices_are_a_partys_own_unless_a_run_is_reproducible(world, record):
    with world.open("own", reproducible=False) as fed:
        assert not [entry for entry in fed.ledger.entries() if entry.is_crossing]
        assert not fed.reproducible
    kept = [world.kits.party(name) / "runs" / "own" / "secret.key" for name in world.names]
    first = [path.read_bytes() for path in kept]
    assert len({*first}) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    with world.open("own", reproducible=False, resume=True):
        assert [path.read_bytes() for path in kept] == first
    with world.open("own", reproducible=False):
        assert not {*first} & {path.read_bytes() for path in kept}
    with world.open("known") as fed:
        copies = [read_entries(fed.engine._copy_of(name), name) for name in world.names]
        theirs = [each for entries in copies for each in entries]
        for ledger in (theirs, fed.ledger.entries()):
            assert [entry.note for entry in ledger].count("reproducible") == 2


@pytest.mark.slow
def test_tensors_of_all_sizes_come_back(fed):
    with fed.workers(MachineProbe) as workers:
        for shape in ((0,), (3, 2), (256, 32), (1024, 1024)):
            sent = np.random.default_rng(0).normal(size=shape).astype(np.float32)
            for back in workers.echo(sent).values():
                assert np.array_equal(back, sent)


@pytest.mark.slow
def test_sites_are_processes_of_their_own(fed, world):
    with fed.workers(MachineProbe) as workers:
        pids = workers.pid()
    assert len(set(pids.values())) == 2
    assert pids["bank"] == world.job_process("bank").pid


@pytest.mark.slow
def test_labels_are_refused(fed, world):
    with fed.workers(MachineProbe) as workers, pytest.raises(Refused, match="kind 'label'"):
        workers["bank"].labels()
    assert "kind 'label'" in world.events("bank")


@pytest.mark.slow
def test_malformed_and_replayed_messages_are_answered_and_nothing_crashes(fed, world):
    courier, session = fed.engine._courier, fed.engine._sessions["bank"]

    def ask(message):
        return read_reply(courier.ask("bank", message, 20.0).result(30), "bank", "x")

    for message in (b"", b"FMW", b"\0" * 100, wire.encode([1]), request("ping")[:-1]):
        with pytest.raises(WireError):
            ask(message)
    with pytest.raises(Refused, match="another session"):
        ask(request("stop", session=b"\0" * 16, number=10**5, handle="x"))
    once = request(
        *("start",),
        session=session,
        number=next(fed.engine._numbers["bank"]),
        worker="MachineProbe",
        scope="train",
        params={},
    )
    assert ask(once).startswith("MachineProbe#")
    with pytest.raises(Refused, match="came before"):
        ask(once)
    with pytest.raises(Refused, match="no worker 'Shell' is installed"):
        fed.engine.start("bank", "Shell", "train", {})
    head = bytearray(wire.encode(b""))
    head[4:12] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(WireError, match="over the limit"):
        ask(bytes(head))
    with fed.workers(MachineProbe) as workers:
        assert workers["bank"].pid() > 0
    events = world.events("bank")
    assert "came before" in events
    assert "over the limit" in events


@pytest.mark.slow
def test_fedpsg_pum_completes_rows_as_in_one_process(fed, world, make_local):
    def mend(federation):
        fm.align(federation, order="seeded")
        return fm.FedPSGPUM(seed=3, rounds=2).fit(federation).summary()

    over, here = mend(fed), mend(make_local(seed=3))
    assert over.shape == here.shape
    for name in over.columns:
        if over[name].dtype.kind == "f":
            assert np.allclose(over[name], here[name], atol=1e-6, equal_nan=True)
        else:
            assert over[name].tolist() == here[name].tolist()


@pytest.fixture
def make_local(world):
    from fedmend.flow.reading import split_by_id

    def make(seed):
        tables = {
            "bank": fm.read(world.folder / "bank.csv", id="id", label="y"),
            "telco": fm.read(world.folder / "telco.csv", id="id"),
        }
        parties = []
        for name, table in tables.items():
            train, test = split_by_id(table, 0.25, seed)
            parties.append(fm.Party(name, train, test=test))
        return fm.Federation(*parties, seed=seed)

    return make
