"""Generators beside other packages: tables made of a file of results."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from fedmend_bench import markdown as md
from fedmend_bench.cells import Kept
from fedmend_bench.generators import table as generators
from fedmend_bench.markdown import Tables

MADE = "generators.jsonl"
_SCORES = ("shapes", "pairs", "AUC", "dcr", "dcr share")
_GAPS = ("20% RMSE", "20% acc", "block RMSE", "block acc")


def _generated(file: Path, data: str) -> str:
    """Means over seeds, of the AUC with its standard deviation."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in Kept.at(file).all():
        if line["cell"]["data"] == data:
            found.setdefault(line["cell"]["method"], []).append(line["found"])
    methods = [*generators.REFERENCES, *sorted(found.keys() - {*generators.REFERENCES})]
    lines = []
    for method in methods:
        cells = [method, str(len(found[method]))]
        for key in (*_SCORES, *_GAPS):
            values = [row[key] for row in found[method] if row.get(key) is not None]
            told = md.short(statistics.mean(values), 3) if values else "–"
            if key == "AUC" and len(values) > 1:
                told += f" ± {md.short(statistics.stdev(values), 3)}"
            cells.append(told)
        lines.append(cells)
    return md.table(["", "seeds", *_SCORES, *_GAPS], lines)


def _figure(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _generator_bars(file: Path) -> str:
    """What the means over seeds promise, beside the packages of others that the file has."""
    rows = generators.means([line["found"] for line in Kept.at(file).all()])
    lines = [
        [bar.name, _figure(bar.value), str(bar.target), "yes" if bar.holds else "**no**"]
        for bar in generators.bars_of(rows)
    ]
    return md.table(["bar, means over seeds", "measured", "target", "holds"], lines)


TABLES: Tables = {
    **{
        f"generators-{data}": (MADE, partial(_generated, data=data))
        for data in ("adult", "bank", "credit")
    },
    "generators-bars": (MADE, _generator_bars),
}
