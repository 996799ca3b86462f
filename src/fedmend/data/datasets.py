"""Named data sets: bundled with scikit-learn, or from the folder ``FEDMEND_DATA``.

Nothing is ever downloaded. :func:`load` of a data set that is not on this machine raises
:class:`~fedmend.errors.DatasetAbsent`, which says where it looked and how to get it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmend._suggest import closest
from fedmend.data import _bundled, _folder
from fedmend.data._catalogue import CATALOGUE, Entry
from fedmend.data.table import Table
from fedmend.errors import DataError, DatasetAbsent

__all__ = ["DatasetInfo", "annotations", "data_folder", "info", "load", "names"]

VARIABLE = "FEDMEND_DATA"


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a data set before it is loaded; ``columns`` counts the features."""

    name: str
    title: str
    rows: int
    columns: int
    task: str
    where: str
    licence: str
    present: bool
    how_to_get: str
    options: tuple[str, ...]


def names() -> list[str]:
    """All names :func:`load` knows, sorted."""
    return sorted(CATALOGUE)


def data_folder() -> Path | None:
    """The folder named by ``FEDMEND_DATA``, else ``../shared/data`` if that is there."""
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else Path.cwd().parent / "shared" / "data"
    return folder if folder.is_dir() else None


def info(name: str) -> DatasetInfo:
    """Size, task, licence, whether it is on this machine, and how to get it."""
    entry = _entry(name)
    return DatasetInfo(
        name=name,
        title=entry.title,
        rows=entry.rows,
        columns=entry.columns,
        task=entry.task,
        where=entry.where,
        licence=entry.licence,
        present=entry.where == "bundled" or _home(entry) is not None,
        how_to_get=_how_to_get(entry),
        options=tuple(_options(entry)),
    )


def load(name: str, **options: Any) -> Table:
    """The data set as a table with a label; see ``info(name).options`` for what it takes.

    >>> table = load("breast-cancer")
    >>> table.n_rows, len(table.feature_names), table.label
    (569, 30, 'diagnosis')
    """
    entry = _entry(name)
    known = _options(entry)
    for option in options:
        if option not in known:
            near = closest(option, known)
            raise DataError(
                f"data set {name!r} has no option {option!r}",
                mend=(f"did you mean {near!r}? " if near else "")
                + f"its options are: {', '.join(known) or '(none)'}",
            )
    loader = _loader(entry)
    if entry.where == "bundled":
        return loader(**options)
    return loader(_require_home(name, entry), **options)


def annotations(name: str) -> np.ndarray:  # type: ignore[no-redef]
    """What human annotators said: class numbers, -1 where one gave no answer.

    ``labelme``: 1,000 training images by 59 annotators; ``cifar10n``: 50,000 by 3.

    **Shape**: [rows, annotators] int64, rows as in ``load(name)``.
    """
    reader = {"labelme": _folder.labelme_answers, "cifar10n": _folder.cifar10n_answers}.get(name)
    if reader is None:
        _entry(name)
        raise DataError(
            f"data set {name!r} has no human annotations",
            mend="use 'labelme' or 'cifar10n', or draw some with scenario.annotators",
        )
    return reader(_require_home(name, _entry(name)))


def _entry(name: str) -> Entry:
    if name not in CATALOGUE:
        near = closest(name, CATALOGUE)
        raise DataError(
            f"there is no data set {name!r}",
            mend=(f"did you mean {near!r}? " if near else "")
            + f"the data sets are: {', '.join(names())}",
        )
    return CATALOGUE[name]


def _loader(entry: Entry) -> Callable[..., Table]:
    module = _bundled if entry.where == "bundled" else _folder
    loader: Callable[..., Table] = getattr(module, entry.loader)
    return loader


def _options(entry: Entry) -> list[str]:
    parameters = inspect.signature(_loader(entry)).parameters
    return [name for name, found in parameters.items() if found.kind is found.KEYWORD_ONLY]


def _homes(entry: Entry) -> list[Path]:
    """Folders in which the entry's files may lie, the named one first."""
    folder = data_folder()
    if entry.subfolder is None:
        return [] if folder is None else [folder]
    inside = [] if folder is None else [folder / entry.subfolder]
    return inside + [Path(prefix) / entry.subfolder for prefix in _folder.SYSTEM_FOLDERS]


def _home(entry: Entry) -> Path | None:
    complete = (h for h in _homes(entry) if all((h / file).is_file() for file in entry.files))
    return next(complete, None)


def _require_home(name: str, entry: Entry) -> Path:
    home = _home(entry)
    if home is not None:
        return home
    named = os.environ.get(VARIABLE)
    if named and not Path(named).is_dir():
        looked = f"{VARIABLE} is {named!r}, which is not a folder"
    elif not _homes(entry):
        looked = f"{VARIABLE} is not set"
    else:
        lacking = [file for file in entry.files if not (_homes(entry)[0] / file).is_file()]
        places = ", ".join(str(place) for place in _homes(entry))
        looked = f"{', '.join(lacking)} not found in {places}"
    raise DatasetAbsent(
        f"data set {name!r} ({entry.title}) is not on this machine: {looked}",
        mend=_how_to_get(entry),
    )


def _how_to_get(entry: Entry) -> str:
    if entry.where == "bundled":
        return "nothing to do: it comes with scikit-learn"
    files = ", ".join(entry.files)
    return f"{entry.source}; put {files} into the folder that {VARIABLE} names" + (
        f", under {entry.subfolder}/" if entry.subfolder else ""
    )
