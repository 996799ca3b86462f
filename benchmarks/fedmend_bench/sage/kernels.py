"""ResNet-8 in half precision on a GPU, run by Triton kernels: the network of `learn.nets`, faster.

At ResNet-8's sizes a GPU spends as long on batch norms and ReLUs as on convolutions, all of it
waiting for memory. Here batch norm, addition and ReLU take few passes over memory, the backward
pass is written by hand, so that gradients of two branches are summed where they are used, and the
first layer is a matrix product over gathered neighbourhoods (cuDNN is slow for one or three input
channels). The mathematics is that of the plain network, but for rounding; sums are in float32.
Tensors are channels-last, so that a layer is a matrix of rows (pixels) by channels, a power of two
of them.

`install()` hooks them into `fedmend.methods.horizontal.networks`. Where they do not apply, or, with
a warning, cannot be compiled, plain PyTorch is run.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.errors import FedmendWarning
from fedmend.learn.nets import ResidualBlock, ResNet8
from fedmend.methods.horizontal import networks
from fedmend.methods.horizontal.networks import ImageNet, NetSpec

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU needs no Triton
    triton = None

__all__ = ["eval_pass", "fast_path", "install", "train_pass"]

HALF = torch.bfloat16
LAST = torch.channels_last
# Programs that share a sum over all rows: two for each of an H200's 132 processors (fewer partial
# sums to add up beat more readers), three where a program waits for gathered pixels.
PROGRAMS, STEM_PROGRAMS = 264, 396
TILE = 4096


def install() -> None:
    """Let networks of the package run by these kernels where they can."""
    networks.fast_path = fast_path


def fast_path(module: nn.Module, device: torch.device) -> Callable[[Tensor], Tensor] | None:
    """The pass of this network, in the mode it is in then, where there is one."""
    body = getattr(module, "body", None)
    if not isinstance(module, ImageNet) or not isinstance(body, ResNet8) or device.type != "cuda":
        return None
    # The kernels' matrices of pixels by channels are powers of two wide.
    width = body.width // 4
    if triton is None or width < 16 or width & (width - 1):
        return None
    first: Any = body.stem[0]
    if not _compile(first.in_channels, width):
        return None
    return lambda images: (train_pass if module.training else eval_pass)(module, images)


@cache
def _compile(channels: int, width: int) -> bool:
    """Can the kernels be compiled here? A network of the same layers tries, on small images."""
    net = ImageNet(NetSpec("resnet8", 2, channels=channels, width=width)).cuda()
    try:
        images = torch.zeros(32, channels, 8, 8, device="cuda")
        train_pass(net, images).sum().backward()
        eval_pass(net, images)
        torch.cuda.synchronize()
    except Exception as error:
        warnings.warn(
            f"the fast kernels of ResNet-8 do not run here ({type(error).__name__}: {error}); the "
            "plain network is used. Mend: install the Triton that belongs to this torch, and a C "
            "compiler",
            FedmendWarning,
            stacklevel=2,
        )
        return False
    return True


# ---------------------------------------------------------------------------------- kernels

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
        rows,
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
        last = tl.minimum((program + 1) * each, rows)
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
        C: tl.constexpr,
        BLOCK: tl.constexpr,
        TWO: tl.constexpr,
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
        if TWO:
            slope += tl.load(second + place, mask=there, other=0.0).to(tl.float32)
        if RELU:
            shift = tl.load(bias + column)[None, :] - middle * scale
            slope = tl.where(value * scale + shift > 0, slope, 0.0)
        common = tl.load(bias_gradient + column)[None, :] / rows
        along = tl.load(weight_gradient + column)[None, :] / rows
        slope = scale * (slope - common - (value - middle) * narrow * along)
        tl.store(result + place, slope.to(result.dtype.element_ty), mask=there)

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
        last = tl.minimum((program + 1) * each, rows)
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
    relu: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of the residual, of weight and of bias."""
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    block, each, programs = _sizes(x, rows)
    two, passes = second is not None, out is not None
    partial = torch.empty(programs, 2, channels, device=x.device, dtype=torch.float32)
    passed = torch.empty_like(gradient) if passes else None
    _backward_sums[(programs,)](
        *(x, gradient, second if two else x, out if passes else x, passed if passes else x),
        *(partial, *norm, rows, each, channels, block, two, passes, relu, 2),
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

    gradient, second: their sum came in. out: the layer's output, if there was a residual.
    """
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    two, passes = second is not None, out is not None
    passed, weight_gradient, bias_gradient = backward_moments(x, norm, gradient, second, out, relu)
    result = torch.empty_like(gradient)
    block = max(1, TILE // channels)
    _backward[(-(-rows // block),)](
        *(x, passed if passes else gradient, second if two else x, result, *norm),
        *(weight_gradient, bias_gradient, rows, channels, block),
        *(two and not passes, relu and not passes),
        num_warps=8,
    )
    return result, passed, weight_gradient, bias_gradient


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
    rows = value.numel() // channels
    _, weight_gradient, bias_gradient = backward_moments(value, norm, gradient, second, None, True)
    height, width = images.shape[2:]
    each = -(-rows // (STEM_PROGRAMS * 64)) * 64
    programs = -(-rows // each)
    partial = torch.empty(programs, 32, channels, device=images.device, dtype=torch.float32)
    _stem_backward[(programs,)](
        *(images, value, gradient, second, partial, *norm, weight_gradient, bias_gradient),
        *(rows, each, height, width, images.shape[1], 32, channels, 64),
        num_warps=4,
        num_stages=2,
    )
    taken = 9 * images.shape[1]
    filters = partial.sum(0)[:taken].view(3, 3, images.shape[1], channels).permute(3, 2, 0, 1)
    return filters, weight_gradient, bias_gradient


# ---------------------------------------------------------------------------------- passes


def train_pass(net: ImageNet, images: Tensor) -> Tensor:
    """Logits in training mode. **Shape** [n, C, H, W] to float32 [n, K]."""
    images = images.to(HALF).contiguous(memory_format=LAST)
    return net.head(_Body.apply(images, net.body, *net.body.parameters()))


@torch.no_grad()
def eval_pass(net: ImageNet, images: Tensor) -> Tensor:
    """Logits in eval mode. **Shape** [n, C, H, W] to float32 [n, K]."""
    body: Any = net.body

    def normalised(x: Tensor, layer: Any, residual: Tensor | None = None, **how: bool) -> Tensor:
        inverse = torch.rsqrt(layer.running_var + layer.eps)
        norm = (layer.weight, layer.bias, layer.running_mean, inverse)
        return normalise(x, norm, residual, **how)

    images = images.to(HALF).contiguous(memory_format=LAST)
    x = normalised(stem(images, body.stem[0].weight), body.stem[1])
    for block in body.blocks:
        assert isinstance(block, ResidualBlock)
        inner = normalised(_convolve(x, block.first), block.first_norm)
        shortcut = x
        if isinstance(block.shortcut, nn.Sequential):
            projected = _convolve(x, block.shortcut[0])
            shortcut = normalised(projected, block.shortcut[1], relu=False)
        x = normalised(_convolve(inner, block.second), block.second_norm, shortcut)
    return net.head(x.mean((2, 3), dtype=torch.float32))


class _Body(torch.autograd.Function):
    """Everything up to the global average, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, body: Any, *parameters: Tensor) -> Tensor:
        weight = body.stem[0].weight
        raw = stem(images, weight)
        x, norm = _norm(raw, body.stem[1])
        kept: list[Any] = [(images, raw, norm)]
        for block in body.blocks:
            assert isinstance(block, ResidualBlock)
            x, saved = _block_forward(block, x)
            kept.append(saved)
        ctx.body, ctx.kept = body, kept
        ctx.shape = x.shape
        return x.mean((2, 3), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        n, channels, height, width = ctx.shape
        slope = (gradient / (height * width)).to(HALF).view(n, channels, 1, 1)
        slope = slope.expand(n, channels, height, width).contiguous(memory_format=LAST)
        found: dict[Tensor, Tensor] = {}
        second: Tensor | None = None
        for block, saved in zip(reversed(ctx.body.blocks), reversed(ctx.kept[1:]), strict=True):
            slope, second = _block_backward(block, saved, slope, second, found)
        images, raw, norm = ctx.kept[0]
        assert second is not None
        convolution, first_norm = ctx.body.stem[0], ctx.body.stem[1]
        found[convolution.weight], found[first_norm.weight], found[first_norm.bias] = stem_backward(
            images, raw, norm, slope, second
        )
        return (None, None, *(found[parameter] for parameter in ctx.body.parameters()))


def _block_forward(block: ResidualBlock, x: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
    first = _convolve(x, block.first)
    inner, first_norm = _norm(first, block.first_norm)
    second = _convolve(inner, block.second)
    shortcut, projected, shortcut_norm = x, None, None
    if isinstance(block.shortcut, nn.Sequential):
        projected = _convolve(x, block.shortcut[0])
        shortcut, shortcut_norm = _norm(projected, block.shortcut[1], relu=False)
    out, second_norm = _norm(second, block.second_norm, shortcut)
    return out, (x, first, first_norm, inner, second, second_norm, projected, shortcut_norm, out)


def _block_backward(
    block: ResidualBlock,
    saved: tuple[Any, ...],
    slope: Tensor,
    other: Tensor | None,
    found: dict[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Two gradients of the block's input, to be added up; those of its weights go to `found`."""
    x, first, first_norm, inner, second, second_norm, projected, shortcut_norm, out = saved

    def norm(value: Tensor, with_: Any, layer: Any, *slopes: Any, **options: Any) -> Any:
        result, passed, weight, bias = norm_backward(value, with_, *slopes, **options)
        found[layer.weight], found[layer.bias] = weight, bias
        return result, passed

    def convolution(slope: Tensor, value: Tensor, layer: Any) -> Tensor:
        result, found[layer.weight] = _convolve_backward(slope, value, layer)
        return result

    slope, passed = norm(second, second_norm, block.second_norm, slope, other, out)
    slope = convolution(slope, inner, block.second)
    slope, _ = norm(first, first_norm, block.first_norm, slope)
    slope = convolution(slope, x, block.first)
    if isinstance(block.shortcut, nn.Sequential):
        passed, _ = norm(projected, shortcut_norm, block.shortcut[1], passed, relu=False)
        passed = convolution(passed, x, block.shortcut[0])
    return slope, passed


def _norm(
    x: Tensor, layer: Any, residual: Tensor | None = None, *, relu: bool = True
) -> tuple[Tensor, Norm]:
    running = (layer.running_mean, layer.running_var)
    return norm_forward(
        *(x, layer.weight, layer.bias, running, layer.momentum, layer.eps, residual), relu=relu
    )


def _halves(layer: Any) -> bool:
    """Is it a 1 x 1 convolution of every second pixel? cuDNN runs those without tensor cores."""
    return bool(layer.kernel_size == (1, 1) and layer.stride == (2, 2))


def _convolve(x: Tensor, layer: Any) -> Tensor:
    if _halves(layer):
        pixels = x[:, :, ::2, ::2].permute(0, 2, 3, 1)
        return F.linear(pixels, layer.weight.to(HALF).flatten(1)).permute(0, 3, 1, 2)
    weight = layer.weight.to(HALF, memory_format=LAST)
    return F.conv2d(x, weight, None, layer.stride, layer.padding)


def _convolve_backward(slope: Tensor, x: Tensor, layer: Any) -> tuple[Tensor, Tensor]:
    """Gradients of the input and of the filters."""
    if _halves(layer):
        n, channels, height, width = slope.shape
        slopes = slope.permute(0, 2, 3, 1).reshape(-1, channels)
        pixels = x[:, :, ::2, ::2].permute(0, 2, 3, 1).reshape(len(slopes), -1)
        result = torch.zeros_like(x)
        product = slopes @ layer.weight.to(HALF).flatten(1)
        result[:, :, ::2, ::2] = product.view(n, height, width, -1).permute(0, 3, 1, 2)
        return result, (slopes.t() @ pixels).float().view_as(layer.weight)
    weight = layer.weight.to(HALF, memory_format=LAST)
    stride, padding = list(layer.stride), list(layer.padding)
    result, filters, _ = torch.ops.aten.convolution_backward(
        *(slope, x, weight, None, stride, padding, [1, 1], False, [0, 0], 1),
        [True, True, False],
    )
    return result.contiguous(memory_format=LAST), filters.float()
