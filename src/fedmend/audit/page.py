"""An audit as files: audit.json for programs, audit.html for people, or a run's own report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fedmend._json import write_json
from fedmend.audit.result import AuditReport
from fedmend.errors import DataError
from fedmend.report.page import AUDIT_FILE, REPORT_FILE, write_report
from fedmend.report.record import RECORD_FILE

__all__ = ["PAGE_FILE", "read_audit", "write_audit"]

PAGE_FILE = "audit.html"


def write_audit(folder: str | Path, title: str, reports: Sequence[AuditReport]) -> list[Path]:
    """Write the reports into a folder; into the report of a run where the folder is one's.

    Returns what was written.
    """
    folder = Path(folder)
    stored = write_json(
        folder / AUDIT_FILE, {"title": title, "reports": [each.to_dict() for each in reports]}
    )
    if (folder / RECORD_FILE).is_file():
        return [stored, write_report(folder, folder / REPORT_FILE)]
    page = folder / PAGE_FILE
    part = page.with_name(page.name + ".part")
    part.write_text(_render(title, reports), encoding="utf-8")
    part.replace(page)
    return [stored, page]


def read_audit(folder: str | Path) -> list[AuditReport]:
    """The reports that :func:`write_audit` has put into a folder; none where there are none."""
    path = Path(folder) / AUDIT_FILE
    if not path.is_file():
        return []
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return [AuditReport.from_dict(each) for each in stored["reports"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is no audit: {error}", mend="remove it, and audit again"
        ) from error


def _render(title: str, reports: Sequence[AuditReport]) -> str:
    from jinja2 import Environment, PackageLoader, select_autoescape
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("fedmend.report", "templates"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css = (resources.files("fedmend.report") / "templates" / "report.css").read_text("utf-8")
    return environment.get_template("audit.html").render(
        css=Markup(css), title=title, audits=list(reports)
    )
