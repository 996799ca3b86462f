"""Randomised response for labels: each one is ε-locally differentially private (Warner 1965).

With C classes a label stays as it is with probability e^ε / (e^ε + C − 1) and becomes any other
one with equal probability. It is drawn once for each label and kept: asking again shows the same
answer and costs nothing more. Another ε, or other classes, is another draw, and the two add up.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.labels import LabelEncoder
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, PrivacyWarning
from fedmend.federation.site import Site
from fedmend.learn.belief import Belief
from fedmend.learn.parts import read_file, write_file

_SHELF = "learn.label_dp"
FILE = "label_dp.fmw"
FIRST = "train"
"""The table that further ones of a party are made of."""


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
    encoder = _classes_of(table, "auto", party)
    told = respond(encoder.transform(table.y, party=party), epsilon, len(encoder.classes_))
    return _relabelled(table, encoder.classes_, told)


def _classes_of(table: Table, task: str, party: str | None) -> LabelEncoder:
    if table.label is None:
        raise DataError("there is no label column", party=party, mend="fm.read(path, label=…)")
    encoder = LabelEncoder(task).fit(table.y, table.schema[table.label], party=party)
    if encoder.task == "regression":
        raise DataError(
            "randomised response is for classes, and the label is a number",
            party=party,
            column=table.label,
            mend="cut the numbers into classes first, or leave label_dp out",
        )
    return encoder


def _relabelled(table: Table, classes: Sequence[Any], told: np.ndarray) -> Table:
    # An object array first: it takes classes of any type, and the column gives them its own.
    values = np.array([*classes, None], dtype=object)
    column = pd.Series(values[told], index=table.y.index, name=table.label)
    return table.with_columns({str(table.label): column.astype(table.y.dtype)})


# ---------------------------------------------------------------------------------- kept draws


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
        self._on_disk: set[str] = set()
        if self.path is not None and self.path.is_file():
            for key, draw in read_file(self.path, site.name).items():
                self._draws.setdefault(key, draw)
                self._on_disk.add(key)

    def of(self, about: str, votes: np.ndarray, epsilon: float, classes: list[Any]) -> np.ndarray:
        """The told votes about this column: those told before, or new ones."""
        epsilon = float(epsilon)
        key = f"{about}|{epsilon!r}|{classes!r}"
        # Changed labels are told anew; what was told of the old ones stays in the account.
        asked = [each for each in self._draws if each == key or each.startswith(f"{key}|")]
        for name in asked:
            if np.array_equal(self._draws[name]["votes"], votes):
                return self._kept(name)
        told = respond(votes, epsilon, len(classes))
        new = f"{key}|{len(self._draws)}" if asked else key
        self._draws[new] = {"about": about, "epsilon": epsilon, "votes": votes, "told": told}
        return self._kept(new)

    def _kept(self, name: str) -> np.ndarray:
        """The told votes of a draw, which is on disk from now on."""
        if self.path is not None and name not in self._on_disk:
            write_file(self.path, self._draws)
            self._on_disk.update(self._draws)
        return self._draws[name]["told"]

    def spent(self, about: str) -> float:
        """The epsilon that each label of this column has cost so far."""
        return sum(draw["epsilon"] for draw in self._draws.values() if draw["about"] == about)

    def spent_on(self, column: str) -> float:
        """The most that a label of this column can have cost, told from whichever table."""
        draws = self._draws.values()
        return sum(each["epsilon"] for each in draws if each["about"].endswith(f"|{column}"))


# ---------------------------------------------------------------------------------- in training


@dataclass(frozen=True)
class ToldLabels:
    """What the workers of a training know of a party's labels.

    table: the party's, with told labels. source: the one whose labels were drawn. numbers: told
    classes, -1 where there is no label. response: P(told | label) [C, C]. epsilon: of this
    telling; spent: of all that was ever told of this column, this telling included.
    """

    table: Table
    source: Table
    classes: tuple[Any, ...]
    numbers: np.ndarray
    response: np.ndarray
    epsilon: float
    spent: float

    @classmethod
    def of(
        cls,
        site: Site,
        scope: str,
        epsilon: float,
        *,
        task: str = "auto",
        classes: Sequence[Any] | None = None,
        folder: Path | None = None,
    ) -> ToldLabels:
        """At the party: its labels of a scope, told as before or for the first time.

        A table made of the party's first one (a fold of it, or with rows completed) is told as
        that one is. classes: all there are, where a party may have some of them only. folder:
        where draws are kept at a site without a home.
        """
        table, party = site.table_of(scope), site.name
        first = site.tables.get(FIRST)
        place = None if first is None or first is table else _places(table, first)
        if first is not None and place is not None:
            whole = cls.of(site, FIRST, epsilon, task=task, classes=classes, folder=folder)
            numbers = np.where(table.y.isna().to_numpy(), -1, whole.numbers[place])
            return replace(whole, table=_relabelled(table, whole.classes, numbers), numbers=numbers)
        if classes is None:
            encoder = _classes_of(table, task, party)
            classes, votes = encoder.classes_, encoder.transform(table.y, party=party)
        else:
            number = {value: at for at, value in enumerate(classes)}
            votes = table.y.map(number).fillna(-1).to_numpy(np.int64)
        responses = Responses(site, folder)
        about = f"{scope.partition('@')[0]}|{table.label}"
        told = responses.of(about, votes, epsilon, list(classes))
        return cls(
            table=_relabelled(table, classes, told),
            source=table,
            classes=tuple(classes),
            numbers=told,
            response=response_matrix(epsilon, len(classes)),
            epsilon=float(epsilon),
            spent=responses.spent_on(str(table.label)),
        )

    @property
    def belief(self) -> Belief:
        """How likely what was told of each row is under each class: the forward correction.

        (Patrini et al., "Making Deep Neural Networks Robust to Label Noise", CVPR 2017, with a
        noise that is known and not estimated.) A row without a label says nothing.
        """
        lines = np.vstack([self.response.T, np.ones(len(self.classes))])
        return Belief(self.classes, lines[self.numbers])

    def account(self) -> dict[str, float]:
        """What may be told of it."""
        kept = float(self.response[0, 0])
        return {"epsilon": self.epsilon, "kept": kept, "spent": self.spent}


def _places(table: Table, first: Table) -> np.ndarray | None:
    """Where the rows of a table stand in another, None where some have another label there."""
    if table.label is None or table.label != first.label:
        return None
    place = pd.Index(first.ids).get_indexer(table.ids)
    labelled = table.y.notna().to_numpy()
    if (place[labelled] < 0).any():
        return None
    theirs = first.y.to_numpy(dtype=object)[place[labelled]]
    return place if (theirs == table.y.to_numpy(dtype=object)[labelled]).all() else None


def account_of(told: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The coordinator's account of labels told by parties; warns where they were told before."""
    first = next(iter(told.values()))
    spent = {party: float(each["spent"]) for party, each in told.items()}
    warn_of_spending(float(first["epsilon"]), spent)
    return {"epsilon": float(first["epsilon"]), "kept": float(first["kept"]), "spent": spent}


