"""A site's part of a checkpoint, and of which rows it is.

Rows of the same shape would do for going on from anybody's checkpoint, and nothing would tell. So
every part has a digest of what its site learns from: cells, labels and their order. It is made,
kept and compared at the site, and never leaves it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedmend.data.encode import as_numbers, as_written
from fedmend.data.table import Table
from fedmend.errors import ResumeError
from fedmend.federation import Site, exposed
from fedmend.split.parts import Part, load_part, part_of, read_file, save_part, write_file

_ROWS = "made of"


def digest_of_rows(table: Table, places: np.ndarray | None = None) -> str:
    """A table's cells in a word, and with `places` which of its rows are used.

    As values and categories: a table that was kept and read again has other types here and there.
    """
    found = hashlib.blake2b(digest_size=16)
    for name, column in table.schema.items():
        cells = table.blocks[name] if column.is_block else as_numbers(column, table.frame[name])
        categories = [str(as_written(each)) for each in column.categories or ()]
        found.update(repr((name, column.kind, categories)).encode())
        found.update(np.ascontiguousarray(cells).reshape(-1).data)
    if places is not None:
        found.update(np.ascontiguousarray(places, np.int64).data)
    return found.hexdigest()


def of_rows(state: Mapping[str, Any], rows: str) -> dict[str, Any]:
    """What is kept of a training, with the digest of its rows."""
    return {**state, _ROWS: rows}


def require_rows(saved: Mapping[str, Any], rows: str, party: str | None) -> dict[str, Any]:
    """What was kept, if it is of these rows."""
    state = dict(saved)
    if state.pop(_ROWS, "") != rows:  # earlier versions kept no digest
        raise ResumeError(
            f"party {party!r}: the checkpoint was made with other rows than its table has now "
            "(other cells, labels or order), or by an earlier version. "
            "Mend: resume with the table and the alignment it was made with, or begin anew"
        )
    return state


class Checkpointed:
    """What a training can go on from, at a party or, where `party` is None, at the coordinator.

    made_of: the digest of the rows it learns from.
    """

    party: str | None = None
    made_of: Any = ""

    def _folder(self, path: str) -> Path:
        raise NotImplementedError

    @exposed(kind="control")
    def save_checkpoint(self, path: str, epoch: int) -> None:
        write_file(self._checkpoint(path, epoch), of_rows(self._state(), self.made_of))
        self._checkpoint(path, epoch - 2).unlink(missing_ok=True)

    @exposed(kind="control")
    def load_checkpoint(self, path: str, epoch: int) -> None:
        saved = read_file(self._checkpoint(path, epoch), self.party)
        self._restore(require_rows(saved, self.made_of, self.party))

    def _state(self) -> dict[str, Any]:
        return {}

    def _restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `_state` gave."""

    def _checkpoint(self, path: str, epoch: int) -> Path:
        return self._folder(path) / f"epoch-{epoch:d}.fmw"


class KeepsPart(Checkpointed):
    """At a party: its part of a model, in memory and on disk."""

    site: Site
    model: str
    part_type: ClassVar[type[Any]] = Part

    def _part(self) -> Any:
        return part_of(self.site, self.model)

    @exposed(kind="control")
    def save(self, path: str, member: str = "") -> None:
        save_part(self.site, self.model, path, member)

    @exposed(kind="control")
    def load(self, path: str, member: str = "") -> None:
        load_part(self.site, self.model, path, self.part_type, member)

    def _folder(self, path: str) -> Path:
        return self.site.folder(path)
