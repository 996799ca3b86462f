"""`fedmend bench sage-speed`: what a client's step costs in the simulator, and in a plain loop.

Images: ResNet-8 at SAGE's batch (128 labelled, 256 unlabelled rows in a weak and a strong view),
augmentation and the global model's predictions included, beside the same steps written as one
would in plain PyTorch, and beside the arithmetic alone: the steps' FLOPs at the rate of a large
matrix product. Random data: the cost does not depend on it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.methods.horizontal.local_methods import PseudoMethod
from fedmend.methods.horizontal.networks import NetSpec, build_net
from fedmend.methods.horizontal.rounds import Pool, RoundSettings
from fedmend.methods.horizontal.rules import SageRule
from fedmend.methods.horizontal.views import ImageViews
from fedmend.split.config import resolve_device
from fedmend_bench.harness import Bar, BenchResult, device_name
from fedmend_bench.sage.simulator import Simulator
from fedmend_bench.simulation import wait

NAME = "sage-speed"
HELP = "a client's training step in the simulator beside a plain loop, and the card's arithmetic"

STEP_LIMIT = 5.5
MEMORY_LIMIT = 40.0


@dataclass(frozen=True)
class Size:
    """Images: rows and side of a client's, the first layer's width, the labelled batch."""

    rows: int
    side: int
    width: int
    batch: int
    clients: int


PAPER = Size(2500, 32, 64, 128, 8)
TINY = Size(48, 16, 16, 8, 2)


def run(quick: bool = False, device: str = "auto", rounds: int = 3) -> BenchResult:
    """Measure; `quick`, or no GPU, takes a tiny network."""
    where = resolve_device(device)
    rows, bars = _images(TINY if quick or where.type != "cuda" else PAPER, where, rounds)
    return BenchResult(NAME, rows, bars, device=device_name(where))


def _images(
    size: Size, device: torch.device, rounds: int
) -> tuple[list[dict[str, Any]], list[Bar]]:
    generator = torch.Generator().manual_seed(0)
    shape = (size.rows * size.clients, 3, size.side, size.side)
    images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(device)
    labels = torch.randint(0, 10, shape[:1], generator=generator)
    spec = NetSpec("resnet8", 10, channels=3, width=size.width)
    precision = "bf16" if device.type == "cuda" else "float32"
    settings = RoundSettings(batch_size=size.batch, precision=precision)
    flops = step_flops(spec, size)
    rate = matmul_rate(device)
    what = f"ResNet-8 ({size.width}), {size.side} x {size.side}, batch {5 * size.batch}"
    views = ImageViews(images)
    simulator = Simulator(
        *(_pools(views, labels, size), spec, PseudoMethod("sage"), settings),
        carry_momentum=True,
        device=str(device),
    )
    ms = statistics.median(_round_ms(simulator) for _ in range(rounds + 1))
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    plain = PlainLoop(images, labels.to(device), spec, settings, size)
    plain_ms = plain.measure(20 if device.type == "cuda" else 5)
    floor = flops / rate * 1e3
    rows = [
        _row(what, "simulator", ms, flops, peak or None),
        _row(what, "plain PyTorch loop", plain_ms, flops, None),
        _row(what, "arithmetic at the rate of a large product", floor, flops, None),
    ]
    bars = []
    if size == TINY:
        # On a processor both do the same arithmetic.
        bars.append(
            Bar.at_most("a step of the simulator over the plain loop's", ms / plain_ms, 1.25)
        )
    if device.type == "cuda" and size == PAPER:
        bars.append(Bar.at_most(f"ms per client-step, {what}", ms, STEP_LIMIT))
        bars.append(Bar.at_most("peak GB of GPU memory", peak, MEMORY_LIMIT))
    return rows, bars


def _row(
    what: str, how: str, ms: float, flops: float | None, memory: float | None
) -> dict[str, Any]:
    return {
        "what": what,
        "how": how,
        "ms per client-step": ms,
        "client-steps per s": 1e3 / ms,
        "TFLOP/s": None if flops is None else flops / ms / 1e9,
        "peak GB": memory,
    }


def _pools(views: ImageViews, labels: Tensor, size: Size) -> list[Pool]:
    pools = []
    for number in range(size.clients):
        own = torch.arange(number * size.rows, (number + 1) * size.rows)
        labelled = own[: max(size.batch, size.rows // 10)]
        pools.append(
            Pool(views, labels, labelled=labelled, unlabelled=own, name=f"client-{number}")
        )
    return pools


def _round_ms(simulator: Simulator) -> float:
    """Milliseconds of one client's step, everything in a round included."""
    wait(str(simulator.device))
    began = _clock(simulator.device)
    report = simulator.run_round()
    wait(str(simulator.device))
    steps = sum(each["steps"] for each in report.per_client)
    return (_clock(simulator.device) - began) / steps * 1e3


