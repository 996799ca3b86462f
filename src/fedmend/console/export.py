"""One signed file for a data-protection officer: all that this party decided and let out."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedmend._version import __version__
from fedmend.console.models import kept_models
from fedmend.console.pages import left_by_recipient, rows_asked, spent_on_labels
from fedmend.deploy.history import decisions
from fedmend.deploy.ledgers import ACCOUNT_FORMAT, signed
from fedmend.federation.ledger import inspect_ledger

if TYPE_CHECKING:
    from fedmend.console.party import Party


def account_of(party: Party) -> dict[str, Any]:
    """The account as JSON, with the signature of the party's own key.

    Ledgers are in it line by line, so that their chains can be checked by whoever gets it; a
    ledger that was altered is in it too, and is told by the check.
    """
    file = party.file
    entries = [entry for path in party.ledgers() for entry in inspect_ledger(path).entries]
    content: dict[str, Any] = {
        "format": ACCOUNT_FORMAT,
        "fedmend": __version__,
        "party": party.name,
        "exported": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "in words": [
            f"{each['recipient']}: {each['words']}"
            for each in left_by_recipient(party.name, entries)
        ],
        "policy": file.policy.model_dump(exclude_none=True),
        "approve": file.approve,
        "rules": [rule.words for rule in file.rule],
        "history": [asdict(each) for each in decisions(party.kit)],
        "labels told at random": spent_on_labels(party),
        "rows asked about": rows_asked(party),
        "models": [asdict(each) for each in kept_models(party)],
        "ledgers": {
            path.stem: path.read_text(encoding="utf-8", errors="replace").splitlines()
            for path in party.ledgers()
        },
    }
    return signed(content, file)
