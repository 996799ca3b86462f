"""`auto` beside boosting and beside partners that differ: tables made of files of results."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from fedmend_bench import markdown as md
from fedmend_bench.cells import Kept
from fedmend_bench.markdown import Tables
from fedmend_bench.tabular import table as tabular
from fedmend_bench.tabular import three
from fedmend_bench.tabular.table import main_metric

KEEL, NUMBERS = "keel.jsonl", "numbers.jsonl"


def _three_torn(file: Path) -> str:
    """AUC of rows known to all, to one partner, and to the label party; bold: the best of ours."""
    lines = [{**line["cell"], **line["found"]} for line in Kept.at(file).all()]
    rows: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for row in three.summary(lines):
        rows.setdefault((row["data"], row["share, %"]), {})[row["method"]] = row
    table = []
    for (name, share), found in sorted(rows.items()):
        best = {
            known: max(found[each][known] for each in three.METHODS if each != three.LEFT_JOIN)
            for known in three.KNOWN
        }
        cells = [f"{name.capitalize()}, {share:g} %"]
        for method in three.METHODS:
            told = []
            for known in three.KNOWN:
                value = found[method][known]
                shown = md.short(value, 4)
                ours = method != three.LEFT_JOIN and value == best[known]
                told.append(f"**{shown}**" if ours else shown)
            cells.append(" / ".join(told))
        table.append(cells)
    return md.table(["", *three.METHODS], table)


def _gains(values: tabular.Values, method: str) -> list[float]:
    """`auto`'s AUC (of numbers R²) less a method's, draw by draw."""
    ours, theirs = values[tabular.AUTO], values[method]
    return [main_metric(ours[s]) - main_metric(theirs[s]) for s in ours if s in theirs]


def _found(file: Path) -> dict[tabular.Place, tabular.Values]:
    return tabular.spread([line["cell"] | line["found"] for line in Kept.at(file).all()])


def _sets(file: Path) -> str:
    """How good `auto` is and, in brackets, how far from the best of what there is without it."""
    found = _found(file)
    kinds = sorted({place[2:] for place in found}, key=lambda kind: (kind[0], kind[1]))
    lines: dict[str, list[str]] = {}
    for rows, data in sorted({place[:2] for place in found}):
        cells = lines.setdefault(data, [data.removeprefix("keel-")])
        for kind in kinds:
            values = found[(rows, data, *kind)]
            gains = {name: _gains(values, name) for name in tabular.ALTERNATIVES}
            gain = min(gains.values(), key=statistics.mean)
            own = statistics.mean(main_metric(each) for each in values[tabular.AUTO].values())
            cells.append(f"{md.short(own, 3)} ({md.gained(gain)})")
    head = [f"{share:g} % {known}" for share, known in kinds]
    return md.table(["", *head], list(lines.values()))


def _beside(file: Path, metric: str) -> str:
    """`auto` less each method: the mean over sets and overlaps, and where it is behind."""
    found = _found(file)
    lines = []
    for method in tabular.METHODS:
        if method == tabular.AUTO or not any(method in values for values in found.values()):
            continue
        cells = [method]
        for known in ("both", "one"):
            places = [v for place, v in found.items() if place[3] == known and method in v]
            gains = [_gains(values, method) for values in places]
            if not gains:  # what needs both sides says nothing of rows that one knows
                cells += ["–", "–"]
                continue
            means = [statistics.mean(gain) for gain in gains]
            behind = sum(mean < -tabular.WITHIN for mean in means)
            surely = sum(statistics.mean(g) + 2 * md.spread(g) < -tabular.WITHIN for g in gains)
            cells += [md.gained(means), f"{behind} ({surely}) of {len(means)}"]
        lines.append(cells)
    head = [f"{what}, {known}" for known in ("both", "one") for what in (metric, "behind")]
    return md.table(["`auto` less", *head], lines)


TABLES: Tables = {
    "three-torn": ("three-torn.jsonl", _three_torn),
    "keel-sets": (KEEL, _sets),
    "keel-methods": (KEEL, partial(_beside, metric="AUC")),
    "numbers-sets": (NUMBERS, _sets),
    "numbers-methods": (NUMBERS, partial(_beside, metric="R²")),
}
