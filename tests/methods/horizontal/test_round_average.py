"""The common model averaged over rounds: beside a plain mean, in checkpoints, at both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedmend.errors import ConfigError
from fedmend.methods.horizontal.local_methods import PseudoMethod, Supervised
from fedmend.methods.horizontal.networks import NetSpec, build_net
from fedmend.methods.horizontal.round_average import RoundAverage
from fedmend.methods.horizontal.rounds import Pool, RoundSettings
from fedmend.methods.horizontal.row_views import ImageViews, TableViews
from fedmend.methods.horizontal.simulator import Simulator
from fedmend.split.parts import read_file, write_file

NET = NetSpec("mlp", 3, numeric=4, hidden=(6,))
SMALL = RoundSettings(epochs=1, labelled_batch=8, unlabelled_batch=16)


def plain_mean(models: list[Tensor], rounds: int) -> Tensor:
    """Every model's share, worked out from the last round backwards."""
    shares, left = [], 1.0
    for number in range(len(models), 0, -1):
        share = 2 / (1 + min(number, rounds))
        shares.insert(0, left * share)
        left *= 1 - share
    assert sum(shares) == pytest.approx(1.0)
    return sum(share * model.double() for share, model in zip(shares, models, strict=True))  # type: ignore[return-value]


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_it_is_the_mean_by_shares(rounds: int, count: int, seed: int) -> None:
    models = list(torch.randn(count, 5, generator=torch.Generator().manual_seed(seed)))
    mean = RoundAverage(rounds)
    for model in models:
        told = mean.add(model)
    np.testing.assert_allclose(told, plain_mean(models, rounds), atol=1e-5)


def test_its_models_are_as_old_as_those_of_a_plain_mean() -> None:
    """Rounds' own numbers averaged: after many rounds the middle one of the last five."""
    mean = RoundAverage(5)
    for number in range(1, 101):
        told = mean.add(torch.tensor([float(number)], dtype=torch.float64))
    assert float(told) == pytest.approx(98.0)
    with pytest.raises(ConfigError, match="average_rounds must be at least 1, got 0"):
        RoundAverage(0)


def test_it_keeps_its_own_copy_in_the_precision_that_is_trained_in() -> None:
    mean, model = RoundAverage(3), torch.ones(4)
    mean.add(model)
    model += 5  # training goes on in place
    assert torch.equal(mean.add(torch.ones(4)), torch.ones(4))
    again = RoundAverage(3)
    again.restore(mean.state(), torch.zeros(4, dtype=torch.float64))
    assert again.added == 2
    assert again.add(torch.ones(4, dtype=torch.float64)).dtype == torch.float64


def pools() -> list[Pool]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(3):
        numeric = torch.randn(60, 4, generator=generator)
        truth = numeric[:, :3].argmax(1)
        labels = torch.where(torch.arange(60) < 20, truth, -1)
        made.append(Pool(TableViews(numeric), labels, truth=truth, name=f"c{number}"))
    return made


def simulator_of(rounds: int | None) -> Simulator:
    return Simulator(
        pools(), NET, PseudoMethod("sage"), SMALL, per_round=2, device="cpu", average_rounds=rounds
    )


def test_training_goes_on_from_the_plain_model() -> None:
    plain, averaged = simulator_of(None), simulator_of(3)
    models = []
    for _ in range(6):
        plain.run_round()
        averaged.run_round()
        models.append(plain.weights)
    assert torch.equal(plain.weights, averaged.weights)
    assert torch.equal(plain.averaged, plain.weights)
    np.testing.assert_allclose(averaged.averaged, plain_mean(models, 3), atol=1e-6)
    views = pools()[0].views
    expected = plain.probabilities(views, averaged.averaged)
    assert torch.equal(averaged.probabilities(views), expected)
    assert not torch.allclose(expected, plain.probabilities(views), atol=1e-4)
    assert averaged.fingerprint() == plain.fingerprint()


def test_the_mean_goes_on_from_a_checkpoint(tmp_path: Any) -> None:
    whole, first, second = simulator_of(4), simulator_of(4), simulator_of(4)
    for _ in range(5):
        whole.run_round()
    first.run_round()
    first.run_round()
    second.load_checkpoint(first.save_checkpoint(tmp_path / "a.fmw"))
    for _ in range(3):
        second.run_round()
    assert torch.equal(whole.averaged, second.averaged)


def test_a_checkpoint_of_before_there_was_a_mean_is_read(tmp_path: Any) -> None:
    old = simulator_of(None)
    old.run_round()
    saved = old.checkpoint()
    del saved["mean"]
    write_file(tmp_path / "old.fmw", saved)
    new = simulator_of(4)
    new.load_checkpoint(tmp_path / "old.fmw")
    assert torch.equal(new.averaged, old.weights)
    new.run_round()
    assert torch.equal(new.averaged, new.weights)
    # And the other way round: a mean that nobody asks for any more is left alone.
    new.save_checkpoint(tmp_path / "new.fmw")
    assert set(read_file(tmp_path / "new.fmw")["mean"]) == {"added", "weights"}
    old.load_checkpoint(tmp_path / "new.fmw")
    assert torch.equal(old.averaged, new.weights)


def test_statistics_of_batch_norms_are_averaged_as_well() -> None:
    """What a network with the averaged weights and statistics says, by plain PyTorch."""
    images = torch.randint(
        0, 256, (24, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    pool = Pool(ImageViews(images), torch.arange(24) % 4)
    net = NetSpec("resnet8", 4, channels=3, width=4)
    options: dict[str, Any] = {"device": "cpu", "average_rounds": 4}
    simulator = Simulator([pool], net, Supervised(), SMALL, **options)
    models = []
    for _ in range(3):
        simulator.run_round()
        models.append(simulator.weights)
    flat = plain_mean(models, 4).float()
    module = build_net(net).eval()
    nn.utils.vector_to_parameters(flat, module.parameters())
    at = sum(each.numel() for each in module.parameters())
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.copy_(flat[at : at + buffer.numel()].view_as(buffer))
            at += buffer.numel()
    assert at == len(flat)
    with torch.no_grad():
        (plain,) = pool.views.plain(torch.arange(24))
        expected = torch.softmax(module(plain), 1)
    torch.testing.assert_close(simulator.probabilities(pool.views), expected, atol=1e-5, rtol=1e-4)
