"""Alignments and mended tables kept at the parties, so that a run can go on with them.

The common order of aligned rows comes from fresh secrets; aligned anew, row 17 would be somebody
else, and a checkpoint's validation rows would turn into training rows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmend._json import write_json
from fedmend.data.readers import read
from fedmend.errors import ResumeError
from fedmend.federation import AlignmentCounts, Federation, Worker, exposed
from fedmend.federation.bound import EVERY_RUN, declare
from fedmend.federation.site import Alignment
from fedmend.split.labels import (
    LabelLikelihood,
    cell_confidence,
    keep_confidence,
    keep_likelihood,
    label_likelihood,
)
from fedmend.split.parts import Part, keep_own_model, own_model, read_file, write_file

ID = "fedmend.id"


class AlignmentKeeper(Worker):
    """Writes this party's side of an alignment into its own folder, and takes it back."""

    @exposed(kind="control")
    def save(self, path: str) -> None:
        write_file(self._file(path, "fmw"), vars(self.alignment))

    @exposed(kind="count", over_rows=False)
    def load(self, path: str) -> dict[str, int]:
        kept = Alignment(**read_file(self._file(path, "fmw"), self.site.name))
        rows = len(self.table)
        everything = np.sort(np.concatenate([kept.aligned, kept.unaligned]))
        if not np.array_equal(everything, np.arange(rows)):
            raise ResumeError(
                f"party {self.site.name!r}: the table {self.scope!r} has {rows:,} rows, "
                f"{len(everything):,} when the run began. Mend: bring the table back, "
                "or start anew with --force"
            )
        self.site.alignments[self.scope] = kept
        return {"aligned": len(kept.aligned), "unaligned": len(kept.unaligned)}

    def _file(self, path: str, ending: str) -> Path:
        return self.site.folder(path) / f"{self.scope}.{ending}"


def keep_alignment(fed: Federation, path: Path) -> None:
    """Let every party keep its side; a mark of ours says that all of them have."""
    with fed.workers(AlignmentKeeper) as group:
        group.save(str(path))
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{fed.scope}.kept").touch()


def restore_alignment(fed: Federation, path: Path, *, same_order: bool = False) -> bool:
    """Take back what was kept; False when nothing (or not everything) was."""
    if not (path / f"{fed.scope}.kept").is_file():
        return False
    with fed.workers(AlignmentKeeper) as group:
        _note(fed, group.load(str(path)))
    fed.note_alignment(replace(fed.alignment, same_order=same_order))
    return True


def _note(fed: Federation, counts: dict[str, dict[str, int]], completed: int = 0) -> None:
    aligned = {each["aligned"] for each in counts.values()}
    if len(aligned) != 1:
        raise ResumeError("the parties kept different alignments. Mend: start anew with --force")
    unaligned = {party: each["unaligned"] for party, each in counts.items()}
    fed.note_alignment(AlignmentCounts(aligned.pop(), unaligned, completed))


# ---------------------------------------------------------------- mended tables


class CompletionKeeper(AlignmentKeeper):
    """Writes this party's mended table, with all that belongs to it, into its folder, and back.

    ``.parquet``: the table. ``.mended.fmw``: whether its labels hold nothing that is not reported
    already; how likely labels are, this party's own model, and how far completed cells are
    trusted, where it has them.
    """

    @exposed(kind="control")
    def save_table(self, path: str) -> None:
        self.save(path)
        site, dataset = self.site, self._dataset
        target = self._file(path, "parquet")
        part = target.with_name(f"{self.scope}.part.parquet")
        self.table.to_parquet(part, id=ID)
        part.replace(target)
        belief, own = label_likelihood(site, dataset), own_model(site, dataset)
        write_file(
            self._file(path, "mended.fmw"),
            {
                "settled": site.labels.is_settled(dataset, site.tables[dataset]),
                "likelihood": belief and [belief.classes, belief.likelihood],
                "own": own and own.to_wire(),
                "confidence": cell_confidence(site, dataset),
            },
        )

    @exposed(kind="count", over_rows=False)
    def load_table(self, path: str) -> dict[str, int]:
        site, dataset = self.site, self._dataset
        site.tables[dataset] = table = read(self._file(path, "parquet"), id=ID)
        kept = read_file(self._file(path, "mended.fmw"), site.name)
        if kept["settled"]:
            site.labels.settle(dataset, table)
        if kept["likelihood"]:
            keep_likelihood(site, dataset, LabelLikelihood(*kept["likelihood"]))
        if kept["own"]:
            keep_own_model(site, dataset, Part.from_wire(kept["own"]))
        if kept["confidence"]:
            keep_confidence(site, dataset, kept["confidence"])
        return self.load(path)

    @property
    def _dataset(self) -> str:
        return self.scope.partition("@")[0]


def keep_completion(fed: Federation, path: Path) -> None:
    """Let every party keep its table of a mended federation; here, what is said of it."""
    with fed.workers(CompletionKeeper) as group:
        group.save_table(str(path))
    write_json(path / f"{fed.scope}.json", {"completed": fed.alignment.completed})


def restore_completion(fed: Federation, path: Path) -> None:
    """Take back what :func:`keep_completion` kept."""
    stored = json.loads((path / f"{fed.scope}.json").read_text(encoding="utf-8"))
    with fed.workers(CompletionKeeper) as group:
        _note(fed, group.load_table(str(path)), int(stored["completed"]))


declare(EVERY_RUN, AlignmentKeeper)
for stage in ("fedpsg-pum", "correct"):
    declare(stage, CompletionKeeper)
