"""The rows of SAGE's Table 1, Table 3 and Table 4, as estimators."""

from __future__ import annotations

from typing import Any

from fedmend.errors import ConfigError
from fedmend.methods.horizontal.baselines import (
    FedAvg,
    FedDB,
    FedDure,
    FedLabel,
    FedLoKe,
    FedMatch,
    FedProx,
    FixMatch,
    FlexMatch,
)
from fedmend.methods.horizontal.estimator import HorizontalEstimator
from fedmend.methods.horizontal.sage import SAGE

__all__ = ["METHODS", "SETTINGS", "estimator_of"]

METHODS: dict[str, tuple[type[HorizontalEstimator], dict[str, Any]]] = {
    "FedAvg": (FedAvg, {}),
    "FedProx": (FedProx, {}),
    "FedAvg-SL": (FedAvg, {}),
    "FixMatch-LPL": (FixMatch, {}),
    "FixMatch-GPL": (FixMatch, {"labels": "global"}),
    "FedProx+FixMatch": (FixMatch, {"prox": 1e-3}),
    "FedAvg+FlexMatch": (FlexMatch, {}),
    "FedMatch": (FedMatch, {}),
    "FedLabel": (FedLabel, {}),
    "FedLoke": (FedLoKe, {}),
    "FedDure": (FedDure, {}),
    "FedDB": (FedDB, {}),
    "SAGE": (SAGE, {}),
    # The ablation: without the soft correction, and without the global model's labels.
    "CPG only": (SAGE, {"cdsc": False}),
    "CDSC only": (SAGE, {"cpg": False}),
    "FlexMatch+SAGE": (FlexMatch, {"sage": True}),
    "FedDure+SAGE": (FedDure, {"sage": True}),
    "FedDB+SAGE": (FedDB, {"sage": True}),
}
SETTINGS = ("paper", "default")


def estimator_of(name: str, settings: str, **changes: Any) -> HorizontalEstimator:
    """A method with the authors' settings, or with the estimators' own defaults."""
    if settings not in SETTINGS:
        raise ConfigError(f"settings must be one of {', '.join(SETTINGS)}, got {settings!r}")
    cls, own = METHODS[name]
    return (cls.paper if settings == "paper" else cls)(**own, **changes)
