"""How things are called in a federation.toml, in file names and in a report."""

from __future__ import annotations

import re

from fedmend.learn.metrics import CLASSIFICATION, REGRESSION

__all__ = ["AUTO", "COMPLETED", "CORRECTED", "MAJORITY", "METRICS", "slug_of"]

# A method chosen by cross-validation.
AUTO = "auto"
# How methods trained on a mended federation are shown.
COMPLETED = " + completed rows"
CORRECTED = " + corrected labels"
# What evaluate.reference is called when the parties' votes decide.
MAJORITY = "majority"
METRICS = (*CLASSIFICATION, *REGRESSION)


def slug_of(title: str) -> str:
    """A title as the name of a file."""
    return re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-").lower()
