"""`fedmend bench risa`: RISA and its baselines on torn images and tables, beside the paper.

CIFAR-10 in two halves (accuracy) and Adult, Bank, Credit and a sample of Criteo (AUC), with 1 to
50 % of the training rows known to both parties; test rows have both sides. On tables boosted trees
stand among the baselines, and scikit-learn's in the clear (GBDT) beside them. The paper's Criteo is
nine million rows, ours are 16,000 of a public sample: compare orders, not numbers.

    fedmend bench risa -o data=adult,bank -o overlaps=1,10,50 -o seeds=5 -o processes=16 \
        -o folder=runs/risa
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fedmend.errors import ConfigError
from fedmend.split.config import resolve_device
from fedmend_bench.cells import run_cells
from fedmend_bench.clear import CLEAR
from fedmend_bench.harness import Bar, BenchResult, paper_rows
from fedmend_bench.options import chosen, listed, numbered
from fedmend_bench.risa.cost import cost_rows
from fedmend_bench.risa.data import IMAGES, NAMES, TABLES
from fedmend_bench.risa.methods import (
    ABLATION,
    ANY_OVERLAP,
    BASELINES,
    METHODS,
    ONLY_IMAGES,
    ONLY_TABLES,
    TREES,
)
from fedmend_bench.risa.runs import Part, run_part, start
from fedmend_bench.risa.search import measured, searched

NAME = "risa"
HELP = "RISA, networks and trees on CIFAR-10 halves and four tables, beside the paper"

RISA, PUBLISHED, SELF_TRAINED = "RISA", "RISA paper()", "RISA self-trained"
REFERENCES = tuple(name for name in CLEAR if name.startswith("GBDT"))
EVERY = (*BASELINES, *TREES, RISA, PUBLISHED, *REFERENCES)
WITHIN = 0.3
"""By how many points of accuracy RISA may stay below a baseline on images; on tables by none."""
QUICK, CHANCE = ("Local", "VFL", "SFHTL", RISA), 4.0
"""What the small version runs, whole trainings, and two standard errors of its one seed, points."""


def run(
    quick: bool = False,
    *,
    data: Any = ("cifar10", *TABLES),
    methods: Any = EVERY,
    overlaps: Any = (1, 10, 50),
    seeds: Any = None,
    rows: int | None = 16_000,
    test: int | None = 8_000,
    epochs: int | None = None,
    ablation: bool = False,
    cost: bool = False,
    search: int = 0,
    parties: int = 2,
    processes: int = 1,
    device: str = "auto",
    folder: str | None = None,
) -> BenchResult:
    """Run all methods on all data at all overlaps (in percent), and say which promises hold.

    seeds: how many, or which (3 on images, 5 on tables). rows, test: at most so many rows of
    tables (images: all). ablation: the paper's Table III at 10 %. cost: split training beside the
    same network in one piece. search: so many trials of its settings for every method, judged by
    held-out training rows, instead. parties: of tables. processes: runs at a time. folder: results
    of runs are kept here, and a benchmark that was stopped goes on from them.
    """
    names, wanted = chosen("data", data, NAMES), chosen("methods", methods, [*METHODS, *CLEAR])
    shares = [float(each) for each in listed(overlaps)]
    if quick:
        names, shares, seeds = ["digits"], shares[1:2] or shares, 1
        wanted = list(QUICK) if methods == EVERY else wanted
    for share in shares:
        if not 0 < share < 100:
            raise ConfigError(f"an overlap is a percentage between 0 and 100, got {share:g}")
    if search:
        scores = partial(measured, folder=folder, processes=processes)
        return BenchResult(NAME, searched(names, wanted, shares, search, rows or 16_000, scores))
    device = str(resolve_device(device))
    make = partial(
        _parts,
        names,
        seeds=seeds,
        sizes=(rows, test),
        epochs=epochs,
        device=device,
        parties=parties,
    )
    parts = make(wanted, shares) + (make(ABLATION, [10.0]) if ablation else [])
    found = run_cells(run_part, list(dict.fromkeys(parts)), folder, processes, start)
    table = summary(found)
    bars = promises(found, CHANCE if quick else WITHIN)
    if ablation:
        table += ablation_rows(found)
    if cost:
        costs = cost_rows(device, quick)
        table += costs
        bars += [
            Bar.at_most(f"split beside one piece, {row['data']}", row["ratio"], 1.25)
            for row in costs
        ]
    return BenchResult(NAME, table, bars)


def _parts(
    names: Sequence[str],
    methods: Sequence[str],
    shares: Sequence[float],
    *,
    seeds: Any,
    sizes: tuple[int | None, int | None],
    epochs: int | None,
    device: str,
    parties: int,
) -> list[Part]:
    """Seed by seed, so that a benchmark that is stopped early has whole tables of fewer seeds."""
    found = []
    for name in names:
        image = name in IMAGES
        limits = (None, None) if image else sizes
        for seed in numbered(seeds if seeds is not None else 3 if image else 5):
            for share in shares:
                for method in methods:
                    if method in (ONLY_TABLES if image else ONLY_IMAGES):
                        continue
                    # Without a partner the overlap changes nothing: once is enough.
                    at = shares[0] if method in ANY_OVERLAP else share
                    where = device if image else "cpu"
                    found.append(Part(name, method, at, seed, *limits, epochs, where, parties))
    return sorted(dict.fromkeys(found), key=lambda part: part.seed)


# ---------------------------------------------------------------------------------- results


def grouped(found: Sequence[dict[str, Any]]) -> dict[tuple[str, str, float], list[dict[str, Any]]]:
    """Runs by data, method and overlap; what a party does alone stands for all overlaps."""
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = defaultdict(list)
    shares = defaultdict(set)
    for each in found:
        shares[each["data"]].add(each["overlap"])
    for each in found:
        if "failed" in each:
            continue
        at = shares[each["data"]] if each["method"] in ANY_OVERLAP else [each["overlap"]]
        for share in at:
            groups[each["data"], each["method"], share].append(each)
    return groups


def summary(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for every method: mean and spread at every overlap, and the paper's number."""
    groups = grouped(found)
    theirs = paper_table()
    rows = []
    for name, method in dict.fromkeys((data, method) for data, method, _ in groups):
        row: dict[str, Any] = {"data": name, "method": method}
        mine = {share: runs for (d, m, share), runs in groups.items() if (d, m) == (name, method)}
        for share in sorted(mine):
            values = np.array([each["value"] for each in mine[share]])
            row["metric"] = mine[share][0]["metric"]
            row["seeds"] = len(values)
            row[f"{share:g} %"] = float(values.mean())
            row[f"± {share:g}"] = float(values.std(ddof=1)) if len(values) > 1 else None
            row[f"paper {share:g}"] = theirs.get((name, method.removesuffix(" paper()"), share))
        row |= _more(mine)
        rows.append(row)
    rows += [
        {"data": each["data"], "method": each["method"], "failed": each["failed"]}
        for each in found
        if "failed" in each
    ]
    return rows


