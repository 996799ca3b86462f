"""Rows that only A has, completed at B: their secret order, B's columns for them, the merged table.

B knows A's rows by handles alone: random numbers drawn from a key that only A and B share, in an
order that A draws for the run. For every cell B keeps where it came from and how far it deserves
trust. Nothing of this leaves B; what a coordinator sees are counts and means.

The merge puts the completed rows below a party's own, in one table and in its files. What a model
can be trained on is not all that was completed. A generated cell, or one predicted hardly better
than by the mean, looks like any other to a model, which then learns that the column says nothing:
it would have been better not to fill it. So in the table of the mended federation cells of columns
whose predictions have little *skill* are missing; the exported table has them all, with origin and
confidence.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fedmend.data.encode import from_numbers
from fedmend.data.schema import Column, Schema
from fedmend.data.table import Table, retyped
from fedmend.errors import AlignmentError, ConfigError, DataError, NotFitted
from fedmend.federation.federation import AlignmentCounts, Federation
from fedmend.federation.site import Alignment, Site
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import Worker, exposed
from fedmend.generate.base import quiet
from fedmend.secure.channel import SealingWorker, introduce
from fedmend.secure.keys import mask_stream, secret_permutation
from fedmend.split.labels import keep_confidence

FORMATS = ("parquet", "csv")
ORIGINS = ("observed", "predicted", "filled", "generated")
OBSERVED, PREDICTED, FILLED, GENERATED = range(len(ORIGINS))


@dataclass
class Completion:
    """B's columns for the rows that only one other party has, in that party's order of the run.

    handles: what B calls the rows. values, origins (positions in `ORIGINS`) and confidence (0 to
    1): per column one entry a row. skill: per column the share of the error of always saying the
    mean, or the shares of the classes, that the predictions spared on rows held out; 0 for
    generated columns, and of those in `untold` it stays here. trial: what was predicted, without
    their help, for some rows of B's own, at `trial_rows` of its table.
    """

    handles: np.ndarray
    values: dict[str, pd.Series] = field(default_factory=dict)
    origins: dict[str, np.ndarray] = field(default_factory=dict)
    confidence: dict[str, np.ndarray] = field(default_factory=dict)
    skill: dict[str, float] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)
    trial: dict[str, pd.Series] = field(default_factory=dict)
    trial_rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.handles)

    def put(
        self,
        name: str,
        values: pd.Series,
        origins: np.ndarray,
        confidence: np.ndarray,
        skill: float = 0.0,
    ) -> None:
        if not len(values) == len(origins) == len(confidence) == len(self):
            raise DataError(
                f"{len(values)} cells for {len(self)} rows", column=name, mend="one for each row"
            )
        self.values[name] = values.reset_index(drop=True)
        self.origins[name] = np.asarray(origins, dtype=np.int8)
        self.confidence[name] = np.asarray(confidence, dtype=np.float64)
        self.skill[name] = float(skill)


def completion_key(run: str, a: str) -> str:
    return f"{run}:completion:{a}"


def completion_of(site: Site, run: str, a: str) -> Completion:
    """What this site has completed for the rows of party `a` in a run."""
    found = site.state.get(completion_key(run, a))
    if not isinstance(found, Completion):
        raise NotFitted(
            f"party {site.name!r} holds no completed rows of {a!r}. Mend: fit FedPSGPUM first"
        )
    return found


# ---------------------------------------------------------------------------------- rows and names


class RowsWorker(SealingWorker):
    """Both sides: which of A's rows are completed, in which order, and under which handles."""

    conversation = "completion"

    def __init__(self, site: Site, scope: str = "train", *, run: str, seeded: bool = False) -> None:
        super().__init__(site, scope)
        self.run = run
        self.seeded = seeded

    @exposed(kind="count")
    def shuffle(self, scope: str) -> int:
        """A: its rows that nobody else knows, in an order of this run; tells how many."""
        rows = np.setdiff1d(self.alignment.unaligned, self._claimed())
        if self.seeded:
            order = self.site.rng("order of completed rows").permutation(len(rows))
        else:
            order = secret_permutation(len(rows))
        self.site.alignments[scope] = Alignment(self.alignment.aligned, rows[order])
        return len(rows)

    @exposed(kind="control")
    def follow(self, scope: str, like: str) -> None:
        """B: its own rows are in the new scope as they are in another."""
        self.site.alignments[scope] = self.site.alignments[like]

    @exposed(kind="control")
    def name_rows(self, other: str, count: int) -> None:
        """Both: the handles of `count` rows, from the key that the two share."""
        seed = self.shared_seed(other, f"handles of {self.run}")
        self.site.state[f"{self.run}:handles:{other}"] = mask_stream(seed, (count,))

    # ------------------------------------------------------------------ two of many parties

    @exposed(kind="hashed-id")
    def share_known(self, to: str, rows_scope: str, pair_like: str, pair_scope: str) -> Sealed:
        """A: which of its rows B knows by an alignment of the two, and open the scope of the rest.

        Encrypted for B: per row of the run's order the position among the pair's aligned rows, or
        -1. B learns the order of rows that both know to be common, and nothing of the others.
        """
        pair = self.site.alignments[pair_like]
        rows = self.site.alignments[rows_scope].unaligned
        place = np.full(len(self.table), -1, dtype=np.int64)
        place[pair.aligned] = np.arange(len(pair.aligned))
        known = place[rows]
        self.site.alignments[pair_scope] = Alignment(pair.aligned, rows[known < 0])
        return self.seal(known, to=to, kind="hashed-id")

    @exposed(kind="count", takes={"message": "hashed-id"})
    def take_known(self, message: Sealed, sender: str, pair_like: str, pair_scope: str) -> int:
        """B: its own rows among A's are no longer to be completed; tells how many A's rest is."""
        known = self.open(message, sender=sender, kind="hashed-id")
        pair = self.site.alignments[pair_like]
        rows = np.where(known >= 0, pair.aligned[known], -1)
        self.site.state[f"{self.run}:known:{sender}"] = rows
        claimed = np.concatenate([self._claimed(), rows[rows >= 0]])
        self.site.state[f"{self.run}:claimed"] = claimed
        self.site.alignments[pair_scope] = pair
        return int((rows < 0).sum())

    def _claimed(self) -> np.ndarray:
        """Own rows that were joined to another party's: nobody is to be in the table twice."""
        claimed: np.ndarray = self.site.state.get(f"{self.run}:claimed", np.zeros(0, np.int64))
        return claimed


