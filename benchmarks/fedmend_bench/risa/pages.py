"""RISA's tables, made of files of results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedmend_bench import markdown as md
from fedmend_bench.cells import Kept
from fedmend_bench.markdown import Tables
from fedmend_bench.risa import search
from fedmend_bench.risa.table import paper_table

SEARCH = "risa-search.jsonl"
SHARES = (1, 10, 20, 30, 40, 50)
"""Of overlap, in the paper's tables of RISA."""


def _searched(
    file: Path, data: Sequence[str], rows: int, overlaps: Sequence[float] = (1, 10, 50)
) -> str:
    """Means ± standard deviations on fresh draws, by the choice that held-out rows made.

    In brackets the paper's.
    """
    kept = {search.Trial(**line["cell"]): line["found"]["value"] for line in Kept.at(file).all()}

    def scores(cells: Sequence[search.Trial]) -> dict[search.Trial, float]:
        return {cell: kept[cell] for cell in cells}

    told = {cell.method for cell in kept if cell.data in data}
    methods = [each for each in search.spaces(data[0]) if each in told]
    table = search.searched(data, methods, overlaps, 6, rows, scores)
    places = [(name, f"{share:g}") for name in data for share in overlaps]
    found = {(row["data"], row["method"]): row for row in table}
    theirs = paper_table()
    best = {
        (name, share): max(methods, key=lambda each: found[name, each][f"{share} %"])
        for name, share in places
    }
    lines = []
    for method in methods:
        cells = [f"`{method.replace(' ', '.')}`" if method.endswith("()") else method]
        for name, share in places:
            row = found[name, method]
            mark = "**" if best[name, share] == method else ""
            paper = theirs.get((name, method.removesuffix(" paper()"), float(share)))
            beside = "" if paper is None else f" ({paper:.1f})"
            cells.append(f"{mark}{row[f'{share} %']:.1f}{mark} ± {row[f'± {share}']:.1f}{beside}")
        lines.append(cells)
    shown = {name: name.capitalize() for name in data} | {"cifar10": "CIFAR-10"}
    return md.table(["", *(f"{shown[name]} {share} %" for name, share in places)], lines)


def _three_parties(file: Path) -> str:
    """Of rows known to all, and in brackets of rows of the label party alone."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in Kept.at(file).all():
        found.setdefault((line["found"]["method"], line["found"]["data"]), []).append(line["found"])
    methods, data = (list(dict.fromkeys(key[at] for key in found)) for at in (0, 1))

    def mean(method: str, name: str, key: str = "value") -> float:
        return statistics.mean(each[key] for each in found[method, name])

    best = {name: max(methods, key=lambda each: mean(each, name)) for name in data}
    lines = []
    for method in sorted(methods, key=lambda each: mean(each, data[0])):
        cells = [method]
        for name in data:
            mark = "**" if best[name] == method else ""
            spread = statistics.stdev(each["value"] for each in found[method, name])
            alone = mean(method, name, "label party's side")
            cells.append(
                f"{mark}{mean(method, name):.1f}{mark} ± {md.short(spread, 1)} ({alone:.1f})"
            )
        lines.append(cells)
    return md.table(["", *(name.capitalize() for name in data)], lines)


TABLES: Tables = {
    "risa-search": (SEARCH, partial(_searched, data=("adult", "credit"), rows=3000)),
    "risa-search-digits": (
        SEARCH,
        partial(_searched, data=("digits",), overlaps=(10, 50), rows=1000),
    ),
    "risa-search-images": (
        SEARCH,
        partial(_searched, data=("cifar10",), overlaps=SHARES, rows=50000),
    ),
    "risa-three-parties": ("risa-three-parties.jsonl", _three_parties),
}
