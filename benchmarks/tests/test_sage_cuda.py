"""What only a GPU can show: captured steps, the same views and the same numbers as on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedmend.learn.augment import apply_weak, draw_weak
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.horizontal.baselines import MatchServer
from fedmend.methods.horizontal.local_methods import LocalMethod, PseudoMethod, Supervised
from fedmend.methods.horizontal.networks import NetSpec
from fedmend.methods.horizontal.randaugment import (
    OPERATIONS,
    _apply,
    apply_strong,
    draw_strong,
)
from fedmend.methods.horizontal.rounds import Pool, RoundSettings, round_generator
from fedmend.methods.horizontal.views import ImageViews, TableViews
from fedmend_bench.sage.simulator import Simulator

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SMALL = RoundSettings(epochs=1, batch_size=16, optimizer=OptimizerSpec("sgd", 0.02, 1e-4))


def noise(n: int, side: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, 3, side, side), generator=generator, dtype=torch.uint8)


def image_pools(clients: int = 3, rows: int = 128) -> list[Pool]:
    views = ImageViews(noise(clients * rows, 16))
    labels = torch.arange(clients * rows) % 4
    return [
        Pool(
            views,
            labels,
            labelled=torch.arange(at, at + 48),
            unlabelled=torch.arange(at, at + rows),
            name=f"c{at}",
        )
        for at in range(0, clients * rows, rows)
    ]


def table_pools() -> list[Pool]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for number in range(3):
        numeric = torch.randn(96, 4, generator=generator)
        labels = torch.where(torch.arange(96) < 40, numeric[:, :3].argmax(1), -1)
        made.append(Pool(TableViews(numeric), labels, name=f"t{number}"))
    return made


def after(pools, net, method, settings, rounds: int = 2, **options) -> torch.Tensor:
    simulator = Simulator(pools, net, method, settings, seed=2, **options)
    for _ in range(rounds):
        simulator.run_round()
    return simulator.weights.cpu()


def test_views_are_those_of_a_cpu() -> None:
    images = noise(500)
    generator = torch.Generator().manual_seed(3)
    weak, strong = draw_weak(500, generator), draw_strong(500, generator)
    there = images.cuda()
    assert torch.equal(apply_weak(there, weak).cpu(), apply_weak(images, weak))
    assert torch.equal(apply_strong(there, strong).cpu(), apply_strong(images, strong))
    magnitude = torch.arange(500) % 9 + 1
    for number in range(len(OPERATIONS)):
        ours, theirs = there.clone(), images.clone()
        for changed in (ours, theirs):
            _apply(changed, torch.full_like(magnitude, number), magnitude, magnitude % 2)
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("method", [Supervised(), PseudoMethod("sage"), PseudoMethod("flexmatch")])
def test_tables_give_the_numbers_of_a_cpu(method) -> None:
    net = NetSpec("mlp", 3, numeric=4, hidden=(8,))
    settings = replace(SMALL, precision="float64")
    there = after(table_pools(), net, method, settings, device="cuda")
    here = after(table_pools(), net, method, settings, device="cpu")
    assert torch.allclose(there, here, atol=1e-9)


@pytest.mark.parametrize("method", [PseudoMethod("sage"), PseudoMethod("flexmatch")])
@pytest.mark.parametrize("carry", [False, True])
def test_captured_steps_are_the_plain_ones(method, carry) -> None:
    net = NetSpec("resnet8", 4, channels=3, width=16)
    settings = replace(SMALL, precision="float64")
    options = {"device": "cuda", "per_round": 2, "carry_momentum": carry}
    replayed = after(image_pools(), net, method, settings, **options)
    plain = after(image_pools(), net, method, settings, capture=False, **options)
    assert torch.allclose(replayed, plain, atol=1e-9)


@pytest.mark.parametrize("name", ["fedmatch", "fedloke", "feddure"])
def test_captured_steps_of_two_networks_are_the_plain_ones(name) -> None:
    net = NetSpec("resnet8", 4, channels=3, width=16)
    settings = replace(SMALL, precision="float64")

    def rounds(capture: bool | None) -> torch.Tensor:
        simulator = Simulator(
            *(image_pools(), net, LocalMethod.of({"name": name}), settings),
            device="cuda",
            capture=capture,
            server=MatchServer() if name == "fedmatch" else None,
        )
        for _ in range(3):
            simulator.run_round()
        return simulator.weights

    assert torch.allclose(rounds(None), rounds(False), atol=1e-8)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_clients_round_never_waits_for_the_gpu() -> None:
    """So that the CPU can prepare the next client while the GPU trains this one."""
    net = NetSpec("resnet8", 4, channels=3, width=16)
    settings = replace(SMALL, precision="bf16")
    simulator = Simulator(image_pools(), net, PseudoMethod("sage"), settings, device="cuda")
    simulator.run_round()  # captures, and makes what is kept
    start = simulator.weights.clone()
    pool = next(iter(simulator.pools.values()))
    try:
        torch.cuda.set_sync_debug_mode("error")
        update = simulator.trainer.train(pool, start, round_generator(0, pool.name, 9))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bool(torch.isfinite(update.weights).all())
