"""The flat optimizers against torch's own."""

from typing import Any

import pytest
import torch
from torch import nn

from fedmend.errors import ConfigError
from fedmend.federation import wire
from fedmend.learn import optim
from fedmend.learn.optim import FlatOptimizer, OptimizerSpec
from fedmend.learn.optim import _spans as spans


def twins() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    pair = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double() for _ in range(2)]
    pair[1].load_state_dict(pair[0].state_dict())
    return pair[0], pair[1]


def step(module: nn.Module, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    (module(x) ** 2).mean().backward()
    optimizer.step()


def rows() -> torch.Tensor:
    return torch.randn(5, 4, dtype=torch.float64)


def reference(spec: OptimizerSpec, module: nn.Module) -> torch.optim.Optimizer:
    parameters = module.parameters()
    if spec.name == "sgd":
        return torch.optim.SGD(parameters, spec.lr, spec.momentum, weight_decay=spec.weight_decay)
    kind = torch.optim.Adam if spec.name == "adam" else torch.optim.AdamW
    return kind(parameters, spec.lr, spec.betas, weight_decay=spec.weight_decay, fused=True)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_equal_to_torch(name, decay):
    spec = OptimizerSpec(name, lr=0.02, weight_decay=decay)
    ours, theirs = twins()
    flat = FlatOptimizer(list(ours.parameters()), spec)
    other = reference(spec, theirs)
    for _ in range(30):
        x = rows()
        step(ours, flat, x)
        step(theirs, other, x)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-15)
    assert flat.values.data_ptr() == next(ours.parameters()).data_ptr()


def test_going_on_from_a_saved_state_changes_nothing():
    one, other = twins()
    first = FlatOptimizer(list(one.parameters()), OptimizerSpec())
    x = rows()
    for _ in range(3):
        step(one, first, x)
    saved = wire.decode(wire.encode(first.state()))
    other.load_state_dict(one.state_dict())
    second = FlatOptimizer(list(other.parameters()), OptimizerSpec())
    second.restore(saved)
    for _ in range(2):
        step(one, first, x)
        step(other, second, x)
    assert torch.equal(first.values, second.values)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_gaps_between_parameters_change_nothing(name, monkeypatch):
    """Where every parameter begins at a multiple of 64 numbers, as on a GPU."""
    plain, spaced = twins()
    spec = OptimizerSpec(name, lr=0.02, weight_decay=0.1)
    one = FlatOptimizer(list(plain.parameters()), spec)
    monkeypatch.setattr(optim, "_spans", lambda sizes, _: spans(sizes, 64))
    two = FlatOptimizer(list(spaced.parameters()), spec)
    assert all(p.data_ptr() % 512 == two.values.data_ptr() % 512 for p in spaced.parameters())
    x = rows()
    for number in range(4):
        step(plain, one, x)
        step(spaced, two, x)
        saved = two.state()
        assert all(torch.equal(saved[key], value) for key, value in one.state().items())
        if number == 1:
            two = FlatOptimizer(list(spaced.parameters()), spec)
            two.restore(saved)
    for a, b in zip(plain.parameters(), spaced.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_part_of_the_network_that_got_no_gradient_stays():
    module, _ = twins()
    flat = FlatOptimizer(list(module.parameters()), OptimizerSpec(lr=0.1))
    before = module[2].weight.detach().clone()
    module[0](torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    flat.step()
    assert torch.equal(module[2].weight, before)


def test_wrong_numbers_are_told_together():
    with pytest.raises(ConfigError) as caught:
        OptimizerSpec("adm", lr=0.0, weight_decay=-1.0)
    assert len(caught.value.problems) == 3


def test_parameters_may_get_a_second_optimizer():
    one, other = twins()
    x = rows()
    first = FlatOptimizer(list(one.parameters()), OptimizerSpec("sgd"))
    (one(x) ** 2).mean().backward()
    start = FlatOptimizer(list(one.parameters()), OptimizerSpec("sgd", lr=0.1))
    plain = torch.optim.SGD(other.parameters(), 0.1, 0.9)
    step(one, start, x)
    step(other, plain, x)
    assert first.values is not start.values
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-15)
