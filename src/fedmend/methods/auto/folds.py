"""Folds of a federation: rows to train on, and rows held out, at every party alike.

Folds are drawn over the common order of the aligned rows, which says nothing about anybody, so
that all parties can be told which rows to hold out. Of several partners each may know rows that
the others do not: where it and the label party are aligned as two, the label party draws folds of
these without a look at their labels, and tells it. Of the rows that only the label party has, it
holds out a share of each class itself. A held-out row is in no training table of its fold, be it as
a row of one party or as a completed one. In a horizontal federation every party holds out rows of
its own, a share of each class.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedmend.federation import Alignment, AlignmentCounts, Each, Federation, Worker, exposed
from fedmend.federation.bound import declare
from fedmend.federation.rows import Asked
from fedmend.split.features import digest_of, folds_of, note_folds
from fedmend.split.labels import (
    LabelLikelihood,
    cell_confidence,
    keep_confidence,
    keep_likelihood,
    label_likelihood,
)

_DEALT = "folds.dealt"
"""Where a site keeps which rows it dealt by their classes, into how many folds."""


class FoldWorker(Worker):
    """Makes two further tables of a party's table: rows to train on, and rows held out."""

    @exposed(kind="control")
    def number(
        self, aligned: np.ndarray, folds: int, alone: bool, pairs: list[str], least: int = 0
    ) -> bool:
        """Note the folds of aligned rows, by their places, of those known to one of these pairs
        (their scopes), and (alone) of those only it has.

        Of own rows each class has its share in each fold. What is noted of an id holds for all its
        tables, and is nothing where a fold would have too few labelled rows: that is what is told.
        """
        table, own = self.table, self.alignment.unaligned
        met = np.zeros(0, np.int64)
        met_folds = np.zeros(0, np.int64)
        for pair in pairs:
            both = np.setdiff1d(np.intersect1d(self.site.alignments[pair].aligned, own), met)
            both = both[np.argsort(self.site.draws_of(table.ids[both]), kind="stable")]
            met = np.concatenate([met, both])
            met_folds = np.concatenate([met_folds, np.arange(len(both)) % folds])
        own = np.setdiff1d(own, met) if alone else np.zeros(0, np.int64)
        order = own[np.argsort(self.site.draws_of(table.ids[own]), kind="stable")]
        order, way = self._dealt(order, folds)
        places = np.concatenate([self.alignment.aligned[: len(aligned)], met, order])
        numbers = np.concatenate([aligned, met_folds, np.arange(len(order)) % folds])
        if table.label is not None and least:
            labelled = table.y.notna().to_numpy()[places]
            shared = np.arange(len(places)) < len(aligned) + len(met)
            for kind in (labelled & shared, labelled & ~shared):
                # Fewer than that of a kind in all are judged with the others.
                found = np.bincount(numbers[kind], minlength=folds)
                if found.sum() >= least > found.min():
                    return False
            if np.bincount(numbers[labelled], minlength=folds).min() < least:
                return False
        self._note(table.ids[places], numbers, way)
        return True

    @exposed(kind="control")
    def pair_folds(self, pair: str) -> np.ndarray:
        """The folds of the rows known to a pair, in their order."""
        return folds_of(self.site, self.table.ids[self.site.alignments[pair].aligned])

    @exposed(kind="control")
    def completed_in(self, number: int, real: int) -> np.ndarray:
        """The places of completed rows, which come after the real ones, that are in a fold."""
        ids = self.table.ids[self.alignment.aligned[real:]]
        return real + np.flatnonzero(folds_of(self.site, ids) == number)

    @exposed(kind="count")
    def split(
        self, train: str, held: str, rows: np.ndarray, number: int, pairs: dict[str, np.ndarray]
    ) -> dict[str, int]:
        """Hold out these rows, by their places in the common order, and own ones of the fold.

        train, held: names of the further tables, aligned among the parties of this scope. pairs:
        folds of the rows that the label party and this one know, by the scope of the two.
        """
        own, table = self.alignment, self.table
        out, alone = own.aligned[rows], self._held_alone(number, pairs)
        self._excerpt(self.scope, rows, *map(self._scope, (train, held)))
        held_out = np.concatenate([out, alone])
        self._make(
            held, held_out, Alignment(np.arange(len(out)), np.arange(len(out), len(held_out)))
        )
        kept = np.setdiff1d(np.arange(len(table)), held_out)
        place = np.full(len(table), -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        aligned, unaligned = place[own.aligned], place[own.unaligned]
        found = Alignment(aligned[aligned >= 0], unaligned[unaligned >= 0])
        self._make(train, kept, found)
        counts = {"aligned": found.aligned, "unaligned": found.unaligned, "alone": alone}
        return {name: len(each) for name, each in counts.items()}

    def _held_alone(self, number: int, pairs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Of the rows that not all parties know, those of a fold."""
        own = self.alignment.unaligned
        here = folds_of(self.site, self.table.ids[own]) == number
        for pair, numbers in pairs.items():
            here |= np.isin(own, self.site.alignments[pair].aligned[numbers == number])
        return own[here]

    @exposed(kind="control")
    def follow(
        self,
        pair: str,
        train: str,
        held: str,
        rows: np.ndarray,
        numbers: np.ndarray | None,
        number: int,
    ) -> list[int]:
        """Align what `split` has made between two of the parties, too; tells how many rows.

        numbers: the folds of the rows of the two, whose scope is `pair`; without them a place
        beyond the table stands for a row that one of the two holds out alone.
        """
        both, own = self.site.alignments[pair].aligned, self.alignment
        out = np.isin(both, own.aligned[rows])
        met = np.zeros(len(both), bool)
        if numbers is not None:
            met = (numbers == number) & ~np.isin(both, own.aligned)
        at, members = pair.partition("@")[1:]
        told = rows if numbers is None else np.concatenate([rows, numbers])
        self._excerpt(pair, told, *(f"{name}{at}{members}" for name in (train, held)))
        for name, here in ((train, ~out & ~met), (held, met)):
            ids = self.site.tables[name].ids
            place = pd.Index(ids).get_indexer(self.table.ids[both[here]])
            place = np.where(place < 0, len(ids), place)  # not -1, which would be the last row
            found = Alignment(place.astype(np.int64), np.zeros(0, np.int64))
            self.site.alignments[f"{name}{at}{members}"] = found
        return [int((~out & ~met).sum()), int(met.sum())]

    def _excerpt(self, whole: str, rows: np.ndarray, *scopes: str) -> None:
        """Parties that were told to hold out other rows have nothing to say to each other."""
        before = self.site.excerpts.get(whole, "")
        self.site.excerpts |= {scope: f"{before} {digest_of(rows)}" for scope in scopes}

    def _make(self, name: str, rows: np.ndarray, alignment: Alignment) -> None:
        """A table of some of the rows, with all that is known of their labels and cells."""
        site, dataset = self.site, self.scope.partition("@")[0]
        site.tables[name] = self.table.take(rows)
        site.alignments[self._scope(name)] = alignment
        likelihood, cells = label_likelihood(site, dataset), cell_confidence(site, dataset)
        if likelihood is not None:
            known = LabelLikelihood(likelihood.classes, likelihood.likelihood[rows])
            keep_likelihood(site, name, known)
        if cells is not None:
            keep_confidence(site, name, {column: each[rows] for column, each in cells.items()})

    @exposed(kind="control", over_rows=True)
    def split_own(self, train: str, held: str, number: int, folds: int) -> None:
        """Hold out one of `folds` parts of this party's rows."""
        table, (numbers, way) = self.table, self._own_folds(folds)
        self._note(table.ids, numbers, way)
        out = numbers == number
        self.site.tables[train], self.site.tables[held] = table.take(~out), table.take(out)

    def _own_folds(self, folds: int) -> tuple[np.ndarray, str]:
        order, way = self._dealt(self.site.rng("folds").permutation(len(self.table)), folds)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order)) % folds
        return numbers, way

    def _dealt(self, order: np.ndarray, folds: int) -> tuple[np.ndarray, str]:
        """Rows to be dealt one by one, those of a class together: each fold gets its share of it.

        Who is held out tells the folds, and every other way to deal tells something else of a
        row's place, and so of its class. Therefore one set of rows is dealt by classes, into one
        number of folds of enough rows, from an order of which nothing else tells: that way, or "".
        """
        if self.table.label is None:
            return order, ""
        codes = pd.factorize(self.table.y.iloc[order])[0]
        draws = np.sort(self.site.draws_of(self.table.ids[order]))
        way, least = f"{folds} {digest_of(draws.view(np.int64))}", len(np.unique(codes))
        least = max(
            least, self.site.rows.least
        )  # and no numbers, of which each is a class of its own
        if len(order) // folds < least or self.site.vault.get(_DEALT, way) != way:
            return order, ""
        if not self.site.reproducible:
            mixed = self.site.rng(f"folds {way}").permutation(len(order))
            order, codes = order[mixed], codes[mixed]
        return order[np.argsort(codes, kind="stable")], way

    def _note(self, ids: np.ndarray, numbers: np.ndarray, way: str) -> None:
        note_folds(self.site, ids, numbers)
        if way:
            self.site.vault.setdefault(_DEALT, way)

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        """A fold is refused before its tables exist, whatever would be asked of them."""
        if method == "split":
            alone = self._held_alone(kwargs["number"], kwargs["pairs"])
            out = np.zeros(len(self.table), bool)
            out[np.concatenate([self.alignment.aligned[kwargs["rows"]], alone])] = True
        else:
            out = self._own_folds(kwargs["folds"])[0] == kwargs["number"]
        return [out, ~out]

    @exposed(kind="control")
    def forget(self, names: list[str]) -> None:
        """Drop tables of folds."""
        for name in names:
            self.site.tables.pop(name, None)
        for scope in list(self.site.alignments):
            if scope.partition("@")[0] in names:
                del self.site.alignments[scope]

    def _scope(self, dataset: str) -> str:
        """Another table among the same parties."""
        _, at, members = self.scope.partition("@")
        return f"{dataset}{at}{members}"


