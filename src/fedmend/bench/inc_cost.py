"""What InC costs over a federation: beside Clean, and with each kind of protection."""

from __future__ import annotations

import importlib.util
import statistics
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd

from fedmend.bench.harness import Bar
from fedmend.data.crowds import annotators
from fedmend.data.table import Table
from fedmend.errors import PrivacyWarning
from fedmend.federation import KINDS, Alignment, AlignmentCounts, Federation, Party, Policy
from fedmend.federation.engines.local import LocalEngine
from fedmend.methods.baselines.inc_baselines import Clean
from fedmend.methods.inc import InC

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
    assert isinstance(fed.engine, LocalEngine)
    for site in fed.engine.sites.values():
        site.alignments[fed.scope] = Alignment(np.arange(rows), np.zeros(0, np.int64))
    fed.note_alignment(AlignmentCounts(rows, dict.fromkeys(fed.names, 0)))
    return fed


def measure(rows: int, epochs: int, rounds: int) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Medians of interleaved rounds: the machine's other work comes and goes."""
    net: dict[str, Any] = {
        "bottom": (),
        "embedding": 16,
        "top": (),
        "missing_indicator": False,
        "epochs": epochs,
        "batch_size": max(2, rows // 100),
        "weight_decay": 0.0,
    }
    models: dict[str, Any] = {
        "Clean": Clean(**net, label_party="p0", validation=0.0, patience=None),
        "InC none": InC(**net, secure="none"),
        "InC masks": InC(**net, secure="masks"),
        "InC he": InC(**net, secure="he"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in models}
    sent: dict[str, float] = {}
    for _ in range(rounds):
        for name, model in models.items():
            fed = make_federation(rows)
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrivacyWarning)
                model.fit(fed)
            seconds[name].append(time.perf_counter() - began)
            sent[name] = fed.ledger.total_bytes() / 1e6
    median = {name: statistics.median(values) for name, values in seconds.items()}
    rows_out = [
        {
            "data": f"cost, {rows:,} × {COLUMNS}, {epochs} epochs",
            "model": "LR",
            "method": name,
            "seconds": median[name],
            "times Clean": median[name] / median["Clean"],
            "MB crossed": sent[name],
        }
        for name in models
    ]
    bars = [
        Bar.at_most("cost: InC with masks / Clean", median["InC masks"] / median["Clean"], 1.25),
        Bar.at_most("cost: masks / none", median["InC masks"] / median["InC none"], 1.05),
    ]
    return rows_out, bars
