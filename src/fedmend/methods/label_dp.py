"""Randomised response for labels: each one is ε-locally differentially private (Warner 1965).

With C classes a label stays as it is with probability e^ε / (e^ε + C − 1) and becomes any other
one with equal probability. It is drawn once for each label and kept: asking again shows the same
answer and costs nothing more. Another ε, or other classes, is another draw, and the two add up.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.labels import LabelEncoder
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError
from fedmend.federation.site import Site
from fedmend.learn.parts import read_file, write_file

_SHELF = "methods.label_dp"
FILE = "label_dp.fmw"


def keep_probability(epsilon: float, n_classes: int) -> float:
    """How likely a label is told as it is.

    >>> round(keep_probability(math.log(3), 2), 3)
    0.75
    """
    if not epsilon > 0 or not math.isfinite(epsilon):
        raise ConfigError(f"label_dp must be a positive epsilon or None, however: {epsilon}")
    return 1 / (1 + (n_classes - 1) * math.exp(-epsilon))


def response_matrix(epsilon: float, n_classes: int) -> np.ndarray:
    """P(told | label): what randomised response adds to a party's own errors."""
    keep = keep_probability(epsilon, n_classes)
    matrix = np.full((n_classes, n_classes), (1 - keep) / (n_classes - 1))
    np.fill_diagonal(matrix, keep)
    return matrix


def without_response(matrix: np.ndarray, epsilon: float) -> np.ndarray:
    """The party's own expertise, from one that was estimated through randomised response."""
    own = matrix @ np.linalg.inv(response_matrix(epsilon, len(matrix)))
    own = np.clip(own, 0.0, None)
    return own / own.sum(1, keepdims=True)


def respond(votes: np.ndarray, epsilon: float, n_classes: int) -> np.ndarray:
    """Votes told through randomised response; a missing one (-1) stays missing."""
    keep = keep_probability(epsilon, n_classes)
    # Drawn from the operating system: this randomness hides something.
    draws = np.frombuffer(os.urandom(16 * len(votes)), np.uint64).reshape(2, -1) >> np.uint64(11)
    chance, shift = draws * 2.0**-53
    other = (votes + 1 + np.floor(shift * (n_classes - 1)).astype(np.int64)) % n_classes
    told = np.where(chance < keep, votes, other)
    return np.where(votes >= 0, told, -1)


def with_told_labels(table: Table, epsilon: float, party: str | None = None) -> Table:
    """The table with every label told through randomised response, for a party that labels alone.

    Whatever is trained on it, and whatever anybody infers from that, is ε-differentially private
    in each label. Draw once and keep the table: another draw of the same labels costs ε again.
    """
    if table.label is None:
        raise DataError("there is no label column", party=party, mend="fm.read(path, label=…)")
    encoder = LabelEncoder().fit(table.y, table.schema[table.label], party=party)
    if encoder.task == "regression":
        raise DataError(
            "randomised response is for classes, and the label is a number",
            party=party,
            column=table.label,
            mend="cut the numbers into classes first",
        )
    votes = encoder.transform(table.y, party=party)
    told = respond(votes, epsilon, len(encoder.classes_))
    # An object array first: it takes classes of any type, and the column gives them its own.
    classes = np.array([*encoder.classes_, None], dtype=object)
    column = pd.Series(classes[told], index=table.y.index, name=table.label)
    return table.with_columns({table.label: column.astype(table.y.dtype)})


class Responses:
    """The draws a site has made, and what they cost; on disk where the site has a home.

    folder: where else to keep them (beside a checkpoint, for a run that may be resumed).
    """

    def __init__(self, site: Site, folder: Path | None = None) -> None:
        place = site.home if site.home is not None else folder
        self.path = None if place is None else Path(place) / FILE
        # In the vault: a party that could be made to forget its answers would draw others.
        self._draws: dict[str, Any] = site.vault.setdefault(_SHELF, {})
        self._party = site.name
        if self.path is not None and self.path.is_file():
            for key, draw in read_file(self.path, site.name).items():
                self._draws.setdefault(key, draw)

    def of(self, about: str, votes: np.ndarray, epsilon: float, classes: list[Any]) -> np.ndarray:
        """The told votes about this column: those told before, or new ones."""
        epsilon = float(epsilon)
        key = f"{about}|{epsilon!r}|{classes!r}"
        # Changed labels are told anew; what was told of the old ones stays in the account.
        asked = [
            draw for each, draw in self._draws.items() if each == key or each.startswith(f"{key}|")
        ]
        for draw in asked:
            if np.array_equal(draw["votes"], votes):
                return draw["told"]
        told = respond(votes, epsilon, len(classes))
        new = f"{key}|{len(self._draws)}" if asked else key
        self._draws[new] = {"about": about, "epsilon": epsilon, "votes": votes, "told": told}
        if self.path is not None:
            write_file(self.path, self._draws)
        return told

    def spent(self, about: str) -> float:
        """The epsilon that each label of this column has cost so far."""
        return sum(draw["epsilon"] for draw in self._draws.values() if draw["about"] == about)
