"""K-means in torch, reproducible from a generator, on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def k_means(points: Tensor, clusters: int, generator: torch.Generator, rounds: int = 50) -> Tensor:
    """The cluster of every point: k-means++ starts, then Lloyd's rounds until nothing moves.

    **Shape** points [n, d]; result [n], fewer clusters where there are fewer distinct points.
    """
    points = points.float()
    centres = _spread_out(points, clusters, generator)
    chosen = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    for _ in range(rounds):
        nearest = torch.cdist(points, centres).argmin(1)
        if torch.equal(nearest, chosen):
            break
        chosen = nearest
        sums = torch.zeros_like(centres).index_add_(0, chosen, points)
        counts = torch.bincount(chosen, minlength=len(centres))
        moved = sums / counts.clamp_min(1)[:, None]
        centres = torch.where(counts[:, None] > 0, moved, centres)
    return chosen


def _spread_out(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """k-means++: each further centre is a point, likelier the further it is from all before."""
    first = int(torch.randint(len(points), (), generator=generator))
    centres = [points[first]]
    distance = (points - centres[0]).square().sum(1)
    for _ in range(clusters - 1):
        total = distance.cumsum(0)
        if not total[-1] > 0:
            break
        drawn = torch.rand((), generator=generator).to(total.device) * total[-1]
        at = int(torch.searchsorted(total, drawn).clamp_max(len(points) - 1))
        centres.append(points[at])
        distance = torch.minimum(distance, (points - points[at]).square().sum(1))
    return torch.stack(centres)
