"""Learning-rate schedule, Nesterov's momentum and augmentation in split training."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.learn.augment import Weak
from fedmend.learn.optim import FlatOptimizer, OptimizerSpec
from fedmend.methods.vertical.vfl import VFL
from fedmend.split.config import Settings
from fedmend.split.features import BatchOrder, augmented
from fedmend.split.models import one_cycle

CPU = torch.device("cpu")


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_under_a_schedule_is_torchs(nesterov):
    torch.manual_seed(0)
    ours, theirs = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
    theirs.load_state_dict(ours.state_dict())
    spec = OptimizerSpec("sgd", lr=0.1, weight_decay=0.01, nesterov=nesterov)
    flat = FlatOptimizer(list(ours.parameters()), spec)
    other = torch.optim.SGD(theirs.parameters(), 0.1, 0.9, weight_decay=0.01, nesterov=nesterov)
    for step in range(20):
        flat.scale = one_cycle((step + 0.5) / 20)
        other.param_groups[0]["lr"] = 0.1 * flat.scale
        x = torch.randn(5, 4, dtype=torch.float64)
        for module, optimizer in ((ours, flat), (theirs, other)):
            optimizer.zero_grad()
            (module(x) ** 2).mean().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=0, atol=1e-14)


def test_the_schedule_rises_and_falls_to_nothing():
    factors = [one_cycle((step + 0.5) / 100) for step in range(100)]
    assert max(factors) == pytest.approx(1.0, abs=0.03)
    assert np.argmax(factors) in (19, 20)
    assert factors[-1] < 0.01
    assert np.mean(factors) == pytest.approx(0.5, abs=0.01)


def test_settings_name_what_is_wrong_together():
    with pytest.raises(ConfigError) as caught:
        Settings(augment="strong", schedule="cosine")
    assert len(caught.value.problems) == 3


def test_all_halves_draw_the_same_views():
    orders = [BatchOrder(np.arange(10), 4, CPU, augment=True) for _ in range(2)]
    for order in orders:
        order.start(5)
    for _ in orders[0].sizes:
        numbers = [order.next() for order in orders]
        assert torch.equal(*numbers)
        first, second = (order.draws for order in orders)
        assert first is not None
        assert second is not None
        assert len(first) == len(numbers[0])
        assert torch.equal(first.flip, second.flip)
        assert torch.equal(first.shift, second.shift)


def test_tiny_images_are_shifted_within_themselves():
    images = torch.arange(9.0).reshape(1, 1, 3, 3)
    draws = Weak(torch.tensor([False]), torch.tensor([[4, -4]]))
    inside = Weak(torch.tensor([False]), torch.tensor([[2, -2]]))
    torch.testing.assert_close(augmented(images, draws), augmented(images, inside))
    table = torch.ones(1, 7)
    assert augmented(table, draws) is table


def image_federation(n: int = 96) -> Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    images = rng.integers(0, 60, (n, 1, 8, 8), dtype=np.uint8)
    images[y == 1, :, 2:6, 2:6] += 150
    left = Table(np.arange(n), {"y": y}, label="y", blocks={"i": images[..., :4].copy()})
    right = Table(np.arange(n), blocks={"i": images[..., 4:].copy()})
    fed = Federation(Party("left", left), Party("right", right), strict=True)
    for name in fed.names:
        fed.engine.site(name).alignments["train"] = Alignment(np.arange(n), np.zeros(0, np.int64))
    fed.note_alignment(AlignmentCounts(n, {"left": 0, "right": 0}))
    return fed


def test_augmented_training_learns_and_resumes(tmp_path):
    options: dict[str, Any] = {
        "batch_size": 32,
        "epochs": 6,
        "conv": "cnn",
        "augment": "weak",
        "schedule": "one-cycle",
        "optimizer": "sgd",
        "lr": 0.05,
        "validation": 0.0,
    }
    fed = image_federation()
    model = VFL(**options).fit(fed)
    assert model.score(fed) > 0.9

    class Killed(Exception):
        pass

    def kill(stage: str, done: int, total: int, metrics: dict[str, float]) -> None:
        if done == 4:
            raise Killed

    other = image_federation()
    with pytest.raises(Killed):
        VFL(**options).fit(other, checkpoint=tmp_path, progress=kill)
    again = VFL(**options).fit(other, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(again.predict_proba(other), model.predict_proba(fed))
