"""A model of one party's columns alone, for rows that nobody but that party knows.

Where the labels were corrected by a network of the label party's columns only, that network has
learnt from more rows than any that needs a partner, and nothing a partner knows can help with such
rows. So it is kept with the corrected table, becomes part of whatever is trained on it, and answers
for the rows that the label party alone knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedmend.federation.site import Site
from fedmend.split.features import Features
from fedmend.split.halves import Settings
from fedmend.split.parts import Part

__all__ = ["keep_own_model", "own_model", "own_outputs"]

_SHELF = "learn.own_model"


def keep_own_model(site: Site, dataset: str, part: Part) -> None:
    """At the party: a whole model of its columns, learnt with the labels of this table."""
    site.state.setdefault(_SHELF, {})[dataset] = part


def own_model(site: Site, dataset: str) -> Part | None:
    """At the party: what was kept for a table; None where nothing was."""
    found = site.state.get(_SHELF, {}).get(dataset)
    return found if isinstance(found, Part) else None


@torch.no_grad()
def own_outputs(
    part: Part, features: Features, rows: int, settings: Settings, classes: Sequence[Any]
) -> Tensor:
    """Probabilities of the first rows of `features`, a column for each of `classes`. [rows, C]"""
    assert part.bottom is not None
    assert part.top is not None
    device = features.numeric.device
    for module in (part.bottom.module, part.top.module):
        module.to(device, settings.dtype).eval()
    with settings.autocast(device):
        embedding = part.bottom.module(features.batch(torch.arange(rows, device=device)))
        found = part.top.module([embedding]).float().softmax(1)
    known = list(part.top.labels.classes_)
    ordered = found.new_zeros(rows, len(classes))
    for number, value in enumerate(classes):
        if value in known:
            ordered[:, number] = found[:, known.index(value)]
    return ordered
