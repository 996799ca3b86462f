"""Generators on real tables: is it the same distribution, is it of use, is it copied, how fast.

For every data set and generator: column shapes and pair trends (as sdmetrics defines them), AUC of
gradient boosting trained on synthetic and tested on real rows, distance to the closest training
row, error of filled gaps (a fifth of all cells; half of the columns), seconds to fit and rows per
second. Beside it, in the same run: the real training rows, mean, KNN and iterative imputation, and
the peers of other packages where the interpreter ``peers_python`` (else this one) has them.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend._suggest import did_you_mean
from fedmend.bench import generator_peers
from fedmend.bench.generator_imputers import BASELINES
from fedmend.bench.generator_scores import (
    column_shapes,
    copying,
    imputation_error,
    pair_trends,
    train_synthetic_test_real,
)
from fedmend.bench.harness import Bar, BenchResult, device_name
from fedmend.data.datasets import load
from fedmend.data.datasets import names as dataset_names
from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.generate import generators as generator_names
from fedmend.generate import make
from fedmend.generate.base import quiet
from fedmend.generate.training import pick_device

NAME = "generators"
HELP = "eight tabular generators: fidelity, use, copying, imputation, speed, beside peers"

logger = logging.getLogger(__name__)

DATASETS = ("adult", "bank", "credit")
PATTERNS = ("20%", "block")
_TEST_ROWS = 10_000
_GAP_ROWS = 1_000
_PEER_SECONDS = 7_200.0
_GAIN_FAMILY = ("gain", "vgain", "vfgain")

Row = dict[str, Any]


def run(
    quick: bool = False,
    *,
    datasets: str | Sequence[str] = DATASETS,
    generators: str | Sequence[str] = "all",
    rows: int = 10_000,
    seed: int = 0,
    device: str = "auto",
    imputation: bool = True,
    peers: str | Sequence[str] = "all",
    peers_python: str | None = None,
) -> BenchResult:
    """``quick``: the first data set, 1,500 rows, a tenth of the training (and says so).

    Any named data set with a binary label will do. ``generators`` and ``peers`` are names, ``all``
    or ``none``.
    """
    names = _listed("generators", generators, generator_names())
    sets = _listed("datasets", datasets, dataset_names())
    wanted = _listed("peers", peers, generator_peers.PEERS)
    python = peers_python or sys.executable
    present = [peer for peer in wanted if peer in generator_peers.found(python)]
    if quick:
        sets, rows = sets[:1], min(rows, 1_500)
    table: list[Row] = []
    for name in sets:
        data = _prepared(name, rows, seed, quick)
        table += _references(data, seed, imputation)
        for generator in names:
            table.append(_ours(data, generator, seed, device, imputation, quick))
        table += [_theirs(data, peer, python, seed, quick) for peer in present]
        table += [
            {"data": name, "method": peer, "note": f"left out: not installed for {python}"}
            for peer in wanted
            if peer not in present
        ]
    return BenchResult(NAME, table, _bars(table), device=device_name(str(pick_device(device))))


def _listed(option: str, value: str | Sequence[str], known: Sequence[str] | Any) -> list[str]:
    if value in ("all", "none"):
        return list(known) if value == "all" else []
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else list(value)
    problems = [
        f"{option}: there is no {name!r}: {did_you_mean(name, known)}"
        for name in names
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    return names


# --- data --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Data:
    """One data set: rows to learn from, other real rows, and some of these with gaps."""

    name: str
    train: Table
    test: Table
    whole: Table
    gaps: dict[str, np.ndarray]  # pattern -> bool (rows of whole, columns)

    def torn(self, pattern: str) -> Table:
        """The whole rows with the cells of that pattern missing."""
        gaps = self.gaps[pattern]
        cells = {
            name: _nullable(self.whole.frame[name]).mask(pd.Series(gaps[:, position]))
            for position, name in enumerate(self.whole.names)
        }
        with quiet():
            return Table(self.whole.ids, cells, schema=self.whole.schema, label=self.whole.label)


def _prepared(name: str, rows: int, seed: int, quick: bool) -> _Data:
    table = _without_gaps(load(name))
    rng = np.random.default_rng(seed)
    order = rng.permutation(table.n_rows)
    rows = min(rows, table.n_rows // 2)
    test = table.take(order[rows : rows + _TEST_ROWS])
    whole = test.take(np.arange(min(300 if quick else _GAP_ROWS, test.n_rows)))
    features = [name for name in whole.names if name != whole.label]
    block = rng.permutation(features)[: len(features) // 2]
    gaps = {
        "20%": rng.random((whole.n_rows, len(whole.names))) < 0.2,
        "block": np.tile(np.isin(whole.names, block), (whole.n_rows, 1)),
    }
    return _Data(name, table.take(order[:rows]), test, whole, gaps)


def _without_gaps(table: Table) -> Table:
    """A missing category becomes the category "?", so that all methods learn from the same."""
    frame = table.frame.copy()
    for name in frame.columns[frame.isna().any()]:
        frame[name] = frame[name].astype(object).fillna("?").astype("category")
    return Table(table.ids, frame, label=table.label, kinds=_kinds(table, frame))


def _kinds(table: Table, frame: pd.DataFrame) -> dict[str, str]:
    untouched = [n for n in table.names if frame[n].dtype == table.frame[n].dtype]
    return {n: table.schema[n].kind for n in untouched if table.schema[n].kind != "ordinal"}


def _nullable(series: pd.Series) -> pd.Series:
    if pd.api.types.is_bool_dtype(series.dtype):
        return series.astype("boolean")
    return series.astype("float64") if pd.api.types.is_integer_dtype(series.dtype) else series


# --- measuring ---------------------------------------------------------------------------------


def _references(data: _Data, seed: int, imputation: bool) -> list[Row]:
    """The real rows themselves, and the plain imputers."""
    train, test, schema = data.train.frame, data.test.frame, data.train.schema
    other = test.iloc[: len(train)].reset_index(drop=True)
    real: Row = {
        "data": data.name,
        "method": "real rows",
        "shapes": column_shapes(train, other, schema),
        "pairs": pair_trends(train, other, schema),
        "AUC": train_synthetic_test_real(train, test, str(data.train.label), schema, seed),
    }
    rows = [real]
    for name, impute in BASELINES.items() if imputation else ():
        row: Row = {"data": data.name, "method": name}
        start = time.perf_counter()
        for pattern in PATTERNS:
            row |= _gap_scores(data, pattern, impute(data.train, data.torn(pattern), seed))
        row["impute s"] = time.perf_counter() - start
        rows.append(row)
    return rows


def _ours(data: _Data, name: str, seed: int, device: str, imputation: bool, quick: bool) -> Row:
    row: Row = {"data": data.name, "method": name}
    model = make(name, seed=seed, device=device)
    if quick:
        budget = {k: v for k, v in model.get_params().items() if k in ("epochs", "steps")}
        model.set_params(**{key: max(1, value // 10) for key, value in budget.items()})
    start = time.perf_counter()
    model.fit(data.train)
    fitted = time.perf_counter()
    made = model.sample(data.train.n_rows, seed=seed)
    sampled = time.perf_counter()
    row |= _scores(data, made.frame, seed)
    row |= {"fit s": fitted - start, "rows/s": made.n_rows / (sampled - fitted)}
    if imputation:
        start = time.perf_counter()
        for pattern in PATTERNS:
            row |= _gap_scores(data, pattern, model.impute(data.torn(pattern)).frame)
        row["impute s"] = time.perf_counter() - start
    logger.info("%s", row)
    return row | ({"note": "a tenth of the training"} if quick else {})


def _theirs(data: _Data, peer: str, python: str, seed: int, quick: bool) -> Row:
    """A peer learns from the same rows through a CSV file."""
    row: Row = {"data": data.name, "method": peer}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "train.csv", Path(folder) / "made.csv"
        data.train.frame.to_csv(source, index=False)
        discrete = [n for n, column in data.train.schema.items() if column.is_categorical]
        job: Row = {"train": str(source), "out": str(target), "discrete": discrete, "quick": quick}
        job |= {"rows": data.train.n_rows, "seed": seed}
        seconds = generator_peers.measure(peer, python, job, Path(folder), _PEER_SECONDS)
        if "error" in seconds:
            return row | {"note": f"failed: {seconds['error']}"}
        made = _typed(pd.read_csv(target, dtype=dict.fromkeys(discrete, str)), data.train)
    row |= _scores(data, made, seed)
    row |= {"fit s": seconds["fit"], "rows/s": len(made) / seconds["sample"]}
    return row | ({"note": "fewer epochs"} if quick else {})


def _typed(made: pd.DataFrame, like: Table) -> pd.DataFrame:
    """Text of a CSV file as the values it stood for; rows that stand for none are dropped."""
    for name, column in like.schema.items():
        if column.is_categorical:
            meaning = {str(value): value for value in column.categories or ()}
            made[name] = made[name].map(meaning)
        else:
            made[name] = pd.to_numeric(made[name], errors="coerce")
    return made[like.names].dropna().reset_index(drop=True)


def _scores(data: _Data, made: pd.DataFrame, seed: int) -> Row:
    train, test, schema = data.train.frame, data.test.frame, data.train.schema
    other = test.iloc[: len(train)].reset_index(drop=True)
    scores: Row = {
        "shapes": column_shapes(train, made, schema),
        "pairs": pair_trends(train, made, schema),
        "AUC": train_synthetic_test_real(made, test, str(data.train.label), schema, seed),
    }
    return scores | copying(train, other, made, schema)


def _gap_scores(data: _Data, pattern: str, filled: pd.DataFrame) -> Row:
    error = imputation_error(data.whole.frame, filled, data.gaps[pattern], data.whole.schema)
    return {f"{pattern} RMSE": error["rmse"], f"{pattern} acc": error["accuracy"]}


# --- bars ----------------------------------------------------------------------------------------


def _bars(table: Sequence[Row]) -> list[Bar]:
    bars: list[Bar] = []
    for name in dict.fromkeys(row["data"] for row in table):
        by = {row["method"]: row for row in table if row["data"] == name and len(row) > 3}
        bars += [*_ctgan_bars(name, by), *_peer_bars(name, by), *_imputation_bars(name, by)]
        if name == "adult" and "tabddpm" in by:
            limit = by["real rows"]["AUC"] - 0.02
            bars.append(Bar.at_least("adult: AUC of tabddpm", by["tabddpm"]["AUC"], limit))
    return bars


def _fidelity(row: Row) -> float:
    return (row["shapes"] + row["pairs"]) / 2


def _ctgan_bars(name: str, by: dict[str, Row]) -> list[Bar]:
    if "ctgan" not in by or "ctgan CTGAN" not in by:
        return []
    ours, theirs = by["ctgan"], by["ctgan CTGAN"]
    return [
        Bar.at_least(f"{name}: fidelity of ctgan", _fidelity(ours), _fidelity(theirs) - 0.01),
        Bar.at_most(f"{name}: seconds to fit ctgan", ours["fit s"], theirs["fit s"]),
    ]


def _peer_bars(name: str, by: dict[str, Row]) -> list[Bar]:
    ours = [row for method, row in by.items() if method in generator_names()]
    theirs = [row for method, row in by.items() if method in generator_peers.PEERS]
    if not ours or not theirs:
        return []
    measures: dict[str, Callable[[Row], float]] = {
        "fidelity": _fidelity,
        "AUC": lambda row: float(np.nan_to_num(row["AUC"])),
    }
    return [
        Bar.at_least(
            f"{name}: best {what}, against peers", max(map(of, ours)), max(map(of, theirs))
        )
        for what, of in measures.items()
    ]


def _imputation_bars(name: str, by: dict[str, Row]) -> list[Bar]:
    """Every member of the GAIN family against the better of mean and KNN, in both measures."""
    family = [by[method] for method in _GAIN_FAMILY if method in by]
    plain = [by[method] for method in ("mean", "KNN") if method in by]
    bars: list[Bar] = []
    for pattern in PATTERNS if family and plain else ():
        error, hits = f"{pattern} RMSE", f"{pattern} acc"
        if any(error not in row for row in family):
            continue
        worst = (max(row[error] for row in family), min(row[hits] for row in family))
        limit = (min(row[error] for row in plain), max(row[hits] for row in plain))
        bars.append(
            Bar(
                f"{name}: RMSE / accuracy of the GAIN family's worst, {pattern} missing",
                f"{worst[0]:.3f} / {worst[1]:.3f}",
                f"< {limit[0]:.3f} / > {limit[1]:.3f}",
                bool(worst[0] < limit[0] and worst[1] > limit[1]),
            )
        )
    return bars
