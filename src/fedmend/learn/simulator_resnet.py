"""ResNet-8 in half precision on a GPU: the network of `nets.py`, run with fused kernels.

Training passes join batch norm, addition and ReLU (`simulator_kernels.py`); in eval mode batch
norms are folded into the convolutions. Both compute what the plain network computes, but for
rounding; anywhere else `fast_train` and `fast_eval` give None, and the plain network is run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.learn import simulator_kernels as kernels
from fedmend.learn.nets import ResidualBlock, ResNet8
from fedmend.learn.rounds_nets import ImageNet

__all__ = ["fast_eval", "fast_train", "folded_pass", "fused_pass"]

HALF = torch.bfloat16
LAST = torch.channels_last

Pass = Callable[[Tensor], Tensor]


def fast_train(module: nn.Module, device: torch.device, precision: str) -> Pass | None:
    """The training pass of this network by fused kernels, where there is one."""
    body = getattr(module, "body", None)
    if not _applies(body, device, precision) or not kernels.available():
        return None
    assert isinstance(module, ImageNet)
    return lambda images: fused_pass(module, images)


def fast_eval(module: nn.Module, device: torch.device, precision: str) -> Pass | None:
    """The eval pass of this network with folded batch norms; its weights are read now."""
    if not _applies(getattr(module, "body", None), device, precision):
        return None
    assert isinstance(module, ImageNet)
    return folded_pass(module)


def _applies(body: nn.Module | None, device: torch.device, precision: str) -> bool:
    return isinstance(body, ResNet8) and device.type == "cuda" and precision == "bf16"


def fused_pass(net: ImageNet, images: Tensor) -> Tensor:
    """Logits in training mode. **Shape** [n, C, H, W] to float32 [n, K]."""
    body = net.body
    assert isinstance(body, ResNet8)
    convolution, norm = body.stem[0], body.stem[1]
    assert isinstance(norm, nn.BatchNorm2d)
    x = kernels.norm_relu(_convolve(images, convolution), norm)
    for block in body.blocks:
        assert isinstance(block, ResidualBlock)
        inner = kernels.norm_relu(_convolve(x, block.first), block.first_norm)
        inner = _convolve(inner, block.second)
        shortcut = x
        if isinstance(block.shortcut, nn.Sequential):
            projection, norm = block.shortcut
            assert isinstance(norm, nn.BatchNorm2d)
            shortcut = kernels.norm_relu(_convolve(x, projection), norm, relu=False)
        x = kernels.norm_relu(inner, block.second_norm, shortcut)
    return net.head(x.mean((2, 3), dtype=torch.float32))


def _convolve(x: Tensor, layer: nn.Module) -> Tensor:
    assert isinstance(layer, nn.Conv2d)
    weight = layer.weight.to(HALF, memory_format=LAST)
    return F.conv2d(x.to(HALF), weight, None, layer.stride, layer.padding)


@torch.no_grad()
def folded_pass(net: ImageNet) -> Pass:
    """The network in eval mode, with each batch norm inside the convolution before it."""
    body = net.body
    assert isinstance(body, ResNet8)
    stem = _folded(body.stem[0], body.stem[1])
    blocks = []
    for block in body.blocks:
        assert isinstance(block, ResidualBlock)
        shortcut = block.shortcut
        projection = None
        if isinstance(shortcut, nn.Sequential):
            projection = _folded(shortcut[0], shortcut[1])
        first = _folded(block.first, block.first_norm)
        blocks.append((first, _folded(block.second, block.second_norm), projection))
    weight, bias = net.head.weight.clone(), net.head.bias.clone()

    @torch.no_grad()
    def run(images: Tensor) -> Tensor:
        x = stem(images.to(HALF)).relu_()
        for first, second, projection in blocks:
            inner = second(first(x).relu_())
            x = inner.add_(x if projection is None else projection(x)).relu_()
        return F.linear(x.mean((2, 3), dtype=torch.float32), weight, bias)

    return run


def _folded(layer: nn.Module, norm: nn.Module) -> Pass:
    assert isinstance(layer, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = (layer.weight * scale.view(-1, 1, 1, 1)).to(HALF, memory_format=LAST)
    bias = (norm.bias - norm.running_mean * scale).to(HALF)
    stride, padding = layer.stride, layer.padding
    return lambda x: F.conv2d(x, weight, bias, stride, padding)
