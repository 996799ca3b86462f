"""`fedmend bench recipes`: do the methods mend more together than each alone?

    fedmend bench recipes -o data=credit -o seeds=3
    fedmend bench recipes -o keep=out -o processes=2

Two parties with columns, a tenth of whose rows is common, and three labellers, one of them bad
(`world.py`). Every combination of label correction, completion and training is run
(`recipe_runs.py`). AUC in percent: on test rows known to both, and on the same rows known to the
bank alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.methods.recipes import RECIPES
from fedmend_bench.flow.recipe_runs import all_lines, run_world
from fedmend_bench.flow.world import BANK, Shape
from fedmend_bench.harness import Bar, BenchResult, device_name
from fedmend_bench.options import chosen, listed
from fedmend_bench.pool import side_by_side

logger = logging.getLogger(__name__)

NAME = "recipes"
HELP = "label correction, completion and training together, on Credit and Bank, against each alone"

SINGLE = (
    "Local",
    "VFL",
    "LocalVFL",
    "RISA",
    "FedPSG-PUM → VFL",
    "InC alone",
    "InC on the labellers' rows",
)
# The catalogue's recipes as lines of the table.
NAMED = {
    "correct-complete-vfl": "InC → FedPSG-PUM → VFL",
    "infer-complete-vfl": "Dawid–Skene → FedPSG-PUM → VFL",
    "correct-local-vfl": "InC → LocalVFL",
    "correct-risa": "InC → RISA",
    "correct-complete-risa": "InC → FedPSG-PUM → RISA",
    "complete-vfl": "FedPSG-PUM → VFL",
}
MEASURES = ("auc", "auc, bank alone", "labels right", "seconds", "mb")


def run(
    quick: bool = False,
    data: str | Sequence[str] = "credit,bank",
    lines: str | Sequence[str] = "all",
    seeds: int = 5,
    first_seed: int = 0,
    rows: int = 8000,
    test: int = 4000,
    overlap: float = 0.1,
    noisy: str = BANK,
    missing: float = 0.3,
    epochs: int | None = None,
    processes: int = 1,
    keep: str | None = None,
) -> BenchResult:
    """All lines of all worlds; `quick` is a smoke test.

    noisy: which labeller errs most. missing: the share of votes not given. keep: a folder for
    finished lines. processes: worlds side by side, a thread each.
    """
    if quick:
        seeds, rows, test, epochs = 1, min(rows, 800), min(test, 400), epochs or 2
    names = _chosen(lines)
    shapes = [
        Shape(each, first_seed + seed, rows, test, overlap, noisy, missing)
        for seed in range(seeds)
        for each in listed(data)
    ]
    folder = Path(keep) if keep else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    world = partial(run_world, lines=names, folder=folder, epochs=epochs)
    found = [each for _, lines in side_by_side(world, shapes, processes) for each in lines]
    for result in found:
        if "failed" in result:
            logger.warning("%s: %s", result["line"], result["failed"])
    return BenchResult(NAME, summary(found), bars(found), device=device_name("cpu"))


def _chosen(lines: str | Sequence[str]) -> list[str]:
    known = all_lines()
    if listed(lines) == ["main"]:
        return [name for name in known if "cpg" not in name and "," not in name]
    return chosen("lines", lines, known)


# ---------------------------------------------------------------------------------- showing


def summary(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, line by line, with the standard error of the AUC."""
    rows = []
    for data, line in dict.fromkeys((each["data"], each["line"]) for each in found):
        own = [each for each in found if (each["data"], each["line"]) == (data, line)]
        done = [each for each in own if "failed" not in each]
        row: dict[str, Any] = {"data": data, "line": line, "recipe": _named(line)}
        for measure in MEASURES:
            values = [each[measure] for each in done if measure in each]
            row[measure] = float(np.mean(values)) if values else None
        aucs = [each["auc"] for each in done]
        row["se"] = float(np.std(aucs, ddof=1) / np.sqrt(len(aucs))) if len(aucs) > 1 else None
        rows.append(row | {"seeds": len(done)})
    return rows


def _named(line: str) -> str | None:
    return next((name for name in RECIPES if NAMED[name] == line), None)


def bars(found: Sequence[dict[str, Any]]) -> list[Bar]:
    """The best of the named recipes against the best single method."""
    promises = []
    for data in dict.fromkeys(each["data"] for each in found):
        for measure, rows in (("auc", "both"), ("auc, bank alone", "the bank alone")):
            means = {
                row["line"]: row[measure]
                for row in summary([each for each in found if each["data"] == data])
                if row[measure] is not None
            }
            single = {name: means[name] for name in SINGLE if name in means}
            together = {
                line: means[line] for line in NAMED.values() if line in means and line not in SINGLE
            }
            if not single or not together:
                continue
            best_single = max(single, key=lambda name: single[name])
            best = max(together, key=lambda name: together[name])
            promises.append(
                Bar.at_least(
                    f"{data}, rows known to {rows}: {best} (best single: {best_single})",
                    round(together[best], 2),
                    round(single[best_single], 2),
                )
            )
    return promises
