"""Triton kernels for ResNet-8: batch norm, addition and ReLU in few passes over memory.

At ResNet-8's sizes a GPU spends as long on batch norms and ReLUs as on convolutions, all of it
waiting for memory. Tensors are channels-last, so that a layer is a matrix of rows (pixels) by
channels, a power of two of them. Sums are taken in float32. The mathematics is that of the plain
network. (The first layer: `stem.py`.)

`counted` rows of `rows` have a gradient: a batch may end in rows that take part in the statistics
but are held constant.

Triton is imported where there is one; `available()` says whether these kernels can run.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU needs no Triton
    triton = None

__all__ = ["Norm", "available", "backward_moments", "norm_backward", "norm_forward", "normalise"]

# Four programs for each of an H200's 132 processors.
PROGRAMS = 528
TILE = 4096


def available() -> bool:
    """Is there a GPU and the compiler for it?"""
    return triton is not None and torch.cuda.is_available()


if triton is not None:

    @triton.jit
    def _moments(
        x, partial, rows, each, C: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
    ):
        program = tl.program_id(0)
        column = tl.arange(0, C)
        total = tl.zeros([BLOCK, C], tl.float32)
        squares = tl.zeros([BLOCK, C], tl.float32)
        last = tl.minimum((program + 1) * each, rows)
        for at in tl.range(program * each, last, BLOCK, num_stages=STAGES):
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
        second,
        out,
        passed,
        partial,
        weight,
        bias,
        mean,
        inverse,
        counted,
        each,
        C: tl.constexpr,
        BLOCK: tl.constexpr,
        TWO: tl.constexpr,
        PASS: tl.constexpr,
        RELU: tl.constexpr,
        STAGES: tl.constexpr,
    ):
        program = tl.program_id(0)
        column = tl.arange(0, C)
        middle = tl.load(mean + column)[None, :]
        narrow = tl.load(inverse + column)[None, :]
        scale = tl.load(weight + column)[None, :] * narrow
        shift = tl.load(bias + column)[None, :] - middle * scale
        total = tl.zeros([BLOCK, C], tl.float32)
        along = tl.zeros([BLOCK, C], tl.float32)
        last = tl.minimum((program + 1) * each, counted)
        for at in tl.range(program * each, last, BLOCK, num_stages=STAGES):
            row = at + tl.arange(0, BLOCK)
            place = row[:, None] * C + column[None, :]
            there = row[:, None] < last
            value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
            slope = tl.load(gradient + place, mask=there, other=0.0).to(tl.float32)
            if TWO:
                slope += tl.load(second + place, mask=there, other=0.0).to(tl.float32)
            if RELU:
                if PASS:
                    # With a residual the sign is only in the output.
                    slope = tl.where(tl.load(out + place, mask=there, other=0.0) > 0, slope, 0.0)
                else:
                    slope = tl.where(value * scale + shift > 0, slope, 0.0)
            if PASS:
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
        second,
        result,
        weight,
        bias,
        mean,
        inverse,
        weight_gradient,
        bias_gradient,
        rows,
        counted,
        C: tl.constexpr,
        BLOCK: tl.constexpr,
        TWO: tl.constexpr,
        RELU: tl.constexpr,
    ):
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        column = tl.arange(0, C)
        place = row[:, None] * C + column[None, :]
        there = row[:, None] < counted
        middle = tl.load(mean + column)[None, :]
        narrow = tl.load(inverse + column)[None, :]
        scale = tl.load(weight + column)[None, :] * narrow
        value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
        slope = tl.load(gradient + place, mask=there, other=0.0).to(tl.float32)
        if TWO:
            slope += tl.load(second + place, mask=there, other=0.0).to(tl.float32)
        if RELU:
            shift = tl.load(bias + column)[None, :] - middle * scale
            slope = tl.where(value * scale + shift > 0, slope, 0.0)
        common = tl.load(bias_gradient + column)[None, :] / rows
        along = tl.load(weight_gradient + column)[None, :] / rows
        slope = scale * (slope - common - (value - middle) * narrow * along)
        tl.store(result + place, slope.to(result.dtype.element_ty), mask=there)


# ---------------------------------------------------------------------------------- launching

Norm = tuple[Tensor, Tensor, Tensor, Tensor]
"""A batch norm's weight and bias, and the mean and inverse deviation it normalised with."""


