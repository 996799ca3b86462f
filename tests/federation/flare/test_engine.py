from __future__ import annotations

import shutil
import socket
import stat
import tempfile
import threading
import time

import numpy as np
import pytest
import torch

from fedmend.errors import ConfigError, DataError, PartyAbsent, PartyFailed, Refused, WireError
from fedmend.federation import Each, Worker, exposed, read_ledger
from fedmend.federation.engines.flare import engine as engine_module
from fedmend.federation.engines.flare.host import Hello, PartyHost
from fedmend.federation.engines.flare.messages import read_request, reply
from fedmend.federation.reconcile import reconcile

from .conftest import Clock, Probe, Wired, party_ledgers


class Stranger(Worker):
    @exposed(kind="control")
    def hi(self):
        return "hi"


def exercise(fed):
    """The same calls on any engine; what they gave."""
    found = [fed.roster, fed.label_party]
    with fed.workers(Probe, scale=Each({"bank": 2.0, "telco": 3.0})) as workers:
        found.append({k: v.tolist() for k, v in workers.sums().items()})
        for _ in range(5):
            found.append(workers.step(torch.ones(4, 3), rows=[1, 2])["telco"].tolist())
        found.append(workers["bank"].step(np.ones(2, np.float32)).tolist())
        with pytest.raises(Refused, match="kind 'label'"):
            workers["bank"].labels()
        with pytest.raises(PartyFailed):
            workers["telco"].fail()
    return found


def crossings(ledger):
    found = {}
    for entry in ledger.entries():
        if not entry.is_crossing:
            continue
        key = (entry.sender, entry.receiver, entry.call, entry.kind, entry.shape, entry.bytes)
        key += (entry.note,)
        found[key] = found.get(key, 0) + entry.count
    return found


def test_results_and_ledger_equal_the_local_engine(wired, local):
    assert exercise(wired.fed) == exercise(local)
    assert crossings(wired.ledger) == crossings(local.ledger)


def test_every_party_has_written_the_same(wired):
    exercise(wired.fed)
    theirs = party_ledgers(wired.engine)
    assert set(theirs) == {"bank", "telco"}
    for party, entries in theirs.items():
        assert entries
        assert reconcile(wired.ledger.entries(), party, entries) == []


def test_the_ledgers_are_fetched_at_the_end(wire_up, tmp_path):
    wired = wire_up()
    wired.engine.ledgers = tmp_path / "ledgers"
    exercise(wired.fed)
    wired.fed.close()
    for party in ("bank", "telco"):
        copy = read_ledger(tmp_path / "ledgers" / f"{party}.jsonl")
        assert copy == read_ledger(tmp_path / party / "ledgers" / "a-run.jsonl")
        assert reconcile(read_ledger(tmp_path / "ledger.jsonl"), party, copy) == []


def test_calls_to_all_run_at_once(wired):
    with wired.fed.workers(Probe) as workers:
        began = time.perf_counter()
        workers.sleep(0.5)
        assert time.perf_counter() - began < 0.95


def test_all_work_of_a_party_is_done_by_one_thread(wired):
    with wired.fed.workers(Probe) as workers:
        assert len({workers["bank"].where() for _ in range(5)}) == 1


def test_a_failure_names_party_and_call_and_keeps_what_was_said(wired, tmp_path):
    with wired.fed.workers(Probe) as workers, pytest.raises(PartyFailed) as caught:
        workers["telco"].fail()
    assert str(caught.value).startswith("party 'telco' failed in Probe.fail: ValueError")
    assert "Ada" not in str(caught.value)
    assert "Ada" in (tmp_path / "telco" / "events.jsonl").read_text()


def test_a_value_that_has_no_place_on_the_wire_does_not_leave(wired):
    with wired.fed.workers(Probe) as workers, pytest.raises(WireError, match="has no place"):
        workers["bank"].step({1, 2})


def test_an_unknown_party_is_named(wired):
    with pytest.raises(ConfigError, match="no party 'shop'"):
        wired.engine.start("shop", "Probe", "train", {})


def test_socket_files_have_short_paths(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 109)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    place = engine_module._scratch()
    try:
        with socket.socket(socket.AF_UNIX) as ears:
            ears.bind(str(place / "99"))
        assert stat.S_IMODE(place.stat().st_mode) == 0o700 and not list(deep.iterdir())
    finally:
        shutil.rmtree(place)


