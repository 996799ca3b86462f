"""A fleet against the same networks trained one by one in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedmend.errors import ConfigError
from fedmend.learn.nets import Batch, initialise
from fedmend.learn.optim import OptimizerSpec
from fedmend_bench.inc.networks import Fleet, FleetShape

SHAPES = [
    FleetShape((2, 3), 4, (), 3, ()),
    FleetShape((2, 3), 4, (), 3, (5,)),
    FleetShape((2, 1, 2), 3, (4,), 2, (6, 5)),
]


def alone(
    shape: FleetShape,
    x: torch.Tensor,
    t: torch.Tensor,
    orders: list[torch.Tensor],
    size: int,
    start: int,
    weight_decay: float,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Ordinary modules, autograd and torch's Adam."""
    modules: Any = nn.ModuleList([*shape.bottoms(), shape.make_top()])
    for module in modules:
        initialise(module, torch.Generator().manual_seed(start))
    modules.double()
    optimizer = torch.optim.Adam(modules.parameters(), 1e-2, weight_decay=weight_decay)

    def forward(rows: torch.Tensor) -> torch.Tensor:
        parts = x[rows].split(list(shape.columns), 1)
        codes = torch.zeros(len(rows), 0, dtype=torch.int64)
        pieces = [
            bottom(Batch(part, codes)) for bottom, part in zip(modules[:-1], parts, strict=True)
        ]
        return modules[-1](pieces)

    for order in orders:
        for rows in order.split(size):
            optimizer.zero_grad()
            loss = -(t[rows] * F.log_softmax(forward(rows), 1)).sum(1).mean()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        outputs = torch.softmax(forward(torch.arange(len(x))), 1)
    bottoms = [[m for m in b.modules() if isinstance(m, nn.Linear)] for b in modules[:-1]]
    weights = []
    for layers in zip(*bottoms, strict=True):
        weights.append(torch.block_diag(*[layer.weight.T for layer in layers]))
        weights.append(torch.cat([layer.bias for layer in layers])[None])
    for layer in (m for m in modules[-1].modules() if isinstance(m, nn.Linear)):
        weights += [layer.weight.T, layer.bias[None]]
    return [weight.detach() for weight in weights], outputs


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
def test_each_run_is_the_run_alone(shape: FleetShape, weight_decay: float) -> None:
    torch.manual_seed(0)
    worlds, groups, rows, size = 2, 3, 23, 5  # four batches of five and one of three
    x = torch.randn(worlds, rows, 5, dtype=torch.float64)
    fleet = Fleet(
        shape,
        x,
        groups,
        batch_size=size,
        optimizer=OptimizerSpec("adam", 1e-2, weight_decay),
        seeds=[(7, 0), (7, 1)],
    )
    fleet.targets.copy_(torch.rand(fleet.targets.shape).softmax(-1))
    fleet.targets[0, 1, ::4] = 0.0  # rows without a target
    for world in range(worlds):
        for group in range(groups):
            modules: list[Any] = [*shape.bottoms(), shape.make_top()]
            for module in modules:
                initialise(module, torch.Generator().manual_seed(10 * world + group))
            fleet.load(world, modules[:-1], modules[-1], group)
    orders = [fleet.order(1), fleet.order(2)]
    fleet.epoch(1)
    fleet.epoch(2)
    outputs = fleet.outputs()
    for world in range(worlds):
        for group in range(groups):
            weights, expected = alone(
                shape,
                x[world],
                fleet.targets[world, group],
                [order[world] for order in orders],
                size,
                10 * world + group,
                weight_decay,
            )
            for ours, theirs in zip(fleet.run_weights(world, group), weights, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(outputs[world, group], expected, rtol=1e-8, atol=1e-9)


def test_some_groups_in_chunks_and_new_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(SHAPES[1], torch.randn(2, 20, 5), 3, batch_size=4)
    every = fleet.outputs()
    monkeypatch.setattr("fedmend_bench.inc.networks.CHUNK_BYTES", {"cpu": 1})
    torch.testing.assert_close(fleet.outputs(groups=[2, 0]), every[:, [2, 0]])
    more = torch.randn(2, 150, 5)
    assert fleet.outputs(more).shape == (2, 3, 150, 4)
    torch.testing.assert_close(fleet.outputs(more)[:, :, :70], fleet.outputs(more[:, :70]))


def test_runs_of_a_world_start_alike_and_worlds_do_not() -> None:
    fleet = Fleet(SHAPES[0], torch.randn(2, 20, 5), 2, batch_size=4)
    torch.testing.assert_close(fleet.run_weights(0, 0), fleet.run_weights(0, 1))
    assert not torch.equal(fleet.run_weights(0, 0)[0], fleet.run_weights(1, 0)[0])
    assert not torch.equal(fleet.order(1)[0], fleet.order(1)[1])
    assert not torch.equal(fleet.order(1)[0], fleet.order(2)[0])


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="sgd"):
        Fleet(SHAPES[0], torch.randn(1, 4, 5), 1, batch_size=2, optimizer=OptimizerSpec("sgd"))
    with pytest.raises(ConfigError, match="5 columns"):
        Fleet(SHAPES[0], torch.randn(1, 4, 6), 1, batch_size=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_on_a_gpu_are_the_same_steps() -> None:
    x = torch.randn(2, 23, 5)
    results = []
    for device in ("cpu", "cuda"):
        fleet = Fleet(SHAPES[2], x.to(device), 2, batch_size=5)
        fleet.targets.fill_(1 / 3)
        fleet.targets[..., 0] += 0.1
        fleet.epoch(1)
        fleet.epoch(2)
        results.append(fleet.outputs().cpu())
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
