"""Many measurements, one after the other or side by side."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["side_by_side"]

Item = TypeVar("Item")
Found = TypeVar("Found")

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def side_by_side(
    measure: Callable[[Item], Found],
    items: Sequence[Item],
    processes: int,
    start: Callable[[], None] | None = None,
) -> Iterator[tuple[Item, Found]]:
    """Every item with what was measured of it, as soon as that is done.

    Several processes have a thread each, so that all cores are busy; `start` is called in each.
    """
    if processes < 2 or len(items) < 2:
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
