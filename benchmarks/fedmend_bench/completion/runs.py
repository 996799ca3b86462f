"""The measurements of FedPSG-PUM one by one: a `Cell` is one of one torn table."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.table import Table
from fedmend.errors import FedmendWarning
from fedmend.federation import Federation
from fedmend.generate import make
from fedmend.methods import VFL, Local, LocalVFL
from fedmend.methods.completion.fedpsg_pum import FedPSGPUM
from fedmend.methods.completion.merging import completion_of
from fedmend_bench import datasets
from fedmend_bench.completion.scores import Scenario, reference, scores, tear_table

__all__ = ["OURS", "PAPER", "PARTS", "Cell", "run_cell"]

OURS, PAPER = "FedPSG-PUM", "paper()"
TRAINED = "downstream: "
"""Before the name of what a joint model was trained on."""
PARTS = ("ours", "paper", "baselines")


@dataclass(frozen=True)
class Cell:
    """One measurement.

    part: ours, paper, baselines, ``reference: NAME`` or ``generator: NAME``. where: which rows are
    missing. columns: so many of the table's columns, drawn; 0 for all. generator_epochs, epochs,
    trainings: of generators; of downstream training, and how many of those are averaged. secure:
    homomorphic encryption for the correlation too. settings: for FedPSGPUM in the place of its
    defaults, as JSON.
    """

    data: str
    where: str
    missing: float
    seed: int
    part: str
    rows: int
    test: int
    generator_epochs: int
    epochs: int
    trainings: int
    secure: bool = False
    settings: str = "{}"
    columns: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """What every line of the results says."""
        return {name: getattr(self, name) for name in ("data", "where", "missing", "seed")}


def run_cell(cell: Cell) -> list[dict[str, Any]]:
    """The lines of one measurement."""
    table = datasets.load(cell.data)
    if cell.columns:
        drawn = np.random.default_rng(cell.seed).permutation(table.feature_names)[: cell.columns]
        label = [table.label] if table.label else []
        table = table.select([*drawn.tolist(), *label])
    case = tear_table(
        table, cell.missing, rows=cell.rows, test=cell.test, seed=cell.seed, where=cell.where
    )
    work, (kind, _, name) = _Work(cell, case), cell.part.partition(": ")
    makers: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "ours": work.ours,
        "paper": work.paper,
        "baselines": work.baselines,
        "reference": lambda: [work.completion(name, partial(reference, name, case))],
        "generator": lambda: [work.completion(f"{name} alone", partial(work.generated, name))],
    }
    with warnings.catch_warnings():
        # no strong column, a column that was generated instead: the figures show it
        warnings.simplefilter("ignore", FedmendWarning)
        return [cell.facts | line for line in makers[kind]()]


class _Work:
    """All measurements of one torn table."""

    def __init__(self, cell: Cell, case: Scenario) -> None:
        self.cell, self.case, self.seed = cell, case, cell.seed
        self.generator = {"epochs": cell.generator_epochs}
        self.mode = {} if cell.secure else {"correlation_mode": "dealer"}

    def model(self, **changes: Any) -> FedPSGPUM:
        params = {"generator_params": self.generator, "seed": self.seed}
        return FedPSGPUM(**{**self.mode, **params, **json.loads(self.cell.settings), **changes})

    def ours(self) -> Iterable[dict[str, Any]]:
        return self._fitted(OURS, self.model())

    def paper(self) -> Iterable[dict[str, Any]]:
        # The published selection; under Paillier its value is the same at many times the cost.
        # Generators train for as long as they do by default.
        preset = FedPSGPUM.paper(**{"correlation_mode": "bfv"} | self.mode)
        return self._fitted(PAPER, preset)

    # ------------------------------------------------------------------ completion

    def _fitted(self, name: str, model: FedPSGPUM) -> Iterable[dict[str, Any]]:
        """How well cells are completed, and what a joint model on the completed rows is worth."""
        fed = self.case.federation(seed=self.seed)
        began, spent = time.perf_counter(), time.process_time()
        model.fit(fed)
        yield {
            "method": name,
            **scores(self.case, completed(fed, model)),
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - spent,
            "mb": fed.ledger.total_bytes() / 1e6,
        }
        if self.cell.trainings:
            yield self._trained(name, VFL, model.federation)

    def completion(self, name: str, fill: Callable[[], pd.DataFrame]) -> dict[str, Any]:
        began = time.perf_counter()
        filled = fill()
        seconds = time.perf_counter() - began
        return {"method": name, **scores(self.case, filled), "seconds": seconds}

    def generated(self, name: str) -> pd.DataFrame:
        if name == "vfgain":  # learns from both parties, so it cannot be fitted at b by itself
            fed = self.case.federation(seed=self.seed)
            params = {"generator_params": self.length(name)}
            model = self.model(tau=1.0, generator=name, condition=False, **params)
            return completed(fed, model.fit(fed))
        own = self.case.b.take(self.case.known).features
        alone = make(name, seed=self.seed, **self.length(name)).fit(own)
        return alone.sample(len(self.case.missing)).frame

    def length(self, name: str) -> dict[str, int]:
        """`generator_epochs` in the words of a generator: some count steps instead."""
        known = make(name).get_params()
        if "epochs" in known:
            return self.generator
        batches = -(-len(self.case.known) // int(known["batch_size"]))
        return {"steps": self.cell.generator_epochs * batches}

    # ------------------------------------------------------------------ downstream

    def baselines(self) -> Iterable[dict[str, Any]]:
        """AUC on two-sided test rows of the joint model, by what it was trained on."""
        torn = self.case.federation(seed=self.seed)
        mean = self.case.federation(self._filled(reference("mean/mode", self.case)), self.seed)
        oracle = self.case.federation(self.case.b, self.seed)
        yield self._trained("aligned only", VFL, torn)
        yield self._trained("a only", Local, torn)
        yield self._trained("zeros", LocalVFL, torn)
        yield self._trained("mean", VFL, mean)
        yield self._trained("oracle", VFL, oracle)

    def _trained(self, name: str, method: Any, fed: Federation) -> dict[str, Any]:
        began, found = time.perf_counter(), []
        for number in range(self.cell.trainings):
            seed = 1000 * number + self.seed
            model = method(epochs=self.cell.epochs, batch_size=256, seed=seed).fit(fed)
            found.append(model.evaluate(fed.on("test"))["auc"])
        seconds = time.perf_counter() - began
        return {"method": TRAINED + name, "auc": float(np.mean(found)), "seconds": seconds}

    def _filled(self, values: pd.DataFrame) -> Table:
        b = self.case.b
        frame = b.frame.copy()
        for name in self.case.columns:
            column = frame[name].astype(object)
            column.iloc[self.case.missing] = values[name].to_numpy(dtype=object)
            frame[name] = column.astype(float) if b.schema[name].is_numeric else column
        kinds = {name: b.schema[name].kind for name in frame.columns}
        kinds = {name: "continuous" if kind == "integer" else kind for name, kind in kinds.items()}
        return Table(b.ids, frame, kinds=kinds, label=b.label)


def completed(fed: Federation, model: FedPSGPUM) -> pd.DataFrame:
    """B's guesses in the order of the missing rows; a simulation can look into both sites."""
    sites: Any = fed.engine
    made = completion_of(sites.site("b"), model.run_, "a")
    rows = sites.site("a").alignments[f"{fed.dataset}@{model.run_}-a"].unaligned
    frame = pd.DataFrame(made.values)
    return frame.iloc[np.argsort(rows)].reset_index(drop=True)
