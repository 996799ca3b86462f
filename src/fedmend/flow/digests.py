"""Hashes of what a stage starts from and leaves: of files here, and of what is at the parties.

A plain hash of a table would let others test guesses about it. A party's hashes are therefore
keyed with a secret that it draws for the run and keeps: they tell whether something has changed,
and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from fedmend._files import write_whole
from fedmend.data.table import Table
from fedmend.errors import FedmendError
from fedmend.federation import Federation, Site, Worker, exposed
from fedmend.federation.bound import EVERY_RUN, declare
from fedmend.flow.manifest import hash_of

__all__ = ["DigestWorker", "files_here", "folders_of_parties", "forget_checkpoints", "tables_of"]

logger = logging.getLogger(__name__)

SALT = "salt"
_CHECKPOINT_FILES = ("epoch-*.fmw", "client*.fmw")


class DigestWorker(Worker):
    """Tells keyed hashes of this party's tables and of what it keeps in folders of the run."""

    def __init__(self, site: Site, scope: str = "train", *, keep: str) -> None:
        super().__init__(site, scope)
        self._secret = _secret(site.folder(keep))

    @exposed(kind="control")
    def tables(self, names: list[str]) -> dict[str, str]:
        """One hash for each table this party has of these."""
        return {
            name: self._keyed(_table_parts(self.site.tables[name]))
            for name in names
            if name in self.site.tables
        }

    @exposed(kind="control")
    def folders(self, paths: list[str]) -> dict[str, str]:
        """One hash for each of the folders that this party has kept something in."""
        found = {}
        for path in paths:
            folder = self.site.folder(path)
            if folder.is_dir():
                found[path] = self._keyed(_folder_parts(folder))
        return found

    @exposed(kind="control")
    def forget(self, paths: list[str]) -> None:
        """Remove checkpoints of trainings that are done; whatever else is in a folder stays."""
        for path in paths:
            folder = self.site.folder(path)
            for file in [each for form in _CHECKPOINT_FILES for each in folder.glob(form)]:
                file.unlink(missing_ok=True)
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _keyed(self, parts: Iterator[bytes]) -> str:
        keyed = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in parts:
            keyed.update(len(part).to_bytes(8, "big"))
            keyed.update(part)
        return keyed.hexdigest()[:32]


def _secret(folder: Path) -> bytes:
    path = folder / SALT
    if not path.is_file():
        write_whole(path, secrets.token_bytes(32))
    return path.read_bytes()


def _table_parts(table: Table) -> Iterator[bytes]:
    yield repr(
        (table.label, [(c.name, c.kind, c.categories) for c in table.schema.values()])
    ).encode()
    yield _column_bytes(pd.Series(table.ids))
    for name in table.frame.columns:
        yield _column_bytes(table.frame[name])
    for name, values in table.blocks.items():
        yield name.encode()
        yield np.ascontiguousarray(values).tobytes()


def _column_bytes(column: pd.Series) -> bytes:
    if column.dtype == object:  # of several types, maybe, which pandas does not hash
        return "\x1f".join(f"{type(each).__name__}:{each}" for each in column).encode()
    return pd.util.hash_pandas_object(column, index=False).to_numpy().tobytes()


def _folder_parts(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(".part"):
            yield path.relative_to(folder).as_posix().encode()
            yield path.read_bytes()


# ---------------------------------------------------------------- the coordinator's half


def tables_of(fed: Federation, keep: Path, names: list[str]) -> dict[str, str]:
    """``{"tables/bank/train": hash, …}`` of all parties."""
    with fed.workers(DigestWorker, keep=str(keep)) as crew:
        told = crew.tables(names)
    return {
        f"tables/{party}/{name}": value
        for party, own in told.items()
        for name, value in own.items()
    }


def folders_of_parties(fed: Federation, keep: Path, work: Path, paths: list[str]) -> dict[str, str]:
    """``{"stages/align@bank": hash, …}``: what the parties keep of these folders of the run."""
    with fed.workers(DigestWorker, keep=str(keep)) as crew:
        told = crew.folders([str(work / path) for path in paths])
    return {
        f"{Path(path).relative_to(work).as_posix()}@{party}": value
        for party, own in told.items()
        for path, value in own.items()
    }


def forget_checkpoints(fed: Federation, keep: Path, folder: Path) -> None:
    """Parties elsewhere remove their parts of the checkpoints in `folder`, which are not needed."""
    inside = [*folder.rglob("*")] if folder.is_dir() else []
    # Rounds keep a file here and, at the parties, a folder named after it.
    paths = [str(each) if each.is_dir() else f"{each}.parties" for each in inside]
    if not paths:
        return
    try:
        with fed.workers(DigestWorker, keep=str(keep)) as crew:
            crew.forget(sorted(paths))
    except FedmendError as error:  # the run is done, and all it was for
        logger.warning("checkpoints stay at the parties: %s", error)


def files_here(work: Path, paths: list[str], parties: tuple[str, ...]) -> dict[str, str]:
    """Hashes of files, and of all in folders but what is the parties' own."""
    found = {}
    for path in paths:
        place = work / path
        inside = sorted(place.rglob("*")) if place.is_dir() else [place]
        for each in inside:
            if not each.is_file() or each.name.endswith(".part"):
                continue
            if place.is_dir() and each.relative_to(place).parts[0] in parties:
                continue
            found[each.relative_to(work).as_posix()] = hash_of(each)
    return found


declare(EVERY_RUN, DigestWorker)
