"""Square networks and their game."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedmend.data.table import Table
from fedmend.generate import Generator, convolutional
from fedmend.generate.convolutional import (
    SquareCritic,
    SquareGenerator,
    Target,
    information_gaps,
    side_of,
    steepness,
)
from fedmend.generate.encoder import Encoder


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


CPU = torch.device("cpu")


def _encoded(mixed: Table) -> tuple[Encoder, torch.Tensor]:
    encoder = Encoder(numeric="mode").fit(mixed)
    return encoder, torch.from_numpy(encoder.encode(encoder.raw(mixed.frame)).values)


def test_a_categorical_target_is_judged_by_cross_entropy(mixed: Table) -> None:
    encoder, rows = _encoded(mixed)
    target = Target(encoder, "city", CPU)
    guesses = torch.randn(len(rows), target.width, generator=torch.Generator().manual_seed(0))
    codes = torch.from_numpy(encoder.raw(mixed.frame)["city"]).long()
    assert torch.allclose(target.loss(guesses, rows, None), F.cross_entropy(guesses, codes))
    gaps = torch.zeros_like(rows, dtype=torch.bool)
    gaps[:30] = True
    expected = F.cross_entropy(guesses[30:], codes[30:])
    assert torch.allclose(target.loss(guesses, rows, gaps), expected)


def test_a_number_is_judged_by_position_and_mode(mixed: Table) -> None:
    encoder, rows = _encoded(mixed)
    target = Target(encoder, "gain", CPU)
    position, modes = encoder.of("gain")
    guesses = torch.randn(len(rows), target.width, generator=torch.Generator().manual_seed(0))
    expected = F.mse_loss(guesses[:, 0], rows[:, position.start]) + F.cross_entropy(
        guesses[:, 1:], rows[:, modes.start : modes.stop].argmax(1)
    )
    assert torch.allclose(target.loss(guesses, rows, None), expected)


def test_the_target_is_hidden_from_its_classifier(mixed: Table) -> None:
    encoder, rows = _encoded(mixed)
    hidden = Target(encoder, "city", CPU).hidden(rows)
    (span,) = encoder.of("city")
    assert (hidden[:, span.start : span.stop] == 0).all()
    kept = np.delete(np.arange(encoder.width), np.arange(span.start, span.stop))
    assert torch.equal(hidden[:, kept], rows[:, kept])


@pytest.mark.parametrize("column", [None, "constant"])
def test_without_a_target_there_is_no_classifier(column: str | None, mixed: Table) -> None:
    table = mixed.with_columns({"constant": np.ones(mixed.n_rows)})
    encoder = Encoder(numeric="mode").fit(table)
    assert not Target(encoder, column, CPU).is_used


def test_information_gaps_are_norms_of_moments() -> None:
    real = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    means, deviations = information_gaps(real, 2 * real + 1)
    assert torch.allclose(means, (real.mean(0) + 1).norm(), atol=1e-5)
    assert torch.allclose(deviations, real.std(0).norm(), atol=1e-5)
    assert sum(information_gaps(real, real)) == 0


@pytest.mark.parametrize("name", ["ctabgan", "tablegan"])
def test_the_classifier_teaches_the_generator(
    name: str, small: Callable[..., Generator], mixed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = small(name, epochs=1).fit(mixed)
    own = Target.loss

    def louder(target: Target, guesses: Any, rows: Any, gaps: Any) -> torch.Tensor:
        weight = 1000.0 if rows.requires_grad else 1.0  # of generated rows, not of real ones
        return weight * own(target, guesses, rows, gaps)

    monkeypatch.setattr(Target, "loss", louder)
    taught = small(name, epochs=1).fit(mixed)
    before, after = (
        torch.cat([p.flatten() for p in g.modules_["generator"].parameters()])
        for g in (plain, taught)
    )
    assert not torch.allclose(before, after, atol=1e-4)


def test_steepness_is_the_mean_square_of_slopes() -> None:
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight = torch.tensor([[1.0], [2.0], [0.0], [-1.0]], requires_grad=True)
    cost = steepness((rows.square() @ weight), rows)
    expected = (2 * rows.detach() * weight.detach().T).square().sum(1).mean() / 2
    assert torch.allclose(cost, expected)
    cost.backward()  # the critic learns from it
    assert torch.allclose(weight.grad, 4 * (rows.detach().square().mean(0)[:, None] * weight))


@pytest.mark.parametrize("name", ["ctabgan", "tablegan"])
def test_a_penalty_makes_the_critic_flatter(
    name: str, small: Callable[..., Generator], mixed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    slopes: dict[float, float] = {}
    for penalty in (1e-9, 10.0):
        seen: list[float] = []

        def spy(scores: torch.Tensor, rows: torch.Tensor, seen: Any = seen) -> torch.Tensor:
            cost = steepness(scores, rows)
            seen.append(float(cost.detach()))
            return cost

        monkeypatch.setattr(convolutional, "steepness", spy)
        small(name, epochs=8, penalty=penalty).fit(mixed)
        assert len(seen) == 8 * (120 // 40) // 4  # at every fourth step
        slopes[penalty] = seen[-1]
    assert slopes[10.0] < 0.5 * slopes[1e-9]
