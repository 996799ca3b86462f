"""Generators on real tables: is it the same distribution, is it of use, is it copied, how fast.

For every data set and generator: column shapes and pair trends (as sdmetrics defines them), AUC of
gradient boosting trained on synthetic and tested on real rows, distance to the closest training
row, error of filled gaps (a fifth of all cells; half of the columns), seconds to fit and rows per
second. Beside it, in the same run: the real training rows, mean, KNN and iterative imputation, and
the peers of other packages where the interpreter ``peers_python`` (else this one) has them.

A full run takes hours on a small machine. It can be split: every row is kept in ``folder`` as soon
as it is measured, rows found there are not measured again, and several processes may share it. A
last call with all names finds everything measured and gives the table.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Sequence

import numpy as np
import torch

from fedmend.errors import ConfigError
from fedmend.generate import generators as generator_names
from fedmend.split.config import resolve_device
from fedmend_bench.cells import run_cells
from fedmend_bench.datasets import names as dataset_names
from fedmend_bench.generators.data import GAPS, gap_measure
from fedmend_bench.generators.peers import PEERS, Asked
from fedmend_bench.generators.rows import REAL, REFERENCES, Cell, How, Row, measured
from fedmend_bench.harness import Bar, BenchResult, device_name
from fedmend_bench.options import chosen, numbered

NAME = "generators"
HELP = "eight tabular generators: fidelity, use, copying, imputation, speed, beside peers"

DATASETS = ("adult", "bank", "credit")
GAIN_FAMILY = ("gain", "vgain", "vfgain")


def run(
    quick: bool = False,
    *,
    datasets: str | Sequence[str] = DATASETS,
    generators: str | Sequence[str] = "all",
    rows: int = 10_000,
    seed: int = 0,
    seeds: int = 1,
    device: str = "auto",
    threads: int | None = None,
    imputation: bool = True,
    gaps: str = GAPS,
    references: bool = True,
    peers: str | Sequence[str] = "all",
    peers_python: str | None = None,
    peer_seconds: float = 7_200.0,
    forest: str = "50x20",
    folder: str | None = None,
) -> BenchResult:
    """``quick``: the first data set, 600 rows, a fiftieth of the training, and promises for that.

    Any named data set with a binary label will do. ``generators`` and ``peers`` are names, ``all``
    or ``none``. With several ``seeds`` (from ``seed`` on; each draws other rows) the table holds
    means. ``device`` and ``threads`` are for all methods alike. ``gaps`` says how filled gaps are
    judged: in how many rows, and with how many halves of the columns missing. ``forest``: noise
    levels x copies of each row x trees x bins for ForestDiffusion, whose own are 50x100x100x256:
    days of a core for a table of these.
    """
    names = chosen("generators", generators, generator_names())
    sets = chosen("datasets", datasets, dataset_names())
    wanted = chosen("peers", peers, PEERS)
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){0,3}", forest):
        raise ConfigError(f"forest must be whole numbers such as 20x5x50x64, got {forest!r}")
    gap_measure(gaps)  # says what is wrong with it before anything is measured
    if quick:
        sets, rows = sets[:1], min(rows, 600)
    asked = Asked(peers_python or sys.executable, peer_seconds, forest)
    how = How(str(resolve_device(device)), threads or torch.get_num_threads(), imputation, asked)
    plain = (REFERENCES if imputation else REFERENCES[:1]) if references else ()
    cells = [
        Cell(name, number, method, rows, gaps, quick)
        for name, number in itertools.product(sets, numbered(seeds, first=seed))
        for method in (*plain, *names, *wanted)
    ]
    table = means(run_cells(functools.partial(measured, how), cells, folder))
    promises = quick_bars(table) if quick else bars_of(table)
    return BenchResult(NAME, table, promises, device=device_name(how.device))


def means(rows: Sequence[Row]) -> list[Row]:
    """One row per data set and method: the means over the seeds at which it was measured."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["method"]), []).append(row)
    table = []
    for (data, method), group in groups.items():
        fine = [row for row in group if "failed" not in row] or group[:1]
        told = {key: None for row in fine for key in row if key not in ("data", "method", "seed")}
        mean: Row = {"data": data, "method": method, "seeds": len(fine)}
        for key in told:
            values = [row[key] for row in fine if row.get(key) is not None]
            if values and not isinstance(values[0], str):
                mean[key] = sum(values) / len(values)
            elif values:
                mean[key] = "; ".join(dict.fromkeys(values))
        table.append(mean)
    return table


