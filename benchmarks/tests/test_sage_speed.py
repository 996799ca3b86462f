"""The speed benchmark of SAGE's clients: what it counts, and that both ways run."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedmend.methods.horizontal.networks import NetSpec, build_net
from fedmend.methods.horizontal.rounds import RoundSettings
from fedmend_bench.sage import speed as sage_speed
from fedmend_bench.sage.speed import PAPER, TINY, PlainLoop, matmul_rate, step_flops


def test_flops_are_those_torch_counts() -> None:
    spec = NetSpec("resnet8", 10, channels=3, width=TINY.width)
    net = build_net(spec)
    rows = 5 * TINY.batch
    with FlopCounterMode(display=False) as trained:
        net(torch.zeros(rows, 3, TINY.side, TINY.side)).sum().backward()
    with FlopCounterMode(display=False) as looked_at, torch.no_grad():
        net(torch.zeros(2 * TINY.batch, 3, TINY.side, TINY.side))
    expected = trained.get_total_flops() + looked_at.get_total_flops()
    assert step_flops(spec, TINY) == expected


def test_the_papers_step_has_the_flops_of_the_sketch() -> None:
    """Less the first layer's gradient of the images: about 0.85 TFLOP."""
    flops = step_flops(NetSpec("resnet8", 10, channels=3), PAPER)
    assert flops == pytest.approx(0.845e12, rel=0.01)


def test_the_plain_loop_learns() -> None:
    """It is a fair peer: the same step, so it must train."""
    torch.manual_seed(0)
    images = torch.zeros(48, 3, 16, 16, dtype=torch.uint8)
    labels = torch.arange(48) % 2
    images[labels == 1] = 200
    spec = NetSpec("resnet8", 10, channels=3, width=4)
    loop = PlainLoop(images, labels, spec, RoundSettings(), TINY)
    before = [parameter.detach().clone() for parameter in loop.net.parameters()]
    assert loop.measure(2) > 0
    moved = zip(before, loop.net.parameters(), strict=True)
    assert all(bool((old != new).any()) for old, new in moved)


@pytest.mark.slow
def test_the_benchmark_runs_small() -> None:
    result = sage_speed.run(quick=True, device="cpu", rounds=1)
    assert len(result.rows) == 3
    assert all(row["ms per client-step"] > 0 for row in result.rows)
    assert matmul_rate(torch.device("cpu")) > 0
