"""Strong augmentation of image batches: flip, crop, two of 14 operations, and a grey square.

RandAugment as FixMatch and SAGE use it: each of two operations is drawn with replacement, with a
whole magnitude v of 1 to 9, and applied with probability one half; a cutout always follows. Every
operation gives Pillow's pixels exactly (the tests compare). Images are uint8 [n, C, H, W] with one
or three channels, on any device.

Nothing here runs over samples one by one. The operations form four families, each one tensor
program over the images that drew it: those that move pixels (one gather with a matrix of fixed
point numbers per image, as Pillow computes), those that map each channel's values (one table of 256
entries per image and channel), colour, and sharpness. Draws stay on the CPU, so that the sizes of
the families are known without asking the device, which never has to be waited for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend.errors import ConfigError
from fedmend.learn.augment import CHUNK, Weak, apply_weak, draw_weak, on_device, take_pixels

OPERATIONS = (
    "autocontrast",
    "brightness",
    "color",
    "contrast",
    "equalize",
    "identity",
    "posterize",
    "rotate",
    "sharpness",
    "shear_x",
    "shear_y",
    "solarize",
    "translate_x",
    "translate_y",
)
MAGNITUDES = 10
TURNS = 2
GREY = 127

_NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
_TABLES = ("autocontrast", "brightness", "contrast", "equalize", "posterize", "solarize")
_MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
_SORTED = (*_TABLES, "color", "sharpness", *_MOVES, "identity")
_RANK = torch.tensor([_SORTED.index(name) for name in OPERATIONS])


@dataclass(frozen=True)
class Strong:
    """What to do with n images: first `weak`, then k operations, then the square.

    operation, magnitude: int64 [n, k]; negative: bool [n, k], for those with a direction;
    applied: bool [n, k]; centre: float64 [n, 2], the square's middle as a share of the size (down,
    right).
    """

    weak: Weak
    operation: Tensor
    magnitude: Tensor
    negative: Tensor
    applied: Tensor
    centre: Tensor

    def __len__(self) -> int:
        return len(self.weak)

    def __getitem__(self, rows: slice | Tensor) -> Strong:
        return Strong(
            self.weak[rows],
            self.operation[rows],
            self.magnitude[rows],
            self.negative[rows],
            self.applied[rows],
            self.centre[rows],
        )


def draw_strong(n: int, generator: torch.Generator, pad: int = 4, *, flip: bool = True) -> Strong:
    """Draws for n images, from a generator on the CPU."""
    shape = (n, TURNS)
    return Strong(
        draw_weak(n, generator, pad, flip=flip),
        torch.randint(0, len(OPERATIONS), shape, generator=generator),
        torch.randint(1, MAGNITUDES, shape, generator=generator),
        torch.rand(shape, generator=generator) < 0.5,
        torch.rand(shape, generator=generator) < 0.5,
        torch.rand(n, 2, generator=generator, dtype=torch.float64),
    )


def apply_strong(images: Tensor, draws: Strong) -> Tensor:
    """The images flipped, cropped, changed and cut out. **Shape** uint8 [n, C, H, W]."""
    check_images(images)
    n, chunk = len(images), CHUNK.get(images.device.type, 1 << 13)
    if n > chunk:
        pieces = [
            apply_strong(images[at : at + chunk], draws[at : at + chunk])
            for at in range(0, n, chunk)
        ]
        return torch.cat(pieces)
    images = apply_weak(images, draws.weak)
    for turn in range(draws.operation.shape[1]):
        operation = torch.where(
            draws.applied[:, turn], draws.operation[:, turn], _NUMBER["identity"]
        )
        _apply(images, operation, draws.magnitude[:, turn], draws.negative[:, turn])
    return cutout(images, draws.centre, images.shape[3] // 2)


def cutout(images: Tensor, centre: Tensor, side: int) -> Tensor:
    """A grey square in each image, cut off at its edges.

    Both ends of the square are drawn, as `PIL.ImageDraw.rectangle` does: a square of `side` 16
    covers 17 pixels each way where it fits. **Shape** centre [n, 2], shares of the size.
    """
    height, width = images.shape[2:]
    centre = on_device(centre, images.device)
    hidden = torch.ones(1, 1, 1, dtype=torch.bool, device=images.device)
    for axis, size in ((0, height), (1, width)):
        first = (centre[:, axis] * size - side / 2).clamp_min(0.0).floor()
        last = (first + side).clamp_max(size)
        place = torch.arange(size, device=images.device)
        inside = (place >= first[:, None]) & (place <= last[:, None])
        hidden = hidden & (inside[:, :, None] if axis == 0 else inside[:, None, :])
    return images.masked_fill(hidden[:, None], GREY)


# ---------------------------------------------------------------------------------- families


def _apply(images: Tensor, operation: Tensor, magnitude: Tensor, negative: Tensor) -> None:
    """One drawn operation per image, in place; all that is drawn is on the CPU.

    Images are sorted by operation, so that one copy tells the device all it has to know.
    """
    rank = _RANK[operation]
    order = torch.argsort(rank, stable=True)
    counts = torch.bincount(rank, minlength=len(_SORTED))
    ends = dict(zip(_SORTED, counts.cumsum(0).tolist(), strict=True))
    place = operation * (2 * MAGNITUDES) + 2 * magnitude + negative
    told = on_device(torch.stack([order, magnitude[order], place[order]]), images.device)

    def rows_of(first: str, last: str) -> slice:
        before = _SORTED.index(first)
        return slice(ends[_SORTED[before - 1]] if before else 0, ends[last])

    mapped = rows_of(_TABLES[0], _TABLES[-1])
    if mapped.stop > mapped.start:
        rows = told[0, mapped]
        picked = images[rows]
        tables = [
            _TABLE_MAKERS[name](picked[at], told[1, at])
            .to(torch.uint8)
            .expand(-1, len(images[0]), -1)
            for name in _TABLES
            if (at := rows_of(name, name)).stop > at.start
        ]
        images[rows] = _map_values(picked, torch.cat(tables))
    for name, degenerate in (("color", _luminance), ("sharpness", _smooth)):
        at = rows_of(name, name)
        if at.stop > at.start:
            rows = told[0, at]
            picked = images[rows]
            images[rows] = _blend(degenerate(picked), picked, _factor(told[1, at]))
    moved = rows_of(_MOVES[0], _MOVES[-1])
    if moved.stop > moved.start:
        rows = told[0, moved]
        matrices = _move_matrices(*images.shape[2:], images.device)
        images[rows] = _move(images[rows], matrices.index_select(0, told[2, moved]))


def _factor(magnitude: Tensor) -> Tensor:
    """The enhancing operations' strength: .14 to .86, where 1 would change nothing."""
    return (magnitude.double() * 0.9 / 10 + 0.05).float().view(-1, 1, 1, 1)


