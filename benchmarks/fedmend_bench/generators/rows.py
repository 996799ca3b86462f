"""One row of the table of ``fedmend bench generators``: one method, measured on one data set."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fedmend.data.table import Table
from fedmend.generate import make
from fedmend_bench.generators import peers as generator_peers
from fedmend_bench.generators.data import Data
from fedmend_bench.generators.imputers import BASELINES
from fedmend_bench.generators.scores import (
    column_shapes,
    copying,
    imputation_error,
    pair_trends,
    train_synthetic_test_real,
)

__all__ = ["REFERENCES", "Place", "Row", "ours", "reference", "theirs"]

Row = dict[str, Any]

REAL = "real rows"
REFERENCES = (REAL, *BASELINES)

_QUICK = {"epochs": 50, "steps": 50, "candidates": 10}  # by how much a smoke run does less
_QUICK_DRAWS = 2


@dataclass(frozen=True)
class Place:
    """Where all methods of a run are measured: the device, and how many threads they may use."""

    device: str
    threads: int | None

    def __str__(self) -> str:
        return f"{self.device}, {self.threads or torch.get_num_threads()} threads"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Torch keeps to the threads."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def reference(data: Data, name: str, seed: int) -> Row:
    """The real rows themselves, or a plain imputer."""
    if name == REAL:
        train, test, schema = data.train.frame, data.test.frame, data.train.schema
        return {
            "shapes": column_shapes(train, data.other, schema),
            "pairs": pair_trends(train, data.other, schema),
            "AUC": train_synthetic_test_real(train, test, str(data.train.label), schema, seed),
        }
    row: Row = {}
    start = time.perf_counter()
    for pattern in data.gaps:
        row |= _gap_scores(data, pattern, BASELINES[name](data.train, data.torn(pattern), seed))
    return row | {"impute s": time.perf_counter() - start}


def ours(data: Data, name: str, seed: int, place: Place, imputation: bool, quick: bool) -> Row:
    """One of our generators; ``quick`` trains a fiftieth as long and fills gaps from few draws."""
    model = make(name, seed=seed, device=place.device)
    if quick:
        costs = {k: v for k, v in model.get_params().items() if k in _QUICK}
        model.set_params(**{key: max(1, value // _QUICK[key]) for key, value in costs.items()})
    start, busy = time.perf_counter(), time.process_time()
    model.fit(data.train)
    fitted, busy = time.perf_counter(), time.process_time() - busy
    made = model.sample(data.train.n_rows, seed=seed)
    sampled = time.perf_counter()
    row = _scores(data, made.frame, seed)
    row |= {"fit s": fitted - start, "fit CPU s": busy}
    row |= {"rows/s": made.n_rows / (sampled - fitted)}
    if imputation:
        filled = functools.partial(model.impute, draws=_QUICK_DRAWS if quick else None)
        start = time.perf_counter()
        for pattern in data.gaps:
            row |= _gap_scores(data, pattern, filled(data.torn(pattern)).frame)
        row["impute s"] = time.perf_counter() - start
    return row | {"on": str(place)} | ({"note": "a fiftieth of the training"} if quick else {})


def theirs(
    data: Data, peer: str, seed: int, place: Place, asked: generator_peers.Asked, quick: bool
) -> Row:
    """A peer learns from the same rows through a CSV file."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "train.csv", Path(folder) / "made.csv"
        data.train.frame.to_csv(source, index=False)
        discrete = [n for n, column in data.train.schema.items() if column.is_categorical]
        job: Row = {"train": str(source), "out": str(target), "discrete": discrete, "quick": quick}
        job |= {"rows": data.train.n_rows, "seed": seed}
        job |= {"device": place.device, "threads": place.threads or torch.get_num_threads()}
        told = generator_peers.measure(peer, asked, job, Path(folder))
        if "error" in told:
            return {"note": f"failed: {told['error']}"}
        made = _typed(pd.read_csv(target, dtype=dict.fromkeys(discrete, str)), data.train)
    row = _scores(data, made, seed)
    row |= {"fit s": told["fit"], "fit CPU s": told["busy"]}
    row |= {"rows/s": len(made) / told["sample"], "on": str(place)}
    return row | ({"note": told["note"]} if told["note"] else {})


def _typed(made: pd.DataFrame, like: Table) -> pd.DataFrame:
    """Text of a CSV file as the values it stood for; rows that stand for none are dropped."""
    for name, column in like.schema.items():
        if column.is_categorical:
            meaning = {str(value): value for value in column.categories or ()}
            made[name] = made[name].map(meaning)
        else:
            made[name] = pd.to_numeric(made[name], errors="coerce")
    return made[like.names].dropna().reset_index(drop=True)


def _scores(data: Data, made: pd.DataFrame, seed: int) -> Row:
    train, test, schema = data.train.frame, data.test.frame, data.train.schema
    scores: Row = {
        "shapes": column_shapes(train, made, schema),
        "pairs": pair_trends(train, made, schema),
        "AUC": train_synthetic_test_real(made, test, str(data.train.label), schema, seed),
    }
    return scores | copying(train, data.other, made, schema)


def _gap_scores(data: Data, pattern: str, filled: pd.DataFrame) -> Row:
    whole = data.whole(pattern)
    error = imputation_error(whole.frame, filled, data.gaps[pattern], whole.schema)
    return {f"{pattern} RMSE": error["rmse"], f"{pattern} acc": error["accuracy"]}
