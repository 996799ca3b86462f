"""SAGE's tables, made of files of results: long runs on CIFAR-10, and small tables."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedmend_bench import markdown as md
from fedmend_bench.cells import Kept
from fedmend_bench.markdown import Tables
from fedmend_bench.sage.curves import MARKS, Curve, read_curves
from fedmend_bench.sage.data import paper_accuracy
from fedmend_bench.sage.methods import with_settings
from fedmend_bench.sage.tables import CANDIDATES, Cell, summary, taken

CIFAR, ALONE, SEARCHED = "sage-cifar10.csv", "sage-tables.jsonl", "sage-digits.csv"
BASES = {"FlexMatch+SAGE": "FedAvg+FlexMatch", "FedDB+SAGE": "FedDB", "FedDure+SAGE": "FedDure"}
ROUNDS = (1, 5, 10, 20, 30, 50, 75, 100, 150, 200, 250, 300)
FIFTY = 50
PUBLISHED = ("tau=0.95", "l2=10", "keep=0.95", "prox=0.001")
"""Of the settings that are searched, as the methods' papers have them."""
_FEW = {
    name: name for name in ("labels at", "data", "alpha", "labels", "seeds", "alone", *CANDIDATES)
} | {
    "default less FedAvg": "`auto` less FedAvg, points",
    "default less alone": "less alone",
    "default less alone, own rows": "on a client's own rows",
    "FedAvg left": "FedAvg left, of the seeds",
}


def _groups(curves: Sequence[Curve]) -> list[list[Curve]]:
    """Runs that differ in their seed only."""
    found: dict[tuple[str, float], list[Curve]] = {}
    for curve in sorted(curves, key=lambda c: (c.alpha != 0.5, c.alpha, c.method != "SAGE")):
        found.setdefault((curve.method, curve.alpha), []).append(curve)
    return list(found.values())


def _longest(group: Sequence[Curve]) -> list[Curve]:
    """The runs that have as many rounds as any: one that was cut off is no seed of a mean."""
    rounds = max(curve.rounds[-1]["round"] for curve in group)
    return [curve for curve in group if curve.rounds[-1]["round"] == rounds]


def _last_ten(curve: Curve, key: str = "accuracy") -> float | None:
    return curve.late(key) if curve.whole else None


def _averaged(group: Sequence[Curve], tell: Callable[[Curve], float | None]) -> str:
    """Mean ± standard error over seeds, where all of them can tell."""
    values = [tell(curve) for curve in group]
    known = [100 * value for value in values if value is not None]
    if len(known) < len(group):
        return ""
    error = statistics.stdev(known) / math.sqrt(len(known))
    return f"**{statistics.mean(known):.2f} ± {md.short(error, 2)}**"


def _last(curve: Curve, key: str = "accuracy") -> float | None:
    return curve.rounds[-1].get(key)


def _best(curve: Curve, key: str = "accuracy") -> float:
    return max(curve.figures(key, slice(None)))


def _standing(file: Path, key: str) -> str:
    """Every run's last and best round and its last ten, and means over seeds."""
    told = [partial(tell, key=key) for tell in (_last, _best, _last_ten)]
    lines = []
    for group in _groups(read_curves(file)):
        method, alpha = group[0].method, group[0].alpha
        paper = paper_accuracy("cifar10", alpha)
        for curve in group:
            last, best, ten = (tell(curve) for tell in told)
            reached = [
                each["round"] for each in curve.rounds if each.get(key, 0) >= paper["SAGE"] / 100
            ]
            top = next(each["round"] for each in curve.rounds if each.get(key) == best)
            line = [
                method + (" (one seed)" if len(_longest(group)) == 1 else ""),
                f"{alpha:g}",
                str(curve.seed),
                str(curve.rounds[-1]["round"]),
                md.percent(last),
                f"{md.percent(best)} ({top})",
                md.percent(ten),
                str(reached[0]) if reached and curve.whole else "–",
            ]
            if key == "accuracy":
                line += [md.percent(curve.averaged.get("5")), str(paper.get(method, "–"))]
            lines.append(line)
        ended = _longest(group)
        if len(ended) > 1:
            means = [_averaged(ended, tell) for tell in told]
            line = [f"**{method}, mean ± s.e.**", f"{alpha:g}", f"{len(ended)} seeds", "", *means]
            lines.append(line + [""] * (len(lines[-1]) - len(line)))
    head = ["", "alpha", "seed", "rounds", "last, %", "best, % (round)", "mean of the last ten, %"]
    head.append("first at the paper's figure for SAGE")
    if key == "accuracy":
        head += ["mean over five rounds, last, %", "paper"]
    return md.table(head, lines)


