"""Triton kernels for ResNet-8's first layer: a 3 x 3 convolution of few channels.

cuDNN is slow for one or three input channels. Here the convolution is a matrix product over
gathered neighbourhoods; backwards it is one with the batch norm behind it, whose gradient is
needed for nothing else and never written down. (See `kernels.py`.)
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from torch import Tensor

from fedmend.methods.horizontal.kernels import Norm, backward_moments

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU needs no Triton
    triton = None

__all__ = ["stem", "stem_backward"]

# Three programs for each of an H200's 132 processors: they need many registers.
PROGRAMS = 396


if triton is not None:

    @triton.jit
    def _patches(
        x, row, there, H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr, K: tl.constexpr
    ):
        """The 3 x 3 neighbourhoods of these pixels, zeros outside: [rows, K], K >= 9 IN."""
        k = tl.arange(0, K)
        channel, right, down = k % IN, (k // IN) % 3 - 1, k // (3 * IN) - 1
        image = row // (H * W)
        y = ((row // W) % H)[:, None] + down[None, :]
        z = (row % W)[:, None] + right[None, :]
        inside = (y >= 0) & (y < H) & (z >= 0) & (z < W) & (k < 9 * IN)[None, :] & there[:, None]
        place = ((image[:, None] * H + y) * W + z) * IN + channel[None, :]
        return tl.load(x + place, mask=inside, other=0.0)

    @triton.jit
    def _stem(
        x,
        weight,
        out,
        rows,
        H: tl.constexpr,
        W: tl.constexpr,
        IN: tl.constexpr,
        K: tl.constexpr,
        C: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        there = row < rows
        column = tl.arange(0, C)
        patches = _patches(x, row, there, H, W, IN, K)
        filters = tl.load(weight + tl.arange(0, K)[:, None] * C + column[None, :])
        value = tl.dot(patches, filters)
        place = row[:, None] * C + column[None, :]
        tl.store(out + place, value.to(out.dtype.element_ty), mask=there[:, None])

    @triton.jit
    def _stem_backward(
        x,
        value_of,
        gradient,
        second,
        partial,
        weight,
        bias,
        mean,
        inverse,
        weight_gradient,
        bias_gradient,
        rows,
        counted,
        each,
        H: tl.constexpr,
        W: tl.constexpr,
        IN: tl.constexpr,
        K: tl.constexpr,
        C: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        program = tl.program_id(0)
        column = tl.arange(0, C)
        middle = tl.load(mean + column)[None, :]
        narrow = tl.load(inverse + column)[None, :]
        scale = tl.load(weight + column)[None, :] * narrow
        shift = tl.load(bias + column)[None, :] - middle * scale
        common = tl.load(bias_gradient + column)[None, :] / rows
        along = tl.load(weight_gradient + column)[None, :] / rows
        total = tl.zeros([K, C], tl.float32)
        last = tl.minimum((program + 1) * each, counted)
        for at in range(program * each, last, BLOCK):
            row = at + tl.arange(0, BLOCK)
            there = row < last
            place = row[:, None] * C + column[None, :]
            value = tl.load(value_of + place, mask=there[:, None], other=0.0).to(tl.float32)
            slope = tl.load(gradient + place, mask=there[:, None], other=0.0).to(tl.float32)
            slope += tl.load(second + place, mask=there[:, None], other=0.0).to(tl.float32)
            slope = tl.where(value * scale + shift > 0, slope, 0.0)
            slope = scale * (slope - common - (value - middle) * narrow * along)
            patches = _patches(x, row, there, H, W, IN, K)
            total += tl.dot(tl.trans(patches), slope.to(patches.dtype))
        place = tl.arange(0, K)[:, None] * C + column[None, :]
        tl.store(partial + program * K * C + place, total)


def stem(images: Tensor, weight: Tensor) -> Tensor:
    """A 3 x 3 convolution of few channels, as a matrix product over gathered neighbourhoods.

    **Shape** images channels-last [n, IN, H, W], weight [C, IN, 3, 3]; 9 IN at most 32.
    """
    n, channels, height, width = images.shape
    filters = torch.zeros(32, len(weight), device=images.device, dtype=images.dtype)
    filters[: 9 * channels] = weight.permute(2, 3, 1, 0).reshape(9 * channels, -1)
    out = torch.empty(
        (n, len(weight), height, width),
        device=images.device,
        dtype=images.dtype,
        memory_format=torch.channels_last,
    )
    rows = n * height * width
    _stem[(-(-rows // 128),)](
        *(images, filters, out, rows, height, width, channels, 32, len(weight), 128), num_warps=4
    )
    return out


def stem_backward(
    images: Tensor, value: Tensor, norm: Norm, gradient: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the stem's filters and of its batch norm's weight and bias.

    The gradient of the stem's output is needed for nothing else, and never written down.
    """
    channels = value.shape[1]
    rows, counted = value.numel() // channels, gradient.numel() // channels
    _, weight_gradient, bias_gradient = backward_moments(
        value, norm, gradient, second, None, counted, True
    )
    height, width = images.shape[2:]
    each = -(-counted // (PROGRAMS * 64)) * 64
    programs = -(-counted // each)
    partial = torch.empty(programs, 32, channels, device=images.device, dtype=torch.float32)
    _stem_backward[(programs,)](
        *(images, value, gradient, second, partial, *norm, weight_gradient, bias_gradient),
        *(rows, counted, each, height, width, images.shape[1], 32, channels, 64),
        num_warps=4,
        num_stages=2,
    )
    taken = 9 * images.shape[1]
    filters = partial.sum(0)[:taken].view(3, 3, images.shape[1], channels).permute(3, 2, 0, 1)
    return filters, weight_gradient, bias_gradient