def in_words(account: Mapping[str, Any]) -> str:
    """An account as a sentence.

    >>> in_words({"epsilon": 2.0, "kept": 0.88, "spent": {"bank": 2.0}})[:52]
    'bank let the training know labels through randomised'
    """
    epsilon, spent = float(account["epsilon"]), account["spent"]
    text = (
        f"{', '.join(spent)} let the training know labels through randomised response only, drawn "
        f"once (label_dp = {epsilon:g}: each is told as it is with probability "
        f"{account['kept']:.2f})."
    )
    more = [f"{party} {each:g}" for party, each in spent.items() if each > epsilon * (1 + 1e-9)]
    return text + (f" With earlier draws that is ε = {', '.join(more)}." if more else "")


def warn_of_spending(epsilon: float, spent: Mapping[str, float]) -> None:
    """Several draws of the same labels add up to less privacy than each of them promises."""
    more = {party: each for party, each in spent.items() if each > epsilon * (1 + 1e-9)}
    if more:
        told = ", ".join(f"{party}: {each:g}" for party, each in more.items())
        warnings.warn(
            f"labels were told with label_dp={epsilon:g}, and before with another ε, of another "
            f"table or before they changed. Together that is ε = {told}. Mend: one label_dp for "
            "all trainings on the same labels, which are then drawn once",
            PrivacyWarning,
            stacklevel=3,
        )