def _in_short(file: Path) -> str:
    """Long runs of the paper's Table 1, for the page of all benchmarks."""
    lines = []
    for group in map(_longest, _groups(read_curves(file))):
        rounds = group[0].rounds[-1]["round"]
        method, alpha = group[0].method, group[0].alpha
        paper = paper_accuracy("cifar10", alpha).get(method)
        if rounds >= 200 and paper is not None:
            told = [
                _averaged(group, tell) if len(group) > 1 else md.percent(tell(group[0]))
                for tell in (_best, _last)
            ]
            lines.append([method, f"{alpha:g}", str(len(group)), str(rounds), *told, str(paper)])
    head = ["", "alpha", "seeds", "rounds", "best, %", "last, %", "paper, 300 rounds"]
    return md.table(head, lines)


def _by_round(file: Path) -> str:
    """Accuracy in per cent, labels right and rows used, round by round."""
    lines = []
    for group in _groups(read_curves(file)):
        for curve in group:
            at = {each["round"]: each for each in curve.rounds}
            cells = []
            for number in ROUNDS:
                entry = at.get(number)
                if entry is None:
                    cells.append("–")
                    continue
                shares = [
                    "–" if entry.get(key) is None else md.short(entry[key], 2)
                    for key in ("pseudo_accuracy", "utilisation")
                ]
                cells.append(f"{md.percent(entry['accuracy'], 1)} ({shares[0]}, {shares[1]})")
            marks = [curve.reached(mark) if curve.whole else None for mark in MARKS]
            name = f"{curve.method}, {curve.alpha:g}, {curve.seed}"
            lines.append([name, *cells, " / ".join(str(each or "–") for each in marks)])
    head = [f"{100 * mark:.0f}" for mark in MARKS]
    return md.table(["round", *map(str, ROUNDS), f"first at {' / '.join(head)} %"], lines)


def _plug_ins(file: Path) -> str:
    """A baseline, and it with SAGE, after as many rounds as the shorter of both has."""
    runs = {(each.method, each.alpha, each.seed): each for each in read_curves(file)}
    lines = []
    for (method, alpha, seed), curve in runs.items():
        base = runs.get((BASES.get(method, ""), alpha, seed))
        if base is None:
            continue
        rounds = min(len(base.rounds), len(curve.rounds))
        pairs = zip(curve.accuracies[:rounds], base.accuracies[:rounds], strict=True)
        ahead = sum(mine > its for mine, its in pairs)
        for each, beside in ((base, ""), (curve, f"{ahead} of {rounds}")):
            shares = [each.late(key, rounds) for key in ("pseudo_accuracy", "utilisation")]
            accuracies = each.accuracies[:rounds]
            told = accuracies[-1], max(accuracies), each.late("accuracy", rounds)
            line = [each.method, str(rounds), *map(md.percent, told), beside]
            lines.append(line + [md.short(share or 0.0, 2) for share in shares])
    head = ["", "rounds", "last, %", "best, %", "mean of the last ten, %", "ahead in"]
    return md.table([*head, "right", "used"], lines)


