"""Alignments and mended tables kept at the parties, so that a run can go on with them.

The common order of aligned rows comes from fresh secrets; aligned anew, row 17 would be somebody
else, and a checkpoint's validation rows would turn into training rows.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedmend._json import write_json
from fedmend.errors import ResumeError
from fedmend.federation import AlignmentCounts, Federation, Worker, exposed
from fedmend.federation.bound import EVERY_RUN, declare
from fedmend.federation.site import Alignment
from fedmend.split.belief import (
    Belief,
    cell_confidence,
    keep_belief,
    keep_confidence,
    label_belief,
)
from fedmend.split.parts import Part, keep_own_model, own_model, read_file, write_file

__all__ = [
    "AlignmentKeeper",
    "CompletionKeeper",
    "keep_alignment",
    "keep_completion",
    "restore_alignment",
    "restore_completion",
]

ID = "fedmend.id"


class AlignmentKeeper(Worker):
    """Writes this party's side of an alignment into its own folder, and takes it back."""

    @exposed(kind="control")
    def save(self, path: str) -> None:
        folder = self.site.folder(path)
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{self.scope}.part.npz"
        alignment = self.alignment
        np.savez(part, aligned=alignment.aligned, unaligned=alignment.unaligned)
        part.replace(self._file(path))

    @exposed(kind="count", over_rows=False)
    def load(self, path: str) -> dict[str, int]:
        with np.load(self._file(path), allow_pickle=False) as stored:
            kept = Alignment(stored["aligned"], stored["unaligned"])
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

    def _file(self, path: str) -> Path:
        return self.site.folder(path) / f"{self.scope}.npz"


def keep_alignment(fed: Federation, path: Path) -> None:
    """Let every party keep its side; a mark of ours says that all of them have."""
    with fed.workers(AlignmentKeeper) as crew:
        crew.save(str(path))
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{fed.scope}.kept").touch()


def restore_alignment(fed: Federation, path: Path) -> bool:
    """Take back what was kept; False when nothing (or not everything) was."""
    if not (path / f"{fed.scope}.kept").is_file():
        return False
    with fed.workers(AlignmentKeeper) as crew:
        _note(fed, crew.load(str(path)))
    return True


def _note(fed: Federation, counts: dict[str, dict[str, int]], completed: int = 0) -> None:
    aligned = {each["aligned"] for each in counts.values()}
    if len(aligned) != 1:
        raise ResumeError("the parties kept different alignments. Mend: start anew with --force")
    unaligned = {party: each["unaligned"] for party, each in counts.items()}
    fed.note_alignment(AlignmentCounts(aligned.pop(), unaligned, completed))


# ---------------------------------------------------------------- mended tables


class CompletionKeeper(AlignmentKeeper):
    """Writes this party's mended table, with its alignment, into its own folder, and back."""

    @exposed(kind="control")
    def save_table(self, path: str) -> None:
        self.save(path)
        target = self._table_file(path)
        part = target.with_name(f"{self.scope}.part.parquet")
        self.table.to_parquet(part, id=ID)
        part.replace(target)
        settled = self._settled_file(path)
        if self.site.labels.is_settled(self._dataset, self.site.tables[self._dataset]):
            settled.touch()
        else:
            settled.unlink(missing_ok=True)
        belief = label_belief(self.site, self._dataset)
        if belief is not None:
            classes = np.array(json.dumps(list(belief.classes)))
            np.savez(self._belief_file(path), classes=classes, likelihood=belief.likelihood)
        own = own_model(self.site, self._dataset)
        if own is not None:
            write_file(self._model_file(path), own.to_wire())
        cells = cell_confidence(self.site, self._dataset)
        if cells is not None:
            names, values = np.array(list(cells)), np.stack(list(cells.values()))
            np.savez(self._cells_file(path), names=names, values=values)

    @exposed(kind="count", over_rows=False)
    def load_table(self, path: str) -> dict[str, int]:
        from fedmend.data.readers import read

        self.site.tables[self._dataset] = table = read(self._table_file(path), id=ID)
        if self._settled_file(path).is_file():
            self.site.labels.settle(self._dataset, table)
        if self._belief_file(path).is_file():
            with np.load(self._belief_file(path), allow_pickle=False) as stored:
                classes = tuple(json.loads(stored["classes"].item()))
                keep_belief(self.site, self._dataset, Belief(classes, stored["likelihood"]))
        if self._model_file(path).is_file():
            own = Part.from_wire(read_file(self._model_file(path), self.site.name))
            keep_own_model(self.site, self._dataset, own)
        if self._cells_file(path).is_file():
            with np.load(self._cells_file(path), allow_pickle=False) as stored:
                cells = dict(zip(stored["names"].tolist(), stored["values"], strict=True))
            keep_confidence(self.site, self._dataset, cells)
        return self.load(path)

    @property
    def _dataset(self) -> str:
        return self.scope.partition("@")[0]

    def _belief_file(self, path: str) -> Path:
        return self.site.folder(path) / f"{self.scope}.labels.npz"

    def _settled_file(self, path: str) -> Path:
        """There where the table's labels hold nothing that is not told already."""
        return self.site.folder(path) / f"{self.scope}.settled"

    def _model_file(self, path: str) -> Path:
        return self.site.folder(path) / f"{self.scope}.own.fmw"

    def _cells_file(self, path: str) -> Path:
        return self.site.folder(path) / f"{self.scope}.confidence.npz"

    def _table_file(self, path: str) -> Path:
        return self.site.folder(path) / f"{self.scope}.parquet"


def keep_completion(fed: Federation, path: Path) -> None:
    """Let every party keep its table of a mended federation; here, what is said of it."""
    with fed.workers(CompletionKeeper) as crew:
        crew.save_table(str(path))
    write_json(path / f"{fed.scope}.json", {"completed": fed.alignment.completed})


def restore_completion(fed: Federation, path: Path) -> None:
    """Take back what :func:`keep_completion` kept."""
    stored = json.loads((path / f"{fed.scope}.json").read_text(encoding="utf-8"))
    with fed.workers(CompletionKeeper) as crew:
        _note(fed, crew.load_table(str(path)), int(stored["completed"]))


declare(EVERY_RUN, AlignmentKeeper)
for stage in ("fedpsg-pum", "correct"):
    declare(stage, CompletionKeeper)
