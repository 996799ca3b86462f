"""A real federation: server and two parties as processes, mutual TLS on loopback.

One is started for all tests of this folder; processes are ended by their ids.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

from fedmend.deploy.flare_run import execute_flare
from fedmend.deploy.processes import Daemon
from fedmend.deploy.provision import Kits, provision
from fedmend.errors import PrivacyWarning
from fedmend.federation import Federation
from fedmend.flow import Listener, execute, plan_of
from fedmend.flow.config import load_config
from fedmend.serve.watching import WatchServer

HERE = Path(__file__).parent
PARTIES = """
[[party]]
name = "bank"
data = "bank.csv"
id = "id"
label = "y"

[[party]]
name = "telco"
data = "telco.csv"
id = "id"
"""
TOML = (
    PARTIES
    + """
[align]
order = "seeded"

[[method]]
name = "vfl"
epochs = {epochs}
{seal}

[flare]
port = {port}
wait_seconds = 60
stall_seconds = {stall}
on_absent = "{on_absent}"
"""
)
TWO_LABELLERS = PARTIES + 'label = "y"\n'
SHOP = """
[[party]]
name = "shop"
data = "shop.csv"
id = "id"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_tables(folder: Path) -> None:
    rng = np.random.default_rng(7)
    people, x = np.arange(320), rng.normal(size=(320, 4))
    x[:, 2:] += x[:, :2]
    y = np.where(x.sum(1) + 0.3 * rng.normal(size=320) > 0, "yes", "no")
    bank = pd.DataFrame({"id": people, "a": x[:, 0], "b": x[:, 1], "y": y})
    telco = pd.DataFrame({"id": people, "c": x[:, 2], "d": x[:, 3]})
    bank.iloc[:300].to_csv(folder / "bank.csv", index=False)
    telco.iloc[20:].to_csv(folder / "telco.csv", index=False)
    shop = pd.DataFrame({"id": people, "e": x[:, 3] - x[:, 0] + rng.normal(size=320)})
    shop.iloc[10:310].to_csv(folder / "shop.csv", index=False)


@contextlib.contextmanager
def told_what_it_costs():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "reproducible=True", PrivacyWarning)
        yield


class World:
    """Server and parties of one federation, and how to run something on them."""

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...] = ("bank", "telco"),
        *,
        tables: Callable[[Path], None] = write_tables,
        toml: str | None = None,
        probe: bool = True,
    ) -> None:
        self.folder = folder
        self.toml = toml
        self.names = names
        self.port = free_port()
        tables(folder)
        self.kits = provision(self.config())
        for name in names:
            path = self.kits.party(name) / "party.toml"
            modules = 'modules = ["machine_probe"]\n' if probe else ""
            # These runs are compared with runs in one process; the tables are nobody's secret.
            path.write_text(f"threads = 1\n{modules}{path.read_text()}reproducible = true\n")
        self.server = Daemon(self.kits.server)
        self.parties = {name: Daemon(self.kits.party(name)) for name in names}

    def config(
        self, *, epochs: int = 2, on_absent: str = "stop", stall: float = 10.0, seal: str = ""
    ):
        path = self.folder / "federation.toml"
        told = {"epochs": epochs, "stall": stall, "on_absent": on_absent, "seal": seal}
        path.write_text(
            "[run]\nreproducible = true\n" + self.toml.format(port=self.port)
            if self.toml
            else "[run]\nreproducible = true\n"
            + TOML.format(port=self.port, **told)
            + (SHOP if "shop" in self.names else "")
        )
        return load_config(path)

    def up(self) -> None:
        """Start whatever is not running."""
        for daemon in (self.server, *self.parties.values()):
            if daemon.running() is None:
                daemon.start(owned=True)

    def down(self) -> None:
        for daemon in (*self.parties.values(), self.server):
            daemon.stop()

    def run(self, name: str, *, resume=False, listener=None, **options):
        """A run over the machines, into a folder of this name."""
        self.up()
        config = self.config(**options)
        with told_what_it_costs():
            return execute_flare(config, self.folder / name, resume=resume, listener=listener)

    def run_here(self, name: str, **options):
        """The same run with all parties in this process."""
        return execute(plan_of(self.config(**options)), self.folder / name)

    def open(self, run: str, **options):
        self.up()
        options = {"reproducible": True, "stall_seconds": 10.0} | options
        with told_what_it_costs():
            return Federation.over_flare(self.kits.folder, run=run, **options)

    def job_process(self, name: str):
        """The process in which a party's job runs now."""
        import psutil

        child = psutil.Process(self.parties[name].running().child)
        for process in child.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it may be ending just now
                if "worker_process" in " ".join(process.cmdline()):
                    return process
        raise AssertionError(f"{name} runs no job")

    def events(self, name: str) -> str:
        return (self.kits.party(name) / "events.jsonl").read_text()


