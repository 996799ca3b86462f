"""What people look at: the overview of a federation, the ledger in words, the HTML report."""

from __future__ import annotations

from fedmend.report.overview import Overview, overview

__all__ = ["Overview", "overview"]