def fold(
    fed: Federation,
    number: int,
    folds: int,
    seed: int,
    *,
    horizontal: bool = False,
    own: str | None = None,
    shared: bool = True,
    pairs: Mapping[str, np.ndarray] | None = None,
) -> tuple[Federation, Federation]:
    """Fold `number` of a federation: to train on, and to test on.

    Of an aligned one only rows whose sides are all real are held out. own: a party that holds out
    rows that only it has, too (`number_folds` comes first). shared: whether rows known to all are
    held out at all. pairs: by their scopes the folds of what two parties know (`number_folds`).
    """
    train, held = fed.on(f"{fed.dataset}-fold{number}"), fed.on(f"{fed.dataset}-held{number}")
    with fed.workers(FoldWorker) as group:
        if horizontal:
            group.split_own(train.dataset, held.dataset, number, folds)
            return train, held
        completed = fed.alignment.completed
        real = fed.alignment.aligned - completed
        rows = np.flatnonzero(_drawn(real if shared else 0, folds, seed) == number)
        if own is not None and completed:
            rows = np.concatenate([rows, group[own].completed_in(number, real)])
        two, met, made = _pairs(fed), pairs or {}, (train.dataset, held.dataset)
        told = {
            name: {
                pair.scope: met[pair.scope]
                for pair in two
                if pair.scope in met and name in pair.names
            }
            for name in fed.names
        }
        counts = group.split(*made, rows, number, Each(told))
        for pair in two:
            for name in pair.names:
                numbers = met.get(pair.scope)
                found = group[name].follow(pair.scope, *made, rows, numbers, number)
            for view, count in zip((train, held), found, strict=True):
                some = AlignmentCounts(count, dict.fromkeys(pair.names, 0))
                pair.on(view.dataset).note_alignment(some)
    aligned = {each["aligned"] for each in counts.values()}
    assert len(aligned) == 1, "all parties hold out the same places of one order"
    unaligned = {party: each["unaligned"] for party, each in counts.items()}
    completed -= int((rows >= real).sum())
    train.note_alignment(AlignmentCounts(aligned.pop(), unaligned, completed))
    held.note_alignment(
        AlignmentCounts(len(rows), {party: each["alone"] for party, each in counts.items()})
    )
    return train, held


