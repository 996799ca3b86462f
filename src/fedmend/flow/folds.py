"""Cross-validation inside a federation: every party sets the same rows aside.

Folds are drawn over the common order of the aligned rows, which says nothing about anybody, so
that all parties can be told which rows to hold out. A held-out row is in no training table of its
fold, also not as a row of one party. In a horizontal federation every party holds out rows of
its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmend.federation import Alignment, AlignmentCounts, Federation, Worker, exposed
from fedmend.federation.bound import declare
from fedmend.federation.rows import Asked

__all__ = ["FoldWorker", "fold", "horizontal_fold"]


class FoldWorker(Worker):
    """Makes two further tables of a party's table: rows to train on, and rows held out."""

    @exposed(kind="count")
    def split(self, train: str, held: str, rows: np.ndarray) -> dict[str, int]:
        """Hold out these rows, by their places in the common order.

        train, held: names of the further tables, aligned among the parties of this scope.
        """
        own, table = self.alignment, self.table
        out = own.aligned[rows]
        self.site.tables[held] = table.take(out)
        nobody = np.zeros(0, dtype=np.int64)
        self.site.alignments[self._scope(held)] = Alignment(np.arange(len(out)), nobody)
        kept = np.setdiff1d(np.arange(len(table)), out)
        place = np.full(len(table), -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        self.site.tables[train] = table.take(kept)
        inside = np.ones(len(own.aligned), dtype=bool)
        inside[rows] = False
        found = Alignment(place[own.aligned[inside]], place[own.unaligned])
        self.site.alignments[self._scope(train)] = found
        return {"aligned": len(found.aligned), "unaligned": len(found.unaligned)}

    @exposed(kind="control", over_rows=True)
    def split_own(self, train: str, held: str, number: int, folds: int) -> None:
        """Hold out one of `folds` parts of this party's rows."""
        table, out = self.table, self._own_part(number, folds)
        self.site.tables[train], self.site.tables[held] = table.take(~out), table.take(out)

    def _own_part(self, number: int, folds: int) -> np.ndarray:
        order = self.site.rng("folds").permutation(len(self.table))
        out = np.zeros(len(self.table), dtype=bool)
        out[order[number::folds]] = True
        return out

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        """A fold is refused before its tables exist, whatever would be asked of them."""
        if method == "split":
            return [self.alignment.aligned[kwargs["rows"]]]
        out = self._own_part(kwargs["number"], kwargs["folds"])
        return [out, ~out]

    @exposed(kind="control")
    def forget(self, names: list[str]) -> None:
        """Drop tables of folds."""
        for name in names:
            self.site.tables.pop(name, None)
            self.site.alignments.pop(self._scope(name), None)

    def _scope(self, dataset: str) -> str:
        """Another table among the same parties."""
        _, at, members = self.scope.partition("@")
        return f"{dataset}{at}{members}"


def fold(
    fed: Federation, number: int, folds: int, seed: int
) -> tuple[Federation, Federation, list[str]]:
    """Fold `number` of an aligned federation: to train on, to test on, and their tables' names.

    Only rows whose sides are all real are held out.
    """
    real = fed.alignment.aligned - fed.alignment.completed
    order = np.random.default_rng([seed, folds]).permutation(real)
    rows = np.sort(order[number::folds])
    names = [f"{fed.dataset}-fold{number}", f"{fed.dataset}-held{number}"]
    train, held = fed.on(names[0]), fed.on(names[1])
    with fed.workers(FoldWorker) as crew:
        counts = crew.split(*names, rows)
    aligned = {each["aligned"] for each in counts.values()}
    assert len(aligned) == 1, "all parties hold out the same places of one order"
    unaligned = {party: each["unaligned"] for party, each in counts.items()}
    train.note_alignment(AlignmentCounts(aligned.pop(), unaligned, fed.alignment.completed))
    held.note_alignment(AlignmentCounts(len(rows), dict.fromkeys(fed.names, 0)))
    return train, held, names


def horizontal_fold(
    fed: Federation, number: int, folds: int
) -> tuple[Federation, Federation, list[str]]:
    """Fold `number` of a horizontal federation; see :func:`fold`."""
    names = [f"{fed.dataset}-fold{number}", f"{fed.dataset}-held{number}"]
    with fed.workers(FoldWorker) as crew:
        crew.split_own(*names, number, folds)
    return fed.on(names[0]), fed.on(names[1]), names


def forget(fed: Federation, names: list[str]) -> None:
    """Let the parties drop the tables of a fold."""
    with fed.workers(FoldWorker) as crew:
        crew.forget(names)


declare("auto", FoldWorker)
