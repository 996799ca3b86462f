"""The methods a file may name: their classes, and what they do in words."""

from __future__ import annotations

import re
from typing import Any

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError
from fedmend.flow.config.shapes import HORIZONTAL
from fedmend.learn.metrics import CLASSIFICATION, REGRESSION

__all__ = [
    "AUTO",
    "COMPLETED",
    "COMPLETERS",
    "CORRECTED",
    "CROWD",
    "MAJORITY",
    "METHODS",
    "METRICS",
    "completer_class",
    "method_class",
    "slug_of",
    "uses_completed_rows",
]

METHODS: dict[str, tuple[str, str]] = {
    "local": ("Local", "the label party alone, with its own columns"),
    "vfl": ("VFL", "all parties together, on the rows known to all"),
    "local-vfl": ("LocalVFL", "all parties and all labelled rows, zeros where a side is missing"),
    "random-match": ("RandomMatch", "all labelled rows, a stranger's side where one is missing"),
    "ssl-vfl": ("SSLVFL", "bottoms pre-trained on all rows without labels, then as vfl"),
    "sfhtl": ("SFHTL", "all rows of all parties; missing sides estimated, labels where sure"),
    "fedcvt": ("FedCVT", "two parties, all rows; attention estimates missing sides"),
    "few-shot-vfl": ("FewShotVFL", "parties train almost alone, with a handful of messages"),
    "risa": ("RISA", "all rows of all parties, missing sides imputed, trusted by evidence"),
    "risa-images": ("ImageRISA", "risa for photographs: parts alike share what they learn"),
    "absent-partner": ("AbsentPartner", "one model for complete rows and rows of one party"),
    "clean": ("Clean", "one party's labels, taken for the truth; other labels are not looked at"),
    "inc": ("InC", "several labellers, whose labels are corrected while the model learns"),
    "majority": ("MJ", "several labellers: the majority of their votes is taken for the truth"),
    "dawid-skene": ("EM", "several labellers: the truth inferred from their votes alone"),
    "random-labeller": ("Random", "several labellers: each batch believes one, drawn at random"),
} | HORIZONTAL
# Methods that learn from the labels of several parties.
CROWD = ("inc", "majority", "dawid-skene", "random-labeller")
COMPLETERS: dict[str, str] = {"fedpsg-pum": "FedPSGPUM"}
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


def uses_completed_rows(method: str) -> bool:
    """Whether other parties' columns for a row matter to a method at all."""
    return method != "local"


def method_class(name: str) -> Any:
    """The estimator of a method's name."""
    import fedmend

    if name not in METHODS:
        raise ConfigError(f"{name!r} is not a method: {did_you_mean(name, METHODS)}")
    return getattr(fedmend, METHODS[name][0])


def completer_class(name: str) -> Any:
    """The class that completes rows under this name."""
    import fedmend

    return getattr(fedmend, COMPLETERS[name])