def open_rows(fed: Federation, a: str, run: str) -> dict[str, Federation]:
    """Per other party a view of the federation in which A's rows have the run's order and names.

    Where A and B have aligned their tables as two (``align(fed.only(a, b))``), rows that B knows
    are not completed but joined.
    """
    others = [name for name in fed.names if name != a]
    rows = fed.on(f"{fed.dataset}@{run}-{a}")
    views = {}
    with fed.workers(RowsWorker, run=run, seeded=fed.reproducible) as workers:
        introduce(workers)
        count = workers[a].shuffle(rows.scope)
        counts = {name: fed.alignment.unaligned[name] for name in others}
        rows.note_alignment(AlignmentCounts(fed.alignment.aligned, {a: count, **counts}))
        for b in others:
            pair = fed.only(a, b)
            if pair.scope == fed.scope or not pair.is_aligned:
                workers[b].follow(rows.scope, fed.scope)
                views[b] = rows
            else:
                view = fed.only(a, b).on(f"{fed.dataset}@{run}-{a}-{b}")
                message = workers[a].share_known(b, rows.scope, pair.scope, view.scope)
                left = workers[b].take_known(message, a, pair.scope, view.scope)
                unaligned = {a: left, b: pair.alignment.unaligned[b]}
                view.note_alignment(AlignmentCounts(pair.alignment.aligned, unaligned))
                views[b] = view
            left = views[b].alignment.unaligned[a]
            workers[a].name_rows(b, left)
            workers[b].name_rows(a, left)
    return views


# ---------------------------------------------------------------------------------- the merge


class MergeWorker(Worker):
    """Every party: its table of the mended federation, with the rows completed here at its end."""

    def __init__(self, site: Site, scope: str = "train", *, run: str) -> None:
        super().__init__(site, scope)
        self.run = run

    @exposed(kind="count")
    def merge(
        self, dataset: str, scope: str, segments: list[list[str]], least_skill: float | None
    ) -> dict[str, int]:
        """Store the table `dataset` and its alignment: the aligned rows, then each party's.

        Completed columns of less than `least_skill` are missing in it; None keeps all. Tells how
        many rows are aligned now, and how many are not.
        """
        own = self.alignment
        aligned, tables, end = [own.aligned], [self.table], len(self.table)
        trust = [_confidence(self.table, None)]
        unaligned = own.unaligned
        for a, rows_scope in segments:
            if a == self.site.name:
                rows = self.site.alignments[rows_scope].unaligned
                unaligned = np.setdiff1d(unaligned, rows)
            else:
                made = completion_of(self.site, self.run, a)
                known = self.site.state.get(f"{self.run}:known:{a}")
                rows = np.full(len(made), -1) if known is None else known.copy()
                fresh = rows < 0
                rows[fresh] = np.arange(end, end + len(made))
                end += len(made)
                unaligned = np.setdiff1d(unaligned, rows[~fresh])
                tables.append(_completed_rows(self.table, made, least_skill))
                trust.append(_confidence(self.table, made, least_skill))
            aligned.append(rows)
        self.site.tables[dataset] = _stacked(tables)
        if len(tables) > 1:
            joined = {name: np.concatenate([each[name] for each in trust]) for name in trust[0]}
            keep_confidence(self.site, dataset, joined)
        self.site.alignments[scope] = Alignment(np.concatenate(aligned), unaligned)
        return {
            "aligned": len(self.site.alignments[scope].aligned),
            "unaligned": len(unaligned),
        }

    @exposed(kind="prediction")
    def export(self, path: str, format: str, parties: list[str]) -> int:
        """Write own and completed rows, origin and confidence beside; tells how many rows.

        The file stays in this party's folder. What is in it are guesses about other parties'
        people, so a policy that lets no predictions out writes none either.
        """
        if format not in FORMATS:
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
        parts = [_with_origin(self.table, None)]
        for a in parties:
            made = completion_of(self.site, self.run, a)
            parts.append(_with_origin(_completed_rows(self.table, made), made))
        table = _stacked(parts)
        folder = self.site.folder(path)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"completed.{format}"
        ids = _free("id", table.names)
        table.to_csv(target, ids) if format == "csv" else table.to_parquet(target, ids)
        return table.n_rows