class Strike(Listener):
    """Does something once, at a given epoch of the first training."""

    def __init__(self, epoch: int, blow) -> None:
        self.epoch, self.blow, self.struck = epoch, blow, False
        self.stages: list[str] = []

    def stage(self, words):
        self.stages.append(words)

    def progress(self, title, done, total, facts=None):
        if title == "epochs" and done >= self.epoch and not self.struck:
            self.struck = True
            self.blow()


@pytest.fixture(scope="session")
def probe_path():
    """Parties find the tests' worker on their path."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{before}".rstrip(os.pathsep)
    yield
    os.environ["PYTHONPATH"] = before


@contextlib.contextmanager
def running(folder: Path, *args, **options):
    """A world whose processes run."""
    made = World(folder, *args, **options)
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="session")
def world(tmp_path_factory, probe_path):
    with running(tmp_path_factory.mktemp("world")) as made:
        yield made


class Look(Listener):
    """Looks at the live page once, while the machines train."""

    def __init__(self, run):
        self.run, self.state, self.page = run, None, ""

    def progress(self, title, done, total, facts=None):
        if title == "epochs" and self.state is None:
            with WatchServer(self.run) as server:
                self.state, self.page = server.state(), server.page()


@pytest.fixture(scope="session")
def first(world):
    """The one run over machines that all tests look at which need no other."""
    look = Look(world.folder / "first")
    record = world.run("first", listener=look)
    return SimpleNamespace(run=world.folder / "first", record=record, look=look)


@pytest.fixture
def three(tmp_path, probe_path):
    """A federation of three, for one test."""
    with running(tmp_path, ("bank", "telco", "shop")) as made:
        yield made


@pytest.fixture
def fresh_world(world):
    """The world, put right again after a fault."""
    yield world
    world.up()


class Page:
    """What somebody does in a browser: read, and press what is there."""

    def __init__(self, browser, patience: float = 60.0) -> None:
        self.browser, self._patience = browser, patience

    def _until(self, done) -> None:
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver.support.wait import WebDriverWait

        # A page may be exchanged, or a part of it, while it is looked at: no such element, a
        # stale one, or "does not belong to the document", which has no name of its own.
        WebDriverWait(self.browser, self._patience, 0.2, [WebDriverException]).until(done)

    def _press(self, how: str, what: str) -> None:
        from selenium.webdriver.common.keys import Keys

        # By the keyboard: a pointer would have to wait until the page has scrolled.
        self._until(lambda page: page.find_element(how, what).send_keys(Keys.ENTER) is None)

    def says(self, words: str) -> None:
        self._until(lambda page: words in page.find_element("tag name", "body").text)

    def click(self, words: str) -> None:
        self._press("xpath", f"//button[normalize-space()='{words}']")

    def go(self, page: str) -> None:
        self._press("link text", page)


def wait_until(met, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


__all__ = ["Kits", "Page", "Strike", "World", "wait_until"]