def test_a_party_that_falls_silent_is_absent(wire_up):
    wired = wire_up(stall_seconds=1.0)
    workers = wired.fed.workers(Probe)
    wired.deaf.add("telco")
    began = time.perf_counter()
    with pytest.raises(PartyAbsent, match="'telco' is absent during Probe.sums") as caught:
        workers.sums()
    assert time.perf_counter() - began < 5
    assert caught.value.call == "Probe.sums"
    assert set(wired.engine.absent) == {"telco"}
    assert workers["bank"].sums().sum() > 0
    with pytest.raises(PartyAbsent):
        workers["telco"].sums()


def test_a_slow_party_is_waited_for(wire_up):
    wired = wire_up(stall_seconds=0.4)
    with wired.fed.workers(Probe) as workers:
        workers["bank"].sleep(1.0)
    assert wired.engine.absent == {}


def test_a_job_that_ends_makes_its_party_absent(wired):
    workers = wired.fed.workers(Probe)
    wired.hang_up("telco")
    with pytest.raises(PartyAbsent, match="'telco' is absent.*its job ended"):
        workers.sums()
    assert set(wired.engine.absent) == {"telco"}
    assert workers["bank"].sums().sum() > 0


def test_a_lost_server_makes_all_absent(wired):
    workers = wired.fed.workers(Probe)
    wired.hang_up()
    with pytest.raises(PartyAbsent, match="jobs of all parties ended at once"):
        workers.sums()
    assert set(wired.engine.absent) == {"bank", "telco"}


def test_an_unanswered_call_explains_itself_in_the_ledger(wire_up):
    wired = wire_up(stall_seconds=1.0)
    workers = wired.fed.workers(Probe)
    workers.step(np.ones(3, np.float32))
    wired.deaf.add("telco")
    with pytest.raises(PartyAbsent):
        workers.step(np.ones(3, np.float32))
    assert "unanswered" in {entry.note for entry in wired.ledger}
    wired.hosts["telco"].close("killed")
    ledger = read_ledger(wired.hosts["telco"].folder / "ledgers" / "a-run.jsonl")
    found = reconcile(wired.ledger.entries(), "telco", ledger)
    assert {each.grade for each in found} == {"explained"}


