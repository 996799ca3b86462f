"""Fused batch norm, addition and ReLU against torch's own, by Triton's interpreter or on a GPU."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import nn

# Triton reads this when it is imported; a machine with a GPU compiles instead.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from fedmend.learn.rounds import NetSpec, build_net
from fedmend.learn.simulator_kernels import norm_relu
from fedmend.learn.simulator_resnet import fused_pass

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAST = torch.channels_last


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(5, 16, 6, 7), (3, 64, 4, 4)])
def test_values_gradients_and_statistics_are_torchs(add, relu, shape) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * 2 + 0.5).to(DEVICE, memory_format=LAST)
    residual = torch.randn(shape).to(DEVICE, memory_format=LAST)
    norm = nn.BatchNorm2d(shape[1]).to(DEVICE)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-0.5, 0.5)
    plain = copy.deepcopy(norm)
    inputs = [(x.clone().requires_grad_(), residual.clone().requires_grad_()) for _ in range(2)]
    ours = norm_relu(inputs[0][0], norm, inputs[0][1] if add else None, relu=relu)
    theirs = plain(inputs[1][0])
    theirs = theirs + inputs[1][1] if add else theirs
    theirs = torch.relu(theirs) if relu else theirs
    slope = torch.randn_like(theirs)
    ours.backward(slope)
    theirs.backward(slope)
    pairs = [(ours, theirs), (inputs[0][0].grad, inputs[1][0].grad)]
    pairs += [(norm.weight.grad, plain.weight.grad), (norm.bias.grad, plain.bias.grad)]
    pairs += [(norm.running_mean, plain.running_mean), (norm.running_var, plain.running_var)]
    if add:
        pairs.append((inputs[0][1].grad, inputs[1][1].grad))
    for mine, other in pairs:
        assert torch.allclose(mine, other, atol=3e-5, rtol=1e-4)


def test_the_fused_network_is_the_plain_one_but_for_rounding() -> None:
    torch.manual_seed(0)
    net = build_net(NetSpec("resnet8", 4, channels=3, width=16)).to(DEVICE)
    plain = copy.deepcopy(net)
    images = torch.randn(6, 3, 8, 8).to(DEVICE, memory_format=LAST)
    ours, theirs = fused_pass(net, images.bfloat16()), plain(images.bfloat16().float())
    assert float((ours - theirs).detach().norm() / theirs.detach().norm()) < 0.05
    for loss in (ours.square().mean(), theirs.square().mean()):
        loss.backward()
    for mine, other in zip(net.parameters(), plain.parameters(), strict=True):
        assert float((mine.grad - other.grad).norm()) < 0.25 * float(other.grad.norm()) + 1e-4
    for mine, other in zip(net.buffers(), plain.buffers(), strict=True):
        if mine.is_floating_point():
            assert torch.allclose(mine, other, atol=0.02, rtol=0.02)
