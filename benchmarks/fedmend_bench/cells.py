"""Many measurements: side by side in processes, kept as lines of a file, and gone on with.

A *cell* is one measurement, a frozen dataclass that says all it depends on. What was measured of it
is a line of the folder's file, so that a stopped benchmark goes on where it was. Several processes
may work on one folder: a cell is taken by locking a file of its own, which the system lets go when
a process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, TypeVar

from fedmend._json import plain
from fedmend.errors import ConfigError, FedmendError
from fedmend_bench.datasets import DatasetAbsent

__all__ = ["Kept", "run_cells", "side_by_side"]

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Found = TypeVar("Found")

FILE = "cells.jsonl"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def run_cells(
    measure: Callable[[Any], Any],
    cells: Sequence[Any],
    folder: str | Path | None = None,
    processes: int = 1,
    start: Callable[[], None] | None = None,
    minutes: float | None = None,
    seconds: Callable[[Any], float] | None = None,
) -> list[Any]:
    """What was measured of every cell, in their order; of those with a line, from there.

    A cell that fails becomes a row of its own that says so in ``failed``; it is not kept, and the
    others go on. minutes: no cell is begun that would not end by then (by the `seconds` it is
    thought to take), and of those left out there is None.
    """
    kept = None if folder is None else Kept.at(folder)
    until = None if minutes is None else time.time() + 60 * minutes
    found = {cell: kept and kept.of(cell) for cell in cells}
    todo = [cell for cell, line in found.items() if line is None]
    # What another process has taken is waited for in the end, unless the time is limited.
    for wait in (False, True):
        one = partial(_one, measure, kept, until, seconds, wait and until is None)
        for cell, result in side_by_side(one, todo, processes, start):
            found[cell] = result
            if result is not None:
                done = sum(line is not None for line in found.values())
                logger.info("%d of %d: %s", done, len(cells), result)
        todo = [cell for cell in todo if found[cell] is None]
    return [found[cell] for cell in cells]


def _one(
    measure: Callable[[Any], Any],
    kept: Kept | None,
    until: float | None,
    seconds: Callable[[Any], float] | None,
    wait: bool,
    cell: Any,
) -> Any:
    """None where it is another's, or too late."""
    if until is not None and time.time() + (seconds(cell) if seconds else 0) >= until:
        return None
    if kept is None:
        return plain(_guarded(measure, cell))
    with kept.taken(cell, wait) as mine:
        result = kept.of(cell) if mine else None
        if mine and result is None:
            result = plain(_guarded(measure, cell))
            if not (isinstance(result, dict) and "failed" in result):
                kept.add(cell, result)
        return result


def _guarded(measure: Callable[[Any], Any], cell: Any) -> Any:
    try:
        return measure(cell)
    except DatasetAbsent:
        raise  # nothing can be measured, which is no result of this cell
    except (FedmendError, RuntimeError, ValueError, CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()[-2000:]
        failed = asdict(cell) | {"failed": f"{type(error).__name__}: {said}"}
        logger.warning("%s", failed)
        return failed


@dataclass(frozen=True)
class Kept:
    """The file of lines ``{"cell": …, "found": …}``. Two of them are joined by ``cat``."""

    file: Path

    @classmethod
    def at(cls, place: str | Path) -> Kept:
        """In a folder, or a file that is named itself."""
        place = Path(place)
        file = place if place.suffix == ".jsonl" else place / FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        return cls(file)

    def of(self, cell: Any) -> Any:
        """What was measured of a cell, None if nothing was."""
        text = "\n" + self._text()
        at = text.rfind(f"\n{_key(cell)}, ")
        return None if at < 0 else json.loads(text[at + 1 :].partition("\n")[0])["found"]

    def all(self) -> list[dict[str, Any]]:
        """Every line, the last of each cell."""
        lines = [json.loads(line) for line in self._text().splitlines()]
        return list({json.dumps(line["cell"], sort_keys=True): line for line in lines}.values())

    def add(self, cell: Any, found: Any) -> None:
        """One write for the whole line: other processes write to the same file."""
        line = f'{_key(cell)}, "found": {json.dumps(found, ensure_ascii=False)}}}\n'
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(self.file, flags, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    @contextmanager
    def taken(self, cell: Any, wait: bool = False) -> Iterator[bool]:
        """Whether the cell is this process's to measure while the block runs."""
        lock = self.file.with_name(f".{hashlib.sha256(_key(cell).encode()).hexdigest()[:16]}.lock")
        with lock.open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            try:
                yield True
            finally:
                # Whoever waits on this file looks for the cell's line next.
                lock.unlink(missing_ok=True)

    def _text(self) -> str:
        return self.file.read_text(encoding="utf-8") if self.file.is_file() else ""


def _key(cell: Any) -> str:
    """How a cell's line begins."""
    told = json.dumps(plain(asdict(cell)), sort_keys=True, ensure_ascii=False)
    return f'{{"cell": {told}'


def side_by_side(
    measure: Callable[[Item], Found],
    items: Sequence[Item],
    processes: int,
    start: Callable[[], None] | None = None,
) -> Iterator[tuple[Item, Found]]:
    """Every item with what was measured of it, as soon as that is done.

    Several processes have a thread each, so that all cores are busy; `start` is called in each.
    """
    if processes < 1:
        raise ConfigError(f"processes must be at least 1, got {processes}")
    if processes == 1 or len(items) < 2:
        yield from ((item, measure(item)) for item in items)
        return
    context = multiprocessing.get_context("spawn")
    workers = min(processes, len(items))
    with _one_thread(), ProcessPoolExecutor(workers, context, start) as pool:
        waiting = {pool.submit(measure, item): item for item in items}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Spawned processes read it when they start."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
