"""Conditioning by search, for generators that cannot be told what is known.

Many rows are generated freely; each wanted row takes the one whose known columns come closest. An
approximation, and an honest one: it is exact in the limit of many candidates, and with few it
errs towards rows that are merely similar in the known columns.
"""

from __future__ import annotations

import numpy as np
import torch

from fedmend.generate.encoder import Encoded, Encoder

__all__ = ["nearest_rows"]

_CELLS = 20_000_000


def nearest_rows(
    pool: torch.Tensor, known: Encoded, encoder: Encoder, generator: torch.Generator, among: int = 5
) -> torch.Tensor:
    """For every known row one of the ``among`` nearest rows of ``pool``, drawn at random.

    The distance counts observed columns only: half the squared difference of a scalar, and 1 for
    a wrong category. **Shape**: pool (m, width), known (n, width) -> (n, width)
    """
    device = pool.device
    scale = np.array([1.0 if onehot else 2.0 for onehot in _onehot(encoder)])
    weight = torch.from_numpy((encoder.spread(known.observed) / scale).astype(np.float32))
    values = torch.from_numpy(known.values)
    among = min(among, len(pool))
    picked = []
    rows_at_once = max(1, _CELLS // len(pool))
    for start in range(0, known.n_rows, rows_at_once):
        part = slice(start, start + rows_at_once)
        at, here = values[part].to(device), weight[part].to(device)
        # |x - p|² weighted by row, less the part that is the same for all candidates
        distance = here @ pool.T.square() - 2 * (here * at) @ pool.T
        close = distance.topk(among, dim=1, largest=False).indices
        choice = torch.randint(among, (len(close), 1), generator=generator, device=device)
        picked.append(close.gather(1, choice)[:, 0])
    return pool[torch.cat(picked)]


def _onehot(encoder: Encoder) -> list[bool]:
    return [
        span.activation == "softmax" for span in encoder.spans for _ in range(span.start, span.stop)
    ]
