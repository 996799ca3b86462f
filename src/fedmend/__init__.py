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
Methods are those of the registry, by the names of their classes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedmend._version import __version__ as __version__

if TYPE_CHECKING:
    from fedmend import data as data
    from fedmend import errors as errors
    from fedmend.audit import Audit as Audit
    from fedmend.data import Column as Column
    from fedmend.data import Schema as Schema
    from fedmend.data import Table as Table
    from fedmend.data import datasets as datasets
    from fedmend.data import read as read
    from fedmend.data import read_sql as read_sql
    from fedmend.data import scenario as scenario
    from fedmend.federation import Each as Each
    from fedmend.federation import Federation as Federation
    from fedmend.federation import Ledger as Ledger
    from fedmend.federation import Party as Party
    from fedmend.federation import Policy as Policy
    from fedmend.federation import Worker as Worker
    from fedmend.federation import exposed as exposed
    from fedmend.generate import Generator as Generator
    from fedmend.generate import generators as generators
    from fedmend.methods.annotators.baselines import *  # noqa: F403
    from fedmend.methods.annotators.corrected import correct_labels as correct_labels
    from fedmend.methods.annotators.inc import *  # noqa: F403
    from fedmend.methods.auto.auto import *  # noqa: F403
    from fedmend.methods.boosting.secureboost import *  # noqa: F403
    from fedmend.methods.completion.fedpsg_pum import *  # noqa: F403
    from fedmend.methods.horizontal.baselines import *  # noqa: F403
    from fedmend.methods.horizontal.sage import *  # noqa: F403
    from fedmend.methods.recipes import recipe as recipe
    from fedmend.methods.risa.risa import *  # noqa: F403
    from fedmend.methods.vertical.absent_partner import *  # noqa: F403
    from fedmend.methods.vertical.fedcvt import *  # noqa: F403
    from fedmend.methods.vertical.few_shot import *  # noqa: F403
    from fedmend.methods.vertical.sfhtl import *  # noqa: F403
    from fedmend.methods.vertical.ssl_vfl import *  # noqa: F403
    from fedmend.methods.vertical.vfl import *  # noqa: F403
    from fedmend.report.overview import overview as overview
    from fedmend.secure import rank_correlation as rank_correlation
    from fedmend.secure import secure_sum as secure_sum
    from fedmend.secure.align import align as align

_NAMES = {
    "audit": ("Audit",),
    "data": ("Column", "Schema", "Table", "read", "read_sql"),
    "federation": ("Each", "Federation", "Ledger", "Party", "Policy", "Worker", "exposed"),
    "generate": ("Generator", "generators"),
    "methods.annotators.corrected": ("correct_labels",),
    "methods.recipes": ("recipe",),
    "report": ("overview",),
    "secure": ("align", "rank_correlation", "secure_sum"),
}
_MODULES = {"data": "data", "errors": "errors", "datasets": "data.datasets"}
_MODULES["scenario"] = "data.scenario"


def _homes() -> dict[str, str]:
    """Where each name is; reading the registry takes as long as all else in here."""
    from fedmend.methods.registry import PUBLIC

    homes = {name: home for home, names in _NAMES.items() for name in names}
    return homes | dict.fromkeys(PUBLIC, "methods") | _MODULES


def __getattr__(name: str) -> Any:
    homes = _homes()
    if name == "__all__":
        return __dir__()
    if name not in homes:
        raise AttributeError(f"module 'fedmend' has no attribute {name!r}")
    module = import_module(f"fedmend.{homes[name]}")
    globals()[name] = value = module if name in _MODULES else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(["__version__", *_homes()])
