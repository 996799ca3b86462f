"""Small tables of every shape, and generators small enough to try them all on."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedmend.data.table import Table
from fedmend.errors import FedmendWarning
from fedmend.generate import Generator, make

# Enough to run through every line, too little to learn anything.
SMALL: dict[str, Any] = {
    "epochs": 2,
    "steps": 12,
    "iterations": 12,
    "batch_size": 40,
    "sampling_steps": 4,
    "candidates": 50,
    "channels": 8,
    "refine": 2,
    "patience": 2,
    "device": "cpu",
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small():
    """A generator by name, with as little training as it allows."""

    def build(name: str, **params: Any) -> Generator:
        generator = make(name)
        known = generator.get_params()
        fitting = {key: value for key, value in SMALL.items() if key in known}
        return generator.set_params(**(fitting | params))

    return build


def _quiet_table(*args: Any, **kwargs: Any) -> Table:
    """A table that may have a column without any value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedmendWarning)
        return Table(*args, **kwargs)


def _mixed_frame(rows: int, seed: int = 0) -> pd.DataFrame:
    """One column of every kind and of most dtypes, hanging together."""
    rng = np.random.default_rng(seed)
    level = rng.normal(size=rows)
    city = np.array(["Oslo", "Rome", "Lima"])[np.clip((level + 1.5).astype(int), 0, 2)]
    return pd.DataFrame(
        {
            "income": np.round(30_000 + 9_000 * level + rng.normal(size=rows) * 500, 2),
            "age": np.clip(40 + 12 * level + rng.normal(size=rows) * 5, 18, 90).astype("int64"),
            "score": (level * 0.1).astype("float32"),
            "visits": pd.array(rng.poisson(3, rows), dtype="Int64"),
            "gain": np.where(rng.random(rows) < 0.7, 0.0, np.round(np.exp(rng.normal(5, 1, rows)))),
            "city": city.astype(object),
            "grade": pd.Categorical(
                np.array(["low", "mid", "high"])[rng.integers(0, 3, rows)],
                categories=["low", "mid", "high"],
                ordered=True,
            ),
            "member": rng.random(rows) < 0.3,
            "code": pd.Series(rng.integers(0, 2, rows)).map({0: 7, 1: 9}),
            "default": np.where(level + rng.normal(size=rows) * 0.3 > 0.5, "yes", "no"),
        }
    )


@pytest.fixture(scope="session")
def quiet_table():
    return _quiet_table


@pytest.fixture(scope="session")
def mixed_frame():
    return _mixed_frame


@pytest.fixture(scope="session")
def mixed():
    return Table(np.arange(120), _mixed_frame(120), label="default")


@pytest.fixture(scope="session")
def gappy():
    """The mixed table's columns with a fifth of the cells missing."""
    return _gap(Table(np.arange(500, 560), _mixed_frame(60, seed=1), label="default"), 0.2)


def _gap(table: Table, share: float, seed: int = 0) -> Table:
    """The same table, kinds kept, with cells missing at random."""
    rng = np.random.default_rng(seed)
    frame = {}
    for name in table.names:
        series = table.frame[name]
        if series.dtype.kind in "iu" and not isinstance(series.dtype, pd.Int64Dtype):
            series = series.astype("float64")
        elif series.dtype == bool:
            series = series.astype("boolean")
        frame[name] = series.mask(pd.Series(rng.random(len(series)) < share))
    return _quiet_table(table.ids, pd.DataFrame(frame), schema=table.schema, label=table.label)
