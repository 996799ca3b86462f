"""Alignments and mended tables kept at the parties, so that a run can go on with them.

The common order of aligned rows comes from fresh secrets; aligned anew, row 17 would be somebody
else, and a checkpoint's validation rows would turn into training rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedmend._files import beside
from fedmend._json import write_json
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
        own = self.alignment
        self._write_arrays(path, "npz", aligned=own.aligned, unaligned=own.unaligned)

    @exposed(kind="count", over_rows=False)
    def load(self, path: str) -> dict[str, int]:
        kept = Alignment(**self._read_arrays(path, "npz"))
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

    def _write_arrays(self, path: str, ending: str, **arrays: np.ndarray) -> None:
        target = self._file(path, ending)
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside(target) as part, part.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def _read_arrays(self, path: str, ending: str) -> dict[str, np.ndarray]:
        """Nothing where no such file was kept."""
        file = self._file(path, ending)
        if ending != "npz" and not file.is_file():
            return {}
        with np.load(file, allow_pickle=False) as stored:
            return dict(stored)


def keep_alignment(fed: Federation, path: Path) -> None:
    """Let every party keep its side; a mark of ours says that all of them have."""
    with fed.workers(AlignmentKeeper) as group:
        group.save(str(path))
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{fed.scope}.kept").touch()


def restore_alignment(fed: Federation, path: Path) -> bool:
    """Take back what was kept; False when nothing (or not everything) was."""
    if not (path / f"{fed.scope}.kept").is_file():
        return False
    with fed.workers(AlignmentKeeper) as group:
        _note(fed, group.load(str(path)))
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

    ``.parquet``: the table. ``.settled``: there where its labels hold nothing that is not reported
    already. ``.labels.npz``, ``.own.fmw``, ``.confidence.npz``: how likely labels are, this party's
    own model, and how far completed cells are trusted, where it has them.
    """

    @exposed(kind="control")
    def save_table(self, path: str) -> None:
        self.save(path)
        site, dataset = self.site, self._dataset
        target = self._file(path, "parquet")
        part = target.with_name(f"{self.scope}.part.parquet")
        self.table.to_parquet(part, id=ID)
        part.replace(target)
        settled = self._file(path, "settled")
        settled.unlink(missing_ok=True)
        if site.labels.is_settled(dataset, site.tables[dataset]):
            settled.touch()
        belief, own = label_likelihood(site, dataset), own_model(site, dataset)
        if belief is not None:
            classes = np.array(json.dumps(list(belief.classes)))
            self._write_arrays(path, "labels.npz", classes=classes, likelihood=belief.likelihood)
        if own is not None:
            write_file(self._file(path, "own.fmw"), own.to_wire())
        cells = cell_confidence(site, dataset)
        if cells is not None:
            names, values = np.array(list(cells)), np.stack(list(cells.values()))
            self._write_arrays(path, "confidence.npz", names=names, values=values)

    @exposed(kind="count", over_rows=False)
    def load_table(self, path: str) -> dict[str, int]:
        from fedmend.data.readers import read

        site, dataset = self.site, self._dataset
        site.tables[dataset] = table = read(self._file(path, "parquet"), id=ID)
        if self._file(path, "settled").is_file():
            site.labels.settle(dataset, table)
        if belief := self._read_arrays(path, "labels.npz"):
            classes: tuple[Any, ...] = tuple(json.loads(belief["classes"].item()))
            keep_likelihood(site, dataset, LabelLikelihood(classes, belief["likelihood"]))
        if self._file(path, "own.fmw").is_file():
            own = read_file(self._file(path, "own.fmw"), site.name)
            keep_own_model(site, dataset, Part.from_wire(own))
        if cells := self._read_arrays(path, "confidence.npz"):
            by_name = dict(zip(cells["names"].tolist(), cells["values"], strict=True))
            keep_confidence(site, dataset, by_name)
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
