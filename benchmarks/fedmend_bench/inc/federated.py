"""InC over a federation: what it costs beside Clean and with each kind of protection; and with a
corrector, a simple network to deliver and a stronger one to correct the labels.

The corrector's runs have the rows, columns and votes of the batched runs, so that the figures stand
beside those of the tables.
"""

from __future__ import annotations

import gc
import importlib.util
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.crowds import annotators
from fedmend.data.table import Table
from fedmend.errors import PrivacyWarning
from fedmend.federation import KINDS, Federation, Party, Policy
from fedmend.methods.annotators.baselines import EM, MJ, Clean, Random
from fedmend.methods.annotators.estimator import Annotators
from fedmend.methods.annotators.inc import InC
from fedmend_bench.cells import run_cells
from fedmend_bench.harness import Bar, paper_rows
from fedmend_bench.inc.batched import CLEAN, Outcome
from fedmend_bench.inc.data import PARTIES, Problem, load_problem, make_worlds
from fedmend_bench.inc.runs import MODELS
from fedmend_bench.simulation import know, together

SHAPES = {
    "Letter": (16_000, 16, 26),
    "Sensorless": (46_807, 48, 11),
    "SensIT Vehicle": (78_822, 100, 3),
    "Covtype": (396_112, 54, 2),
}
"""Training rows, columns and classes of the paper's data sets (Table 3)."""
OFTEN = ("Clean", "InC none", "InC masks")
"""What bars compare is measured in every round."""
METHOD = "InC product"


def federation_of(
    votes: np.ndarray, train: np.ndarray, test: np.ndarray, widths: Sequence[int], seed: int = 0
) -> Federation:
    """Every party has its columns of all rows, and its votes."""
    everything = Policy(allow=frozenset(KINDS))
    parties = []
    ends = np.cumsum(widths)
    for party, (end, width) in enumerate(zip(ends, widths, strict=True)):
        names = [f"x{number}" for number in range(end - width, end)]
        frames = [
            pd.DataFrame(values[:, end - width : end].astype(np.float64), columns=names)
            for values in (train, test)
        ]
        frames[0]["y"] = votes[:, party]
        own = Table(np.arange(len(votes)), frames[0], label="y", kinds={"y": "nominal"})
        tested = Table(np.arange(len(test)), frames[1])
        parties.append(Party(f"p{party}", own, test=tested, policy=everything))
    fed = Federation(*parties, seed=seed)
    for view, rows in ((fed, len(votes)), (fed.on("test"), len(test))):
        know(view, together(rows))
    return fed


def network_of(model: dict[str, Any], rows: int, least: int) -> dict[str, Any]:
    """The paper's networks, with batches of 1 % of the rows."""
    return {
        "bottom": (),
        **model,
        "batch_size": max(least, rows // 100),
        "weight_decay": 0.0,
    }


# ---------------------------------------------------------------- with a corrector


FIXED: dict[str, Any] = {"patience": None, "crossfit": False}
"""As published: so many epochs, and one network."""


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
    folder: str | Path | None = None,
) -> list[Outcome]:
    """Clean (whose labels need no correction) and InC with the corrector, setting by setting."""
    problem = load_problem(data, rows)

    def found(setting: str | None) -> tuple[np.ndarray, np.ndarray]:
        units = [
            Unit(data, model, corrector, kind, setting, seed, epochs, rows) for seed in range(seeds)
        ]
        accuracy, corrected = np.array(
            run_cells(partial(measure, problem=problem), units, folder)
        ).T
        return accuracy, corrected

    clean = found(None)
    return [Outcome(CLEAN, setting, *clean) for setting in settings] + [
        Outcome(METHOD, setting, *found(setting)) for setting in settings
    ]


def measure(unit: Unit, problem: Problem) -> tuple[float, float]:
    """Accuracy on test rows and share of corrected labels that are right."""
    settings = [] if unit.setting is None else [unit.setting]
    worlds = make_worlds(problem, [unit.seed], settings, unit.kind)
    truth = worlds.y_train[0]
    votes = worlds.votes[0, 0] if settings else np.repeat(truth[:, None], PARTIES, 1)
    train, test = worlds.train[0].numpy(), worlds.test[0].numpy()
    fed = federation_of(votes, train, test, worlds.columns, unit.seed)
    net = network_of(MODELS[unit.model], len(truth), 10) | {"epochs": unit.epochs}
    if unit.setting is None:
        model: Any = Clean(**net, label_party="p0", validation=0.0, patience=None).fit(fed)
        corrected = 1.0
    else:
        shape = {"bottom": (), **MODELS[unit.corrector]}
        model = InC(**net, **FIXED, corrector=shape, secure="masks").fit(fed)
        corrected = float((model.posterior_.argmax(1) == truth).mean())
    predicted = model.predict_proba(fed.on("test")).argmax(1)
    return float((predicted == worlds.y_test[0]).mean()), corrected


# ---------------------------------------------------------------- what it costs


def possible() -> bool:
    """Keys need the package cryptography, encryption needs tenseal."""
    return all(importlib.util.find_spec(name) is not None for name in ("cryptography", "tenseal"))


