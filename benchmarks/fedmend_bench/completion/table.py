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

import logging
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from fedmend.errors import ConfigError
from fedmend.generate import generators as all_generators
from fedmend_bench.completion.runs import ABLATIONS, OURS, PAPER, PARTS, Cell, run_cells
from fedmend_bench.completion.scores import REFERENCES
from fedmend_bench.harness import Bar, BenchResult
from fedmend_bench.options import listed

NAME = "fedpsg-pum"
HELP = "FedPSG-PUM: completion error, downstream AUC and cost, beside references"

logger = logging.getLogger(__name__)

NOT_PRIVATE = ("knn", "iterative", "boosted trees")
ABLATION = "ablation: "


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
    ablations: Any = (),
    generator_epochs: int = 30,
    epochs: int = 60,
    trainings: int = 1,
    secure: bool = False,
    columns: int = 0,
    settings: dict[str, Any] | None = None,
    processes: int = 1,
    kept: str | None = None,
) -> BenchResult:
    """Measure, and say which promises hold.

    seeds: how many, or which. where: rows missing at "random" or the "last" ones of the file's
    order, or both. parts: which of ours (FedPSG-PUM and training on its rows), paper, and baselines
    (training on other rows). references: completion in the clear. generators: those that are
    measured alone. ablations: variants of FedPSG-PUM by name, or "all". columns: so many of each
    table's columns, drawn; 0 for all.
    generator_epochs, epochs, trainings: of generators; of downstream training, and how many of
    those are averaged (0: none). settings: arguments for FedPSGPUM in the place of its defaults.
    processes: how many measurements go on at a time. kept: a folder for their results, from which
    a later run with the same options takes those that are there.
    """
    asked = _Asked(
        listed(data),
        [float(share) for share in listed(shares)],
        list(range(seeds)) if isinstance(seeds, int) else listed(seeds),
        listed(where),
        listed(parts),
        listed(references),
        listed(generators),
        list(ABLATIONS) if ablations == "all" else listed(ablations),
    )
    asked.check(processes, trainings)
    common: dict[str, Any] = {"rows": rows, "test": test, "epochs": epochs, "trainings": trainings}
    common |= {"generator_epochs": generator_epochs, "secure": secure, "settings": settings or {}}
    common["columns"] = columns
    if quick:
        asked.data, asked.shares, asked.seeds = asked.data[:1], [0.5], asked.seeds[:1]
        common |= {"rows": min(rows, 1500), "test": 500, "epochs": min(epochs, 5)}
        common |= {"generator_epochs": min(generator_epochs, 2)}
        common["settings"] = {"tree": {"trees": 15}, **common["settings"]}
    cells = asked.cells(common)
    folder = Path(kept) if kept else None

    def tell(cell: Cell, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            logger.info("%s", line)

    table = run_cells(cells, folder, processes, tell)
    return BenchResult(NAME, table, [] if quick else _bars(pd.DataFrame(table)))


@dataclass
class _Asked:
    """What is to be measured."""

    data: list[str]
    shares: list[float]
    seeds: list[int]
    where: list[str]
    parts: list[str]
    references: list[str]
    generators: list[str]
    ablations: list[str]

    def cells(self, common: dict[str, Any]) -> list[Cell]:
        """Seed by seed, so that a run that is cut short has all of its first seeds."""
        parts = [part for part in PARTS if part in self.parts]
        if not common["trainings"]:
            parts = [part for part in parts if part != "baselines"]
        parts += [f"reference: {name}" for name in self.references]
        parts += [f"generator: {name}" for name in self.generators]
        parts += [f"{ABLATION}{name}" for name in self.ablations]
        grid = product(self.seeds, self.where, self.shares, self.data, parts)
        return [
            Cell(data, where, share, int(seed), part, **common)
            for seed, where, share, data, part in grid
        ]

    def check(self, processes: int, trainings: int) -> None:
        problems = []
        if not self.data:
            problems.append("data names no data set")
        if not self.shares or not all(0 < share < 1 for share in self.shares):
            problems.append(f"shares must lie in (0, 1), got {self.shares}")
        for name, given, known in (
            ("where", self.where, ("random", "last")),
            ("parts", self.parts, PARTS),
            ("references", self.references, REFERENCES),
            ("generators", self.generators, tuple(all_generators())),
            ("ablations", self.ablations, tuple(ABLATIONS)),
        ):
            if not set(given) <= set(known):
                problems.append(f"{name} must be some of {', '.join(known)}, got {given}")
        if not [*self.parts, *self.references, *self.generators, *self.ablations]:
            problems.append("parts, references, generators and ablations name nothing to measure")
        if processes < 1 or trainings < 0:
            problems.append(
                f"processes must be at least 1, trainings at least 0, got {processes}, {trainings}"
            )
        if problems:
            raise ConfigError(problems)


# ---------------------------------------------------------------------------------- promises


def _bars(table: pd.DataFrame) -> list[Bar]:
    """The promises, as means over seeds that all compared have.

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
        bars += _completion_bars(at, rmse, in_the_clear=chance and share == 0.5)
        if chance and share >= 0.5:
            bars += _downstream_bars(at, part.pivot_table("auc", "method", "seed"))
    return bars


def _completion_bars(at: str, rmse: pd.DataFrame, in_the_clear: bool) -> list[Bar]:
    """rmse: [method, seed]. in_the_clear: against the best that sees A's columns, too."""
    if OURS not in rmse.index:
        return []
    rmse = rmse.drop([name for name in rmse.index if name in ABLATIONS])
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
    ours = f"downstream: {OURS}"
    others = {name: f"downstream: {name}" for name in ("aligned only", "zeros", "mean", PAPER)}
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
