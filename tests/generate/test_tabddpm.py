"""Noise and its way back, against what the formulas say."""

import numpy as np
import pytest
import torch

from fedmend.data.table import Table
from fedmend.generate.encoder import Encoder, Heads
from fedmend.generate.tabddpm import TabDDPM, mixed, signal, step_back

CPU = torch.device("cpu")


@pytest.fixture
def encoder():
    group = np.arange(300) % 3
    table = Table(np.arange(300), {"x": group + np.linspace(0, 1, 300), "group": list("abc") * 100})
    return Encoder("quantile").fit(table)


def test_noise_keeps_what_the_signal_says(encoder):
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


def test_a_perfect_network_steps_back_to_the_right_distribution(encoder):
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


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    group = rng.choice(3, 800, p=[0.5, 0.3, 0.2])
    return Table(
        np.arange(800),
        {
            "x": np.array([-4.0, 0.0, 5.0])[group] + rng.normal(size=800) * 0.5,
            "group": np.array(["a", "b", "c"])[group],
        },
    )


def test_known_columns_are_noised_anew_at_every_step_of_inpainting(table):
    few = {"steps": 1, "batch_size": 32, "hidden": (8, 8), "sampling_steps": 6, "device": "cpu"}
    model = TabDDPM(**few, condition=0.0, spikes=0.0, levels=0).fit(table)
    (number,) = model.encoder_.of("x")
    known = model.encoder_.encode(model.encoder_.raw(table.frame)).values[:, number.start]
    seen: list[tuple[float, np.ndarray]] = []
    model.net_.register_forward_pre_hook(
        lambda _, inputs: seen.append((float(inputs[1][0]), inputs[0][:, number.start].numpy()))
    )
    model.sample(given={"x": table.frame["x"]}, seed=0)
    assert len(seen) == 6
    noises = []
    for time, shown in seen:
        share = float(signal(torch.tensor(time)))
        noises.append((shown - np.sqrt(share) * known) / np.sqrt(1 - share))
    assert np.abs(np.mean(noises, axis=1)).max() < 0.12
    assert np.allclose(np.std(noises, axis=1), 1, atol=0.1)
    between = np.corrcoef(noises)  # every step has a noise of its own
    assert np.abs(between - np.eye(6)).max() < 0.15


def test_on_a_spike_the_score_is_not_asked_for_and_beside_it_it_is():
    rng = np.random.default_rng(0)
    amounts = np.where(rng.random(400) < 0.5, 0.0, rng.normal(5, 1, 400))
    table = Table(np.arange(400), {"amount": amounts, "other": rng.normal(size=400)})
    few = {"steps": 1, "batch_size": 32, "hidden": (8, 8), "sampling_steps": 2, "device": "cpu"}
    model = TabDDPM(**few, condition=0.0).fit(table)
    spikes, score = model.encoder_.of("amount")
    assert (spikes.activation, score.activation) == ("softmax", "linear")
    (other,) = model.encoder_.of("other")
    rows = model.encoder_.encode(model.encoder_.raw(table.frame))

    def loss(row: int, at: int, wrong: float) -> float:
        """Of one row, for a network that says this of one coordinate, and zero else."""
        told = torch.zeros(1, model.encoder_.width)
        told[0, at] = wrong
        values, seen = (torch.from_numpy(each[[row]]) for each in (rows.values, rows.observed))
        noise = torch.Generator().manual_seed(0)
        return float(model._loss(lambda *_: told, values, seen, torch.tensor([0.5]), noise))

    on, beside = np.flatnonzero(amounts == 0)[0], np.flatnonzero(amounts != 0)[0]
    assert loss(on, score.start, 3.0) == loss(on, score.start, -7.0)
    assert loss(beside, score.start, 3.0) != loss(beside, score.start, -7.0)
    for row in (on, beside):
        assert loss(row, other.start, 3.0) != loss(row, other.start, -7.0)
        assert loss(row, spikes.start, 3.0) != loss(row, spikes.start, -7.0)
