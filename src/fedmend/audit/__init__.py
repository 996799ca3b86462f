"""The leak audit: what a curious role can infer from what a protocol shows it, measured.

Two kinds of statement. From a ledger alone (`statement`): who received which kinds of value, how
often about each row, and what these are known to tell. From a rehearsal (`Audit`): the method is
trained in this process on a copy of the federation, the messages that really cross are listened
to (`recorder`), and published attacks are run on them, each beside the best guess without them.

A rehearsal needs all tables at one place: it is for a party's own or public data, or with the
consent of all. No attack succeeding does not make a protocol safe.
"""

from typing import TYPE_CHECKING, Any

from fedmend.audit.result import AuditReport, Finding, Reading
from fedmend.audit.statement import statement

if TYPE_CHECKING:
    from fedmend.audit.running import Audit

__all__ = ["Audit", "AuditReport", "Finding", "Reading", "statement"]


def __getattr__(name: str) -> Any:
    # Torch and scikit-learn come with it, which reading a ledger does not need.
    if name == "Audit":
        from fedmend.audit.running import Audit

        return Audit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
