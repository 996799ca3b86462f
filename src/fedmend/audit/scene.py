"""What an attack is given: the rehearsed federation, the truth it is judged by, and its budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from fedmend.audit.guess import standardised
from fedmend.audit.result import Finding
from fedmend.audit.tap import Heard
from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.federation import Federation
from fedmend.federation.engines.local import LocalEngine

__all__ = ["Attack", "Budget", "NotApplicable", "Scene"]

MOST_PIXELS = 3072


class NotApplicable(Exception):
    """An attack has nothing to work on; says why."""


@dataclass(frozen=True)
class Budget:
    """What attackers are granted.

    looks: how many epochs of messages they keep. known_labels: labelled examples of each class,
    one finding for each number. known_rows: rows of which they know the other's columns. repeats:
    draws of these examples. most_rows: on how many rows a guess is scored at most.
    """

    looks: int = 10
    known_labels: tuple[int, ...] = (10, 40)
    known_rows: int = 200
    repeats: int = 5
    most_rows: int = 3000


class Attack(Protocol):
    """One published attack: hears what crosses while a method is trained, then infers."""

    name: str

    def hear(self, heard: Heard) -> None: ...

    def run(self, scene: Scene) -> list[Finding]: ...


@dataclass
class Scene:
    """A rehearsal when it is over.

    fed: the rehearsed federation. model: the fitted method. facts: sentences for the report that
    are no figures.
    """

    fed: Federation
    model: Any
    budget: Budget
    seed: int = 0
    facts: list[str] = field(default_factory=list)

    def rng(self, purpose: str) -> np.random.Generator:
        """Reproducible; the same for an attack under every setting that is compared."""
        return np.random.default_rng([self.seed, *purpose.encode()])

    # ------------------------------------------------------------------ the truth

    def table(self, party: str) -> Table:
        """A party's rows: the aligned ones in the common order where there is an alignment."""
        engine = self.fed.engine
        assert isinstance(engine, LocalEngine)
        site = engine.site(party)
        # As it is, whatever a method's label_dp lets workers see of its labels.
        table = site.tables[self.fed.dataset]
        alignment = site.alignments.get(self.fed.scope)
        return table if alignment is None else table.take(alignment.aligned)

    @cached_property
    def labellers(self) -> list[str]:
        """Whose labels the model learnt: one party's, or several's together."""
        return list(self.model.learnt_from(self.fed))

    @property
    def whose(self) -> str:
        """The labellers in words."""
        return " + ".join(self.labellers)

    @cached_property
    def labels(self) -> np.ndarray:
        """Class numbers of the aligned rows, -1 where there is none; of several, most votes'."""
        lines = np.eye(self.classes + 1)[:, : self.classes]
        counts = sum(lines[self.votes(party)] for party in self.labellers)
        return np.where(counts.any(1), counts.argmax(1), -1)

    def votes(self, party: str) -> np.ndarray:
        """What a party says of each aligned row, by class number; -1 where it says nothing."""
        table = self.table(party)
        found = np.full(len(table), -1)
        for number, value in enumerate(self.class_names):
            found[(table.y == value).to_numpy(dtype=bool, na_value=False)] = number
        return found

    @cached_property
    def class_names(self) -> list[Any]:
        found = self.model.classes_
        if found is None:
            raise NotApplicable("the label is a number, and this attack infers classes")
        return list(found)

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def columns(self, party: str) -> np.ndarray:
        """A party's own columns of the aligned rows as an attacker uses them. **Shape** [n, p]"""
        table = self.table(party)
        if not table.feature_names:
            return np.zeros((len(table), 0))
        encoded = Encoder(missing_indicator=True, dtype="float64").fit(table).transform(table)
        pieces = [encoded.onehot()]
        for block in encoded.blocks.values():
            pieces.append(block.reshape(len(block), -1)[:, :MOST_PIXELS])
        return standardised(np.concatenate(pieces, 1).astype(np.float64))