def _blend(degenerate: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Between the degenerate image (0) and the image (1), cut off to whole values as Pillow's."""
    start = degenerate.float()
    return (images.float() - start).mul_(factor).add_(start).to(torch.uint8)


def _luminance(images: Tensor) -> Tensor:
    """Pillow's conversion to grey, in its integers. **Shape** [n, C, H, W] to [n, 1, H, W]."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16)[:, None].to(torch.uint8)


def _smooth(images: Tensor) -> Tensor:
    """Pillow's SMOOTH filter: a 3 x 3 mean whose middle counts five times; edges stay."""
    if min(images.shape[2:]) < 3:
        return images
    values = images.float()
    # Whole numbers up to 13 * 255 are exact in float32, so no rounding enters before the last.
    total = F.avg_pool2d(values, 3, stride=1, divisor_override=1)
    inner = values[:, :, 1:-1, 1:-1]
    result = images.clone()
    result[:, :, 1:-1, 1:-1] = ((total + 4 * inner) * 2 + 13).div_(26, rounding_mode="floor").byte()
    return result


# ---------------------------------------------------------------------------------- tables


def _map_values(images: Tensor, table: Tensor) -> Tensor:
    """Each channel's values through its own table. **Shape** table [n, C, 256]."""
    return table.gather(2, images.flatten(2).long()).view_as(images)


def _histogram(images: Tensor) -> Tensor:
    """How often each value occurs. **Shape** int64 [n, C, 256]."""
    values = images.flatten(2).long()
    counts = torch.zeros(*images.shape[:2], 256, dtype=torch.int64, device=images.device)
    return counts.scatter_add_(2, values, torch.ones_like(values))


def _autocontrast(images: Tensor, magnitude: Tensor) -> Tensor:
    low = images.amin((2, 3)).double()[:, :, None]
    high = images.amax((2, 3)).double()[:, :, None]
    value = _values(images).double()
    # A number divided by a tensor is a product with its inverse in torch, one bit off at times.
    scale = torch.full_like(low, 255.0) / (high - low)
    stretched = (value * scale + -low * scale).trunc().clamp(0, 255)
    return torch.where(high > low, stretched, value)


def _brightness(images: Tensor, magnitude: Tensor) -> Tensor:
    return (_values(images).float() * _factor(magnitude)[:, :, :, 0]).trunc()


def _contrast(images: Tensor, magnitude: Tensor) -> Tensor:
    grey = _luminance(images).flatten(1).long()
    mean = (grey.sum(1).double() / grey.shape[1] + 0.5).floor().float().view(-1, 1, 1)
    return ((_values(images).float() - mean) * _factor(magnitude)[:, :, :, 0] + mean).trunc()


def _equalize(images: Tensor, magnitude: Tensor) -> Tensor:
    counts = _histogram(images)
    last = images.amax((2, 3)).long()[:, :, None]
    step = (counts.sum(2, keepdim=True) - counts.gather(2, last)) // 255
    before = counts.cumsum(2) - counts
    spread = ((step // 2 + before) // step.clamp_min(1)).clamp_max(255)
    return torch.where(step > 0, spread, _values(images))


def _posterize(images: Tensor, magnitude: Tensor) -> Tensor:
    bits = (magnitude * 4) // 10 + 4
    mask = 256 - torch.bitwise_left_shift(torch.ones_like(bits), 8 - bits)
    return _values(images) & mask.view(-1, 1, 1)


def _solarize(images: Tensor, magnitude: Tensor) -> Tensor:
    value = _values(images)
    threshold = (256 - (magnitude * 256) // 10).view(-1, 1, 1)
    return torch.where(value < threshold, value, 255 - value)


def _values(images: Tensor) -> Tensor:
    return torch.arange(256, device=images.device).view(1, 1, 256)


_TABLE_MAKERS = {
    "autocontrast": _autocontrast,
    "brightness": _brightness,
    "contrast": _contrast,
    "equalize": _equalize,
    "posterize": _posterize,
    "solarize": _solarize,
}


# ---------------------------------------------------------------------------------- moves


def _move(images: Tensor, matrix: Tensor) -> Tensor:
    """Each pixel from where its image's matrix says, black from outside. **Shape** [n, 6]."""
    height, width = images.shape[2:]
    down = torch.arange(height, device=images.device).view(1, -1, 1)
    right = torch.arange(width, device=images.device).view(1, 1, -1)
    a, b, c, d, e, f = matrix.view(-1, 6, 1, 1).unbind(1)
    # Pillow counts in 16 bits behind the point.
    column = (c + a * right + b * down) >> 16
    row = (f + d * right + e * down) >> 16
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    places = torch.where(inside, row * width + column, 0)
    return take_pixels(images, places) * inside[:, None]


@lru_cache(maxsize=16)
def _move_matrices(height: int, width: int, device: torch.device) -> Tensor:
    """The fixed-point matrix of every operation, magnitude and direction, for images this size."""
    rows = []
    for name in OPERATIONS:
        for magnitude in range(MAGNITUDES):
            for sign in (1, -1):
                rows.append(_fixed_point(_matrix(name, magnitude, sign, height, width)))
    return torch.tensor(rows, device=device)


def _matrix(name: str, v: int, sign: int, height: int, width: int) -> tuple[float, ...]:
    """Where output pixel (x, y) comes from: (a x + b y + c, d x + e y + f)."""
    share = sign * v * 0.3 / 10
    if name == "shear_x":
        return (1, share, 0, 0, 1, 0)
    if name == "shear_y":
        return (1, 0, 0, share, 1, 0)
    if name == "translate_x":
        return (1, 0, int(share * width), 0, 1, 0)
    if name == "translate_y":
        return (1, 0, 0, 0, 1, int(share * height))
    if name == "rotate" and v:
        angle = -math.radians((sign * int(v * 30 / 10)) % 360)
        cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
        x, y = width / 2, height / 2
        return (
            cosine,
            sine,
            cosine * -x + sine * -y + x,
            -sine,
            cosine,
            -sine * -x + cosine * -y + y,
        )
    return (1, 0, 0, 0, 1, 0)


def _fixed_point(matrix: tuple[float, ...]) -> list[int]:
    a, b, c, d, e, f = matrix
    middle = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    return [math.floor(value * 65536.0 + 0.5) for value in middle]


def check_images(images: Tensor) -> None:
    """Images are bytes of one or three channels."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ConfigError(
            f"images must be uint8 of shape [n, 1 or 3, H, W], got {images.dtype} of shape "
            f"{list(images.shape)}"
        )
