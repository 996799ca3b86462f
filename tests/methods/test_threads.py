"""Small tables are learnt on one thread, from Python as in a run."""

import numpy as np
import pandas as pd
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import fedmend as fm
from fedmend.errors import DataError
from fedmend.methods import threads
from fedmend.methods.registry import COMPLETIONS, METHODS

RECORDS = METHODS | COMPLETIONS


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with threadpool_limits(2, "blas"):
        yield
    torch.set_num_threads(before)


def in_use() -> set[int]:
    numpys = {each["num_threads"] for each in threadpool_info() if "numpy" in each["filepath"]}
    return {torch.get_num_threads()} | numpys


def federation(rows: int = 3, **how) -> fm.Federation:
    frame = pd.DataFrame({"age": range(rows), "y": [0, 1, 1] * (rows // 3)})
    return fm.Federation(fm.Party("bank", fm.Table(np.arange(rows), frame, label="y", **how)))


def test_small_tables_take_one_thread_and_give_the_others_back():
    with pytest.raises(ZeroDivisionError), threads.few_threads(federation()):
        assert in_use() == {1}
        raise ZeroDivisionError
    assert in_use() == {2}


def test_images_large_tables_and_whoever_says_otherwise_keep_their_threads(monkeypatch):
    images = {"scan": np.zeros((3, 1, 4, 4), np.float32)}
    with threads.few_threads(federation(blocks=images)):
        assert in_use() == {2}
    with monkeypatch.context() as patch, threads.few_threads(federation(6)):
        assert in_use() == {1}
        patch.setattr(threads, "SMALL_ROWS", 5)
        with threadpool_limits(2, "blas"), threads.few_threads(federation(6)):
            assert in_use() == {1, 2}, "as they were: torch's one, numpy's two"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with threads.few_threads(federation()):
        assert in_use() == {2}


@pytest.mark.parametrize(
    "name",
    [each for each in METHODS | COMPLETIONS if each not in METHODS or not METHODS[each].horizontal],
)
def test_every_method_asks_how_large_the_tables_are(name, monkeypatch):
    """Horizontal ones, whose clients are trained side by side, go by the work of a step."""

    def asked(fed):
        raise InterruptedError

    monkeypatch.setattr(threads, "few_threads", asked)
    model = RECORDS[name].load()()
    with pytest.raises(InterruptedError):
        model.fit(federation())
    with pytest.raises(DataError, match="takes a Federation"):
        model.fit("no federation")
