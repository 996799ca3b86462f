"""What was seen of each row in split training: gradients that came down, embeddings that went up.

Everything is kept as the receiver could keep it, by row number: a feature party knows which of its
rows were in which batch, and so does whoever receives the embeddings, or relays them in the open
(the order of rows follows from seeds that all of them are told).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmend.audit.tap import Heard, as_array

__all__ = ["Look", "Sightings"]

WEIGHTED_SUMS = "additive"
BOTTOM = "bottom"


@dataclass(frozen=True)
class Look:
    """One message: a line of `values` for each of `rows`."""

    rows: np.ndarray
    values: np.ndarray


class Sightings:
    """A listener that keeps the first `most` looks at every aligned row, and the final ones.

    gradients, embeddings: by party and channel ("bottom": the network's; "additive": the sums
    over columns that RISA adds to it), in the order they crossed. final: embeddings that the
    trained model makes, heard once `training` is False. unread: calls whose gradients or
    embeddings belong to no row it knows of, which no attack looks at.
    """

    def __init__(self, scope: str, aligned: int, most: int) -> None:
        self.scope = scope
        self.aligned = aligned
        self.most = most
        self.training = True
        self.gradients: dict[tuple[str, str], list[Look]] = defaultdict(list)
        self.embeddings: dict[tuple[str, str], list[Look]] = defaultdict(list)
        self.final: dict[str, list[Look]] = defaultdict(list)
        self.unread: set[str] = set()
        self._read: dict[str, bool] = {}
        self._asked: dict[str, np.ndarray] = {}
        self._seen: dict[tuple[str, ...], np.ndarray] = {}

    def hear(self, heard: Heard) -> None:
        """Keep what a call says about aligned rows."""
        if heard.scope != self.scope:
            return
        if heard.method == "additive_begin" and "rows" in heard.given:
            self._asked[heard.handle] = np.asarray(heard.given["rows"])
        gradient = heard.given.get("gradient")
        if gradient is not None or heard.kind == "embedding":
            self._read[heard.party] = self._read.get(heard.party, False) or not heard.sealed
        if gradient is not None:
            rows = self._rows(heard, before=True)
            self._keep(heard, "gradient", rows, gradient)
        if heard.kind == "embedding" and heard.method != "fill_embedding":
            self._keep(heard, "embedding", self._rows(heard, before=False), heard.answer)

    def _rows(self, heard: Heard, *, before: bool) -> np.ndarray | None:
        """Whose rows a gradient (that arrived) or an embedding (that was answered) has."""
        if heard.method.startswith("additive_"):
            return self._asked.get(heard.handle)
        if heard.method == "embed":
            return np.asarray(heard.given["rows"])
        if heard.method == "take_gradient":  # a whole gradient at once, for all rows in their order
            return np.arange(self.aligned)
        return heard.before if before else heard.after

    def _keep(self, heard: Heard, kind: str, rows: np.ndarray | None, value: Any) -> None:
        if rows is None or not hasattr(value, "shape"):
            self.unread.add(f"{heard.worker}.{heard.method}")
            return
        at = self.places(rows, len(value))
        if at is None:
            self.unread.add(f"{heard.worker}.{heard.method}")
            return
        if not len(at):
            return
        channel = WEIGHTED_SUMS if heard.method.startswith("additive_") else BOTTOM
        if kind == "embedding" and not self.training:
            if heard.method == "embed":
                self.final[heard.party].append(Look(rows[at].copy(), as_array(value)[at]))
            return
        seen = self._seen.setdefault((kind, heard.party, channel), np.zeros(self.aligned))
        if seen[rows[at]].min() >= self.most:
            return
        seen[rows[at]] += 1
        looks = self.gradients if kind == "gradient" else self.embeddings
        looks[heard.party, channel].append(Look(rows[at].copy(), as_array(value)[at]))

    def places(self, rows: np.ndarray, lines: int) -> np.ndarray | None:
        """Where the aligned ones among these rows stand in a message of so many lines.

        A party without some of the rows leaves their lines out. The aligned ones it has; where
        they lead, their lines do. None where it cannot be told.
        """
        at = np.flatnonzero(rows < self.aligned)
        if lines >= len(rows) or not len(at):
            return at
        leading = bool((at == np.arange(len(at))).all()) and len(at) <= lines
        return at if leading else None

    def sealed(self, party: str) -> bool:
        """Whether all that went up from a party and came down to it was sealed."""
        return not self._read.get(party, True)

    def final_embeddings(self, party: str) -> np.ndarray | None:
        """The trained model's embeddings of all aligned rows, as they crossed. **Shape** [n, d]"""
        looks = self.final.get(party)
        if not looks:
            return None
        found = np.zeros((self.aligned, looks[-1].values.shape[1]))
        there = np.zeros(self.aligned, dtype=bool)
        for look in looks:
            if look.values.shape[1] == found.shape[1]:
                found[look.rows], there[look.rows] = look.values, True
        return found if there.all() else None

    def stacked(self, looks: list[Look], *, unit: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Looks side by side, and how many there are at each row; zeros where there are fewer.

        unit: every line scaled to length 1. **Shape** [n, looks * d], [n]
        """
        width = looks[0].values.shape[1]
        alike = [look for look in looks if look.values.shape[1] == width]
        counts = np.zeros(self.aligned, dtype=np.int64)
        found = np.zeros((self.aligned, self.most, width), np.float32)
        for look in alike:
            values = look.values
            if unit:
                length = np.linalg.norm(values, axis=1, keepdims=True)
                values = np.divide(values, length, out=np.zeros_like(values), where=length > 0)
            # A row may be twice in one batch; the first time counts.
            rows, first = np.unique(look.rows, return_index=True)
            room = counts[rows] < self.most
            rows, first = rows[room], first[room]
            found[rows, counts[rows]] = values[first]
            counts[rows] += 1
        used = max(1, int(counts.max(initial=0)))
        return found[:, :used].reshape(self.aligned, -1), counts
