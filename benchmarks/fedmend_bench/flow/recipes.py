"""`fedmend bench recipes`: do the methods mend more together than each alone?

    fedmend bench recipes -o data=credit -o seeds=3
    fedmend bench recipes -o folder=out -o processes=2

Two parties with columns, a tenth of whose rows is common, and three labellers, one of them bad
(`world.py`). Every combination of label correction, completion and training is run
(`recipe_runs.py`). AUC in percent: on test rows known to both, and on the same rows known to the
bank alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fedmend.methods.recipes import RECIPES
from fedmend_bench.cells import side_by_side
from fedmend_bench.flow.recipe_runs import all_lines, run_world
from fedmend_bench.flow.world import BANK, BANK_ALONE, BOTH, bars, shapes_of, summary
from fedmend_bench.harness import BenchResult, device_name
from fedmend_bench.options import chosen

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
MEASURES = (BOTH, BANK_ALONE, "labels right", "seconds", "mb")


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
    folder: str | None = None,
) -> BenchResult:
    """All lines of all worlds; `quick` is a smoke test.

    noisy: which labeller errs most. missing: the share of votes not given. folder: where finished
    lines are kept. processes: worlds side by side, a thread each.
    """
    if quick:
        seeds, rows, test, epochs = 1, min(rows, 800), min(test, 400), epochs or 2
    shapes = shapes_of(data, seeds, first_seed, rows, test, overlap, noisy, missing)
    names = chosen("lines", lines, all_lines())
    world = partial(run_world, lines=names, folder=folder, epochs=epochs)
    found = [each for _, lines in side_by_side(world, shapes, processes) for each in lines]
    recipe = {line: name for name, line in NAMED.items() if name in RECIPES}
    table = [row | {"recipe": recipe.get(row["line"])} for row in summary(found, MEASURES)]
    together = [line for line in NAMED.values() if line not in SINGLE]
    return BenchResult(NAME, table, bars(found, SINGLE, together), device=device_name("cpu"))
