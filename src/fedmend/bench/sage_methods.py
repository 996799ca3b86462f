"""The rows of SAGE's Table 1, Table 3 and Table 4, as estimators with the authors' settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fedmend.methods.baselines.fssl import FedAvg, FedDB, FedLabel, FedProx, FixMatch, FlexMatch
from fedmend.methods.baselines.fssl_twins import FedDure, FedLoKe, FedMatch
from fedmend.methods.horizontal import HorizontalEstimator
from fedmend.methods.sage import SAGE

__all__ = ["RECIPES"]

RECIPES: dict[str, Callable[..., HorizontalEstimator]] = {
    "FedAvg": FedAvg.paper,
    "FedProx": FedProx.paper,
    "FedAvg-SL": FedAvg.paper,
    "FixMatch-LPL": FixMatch.paper,
    "FixMatch-GPL": partial(FixMatch.paper, labels="global"),
    "FedProx+FixMatch": partial(FixMatch.paper, prox=1e-3),
    "FedAvg+FlexMatch": FlexMatch.paper,
    "FedMatch": FedMatch.paper,
    "FedLabel": FedLabel.paper,
    "FedLoke": FedLoKe.paper,
    "FedDure": FedDure.paper,
    "FedDB": FedDB.paper,
    "SAGE": SAGE.paper,
    # The ablation: without the soft correction, and without the global model's labels.
    "CPG only": partial(SAGE.paper, cdsc=False),
    "CDSC only": partial(SAGE.paper, cpg=False),
    "FlexMatch+SAGE": partial(FlexMatch.paper, sage=True),
    "FedDure+SAGE": partial(FedDure.paper, sage=True),
    "FedDB+SAGE": partial(FedDB.paper, sage=True),
}
