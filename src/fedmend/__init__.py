"""fedmend mends federated data.

Organisations that hold different columns of the same people, or the same columns of different
people, train one model without showing each other a row.

    import fedmend as fm

    fed = fm.Federation(
        fm.Party("bank", fm.read("bank.csv", id="customer", label="default")),
        fm.Party("telco", fm.read("telco.parquet", id="customer")),
    )
    fm.align(fed)
    model = fm.VFL().fit(fed)

Names load when they are first used, so that ``import fedmend`` and ``fedmend --help`` are quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedmend._version import __version__

if TYPE_CHECKING:
    from fedmend import data, errors
    from fedmend.audit import Audit
    from fedmend.data import Column, Schema, Table, datasets, read, read_sql, scenario
    from fedmend.federation import Each, Federation, Ledger, Party, Policy, Worker, exposed
    from fedmend.generate import Generator, generators
    from fedmend.methods import (
        EM,
        MJ,
        RISA,
        SAGE,
        SFHTL,
        SSLVFL,
        VFL,
        AbsentPartner,
        Clean,
        FedAvg,
        FedCVT,
        FedDB,
        FedDure,
        FedLabel,
        FedLoKe,
        FedMatch,
        FedProx,
        FedPSGPUM,
        FewShotVFL,
        FixMatch,
        FlexMatch,
        ImageRISA,
        InC,
        Local,
        LocalVFL,
        Random,
        RandomMatch,
    )
    from fedmend.methods.annotators.corrected import correct_labels
    from fedmend.methods.recipes import recipe
    from fedmend.report.overview import overview
    from fedmend.secure import rank_correlation, secure_sum
    from fedmend.secure.align import align

_HOME = {
    "AbsentPartner": "fedmend.methods",
    "Audit": "fedmend.audit",
    "Clean": "fedmend.methods",
    "Column": "fedmend.data",
    "EM": "fedmend.methods",
    "Each": "fedmend.federation",
    "FedAvg": "fedmend.methods",
    "FedCVT": "fedmend.methods",
    "FedDB": "fedmend.methods",
    "FedDure": "fedmend.methods",
    "FedLabel": "fedmend.methods",
    "FedLoKe": "fedmend.methods",
    "FedMatch": "fedmend.methods",
    "FedPSGPUM": "fedmend.methods",
    "FedProx": "fedmend.methods",
    "Federation": "fedmend.federation",
    "FewShotVFL": "fedmend.methods",
    "FixMatch": "fedmend.methods",
    "FlexMatch": "fedmend.methods",
    "Generator": "fedmend.generate",
    "ImageRISA": "fedmend.methods",
    "InC": "fedmend.methods",
    "Ledger": "fedmend.federation",
    "Local": "fedmend.methods",
    "LocalVFL": "fedmend.methods",
    "MJ": "fedmend.methods",
    "Party": "fedmend.federation",
    "Policy": "fedmend.federation",
    "Random": "fedmend.methods",
    "RandomMatch": "fedmend.methods",
    "RISA": "fedmend.methods",
    "SAGE": "fedmend.methods",
    "SFHTL": "fedmend.methods",
    "SSLVFL": "fedmend.methods",
    "Schema": "fedmend.data",
    "Table": "fedmend.data",
    "VFL": "fedmend.methods",
    "Worker": "fedmend.federation",
    "align": "fedmend.secure",
    "correct_labels": "fedmend.methods.annotators.corrected",
    "exposed": "fedmend.federation",
    "generators": "fedmend.generate",
    "overview": "fedmend.report",
    "rank_correlation": "fedmend.secure",
    "read": "fedmend.data",
    "read_sql": "fedmend.data",
    "recipe": "fedmend.methods.recipes",
    "secure_sum": "fedmend.secure",
}
_MODULES = {"data": "fedmend.data", "errors": "fedmend.errors"} | {
    name: f"fedmend.data.{name}" for name in ("datasets", "scenario")
}

__all__ = [
    "EM",
    "MJ",
    "RISA",
    "SAGE",
    "SFHTL",
    "SSLVFL",
    "VFL",
    "AbsentPartner",
    "Audit",
    "Clean",
    "Column",
    "Each",
    "FedAvg",
    "FedCVT",
    "FedDB",
    "FedDure",
    "FedLabel",
    "FedLoKe",
    "FedMatch",
    "FedPSGPUM",
    "FedProx",
    "Federation",
    "FewShotVFL",
    "FixMatch",
    "FlexMatch",
    "Generator",
    "ImageRISA",
    "InC",
    "Ledger",
    "Local",
    "LocalVFL",
    "Party",
    "Policy",
    "Random",
    "RandomMatch",
    "Schema",
    "Table",
    "Worker",
    "__version__",
    "align",
    "correct_labels",
    "data",
    "datasets",
    "errors",
    "exposed",
    "generators",
    "overview",
    "rank_correlation",
    "read",
    "read_sql",
    "recipe",
    "scenario",
    "secure_sum",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'fedmend' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