def _sizes(x: Tensor, rows: int) -> tuple[int, int, int]:
    """Rows of a tile, rows of a program, and how many programs share the rows."""
    block = max(1, TILE // x.shape[1])
    each = -(-rows // (PROGRAMS * block)) * block
    return block, each, -(-rows // each)


def norm_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor],
    momentum: float,
    eps: float,
    residual: Tensor | None = None,
    *,
    relu: bool = True,
) -> tuple[Tensor, Norm]:
    """`relu(batch_norm(x) + residual)` in training mode, and what the backward pass needs."""
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    block, each, programs = _sizes(x, rows)
    partial = torch.empty(programs, 2, channels, device=x.device, dtype=torch.float32)
    mean, inverse = torch.empty_like(weight), torch.empty_like(weight)
    _moments[(programs,)](x, partial, rows, each, channels, block, 3, num_warps=8)
    columns = min(16, channels)
    _settle[(channels // columns,)](
        *(partial, mean, inverse, *running, rows, momentum, eps),
        *(programs, channels, columns, 128),
        num_warps=4,
    )
    norm = (weight, bias, mean, inverse)
    return normalise(x, norm, residual, relu=relu), norm


def normalise(
    x: Tensor, norm: Norm, residual: Tensor | None = None, *, relu: bool = True
) -> Tensor:
    """`relu((x - mean) * inverse * weight + bias + residual)`."""
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    block = max(1, TILE // channels)
    out = torch.empty_like(x)
    add = residual is not None
    _normalise[(-(-rows // block),)](
        *(x, residual if add else x, out, *norm, rows, channels, block, add, relu), num_warps=8
    )
    return out


def backward_moments(
    x: Tensor,
    norm: Norm,
    gradient: Tensor,
    second: Tensor | None,
    out: Tensor | None,
    counted: int,
    relu: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of the residual, of weight and of bias."""
    channels = x.shape[1]
    block, each, programs = _sizes(x, counted)
    two, passes = second is not None, out is not None
    partial = torch.empty(programs, 2, channels, device=x.device, dtype=torch.float32)
    passed = torch.empty_like(gradient) if passes else None
    _backward_sums[(programs,)](
        *(x, gradient, second if two else x, out if passes else x, passed if passes else x),
        *(partial, *norm, counted, each, channels, block, two, passes, relu, 2),
        num_warps=8,
    )
    weight_gradient, bias_gradient = torch.empty_like(norm[0]), torch.empty_like(norm[1])
    columns = min(16, channels)
    _settle_backward[(channels // columns,)](
        *(partial, weight_gradient, bias_gradient, programs, channels, columns, 128), num_warps=4
    )
    return passed, weight_gradient, bias_gradient


def norm_backward(
    x: Tensor,
    norm: Norm,
    gradient: Tensor,
    second: Tensor | None = None,
    out: Tensor | None = None,
    *,
    relu: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients of x, of the residual, of weight and of bias.

    gradient, second: their sum came in, for the first images of the batch or all of them; the
    results are for as many. out: the layer's output, if there was a residual.
    """
    channels = x.shape[1]
    rows, counted = x.numel() // channels, gradient.numel() // channels
    two, passes = second is not None, out is not None
    passed, weight_gradient, bias_gradient = backward_moments(
        x, norm, gradient, second, out, counted, relu
    )
    result = torch.empty_like(gradient)
    block = max(1, TILE // channels)
    _backward[(-(-counted // block),)](
        *(x, passed if passes else gradient, second if two else x, result, *norm),
        *(weight_gradient, bias_gradient, rows, counted, channels, block),
        *(two and not passes, relu and not passes),
        num_warps=8,
    )
    return result, passed, weight_gradient, bias_gradient
