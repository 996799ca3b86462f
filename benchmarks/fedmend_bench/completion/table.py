"""FedPSG-PUM on Bank, Adult and Credit: completion, what it is worth downstream, and its cost.

Columns are dealt half and half within kinds; party b loses a share of the rows. FedPSG-PUM (with
its defaults, and as published) stands beside private baselines (mean/mode, a generator alone) and
beside references that see party a's columns in the clear.

The sweep runs the real protocols with masks (``dealer``) for the correlation too, where the method
itself takes homomorphic encryption (``bfv``): both are exact integer arithmetic, so the results
are the same to the bit, and only the cost differs. ``secure=true`` runs with ``bfv`` throughout the
correlation, for the cost.
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pandas as pd

from fedmend.errors import ConfigError
from fedmend.generate import generators as all_generators
from fedmend_bench.cells import run_cells
from fedmend_bench.completion.runs import OURS, PAPER, PARTS, TRAINED, Cell, run_cell
from fedmend_bench.completion.scores import REFERENCES
from fedmend_bench.harness import Bar, BenchResult
from fedmend_bench.options import chosen, listed, numbered

NAME = "fedpsg-pum"
HELP = "FedPSG-PUM: completion error, downstream AUC and cost, beside references"

NOT_PRIVATE = ("knn", "iterative", "boosted trees")


def run(
    quick: bool = False,
    *,
    data: Any = ("bank", "adult", "credit"),
    rows: int = 12000,
    test: int = 4000,
    seeds: Any = 1,
    shares: Any = (0.1, 0.5, 0.9),
    where: Any = "random",
    parts: Any = PARTS,
    references: Any = REFERENCES,
    generators: Any = ("vae",),
    generator_epochs: int = 30,
    epochs: int = 60,
    trainings: int = 1,
    secure: bool = False,
    columns: int = 0,
    settings: dict[str, Any] | None = None,
    processes: int = 1,
    folder: str | None = None,
) -> BenchResult:
    """Measure, and say which promises hold.

    seeds: how many, or which. where: rows missing at "random" or the "last" ones of the file's
    order, or both. parts: which of ours (FedPSG-PUM and training on its rows), paper, and baselines
    (training on other rows). references: completion in the clear. generators: those that are
    measured alone. columns: so many of each table's columns, drawn; 0 for all.
    generator_epochs, epochs, trainings: of generators; of downstream training, and how many of
    those are averaged (0: none). settings: arguments for FedPSGPUM in the place of its defaults,
    such as {"tau": 0.2}: a variant. processes: how many measurements go on at a time. folder: where
    their results are kept, from which a later run with the same options takes those that are there.
    """
    names, portions = listed(data), [float(share) for share in listed(shares)]
    wanted = chosen("parts", parts, PARTS) if listed(parts) else []
    lines = [part for part in PARTS if part in wanted and (trainings or part != "baselines")]
    lines += [f"reference: {name}" for name in chosen("references", references, REFERENCES)]
    lines += [f"generator: {name}" for name in chosen("generators", generators, all_generators())]
    problems = [] if names else ["data names no data set"]
    problems += [] if lines else ["parts, references and generators name nothing to measure"]
    if not portions or not all(0 < share < 1 for share in portions):
        problems.append(f"shares must lie in (0, 1), got {portions}")
    if trainings < 0:
        problems.append(f"trainings must be at least 0, got {trainings}")
    if problems:
        raise ConfigError(problems)
    common: dict[str, Any] = {"rows": rows, "test": test, "epochs": epochs, "trainings": trainings}
    common |= {"generator_epochs": generator_epochs, "secure": secure, "columns": columns}
    numbers, given = numbered(seeds), settings or {}
    if quick:
        names, portions, numbers = names[:1], [0.5], numbers[:1]
        common |= {"rows": min(rows, 1500), "test": 500, "epochs": min(epochs, 5)}
        common |= {"generator_epochs": min(generator_epochs, 2)}
        given = {"tree": {"trees": 15}, **given}
    # Seed by seed, so that a run that is cut short has all of its first seeds.
    grid = product(numbers, chosen("where", where, ("random", "last")), portions, names, lines)
    cells = [
        Cell(name, place, share, seed, part, settings=json.dumps(given), **common)
        for seed, place, share, name, part in grid
    ]
    table: list[dict[str, Any]] = []
    for cell, found in zip(cells, run_cells(run_cell, cells, folder, processes), strict=True):
        failed = found["failed"] if isinstance(found, dict) else None
        table += [cell.facts | {"method": cell.part, "failed": failed}] if failed else found
    return BenchResult(NAME, table, _bars(pd.DataFrame(table), quick))


# ---------------------------------------------------------------------------------- promises


def _bars(table: pd.DataFrame, quick: bool = False) -> list[Bar]:
    """The promises, as means over seeds that all compared have.

    Of the small size only those that one seed of it can tell: beside what is as private.
    With the last rows missing, which may be of another time, only that of being better than what
    is as private.
    """
    if "where" not in table:
        return []
    table = table.reindex(columns=[*table.columns, "rmse", "auc"])
    table = table.loc[:, ~table.columns.duplicated()]
    bars = []
    for where, data, share in table[["where", "data", "missing"]].drop_duplicates().to_numpy():
        part = table[(table["data"] == data) & (table["missing"] == share)]
        part = part[part["where"] == where]
        at, chance = f"{data}, {float(share):g} missing", where == "random"
        at = at if chance else f"{at} at the end"
        rmse = part.pivot_table("rmse", "method", "seed")
        whole = chance and not quick
        bars += _completion_bars(at, rmse, in_the_clear=whole and share == 0.5)
        if whole and share >= 0.5:
            bars += _downstream_bars(at, part.pivot_table("auc", "method", "seed"))
    return bars


def _completion_bars(at: str, rmse: pd.DataFrame, in_the_clear: bool) -> list[Bar]:
    """rmse: [method, seed]. in_the_clear: against the best that sees A's columns, too."""
    if OURS not in rmse.index:
        return []
    bars = []
    private = rmse.drop([OURS, *NOT_PRIVATE], errors="ignore")
    for name in private.index:
        bars.append(_paired(f"{at}: RMSE at most {name}'s", rmse, OURS, name, lower=True))
    clear = rmse.loc[[name for name in NOT_PRIVATE if name in rmse.index]]
    if in_the_clear and len(clear):
        best = str(clear.mean(axis=1).idxmin())
        bars.append(_paired(f"{at}: RMSE at most {best}'s (in the clear)", rmse, OURS, best, True))
    return bars


def _downstream_bars(at: str, auc: pd.DataFrame) -> list[Bar]:
    ours = TRAINED + OURS
    others = {name: TRAINED + name for name in ("aligned only", "zeros", "mean", PAPER)}
    return [
        _paired(f"{at}: downstream AUC above {name}", auc, ours, line, lower=False)
        for name, line in others.items()
        if ours in auc.index and line in auc.index
    ]


def _paired(name: str, values: pd.DataFrame, ours: str, other: str, lower: bool) -> Bar:
    """Means over the seeds that both have."""
    both = values.loc[[ours, other]].dropna(axis=1)
    mine, limit = (float(both.loc[line].to_numpy().mean()) for line in (ours, other))
    sign = "<=" if lower else ">"
    holds = mine <= limit if lower else mine > limit
    return Bar(f"{name} ({both.shape[1]} seeds)", mine, f"{sign} {limit:.4f}", holds)
