"""ResNet-8 by kernels of its own against the plain network, by Triton's interpreter or on a GPU.

Where there is no Triton the passes are held to the plain network all the same, with each kernel's
work done by PyTorch.
"""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import nn

# Triton reads this when it is imported; a machine with a GPU compiles instead.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.horizontal import networks
from fedmend.methods.horizontal.networks import FlatNet, NetSpec, build_net
from fedmend_bench.sage import kernels
from fedmend_bench.sage.kernels import (
    eval_pass,
    norm_backward,
    norm_forward,
    stem,
    stem_backward,
    train_pass,
)

needs_triton = pytest.mark.skipif(kernels.triton is None, reason="needs Triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAST = torch.channels_last


def a_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels).to(DEVICE)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-0.5, 0.5)
    return norm


def close(*pairs, atol: float = 3e-5) -> None:
    for ours, theirs in pairs:
        assert torch.allclose(ours, theirs.detach(), atol=atol, rtol=1e-4)


@needs_triton
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("shape", [(5, 16, 6, 7), (3, 64, 4, 4)])
def test_values_gradients_and_statistics_are_torchs(add, relu, two, shape) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * 2 + 0.5).to(DEVICE, memory_format=LAST)
    residual = torch.randn(shape).to(DEVICE, memory_format=LAST)
    norm = a_norm(shape[1])
    plain = copy.deepcopy(norm)
    head, other = x.clone().requires_grad_(), residual.clone().requires_grad_()
    theirs = plain(head) + other if add else plain(head)
    theirs = torch.relu(theirs) if relu else theirs
    slopes = [torch.randn_like(x) for _ in range(1 + two)]
    theirs.backward(sum(slopes))
    ours, saved = norm_forward(
        *(x, norm.weight.detach(), norm.bias.detach(), (norm.running_mean, norm.running_var)),
        *(0.1, norm.eps, residual if add else None),
        relu=relu,
    )
    close((ours, theirs), (norm.running_mean, plain.running_mean))
    close((norm.running_var, plain.running_var))
    second = slopes[1] if two else None
    result, passed, weight, bias = norm_backward(
        x, saved, slopes[0], second, ours if add else None, relu=relu
    )
    close((result, head.grad), (weight, plain.weight.grad), (bias, plain.bias.grad))
    if add:
        close((passed, other.grad))


@needs_triton
@pytest.mark.parametrize("channels", [1, 3])
def test_the_first_layer_is_torchs(channels) -> None:
    torch.manual_seed(1)
    images = torch.randn(4, channels, 6, 8).to(DEVICE, memory_format=LAST)
    weight = torch.randn(16, channels, 3, 3).to(DEVICE).requires_grad_()
    norm = a_norm(16)
    raw = nn.functional.conv2d(images, weight, padding=1)
    # On a GPU products of float32 are taken in TF32.
    close((stem(images, weight.detach()), raw), atol=3e-5 if DEVICE == "cpu" else 0.05)
    out = torch.relu(norm(raw))
    slopes = [torch.randn_like(out) for _ in range(2)]
    out.backward(sum(slopes))
    value = raw.detach().contiguous(memory_format=LAST)
    mean = value.mean((0, 2, 3))
    inverse = torch.rsqrt(value.var((0, 2, 3), unbiased=False) + norm.eps)
    saved = (norm.weight.detach(), norm.bias.detach(), mean, inverse)
    slopes = [slope.contiguous(memory_format=LAST) for slope in slopes]
    filters, scale, shift = stem_backward(images, value, saved, *slopes)
    close((scale, norm.weight.grad), (shift, norm.bias.grad), atol=1e-4)
    close((filters, weight.grad), atol=1e-4 if DEVICE == "cpu" else 0.1)


def by_torch_backward(x, norm, gradient, second=None, out=None, *, relu=True):
    weight, bias, mean, inverse = (each.view(1, -1, 1, 1) for each in norm)
    standard = (x - mean) * inverse
    slope = gradient if second is None else gradient + second
    if relu:
        slope = slope * ((standard * weight + bias if out is None else out) > 0)
    along, total = (slope * standard).sum((0, 2, 3)), slope.sum((0, 2, 3))
    rows = x.numel() / x.shape[1]
    inner = slope - (total.view(1, -1, 1, 1) + standard * along.view(1, -1, 1, 1)) / rows
    return weight * inverse * inner, None if out is None else slope, along, total


