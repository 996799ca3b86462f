"""Noise and its way back, against what the formulas say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmend.data.table import Table
from fedmend.generate.encoder import Encoder
from fedmend.generate.heads import Heads
from fedmend.generate.tabddpm import mixed, signal, step_back

CPU = torch.device("cpu")


@pytest.fixture
def encoder() -> Encoder:
    group = np.arange(300) % 3
    table = Table(np.arange(300), {"x": group + np.linspace(0, 1, 300), "group": list("abc") * 100})
    return Encoder("quantile").fit(table)


def test_noise_keeps_what_the_signal_says(encoder: Encoder) -> None:
    heads = Heads(encoder, CPU)
    rows = torch.zeros(20_000, encoder.width)
    rows[:, heads.scalar] = torch.linspace(-2, 2, len(rows))[:, None]
    rows[:, torch.nonzero(heads.softmax)[0]] = 1.0
    stream = torch.Generator().manual_seed(0)
    noised, drawn = mixed(heads, rows, torch.full((len(rows), 1), 0.36), stream)
    numbers = 0.6 * rows[:, heads.scalar] + 0.8 * drawn[:, heads.scalar]
    assert torch.allclose(noised[:, heads.scalar], numbers, atol=1e-6)
    kept = (noised[:, heads.softmax] * rows[:, heads.softmax]).sum(1).mean()
    assert abs(float(kept) - (0.36 + 0.64 / 3)) < 0.015


def test_a_perfect_network_steps_back_to_the_right_distribution(encoder: Encoder) -> None:
    # With the true noise and category told, one step from time .8 to .5 must give q(x_.5 | x_0).
    rows, heads = 20_000, Heads(encoder, CPU)
    clean = torch.zeros(rows, encoder.width)
    clean[:, heads.scalar] = 1.5
    clean[:, torch.nonzero(heads.softmax)[1]] = 1.0
    stream = torch.Generator().manual_seed(0)
    late, early = torch.tensor(0.8), torch.tensor(0.5)
    noised, drawn = mixed(heads, clean, signal(late).expand(rows, 1), stream)
    truth = torch.where(heads.scalar, drawn, clean * 50)
    back = step_back(heads, noised, truth, (late, early), stream)
    direct, _ = mixed(heads, clean, signal(early).expand(rows, 1), stream)
    assert torch.allclose(back.mean(0), direct.mean(0), atol=0.02)
    assert torch.allclose(back.std(0), direct.std(0), atol=0.02)
