"""Weak augmentation of image batches on any device: random flips and reflect-padded crops.

What is drawn is kept apart from what is done with it, so that both sides of a row, two views or two
devices can use the same draws. Draws come from a generator on the CPU, whatever device the images
are on: the same seed gives the same views everywhere. (Strong augmentation: `randaugment.py`.)

    draws = draw_weak(len(images), generator)
    views = apply_weak(images, draws)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmend.errors import ConfigError

CHUNK = {"cuda": 1 << 15, "cpu": 1 << 13}
"""Images that are worked on at a time."""


@dataclass(frozen=True)
class Weak:
    """What to do with n images.

    flip: bool [n], mirror left to right.
    shift: int64 [n, 2], by how many rows and columns the crop lies off the middle: -pad..pad.
    """

    flip: Tensor
    shift: Tensor

    def __len__(self) -> int:
        return len(self.flip)

    def __getitem__(self, rows: slice | Tensor) -> Weak:
        return Weak(self.flip[rows], self.shift[rows])

    def to(self, device: torch.device | str) -> Weak:
        where = torch.device(device)
        return Weak(on_device(self.flip, where), on_device(self.shift, where))


def draw_weak(n: int, generator: torch.Generator, pad: int = 4, *, flip: bool = True) -> Weak:
    """Draws for n images: a flip in half of them, a shift of up to `pad` pixels each way.

    flip: off for images that are not the same in a mirror, such as digits.
    """
    if pad < 0:
        raise ConfigError(f"pad must not be negative, got {pad}")
    shift = torch.randint(-pad, pad + 1, (n, 2), generator=generator)
    mirrored = torch.rand(n, generator=generator) < (0.5 if flip else 0.0)
    return Weak(mirrored, shift)


def apply_weak(images: Tensor, draws: Weak) -> Tensor:
    """The images flipped, then cropped out of a reflected border. **Shape** [n, C, H, W].

    Any dtype; what a crop takes from outside the image is its mirror image (the edge itself not
    repeated), as `torchvision.transforms.RandomCrop(padding_mode="reflect")` has it.
    """
    n, _, height, width = images.shape
    if len(draws) != n:
        raise ConfigError(f"draws for {len(draws)} images, but there are {n}")
    chunk = CHUNK.get(images.device.type, 1 << 13)
    if n > chunk:
        pieces = [
            apply_weak(images[at : at + chunk], draws[at : at + chunk]) for at in range(0, n, chunk)
        ]
        return torch.cat(pieces)
    draws = draws.to(images.device)
    rows = _reflected(draws.shift[:, 0], height)
    columns = _reflected(draws.shift[:, 1], width)
    columns = torch.where(draws.flip[:, None], width - 1 - columns, columns)
    return take_pixels(images, rows[:, :, None] * width + columns[:, None, :])


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """A copy on the device that nothing waits for; from page-locked memory to a GPU."""
    if values.device == device:
        return values
    if device.type == "cuda" and values.device.type == "cpu":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def take_pixels(images: Tensor, places: Tensor) -> Tensor:
    """Pixels by their place in the image. **Shape** images [n, C, H, W], places [n, h, w]."""
    n, channels = images.shape[:2]
    flat = places.reshape(n, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, flat).view(n, channels, *places.shape[1:])


def _reflected(shift: Tensor, size: int) -> Tensor:
    """Where the pixels of a shifted axis come from. **Shape** shift [n], result [n, size]."""
    if size == 1:
        return torch.zeros(len(shift), 1, dtype=torch.int64, device=shift.device)
    place = (shift[:, None] + torch.arange(size, device=shift.device)).abs()
    return torch.where(place >= size, 2 * (size - 1) - place, place)
