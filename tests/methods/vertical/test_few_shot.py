"""FixMatch at a party alone, between two exchanges of few-shot VFL."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedmend as fm
from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.learn.nets import Bottom, BottomSpec, initialise
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.vertical.few_shot import LocalLearner
from fedmend.methods.vertical.local import RowViews
from fedmend.split.config import Settings
from fedmend.split.features import Features

CPU = torch.device("cpu")


def blobs(n: int, classes: int, seed: int, spread: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    centres = rng.normal(size=(classes, 6)) * 3
    return (centres[y] + spread * rng.normal(size=(n, 6))).astype(np.float32), y


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------ FixMatch


def learner(n: int = 600, labelled: int = 12, steps: int = 250, **changes: Any) -> Any:
    points, y = blobs(n, 3, 4, spread=1.2)
    columns = {f"x{c}": points[:, c].astype(np.float64) for c in range(6)}
    source = Table(np.arange(n), columns)
    encoder = Encoder().fit(source)
    features = Features(encoder.transform(source), np.arange(n), CPU, torch.float32)
    bottom = initialise(Bottom(BottomSpec(6, (), (), (32,), 16)), generator(0))
    how = {"steps": steps, "labelled": 16, "unlabelled": 64, "threshold": 0.8} | changes
    views = RowViews(features, generator(1), generator(1), corruption=0.3)
    own = Settings(optimizer=OptimizerSpec(lr=3e-3))
    made = LocalLearner(bottom, views, 3, how, own)
    return made, np.arange(labelled), y, np.arange(labelled, n), features


def accuracy(made: LocalLearner, features: Features, y: np.ndarray) -> float:
    made.bottom.eval()
    with torch.no_grad():
        guess = made._head(features.batch(torch.arange(len(y)))).argmax(1).numpy()
    return float((guess == y).mean())


def test_unlabelled_rows_help_and_join():
    made, labelled, y, unlabelled, features = learner()
    made.start(labelled, y[labelled], unlabelled)
    made.advance(100)
    used = made.advance(400)
    with_others = accuracy(made, features, y)
    alone, labelled, y, _, features = learner()
    alone.start(labelled, y[labelled], np.zeros(0, np.int64))
    alone.advance(400)
    assert used > 0.5
    assert with_others >= accuracy(alone, features, y) - 0.02
    assert with_others > 0.85


def test_a_row_below_the_threshold_teaches_nothing():
    made, labelled, y, unlabelled, _ = learner(steps=1, threshold=1.0)
    rows, others = torch.from_numpy(labelled), torch.from_numpy(unlabelled[:50])
    made.start(labelled, y[labelled], unlabelled)
    with_others = made._loss(rows, torch.from_numpy(y[labelled]), others)
    assert made._used.item() == pytest.approx(0.95)  # a running mean, which began with all
    made.bottom.zero_grad()
    with_others.backward()
    assert torch.isfinite(with_others)


def test_rows_that_judge_are_learnt_by_nobody(monkeypatch):
    """Their labels were in the bottoms: the head stopped, and was believed, by rows it knew."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 6)), columns=list("abcdef"))
    frame["y"] = np.where(frame["a"] + frame["d"] + rng.normal(size=300) > 0, "yes", "no")
    ids, known, begun = np.arange(300), LocalLearner.start, []

    def start(self: LocalLearner, labelled: np.ndarray, *rest: np.ndarray) -> None:
        begun.append(labelled)
        known(self, labelled, *rest)

    monkeypatch.setattr(LocalLearner, "start", start)
    fed = fm.Federation(
        fm.Party("bank", Table(ids, frame[["a", "b", "c", "y"]], label="y")),
        fm.Party("telco", Table(ids[100:], frame[["d", "e", "f"]].iloc[100:])),
    )
    fm.align(fed)
    for validation in (0.0, 0.2):
        fm.FewShotVFL(rounds=1, local_updates=2, epochs=1, validation=validation).fit(fed)
    (bank, telco), (less, fewer) = begun[:2], begun[2:]
    assert (len(bank), len(telco)) == (300, 200)
    held = np.setdiff1d(telco, fewer)  # the same people, whom the bank has 100 rows further on
    assert len(held) >= 40 and np.array_equal(np.setdiff1d(bank, less), held + 100)
