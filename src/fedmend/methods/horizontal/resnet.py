"""ResNet-8 in half precision on a GPU: the network of `nets.py`, run by kernels of its own.

The training pass joins batch norm, addition and ReLU (`kernels.py`) and goes backwards by
hand, so that gradients of two branches are summed where they are used. In eval mode batch norms
use the same kernels. All compute what the plain network computes, but for rounding; anywhere else
`fast_train` and `fast_eval` give None, and the plain network is run. So it is, with a warning,
where the kernels cannot be compiled.
"""

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
from fedmend.methods.horizontal import kernels
from fedmend.methods.horizontal.networks import ImageNet, NetSpec
from fedmend.methods.horizontal.stem import stem, stem_backward

__all__ = ["eval_pass", "fast_eval", "fast_train", "train_pass"]

HALF = torch.bfloat16
LAST = torch.channels_last

TrainPass = Callable[[Tensor, int], Tensor]
EvalPass = Callable[[Tensor], Tensor]


def fast_train(module: nn.Module, device: torch.device, precision: str) -> TrainPass | None:
    """The training pass of this network by kernels of its own, where there is one.

    It takes images and how many of them, from the first, have a gradient.
    """
    if not _applies(module, device, precision):
        return None
    assert isinstance(module, ImageNet)
    return lambda images, counted: train_pass(module, images, counted)


def fast_eval(module: nn.Module, device: torch.device, precision: str) -> EvalPass | None:
    """The eval pass of this network, with the weights it has now."""
    if not _applies(module, device, precision):
        return None
    assert isinstance(module, ImageNet)
    return eval_pass(module)


def _applies(module: nn.Module, device: torch.device, precision: str) -> bool:
    body = getattr(module, "body", None)
    if not isinstance(body, ResNet8) or device.type != "cuda" or precision != "bf16":
        return False
    # The kernels' matrices of pixels by channels are powers of two wide.
    width = body.width // 4
    if not kernels.available() or width < 16 or width & (width - 1):
        return False
    first: Any = body.stem[0]
    return _compile(first.in_channels, width)


@cache
def _compile(channels: int, width: int) -> bool:
    """Can the kernels be compiled here? A network of the same layers tries, on small images."""
    net = ImageNet(NetSpec("resnet8", 2, channels=channels, width=width)).cuda()
    try:
        images = torch.zeros(32, channels, 8, 8, device="cuda")
        train_pass(net, images).sum().backward()
        eval_pass(net)(images)
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


def train_pass(net: ImageNet, images: Tensor, counted: int | None = None) -> Tensor:
    """Logits in training mode. **Shape** [n, C, H, W] to float32 [n, K].

    counted: the first so many images have a gradient; the others take part in batch norms'
    statistics as constants.
    """
    images = images.to(HALF).contiguous(memory_format=LAST)
    counted = len(images) if counted is None else counted
    features = _Body.apply(images, net.body, counted, *net.body.parameters())
    return net.head(features)


# ---------------------------------------------------------------------------------- training


class _Body(torch.autograd.Function):
    """Everything up to the global average, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, body: Any, counted: int, *parameters: Tensor) -> Tensor:
        weight = body.stem[0].weight
        raw = stem(images, weight)
        x, norm = _norm(raw, body.stem[1])
        kept: list[Any] = [(images, raw, norm)]
        for block in body.blocks:
            assert isinstance(block, ResidualBlock)
            x, saved = _block_forward(block, x)
            kept.append(saved)
        ctx.body, ctx.counted, ctx.kept = body, counted, kept
        ctx.shape = x.shape
        return x.mean((2, 3), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        _, channels, height, width = ctx.shape
        n = ctx.counted
        slope = (gradient[:n] / (height * width)).to(HALF).view(n, channels, 1, 1)
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
        return (None, None, None, *(found[parameter] for parameter in ctx.body.parameters()))


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
        result, passed, weight, bias = kernels.norm_backward(value, with_, *slopes, **options)
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
) -> tuple[Tensor, kernels.Norm]:
    running = (layer.running_mean, layer.running_var)
    return kernels.norm_forward(
        *(x, layer.weight, layer.bias, running, layer.momentum, layer.eps, residual), relu=relu
    )


def _convolve(x: Tensor, layer: Any) -> Tensor:
    weight = layer.weight.to(HALF, memory_format=LAST)
    return F.conv2d(x, weight, None, layer.stride, layer.padding)


def _convolve_backward(slope: Tensor, x: Tensor, layer: Any) -> tuple[Tensor, Tensor]:
    """Gradients of the input and of the filters, of as many images as have one."""
    weight = layer.weight.to(HALF, memory_format=LAST)
    stride, padding = list(layer.stride), list(layer.padding)
    result, filters, _ = torch.ops.aten.convolution_backward(
        *(slope, x[: len(slope)], weight, None, stride, padding, [1, 1], False, [0, 0], 1),
        [True, True, False],
    )
    return result.contiguous(memory_format=LAST), filters.float()


# ---------------------------------------------------------------------------------- eval


@torch.no_grad()
def eval_pass(net: ImageNet) -> EvalPass:
    """The network in eval mode; what depends on the weights is worked out now."""
    body: Any = net.body
    filters = {
        layer: layer.weight.to(HALF, memory_format=LAST)
        for layer in body.modules()
        if isinstance(layer, nn.Conv2d)
    }
    norms: dict[Any, Any] = {
        layer: (layer.weight, layer.bias, layer.running_mean, _inverse(layer))
        for layer in body.modules()
        if isinstance(layer, nn.BatchNorm2d)
    }

    def convolve(x: Tensor, layer: Any) -> Tensor:
        return F.conv2d(x, filters[layer], None, layer.stride, layer.padding)

    @torch.no_grad()
    def run(images: Tensor) -> Tensor:
        images = images.to(HALF).contiguous(memory_format=LAST)
        x = kernels.normalise(stem(images, body.stem[0].weight), norms[body.stem[1]])
        for block in body.blocks:
            assert isinstance(block, ResidualBlock)
            inner = kernels.normalise(convolve(x, block.first), norms[block.first_norm])
            shortcut = x
            if isinstance(block.shortcut, nn.Sequential):
                projected = convolve(x, block.shortcut[0])
                shortcut = kernels.normalise(projected, norms[block.shortcut[1]], relu=False)
            inner = convolve(inner, block.second)
            x = kernels.normalise(inner, norms[block.second_norm], shortcut)
        return net.head(x.mean((2, 3), dtype=torch.float32))

    return run


def _inverse(layer: nn.BatchNorm2d) -> Tensor:
    assert layer.running_var is not None
    return torch.rsqrt(layer.running_var + layer.eps)
