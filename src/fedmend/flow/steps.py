"""Doing a stage, or taking up what it left: the part of a run that all stages share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from fedmend._json import plain
from fedmend.errors import FedmendError
from fedmend.flow.digests import files_here, folders_of_parties, tables_of
from fedmend.flow.manifest import StageEntry, fingerprint, now

if TYPE_CHECKING:
    from fedmend.federation import Federation
    from fedmend.flow.listening import Listener
    from fedmend.flow.workplace import Workplace

__all__ = ["Steps", "in_stage"]

logger = logging.getLogger(__name__)

SALT_FOLDER = "stages/salt"
T = TypeVar("T")


class Steps:
    """Goes through stages, and keeps the manifest."""

    def __init__(self, fed: Federation, place: Workplace, listener: Listener) -> None:
        self.fed = fed
        self.place = place
        self.listener = listener
        self.done: list[tuple[str, str]] = []
        self._salt = place / SALT_FOLDER

    def tables(self, names: Sequence[str] = ("train", "test")) -> dict[str, str]:
        """Hashes of the parties' tables, the inputs of the first stage."""
        return tables_of(self.fed, self._salt, list(names))

    def do(
        self,
        stage: str,
        make: Callable[[str], T],
        take_up: Callable[[], T],
        *,
        unit: str = "",
        title: str = "",
        settings: Mapping[str, Any],
        inputs: Mapping[str, str],
        paths: Sequence[str],
        says: Callable[[T], str] = lambda _: "",
    ) -> tuple[T, StageEntry]:
        """Make a stage's result, or take it up when nothing it depends on has changed.

        make: gets the fingerprint. paths: files and folders of the run in which the result is.
        """
        told = plain(dict(settings))
        mark = fingerprint(stage, told, inputs)
        self.done.append((stage, unit))
        before = self.place.manifest.find(stage, unit)
        with in_stage(stage, title):
            if before is not None and before.fingerprint == mark:
                if self._outputs(paths) == before.outputs:
                    result = take_up()
                    before.reused = True
                    self.place.manifest.record(before)
                    self.listener.done(before)
                    return result, before
                logger.warning("what %s %s left was changed: it is done again", stage, unit)
            self.place.manifest.forget(stage, unit)
            entry = StageEntry(stage, unit, title, now(), fingerprint=mark, settings=told)
            entry.inputs = dict(inputs)
            ledger = self.fed.ledger
            crossings, crossed, began = len(ledger), ledger.total_bytes(), time.perf_counter()
            result = make(mark)
            entry.seconds = time.perf_counter() - began
            entry.crossings = len(ledger) - crossings
            entry.bytes = ledger.total_bytes() - crossed
            entry.outputs = self._outputs(paths)
            entry.says = says(result)
            self.place.manifest.record(entry)
        self.listener.done(entry)
        return result, entry

    def _outputs(self, paths: Sequence[str]) -> dict[str, str]:
        work, names = self.place.folder, self.fed.names
        folders = [path for path in paths if not path.endswith((".json", ".html"))]
        found = files_here(work, list(paths), names)
        if folders:
            found |= folders_of_parties(self.fed, self._salt, work, folders)
        return found


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
