"""Faults: a run stops with the cause named on every side, and goes on with the same numbers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from tests.serve.conftest import SlowLink

from fedmend.errors import PartyAbsent, PartyFailed
from fedmend.federation import read_ledger

from .conftest import Strike, wait_until
from .machine_probe import MachineProbe

pytestmark = pytest.mark.slow

EPOCHS = 6


@pytest.fixture(scope="module")
def undisturbed(world):
    """What the run gives when nothing happens to it."""
    return world.run_here("undisturbed", epochs=EPOCHS)


def same(record, undisturbed):
    for ours, theirs in zip(record.methods, undisturbed.methods, strict=True):
        for name, value in theirs.scores.items():
            assert ours.scores[name] == pytest.approx(value, abs=1e-6)


def kill(process: psutil.Process) -> None:
    process.send_signal(signal.SIGKILL)


def test_a_job_killed_at_a_party_stops_the_run_and_resume_finishes_it(fresh_world, undisturbed):
    world = fresh_world
    strike = Strike(2, lambda: kill(world.job_process("telco")))
    with pytest.raises(PartyAbsent, match="party 'telco' is absent during") as caught:
        world.run("killed", listener=strike, epochs=EPOCHS)
    assert "fedmend run --resume" in str(caught.value)
    assert "'telco' is absent" in world.events("bank")
    assert (world.folder / "killed.part").is_dir()
    record = world.run("killed", resume=True, epochs=EPOCHS)
    same(record, undisturbed)
    assert not (world.folder / "killed.part").exists()


def test_a_party_killed_outright_comes_back_and_the_run_waits(fresh_world, undisturbed):
    world = fresh_world

    def blow():
        running = world.parties["telco"].running()
        job = world.job_process("telco")
        for pid in (running.child, job.pid):
            kill(psutil.Process(pid))

    strike = Strike(2, blow)
    record = world.run("waited", listener=strike, epochs=EPOCHS, on_absent="wait")
    same(record, undisturbed)
    assert any("telco is absent" in words for words in strike.stages)
    assert "FLARE's process ended (code -9); starting it again" in world.events("telco")


def test_a_run_continues_without_the_party_when_told_so(three):
    strike = Strike(2, lambda: three.parties["telco"].stop())
    record = three.run("fewer", listener=strike, epochs=EPOCHS, on_absent="continue")
    assert any("telco is absent" in words and "without it" in words for words in strike.stages)
    assert [party["name"] for party in record.overview["parties"]] == ["bank", "shop"]
    assert record.methods[0].scores["accuracy"] > 0.5


def test_a_server_killed_and_restarted(fresh_world, undisturbed):
    world = fresh_world

    def blow():
        top = psutil.Process(world.server.running().child)
        for process in (*top.children(recursive=True), top):
            kill(process)

    with pytest.raises(PartyAbsent, match="jobs of all parties ended at once"):
        world.run("server", listener=Strike(2, blow), epochs=EPOCHS)
    wait_until(lambda: (found := world.server.running()) is not None and found.child, 20)
    record = world.run("server", resume=True, epochs=EPOCHS)
    ended = "ended: (the server is gone|the coordinator or the server)"
    assert re.search(ended, world.events("bank"))
    same(record, undisturbed)


def test_a_stalled_party_is_named(fresh_world, undisturbed):
    world = fresh_world
    stopped = []

    def blow():
        process = world.job_process("telco")
        process.send_signal(signal.SIGSTOP)
        stopped.append(process)

    try:
        with pytest.raises(PartyAbsent, match=r"has not answered for \d+ s"):
            world.run("stalled", listener=Strike(2, blow), epochs=EPOCHS, stall=4.0)
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)
    assert "'telco' is absent" in world.events("bank")
    record = world.run("stalled", resume=True, epochs=EPOCHS, stall=4.0)
    same(record, undisturbed)


def test_a_slow_party_is_waited_for(world):
    with world.open("slow") as fed, fed.workers(MachineProbe) as workers:
        began = time.monotonic()
        workers["telco"].sleep(15.0)
        assert time.monotonic() - began >= 15.0
        assert fed.engine.absent == {}


def test_over_a_slow_link_the_numbers_are_the_same(fresh_world, undisturbed):
    """Every message of the telco, 40 ms late each way, over 128 kB/s."""
    world = fresh_world
    world.up()
    link = SlowLink(f"127.0.0.1:{world.port}", delay=0.04, rate=128_000)
    world.parties["telco"].stop()
    file = world.kits.party("telco") / "startup" / "fed_client.json"
    before = file.read_text()
    file.write_text(before.replace(f"localhost:{world.port}", f"localhost:{link.port}"))
    try:
        record = world.run("slow-link", epochs=EPOCHS)
    finally:
        world.parties["telco"].stop()
        file.write_text(before)
        link.close()
    same(record, undisturbed)
    left = read_ledger(world.folder / "slow-link" / "ledgers" / "telco.jsonl")
    sent = sum(each.bytes for each in left)
    assert 0 < sent < link.carried


def test_a_full_disk_at_a_party_is_named_and_resume_finishes_the_run(fresh_world, undisturbed):
    """What a party keeps of a training is on a file system of its own, which fills up."""
    world = fresh_world
    kept = world.kits.party("telco") / "runs"
    kept.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(kept)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system can only be mounted by root")
    large = kept / "large"

    def fill():
        with contextlib.suppress(OSError), large.open("wb", buffering=0) as file:
            while file.write(b"0" * 4096):
                pass

    try:
        with pytest.raises(PartyFailed, match="party 'telco' failed in .*No space left on device"):
            world.run("full", listener=Strike(2, fill), epochs=EPOCHS)
        assert "No space left on device" in world.events("telco")
        large.unlink()
        same(world.run("full", resume=True, epochs=EPOCHS), undisturbed)
    finally:
        world.parties["telco"].stop()
        subprocess.run(["umount", str(kept)], check=True)


def test_the_coordinator_killed_leaves_no_job_behind(fresh_world, undisturbed):
    """The relay sees the link close; the parties' jobs end, and the run can be resumed."""
    world = fresh_world
    world.up()
    world.config(epochs=200)
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "fedmend", "run", str(world.folder / "federation.toml")),
            *("--engine", "flare", "--folder", str(world.folder / "orphan")),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        kept = world.kits.party("telco") / "runs"
        wait_until(lambda: any(kept.glob("orphan-*/vfl-0-*")), 120)
    finally:
        run.kill()
        run.wait()
    wait_until(lambda: not _has_job(world), 60)
    assert "ended: the coordinator or the server ended its job" in world.events("telco")


def _has_job(world) -> bool:
    try:
        world.job_process("telco")
    except AssertionError:
        return False
    return True