def test_calls_that_were_interrupted_explain_themselves(wired, monkeypatch):
    """Both parties have answered a step, the coordinator's people press Ctrl-C, and it closes."""
    workers = wired.fed.workers(Probe)
    workers.step(np.ones(3, np.float32))

    def interrupted(party, name, future):
        future.result(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(wired.engine, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.step(np.ones(3, np.float32))
    wired.engine.close("interrupted")
    ours = wired.ledger.entries()
    assert [entry.sender for entry in ours if entry.note == "unanswered"] == ["bank", "telco"]
    for party, host in wired.hosts.items():
        theirs = read_ledger(host.folder / "ledgers" / "a-run.jsonl")
        assert [each.grade for each in reconcile(ours, party, theirs)] == ["explained"]


def test_the_end_is_told_with_its_reason(wire_up, tmp_path):
    wired = wire_up(stall_seconds=1.0)
    workers = wired.fed.workers(Probe)
    wired.deaf.add("telco")
    with pytest.raises(PartyAbsent), wired.fed:
        workers.sums()
    events = (tmp_path / "bank" / "events.jsonl").read_text()
    assert "'telco' is absent during Probe.sums" in events


def test_who_refuses_hello_ends_the_opening(wire_up, monkeypatch):
    honest = Hello.to_wire
    monkeypatch.setattr(Hello, "to_wire", lambda hello: honest(hello) | {"version": "9.9.9"})
    with pytest.raises(Refused, match=r"runs fedmend 9\.9\.9 .* this party fedmend") as caught:
        wire_up()
    assert "telco" in caught.value.__notes__[0]


def people_at(monkeypatch, **said):
    """What the people of each party say to a run, and when: an event, after which an error."""
    honest = Wired.opener

    def opener(self, name, policy):
        after, error = said[name]

        def open_it(hello):
            assert after.wait(30)
            if error is not None:
                raise error
            return honest(self, name, policy)(hello)

        return open_it

    monkeypatch.setattr(Wired, "opener", opener)


def test_who_has_consented_is_told_as_it_happens(wire_up, monkeypatch):
    now, later, told = threading.Event(), threading.Event(), []
    now.set()

    def answered(party, yes, left):
        told.append((party, yes, left))
        later.set()  # the bank's people take their time until the telco's have said yes

    people_at(monkeypatch, bank=(later, None), telco=(now, None))
    wired = wire_up(answered=answered)
    assert told == [("telco", True, ["bank"]), ("bank", True, [])]
    assert wired.engine.names == ("bank", "telco")


def test_one_no_ends_the_waiting_for_the_others(wire_up, monkeypatch):
    monkeypatch.setattr("fedmend.federation.engines.flare.engine.AFTER_REFUSAL_SECONDS", 0.3)
    now, never, told = threading.Event(), threading.Event(), []
    now.set()
    no = Refused("telco", "the people there said no", "ask them why")
    people_at(monkeypatch, bank=(never, None), telco=(now, no))
    with pytest.raises(Refused, match="said no"):
        wire_up(answered=lambda *each: told.append(each))
    assert told == [("telco", False, ["bank"])]
    never.set()


def test_threads_end_with_the_engine(wired):
    def ours():
        names = ("fedmend-receive", "fedmend-beat")
        return [thread for thread in threading.enumerate() if thread.name in names]

    wired.fed.workers(Probe)
    assert len(ours()) >= 3
    wired.close()
    deadline = time.monotonic() + 10
    while ours():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lying(host, operation, answer):
    """The host as it is, but for its answer to one operation."""
    honest = host.answer

    def answered(message, caller="server"):
        if read_request(message)["op"] == operation:
            return answer
        return honest(message, caller)

    host.answer = answered


@pytest.mark.parametrize("content", [None, 7, [1], [{"what": 1}], "x", b"x\n", b"\xff\0"])
def test_a_party_without_a_ledger_does_not_keep_the_run_from_ending(
    wire_up, tmp_path, caplog, content
):
    ended: list[str] = []
    wired = wire_up(ended=ended.append)
    wired.engine.ledgers = tmp_path / "ledgers"
    exercise(wired.fed)
    lying(wired.hosts["bank"], "ledger", reply(content))
    with pytest.raises((WireError, DataError), match="ledger.*'bank'|'bank' sent a .*ledger"):
        party_ledgers(wired.engine)
    wired.fed.close()
    assert ended == ["finished"]
    assert [path.name for path in (tmp_path / "ledgers").iterdir()] == ["telco.jsonl"]
    assert "no copy of the ledger of 'bank'" in caplog.text


@pytest.mark.parametrize("content", [None, {}, {"session": "text"}, [b"x"]])
def test_a_hello_that_is_answered_with_nonsense_names_the_party(tmp_path, monkeypatch, content):
    honest = PartyHost.answer

    def answered(host, message, caller="server"):
        if host.party == "telco" and read_request(message)["op"] == "hello":
            return reply(content)
        return honest(host, message, caller)

    monkeypatch.setattr(PartyHost, "answer", answered)
    with pytest.raises(WireError, match="hello"):
        Wired(tmp_path)


def test_a_relay_that_takes_nothing_more_makes_its_party_absent(wire_up):
    """A large message to a process that stands still must not block the watch, nor the caller."""
    wired = wire_up(stall_seconds=1.0)
    workers = wired.fed.workers(Probe)
    stands, goes_on = threading.Event(), threading.Event()

    def stand_still():
        stands.set()
        goes_on.wait()

    wired.far["telco"].receive = stand_still
    assert stands.wait(10)  # a ping was the last it took
    began = time.perf_counter()
    with pytest.raises(PartyAbsent, match="'telco' is absent"):
        workers["telco"].step(np.ones(8_000_000, np.float32))
    assert time.perf_counter() - began < 20
    assert set(wired.engine.absent) == {"telco"}
    assert workers["bank"].sums().sum() > 0
    goes_on.set()


def test_a_coordinator_that_slept_blames_nobody(wire_up, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("fedmend.federation.engines.flare.link.time", clock)
    wired = wire_up(stall_seconds=2.0)
    with wired.fed.workers(Probe) as workers:
        workers.sums()
        clock.slept = 3600.0
        time.sleep(1.2)  # the watch has looked twice since
        assert wired.engine.absent == {}
        assert workers["bank"].sums().sum() > 0


def test_a_coordinator_killed_in_a_loop_and_resumed_agrees_with_the_parties(wire_up, tmp_path):
    first = wire_up()
    workers = first.fed.workers(Probe)
    workers.sums()
    for _ in range(7):
        workers.step(np.ones(3, np.float32))
    first.ledger._window.clear()  # what a killed process takes with it
    first.ledger.close()
    for host in first.hosts.values():
        host.close("the job ended")
    second = wire_up()
    exercise(second.fed)
    ours = read_ledger(tmp_path / "ledger.jsonl")
    for party, entries in party_ledgers(second.engine).items():
        assert {each.grade for each in reconcile(ours, party, entries)} == {"explained"}
        unmarked = [entry for entry in ours if not entry.note.startswith("session")]
        assert "missing" in {each.grade for each in reconcile(unmarked, party, entries)}
