"""What splitting costs on images: the network of `fedmend bench risa` beside itself in one piece.

Both train on random images of CIFAR-10's size, all rows known to both parties, with the same
augmentation, optimizer and precision; the median of several epochs is compared.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.learn.augment import draw_weak
from fedmend.learn.nets import Bottom, BottomSpec, Top, TopSpec
from fedmend.methods.vertical.vfl import VFL
from fedmend.split.config import Settings, resolve_device
from fedmend.split.features import PAD, Features
from fedmend_bench.risa.data import LABELS, PARTNER, Sides, tear
from fedmend_bench.risa.methods import Size, shared
from fedmend_bench.simulation import wait

EPOCHS = 4


def cost_rows(device: str, quick: bool = False) -> list[dict[str, Any]]:
    """Seconds of an epoch, split and in one piece."""
    rows = 400 if quick else 20_000 if device.startswith("cuda") else 2_000
    size = Size(True, rows, rows, EPOCHS, device)
    sides = _noise(rows)
    alone = one_piece_epochs(sides, size)
    split = split_epochs(sides, size)
    one, two = statistics.median(alone[1:]), statistics.median(split[1:])
    return [
        {
            "data": f"{rows:,} images, {size.device}",
            "method": "split beside one piece",
            "one piece s/epoch": one,
            "split s/epoch": two,
            "ratio": two / one,
        }
    ]


def _noise(rows: int) -> Sides:
    rng = np.random.default_rng(0)
    tables = {}
    for name in (LABELS, PARTNER):
        images = rng.integers(0, 256, (rows, 3, 32, 16), dtype=np.uint8)
        frame = {"y": rng.integers(0, 10, rows)} if name == LABELS else {}
        label = "y" if name == LABELS else None
        tables[name] = Table(
            np.arange(rows),
            frame,
            label=label,
            kinds={"y": "nominal"} if label else None,
            blocks={"image": images},
        )
    few = {name: table.take(np.arange(16)) for name, table in tables.items()}
    return Sides("noise", tables, few)


def split_epochs(sides: Sides, size: Size) -> list[float]:
    """Seconds of every epoch of VFL; the first warms up."""
    world = tear(sides, 1.0, 0, size.device)
    marks: list[float] = []

    def mark(*_: Any) -> None:
        wait(size.device)
        marks.append(time.perf_counter())

    VFL(**shared(size)).fit(world.fed, progress=mark)
    return [after - before for before, after in itertools.pairwise(marks)]


def one_piece_epochs(sides: Sides, size: Size) -> list[float]:
    """The same network, data and settings in plain PyTorch."""
    how = shared(size)
    device = resolve_device(size.device)
    settings = Settings(precision=how["precision"])
    bottoms, features = [], []
    for name in (LABELS, PARTNER):
        table = sides.train[name].features
        encoder = Encoder().fit(table)
        features.append(
            Features(encoder.transform(table), np.arange(len(table)), device, torch.float32)
        )
        spec = BottomSpec(
            0,
            (),
            tuple(encoder.block_shapes.values()),
            how["bottom"],
            how["embedding"],
            conv=how["conv"],
        )
        bottoms.append(Bottom(spec).to(device))
    top = Top(TopSpec((how["embedding"],) * 2, how["top"], 10)).to(device)
    modules = torch.nn.ModuleList([*bottoms, top]).train()
    optimizer = torch.optim.SGD(
        modules.parameters(), how["lr"], 0.9, weight_decay=how["weight_decay"], nesterov=True
    )
    y = torch.from_numpy(sides.train[LABELS].y.to_numpy().astype(np.int64)).to(device)
    generator = torch.Generator().manual_seed(0)
    seconds = []
    for _ in range(EPOCHS):
        wait(size.device)
        began = time.perf_counter()
        order = torch.randperm(len(y), generator=generator).to(device)
        draws = draw_weak(len(y), generator, PAD).to(device)
        for at in range(0, len(y), how["batch_size"]):
            rows, drawn = order[at : at + how["batch_size"]], draws[at : at + how["batch_size"]]
            optimizer.zero_grad()
            with settings.autocast(device):
                embeddings = [
                    bottom(own.batch(rows, drawn))
                    for bottom, own in zip(bottoms, features, strict=True)
                ]
                loss = F.cross_entropy(top(embeddings).float(), y.index_select(0, rows))
            loss.backward()
            optimizer.step()
        wait(size.device)
        seconds.append(time.perf_counter() - began)
    return seconds
