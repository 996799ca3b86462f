from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.generate.convolutional import SquareCritic, SquareGenerator, side_of


@given(width=st.integers(1, 5000))
@settings(max_examples=100, deadline=None)
def test_the_side_is_the_smallest_allowed_that_holds_the_row(width: int) -> None:
    allowed = sorted([8 * 2**k for k in range(5)] + [12 * 2**k for k in range(5)])
    assert side_of(width) == next(side for side in allowed if side * side >= width)


@pytest.mark.parametrize("width", [1, 16, 20, 100, 150, 300])
def test_networks_of_every_size(width: int) -> None:
    rows = SquareGenerator(7, 2, width)(torch.randn(5, 7))
    assert rows.shape == (5, width)
    critic = SquareCritic(width, 2, outputs=3)
    assert critic(rows).shape == (5, 3)
    assert torch.equal(critic(rows), critic.last(critic.features(rows)))


def test_every_coordinate_is_made_and_seen() -> None:
    noise = torch.randn(6, 7)
    generator, critic = SquareGenerator(7, 4, 30), SquareCritic(30, 4)
    rows = generator(noise)
    assert (rows.std(0) > 0).all()
    generator.bias.data[:] = torch.arange(30)
    assert torch.allclose(generator(noise), rows + torch.arange(30), atol=1e-5)
    rows = rows.detach().requires_grad_()
    critic(rows).square().sum().backward()
    assert rows.grad is not None
    assert (rows.grad.abs().sum(0) > 0).all()


def test_planes_lie_upon_each_other() -> None:
    below, above = torch.randn(6, 30), torch.randn(6, 30)
    critic = SquareCritic(30, 4, planes=2)
    single = SquareCritic(30, 4)
    single.load_state_dict(
        critic.state_dict() | {"layers.0.weight": critic.layers[0].weight[:, :1]}
    )
    rows = torch.cat([below, torch.zeros_like(above)], dim=1)
    assert torch.allclose(critic(rows), single(below), atol=1e-6)
    assert not torch.allclose(critic(torch.cat([below, above], dim=1)), single(below), atol=1e-3)
