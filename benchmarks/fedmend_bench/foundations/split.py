"""`fedmend bench split`: what it costs to train a network split over parties.

The same network, data, start and order of rows, (a) in one piece in plain PyTorch and (b) split
over 2 and 4 parties on the local engine, in one run. Rounds of (a) and (b) alternate and medians
are compared, because the machine's other work comes and goes; memory is measured in processes of
their own.

With `-o part=sealed`, end-to-end encrypted training beside training in the open (`sealed.py`).
"""

from __future__ import annotations

import itertools
import multiprocessing
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.federation import Federation, Party
from fedmend.federation.engines.local import LocalEngine
from fedmend.learn.optim import OptimizerSpec
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.parts import part_of
from fedmend.split.training import SplitNetwork, epoch_seed
from fedmend_bench.harness import Bar, BenchResult
from fedmend_bench.simulation import know, together

NAME = "split"
HELP = "split training over 2 and 4 parties beside the same network in one piece"

CLASSES = 4
PARTS = ("one-piece", "sealed")


@dataclass(frozen=True)
class Size:
    """A table and how it is trained on; `limit` is the bar on wall time with 4 parties."""

    rows: int
    columns: int
    batch: int
    limit: float


LARGE = Size(400_000, 54, 4096, 1.25)
SMALL = Size(20_000, 16, 200, 2.0)


def run(
    quick: bool = False, rounds: int = 5, epochs: int = 2, part: str = "one-piece"
) -> BenchResult:
    """Measure both sizes; `quick` takes a tenth of the large one and fewer rounds.

    part: "one-piece", or "sealed": what it costs to seal embeddings and gradients.
    """
    if part not in PARTS:
        raise ConfigError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
    if part == "sealed":
        from fedmend_bench.foundations.sealed import sealed_bars, sealed_rows

        told = sealed_rows(quick, 1 if quick else rounds, epochs)
        return BenchResult(NAME, told, sealed_bars(told))
    # Of ten steps an epoch: what comes besides the steps weighs more.
    sizes = [Size(40_000, 54, 4096, 1.5), Size(10_000, 16, 200, SMALL.limit)]
    rows: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for size in sizes if quick else [LARGE, SMALL]:
        for parties in (2, 4):
            row = _compare(size, parties, rounds=3 if quick else rounds, epochs=epochs)
            rows.append(row)
            name = f"{size.rows:,} x {size.columns}, batch {size.batch}, {parties} parties"
            if parties == 4:
                bars.append(Bar.at_most(f"wall time, {name}", row["ratio"], size.limit))
            bars.append(Bar.at_most(f"weights, float32, {name}", row["weights float32"], 1e-5))
            bars.append(Bar.at_most(f"weights, float64, {name}", row["weights float64"], 1e-10))
            bars.append(Bar.at_most(f"peak memory, {name}", row["memory ratio"], 2.0))
    return BenchResult(NAME, rows, bars)


def _compare(size: Size, parties: int, *, rounds: int, epochs: int) -> dict[str, Any]:
    alone: list[float] = []
    split: list[float] = []
    for _ in range(rounds):
        alone += _one_piece_seconds(size, parties, epochs)
        split += _split_seconds(size, parties, epochs)
    whole = _peak_memory(size, parties, split=False)
    torn = _peak_memory(size, parties, split=True)
    return {
        "rows": size.rows,
        "columns": size.columns,
        "batch": size.batch,
        "parties": parties,
        "one piece s/epoch": statistics.median(alone),
        "split s/epoch": statistics.median(split),
        "ratio": statistics.median(split) / statistics.median(alone),
        "weights float32": weight_difference(size, parties, "float32"),
        "weights float64": weight_difference(size, parties, "float64"),
        "one piece MB": whole,
        "split MB": torn,
        "memory ratio": torn / whole,
    }


# ---------------------------------------------------------------------------------- one piece


class OnePiece(nn.Module):
    """Bottoms on slices of one wide table, and a top on their joined outputs."""

    def __init__(self, widths: Sequence[int], hidden: int, embedding: int, top: int, out: int):
        super().__init__()
        self.widths = list(widths)
        self.bottoms = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, embedding))
            for width in widths
        )
        self.top = nn.Sequential(
            nn.Linear(embedding * len(widths), top), nn.ReLU(), nn.Linear(top, out)
        )

    def forward(self, x: Tensor) -> Tensor:
        pieces = x.split(self.widths, 1)
        joined = torch.cat([b(piece) for b, piece in zip(self.bottoms, pieces, strict=True)], 1)
        return self.top(torch.relu(joined))


def train(
    model: OnePiece,
    x: Tensor,
    y: Tensor,
    *,
    seeds: Sequence[int],
    batch_size: int,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
) -> list[float]:
    """Train one epoch per seed, in place; returns the seconds of every epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr, weight_decay=weight_decay, fused=True)
    seconds = []
    for seed in seeds:
        began = time.perf_counter()
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        for rows in order.split(batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(x.index_select(0, rows)), y.index_select(0, rows)).backward()
            optimizer.step()
        seconds.append(time.perf_counter() - began)
    return seconds


# ---------------------------------------------------------------------------------- the data


def make_table(size: Size, seed: int = 0) -> Table:
    """Numbers with something to learn in them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((size.rows, size.columns), dtype=np.float32)
    logits = values @ rng.standard_normal((size.columns, CLASSES), dtype=np.float32)
    frame = pd.DataFrame(values, columns=[f"x{index}" for index in range(size.columns)])
    frame["y"] = np.array(list("abcd"))[logits.argmax(1)]
    return Table(np.arange(size.rows), frame, label="y")


