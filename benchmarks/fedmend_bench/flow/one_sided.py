"""`fedmend bench one-sided`: what is predicted of people whom one party alone knows.

Two parties hold halves of a table's columns and share a tenth of the people. The test people are
predicted three times: known to both, to the label party alone, and to its partner alone. A model
trained on shared rows can put the absent side at its mean ("fill"), or guess it from the side that
is there (`split.imputed`, what fedmend does); methods that have learnt to do without a side stand
beside it: networks, boosted trees (ours, and scikit-learn's of the left join in the clear).
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data import scenario
from fedmend.errors import FedmendWarning
from fedmend.federation import Federation, Party
from fedmend.learn import metrics
from fedmend.methods import (
    RISA,
    VFL,
    AbsentPartner,
    Local,
    LocalTrees,
    LocalVFL,
    SecureBoost,
)
from fedmend.secure.align import align
from fedmend_bench import datasets
from fedmend_bench.cells import run_cells
from fedmend_bench.clear import Clear
from fedmend_bench.harness import Bar, BenchResult
from fedmend_bench.options import chosen, listed
from fedmend_bench.simulation import apart, know, together

NAME = "one-sided"
HELP = "rows that one party alone knows: absent sides guessed, or at their mean"

LABELS, OTHER = "labels", "other"
NETWORKS = {each.__name__: each for each in (VFL, LocalVFL, AbsentPartner, RISA, Local)}
TREES = {each.__name__: each for each in (SecureBoost, LocalTrees)}
MODELS = (*NETWORKS, *TREES, "GBDT left join")
KINDS = ("both", f"{LABELS} only", f"{OTHER} only")
"""Who knows a test row."""


@dataclass(frozen=True)
class Cell:
    """One method on one torn table. epochs: of networks, at most."""

    data: str
    method: str
    rows: int
    overlap: float
    seed: int
    epochs: int


def run(
    quick: bool = False,
    sets: str = "credit,bank,adult",
    rows: int = 10_000,
    overlap: float = 0.1,
    seeds: str = "10,11,12,13,14",
    epochs: int = 60,
    methods: str = ",".join(MODELS),
    processes: int = 1,
    folder: str | None = None,
) -> BenchResult:
    """Mean AUC and log loss over seeds; the bars compare guessing with the mean row."""
    names, numbers = listed(sets), [int(each) for each in listed(seeds)]
    wanted = chosen("methods", methods, MODELS)
    if quick:
        names, numbers, rows, epochs, overlap = ["breast-cancer"], [10, 11], 600, 20, 0.4
    cells = [
        Cell(name, method, rows, overlap, seed, epochs)
        for seed, name, method in itertools.product(numbers, names, wanted)
    ]
    found = run_cells(measure, cells, folder, processes)
    table = means([vars(cell) | each for cell, each in zip(cells, found, strict=True)])
    return BenchResult(NAME, table, [bar for name in names for bar in _bars(name, table)])


def measure(cell: Cell) -> dict[str, Any]:
    """The scores of each kind of test row; seconds are the processor's."""
    fed, truth = torn(cell.data, cell.rows, cell.overlap, cell.seed)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedmendWarning)
        model = _made(cell.method, cell.epochs, cell.seed).fit(fed)
    seconds = round(time.process_time() - began, 2)
    scores = [
        each
        for known in (f"{LABELS} {OTHER}", LABELS, OTHER)
        if known != OTHER or OTHER in _parties(model)
        for each in _scored(model, fed, known, truth)
    ]
    return {"seconds": seconds, "scores": scores}


def _parties(model: Any) -> list[str]:
    """Whose columns it uses, and can be asked about alone; of a model in the clear nobody's."""
    return model.network_.parties if hasattr(model, "network_") else []


def _made(method: str, epochs: int, seed: int) -> Any:
    if method in NETWORKS:
        return NETWORKS[method](epochs=epochs, seed=seed)
    return TREES[method](seed=seed) if method in TREES else Clear(method, seed)


def torn(name: str, rows: int, overlap: float, seed: int) -> tuple[Federation, np.ndarray]:
    """Parties with a half of the columns each; all test people at both, in the same order."""
    whole = datasets.load(name)
    rng = np.random.default_rng(seed)
    if len(whole) > rows:
        whole = whole.take(np.sort(rng.permutation(len(whole))[:rows]))
    names = list(whole.feature_names)
    mine = set(rng.permutation(len(names))[: len(names) // 2].tolist())
    columns = {
        LABELS: [each for at, each in enumerate(names) if at in mine],
        OTHER: [each for at, each in enumerate(names) if at not in mine],
    }
    both = scenario.split_columns(whole, columns, label_party=LABELS)
    known, test = scenario.split_rows(both, 0.3, seed=seed, stratify=LABELS)
    known = scenario.tear(known, overlap=overlap, label_party=LABELS, seed=seed)
    parties = [Party(each, known[each], test=test[each]) for each in (LABELS, OTHER)]
    fed = Federation(*parties, seed=seed)
    align(fed)
    return fed, test[LABELS].y.to_numpy()


def _scored(model: Any, fed: Federation, known: str, truth: np.ndarray) -> Iterator[dict[str, Any]]:
    """One kind of test row; of a model that guesses also with the absent side at its mean."""
    test, both = fed.on("test"), known not in (LABELS, OTHER)
    know(test, (together if both else apart)(len(truth)))
    rows = "aligned" if both else known
    network: Any = getattr(model, "network_", None)
    classes = [str(each) for each in model.classes_.tolist()]
    y = np.array([classes.index(str(each)) for each in truth])
    ways = ["fill", "guess"] if not both and getattr(network, "has_imputed", False) else ["–"]
    for way in ways:
        if way == "fill":
            network.has_imputed = False
        scores = metrics.classification(y, model.predict_proba(test, rows=rows))
        if way == "fill":
            network.has_imputed = True
        yield {
            "known to": KINDS[0] if both else f"{known} only",
            "absent side": way,
            "auc": scores["auc"],
            "log_loss": scores["log_loss"],
        }


# ---------------------------------------------------------------- figures


def means(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for every set, method, and kind of test row; rows known to both first."""
    done = [
        {"set": line["data"], "method": line["method"]} | each
        for line in lines
        for each in line.get("scores", ())
    ]
    keys = ["set", "known to", "method", "absent side"]
    rows = [
        dict(zip(keys, key, strict=True))
        | {
            "auc": float(group["auc"].mean()),
            "sd": float(group["auc"].std()) if len(group) > 1 else 0.0,
            "log loss": float(group["log_loss"].mean()),
            "seeds": len(group),
        }
        for key, group in pd.DataFrame(done).groupby(keys, sort=False)
    ]
    failed = [
        {"set": line["data"], "method": line["method"], "failed": line["failed"]}
        for line in lines
        if "failed" in line
    ]
    return sorted(rows, key=lambda row: KINDS.index(row["known to"])) + failed


def _bars(name: str, table: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    """Guessing must not lose to the mean row, for the model that is trained on shared rows."""
    for known in KINDS[1:]:
        by_way = {
            each["absent side"]: each
            for each in table
            if (each["set"], each.get("known to"), each["method"]) == (name, known, "VFL")
        }
        if not by_way:
            continue
        guess, fill = by_way["guess"], by_way["fill"]
        yield Bar.at_least(f"{name}, {known}: AUC of VFL", guess["auc"], round(fill["auc"], 4))
        yield Bar.at_most(
            f"{name}, {known}: log loss of VFL", guess["log loss"], round(fill["log loss"], 4)
        )
