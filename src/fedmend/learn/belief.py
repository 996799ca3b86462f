"""How far a label or a completed cell is believed: noted at the party, beside a table.

A method that corrects labels leaves with each the probability that it is right. Training on the
probabilities instead of the labels alone lets a doubtful row say little. A method that completes
rows leaves with each cell how far it deserves trust.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedmend.federation import Site

__all__ = [
    "believed",
    "cell_confidence",
    "keep_confidence",
    "keep_trust",
    "label_trust",
    "row_confidence",
]

_SHELF = "learn.label_trust"
_CELLS = "learn.cell_confidence"


def keep_trust(site: Site, dataset: str, trust: np.ndarray) -> None:
    """At the party: note how far each label of a table is believed. **Shape** [rows]."""
    site.state.setdefault(_SHELF, {})[dataset] = trust


def label_trust(site: Site, dataset: str) -> np.ndarray | None:
    """At the party: how far each label of a corrected table is believed; None for other tables.

    **Shape** [rows of the table]; 1 where the label is the party's own.
    """
    found = site.state.get(_SHELF, {}).get(dataset)
    return None if found is None else np.asarray(found)


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


def believed(targets: np.ndarray, trust: np.ndarray, n_classes: int) -> np.ndarray:
    """Class numbers as soft labels: the label has `trust`, the other classes share the rest.

    **Shape** [n], [n] -> [n, C]; a row without a label (-1) is all zeros.

    >>> believed(np.array([1, -1]), np.array([0.9, 0.5]), 2).round(2).tolist()
    [[0.1, 0.9], [0.0, 0.0]]
    """
    known = np.flatnonzero(targets >= 0)
    soft = np.zeros((len(targets), n_classes))
    soft[known] = ((1 - trust[known]) / (n_classes - 1))[:, None]
    soft[known, targets[known]] = trust[known]
    return soft