def make_federation(rows: int, data: str = "Letter", seed: int = 0) -> Federation:
    """Of a data set's shape: four parties with a quarter of the columns and noisy labels each."""
    rng = np.random.default_rng(seed)
    _, columns, classes = SHAPES[data]
    y = rng.integers(0, classes, rows)
    x = rng.normal(size=(classes, columns))[y] + rng.normal(size=(rows, columns))
    votes = annotators(y, rates=[0.3, 0.35, 0.4, 0.5], n_classes=classes, seed=seed)
    widths = [len(each) for each in np.array_split(range(columns), PARTIES)]
    return federation_of(votes, x, x[:1], widths, seed)


def cost(
    rows: int, epochs: int, rounds: int, network: str = "LR", data: str = "Letter"
) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Interleaved rounds after a short warm-up; the quickest of each epoch, added up.

    The machine's other work comes and goes and only ever adds to a time, seldom to the same epoch
    in every round. Encryption, which costs most, and the other baselines take part in every fifth
    round. Masks cost a few milliseconds in a second of training, less than two trainings differ by
    chance: what they add is the difference between the sums themselves (`sum_seconds`). Beside it
    the paper's seconds (Table 3: 100 epochs, NVIDIA A6000, encryption).
    """
    # The paper's LR or MLP, or what one gets without asking.
    if network == "default":
        net: dict[str, Any] = {"batch_size": InC().batch_size}
    else:
        net = network_of(MODELS[network.lower()], rows, 16)
    models: dict[str, Any] = {
        "Clean": Clean(**net, label_party="p0", validation=0.0, patience=None),
        "InC none": InC(**net, **FIXED, secure="none"),
        "InC masks": InC(**net, **FIXED, secure="masks"),
        "InC he": InC(**net, **FIXED, secure="he"),
    }
    models |= {
        f"{method.__name__} masks": method(**net, patience=None) for method in (Random, MJ, EM)
    }
    for model in models.values():
        _laps(model.set_params(epochs=2), make_federation(min(rows, 500), data))
        model.set_params(epochs=epochs)
    laps: dict[str, list[np.ndarray]] = {name: [] for name in models}
    sent: dict[str, float] = {}
    for number in range(rounds):
        for name in np.roll(list(models), -number):  # another one goes first each round
            if name not in OFTEN and number % 5:
                continue
            fed = make_federation(rows, data)
            laps[name].append(_laps(models[name], fed))
            sent[name] = fed.ledger.total_bytes() / 1e6
    quickest = {name: np.min(values, axis=0).sum(0) for name, values in laps.items()}
    best = {name: float(wall) for name, (wall, _) in quickest.items()}
    cpu = {name: float(own) for name, (_, own) in quickest.items()}
    corrections = epochs - epochs // 2 + 1  # one before each epoch of stage 2, and a last one
    sums = {f"InC {mode}": sum_seconds(rows, corrections, mode, data) for mode in ("none", "masks")}
    added = sums["InC masks"] - sums["InC none"]
    published = paper_seconds(network, data)
    size = f"{data}, {rows:,} × {SHAPES[data][1]}"
    rows_out = [
        {
            "data": f"cost, {size}, {epochs} epochs, {len(laps[name])} rounds",
            "model": network,
            "method": name,
            "seconds": best[name],
            "times Clean": best[name] / best["Clean"],
            "cpu seconds": cpu[name],
            "times Clean, cpu": cpu[name] / cpu["Clean"],
            "sums, cpu seconds": sums.get(name),
            "MB crossed": sent[name],
            "cpu seconds, 100 epochs": cpu[name] * 100 / epochs,
            "100 epochs, paper": published.get(name),
        }
        for name in models
    ]
    # One round of few epochs: the clock would show what else runs, and the start weighs more.
    spent, limit = (best, 1.25) if rounds > 1 else (cpu, 1.75)
    bars = [
        Bar.at_most(
            f"{network}: InC with masks / Clean", spent["InC masks"] / spent["Clean"], limit
        ),
        Bar.at_most(f"{network}: masks / none", 1 + added / cpu["InC none"], 1.05),
    ]
    return rows_out, bars


def paper_seconds(network: str, data: str) -> dict[str, float]:
    """The seconds in the paper's Table 3, by what they are called here."""
    rows = [row for row in paper_rows("inc_seconds") if row["model"] == network]
    named = {"Clean": "Clean", "InC": "InC he"}
    return {named.get(row["method"], f"{row['method']} masks"): float(row[data]) for row in rows}


def sum_seconds(rows: int, corrections: int, mode: str, data: str, repeats: int = 8) -> float:
    """Processor time of all sums of a training: keys and votes once, evidence every correction.

    The quickest of several of each, and no caches are warm.
    """
    fed = make_federation(rows, data)
    crowd_out = np.zeros(1 << 22)
    spent: dict[str, list[float]] = {"votes": [], "evidence": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        for _ in range(repeats):
            with Annotators(fed, fed.names, secure=mode) as asked:
                asked.attach()
                for name, times in spent.items():
                    crowd_out += 1.0
                    began = time.process_time()
                    getattr(asked, name)()
                    times.append(time.process_time() - began)
    return min(spent["votes"]) + corrections * min(spent["evidence"])


def _laps(model: Any, fed: Federation) -> np.ndarray:
    """How long each epoch took, by the clock and the processor's. **Shape** [epochs + 1, 2].

    The first one holds what comes before it, the last what comes after all.
    """
    gc.collect()  # what the last model left is not this one's to clear away
    marks = [(time.perf_counter(), time.process_time())]

    def lap(*_: object) -> None:
        marks.append((time.perf_counter(), time.process_time()))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        model.fit(fed, progress=lap)
    lap()
    return np.diff(np.array(marks), axis=0)
