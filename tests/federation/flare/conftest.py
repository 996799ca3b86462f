"""The flare engine with its parties in threads: link, courier, host and ledgers without FLARE."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedmend.data.table import Table
from fedmend.federation import Federation, Ledger, Party, Policy, Site, Worker, exposed
from fedmend.federation.engines.flare.engine import FlareEngine
from fedmend.federation.engines.flare.host import Hello, PartyHost
from fedmend.federation.engines.flare.link import OK, SECONDS, Frame, Link
from fedmend.federation.ledger import read_entries

HELLO = Hello("a-run", "first run", ("VFL",), 0, 0.25)


def table(offset: float = 0.0, label: bool = False) -> Table:
    columns = {"x": np.arange(6) + offset, "z": [1.0, 2.0, 2.0, 3.0, 9.0, 4.0]}
    if label:
        columns["y"] = [0, 1, 0, 1, 0, 1]
    return Table(np.arange(6), columns, label="y" if label else None)


TABLES = {"bank": table(label=True), "telco": table(10.0)}


def a_site(name: str = "bank", **options) -> Site:
    """A site as a party opens it for a host: with a secret of its own."""
    return Site(name, {"train": TABLES[name]}, **{"secret": os.urandom(32)} | options)


class Probe(Worker):
    """Does a little of everything that can go right or wrong at a party."""

    def __init__(self, site, scope="train", *, scale=1.0):
        super().__init__(site, scope)
        self.scale = scale

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def step(self, gradient, rows=None):
        return np.asarray(gradient, np.float32) * self.scale

    @exposed(kind="statistic")
    def sums(self):
        return self.table.frame[["x", "z"]].sum().to_numpy()

    @exposed(kind="label")
    def labels(self):
        return self.table.y.to_numpy()

    @exposed(kind="control")
    def sleep(self, seconds):
        time.sleep(seconds)

    @exposed(kind="control")
    def fail(self):
        raise ValueError("Ada Lovelace is not a number")

    @exposed(kind="control")
    def where(self):
        return threading.current_thread().name


def party_ledgers(engine):
    """What every party has written down so far, as the coordinator is given it."""
    return {
        name: read_entries(engine._copy_of(name), f"the ledger of {name!r}")
        for name in engine.names
    }


class Clock:
    """The time as usual, until somebody closes the lid."""

    sleep = staticmethod(time.sleep)

    def __init__(self):
        self.slept = 0.0

    def monotonic(self):
        return time.monotonic() + self.slept


class Wired:
    """A federation whose parties are hosts behind a link; the relay is a thread."""

    def __init__(self, folder, policies=None, **options):
        self.hosts = {
            name: PartyHost(name, self.opener(name, (policies or {}).get(name)), folder / name)
            for name in TABLES
        }
        self.deaf: set[str] = set()
        self.pool = ThreadPoolExecutor(16)
        self.far, near = {}, {}
        for name in TABLES:
            ours, theirs = socket.socketpair()
            near[name], self.far[name] = Link(ours), Link(theirs)
            threading.Thread(target=self.relay, args=(name,), daemon=True).start()
        self.ledger = Ledger(folder / "ledger.jsonl")
        hello = options.pop("hello", HELLO)
        try:
            self.engine = FlareEngine(near, hello, ledger=self.ledger, **options)
        except Exception:
            self.hang_up()
            raise
        self.fed = Federation(engine=self.engine)

    def opener(self, name, policy):
        return lambda hello: a_site(
            name,
            policy=policy,
            seed=hello.seed,
            secret=None if hello.reproducible else os.urandom(32),
        )

    def hang_up(self, *names):
        for name in names or self.far:
            self.far[name].close()

    def relay(self, name):
        while (frame := self.far[name].receive()) is not None:
            self.pool.submit(self.hand_on, frame)

    def hand_on(self, frame):
        if frame.name in self.deaf:
            return
        try:
            answer = self.hosts[frame.name].answer(frame.payload[SECONDS.size :])
            self.far[frame.name].send(Frame(frame.ticket, OK, frame.name, answer))
        except OSError:
            pass

    def close(self):
        self.engine.close()
        for host in self.hosts.values():
            host.close("the test ended")
        self.hang_up()
        self.pool.shutdown()


@pytest.fixture
def wire_up(tmp_path):
    made = []

    def make(**options):
        made.append(Wired(tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def wired(wire_up):
    return wire_up()


@pytest.fixture
def local():
    with Federation(*(Party(name, TABLES[name]) for name in TABLES), strict=True) as fed:
        yield fed


@pytest.fixture
def host(tmp_path):
    made = PartyHost("bank", lambda hello: a_site(), tmp_path)
    yield made
    made.close("the test ended")


@pytest.fixture
def no_rows():
    return Policy(refuse=frozenset({"statistic"}))
