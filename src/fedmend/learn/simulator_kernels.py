"""Batch norm, addition and ReLU of channels-last images in as few passes over memory as they need.

At ResNet-8's sizes a GPU spends as long on batch norms and ReLUs as on convolutions, all of it
waiting for memory. Here a layer is four kernels: moments, normalise (with the sum and the ReLU),
and their two backwards. The mathematics is that of `relu(batch_norm(x) + residual)` over the batch,
running statistics included; sums are taken in float32.

Triton is only imported where a GPU runs this; `available()` says whether it can.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU needs no Triton
    triton = None

__all__ = ["available", "norm_relu"]

PROGRAMS = 528
TILE = 4096


def available() -> bool:
    """Is there a GPU and the compiler for it?"""
    return triton is not None and torch.cuda.is_available()


if triton is not None:

    @triton.jit
    def _moments(x, partial, rows, each, C: tl.constexpr, BLOCK: tl.constexpr):
        program = tl.program_id(0)
        column = tl.arange(0, C)
        total = tl.zeros([BLOCK, C], tl.float32)
        squares = tl.zeros([BLOCK, C], tl.float32)
        last = tl.minimum((program + 1) * each, rows)
        for at in range(program * each, last, BLOCK):
            row = at + tl.arange(0, BLOCK)
            place = row[:, None] * C + column[None, :]
            value = tl.load(x + place, mask=row[:, None] < last, other=0.0).to(tl.float32)
            total += value
            squares += value * value
        tl.store(partial + program * 2 * C + column, tl.sum(total, 0))
        tl.store(partial + program * 2 * C + C + column, tl.sum(squares, 0))

    @triton.jit
    def _settle(
        partial,
        weight,
        bias,
        mean,
        inverse,
        running_mean,
        running_var,
        rows,
        momentum,
        eps,
        programs,
        C: tl.constexpr,
        COLUMNS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros([BLOCK, COLUMNS], tl.float32)
        squares = tl.zeros([BLOCK, COLUMNS], tl.float32)
        for at in range(0, programs, BLOCK):
            number = at + tl.arange(0, BLOCK)
            place = number[:, None] * 2 * C + column[None, :]
            there = number[:, None] < programs
            total += tl.load(partial + place, mask=there, other=0.0)
            squares += tl.load(partial + place + C, mask=there, other=0.0)
        middle = tl.sum(total, 0) / rows
        variance = tl.maximum(tl.sum(squares, 0) / rows - middle * middle, 0.0)
        tl.store(mean + column, middle)
        tl.store(inverse + column, 1.0 / tl.sqrt(variance + eps))
        old = tl.load(running_mean + column)
        tl.store(running_mean + column, old + momentum * (middle - old))
        old = tl.load(running_var + column)
        unbiased = variance * (rows / (rows - 1.0))
        tl.store(running_var + column, old + momentum * (unbiased - old))

    @triton.jit
    def _normalise(
        x,
        residual,
        out,
        weight,
        bias,
        mean,
        inverse,
        rows,
        C: tl.constexpr,
        BLOCK: tl.constexpr,
        ADD: tl.constexpr,
        RELU: tl.constexpr,
    ):
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        column = tl.arange(0, C)
        place = row[:, None] * C + column[None, :]
        there = row[:, None] < rows
        scale = tl.load(weight + column) * tl.load(inverse + column)
        shift = tl.load(bias + column) - tl.load(mean + column) * scale
        value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
        value = value * scale[None, :] + shift[None, :]
        if ADD:
            value += tl.load(residual + place, mask=there, other=0.0).to(tl.float32)
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(out + place, value.to(out.dtype.element_ty), mask=there)

    @triton.jit
    def _backward_sums(
        x,
        gradient,
        out,
        passed,
        partial,
        weight,
        bias,
        mean,
        inverse,
        rows,
        each,
        C: tl.constexpr,
        BLOCK: tl.constexpr,
        ADD: tl.constexpr,
        RELU: tl.constexpr,
    ):
        program = tl.program_id(0)
        column = tl.arange(0, C)
        middle = tl.load(mean + column)[None, :]
        narrow = tl.load(inverse + column)[None, :]
        scale = tl.load(weight + column)[None, :] * narrow
        shift = tl.load(bias + column)[None, :] - middle * scale
        total = tl.zeros([BLOCK, C], tl.float32)
        along = tl.zeros([BLOCK, C], tl.float32)
        last = tl.minimum((program + 1) * each, rows)
        for at in range(program * each, last, BLOCK):
            row = at + tl.arange(0, BLOCK)
            place = row[:, None] * C + column[None, :]
            there = row[:, None] < last
            value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
            slope = tl.load(gradient + place, mask=there, other=0.0).to(tl.float32)
            if RELU:
                if ADD:
                    slope = tl.where(tl.load(out + place, mask=there, other=0.0) > 0, slope, 0.0)
                else:
                    slope = tl.where(value * scale + shift > 0, slope, 0.0)
            if ADD:
                tl.store(passed + place, slope.to(passed.dtype.element_ty), mask=there)
            total += slope
            along += slope * ((value - middle) * narrow)
        tl.store(partial + program * 2 * C + column, tl.sum(total, 0))
        tl.store(partial + program * 2 * C + C + column, tl.sum(along, 0))

    @triton.jit
    def _settle_backward(
        partial,
        weight_gradient,
        bias_gradient,
        programs,
        C: tl.constexpr,
        COLUMNS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros([BLOCK, COLUMNS], tl.float32)
        along = tl.zeros([BLOCK, COLUMNS], tl.float32)
        for at in range(0, programs, BLOCK):
            number = at + tl.arange(0, BLOCK)
            place = number[:, None] * 2 * C + column[None, :]
            there = number[:, None] < programs
            total += tl.load(partial + place, mask=there, other=0.0)
            along += tl.load(partial + place + C, mask=there, other=0.0)
        tl.store(bias_gradient + column, tl.sum(total, 0))
        tl.store(weight_gradient + column, tl.sum(along, 0))

    @triton.jit
    def _backward(
        x,
        gradient,
        result,
        weight,
        bias,
        mean,
        inverse,
        weight_gradient,
        bias_gradient,
        rows,
        C: tl.constexpr,
        BLOCK: tl.constexpr,
        RELU: tl.constexpr,
    ):
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        column = tl.arange(0, C)
        place = row[:, None] * C + column[None, :]
        there = row[:, None] < rows
        middle = tl.load(mean + column)[None, :]
        narrow = tl.load(inverse + column)[None, :]
        scale = tl.load(weight + column)[None, :] * narrow
        value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
        slope = tl.load(gradient + place, mask=there, other=0.0).to(tl.float32)
        if RELU:
            shift = tl.load(bias + column)[None, :] - middle * scale
            slope = tl.where(value * scale + shift > 0, slope, 0.0)
        common = tl.load(bias_gradient + column)[None, :] / rows
        along = tl.load(weight_gradient + column)[None, :] / rows
        slope = scale * (slope - common - (value - middle) * narrow * along)
        tl.store(result + place, slope.to(result.dtype.element_ty), mask=there)


class _NormRelu(torch.autograd.Function):
    """x, residual: channels-last [n, C, H, W], C a power of two; weight, bias float32."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running: tuple[Tensor, Tensor],
        momentum: float,
        eps: float,
        relu: bool,
    ) -> Tensor:
        rows, channels = x.numel() // x.shape[1], x.shape[1]
        block = max(1, TILE // channels)
        each = -(-rows // (PROGRAMS * block)) * block
        programs = -(-rows // each)
        like = {"device": x.device, "dtype": torch.float32}
        partial = torch.empty(programs, 2, channels, **like)
        mean, inverse = torch.empty(channels, **like), torch.empty(channels, **like)
        out = torch.empty_like(x)
        _moments[(programs,)](x, partial, rows, each, channels, block, num_warps=8)
        columns = min(16, channels)
        _settle[(channels // columns,)](
            *(partial, weight, bias, mean, inverse, *running),
            *(rows, momentum, eps, programs, channels, columns, 128),
            num_warps=4,
        )
        add = residual is not None
        _normalise[(-(-rows // block),)](
            *(x, residual if add else x, out, weight, bias, mean, inverse),
            *(rows, channels, block, add, relu),
            num_warps=8,
        )
        ctx.save_for_backward(x, out if add else None, weight, bias, mean, inverse)
        ctx.sizes = (rows, channels, block, each, programs)
        ctx.add, ctx.relu = add, relu
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, out, weight, bias, mean, inverse = ctx.saved_tensors
        rows, channels, block, each, programs = ctx.sizes
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        partial = torch.empty(programs, 2, channels, device=x.device, dtype=torch.float32)
        passed = torch.empty_like(gradient) if ctx.add else None
        _backward_sums[(programs,)](
            *(x, gradient, out if ctx.add else x, passed if ctx.add else x, partial),
            *(weight, bias, mean, inverse, rows, each, channels, block, ctx.add, ctx.relu),
            num_warps=8,
        )
        weight_gradient, bias_gradient = torch.empty_like(weight), torch.empty_like(bias)
        columns = min(16, channels)
        _settle_backward[(channels // columns,)](
            *(partial, weight_gradient, bias_gradient, programs, channels, columns, 128),
            num_warps=4,
        )
        result = torch.empty_like(x)
        _backward[(-(-rows // block),)](
            *(x, passed if ctx.add else gradient, result, weight, bias, mean, inverse),
            *(weight_gradient, bias_gradient, rows, channels, block),
            ctx.relu and not ctx.add,
            num_warps=8,
        )
        return result, passed, weight_gradient, bias_gradient, None, None, None, None


def norm_relu(
    x: Tensor, norm: nn.BatchNorm2d, residual: Tensor | None = None, *, relu: bool = True
) -> Tensor:
    """`relu(norm(x) + residual)` in training mode, on a GPU. **Shape** channels-last [n, C, H, W].

    `num_batches_tracked` is left alone: the running statistics are moving averages here.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    running = (norm.running_mean, norm.running_var)
    momentum = 0.1 if norm.momentum is None else norm.momentum
    x = x.contiguous(memory_format=torch.channels_last)
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    return _NormRelu.apply(x, residual, norm.weight, norm.bias, running, momentum, norm.eps, relu)
