"""Epochs with something done in between: outputs, new targets, a choice of rows."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import pytest

from fedmend.errors import DataError
from fedmend.learn.optim import OptimizerSpec
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.training import SplitNetwork
from fedmend.split.workers import ServerTop, TopWorker

Make = Callable[..., Any]
CONFIG = SplitConfig(
    bottom=(), embedding=4, top=(), epochs=4, validation=0.0, settings=Settings(32)
)


def setting(make_fed: Make, make_frame: Make) -> tuple[Any, np.ndarray]:
    frame = make_frame(120)
    return make_fed(frame), np.eye(2)[(frame["y"] == "yes").to_numpy(int)]


def test_epochs_by_hand_are_fit(make_fed, make_frame):
    results = []
    for by_hand in (False, True):
        fed, soft = setting(make_fed, make_frame)
        server = ServerTop(["no", "yes"], targets=soft)
        network = SplitNetwork(fed, parties=list(fed.names), server=server, config=CONFIG)
        if by_hand:
            with network.session([["aligned", 120]]) as session:
                losses = [session.epoch(number) for number in (1, 2, 3, 4)]
                inside = session.outputs()
                some = session.outputs(np.array([5, 3]))
                np.testing.assert_allclose(some, inside[[5, 3]], rtol=1e-5)
            assert losses == [row["loss"] for row in network.history]
        else:
            network.fit([["aligned", 120]])
        results.append(network.predict(fed, [["aligned", 120]]))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[1], inside)


def test_sides_are_learnt_from_training_rows_of_all_the_file(make_fed, monkeypatch):
    """Not from those held out, and where there are many not from the first of them."""
    seen: list[np.ndarray] = []
    see = TopWorker.see

    @wraps(see)
    def looked(self: TopWorker, rows: np.ndarray, embeddings: dict[str, Any]) -> None:
        seen.append(rows)
        see(self, rows, embeddings)

    monkeypatch.setattr(TopWorker, "see", looked)
    monkeypatch.setattr("fedmend.split.training.ROWS_TO_LEARN", 50)
    fed = make_fed()
    network = SplitNetwork(
        fed, parties=list(fed.names), label_party="bank", config=replace(CONFIG, validation=0.3)
    )
    with network.session([["aligned", 240]]) as session:
        session.epoch(1)
        session.learn_imputation()
        (rows,) = seen
        assert len(rows) == 50
        assert set(rows) <= set(session.train)
        assert rows.max() > session.train[60]


def test_new_targets_turn_the_model_round(make_fed, make_frame):
    fed, soft = setting(make_fed, make_frame)
    server = ServerTop(["no", "yes"], targets=soft)
    config = replace(CONFIG, settings=Settings(32, OptimizerSpec("adam", 2e-2)))
    network = SplitNetwork(fed, parties=list(fed.names), server=server, config=config)
    with network.session([["aligned", 120]]) as session:
        for number in range(1, 11):
            session.epoch(number)
        before = session.outputs()
        server.set_targets(1 - soft)
        for number in range(11, 31):
            session.epoch(number)
        after = session.outputs()
    assert ((before[:, 1] > 0.5) == (soft[:, 1] > 0.5)).mean() > 0.8
    assert ((after[:, 1] > 0.5) == (soft[:, 1] < 0.5)).mean() > 0.8
    with pytest.raises(DataError, match="7 soft labels for 120"):
        server.set_targets(soft[:7])
    with pytest.raises(DataError, match="2 classes"):
        server.set_targets(np.ones((120, 3)))


def test_a_choice_of_rows(make_fed, make_frame):
    fed, soft = setting(make_fed, make_frame)
    rows = np.arange(0, 120, 3)
    server = ServerTop(["no", "yes"], targets=soft)
    network = SplitNetwork(fed, parties=list(fed.names), server=server, config=CONFIG)
    with network.session([["aligned", 120]], rows) as session:
        np.testing.assert_array_equal(session.train, rows)
        session.epoch(1)
        one = session.outputs()
    changed = soft.copy()
    changed[1::3] = 0.5  # rows that take no part
    fed, _ = setting(make_fed, make_frame)
    server = ServerTop(["no", "yes"], targets=changed)
    network = SplitNetwork(fed, parties=list(fed.names), server=server, config=CONFIG)
    with network.session([["aligned", 120]], rows) as session:
        session.epoch(1)
        np.testing.assert_array_equal(session.outputs(), one)


def test_back_to_the_epoch_before(make_fed, make_frame, tmp_path):
    fed, soft = setting(make_fed, make_frame)
    server = ServerTop(["no", "yes"], targets=soft)
    network = SplitNetwork(fed, parties=list(fed.names), server=server, config=CONFIG)
    with network.session([["aligned", 120]]) as session:
        assert session.resume(tmp_path) == 0
        outputs = {}
        for number in (1, 2):
            session.epoch(number)
            session.checkpoint(tmp_path, number)
            outputs[number] = session.outputs()
        assert session.resume(tmp_path, at=1) == 1
        np.testing.assert_array_equal(session.outputs(), outputs[1])
        assert session.resume(tmp_path) == 2
        np.testing.assert_array_equal(session.outputs(), outputs[2])
