"""Heads of ledgers, exchanged at the end of a run, and what they are good for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedmend.errors import CryptoError
from fedmend.federation import Ledger, Policy, read_ledger
from fedmend.federation.ledger import COORDINATOR, Head, inspect_ledger
from fedmend.federation.reconcile import compare_heads, reconcile
from fedmend.secure.heads import LedgerHeadWorker, exchange_heads

from .conftest import Probe

ROLES = ("bank", "telco")


@pytest.fixture
def run(wire_up, tmp_path):
    """A finished run: its folder, as the coordinator has it."""
    wired = wire_up()
    wired.engine.ledgers = tmp_path / "ledgers"
    with wired.fed.workers(Probe) as workers:
        workers.sums()
        for _ in range(4):
            workers.step(np.ones(3, np.float32))
    exchange_heads(wired.fed)
    wired.fed.close()
    for host in wired.hosts.values():
        host.close("finished")
    return tmp_path


def own(run, party):
    return run / party / "ledgers" / "a-run.jsonl"


def chains(run):
    found = {party: inspect_ledger(own(run, party)) for party in ROLES}
    return {COORDINATOR: inspect_ledger(run / "ledger.jsonl"), **found}


def test_everybody_has_noted_the_heads_of_all_others(run):
    noted = {
        role: {each.sender for each in chain.entries if Head.of(each) is not None}
        for role, chain in chains(run).items()
    }
    everybody = {COORDINATOR, *ROLES}
    assert noted == {role: everybody - {role} for role in everybody}
    assert compare_heads(chains(run)) == ([], 6)


def test_the_exchange_itself_reconciles(run):
    for party in ROLES:
        for path in (own(run, party), run / "ledgers" / f"{party}.jsonl"):
            assert reconcile(read_ledger(run / "ledger.jsonl"), party, read_ledger(path)) == []


def test_heads_go_to_the_other_party_unread(run):
    given = [each for each in read_ledger(own(run, "bank")) if each.call.endswith(".head")]
    crossed = [each for each in given if each.is_crossing and each.sender == "bank"]
    assert [each.sealed_for for each in crossed] == ["telco"]


@pytest.mark.parametrize("whose", [COORDINATOR, *ROLES])
def test_an_end_that_is_cut_off_is_noticed_by_the_others(run, whose):
    path = run / "ledger.jsonl" if whose == COORDINATOR else own(run, whose)
    lines = path.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if "Probe.sums" in line)
    path.write_text("".join(lines[:at]))
    assert inspect_ledger(path).flaws == []
    found, _ = compare_heads(chains(run))
    assert {each.party for each in found} == {whose}
    assert len(found) == 2


def test_verify_says_that_all_is_as_it_was_written(run, fedmend):
    code, said, _ = fedmend("ledger", run, "--verify")
    assert code == 0
    for role in ("the coordinator", "bank", "telco"):
        assert f"the ledger of {role} is whole" in said
    assert "6 of 6 heads that others were told agree" in said


def test_verify_and_reconcile_name_what_was_taken_out(run, fedmend):
    path = run / "ledgers" / "telco.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if '"statistic"' in line)
    path.write_text("".join(lines[:at] + lines[at + 1 :]))
    code, _, said = fedmend("ledger", run, "--verify")
    assert code == 2 and f"telco, line {at + 1}: number {at + 1} is missing before it" in said
    code, _, said = fedmend("ledger", run, "--reconcile")
    assert code == 2 and "telco, missing: telco → coordinator Probe.sums" in said
    assert f"telco, line {at + 1}: number {at + 1} is missing" in said


def test_a_party_verifies_another_party_s_copy_with_its_own_ledger(run, fedmend):
    verify = ["ledger", own(run, "bank"), "--verify", "--with"]
    code, said, _ = fedmend(*verify, f"telco={own(run, 'telco')}")
    assert code == 0 and "2 of 2 heads" in said
    lines = own(run, "telco").read_text().splitlines(keepends=True)
    cut = run / "cut.jsonl"
    cut.write_text("".join(lines[:3]))
    code, _, said = fedmend(*verify, f"telco={cut}")
    assert code == 2 and "bank was told that line" in said


def test_a_chain_made_anew_by_its_owner_is_noticed(run):
    """The party leaves a crossing out and writes all of its ledger again, with hashes that fit."""
    entries = read_ledger(own(run, "telco"))
    own(run, "telco").unlink()
    forged = Ledger(own(run, "telco"))
    forged._write([each for each in entries if each.kind != "statistic"])
    forged.close()
    assert inspect_ledger(own(run, "telco")).flaws == []
    assert {each.party for each in compare_heads(chains(run))[0]} == {"telco"}


def test_a_coordinator_cannot_pass_on_another_head(wired):
    workers = wired.fed.workers(LedgerHeadWorker)
    from fedmend.secure.channel import introduce

    introduce(workers)
    given = workers["bank"].head(["telco"])
    for sealed in (given[COORDINATOR], [1, "0" * 64]):
        with pytest.raises(CryptoError):
            workers["telco"].note({"bank": sealed}, [0, "0" * 64])
    with pytest.raises(CryptoError, match="something else than the head"):
        workers["telco"].note({}, [0, "no hash\n"])
    assert not [each for each in read_ledger(wired.hosts["telco"]._ledger.path) if Head.of(each)]


def test_a_party_that_takes_no_part_does_not_spoil_the_run(wire_up, caplog):
    wired = wire_up(policies={"telco": Policy(workers=frozenset({"Probe"}))})
    exchange_heads(wired.fed)
    assert "were not exchanged: party 'telco' refused" in caplog.text
    with wired.fed.workers(Probe) as workers:
        assert workers["bank"].sums().sum() > 0


def test_in_one_process_there_is_nothing_to_exchange(local):
    exchange_heads(local)
    assert local.ledger.entries() == []


def test_without_heads_verify_says_what_it_cannot_notice(wired, tmp_path, fedmend):
    with wired.fed.workers(Probe) as workers:
        workers.sums()
    wired.fed.close()
    code, said, _ = fedmend("ledger", tmp_path, "--verify")
    assert code == 0 and "an end that was cut off would not be noticed" in said
    assert json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[0])["number"] == 1
