"""How far a label is believed: noted at the party beside a table, and made part of the targets.

A method that corrects labels leaves with each the probability that it is right. Training on the
probabilities instead of the labels alone lets a doubtful row say little.
"""

from __future__ import annotations

import numpy as np

from fedmend.federation import Site

__all__ = ["believed", "keep_trust", "label_trust"]

_SHELF = "learn.label_trust"


def keep_trust(site: Site, dataset: str, trust: np.ndarray) -> None:
    """At the party: note how far each label of a table is believed. **Shape** [rows]."""
    site.state.setdefault(_SHELF, {})[dataset] = trust


def label_trust(site: Site, dataset: str) -> np.ndarray | None:
    """At the party: how far each label of a corrected table is believed; None for other tables.

    **Shape** [rows of the table]; 1 where the label is the party's own.
    """
    found = site.state.get(_SHELF, {}).get(dataset)
    return None if found is None else np.asarray(found)


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
