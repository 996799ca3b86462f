"""Bounds that somebody else names for a party's columns, counted and stopped.

A protocol must know how large values can be, and whoever asks for it says so. Whether a column
keeps within a bound is one bit about its values: asked again and again, the largest value follows
digit by digit. So a party answers for a few bounds of each of its columns and for no further one,
over all runs (`bounds.json` in its folder of records). Bounds that follow from public facts,
as of ranks, are not asked for: the worker that makes such columns states them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path

from fedmend._json import write_json
from fedmend.errors import DataError, Refused
from fedmend.federation.site import Site

MOST_BOUNDS = 3
BOUNDS_FILE = "bounds.json"
_PLACE = "secure.bounds"
_LOCK = threading.Lock()


def admit_bound(site: Site, columns: Iterable[str], bound: str) -> None:
    """Let a bound for columns be tried; `Refused` when others were before, too many of them."""
    path = None if site.records is None else site.records / BOUNDS_FILE
    with _LOCK:
        asked: dict[str, list[str]] = site.vault.get(_PLACE) or _read(path)
        fresh = False
        for column in columns:
            before = asked.setdefault(column, [])
            if bound in before:
                continue
            if len(before) >= MOST_BOUNDS:
                kept = "" if path is None else f" ({BOUNDS_FILE} in its records has them)"
                raise Refused(
                    site.name,
                    f"column {column!r} was asked about with {MOST_BOUNDS} other bounds before"
                    f"{kept}; which of them it keeps within tells its values",
                    f"give one of those: {', '.join(before)}",
                )
            before.append(bound)
            fresh = True
        site.vault[_PLACE] = asked
        if fresh and path is not None:
            write_json(path, asked)


def _read(path: Path | None) -> dict[str, list[str]]:
    if path is None or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(column): [str(each) for each in bounds] for column, bounds in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path.name} in the records of the party cannot be read", mend="take it from a backup"
        ) from error