def _more(runs: dict[float, list[dict[str, Any]]]) -> dict[str, Any]:
    """Seconds, what one side alone is worth, and how well doubt ranks errors, at most overlap."""
    last = runs[max(runs)]
    seconds = [each["seconds"] for group in runs.values() for each in group]
    row: dict[str, Any] = {"seconds": float(np.mean(seconds))}
    for key in ("label party's side", "partner's side, accuracy"):
        values = [each[key] for each in last if key in each]
        row[key] = float(np.mean(values)) if values else None
    best = "uncertainty" if "uncertainty" in last[0] else "trust"
    row["auroc of doubt"] = float(np.mean([each[best]["auroc"] for each in last]))
    surest = [each[best]["accuracy of the surest half"] for each in last]
    row["surest half"] = 100 * float(np.mean(surest))
    errors = [each["calibration error"] for each in last if "calibration error" in each]
    row["calibration error"] = 100 * float(np.mean(errors)) if errors else None
    return row


def ablation_rows(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Table III: which parts of the published method do what, at 10 %."""
    groups = grouped(found)
    theirs = paper_rows("risa_ablation")
    rows = []
    for name in dict.fromkeys(each["data"] for each in found):
        column = {"cifar10": "cifar10", "criteo-tiny": "criteo"}.get(name)
        for method, paper in zip(ABLATION, theirs, strict=True):
            runs = groups.get((name, method, 10.0), [])
            rows.append(
                {
                    "data": name,
                    "method": f"ablation: {method}",
                    "10 %": float(np.mean([each["value"] for each in runs])) if runs else None,
                    "paper 10": float(paper[column]) if column else None,
                }
            )
    return rows


def paper_table() -> dict[tuple[str, str, float], float]:
    """The paper's tables I and II: (data, method, overlap in percent) to percent."""
    return {
        (row["data"], row["method"], float(share)): float(value)
        for row in paper_rows("risa")
        for share, value in row.items()
        if share not in ("data", "method")
    }


# ---------------------------------------------------------------------------------- promises


def promises(found: Sequence[dict[str, Any]], within: float = WITHIN) -> list[Bar]:
    """The bars that the runs at hand can tell about; within: points below a baseline on images."""
    means = {
        key: float(np.mean([each["value"] for each in runs]))
        for key, runs in grouped(found).items()
    }
    names = dict.fromkeys(data for data, method, _ in means if method == RISA)
    bars: list[Bar] = []
    for name in names:
        shares = sorted(share for data, method, share in means if (data, method) == (name, RISA))
        for share in shares:
            bars += _beside(means, name, share, within)
        if name == "cifar10":
            bars += _targets(means, found)
    return bars + _pseudo_bars(found)


def _beside(means: dict[Any, float], name: str, share: float, within: float) -> list[Bar]:
    """RISA against Local and against the best baseline."""
    mine = means[name, RISA, share]
    others = {
        method: value
        for (data, method, at), value in means.items()
        if data == name and at == share and method in (*BASELINES, *TREES)
    }
    bars = []
    if "Local" in others:
        gain = mine - others["Local"]
        bars.append(Bar.at_least(f"{name}, {share:g} %: RISA over Local", gain, 0))
    if others:
        best = max(others, key=others.__getitem__)
        gain = mine - others[best]
        least = -within if name in IMAGES else 0.0
        bars.append(Bar.at_least(f"{name}, {share:g} %: RISA over the best ({best})", gain, least))
    return bars


def _targets(means: dict[Any, float], found: Sequence[dict[str, Any]]) -> list[Bar]:
    bars = [
        Bar.at_least(f"cifar10, {share} %: RISA", means["cifar10", RISA, share], target)
        for share, target in ((10, 85.0), (50, 89.0))
        if ("cifar10", RISA, share) in means
    ]
    runs = [
        each
        for each in found
        if each["data"] == "cifar10" and each["method"] == RISA and "failed" not in each
    ]
    ranks = [each["uncertainty"]["auroc"] for each in runs if _at(each, 50, "uncertainty")]
    if ranks:
        name = "cifar10, 50 %: AUROC of RISA's uncertainty"
        bars.append(Bar.at_least(name, float(np.mean(ranks)), 0.8))
    # Runs side by side share the device: the quickest was least disturbed.
    seconds = min((each["seconds"] for each in runs), default=None)
    if seconds is not None:
        bars.append(Bar.at_most("cifar10: seconds of the quickest RISA run", seconds, 40))
    return bars


def _at(run: dict[str, Any], share: float, key: str) -> bool:
    return run["overlap"] == share and key in run


def _pseudo_bars(found: Sequence[dict[str, Any]]) -> list[Bar]:
    """Selection must raise the accuracy of pseudo-labels."""
    bars = []
    for (name, method, share), runs in grouped(found).items():
        told = [each["pseudo-labels"] for each in runs if each.get("pseudo-labels")]
        told = [each for each in told if each.get("before") and each.get("after")]
        if method not in (RISA, SELF_TRAINED) or not told:
            continue
        gain = float(np.mean([each["after"] - each["before"] for each in told]))
        bars.append(Bar(f"{name}, {share:g} %: selection's gain ({method})", gain, "> 0", gain > 0))
    return bars
