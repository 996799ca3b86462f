"""What InC costs over a federation: beside Clean, and with each kind of protection."""

from __future__ import annotations

import gc
import importlib.util
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.crowds import annotators
from fedmend.data.table import Table
from fedmend.errors import PrivacyWarning
from fedmend.federation import KINDS, Federation, Party, Policy
from fedmend.methods.annotators.baselines import Clean
from fedmend.methods.annotators.estimator import Annotators
from fedmend.methods.annotators.inc import InC
from fedmend_bench.harness import Bar
from fedmend_bench.simulation import know, together

CLASSES, COLUMNS, PARTIES = 26, 16, 4


def possible() -> bool:
    """Keys need the package cryptography, encryption needs tenseal."""
    return all(importlib.util.find_spec(name) is not None for name in ("cryptography", "tenseal"))


def make_federation(rows: int, seed: int = 0) -> Federation:
    """Of Letter's shape: four parties with four columns and noisy labels each."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, rows)
    x = rng.normal(size=(CLASSES, COLUMNS))[y] + rng.normal(size=(rows, COLUMNS))
    votes = annotators(y, rates=[0.3, 0.35, 0.4, 0.5], n_classes=CLASSES, seed=seed)
    everything = Policy(allow=frozenset(KINDS))
    parties = []
    for party, columns in enumerate(np.array_split(np.arange(COLUMNS), PARTIES)):
        frame = pd.DataFrame(x[:, columns], columns=[f"x{column}" for column in columns])
        frame["y"] = votes[:, party]
        table = Table(np.arange(rows), frame, label="y", kinds={"y": "nominal"})
        parties.append(Party(f"p{party}", table, policy=everything))
    fed = Federation(*parties, seed=seed)
    know(fed, together(rows))
    return fed


def measure(
    rows: int, epochs: int, rounds: int, network: str = "LR"
) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Interleaved rounds after a short warm-up; the quickest of each epoch, added up.

    The machine's other work comes and goes and only ever adds to a time, seldom to the same epoch
    in every round. Encryption, which costs most, takes part in every fifth round. Masks cost a few
    milliseconds in a second of training, less than two trainings differ by chance: what they add
    is the difference between the sums themselves (`sum_seconds`).
    """
    net = _network(network, rows)
    models: dict[str, Any] = {
        "Clean": Clean(**net, label_party="p0", validation=0.0, patience=None),
        "InC none": InC(**net, secure="none"),
        "InC masks": InC(**net, secure="masks"),
        "InC he": InC(**net, secure="he"),
    }
    for model in models.values():
        _laps(model.set_params(epochs=2), make_federation(min(rows, 500)))
        model.set_params(epochs=epochs)
    laps: dict[str, list[np.ndarray]] = {name: [] for name in models}
    sent: dict[str, float] = {}
    for number in range(rounds):
        for name in _turned(list(models), number):
            if name == "InC he" and number % 5:
                continue
            fed = make_federation(rows)
            laps[name].append(_laps(models[name], fed))
            sent[name] = fed.ledger.total_bytes() / 1e6
    quickest = {name: np.min(values, axis=0).sum(0) for name, values in laps.items()}
    best = {name: float(wall) for name, (wall, _) in quickest.items()}
    cpu = {name: float(own) for name, (_, own) in quickest.items()}
    corrections = epochs - epochs // 2 + 1  # one before each epoch of stage 2, and a last one
    sums = {f"InC {mode}": sum_seconds(rows, corrections, mode) for mode in ("none", "masks")}
    added = sums["InC masks"] - sums["InC none"]
    rows_out = [
        {
            "data": f"cost, {rows:,} × {COLUMNS}, {epochs} epochs, {len(laps[name])} rounds",
            "model": network,
            "method": name,
            "seconds": best[name],
            "times Clean": best[name] / best["Clean"],
            "cpu seconds": cpu[name],
            "times Clean, cpu": cpu[name] / cpu["Clean"],
            "sums, cpu seconds": sums.get(name),
            "MB crossed": sent[name],
        }
        for name in models
    ]
    bars = [
        Bar.at_most(f"{network}: InC with masks / Clean", best["InC masks"] / best["Clean"], 1.25),
        Bar.at_most(f"{network}: masks / none", 1 + added / cpu["InC none"], 1.05),
    ]
    return rows_out, bars


def sum_seconds(rows: int, corrections: int, mode: str, repeats: int = 8) -> float:
    """Processor time of all sums of a training: keys and votes once, evidence every correction.

    The quickest of several of each, and no caches are warm.
    """
    fed = make_federation(rows)
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


def _network(name: str, rows: int) -> dict[str, Any]:
    """The paper's LR or MLP with batches of 1 % of the rows, or what one gets without asking."""
    if name == "default":
        return {"batch_size": InC().batch_size}
    return {
        "bottom": (),
        "embedding": 16,
        "top": () if name == "LR" else (32,),
        "missing_indicator": False,
        "batch_size": max(16, rows // 100),
        "weight_decay": 0.0,
    }


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


def _turned(names: list[str], by: int) -> list[str]:
    """Another one goes first each round."""
    by %= len(names)
    return names[by:] + names[:by]
