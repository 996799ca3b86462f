"""Who may call what where, what crossed, and on which engine. Knows no learning method."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmend.federation.federation import (
        AlignmentCounts,
        Each,
        Federation,
        Party,
        WorkerGroup,
        require_federation,
    )
    from fedmend.federation.kinds import KINDS
    from fedmend.federation.ledger import COORDINATOR, Entry, Ledger, read_ledger
    from fedmend.federation.policy import Policy
    from fedmend.federation.site import Alignment, Site
    from fedmend.federation.wire import Sealed
    from fedmend.federation.worker import Worker, exposed

__all__ = [
    "COORDINATOR",
    "KINDS",
    "Alignment",
    "AlignmentCounts",
    "Each",
    "Entry",
    "Federation",
    "Ledger",
    "Party",
    "Policy",
    "Sealed",
    "Site",
    "Worker",
    "WorkerGroup",
    "exposed",
    "read_ledger",
    "require_federation",
]


def __getattr__(name: str) -> Any:
    # Pandas comes with sites, and what keeps the process of a kit up reads no table.
    if name in __all__:
        for module in ("kinds", "ledger", "policy", "wire", "worker", "site", "federation"):
            home = import_module(f"{__name__}.{module}")
            if name in vars(home):
                return vars(home)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
