"""`fedmend bench serve`: answers over machines, their latency, and what happens when partners die.

Label party and partners are processes of their own on this machine, with kits of
`fedmend provision` and mutual TLS on loopback; those who ask are threads of this process. Beside
it the same model in one process, and a bare request to the same server.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend.errors import FedmendError
from fedmend.serve import Client
from fedmend_bench.harness import Bar, BenchResult

NAME = "serve"
HELP = "answers over machines: latency, rows a second, partners slow, dead and back"

ASKERS = (1, 8, 64)
A_SECOND = 100  # of those who come when they like
BATCH = 1000


def run(
    quick: bool = False,
    people: int = 4000,
    requests: int = 2000,
    seconds: float = 20.0,
    killed: int = 2000,
    many: int = 20_000,
    parties: int = 2,
    method: str = "vfl",
    seed: int = 0,
) -> BenchResult:
    """Serve one model in both ways. `quick`: fewer people and requests.

    seconds, killed: how long partners are killed and started again, and how many are asked about
    at least meanwhile. many: requests over which the label party's memory is looked at.
    """
    if quick:
        people, requests, seconds, killed, many = 400, 80, 3.0, 0, 200
    table: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fedmend-bench-") as scratch:
        folder = Path(scratch)
        names = ["bank", "telco", "shop"][:parties]
        _make(folder, names, people, method, seed)
        shared = np.arange(people // 10, people - people // 10)
        with _process("serve", folder / "run", "--method", method) as (near, alone):
            table += _asked("one process", near, shared, requests, [alone])
        with _world(folder, names) as world:
            table += _asked(f"{parties} parties", world.address, shared, requests, world.all)
            table.append(_killed(world, shared, seconds, killed))
            table.append(_grown(world, shared, many))
    return BenchResult(NAME, table, _bars(table, parties, quick))


def _bars(table: Sequence[dict[str, Any]], parties: int, quick: bool) -> list[Bar]:
    """Those of `quick` hold beside other work, too: what a clock says of 80 requests is its own."""
    rows = {(row.get("where"), row["what"]): row for row in table}
    eight = rows[f"{parties} parties", "1 row, 8 askers"]
    many = rows[f"{parties} parties", f"{BATCH} rows, 1 asker"]
    kills = rows[None, "partners killed"]
    timed = [
        Bar.at_most("p50, 1 row, 8 askers, ms", eight["p50 ms"], 15.0),
        Bar.at_most("p99, 1 row, 8 askers, ms", eight["p99 ms"], 50.0),
    ]
    if quick:
        timed = [Bar.at_most("CPU ms a request, 8 askers", eight["CPU ms"], 4.0)]
    return [
        *timed,
        Bar.at_least("rows a second in batches", many["rows/s"], 1000.0 if quick else 5000.0),
        Bar.at_most("requests without an answer during kills", kills["unanswered"], 0),
    ]


# ---------------------------------------------------------------- what is measured


def _asked(
    where: str,
    address: str,
    people: np.ndarray,
    requests: int,
    processes: Sequence[subprocess.Popen[str]],
) -> list[dict[str, Any]]:
    """CPU ms: of all these processes together, for each request; what load cannot change."""
    found = []
    with Client(address) as ask:
        for _ in range(20):
            ask(people[:1].tolist())
        bare = [_timed(ask.health) for _ in range(min(requests, 300))]
        found.append({"where": where, "what": "bare HTTP", **_milliseconds(bare)})
    rng = np.random.default_rng(0)
    crowds: list[tuple[str, int, np.ndarray | None]] = [
        (f"1 row, {askers} asker{'s' if askers > 1 else ''}", askers, None) for askers in ASKERS
    ]
    came = np.cumsum(rng.exponential(1 / A_SECOND, requests))
    crowds.append((f"1 row, {A_SECOND} a second at random", ASKERS[-1], came))
    for what, askers, arrivals in crowds:
        began = _cpu(processes)
        spent, outcomes = _crowd(address, people, askers, requests, arrivals=arrivals)
        busy = 1e3 * (_cpu(processes) - began) / len(spent)
        row = {"where": where, "what": what}
        more = {"CPU ms": busy, "partial": outcomes["partial"]}
        found.append(row | _milliseconds(spent) | more)
    with Client(address) as ask:
        batches = [rng.choice(people, BATCH).tolist() for _ in range(max(4, requests // 100))]
        spent = [_timed(partial(ask, batch, seconds=5.0)) for batch in batches]
    row = {"where": where, "what": f"{BATCH} rows, 1 asker", **_milliseconds(spent)}
    found.append(row | {"rows/s": BATCH / float(np.median(spent))})
    return found


def _crowd(
    address: str,
    people: np.ndarray,
    askers: int,
    requests: int,
    until: Callable[[], bool] | None = None,
    arrivals: np.ndarray | None = None,
) -> tuple[list[float], Counter[str]]:
    """Each of so many ask about one person after the other; with `until`, until that is so.

    arrivals: the seconds at which a request comes, whether others are answered or not; one that
    finds none of the askers free has waited since then.
    """
    spent: list[float] = []
    outcomes: Counter[str] = Counter()
    numbers = itertools.count()
    start = time.perf_counter()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with Client(address) as ask:
            while (number := next(numbers)) < requests if until is None else not until():
                began = time.perf_counter()
                if arrivals is not None:
                    time.sleep(max(0.0, start + arrivals[number] - began))
                    began = start + arrivals[number]
                try:
                    (row,) = ask([int(rng.choice(people))])
                    missing = {why for why in row["absent"].values() if why != "not known"}
                    outcome = "partial" if missing else "complete"
                except (FedmendError, OSError) as error:
                    outcome = f"unanswered ({type(error).__name__})"
                spent.append(time.perf_counter() - began)
                outcomes[outcome] += 1

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(askers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return spent, outcomes


def _grown(world: _World, people: np.ndarray, requests: int) -> dict[str, Any]:
    """The label party's memory after a tenth of so many requests of 64 askers, and after all."""
    row: dict[str, Any] = {"what": f"memory over {requests:,} requests"}
    _crowd(world.address, people, ASKERS[-1], requests // 10)
    row["MB"] = _resident(world.server)
    spent, outcomes = _crowd(world.address, people, ASKERS[-1], requests - requests // 10)
    return row | {"MB after": _resident(world.server)} | _milliseconds(spent) | _told(outcomes)


def _killed(world: _World, people: np.ndarray, seconds: float, least: int) -> dict[str, Any]:
    """Eight ask while the first partner is stopped, killed and started again, in turns."""
    over, asked = threading.Event(), [0]

    def enough() -> bool:
        asked[0] += 1
        return over.is_set()

    result: list[Any] = []
    crowd = threading.Thread(
        target=lambda: result.append(_crowd(world.address, people, 8, 0, enough))
    )
    crowd.start()
    kills, deadline = 0, time.monotonic() + seconds
    try:
        while time.monotonic() < deadline or not kills or asked[0] < least:
            time.sleep(1.0)
            world.slow(0.7)
            time.sleep(0.5)
            world.restart()
            kills += 1
        _wait_for(world)
        time.sleep(1.0)
    finally:
        over.set()
        crowd.join()
    spent, outcomes = result[0]
    return {"what": "partners killed", "kills": kills, **_told(outcomes), **_milliseconds(spent)}


def _told(outcomes: Counter[str]) -> dict[str, int]:
    lost = sum(count for outcome, count in outcomes.items() if outcome.startswith("unanswered"))
    return {"complete": outcomes["complete"], "partial": outcomes["partial"], "unanswered": lost}


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _milliseconds(spent: Sequence[float]) -> dict[str, Any]:
    low, high, worst = (float(np.quantile(spent, share)) * 1e3 for share in (0.5, 0.99, 1.0))
    return {"times": len(spent), "p50 ms": low, "p99 ms": high, "max ms": worst}


def _cpu(processes: Sequence[subprocess.Popen[str]]) -> float:
    ticks = 0
    for process in processes:
        with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
            ticks += sum(int(each) for each in file.read().rpartition(")")[2].split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident(process: subprocess.Popen[str]) -> float:
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


# ---------------------------------------------------------------- who takes part


def _make(folder: Path, names: list[str], people: int, method: str, seed: int) -> None:
    """A run of these parties in one process, and their kits with the parts of its model."""
    from fedmend.deploy.provision import provision
    from fedmend.flow import execute, plan_of
    from fedmend.flow.config import load_config
    from fedmend.serve.models import adopt

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(people, 6 * len(names)))
    y = np.where(x.sum(1) + rng.normal(size=people) > 0, "yes", "no")
    lines = ['[run]\nleave_out = ["report"]\n']
    for number, name in enumerate(names):
        own = x[:, 6 * number : 6 * number + 6]
        frame = pd.DataFrame(own, columns=[f"{name}{at}" for at in range(6)])
        frame.insert(0, "id", np.arange(people))
        if number == 0:
            frame["y"] = y
        # A tenth of everybody is the label party's alone, and a tenth the partners'.
        ends = (0, people - people // 10) if number == 0 else (people // 10, people)
        frame.iloc[slice(*ends)].to_csv(folder / f"{name}.csv", index=False)
        label = 'label = "y"\n' if number == 0 else ""
        lines.append(f'[[party]]\nname = "{name}"\ndata = "{name}.csv"\nid = "id"\n{label}')
    length = "trees = 50" if "boosting" in method else "epochs = 3"
    lines.append(f'[[method]]\nname = "{method}"\n{length}\n')
    (folder / "federation.toml").write_text("\n".join(lines))
    config = load_config(folder / "federation.toml")
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        execute(plan_of(config), folder / "run")
        kits = provision(config)
        for name in names:
            adopt(kits.party(name), folder / "run", None)


@contextlib.contextmanager
def _process(*words: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A service of fedmend as a process, and where it answers; it is ended by its number."""
    process, address = _started(*words)
    try:
        yield address, process
    finally:
        _end(process)


def _started(*words: object) -> tuple[subprocess.Popen[str], str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmend", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    told = process.stdout.readline().split()
    if not told:
        raise FedmendError(f"fedmend {' '.join(map(str, words))} did not start")
    return process, next(word for word in told if ":" in word)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


class _World:
    """Partners and the label party, each a process."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.kits = folder / "kits"
        self._partners: dict[str, tuple[subprocess.Popen[str], str]] = {}
        for name in names[1:]:
            self._partners[name] = _started(
                "party", "serve", self.kits / name, "--listen", "127.0.0.1:0"
            )
        words = [
            word
            for name, (_, at) in self._partners.items()
            for word in ("--partner", f"{name}={at}")
        ]
        self.server, self.address = _started("serve", self.kits / names[0], *words)

    @property
    def all(self) -> list[subprocess.Popen[str]]:
        return [self.server, *(process for process, _ in self._partners.values())]

    def slow(self, seconds: float) -> None:
        process, _ = next(iter(self._partners.values()))
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        name, (process, at) = next(iter(self._partners.items()))
        _end(process)
        words = ("party", "serve", self.kits / name, "--listen", at)
        self._partners[name] = _started(*words)

    def close(self) -> None:
        _end(self.server)
        for process, _ in self._partners.values():
            _end(process)


@contextlib.contextmanager
def _world(folder: Path, names: list[str]) -> Iterator[_World]:
    world = _World(folder, names)
    try:
        _wait_for(world)
        yield world
    finally:
        world.close()


def _wait_for(world: _World, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    with Client(world.address) as ask:
        while set(ask.health()["partners"].values()) != {"there"}:
            if time.monotonic() > until:
                raise FedmendError(f"not all are there: {ask.health()}")
            time.sleep(0.1)
