"""Pre-training alone: SimCLR's loss, autoencoders, and what leaves a party meanwhile."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.learn.nets import Bottom, BottomSpec, initialise
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.vertical.local import WEAK_CORRUPTION, RowViews, jittered
from fedmend.methods.vertical.ssl_vfl import SSLVFL, Decoder, Pretrainer, nt_xent
from fedmend.split.config import Settings
from fedmend.split.features import Features

CPU = torch.device("cpu")


def by_hand(first: np.ndarray, second: np.ndarray, temperature: float) -> float:
    """SimCLR's Eq. 1, written out pair by pair."""
    views = np.concatenate([first, second])
    views = views / np.linalg.norm(views, axis=1, keepdims=True)
    n, total = len(first), 0.0
    for i in range(2 * n):
        twin = (i + n) % (2 * n)
        scores = [math.exp(views[i] @ views[k] / temperature) for k in range(2 * n) if k != i]
        total -= math.log(math.exp(views[i] @ views[twin] / temperature) / sum(scores))
    return total / (2 * n)


@given(st.integers(2, 8), st.floats(0.1, 2.0), st.integers(0, 1000))
def test_the_contrastive_loss_is_simclrs(n, temperature, seed):
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(n, 5)), rng.normal(size=(n, 5))
    ours = nt_xent(torch.from_numpy(first), torch.from_numpy(second), temperature)
    assert float(ours) == pytest.approx(by_hand(first, second, temperature), rel=1e-4)


def table(n: int = 300, seed: int = 0) -> Table:
    """Two columns that are one and the same, one that is their category, one of its own."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    city = np.where(x > 0, "Ulm", "Bonn")
    return Table(np.arange(n), {"x": x, "twin": x * 2, "city": city, "noise": rng.normal(size=n)})


def features_of(source: Table) -> tuple[Encoder, Features]:
    encoder = Encoder(binary="codes").fit(source)
    encoded = encoder.transform(source)
    return encoder, Features(encoded, np.arange(len(source)), CPU, torch.float32)


def bottom_of(encoder: Encoder, **changes: Any) -> Bottom:
    spec = BottomSpec(
        len(encoder.numeric_names),
        tuple(encoder.cardinalities),
        tuple(encoder.block_shapes.values()),
        **{"hidden": (16,), "out": 8} | changes,
    )
    module = initialise(Bottom(spec), torch.Generator().manual_seed(0))
    assert isinstance(module, Bottom)
    return module


def streams(seed: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for _ in range(2)]


def pretrainer(encoder, features, kind, epochs, spec):
    how = {"kind": kind, "epochs": epochs, "batch_size": 64, "temperature": 0.5}
    views = RowViews(features, *streams(1), corruption=0.6)
    return Pretrainer(bottom_of(encoder), views, Settings(optimizer=spec), how)


@pytest.mark.parametrize("kind", ["simclr", "autoencoder"])
def test_pre_training_gets_better(kind):
    encoder, features = features_of(table())
    trainer = pretrainer(encoder, features, kind, 12, OptimizerSpec(lr=1e-2))
    losses = [trainer.epoch(seed) for seed in range(12)]
    assert losses[-1] < 0.97 * losses[0]


def test_an_autoencoder_restores_what_is_redundant():
    source = table(600)
    encoder, features = features_of(source)
    trainer = pretrainer(encoder, features, "autoencoder", 40, OptimizerSpec())
    for seed in range(40):
        trainer.epoch(seed)
    batch = features.batch(torch.arange(600))
    spoilt = batch._replace(numeric=batch.numeric.clone())
    column = encoder.numeric_names.index("twin")
    spoilt.numeric[:, column] = 0.0
    with torch.no_grad():
        restored = trainer.helper.body(torch.relu(trainer.bottom(spoilt)))[:, column]
    correlation = np.corrcoef(restored.numpy(), batch.numeric[:, column].numpy())[0, 1]
    assert correlation > 0.6


def test_a_decoder_counts_images_at_reduced_size():
    bottom = initialise(
        Bottom(BottomSpec(0, (), ((3, 32, 16),), (), 8)), torch.Generator().manual_seed(0)
    )
    assert isinstance(bottom, Bottom)
    decoder = Decoder(bottom)
    assert decoder.sizes == [(3, 8, 8)]
    assert decoder.body[-1].out_features == 3 * 8 * 8


# ------------------------------------------------------------------ views


def test_corrupted_cells_come_from_their_own_column():
    _, features = features_of(table(2000))
    views = RowViews(features, *streams(0), corruption=0.6)
    numbers = torch.arange(2000)
    plain, weak, strong = views.plain(numbers), views.weak(numbers), views.strong(numbers)
    for view, share in ((weak, WEAK_CORRUPTION), (strong, 0.6)):
        changed = (view.numeric != plain.numeric).float().mean().item()
        assert changed == pytest.approx(share, abs=0.03)
        for column in range(plain.numeric.shape[1]):
            assert torch.isin(view.numeric[:, column], plain.numeric[:, column]).all()
        assert set(view.codes.unique().tolist()) <= set(plain.codes.unique().tolist())


def test_strong_images_differ_and_have_a_hole():
    images = torch.rand(40, 3, 12, 8) + 1
    changed = jittered(images, torch.Generator().manual_seed(0))
    assert changed.shape == images.shape
    holes = (changed == 0).all(1).flatten(1).sum(1)
    assert (holes > 0).all()
    assert (holes < 12 * 8 / 2).all()
    again = jittered(images, torch.Generator().manual_seed(0))
    torch.testing.assert_close(changed, again)


# ------------------------------------------------------------------ in a federation


def test_only_losses_leave_while_parties_pre_train(make_fed, make_frame):
    fed = make_fed(make_frame(), aligned=60)
    told: list[tuple[str, int, int, list[str]]] = []
    SSLVFL(epochs=1, pretrain_epochs=3, pretrain_batch=32).fit(
        fed, progress=lambda *each: told.append((*each[:3], sorted(each[3])))
    )
    entries = [entry for entry in fed.ledger if entry.call.startswith("PretrainWorker")]
    assert {entry.kind for entry in entries if entry.receiver == "coordinator"} == {
        "control",
        "statistic",
    }
    losses = ["loss bank", "loss shop", "loss telco"]
    assert told[:3] == [("pretrain", number, 3, losses) for number in (1, 2, 3)]


def test_pre_trained_weights_are_where_training_starts(make_fed, make_frame):
    """With a learning rate of nearly nothing, what is left is the pre-training."""
    outputs = []
    for epochs in (0, 0, 2):
        fed = make_fed(make_frame(), aligned=60)
        model = SSLVFL(epochs=1, pretrain_epochs=epochs, pretrain_batch=32, lr=1e-9).fit(fed)
        outputs.append(model.predict_proba(fed))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_allclose(outputs[0], outputs[2], atol=1e-5)
    fed = make_fed(make_frame(), aligned=60)
    trained = SSLVFL(epochs=1, pretrain_epochs=2, pretrain_batch=32, lr=1e-2).fit(fed)
    assert np.abs(trained.predict_proba(fed) - outputs[0]).max() > 1e-3
