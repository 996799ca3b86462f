"""The merge of FedPSG-PUM: completed rows below a party's own, in one table and in its files.

What a model can be trained on is not all that was completed. A generated cell, or one predicted
hardly better than by the mean, looks like any other to a model, which then learns that the column
says nothing: it would have been better not to fill it. So in the table of the mended federation
cells of columns whose predictions have little *skill* are missing; the exported table has them all,
with origin and confidence.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedmend.data._parts import retyped
from fedmend.data.restore import restore, restore_numbers
from fedmend.data.schema import Column, Schema
from fedmend.data.table import Table
from fedmend.errors import AlignmentError, ConfigError
from fedmend.federation.federation import AlignmentCounts, Federation
from fedmend.federation.site import Alignment, Site
from fedmend.federation.worker import Worker, exposed
from fedmend.generate.given import quiet
from fedmend.methods.completion.rows import ORIGINS, Completion, completion_of
from fedmend.split.belief import keep_confidence

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMATS", "MergeWorker", "merge"]

FORMATS = ("parquet", "csv")


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
        target: Path = folder / f"completed.{format}"
        ids = _free("id", table.names)
        table.to_csv(target, ids) if format == "csv" else table.to_parquet(target, ids)
        return table.n_rows


def merge(
    fed: Federation, run: str, sources: list[str], name: str, least_skill: float | None
) -> Federation:
    """The mended federation: the completed rows of `sources` are aligned rows like the others."""
    mended = fed.on(name)
    rows = {a: fed.on(f"{fed.dataset}@{run}-{a}") for a in sources}
    with fed.workers(MergeWorker, run=run) as crew:
        segments = [[a, view.scope] for a, view in rows.items()]
        counts = crew.merge(name, mended.scope, segments, least_skill)
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
    kept = _kept(made, least_skill)
    columns = {
        name: made.values[name] if name in kept else _nothing(table.schema[name], len(made))
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
    """Per feature how far each cell is believed: of the table's own rows, or of completed ones."""
    if made is None:
        return {name: np.ones(len(table)) for name in table.feature_names}
    kept = _kept(made, least_skill)
    nothing = np.zeros(len(made))
    return {n: made.confidence[n] if n in kept else nothing for n in table.feature_names}


def _nothing(column: Column, rows: int) -> pd.Series:
    if column.is_categorical:
        return restore(column, np.full(rows, -1))
    return restore_numbers(column, np.zeros(rows), np.ones(rows, dtype=bool))


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
    if isinstance(parts[0].dtype, pd.CategoricalDtype):
        return pd.Series(
            pd.Categorical(
                [value for part in parts for value in part],
                categories=parts[0].dtype.categories,
                ordered=parts[0].dtype.ordered,
            )
        )
    filled = [part for part in parts if len(part)] or parts[:1]
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