def _few_labels(file: Path, rounds: int) -> str:
    """Small tables: every candidate, and what ``auto`` takes; rounds: of each, at most."""
    rows = summary([line for line in _few(file) if line[0].rounds == rounds and line[0].folds])
    told = []
    for row in rows:
        row["alpha"] = f"{row['alpha']:g}"
        values = [row[name] for name in _FEW]
        told.append(
            [md.short(each, 3) if isinstance(each, float) else str(each) for each in values]
        )
    return md.table(list(_FEW.values()), told)


def _few(file: Path) -> list[tuple[Cell, dict[str, Any]]]:
    return [(Cell(**line["cell"]), line["found"]) for line in Kept.at(file).all()]


def _counted(file: Path) -> str:
    """AUC / log loss where rounds are counted by held-out rows, beside all fifty of FedAvg's."""
    found = {cell: told for cell, told in _few(file) if cell.rounds == FIFTY}
    groups: dict[tuple[str, str], list[dict[str, dict[str, float]]]] = {}
    for cell, told in found.items():
        whole = found.get(replace(cell, patience=None, folds=0))
        if cell.patience is None or whole is None:
            continue
        columns = {"FedAvg, all 50 rounds": whole["test"]["FedAvg"], **told["test"]}
        columns["`auto`"] = told["test"][taken(told)]
        groups.setdefault((cell.where, cell.data), []).append(columns)
    rows = []
    for (where, data), each in groups.items():
        cells = [where, data, str(len(each))]
        for name in each[0]:
            values = [
                md.short(statistics.mean(one[name][what] for one in each), 3)
                for what in ("auc", "log_loss")
            ]
            cells.append(" / ".join(values))
        gains = [one["`auto`"]["auc"] - one["FedAvg, all 50 rounds"]["auc"] for one in each]
        rows.append([*cells, md.gained(gains)])
    names = next(iter(groups.values()))[0]
    head = ["labels at", "data", "seeds", *names, "`auto`'s AUC less all 50 rounds'"]
    return md.table(head, rows)


def _searched(file: Path) -> str:
    """A setting of each method, chosen on rows held out, and what that is worth on test rows."""
    held: dict[str, dict[str, list[float]]] = {}
    tests: dict[str, dict[str, float]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for run in csv.DictReader(lines):
            accuracy = float(run["accuracy"])
            if float(run["held_out"]):
                tried = held.setdefault(with_settings(run["method"])[0], {})
                tried.setdefault(run["method"], []).append(accuracy)
            else:
                tests.setdefault(run["method"], {})[run["seed"]] = accuracy
    rows = []
    for method, tried in held.items():
        means = {name: statistics.mean(each) for name, each in tried.items()}
        best = max(means, key=lambda name: means[name])
        published = next((name for name in means if name.endswith(PUBLISHED)), best)
        said = {name: f"{name.removeprefix(method)} {md.short(means[name], 3)}" for name in means}
        said[best] = f"**{said[best].strip()}**"
        own, chosen = (tests.get(name, {}) for name in (published, best))
        gains = [chosen[seed] - own[seed] for seed in own if seed in chosen]
        line = [method, ", ".join(each.strip() for each in said.values())]
        line += [
            md.short(statistics.mean(each.values()), 3) if each else "–" for each in (own, chosen)
        ]
        rows.append([*line, "–" if best == published or not gains else md.gained(gains)])
    head = ["", "on rows held out", "test, published", "test, chosen", "gain"]
    return md.table(head, rows)


TABLES: Tables = {
    "sage-searched": (SEARCHED, _searched),
    "sage-tables": (ALONE, partial(_few_labels, rounds=FIFTY)),
    "sage-tables-counted": (ALONE, _counted),
    "sage-tables-twenty": (ALONE, partial(_few_labels, rounds=20)),
    "sage-runs": (CIFAR, partial(_standing, key="accuracy")),
    "sage-published": (CIFAR, partial(_standing, key="accuracy_published")),
    "sage-by-round": (CIFAR, _by_round),
    "sage-plug-ins": (CIFAR, _plug_ins),
    "sage-in-short": (CIFAR, _in_short),
}
