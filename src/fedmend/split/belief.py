"""How far a label or a completed cell is believed: noted at the party, beside a table.

A method that corrects labels leaves with each row how likely what was said of it is, were the row
of each class. Training makes the sayings likely, not the one corrected label: with p the model's
probabilities and L these likelihoods a row's loss is -log sum p_y L_y. A row that all agree on
counts as an ordinary label does, one of which nobody is sure says little, and what the columns say
of the label is left to the model that is trained to find out. (A corrected probability already
contains what the columns of those who corrected say; a model that learns it learns their model.)
One label that is certain is L = 1 for its class and 0 for others, and the loss is cross-entropy.

A method that completes rows leaves with each cell how far it deserves trust.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.federation import Site

__all__ = [
    "Belief",
    "cell_confidence",
    "expected",
    "keep_belief",
    "keep_confidence",
    "label_belief",
    "label_loss",
    "row_confidence",
]

_LABELS = "learn.label_belief"
_CELLS = "learn.cell_confidence"


# ---------------------------------------------------------------------------------- labels


@dataclass(frozen=True)
class Belief:
    """How likely what is said of each row is under each class, up to a factor of the row's own.

    **Shape** likelihood [rows of the table, classes].
    """

    classes: tuple[Any, ...]
    likelihood: np.ndarray

    def of(self, classes: Sequence[Any]) -> np.ndarray:
        """For a model of these classes, the largest of each row 1. **Shape** [rows, classes].

        Of a row that belongs to none of them nothing is known.
        """
        place = {value: number for number, value in enumerate(self.classes)}
        found = np.zeros((len(self.likelihood), len(classes)))
        for number, value in enumerate(classes):
            if value in place:
                found[:, number] = self.likelihood[:, place[value]]
        largest = found.max(1, keepdims=True)
        return np.where(largest > 0, found / np.where(largest > 0, largest, 1.0), 1.0)


def keep_belief(site: Site, dataset: str, belief: Belief) -> None:
    """At the party: note what is believed of the labels of a table."""
    site.labels.corrected(dataset)
    site.state.setdefault(_LABELS, {})[dataset] = belief


def label_belief(site: Site, dataset: str) -> Belief | None:
    """At the party: what is believed of the labels of a corrected table; None for other tables."""
    found = site.state.get(_LABELS, {}).get(dataset)
    return found if isinstance(found, Belief) else None


def label_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each row: of class numbers [n], or of likelihoods [n, C]. **Shape** [n].

    >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> label_loss(logits, torch.tensor([[0.0, 1.0], [1.0, 1.0]])).exp()
    tensor([2., 1.])
    """
    if not targets.is_floating_point():
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return -(logits.log_softmax(-1) + targets.log()).logsumexp(-1)


def expected(log_p: Tensor, likelihood: Tensor) -> Tensor:
    """What a row's class is, given the model and what was said: p L over its sum. [..., C]

    Cross-entropy with these as fixed targets has the gradient of `label_loss` (the E of EM).
    """
    return (log_p + likelihood.log()).softmax(-1)


# ---------------------------------------------------------------------------------- cells


def keep_confidence(site: Site, dataset: str, confidence: Mapping[str, np.ndarray]) -> None:
    """At the party: note how far each cell of a table is believed, per column **Shape** [rows]."""
    site.state.setdefault(_CELLS, {})[dataset] = dict(confidence)


def cell_confidence(site: Site, dataset: str) -> dict[str, np.ndarray] | None:
    """At the party: per column of a completed table how far each cell is believed, 0 to 1.

    **Shape** [rows of the table] each; 1 where the value was observed, 0 where there is none or
    where it says nothing about the row. None for tables without completed rows.
    """
    found = site.state.get(_CELLS, {}).get(dataset)
    return None if found is None else dict(found)


def row_confidence(site: Site, dataset: str) -> np.ndarray | None:
    """The mean of `cell_confidence` over the columns. **Shape** [rows of the table]."""
    cells = cell_confidence(site, dataset)
    return np.mean(list(cells.values()), axis=0) if cells else None
