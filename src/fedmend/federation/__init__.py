"""Who may call what where, what crossed, and on which engine. Knows no learning method."""

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
