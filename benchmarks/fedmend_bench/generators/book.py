"""Rows measured so far, in a file of JSON lines that several processes may write to."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmend._json import plain

__all__ = ["Book", "means"]

logger = logging.getLogger(__name__)

Row = dict[str, Any]


class Book:
    """Measures what is not there yet; ``terms`` must be the same for a row to count as there."""

    def __init__(self, path: Path | None, terms: Mapping[str, Any]) -> None:
        self.path = path
        self.terms = dict(terms)

    def row(self, data: str, seed: int, method: str, measure: Callable[[], Row]) -> Row:
        """The row of the file or, if there is none, a fresh one, written down at once."""
        key = {"data": data, "method": method, "seed": seed}
        for entry in self._entries():
            if entry["terms"] == self.terms and {k: entry["row"].get(k) for k in key} == key:
                return dict(entry["row"])
        row = key | measure()
        logger.info("%s", row)
        if self.path is not None and not _failed(row):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"terms": self.terms, "row": plain(row)}, allow_nan=False)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        return row

    def _entries(self) -> list[dict[str, Any]]:
        if self.path is None or not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]


def _failed(row: Row) -> bool:
    return str(row.get("note", "")).startswith(("failed", "left out"))


def means(rows: Sequence[Row]) -> list[Row]:
    """One row per data set and method: the means over the seeds at which it was measured."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["method"]), []).append(row)
    table = []
    for (data, method), group in groups.items():
        fine = [row for row in group if not _failed(row)] or group[:1]
        told = {key: None for row in fine for key in row if key not in ("data", "method", "seed")}
        mean: Row = {"data": data, "method": method, "seeds": len(fine)}
        for key in told:
            values = [row[key] for row in fine if row.get(key) is not None]
            if values and not isinstance(values[0], str):
                mean[key] = sum(values) / len(values)
            elif values:
                mean[key] = "; ".join(dict.fromkeys(values))
        table.append(mean)
    return table
