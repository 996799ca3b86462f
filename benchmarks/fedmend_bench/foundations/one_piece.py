"""The same network in one piece: plain PyTorch, one process, one optimizer, no parties.

What split training is measured against, and what its weights are compared with.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
