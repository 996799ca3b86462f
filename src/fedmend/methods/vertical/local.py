"""Training at a party alone, without the others: random views of its rows, and a trainer.

Images: a weak view (flip, shift), and a strong one (contrast, colour, brightness, a hole) on top
of it. Tables: cells replaced by those of other rows, column by column (SCARF: Bahri et al., 2022),
few of them in a weak view and many in a strong one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedmend.learn.augment import draw_weak
from fedmend.learn.nets import Batch, Bottom, initialise
from fedmend.learn.optim import FlatOptimizer
from fedmend.split.config import Settings
from fedmend.split.features import PAD, Features, augmented
from fedmend.split.models import one_cycle

WEAK_CORRUPTION = 0.1


@dataclass
class RowViews:
    """Draws views of rows.

    Flips and shifts are drawn by `generator`, which is on the CPU, everything else by `on_device`,
    which is where the rows are.
    """

    features: Features
    generator: torch.Generator
    on_device: torch.Generator
    corruption: float = 0.6

    def plain(self, numbers: Tensor) -> Batch:
        return self.features.batch(numbers)

    def weak(self, numbers: Tensor) -> Batch:
        """A view a label survives."""
        batch = self._shifted(numbers)
        return self._corrupted(batch, WEAK_CORRUPTION)

    def strong(self, numbers: Tensor) -> Batch:
        """A view that takes much away."""
        batch = self._shifted(numbers)
        blocks = tuple(
            jittered(block, self.on_device) if block.dim() == 4 else block for block in batch.blocks
        )
        return self._corrupted(batch._replace(blocks=blocks), self.corruption)

    def _shifted(self, numbers: Tensor) -> Batch:
        batch = self.features.batch(numbers)
        if not any(block.dim() == 4 for block in batch.blocks):
            return batch
        draws = draw_weak(len(numbers), self.generator, PAD).to(numbers.device)
        return batch._replace(blocks=tuple(augmented(block, draws) for block in batch.blocks))

    def _corrupted(self, batch: Batch, share: float) -> Batch:
        numeric = self._mixed(batch.numeric, self.features.numeric, share)
        codes = self._mixed(batch.codes, self.features.codes, share)
        return batch._replace(numeric=numeric, codes=codes)

    def _mixed(self, cells: Tensor, pool: Tensor, share: float) -> Tensor:
        """Cells, of which a share comes from random rows of the pool (never its fill row)."""
        if not cells.shape[1]:
            return cells
        device, generator = cells.device, self.on_device
        swap = torch.rand(cells.shape, generator=generator, device=device) < share
        others = torch.randint(len(pool) - 1, cells.shape, generator=generator, device=device)
        return torch.where(swap, pool.gather(0, others), cells)


def jittered(images: Tensor, generator: torch.Generator) -> Tensor:
    """Contrast, colour and brightness changed, and a hole of about a third each way, per image."""
    n, _, height, width = images.shape
    device = images.device

    def between(low: float, high: float) -> Tensor:
        drawn = torch.rand(n, 1, 1, 1, generator=generator, device=device)
        return drawn * (high - low) + low

    mean = images.mean((1, 2, 3), keepdim=True)
    images = mean + (images - mean) * between(0.4, 1.6)
    grey = images.mean(1, keepdim=True)
    images = grey + (images - grey) * between(0.2, 1.8) + between(-0.6, 0.6)
    top = torch.randint(height, (n, 1, 1), generator=generator, device=device)
    left = torch.randint(width, (n, 1, 1), generator=generator, device=device)
    rows = (torch.arange(height, device=device)[None, :, None] - top).abs() < max(1, height // 6)
    columns = (torch.arange(width, device=device)[None, None] - left).abs() < max(1, width // 4)
    return images * ~(rows & columns)[:, None]


class LocalTrainer:
    """A bottom and a helper beside it (a head or a decoder, thrown away later), at a party alone.

    steps: of the whole training, over which a one-cycle schedule goes.
    """

    def __init__(
        self, bottom: Bottom, helper: nn.Module, views: RowViews, settings: Settings, steps: int
    ) -> None:
        self.device = views.features.numeric.device
        self.bottom = bottom.to(self.device, settings.dtype)
        self.views, self.settings, self.steps = views, settings, steps
        self.helper: Any = initialise(helper, views.generator).to(self.device, settings.dtype)
        trained = [*self.bottom.parameters(), *self.helper.parameters()]
        self._optimizer = FlatOptimizer(trained, settings.optimizer)
        self.done = 0

    def update(self, loss: Callable[..., Tensor], *given: Any) -> Tensor:
        """One step down the loss of what is given; returns it."""
        self._optimizer.zero_grad()
        with self.settings.autocast(self.device):
            found = loss(*given)
        found.backward()
        if self.settings.schedule == "one-cycle":
            self._optimizer.scale = one_cycle((self.done + 0.5) / self.steps)
        self._optimizer.step()
        self.done += 1
        return found.detach()