def _clock(device: torch.device) -> float:
    """Seconds; without a card those of the processor, which other work does not change."""
    return time.perf_counter() if device.type == "cuda" else time.process_time()


class PlainLoop:
    """The same step as one would write it: modules, autocast, torch.optim, a batch at a time."""

    def __init__(
        self, images: Tensor, labels: Tensor, spec: NetSpec, settings: RoundSettings, size: Size
    ) -> None:
        device = images.device
        self.images, self.labels, self.settings, self.size = images, labels, settings, size
        self.net, self.common = build_net(spec).to(device), build_net(spec).to(device).eval()
        for net in (self.net, self.common):
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        chosen = settings.optimizer
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), chosen.lr, chosen.momentum, weight_decay=chosen.weight_decay
        )
        self.rule = SageRule()
        self.generator = torch.Generator().manual_seed(0)
        self.views = ImageViews(images)

    def measure(self, steps: int) -> float:
        for _ in range(3):
            self.step()
        wait(str(self.images.device))
        began = _clock(self.images.device)
        for _ in range(steps):
            self.step()
        wait(str(self.images.device))
        return (_clock(self.images.device) - began) / steps * 1e3

    def step(self) -> None:
        b, u = self.size.batch, 2 * self.size.batch
        device = self.images.device
        rows = torch.randperm(self.size.rows, generator=self.generator).to(device)
        own, others = rows[:b], rows[:u]
        views, generator = self.views, self.generator
        (labelled,) = views.weak(own, views.draw_weak(b, generator))
        (weak,) = views.weak(others, views.draw_weak(u, generator))
        (strong,) = views.strong(others, views.draw_strong(u, generator))
        half = self.settings.precision == "bf16"
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            with torch.no_grad():
                p_g = torch.softmax(self.common(weak).float(), 1)
            logits = self.net(torch.cat([labelled, weak, strong])).float()
        local = torch.softmax(logits[b : b + u].detach(), 1)
        labels = self.rule(local, p_g, others, {})
        log_p = torch.log_softmax(logits[b + u :], 1)
        unlabelled = -(labels.target * log_p).sum(1) * labels.mask
        loss = F.cross_entropy(logits[:b], self.labels[own]) + unlabelled.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def step_flops(spec: NetSpec, size: Size) -> float:
    """Multiplications and additions of a step: forward and back for all views, the global
    model's forward.

    The backward pass of the first layer has no gradient of the images.
    """
    net = build_net(spec)
    counted: list[float] = []

    def count(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        assert isinstance(layer.weight, Tensor)
        places = output.shape[2] * output.shape[3] if output.ndim == 4 else 1
        counted.append(2.0 * layer.weight.numel() * places)

    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(count)
    net(torch.zeros(2, 3, size.side, size.side))
    forward, first = sum(counted), counted[0]
    trained, looked_at = 5 * size.batch, 2 * size.batch
    return trained * (3 * forward - first) + looked_at * forward


def matmul_rate(device: torch.device) -> float:
    """FLOP/s of a large product in the precision that is trained in."""
    n = 8192 if device.type == "cuda" else 512
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a = torch.randn(n, n, device=device, dtype=dtype)
    return 2.0 * n**3 / _best_seconds(lambda: a @ a, device)


def _best_seconds(call: Callable[[], Any], device: torch.device, times: int = 10) -> float:
    best = float("inf")
    for _ in range(times):
        wait(str(device))
        began = _clock(device)
        call()
        wait(str(device))
        best = min(best, _clock(device) - began)
    return best