def make_federation(table: Table, parties: int, *, strict: bool = False) -> Federation:
    """The table's columns dealt out; all rows at all parties, in the same order."""
    pieces = np.array_split([name for name in table.names if name != "y"], parties)
    members = [
        Party(f"p{number}", table.select([*piece, "y"] if number == 0 else list(piece)))
        for number, piece in enumerate(pieces)
    ]
    fed = Federation(*members, strict=strict)
    know(fed, together(len(table)))
    return fed


def make_network(fed: Federation, size: Size, epochs: int, precision: str) -> SplitNetwork:
    settings = Settings(size.batch, OptimizerSpec("adam", 1e-3, 0.0), precision)
    config = SplitConfig(epochs=epochs, validation=0.0, settings=settings)
    return SplitNetwork(fed, parties=list(fed.names), label_party="p0", config=config)


def make_one_piece(fed: Federation, widths: list[int], precision: str) -> OnePiece:
    """The one-piece network with exactly the weights the parties will start from."""
    from fedmend.learn.nets import Bottom, BottomSpec, Top, TopSpec, initialise

    model = OnePiece(widths, 64, 32, 64, CLASSES)
    assert isinstance(fed.engine, LocalEngine)
    for bottom, width, site in zip(model.bottoms, widths, fed.engine.sites.values(), strict=True):
        fresh = initialise(Bottom(BottomSpec(width)), site.torch_generator("bottom 0", "cpu"))
        bottom.load_state_dict(_body(fresh.state_dict()))
    site = fed.engine.sites["p0"]
    spec = TopSpec((32,) * len(widths), out=CLASSES)
    top = initialise(Top(spec), site.torch_generator("top 0", "cpu"))
    model.top.load_state_dict(_body(top.state_dict()))
    return model.to(torch.float64 if precision == "float64" else torch.float32)


def one_piece_data(table: Table, precision: str) -> tuple[torch.Tensor, torch.Tensor]:
    encoded = Encoder(dtype=precision).fit(table).transform(table)
    targets = pd.Categorical(table.y, list("abcd")).codes.astype(np.int64)
    return torch.from_numpy(encoded.numeric), torch.from_numpy(targets)


def party_widths(size: Size, parties: int) -> list[int]:
    return [len(piece) for piece in np.array_split(np.arange(size.columns), parties)]


def _body(state: dict[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("body."): value for key, value in state.items()}


# ---------------------------------------------------------------------------------- measuring


def _one_piece_seconds(size: Size, parties: int, epochs: int) -> list[float]:
    table = make_table(size)
    x, y = one_piece_data(table, "float32")
    model = make_one_piece(make_federation(table, parties), party_widths(size, parties), "float32")
    seeds = [epoch_seed(0, 0, epoch) for epoch in range(1, epochs + 2)]
    return train(model, x, y, seeds=seeds, batch_size=size.batch)[1:]  # the first warms up


def _split_seconds(size: Size, parties: int, epochs: int) -> list[float]:
    fed = make_federation(make_table(size), parties)
    network = make_network(fed, size, epochs + 1, "float32")
    marks: list[float] = []
    network.fit([["aligned", size.rows]], progress=lambda *_: marks.append(time.perf_counter()))
    return [after - before for before, after in itertools.pairwise(marks)]


def weight_difference(size: Size, parties: int, precision: str) -> float:
    """The largest difference of a weight after one epoch from the same start."""
    table = make_table(size)
    fed = make_federation(table, parties)
    model = make_one_piece(fed, party_widths(size, parties), precision)
    x, y = one_piece_data(table, precision)
    train(model, x, y, seeds=[epoch_seed(0, 0, 1)], batch_size=size.batch)
    network = make_network(fed, size, 1, precision)
    network.fit([["aligned", size.rows]])
    assert isinstance(fed.engine, LocalEngine)
    largest = 0.0
    for bottom, site in zip(model.bottoms, fed.engine.sites.values(), strict=True):
        part = part_of(site, network.model)
        assert part.bottom is not None
        largest = max(largest, _largest(bottom, part.bottom.module.body))
        if part.top is not None:
            largest = max(largest, _largest(model.top, part.top.module.body))
    return largest


def _largest(one: torch.nn.Module, other: torch.nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def _peak_memory(size: Size, parties: int, *, split: bool) -> float:
    """Peak resident MB of a fresh process that makes the data and trains one epoch."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_train_and_report, args=(send, size, parties, split))
    process.start()
    send.close()
    try:
        return float(receive.recv())
    finally:
        process.join()


def _train_and_report(send: Any, size: Size, parties: int, split: bool) -> None:
    if split:
        _split_seconds(size, parties, 1)
    else:
        _one_piece_seconds(size, parties, 1)
    send.send(_peak_mb())


def _peak_mb() -> float:
    # ru_maxrss survives exec, so a child would report its parent's peak; VmHWM starts anew.
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
