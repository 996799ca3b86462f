"""A progress bar for whoever waits at a terminal; a callback for everybody else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedmend.generate.training import Progress

__all__ = ["shown"]


@contextmanager
def shown(title: str, progress: Progress | None) -> Iterator[Progress | None]:
    """The callback itself or, where there is none, a bar on standard error if it is a terminal."""
    if progress is not None or not sys.stderr.isatty():
        yield progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, int] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(f"{title}: {stage}", total=total)
            bars.update(tasks[stage], completed=done)  # type: ignore[arg-type]

        yield tell
