"""InC with a corrector: a simple network to deliver, a stronger one to correct the labels.

Over a federation, with the rows, columns and votes of the fleets' worlds (`runs`), so that the
figures stand beside those of the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedmend.data.table import Table
from fedmend.federation import Federation, Party
from fedmend.methods.annotators.baselines import Clean
from fedmend.methods.annotators.inc import InC
from fedmend_bench.cells import run_cells
from fedmend_bench.inc.data import PARTIES, Problem, Worlds, draw_votes, load_problem, make_worlds
from fedmend_bench.inc.fleet import CLEAN, Outcome
from fedmend_bench.inc.runs import MODELS
from fedmend_bench.simulation import know, together

METHOD = "InC product"


@dataclass(frozen=True)
class Unit:
    """One run: a world, what its annotators are like, and the networks. Clean has no setting."""

    data: str
    model: str
    corrector: str
    kind: str
    setting: str | None
    seed: int
    epochs: int
    rows: int | None = None


def outcomes(
    data: str,
    model: str,
    corrector: str,
    kind: str,
    settings: Sequence[str],
    *,
    seeds: int,
    epochs: int,
    rows: int | None = None,
    keep: str | Path | None = None,
) -> list[Outcome]:
    """Clean (whose labels need no correction) and InC with the corrector, setting by setting."""
    problem = load_problem(data, rows)

    def found(setting: str | None) -> tuple[np.ndarray, np.ndarray]:
        units = [
            Unit(data, model, corrector, kind, setting, seed, epochs, rows) for seed in range(seeds)
        ]
        accuracy, corrected = np.array(run_cells(partial(measure, problem=problem), units, keep)).T
        return accuracy, corrected

    clean = found(None)
    return [Outcome(CLEAN, setting, *clean) for setting in settings] + [
        Outcome(METHOD, setting, *found(setting)) for setting in settings
    ]


def measure(unit: Unit, problem: Problem) -> tuple[float, float]:
    """Accuracy on test rows and share of corrected labels that are right."""
    worlds = make_worlds(problem, [unit.seed])
    truth, n = worlds.y_train[0], len(worlds.y_train[0])
    if unit.setting is None:
        votes = np.repeat(truth[:, None], PARTIES, 1)
    else:
        votes, _ = draw_votes(truth, problem.classes, unit.setting, unit.kind, unit.seed)
    fed = _federation(worlds, votes, unit.seed)
    net: dict[str, Any] = {
        "bottom": (),
        **MODELS[unit.model],
        "missing_indicator": False,
        "epochs": unit.epochs,
        "batch_size": max(2, n // 100),
        "weight_decay": 0.0,
    }
    if unit.setting is None:
        model: Any = Clean(**net, label_party="p0", validation=0.0, patience=None).fit(fed)
        corrected = 1.0
    else:
        shape = {"bottom": (), **MODELS[unit.corrector]}
        model = InC(**net, corrector=shape, secure="masks").fit(fed)
        corrected = float((model.posterior_.argmax(1) == truth).mean())
    predicted = model.predict_proba(fed.on("test")).argmax(1)
    accuracy = float((predicted == worlds.y_test[0]).mean())
    return accuracy, corrected


def _federation(worlds: Worlds, votes: np.ndarray, seed: int) -> Federation:
    """The first world's rows; every party has its columns and its votes."""
    parties = []
    ends = np.cumsum(worlds.columns)
    for party, (end, width) in enumerate(zip(ends, worlds.columns, strict=True)):
        frames = {
            name: _frame(block[0][:, end - width : end])
            for name, block in (("train", worlds.train), ("test", worlds.test))
        }
        frames["train"]["y"] = votes[:, party]
        train = Table(np.arange(len(votes)), frames["train"], label="y", kinds={"y": "nominal"})
        test = Table(np.arange(len(frames["test"])), frames["test"])
        parties.append(Party(f"p{party}", train, test=test))
    fed = Federation(*parties, seed=seed)
    for view, rows in ((fed, len(votes)), (fed.on("test"), len(worlds.y_test[0]))):
        know(view, together(rows))
    return fed


def _frame(values: torch.Tensor) -> pd.DataFrame:
    columns = [f"x{number}" for number in range(values.shape[1])]
    return pd.DataFrame(values.numpy().astype(np.float64), columns=columns)
