"""Many measurements: side by side in processes, kept as files, and gone on with.

A *cell* is one measurement, a frozen dataclass that says all it depends on. What was measured of it
is a file of the folder, so that a stopped benchmark goes on where it was, and several processes
may work on one folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, TypeVar

from fedmend._json import plain, write_json
from fedmend.errors import ConfigError, DatasetAbsent, FedmendError

__all__ = ["run_cells", "side_by_side"]

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Found = TypeVar("Found")

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def run_cells(
    measure: Callable[[Any], Any],
    cells: Sequence[Any],
    folder: str | Path | None = None,
    processes: int = 1,
    start: Callable[[], None] | None = None,
) -> list[Any]:
    """What was measured of every cell, in their order; of those with a file, from there.

    A cell that fails becomes a row of its own that says so in ``failed``; it is not kept, and the
    others go on.
    """
    place = Path(folder) if folder is not None else None
    found = {cell: _kept(cell, place) for cell in cells}
    todo = [cell for cell, kept in found.items() if kept is None]
    for cell, result in side_by_side(partial(_guarded, measure), todo, processes, start):
        result = plain(result)
        if isinstance(result, dict) and "failed" in result:
            logger.warning("%s", result)
        else:
            logger.info("%d of %d: %s", len(cells) - len(todo), len(cells), result)
            if place is not None:
                write_json(place / _file(cell), {"cell": plain(asdict(cell)), "found": result})
        found[cell] = result
    return [found[cell] for cell in cells]


def _guarded(measure: Callable[[Any], Any], cell: Any) -> Any:
    try:
        return measure(cell)
    except DatasetAbsent:
        raise  # nothing can be measured, which is no result of this cell
    except (FedmendError, RuntimeError, ValueError, CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()[-2000:]
        return asdict(cell) | {"failed": f"{type(error).__name__}: {said}"}


def _file(cell: Any) -> str:
    """A name to be read by people, and what tells it from cells with other settings."""
    told = json.dumps(plain(asdict(cell)), sort_keys=True)
    shown = "-".join(str(each) for each in asdict(cell).values() if each or each == 0)
    name = "".join(sign if sign.isalnum() or sign in "-." else "_" for sign in shown)[:80]
    return f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}.json"


def _kept(cell: Any, folder: Path | None) -> Any:
    if folder is None or not (folder / _file(cell)).is_file():
        return None
    return json.loads((folder / _file(cell)).read_text(encoding="utf-8"))["found"]


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
