"""Weak and strong views of a client's rows: images on the device, or rows of a table.

A views object holds rows on a device and makes network inputs of them, plain or with draws. Draws
come from a generator on the CPU: a client sees the same views on every device, in a federation
and in the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedmend.errors import ConfigError
from fedmend.learn.augment import apply_weak, draw_weak, on_device
from fedmend.methods.horizontal.networks import Inputs
from fedmend.methods.horizontal.randaugment import apply_strong, check_images, draw_strong

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2471, 0.2435, 0.2616)
# Of strong views of a table's rows: noise in standard deviations, and the share of cells lost.
NOISE, DROP = 0.3, 0.4


class ImageViews:
    """Images as bytes; inputs are standardised per channel and laid out channels-last.

    Weak: flip and reflected crop. Strong: that, two of RandAugment's operations, a cutout.
    mean, std: of values scaled to 0..1; flip: off where a mirror image is something else;
    pad: most pixels of a shift, by default an eighth of the width (4 of 32).
    """

    def __init__(
        self,
        images: Tensor,
        mean: Sequence[float] = CIFAR_MEAN,
        std: Sequence[float] = CIFAR_STD,
        *,
        flip: bool = True,
        pad: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_images(images)
        channels = images.shape[1]
        if len(mean) != channels or len(std) != channels or min(std) <= 0:
            raise ConfigError(
                f"mean and std must be {channels} numbers each, std positive, got "
                f"{list(mean)} and {list(std)}"
            )
        self.images = images
        self.mean, self.std = tuple(mean), tuple(std)
        self.flip = flip
        self.pad = images.shape[3] // 8 if pad is None else pad
        self.dtype = dtype
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        deviation = torch.tensor(self.std, dtype=torch.float64).view(-1, 1, 1)
        middle = torch.tensor(self.mean, dtype=torch.float64).view(-1, 1, 1)
        self._factor = (1 / (255 * deviation)).to(images.device, exact)
        self._offset = (-middle / deviation).to(images.device, exact)

    @property
    def n_rows(self) -> int:
        return len(self.images)

    def to(self, device: torch.device, dtype: torch.dtype) -> ImageViews:
        if self.images.device == device and self.dtype == dtype:
            return self
        images = self.images.to(device)
        return ImageViews(images, self.mean, self.std, flip=self.flip, pad=self.pad, dtype=dtype)

    def draw_weak(self, n: int, generator: torch.Generator) -> Any:
        return draw_weak(n, generator, self.pad, flip=self.flip)

    def draw_strong(self, n: int, generator: torch.Generator) -> Any:
        return draw_strong(n, generator, self.pad, flip=self.flip)

    def plain(self, rows: Tensor) -> Inputs:
        return (self._standardised(self.images[rows]),)

    def weak(self, rows: Tensor, draws: Any) -> Inputs:
        return (self._standardised(apply_weak(self.images[rows], draws)),)

    def strong(self, rows: Tensor, draws: Any) -> Inputs:
        return (self._standardised(apply_strong(self.images[rows], draws)),)

    def _standardised(self, images: Tensor) -> Tensor:
        # Half precision would round the values before they are scaled.
        values = images.to(self._factor.dtype, memory_format=torch.channels_last)
        return values.mul_(self._factor).add_(self._offset).to(self.dtype)


@dataclass(frozen=True)
class Noise:
    """What to add to numbers, and which cells to lose. **Shape** [n, p], [n, p + q]."""

    added: Tensor
    lost: Tensor

    def __getitem__(self, rows: slice) -> Noise:
        return Noise(self.added[rows], self.lost[rows])


class TableViews:
    """Rows of a table: standardised numbers and codes of nominal columns (0 is "missing").

    Weak: normal noise of a tenth of NOISE. Strong: noise, and a share DROP of the cells set to
    missing (numbers: to the mean).
    """

    def __init__(self, numeric: Tensor, codes: Tensor | None = None) -> None:
        if codes is None:
            codes = torch.zeros(len(numeric), 0, dtype=torch.int64, device=numeric.device)
        if numeric.ndim != 2 or codes.ndim != 2 or len(numeric) != len(codes):
            raise ConfigError(
                f"numeric and codes must have as many rows, got {list(numeric.shape)} and "
                f"{list(codes.shape)}"
            )
        self.numeric, self.codes = numeric, codes

    @property
    def n_rows(self) -> int:
        return len(self.numeric)

    def to(self, device: torch.device, dtype: torch.dtype) -> TableViews:
        if self.numeric.device == device and self.numeric.dtype == dtype:
            return self
        return TableViews(self.numeric.to(device, dtype), self.codes.to(device))

    def draw_weak(self, n: int, generator: torch.Generator) -> Noise:
        return self._draw(n, generator, NOISE / 10, 0.0)

    def draw_strong(self, n: int, generator: torch.Generator) -> Noise:
        return self._draw(n, generator, NOISE, DROP)

    def _draw(self, n: int, generator: torch.Generator, noise: float, drop: float) -> Noise:
        numbers, codes = self.numeric.shape[1], self.codes.shape[1]
        added = torch.randn(n, numbers, generator=generator) * noise
        if not drop:
            return Noise(added, torch.zeros(n, 0, dtype=torch.bool))
        return Noise(added, torch.rand(n, numbers + codes, generator=generator) < drop)

    def plain(self, rows: Tensor) -> Inputs:
        return self.numeric.index_select(0, rows), self.codes.index_select(0, rows)

    def weak(self, rows: Tensor, draws: Any) -> Inputs:
        numeric, codes = self.plain(rows)
        return numeric + on_device(draws.added.to(numeric.dtype), numeric.device), codes

    def strong(self, rows: Tensor, draws: Any) -> Inputs:
        numeric, codes = self.weak(rows, draws)
        lost = on_device(draws.lost, numeric.device)
        if lost.shape[1] == 0:
            return numeric, codes
        numbers = numeric.shape[1]
        numeric = numeric.masked_fill(lost[:, :numbers], 0.0)
        return numeric, codes.masked_fill(lost[:, numbers:], 0)


Views = ImageViews | TableViews
"""Rows as network inputs. `draw_…` give draws that can be sliced like the rows."""