def _pairs(fed: Federation) -> list[Federation]:
    """Of more than two parties those two that are aligned as two."""
    if len(fed.names) < 3:
        return []
    pairs = [fed.only(*two) for two in itertools.combinations(fed.names, 2)]
    return [pair for pair in pairs if pair.is_aligned]


def number_folds(
    fed: Federation,
    party: str,
    folds: int,
    seed: int,
    shared: bool = True,
    alone: bool = True,
    least: int = 0,
    partners: Sequence[str] = (),
) -> dict[str, np.ndarray] | None:
    """Let a party know to which fold each of its rows belongs, before the first one is made.

    shared, alone: of rows known to all, and of those that only it has; partners: and of those that
    it and each of these know. Told are the folds of these, by the scopes of the two; None, and
    nothing is noted, where a fold would not have `least` labelled rows of either kind.
    """
    real = fed.alignment.aligned - fed.alignment.completed if shared else 0
    scopes = [fed.only(party, name).scope for name in partners]
    with fed.workers(FoldWorker, parties=[party]) as group:
        at, drawn = group[party], _drawn(real, folds, seed)
        if not at.number(drawn, folds, alone, scopes, least):
            return None
        return {scope: at.pair_folds(scope) for scope in scopes}


def _drawn(rows: int, folds: int, seed: int) -> np.ndarray:
    """The fold of each place in the common order."""
    found = np.empty(rows, np.int64)
    found[np.random.default_rng([seed, folds]).permutation(rows)] = np.arange(rows) % folds
    return found


def forget(*folds: Federation) -> None:
    """Drop the tables of folds at all parties."""
    with folds[0].workers(FoldWorker) as group:
        group.forget([each.dataset for each in folds])


declare("auto", FoldWorker)


def simplest(values: Sequence[Sequence[float]]) -> int:
    """The first candidate within a standard error of the best; of each, its values in all folds.

    The error is that of their difference, fold by fold; one fold has none, and the best is taken.
    """
    folds, best = len(values[0]), max(values, key=statistics.fmean)
    for number, own in enumerate(values):
        behind = [top - value for top, value in zip(best, own, strict=True)]
        error = statistics.stdev(behind) / math.sqrt(folds) if folds > 1 else 0.0
        if statistics.fmean(behind) <= error:
            return number
    raise AssertionError("the best is not behind itself")
