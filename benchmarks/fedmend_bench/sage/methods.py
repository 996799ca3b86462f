"""The rows of SAGE's Table 1, Table 3 and Table 4 and the lines of its Figure 5, as estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedmend._parameters import parameters
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
from fedmend.methods.horizontal.local_methods import LocalMethod, PseudoMethod
from fedmend.methods.horizontal.rules import SageRule
from fedmend.methods.horizontal.sage import SAGE

__all__ = ["METHODS", "SETTINGS", "estimator_of", "with_settings"]


@dataclass(frozen=True)
class FixedRule(SageRule):
    """SAGE's labels with one weight of the local class for all rows."""

    fixed: float = 0.5

    name: ClassVar[str] = "sage-fixed"

    def weight(self, c_l: Tensor, c_g: Tensor) -> Tensor:
        return torch.full_like(c_l, self.fixed)


@parameters
class FixedSAGE(SAGE):
    """SAGE with a fixed lambda: 1 is the local label alone, 0 the global one."""

    fixed: float = 0.5

    def _method(self) -> LocalMethod:
        return PseudoMethod(FixedRule(self.tau, self.kappa, self.cpg, fixed=self.fixed))


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
    # Figure 5. At 1 it is "CPG only".
    **{f"lambda {each:g}": (FixedSAGE, {"fixed": each}) for each in (0.0, 0.25, 0.5, 0.75)},
    "FlexMatch+SAGE": (FlexMatch, {"sage": True}),
    "FedDure+SAGE": (FedDure, {"sage": True}),
    "FedDB+SAGE": (FedDB, {"sage": True}),
}
SETTINGS = ("paper", "default")


def estimator_of(name: str, settings: str, **changes: Any) -> HorizontalEstimator:
    """A method with the authors' settings, or with the estimators' own defaults.

    name: may say what is set otherwise, as in ``FedMatch l2=0.1``.
    """
    if settings not in SETTINGS:
        raise ConfigError(f"settings must be one of {', '.join(SETTINGS)}, got {settings!r}")
    method, set_otherwise = with_settings(name)
    cls, own = METHODS[method]
    if twice := sorted(set(set_otherwise) & {*own, *changes}):
        raise ConfigError(f"{name!r} sets {twice[0]}, which is set already. Mend: leave it out")
    return (cls.paper if settings == "paper" else cls)(**own, **set_otherwise, **changes)


def with_settings(name: str) -> tuple[str, dict[str, Any]]:
    """The method that a name begins with, and what the name says of its settings.

    >>> with_settings("CPG only"), with_settings("FedMatch tau=0.5 l2=0.1")
    (('CPG only', {}), ('FedMatch', {'tau': 0.5, 'l2': 0.1}))
    """
    words = name.split()
    method = " ".join(word for word in words if "=" not in word)
    given = (word.split("=", 1) for word in words if "=" in word)
    try:
        return method, {key: float(value) for key, value in given}
    except ValueError as error:
        raise ConfigError(
            f"{name!r} has a setting that is no number. Mend: as in 'FedMatch l2=0.1'"
        ) from error
