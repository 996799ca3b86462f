"""An audit as files: audit.json for programs, audit.html for people, or a run's own report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmend._files import write_whole
from fedmend._json import write_json
from fedmend.audit.result import AuditReport
from fedmend.report.banner import banner_of_audit
from fedmend.report.page import style, templates, write_report
from fedmend.report.record import AUDIT_FILE, RECORD_FILE

PAGE_FILE = "audit.html"


def write_audit(folder: str | Path, title: str, reports: Sequence[AuditReport]) -> list[Path]:
    """Write the reports into a folder; into the report of a run where the folder is one's.

    Returns what was written.
    """
    folder = Path(folder)
    content = {"title": title, "reports": [each.to_dict() for each in reports]}
    stored = write_json(folder / AUDIT_FILE, content)
    if (folder / RECORD_FILE).is_file():
        return [stored, write_report(folder)]
    text = (
        templates()
        .get_template("audit.html")
        .render(
            css=style(),
            title=title,
            audits=list(reports),
            banners=[banner_of_audit(each) for each in reports],
        )
    )
    return [stored, write_whole(folder / PAGE_FILE, text)]
