"""Two machines on one: network namespaces, a host that is not localhost, a link that tc makes slow.

Only root can make them; elsewhere the proxy of test_faults.py stands for the link. They end with
the two processes that hold them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from .conftest import PARTIES, World

pytestmark = pytest.mark.slow

TOML = (
    PARTIES
    + """
[align]
order = "seeded"

[[method]]
name = "vfl"
epochs = 1

[flare]
host = "coordinator.example"
port = {port}
"""
)
HOST, HERE, THERE = "coordinator.example", "10.77.0.1", "10.77.0.2"


class Machine:
    """A network of its own, and an /etc/hosts that knows the coordinator."""

    def __init__(self, hosts):
        hold = f"mount --bind {hosts} /etc/hosts && ip link set lo up && echo up && exec sleep 600"
        self.process = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", hold], stdout=subprocess.PIPE, text=True
        )
        if self.process.stdout.readline() != "up\n":
            self.end()
            pytest.skip("no network namespaces here")

    def words(self, *words):
        return ["nsenter", "-t", str(self.process.pid), "-n", "-m", *words]

    def do(self, *words):
        done = subprocess.run(self.words(*words), capture_output=True, text=True)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def fedmend(self, *words):
        return self.do(sys.executable, "-m", "fedmend", *map(str, words))

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def machines(tmp_path):
    if os.geteuid():
        pytest.skip("network namespaces are made by root")
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{HERE} {HOST}\n")
    near, far = made = [Machine(tmp_path / "hosts") for _ in range(2)]
    try:
        near.do(
            "ip", "link", "add", "v", "type", "veth", "peer", "v", "netns", str(far.process.pid)
        )
        for machine, address in ((near, HERE), (far, THERE)):
            machine.do(*f"ip addr add {address}/24 dev v".split())
            machine.do("ip", "link", "set", "v", "up")
        yield made
    finally:
        for machine in made:
            machine.end()


def slow(machine):
    """512 kbit/s, and 40 ms late where the kernel can."""
    rate, late = (
        "root handle 1: tbf rate 512kbit burst 4kb latency 2s",
        "parent 1: netem delay 40ms",
    )
    add = ["tc", "qdisc", "add", "dev", "v"]
    machine.do(*add, *rate.split())
    subprocess.run(machine.words(*add, *late.split()), capture_output=True)


def test_a_party_on_another_host_over_a_slow_link(machines, tmp_path):
    near, far = machines
    world = World(tmp_path, probe=False, toml=TOML)
    kits, toml = world.kits, tmp_path / "federation.toml"
    near.fedmend("run", toml, "--folder", tmp_path / "here")
    try:
        near.fedmend("server", "start", kits.folder)
        assert f"{HOST}:{world.port} answers over mutual TLS" in far.fedmend(
            "party", "check", kits.party("telco")
        )
        near.fedmend("party", "start", kits.party("bank"), "--detach")
        far.fedmend("party", "start", kits.party("telco"), "--detach")
        slow(far)
        near.fedmend("run", toml, "--engine", "flare", "--folder", tmp_path / "slow")
        near.fedmend("ledger", tmp_path / "slow", "--reconcile")
    finally:
        far.fedmend("party", "stop", kits.party("telco"))
        near.fedmend("party", "stop", kits.party("bank"))
        near.fedmend("server", "stop", kits.folder)
    found, expected = (
        json.loads((tmp_path / folder / "metrics.json").read_text())["methods"]
        for folder in ("slow", "here")
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["history"] == theirs["history"]
        assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-6)
