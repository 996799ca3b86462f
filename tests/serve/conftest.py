"""Runs that all tests of predictions share, and none changes; servers to ask."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config


def people(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    x[:, 3] += x[:, 0]
    city = rng.choice(["Ulm", "Bonn", "Kiel"], n)
    signal = x[:, 0] + x[:, 1] + x[:, 3] + (city == "Ulm")
    y = np.where(signal > np.median(signal), "yes", "no")
    frame = pd.DataFrame(x, columns=list("abcde")).assign(city=city, y=y)
    frame.insert(0, "id", np.arange(n) + 1000 * seed)
    return frame


def run_of(folder: Path, tables: dict[str, pd.DataFrame], methods: dict[str, str], **more) -> Path:
    """A finished run of these tables; who has a column y labels."""
    lines = {"leave_out": ["report"], **more.pop("run", {})}
    text = "[run]\n" + "".join(f"{key} = {value!r}\n" for key, value in lines.items())
    text += "".join(f"[{table}]\n{content}\n" for table, content in more.items())
    for name, frame in tables.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
        label = 'label = "y"\n' if "y" in frame else ""
        text += f'[[party]]\nname = "{name}"\ndata = "{name}.csv"\nid = "id"\n{label}'
    text += "".join(f'[[method]]\nname = "{name}"\n{params}\n' for name, params in methods.items())
    config = folder / "federation.toml"
    config.write_text(text)
    execute(plan_of(load_config(config)), folder / "run")
    return folder / "run"


SHORT = "epochs = 1"
VERTICAL = {
    "local": SHORT,
    "local-trees": "trees = 4",
    "boosting": "trees = 4",
    "vfl": SHORT,
    "local-vfl": SHORT,
    "random-match": SHORT,
    "ssl-vfl": f"{SHORT}\npretrain_epochs = 1",
    "sfhtl": f"{SHORT}\npretrain_epochs = 1",
    "fedcvt": SHORT,
    "few-shot-vfl": f"{SHORT}\nrounds = 1\nlocal_updates = 2",
    "risa": SHORT,
    "absent-partner": SHORT,
    "clean": SHORT,
}
ANNOTATED = ("inc", "majority", "dawid-skene", "random-labeller")
HORIZONTAL = ("sage", "fedavg")
THREE = ("vfl", "risa")


@pytest.fixture(scope="session")
def vertical(tmp_path_factory) -> Path:
    """Every vertical method of one label party, on two parties that share 120 of 200 people."""
    frame = people(200, 1)
    tables = {
        "bank": frame[["id", "a", "b", "city", "y"]].iloc[:160],
        "telco": frame[["id", "c", "d", "e"]].iloc[40:],
    }
    folder = tmp_path_factory.mktemp("vertical")
    return run_of(folder, tables, VERTICAL, predict='alone = ["telco"]')


@pytest.fixture(scope="session")
def annotated(tmp_path_factory) -> Path:
    """Three annotators, one of them without columns, and every method for them."""
    frame = people(160, 2)
    rng = np.random.default_rng(0)
    tables = {}
    for name, columns, share in (
        ("ward", ["a", "b"], 0.1),
        ("clinic", ["c", "d"], 0.2),
        ("archive", [], 0.3),
    ):
        wrong = rng.random(len(frame)) < share
        said = np.where(wrong, np.where(frame["y"] == "no", "yes", "no"), frame["y"])
        tables[name] = frame[["id", *columns]].assign(y=said)
    methods = dict.fromkeys(ANNOTATED, f'{SHORT}\nsecure = "masks"')
    folder = tmp_path_factory.mktemp("annotated")
    return run_of(folder, tables, methods, predict='alone = ["ward", "clinic"]')


@pytest.fixture(scope="session")
def horizontal(tmp_path_factory) -> Path:
    """Two parties with the same columns, and methods of rounds."""
    tables = {name: people(120, 3 + number) for number, name in enumerate(("north", "south"))}
    methods = dict.fromkeys(HORIZONTAL, "rounds = 2\nepochs = 1")
    folder = tmp_path_factory.mktemp("horizontal")
    shape = {"shape": "horizontal"}
    return run_of(folder, tables, methods, run=shape, predict='alone = ["south"]')


@pytest.fixture(scope="session")
def three(tmp_path_factory) -> Path:
    """Three parties with columns of their own."""
    frame = people(150, 5)
    tables = {
        "bank": frame[["id", "a", "b", "y"]],
        "telco": frame[["id", "c", "d"]],
        "shop": frame[["id", "e", "city"]],
    }
    return run_of(tmp_path_factory.mktemp("three"), tables, dict.fromkeys(THREE, SHORT))


@contextmanager
def serving(server):
    """A server that answers in a thread of its own."""
    with server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


class SlowLink:
    """Carries bytes to an address and back: each `delay` seconds late, `rate` of them a second."""

    def __init__(self, address, delay=0.0, rate=float("inf")):
        self.delay, self.rate, self.carried = delay, rate, 0
        host, port = address.split(":")
        self._there, self._ends = (host, int(port)), []
        self._ears = socket.create_server(("127.0.0.1", 0))
        self.port = self._ears.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self):
        with suppress(OSError):
            while True:
                near, _ = self._ears.accept()
                far = socket.create_connection(self._there)
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    way = queue.SimpleQueue()
                    for carry, end in ((self._in, one), (self._out, other)):
                        threading.Thread(target=carry, args=(end, way), daemon=True).start()

    def _in(self, end, way):
        piece = b"?"
        while piece:
            try:
                piece = end.recv(1 << 14)
            except OSError:
                piece = b""
            way.put((time.monotonic() + self.delay, piece))

    def _out(self, end, way):
        with suppress(OSError):
            while True:
                due, piece = way.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not piece:  # the other side has gone
                    return end.shutdown(socket.SHUT_RDWR)
                end.sendall(piece)
                self.carried += len(piece)
                time.sleep(len(piece) / self.rate)

    def close(self):
        for each in (self._ears, *self._ends):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
