"""What the generators' training has in common: seeds, batches, stopping, averaging.

All randomness comes from `torch.Generator` objects made by `generator_for`, never from torch's
global one: generators of several parties may train in threads of one process at the same time.
"""

from __future__ import annotations

import copy
import logging
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from fedmend.federation.randomness import numpy_stream, stream
from fedmend.learn.optim import FlatOptimizer

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``."""


def generator_for(device: torch.device, seed: int, purpose: str) -> torch.Generator:
    """A stream of its own for every seed and purpose; seeds may be wide (`randomness`)."""
    return stream([seed, zlib.crc32(purpose.encode())], device)


def numpy_for(seed: int, purpose: str) -> np.random.Generator:
    """As `generator_for`, for numpy."""
    if seed >= 1 << 64:
        return numpy_stream([seed, zlib.crc32(purpose.encode())])
    return np.random.default_rng(generator_for(torch.device("cpu"), seed, purpose).initial_seed())


class EMA:
    """A running average of a module's parameters, which samples better than the last ones."""

    def __init__(self, module: nn.Module, decay: float = 0.999) -> None:
        self.module = module
        self.decay = decay
        self.average = copy.deepcopy(module).requires_grad_(False).eval()
        self.steps = 0

    @torch.no_grad()
    def update(self) -> None:
        """Take in the module's present parameters; the first steps weigh more."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        averages = [parameter.data for parameter in self.average.parameters()]
        present = [parameter.data for parameter in self.module.parameters()]
        torch._foreach_lerp_(averages, present, 1 - decay)
        for mean, buffer in zip(self.average.buffers(), self.module.buffers(), strict=True):
            mean.copy_(buffer)


# --- the loop -----------------------------------------------------------------------------


def batches(
    n_rows: int, size: int, generator: torch.Generator, device: torch.device
) -> Iterator[torch.Tensor]:
    """Endless batches of row numbers: every row once, in random order, then again.

    The rows left over at the end of a round open the next one, so that all batches are full.
    """
    size = min(size, n_rows)
    rest = torch.empty(0, dtype=torch.int64, device=device)
    while True:
        while len(rest) < size:
            fresh = torch.randperm(n_rows, generator=generator, device=device)
            rest = torch.cat([rest, fresh])
        yield rest[:size]
        rest = rest[size:]


def held_out(n_rows: int, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to train on and to score on; nothing is held out of fewer than 200 rows."""
    order = rng.permutation(n_rows)
    count = round(share * n_rows) if n_rows >= 200 else 0
    return np.sort(order[count:]), np.sort(order[:count])


def descend(loss: torch.Tensor, optimizer: FlatOptimizer) -> None:
    """One step of an optimizer down a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@dataclass
class History:
    """What happened in a training: scores by step, lower is better."""

    steps: int = 0
    scores: list[tuple[int, float]] = field(default_factory=list)
    best_step: int | None = None
    stopped_early: bool = False


def train(
    step: Callable[[int, torch.Tensor], object],
    rows: Iterator[torch.Tensor],
    *,
    steps: int,
    modules: Iterable[nn.Module],
    score: Callable[[], float] | None = None,
    every: int = 100,
    patience: int = 10,
    stage: str = "fit",
    progress: Progress | None = None,
) -> History:
    """Call ``step(number, row_numbers)`` up to ``steps`` times and keep the best-scored modules.

    ``score`` (lower is better) is asked after every ``every`` steps; after ``patience`` scores
    without a better one training stops, and the modules go back to where they scored best.
    ``patience=0`` scores and goes back, but never stops early.
    """
    history = History()
    kept: list[dict[str, torch.Tensor]] = []
    best, misses, modules = math.inf, 0, list(modules)
    tell = max(1, steps // 200)
    for number, batch in zip(range(steps), rows, strict=False):
        step(number, batch)
        history.steps = number + 1
        if progress is not None and (history.steps % tell == 0 or history.steps == steps):
            progress(stage, history.steps, steps)
        if score is None or (history.steps % every and history.steps != steps):
            continue
        value = float(score())
        history.scores.append((history.steps, value))
        misses += 1
        if value < best:
            best, misses, history.best_step = value, 0, history.steps
            kept = [copy.deepcopy(module.state_dict()) for module in modules]
        elif patience and misses >= patience:
            history.stopped_early = True
            logger.info("%s stopped after %d of %d steps", stage, history.steps, steps)
            break
    for module, state in zip(modules, kept, strict=bool(kept)):
        module.load_state_dict(state)
    return history


# --- progress ------------------------------------------------------------------------------


@contextmanager
def shown(title: str, progress: Progress | None) -> Iterator[Progress | None]:
    """The callback itself or, where there is none, a bar on standard error if it is a terminal."""
    if progress is not None or not sys.stderr.isatty():
        yield progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, int] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(f"{title}: {stage}", total=total)
            bars.update(tasks[stage], completed=done)  # type: ignore[arg-type]

        yield tell
