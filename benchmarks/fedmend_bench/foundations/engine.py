"""`fedmend bench engine`: what it costs to have the parties on machines of their own.

Server and parties run as processes on this machine, over mutual TLS on loopback, set up by the
same commands a user types. The same calls and the same training run on the local engine beside
it. Bytes on the wire are the kernel's count of the server's connections.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.table import Table
from fedmend.errors import PrivacyWarning
from fedmend.federation import Federation, Party, Worker, exposed
from fedmend.methods.vertical.vfl import VFL
from fedmend.secure.align import align
from fedmend_bench.foundations.sockets import carried_bytes
from fedmend_bench.harness import Bar, BenchResult

NAME = "engine"
HELP = "parties in processes of their own: latency, throughput and a whole training beside local"

BATCH, WIDTH = 256, 32
MEGABYTE = 1 << 20


class EchoWorker(Worker):
    """Takes a gradient and gives an embedding of the same size, as a step of split training."""

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def step(self, gradient: Any) -> Any:
        return gradient


def run(
    quick: bool = False, steps: int = 400, rows: int = 20_000, epochs: int = 10, seed: int = 0
) -> BenchResult:
    """Measure both engines. `quick`: fewer steps, and a training on bundled digits."""
    steps = 60 if quick else steps
    whole, name = _data(quick, rows)
    names = ["p0", "p1", "p2"]
    shares = {party: _share(whole, number, 3) for number, party in enumerate(names)}
    table: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fedmend-bench-") as folder:
        for parties in (2, 3):
            with _machines(Path(folder) / str(parties), names[:parties], shares) as (kits, port):
                here = _local(names[:parties], shares, seed)
                with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
                    # Both engines draw the same, so that what they find can be compared.
                    over = Federation.over_flare(
                        kits,
                        run="bench",
                        methods=("vfl",),
                        seed=seed,
                        reproducible=True,
                        wait_seconds=120.0,
                    )
                for engine, fed in (("local", here), ("flare", over)):
                    with fed:
                        table += _calls(engine, fed, steps, throughput=parties == 2)
                        if parties == 2:
                            table.append(_training(engine, fed, port, name, epochs, seed))
    return BenchResult(NAME, table, _bars(table))


def _bars(table: Sequence[dict[str, Any]]) -> list[Bar]:
    step = next(
        row for row in table if (row["engine"], row["what"]) == ("flare", "step, 2 parties")
    )
    local, flare = (row for row in table if "accuracy" in row)
    return [
        Bar.at_most("median step, 2 parties, ms", step["median ms"], 25.0),
        Bar.at_most("bytes on the wire over bytes of tensors", flare["wire over tensors"], 1.05),
        Bar.at_most("|accuracy − local|", abs(flare["accuracy"] - local["accuracy"]), 1e-6),
        Bar.at_most("|log loss − local|", abs(flare["log loss"] - local["log loss"]), 1e-6),
    ]


# ---------------------------------------------------------------- what is measured


def _calls(engine: str, fed: Federation, steps: int, *, throughput: bool) -> list[dict[str, Any]]:
    """Latency of a step at all parties, and megabytes a second to one and back."""
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(BATCH, WIDTH)).astype(np.float32)
    found = []
    with fed.workers(EchoWorker) as workers:
        for _ in range(10):
            workers.step(batch)
        seconds = [_timed(workers.step, batch) for _ in range(steps)]
        found.append(
            {"engine": engine, "what": f"step, {len(fed.names)} parties", **_milliseconds(seconds)}
        )
        for size, times in ((1, 20), (32, 4)) if throughput else ():
            block = rng.normal(size=size * MEGABYTE // 4).astype(np.float32)
            seconds = [_timed(workers[fed.names[0]].step, block) for _ in range(times)]
            row = {"engine": engine, "what": f"{size} MB there and back"}
            rate = 2 * size / float(np.median(seconds))
            found.append(row | _milliseconds(seconds) | {"MB/s": rate})
    return found


def _timed(call: Callable[[Any], Any], value: Any) -> float:
    began = time.perf_counter()
    call(value)
    return time.perf_counter() - began


def _milliseconds(seconds: Sequence[float]) -> dict[str, Any]:
    return {
        "times": len(seconds),
        "median ms": float(np.median(seconds)) * 1e3,
        "p95 ms": float(np.percentile(seconds, 95)) * 1e3,
    }


def _training(
    engine: str, fed: Federation, port: int, data: str, epochs: int, seed: int
) -> dict[str, Any]:
    """Split training as a user does it; the tensors' bytes are the ledger's."""
    for view in (fed, fed.on("test")):
        align(view, mode="same-order")
    before, crossed = carried_bytes(port), _tensor_bytes(fed)
    began = time.perf_counter()
    model = VFL(
        epochs=epochs, batch_size=BATCH, embedding=WIDTH, patience=None, validation=0.0, seed=seed
    ).fit(fed)
    seconds = time.perf_counter() - began
    tensors, wire = _tensor_bytes(fed) - crossed, carried_bytes(port) - before
    scores = model.evaluate(fed.on("test"))
    row = {
        "engine": engine,
        "what": f"VFL on {data}, {epochs} epochs",
        "seconds": seconds,
        "accuracy": scores["accuracy"],
        "log loss": scores["log_loss"],
        "MB of tensors": tensors / MEGABYTE,
    }
    if engine == "flare":
        row |= {"MB on the wire": wire / MEGABYTE, "wire over tensors": wire / tensors}
    return row


def _tensor_bytes(fed: Federation) -> int:
    kinds = ("embedding", "gradient")
    return sum(entry.total_bytes for entry in fed.ledger.entries() if entry.kind in kinds)


# ---------------------------------------------------------------- who takes part


def _data(quick: bool, rows: int) -> tuple[Table, str]:
    from fedmend_bench import datasets

    name = "digits" if quick or not datasets.present("letter") else "letter"
    table = datasets.load(name)
    picked = np.random.default_rng(0).permutation(len(table))[:rows]
    return table.take(picked), name


def _share(whole: Table, number: int, parties: int) -> pd.DataFrame:
    """A party's columns of all rows, under a common id; the first has the label."""
    names = whole.feature_names[number::parties]
    frame = whole.frame[names].copy()
    frame.insert(0, "id", np.arange(len(frame)))
    if number == 0:
        frame["label"] = whole.y.to_numpy()
    return frame