def by_torch_normalise(x, norm, residual=None, *, relu=True):
    weight, bias, mean, inverse = (each.view(1, -1, 1, 1) for each in norm)
    value = (x - mean) * inverse * weight + bias
    value = value if residual is None else value + residual
    return torch.relu(value) if relu else value


def by_torch_forward(x, weight, bias, running, momentum, eps, residual=None, *, relu=True):
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    rows = x.numel() / x.shape[1]
    running[0].lerp_(mean, momentum)
    running[1].lerp_(variance, momentum)
    norm = (weight, bias, mean, torch.rsqrt(variance * (rows - 1) / rows + eps))
    return by_torch_normalise(x, norm, residual, relu=relu), norm


def by_torch_stem_backward(images, value, norm, gradient, second):
    slope, _, scale, shift = by_torch_backward(value, norm, gradient, second)
    shape = (value.shape[1], images.shape[1], 3, 3)
    return nn.grad.conv2d_weight(images, shape, slope, padding=1), scale, shift


@pytest.fixture
def exactly(monkeypatch):
    """All in float32, so that only mistakes make a difference."""
    monkeypatch.setattr(kernels, "HALF", torch.float32)
    if kernels.triton is None:
        monkeypatch.setattr(kernels, "norm_forward", by_torch_forward)
        monkeypatch.setattr(kernels, "norm_backward", by_torch_backward)
        monkeypatch.setattr(kernels, "normalise", by_torch_normalise)
        monkeypatch.setattr(
            kernels, "stem", lambda x, weight: nn.functional.conv2d(x, weight, padding=1)
        )
        monkeypatch.setattr(kernels, "stem_backward", by_torch_stem_backward)


def nets() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    net = build_net(NetSpec("resnet8", 4, channels=3, width=16)).to(DEVICE)
    return net, copy.deepcopy(net), torch.randn(6, 3, 8, 8).to(DEVICE, memory_format=LAST)


@pytest.mark.skipif(DEVICE == "cuda", reason="TF32 would blur the comparison")
def test_the_network_and_all_its_gradients_are_the_plain_ones(exactly) -> None:
    net, plain, images = nets()
    ours, theirs = train_pass(net, images), plain(images)
    close((ours, theirs), atol=1e-4)
    weights = torch.randn_like(ours)
    for logits in (ours, theirs):
        (logits * weights).sum().backward()
    for (name, mine), other in zip(net.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine.grad, other.grad, atol=2e-3, rtol=1e-3), name
    for mine, other in zip(net.buffers(), plain.buffers(), strict=True):
        if mine.is_floating_point():
            close((mine, other), atol=1e-4)
    net.eval()
    plain.load_state_dict(net.state_dict())
    plain.eval()
    close((eval_pass(net, images), plain(images)), atol=1e-3)


def test_one_pass_can_be_gone_back_through_twice(exactly) -> None:
    """FedMatch asks one network for the gradients of two losses."""
    net, _, images = nets()
    logits = train_pass(net, images)
    logits[:, 0].sum().backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in net.parameters()]
    logits[:, 0].sum().backward()
    for once, parameter in zip(first, net.parameters(), strict=True):
        assert torch.allclose(parameter.grad, 2 * once, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_the_package_runs_them_once_they_are_installed(monkeypatch) -> None:
    monkeypatch.setattr(networks, "fast_path", lambda module, device: None)
    spec = (NetSpec("resnet8", 4, channels=3, width=16), OptimizerSpec("sgd"))
    plain = FlatNet(*spec, torch.device("cuda"), torch.float32, half=True)
    kernels.install()
    fast = FlatNet(*spec, torch.device("cuda"), torch.float32, half=True)
    assert plain._fast is None and fast._fast is not None
    images = torch.randn(32, 3, 8, 8, device="cuda").to(memory_format=LAST)
    for training in (True, False):
        for net in (plain, fast):
            net.load(networks.initial_weights(spec[0], 0).cuda())
            net.module.train(training)
        ours, theirs = fast(images).detach(), plain(images).detach()
        assert float((ours - theirs).norm() / theirs.norm()) < 0.05
