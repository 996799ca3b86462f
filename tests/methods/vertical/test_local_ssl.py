"""K-means, FixMatch at a party alone, and a head on embeddings sent once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.learn.clusters import k_means
from fedmend.learn.nets import Bottom, BottomSpec, initialise
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.vertical.local_ssl import LocalLearner, LocalTraining
from fedmend.split.features import Features
from fedmend.split.halves import Settings
from fedmend.split.views import RowViews

CPU = torch.device("cpu")
Make = Callable[..., Any]


def blobs(n: int, classes: int, seed: int, spread: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    centres = rng.normal(size=(classes, 6)) * 3
    return (centres[y] + spread * rng.normal(size=(n, 6))).astype(np.float32), y


def inertia(points: np.ndarray, labels: np.ndarray) -> float:
    return sum(
        float(((points[labels == c] - points[labels == c].mean(0)) ** 2).sum())
        for c in np.unique(labels)
    )


def test_clusters_are_as_tight_as_scikit_learns() -> None:
    points, _ = blobs(400, 5, 0, spread=2.0)
    ours = [
        inertia(points, k_means(torch.from_numpy(points), 5, generator(seed)).numpy())
        for seed in range(5)
    ]
    theirs = KMeans(5, n_init=5, random_state=0).fit(points).inertia_
    assert min(ours) <= 1.01 * theirs


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_clear_clusters_are_found() -> None:
    points, y = blobs(300, 4, 1, spread=0.2)
    found = k_means(torch.from_numpy(points), 4, generator(0)).numpy()
    assert adjusted_rand_score(y, found) == 1.0


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 99))
def test_every_point_has_a_cluster(n: int, clusters: int, seed: int) -> None:
    points = torch.randn(n, 3, generator=generator(seed))
    found = k_means(points, clusters, generator(seed))
    assert found.shape == (n,)
    assert 0 <= int(found.min()) <= int(found.max()) < clusters
    same = k_means(torch.ones(n, 3), clusters, generator(seed))
    assert set(same.tolist()) == {0}


# ------------------------------------------------------------------ FixMatch


def learner(n: int = 600, labelled: int = 12, steps: int = 250, **changes: Any) -> Any:
    points, y = blobs(n, 3, 4, spread=1.2)
    columns = {f"x{c}": points[:, c].astype(np.float64) for c in range(6)}
    source = Table(np.arange(n), columns)
    encoder = Encoder().fit(source)
    features = Features(encoder.transform(source), np.arange(n), CPU, torch.float32)
    bottom = initialise(Bottom(BottomSpec(6, (), (), (32,), 16)), generator(0))
    how = LocalTraining(steps, 16, 64, **{"threshold": 0.8, "corruption": 0.3} | changes)
    views = RowViews(features, generator(1), generator(1), how.corruption)
    own = Settings(optimizer=OptimizerSpec(lr=3e-3))
    made = LocalLearner(bottom, views, 3, how, own)  # type: ignore[arg-type]
    return made, np.arange(labelled), y, np.arange(labelled, n), features


def accuracy(made: LocalLearner, features: Features, y: np.ndarray) -> float:
    made.bottom.eval()
    with torch.no_grad():
        guess = made._head(features.batch(torch.arange(len(y)))).argmax(1).numpy()
    return float((guess == y).mean())


def test_unlabelled_rows_help_and_join() -> None:
    made, labelled, y, unlabelled, features = learner()
    made.start(labelled, y[labelled], unlabelled)
    made.advance(100)
    used = made.advance(1000)
    with_others = accuracy(made, features, y)
    alone, labelled, y, _, features = learner()
    alone.start(labelled, y[labelled], np.zeros(0, np.int64))
    alone.advance(1000)
    assert used > 0.5
    assert with_others >= accuracy(alone, features, y) - 0.02
    assert with_others > 0.85


def test_a_row_below_the_threshold_teaches_nothing() -> None:
    made, labelled, y, unlabelled, _ = learner(steps=1, threshold=1.0)
    rows, others = torch.from_numpy(labelled), torch.from_numpy(unlabelled[:50])
    with_others, share = made._loss(rows, torch.from_numpy(y[labelled]), others)
    assert share.item() == 0.0
    made.bottom.zero_grad()
    with_others.backward()
    assert torch.isfinite(with_others)


def test_wrong_numbers_are_told_together() -> None:
    with pytest.raises(ConfigError) as caught:
        LocalTraining(0, 1, 0, 0.0, 0.0)
    assert len(caught.value.problems) == 4
