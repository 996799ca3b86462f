from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.generate.square import SquareCritic, SquareGenerator, side_of


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
    rows = rows.detach().requires_grad_()
    critic(rows).square().sum().backward()
    assert rows.grad is not None
    assert (rows.grad.abs().sum(0) > 0).all()
