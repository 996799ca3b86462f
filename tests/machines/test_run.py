"""Whole runs over real processes and mutual TLS: the same numbers as in one process."""

from __future__ import annotations

import json

import pytest

from fedmend.errors import ConfigError
from fedmend.federation import read_ledger
from fedmend.federation.ledger import inspect_ledger
from fedmend.federation.reconcile import reconcile

from .conftest import running, wait_until


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


def test_all_ledgers_agree(world, record, fedmend):
    told = fedmend("ledger", world.folder / "first", "--reconcile")
    assert told[:2] == (0, "bank: agrees\ntelco: agrees\n")


def test_an_entry_taken_out_of_a_ledger_is_found(world, record, tmp_path, fedmend):
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
        code, _, _ = fedmend("ledger", run, "--reconcile", "--with", f"telco={path}")
        assert code == ConfigError.exit_code


def test_each_party_saw_what_it_was_asked_for(world, record):
    for name in ("bank", "telco"):
        assert "asks for a run 'bank and telco': vfl" in world.events(name)
        assert "ended: finished" in world.events(name)


@pytest.mark.slow
def test_where_nothing_is_evaluated_every_row_of_every_party_trains(
    tmp_path, probe_path, monkeypatch
):
    # Parties that have told of the training rows alone do not tell of a few more.
    with running(tmp_path) as world:
        monkeypatch.setattr(world, "config", lambda: _unevaluated(type(world).config(world)))
        far, here = world.run("every row"), world.run_here("every row here")
    assert far.overview["parties"] == here.overview["parties"]
    assert [each["rows"] for each in far.overview["parties"]] == [300, 300]
    assert far.methods[0].history == here.methods[0].history and not far.methods[0].scores


def _unevaluated(config):
    run = config.run.model_copy(update={"leave_out": ["evaluate", "report"]})
    return config.model_copy(update={"run": run})