# ---------------------------------------------------------------- promises


def bars_of(table: Sequence[Row]) -> list[Bar]:
    """What can be said of the rows that are there."""
    found: list[Bar] = []
    for name in dict.fromkeys(row["data"] for row in table):
        by = {row["method"]: row for row in table if row["data"] == name and _measured(row)}
        found += [*_ctgan_bars(name, by), *_peer_bars(name, by), *_imputation_bars(name, by)]
        if name == "adult" and "tabddpm" in by and REAL in by:
            limit = by[REAL]["AUC"] - 0.02
            found.append(Bar.at_least("adult: AUC of tabddpm", by["tabddpm"]["AUC"], limit))
    return found


def quick_bars(table: Sequence[Row]) -> list[Bar]:
    """What a fiftieth of the training must give: one that looks alike, and one that fills gaps."""
    ours = [row for row in table if row["method"] in generator_names() and _measured(row)]
    means = [row for row in table if row["method"] == "mean" and "20% RMSE" in row]
    found = []
    if looks := [fidelity(row) for row in ours if "shapes" in row]:
        found.append(Bar.at_least("best fidelity, a fiftieth of the training", max(looks), 0.9))
    for gap in ("20% RMSE", "block RMSE"):
        errors = [row[gap] for row in ours if row["method"] in GAIN_FAMILY and row.get(gap)]
        if errors and means:
            found.append(Bar.at_most(f"{gap}, best of GAIN's family", min(errors), means[0][gap]))
    return found


def _measured(row: Row) -> bool:
    return "shapes" in row or "20% RMSE" in row


def fidelity(row: Row) -> float:
    """The mean of column shapes and pair trends."""
    return float(row["shapes"] + row["pairs"]) / 2


def _ctgan_bars(name: str, by: dict[str, Row]) -> list[Bar]:
    if "ctgan" not in by or "ctgan CTGAN" not in by:
        return []
    ours, theirs = by["ctgan"], by["ctgan CTGAN"]
    found = [Bar.at_least(f"{name}: fidelity of ctgan", fidelity(ours), fidelity(theirs) - 0.01)]
    if ours.get("on") == theirs.get("on"):  # seconds of two machines are no comparison
        # CPU seconds: what else the machine did at the time is no merit of either.
        clock = "fit CPU s" if str(ours.get("on")).startswith("cpu") else "fit s"
        title = f"{name}: {'CPU ' * clock.startswith('fit C')}seconds to fit ctgan"
        found.append(Bar.at_most(title, ours[clock], theirs[clock]))
    return found


def _peer_bars(name: str, by: dict[str, Row]) -> list[Bar]:
    ours = [row for method, row in by.items() if method in generator_names()]
    theirs = [row for method, row in by.items() if method in PEERS]
    if not ours or not theirs:
        return []
    found = []
    for what, of in (("fidelity", fidelity), ("AUC", _auc)):
        title = f"{name}: best {what}, against peers"
        found.append(Bar.at_least(title, max(map(of, ours)), max(map(of, theirs))))
    return found


def _auc(row: Row) -> float:
    return float(np.nan_to_num(row.get("AUC") or 0.0))


def _imputation_bars(name: str, by: dict[str, Row]) -> list[Bar]:
    """Every member of the GAIN family against the better of mean and KNN, in both measures."""
    family = [by[method] for method in GAIN_FAMILY if method in by]
    plain = [by[method] for method in ("mean", "KNN") if method in by]
    found: list[Bar] = []
    if not family or not plain:
        return found
    for error in [key for key in family[0] if key.endswith(" RMSE")]:
        pattern = error.removesuffix(" RMSE")
        hits = f"{pattern} acc"
        if any(error not in row for row in [*family, *plain]):
            continue
        worst = (max(row[error] for row in family), min(row[hits] for row in family))
        limit = (min(row[error] for row in plain), max(row[hits] for row in plain))
        found.append(
            Bar(
                f"{name}: RMSE / accuracy of the GAIN family's worst, {pattern} missing",
                f"{worst[0]:.3f} / {worst[1]:.3f}",
                f"< {limit[0]:.3f} / > {limit[1]:.3f}",
                bool(worst[0] < limit[0] and worst[1] > limit[1]),
            )
        )
    return found