def merge(
    fed: Federation, run: str, sources: list[str], name: str, least_skill: float | None
) -> Federation:
    """The mended federation: the completed rows of `sources` are aligned rows like the others."""
    mended = fed.on(name)
    rows = {a: fed.on(f"{fed.dataset}@{run}-{a}") for a in sources}
    with fed.workers(MergeWorker, run=run) as workers:
        segments = [[a, view.scope] for a, view in rows.items()]
        counts = workers.merge(name, mended.scope, segments, least_skill)
    aligned = {each["aligned"] for each in counts.values()}
    if len(aligned) != 1:
        raise AlignmentError(
            f"the parties have {sorted(aligned)} rows after the merge. Mend: align and fit again"
        )
    unaligned = {party: each["unaligned"] for party, each in counts.items()}
    total = aligned.pop()
    completed = fed.alignment.completed + total - fed.alignment.aligned
    mended.note_alignment(AlignmentCounts(total, unaligned, completed))
    return mended


def _completed_rows(table: Table, made: Completion, least_skill: float | None = None) -> Table:
    """The completed rows with all columns of the table: no label, blocks at their mean."""
    kept, nothing = _kept(made, least_skill), np.full(len(made), np.nan)
    columns = {
        name: made.values[name] if name in kept else from_numbers(table.schema[name], nothing)
        for name in table.frame.columns
    }
    blocks = {
        name: np.broadcast_to(
            values.mean(axis=0).astype(values.dtype), (len(made), *values.shape[1:])
        )
        for name, values in table.blocks.items()
    }
    frame = pd.DataFrame(columns, index=pd.RangeIndex(len(made)))
    return Table._trusted(made.handles, table.schema, table.label, frame, blocks)


def _kept(made: Completion, least_skill: float | None) -> list[str]:
    """The completed columns that are not left out for want of skill."""
    return [name for name in made.values if least_skill is None or made.skill[name] >= least_skill]


def _confidence(
    table: Table, made: Completion | None, least_skill: float | None = None
) -> dict[str, np.ndarray]:
    """Per feature how far each cell is trusted: of the table's own rows, or of completed ones."""
    if made is None:
        return {name: np.ones(len(table)) for name in table.feature_names}
    kept = _kept(made, least_skill)
    nothing = np.zeros(len(made))
    return {n: made.confidence[n] if n in kept else nothing for n in table.feature_names}


def _stacked(tables: list[Table]) -> Table:
    """The rows of all tables, which have the same columns, one below the other."""
    if len(tables) == 1:
        return tables[0]
    first = tables[0]
    frame = pd.DataFrame(
        {
            name: _concatenated([table.frame[name] for table in tables])
            for name in first.frame.columns
        }
    )
    blocks = {
        name: np.concatenate([table.blocks[name] for table in tables]) for name in first.blocks
    }
    ids = np.concatenate([table.ids for table in tables])
    schema = retyped(first.schema, frame)
    with quiet():
        return Table(ids, frame, schema=schema, label=first.label, blocks=blocks)


def _concatenated(parts: list[pd.Series]) -> pd.Series:
    filled = [part for part in parts if len(part)] or parts[:1]
    if isinstance(parts[0].dtype, pd.CategoricalDtype):
        filled = [part.astype(parts[0].dtype) for part in filled]
    return pd.concat(filled, ignore_index=True)


def _with_origin(table: Table, made: Completion | None) -> Table:
    """The table with two more columns for every completed one."""
    columns = dict(table.schema)
    frame = {name: table.frame[name] for name in table.frame.columns}
    for name, column in table.features.schema.items():
        if column.is_block:
            continue
        origin, trust = _free(f"{name}.origin", columns), _free(f"{name}.confidence", columns)
        columns[origin] = Column(origin, "nominal", ORIGINS, dtype="object")
        columns[trust] = Column(trust, "continuous", dtype="float64")
        if made is None:
            numbers, confidence = np.zeros(table.n_rows, np.int64), np.ones(table.n_rows)
        else:
            numbers, confidence = made.origins[name], made.confidence[name]
        frame[origin] = pd.Series(np.array(ORIGINS, dtype=object)[numbers])
        frame[trust] = pd.Series(confidence)
    return Table._trusted(
        table.ids, Schema(columns.values()), table.label, pd.DataFrame(frame), table.blocks
    )


def _free(name: str, taken: Container[str]) -> str:
    """The name, with so many underscores that no column has it."""
    while name in taken:
        name += "_"
    return name
