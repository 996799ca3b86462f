"""One row of the table of ``fedmend bench generators``: one method, measured on one data set."""

from __future__ import annotations

import functools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fedmend.data.table import Table
from fedmend.generate import generators, make
from fedmend_bench.generators import peers
from fedmend_bench.generators.data import Data, prepared
from fedmend_bench.generators.imputers import BASELINES
from fedmend_bench.generators.scores import (
    column_shapes,
    copying,
    imputation_error,
    pair_trends,
    train_synthetic_test_real,
)

__all__ = ["REAL", "REFERENCES", "Cell", "How", "Row", "measured"]

Row = dict[str, Any]

REAL = "real rows"
REFERENCES = (REAL, *BASELINES)

_QUICK = {"epochs": 50, "steps": 50, "candidates": 10}  # by how much a smoke run does less
_QUICK_DRAWS = 2


@dataclass(frozen=True)
class Cell:
    """What is measured. Where and how is no part of it: rows of several machines make a table."""

    data: str
    seed: int
    method: str
    rows: int
    gaps: str
    quick: bool


@dataclass(frozen=True)
class How:
    """The device and threads of all methods, whether gaps are filled, and how peers are run."""

    device: str
    threads: int
    imputation: bool
    peers: peers.Asked

    def __str__(self) -> str:
        return f"{self.device}, {self.threads} threads"


def measured(how: How, cell: Cell) -> Row:
    """The row of a cell; ``failed`` says why there is none."""
    row: Row = {"data": cell.data, "seed": cell.seed, "method": cell.method}
    if cell.method in peers.PEERS and cell.method not in peers.found(how.peers.python):
        python = Path(how.peers.python).name
        return row | {"failed": f"left out: not installed for {python}"}
    before = torch.get_num_threads()
    torch.set_num_threads(how.threads)
    try:
        data = _prepared(cell.data, cell.rows, cell.seed, cell.quick, cell.gaps)
        if cell.method in REFERENCES:
            return row | reference(data, cell.method, cell.seed)
        if cell.method in generators():
            return row | ours(data, cell, how)
        return row | theirs(data, cell, how)
    finally:
        torch.set_num_threads(before)


_prepared = functools.lru_cache(maxsize=2)(prepared)


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


def ours(data: Data, cell: Cell, how: How) -> Row:
    """One of our generators; ``quick`` trains a fiftieth as long and fills gaps from few draws."""
    model, quick = make(cell.method, seed=cell.seed, device=how.device), cell.quick
    if quick:
        costs = {k: v for k, v in model.get_params().items() if k in _QUICK}
        model.set_params(**{key: max(1, value // _QUICK[key]) for key, value in costs.items()})
    start, busy = time.perf_counter(), time.process_time()
    model.fit(data.train)
    fitted, busy = time.perf_counter(), time.process_time() - busy
    made = model.sample(data.train.n_rows, seed=cell.seed)
    sampled = time.perf_counter()
    row = _scores(data, made.frame, cell.seed)
    row |= {"fit s": fitted - start, "fit CPU s": busy}
    row |= {"rows/s": made.n_rows / (sampled - fitted)}
    if how.imputation:
        filled = functools.partial(model.impute, draws=_QUICK_DRAWS if quick else None)
        start = time.perf_counter()
        for pattern in data.gaps:
            row |= _gap_scores(data, pattern, filled(data.torn(pattern)).frame)
        row["impute s"] = time.perf_counter() - start
    return row | {"on": str(how)} | ({"note": "a fiftieth of the training"} if quick else {})


def theirs(data: Data, cell: Cell, how: How) -> Row:
    """A peer learns from the same rows through a CSV file."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "train.csv", Path(folder) / "made.csv"
        data.train.frame.to_csv(source, index=False)
        discrete = [n for n, column in data.train.schema.items() if column.is_categorical]
        job: Row = {"train": str(source), "out": str(target), "discrete": discrete}
        job |= {"rows": data.train.n_rows, "seed": cell.seed, "quick": cell.quick}
        job |= {"device": how.device, "threads": how.threads}
        told = peers.measure(cell.method, how.peers, job, Path(folder))
        if "error" in told:
            return {"failed": told["error"]}
        made = _typed(pd.read_csv(target, dtype=dict.fromkeys(discrete, str)), data.train)
    row = _scores(data, made, cell.seed)
    row |= {"fit s": told["fit"], "fit CPU s": told["busy"]}
    row |= {"rows/s": len(made) / told["sample"], "on": str(how)}
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
