"""Doing a stage, or taking up what it left: the part of a run that all stages share.

Whether something has changed is result by hashes, of files here and of what is at the parties. A
plain hash of a table would let others test guesses about it. A party's hashes are therefore keyed
with a secret that it draws for the run and keeps: they tell whether something has changed, and
nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend._files import write_whole
from fedmend._json import plain, write_json
from fedmend.data.table import Table
from fedmend.errors import FedmendError
from fedmend.federation import Federation, Site, Worker, exposed
from fedmend.federation.bound import EVERY_RUN, declare
from fedmend.flow.live import Listener
from fedmend.flow.manifest import CHECKPOINTS, Manifest, StageEntry, fingerprint, hash_of, now

logger = logging.getLogger(__name__)

SALT_FOLDER = "stages/salt"
_SALT = "salt"
_CHECKPOINT_FILES = ("epoch-*.fmw", "client*.fmw")


# ---------------------------------------------------------------- the party's half


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
    path = folder / _SALT
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


class Steps:
    """Goes through the stages of a run in its folder, and keeps the manifest."""

    def __init__(self, fed: Federation, manifest: Manifest, listener: Listener) -> None:
        self.fed = fed
        self.manifest = manifest
        self.folder = manifest.folder
        self.listener = listener
        self.done: list[tuple[str, str]] = []
        self.results: dict[str, Any] = {}

    def found(self, what: str, value: dict[str, Any]) -> None:
        """Keep what a stage found for the record: its overview, mending, correction or choice."""
        self.results[what] = value
        self.listener.found(what, value)

    def do(
        self,
        stage: str,
        make: Callable[[str], Mapping[str, Any] | None],
        *,
        stored: str | None = None,
        take_up: Callable[[dict[str, Any]], object] = lambda result: None,
        unit: str = "",
        title: str = "",
        settings: Mapping[str, Any],
        inputs: Mapping[str, str],
        paths: Sequence[str] = (),
        says: Callable[[dict[str, Any]], str] = lambda result: "",
    ) -> tuple[dict[str, Any], StageEntry]:
        """Make a stage's result, or take it up when nothing it depends on has changed.

        make: gets the fingerprint; what it returns is kept as JSON in the file `stored`, and read
        from there. take_up: gets what was read, to bring back what is elsewhere. paths: further
        files and folders of the run in which the result is.
        """
        given: dict[str, Any] = plain(settings)
        mark = fingerprint(stage, given, inputs)
        file = None if stored is None else self.folder / stored
        paths = [*paths, *([] if stored is None else [stored])]
        self.done.append((stage, unit))
        before = self.manifest.find(stage, unit)
        with in_stage(stage, title):
            if before is not None and before.fingerprint == mark:
                if self._outputs(paths) == before.outputs:
                    result = _read(file)
                    take_up(result)
                    before.reused = True
                    self.manifest.record(before)
                    self.listener.done(before)
                    return result, before
                logger.warning("what %s %s left was changed: it is done again", stage, unit)
            self.manifest.forget(stage, unit)
            entry = StageEntry(stage, unit, title, now(), fingerprint=mark, settings=given)
            entry.inputs = dict(inputs)
            with measured(self.fed) as cost:
                made = make(mark)
                if file is not None:
                    write_json(file, made)
            entry.seconds, entry.crossings, entry.bytes = cost.values()
            entry.outputs = self._outputs(paths)
            result = _read(file)
            entry.says = says(result)
            self.manifest.record(entry)
        self.listener.done(entry)
        return result, entry

    def tables(self) -> dict[str, str]:
        """``{"tables/bank/train": hash, …}`` of all parties, the inputs of the first stage."""
        with self._workers() as group:
            found = group.tables(["train", "test"])
        return {
            f"tables/{party}/{name}": value
            for party, own in found.items()
            for name, value in own.items()
        }

    def _workers(self) -> Any:
        return self.fed.workers(DigestWorker, keep=str(self.folder / SALT_FOLDER))

    def _outputs(self, paths: Sequence[str]) -> dict[str, str]:
        """Hashes of files here, and of what the parties keep of these folders of the run.

        ``{"stages/align/train.kept": hash, "stages/align@bank": hash, …}``
        """
        found = {}
        for path in paths:
            place = self.folder / path
            inside = sorted(place.rglob("*")) if place.is_dir() else [place]
            for each in inside:
                if not each.is_file() or each.name.endswith(".part"):
                    continue
                # What is the parties' own is theirs to tell.
                if place.is_dir() and each.relative_to(place).parts[0] in self.fed.names:
                    continue
                found[each.relative_to(self.folder).as_posix()] = hash_of(each)
        folders = [path for path in paths if not path.endswith((".json", ".html"))]
        if not folders:
            return found
        with self._workers() as group:
            kept = group.folders([str(self.folder / path) for path in folders])
        return found | {
            f"{Path(path).relative_to(self.folder).as_posix()}@{party}": value
            for party, own in kept.items()
            for path, value in own.items()
        }

    def forget_checkpoints(self) -> None:
        """Parties elsewhere remove their parts of the checkpoints, which are not needed."""
        folder = self.folder / CHECKPOINTS
        inside = [*folder.rglob("*")] if folder.is_dir() else []
        # Rounds keep a file here and, at the parties, a folder named after it.
        paths = [str(each) if each.is_dir() else f"{each}.parties" for each in inside]
        if not paths:
            return
        try:
            with self._workers() as group:
                group.forget(sorted(paths))
        except FedmendError as error:  # the run is done, and all it was for
            logger.warning("checkpoints stay at the parties: %s", error)


def _read(file: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = {} if file is None else json.loads(file.read_text(encoding="utf-8"))
    return found


@contextmanager
def measured(fed: Federation) -> Iterator[dict[str, Any]]:
    """What is done inside costs so many seconds, crossings and bytes; known when it is done."""
    ledger, cost = fed.ledger, dict[str, Any]()
    crossings, crossed, began = len(ledger), ledger.total_bytes(), time.perf_counter()
    yield cost
    cost["seconds"] = time.perf_counter() - began
    cost["crossings"] = len(ledger) - crossings
    cost["bytes"] = ledger.total_bytes() - crossed


@contextmanager
def in_stage(stage: str, title: str = "") -> Iterator[None]:
    """Errors inside name the stage they happened in."""
    try:
        yield
    except (FedmendError, OSError) as error:
        words = f"This was in the stage {stage!r}"
        # The inner place is the closer one.
        if not any(note.startswith(words) for note in getattr(error, "__notes__", ())):
            error.add_note(f"{words} ({title})" if title else words)
        raise


declare(EVERY_RUN, DigestWorker)