def _local(names: Sequence[str], shares: dict[str, pd.DataFrame], seed: int) -> Federation:
    parties = []
    for name in names:
        frame = shares[name]
        label = "label" if "label" in frame else None
        table = Table.from_frame(frame, id="id", label=label)
        aside = np.arange(len(table)) % 5 == 0
        parties.append(Party(name, table.take(~aside), test=table.take(aside)))
    return Federation(*parties, seed=seed)


@contextlib.contextmanager
def _machines(
    folder: Path, names: Sequence[str], shares: dict[str, pd.DataFrame]
) -> Iterator[tuple[Path, int]]:
    """Server and parties as processes, by the commands of docs/deploy.md; their kits and port."""
    folder.mkdir()
    port = _free_port()
    lines = [f"[flare]\nport = {port}\n"]
    for name in names:
        frame = shares[name]
        aside = np.arange(len(frame)) % 5 == 0
        frame[~aside].to_parquet(folder / f"{name}.parquet", index=False)
        frame[aside].to_parquet(folder / f"{name}-test.parquet", index=False)
        label = '\nlabel = "label"' if "label" in frame else ""
        lines.append(
            f'[[party]]\nname = "{name}"\ndata = "{name}.parquet"\ntest = "{name}-test.parquet"\n'
            f'id = "id"{label}\n[party.policy]\nreproducible = true\n'
        )
    (folder / "federation.toml").write_text("\n".join(lines), encoding="utf-8")
    _command("provision", str(folder / "federation.toml"))
    kits = folder / "kits"
    for name in names:
        path = kits / name / "party.toml"
        own = f"threads = 1\nmodules = {json.dumps([__name__])}\n"
        path.write_text(own + path.read_text(encoding="utf-8"), encoding="utf-8")
    try:
        _command("server", "start", str(kits))
        for name in names:
            _command("party", "start", str(kits / name), "--detach")
        yield kits, port
    finally:
        # Whoever has not started yet has nothing to stop, and the others are stopped all the same.
        for name in names:
            _command("party", "stop", str(kits / name), check=False)
        _command("server", "stop", str(kits), check=False)


def _command(*words: str, check: bool = True) -> None:
    command = [sys.executable, "-m", "fedmend", *words]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=check, env=one_thread, stdout=subprocess.DEVNULL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
