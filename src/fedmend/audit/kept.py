"""The audits that a folder holds, as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedmend._json import write_json
from fedmend.audit.result import AuditReport
from fedmend.errors import DataError

__all__ = ["AUDIT_FILE", "keep_audit", "read_audit"]

AUDIT_FILE = "audit.json"


def keep_audit(folder: Path, title: str, reports: Sequence[AuditReport]) -> Path:
    """Put the reports into a folder; returns their file."""
    return write_json(
        folder / AUDIT_FILE, {"title": title, "reports": [each.to_dict() for each in reports]}
    )


def read_audit(folder: str | Path) -> list[AuditReport]:
    """The reports that :func:`keep_audit` has put into a folder; none where there are none."""
    path = Path(folder) / AUDIT_FILE
    if not path.is_file():
        return []
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return [AuditReport.from_dict(each) for each in stored["reports"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is no audit: {error}", mend="remove it, and audit again"
        ) from error
