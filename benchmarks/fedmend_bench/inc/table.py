"""`fedmend bench inc`: InC beside its baselines and beside the paper's tables.

    fedmend bench inc -o datasets=letter -o models=lr -o seeds=3
    fedmend bench inc -o datasets=letter,covertype -o methods=all -o device=cuda -o folder=out
    fedmend bench inc -o crowds=bank,labelme -o rows=2000
    fedmend bench inc -o part=crowd -o seeds=3

Every data set, model and kind of noise is one batch of runs: all methods, settings and seeds train
side by side. What a federation adds is measured apart (`cost`). Accuracies are means over seeds,
after the last epoch.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedmend.split.config import resolve_device
from fedmend_bench.harness import Bar, BenchResult, device_name
from fedmend_bench.inc import federated
from fedmend_bench.inc.batched import CLEAN, SPECS, TABLE_METHODS, Outcome
from fedmend_bench.inc.crowds import GIVEN, SILENT, TABLES, compare, votes_alone
from fedmend_bench.inc.data import HUMAN, KINDS, SPANS, TABLE_KINDS, paper_table
from fedmend_bench.inc.runs import MODELS, Finding, finding, plans
from fedmend_bench.options import chosen, listed

logger = logging.getLogger(__name__)

NAME = "inc"
HELP = "InC and its baselines on Letter, Covertype, Sensorless, LabelMe, CIFAR-10N; its cost"

NOISY = ("letter", "covertype", "sensorless", "digits")
CROWDS = ("labelme", "cifar10n")
DATA, NETWORKS = "letter,covertype,sensorless,labelme,cifar10n", "lr,mlp,mlp-wide"
OURS, PUBLISHED = "InC product", "InC row"
VOTES = ("MJ", "EM")
CHANCE = 0.012
"""Two standard errors of the mean of eight accuracies on 400 rows, in the small version."""
LIMIT = ("corrected", CLEAN)
CORRECTION = {
    ("letter", "lr"): (0.995, 0.97, 0.97, 0.94),
    ("letter", "mlp"): (0.998, 0.99, 0.99, 0.98),
    ("letter", "mlp-wide"): (0.998, 0.99, 0.99, 0.98),
    ("covertype", "lr"): (0.97, 0.83, 0.83, 0.80),
}
MAJORITY_LABELME = 0.760
COST = {"LR": (10, 4), "MLP": (10, 4), "default": (6, 2)}
"""Epochs and rounds in which a network's cost is measured: under two minutes together."""


def run(
    quick: bool = False,
    datasets: str | Sequence[str] = DATA,
    models: str | Sequence[str] = NETWORKS,
    kinds: str | Sequence[str] = TABLE_KINDS,
    methods: str | Sequence[str] = TABLE_METHODS,
    settings: str | Sequence[str] = tuple(SPANS),
    seeds: int = 5,
    first_seed: int = 0,
    epochs: int = 100,
    rows: int | None = None,
    sheets: int | None = None,
    device: str = "auto",
    cost: bool = True,
    labelled: float = 1.0,
    corrector: str | None = None,
    crowds: str | Sequence[str] = (),
    annotators: str | Sequence[int] = (3, 10, 30),
    part: str | None = None,
    folder: str | None = None,
) -> BenchResult:
    """All that is named; `rows` keeps a part of each data set. `quick` is a smoke test.

    folder: for the outcomes of each batch of runs; those found there are not trained again.
    sheets: how many of CIFAR's five training sheets to read.
    labelled: the share of rows that each annotator labels, where noise is put on.
    corrector: measure InC with a corrector of this model instead, over a federation.
    crowds: measure InC's defaults beside those of EM and MJ instead, on these tables with so many
    `annotators`, and on LabelMe and a made text (`crowds.py`); seeds from `first_seed` on.
    part: "crowd" measures what votes alone cost among 203 annotators of 5,000 (or `rows`) rows,
    "seconds" what trainings of 10 epochs cost on all shapes of the paper's Table 3.
    """
    if quick:
        seeds, epochs, rows = min(seeds, 2), min(epochs, 10), min(rows or 2000, 2000)
        datasets = "letter" if datasets == DATA else datasets
        models = "lr,mlp" if models == NETWORKS else models
    if part is not None:
        if chosen("part", part, ("crowd", "seconds")) == ["crowd"]:
            lines, promises = votes_alone(rows or 5000, seeds)
        else:
            lines, promises = _seconds(rows)
        return BenchResult(NAME, lines, promises, device=device_name("cpu"))
    if crowds:
        counts = [str(each) for each in SILENT]
        lines, promises = compare(
            chosen("crowds", crowds, (*TABLES, *GIVEN)),
            [int(each) for each in chosen("annotators", map(str, listed(annotators)), counts)],
            seeds=seeds,
            first_seed=first_seed,
            rows=rows or 2000,
            folder=folder,
        )
        return BenchResult(NAME, lines, promises, device=device_name("cpu"))
    if corrector is not None:
        (corrector,) = chosen("corrector", corrector, MODELS)
        return _corrector(
            corrector,
            chosen("datasets", datasets, NOISY),
            chosen("models", models, MODELS),
            chosen("kinds", kinds, KINDS),
            chosen("settings", settings, SPANS),
            {"seeds": seeds, "epochs": epochs, "rows": rows, "folder": folder},
        )
    device = str(resolve_device(device))
    out: list[dict[str, Any]] = []
    bars: list[Bar] = []
    seconds: dict[tuple[str, str, str], float] = {}
    for plan in plans(
        chosen("datasets", datasets, (*NOISY, *CROWDS)),
        chosen("models", models, MODELS),
        chosen("kinds", kinds, KINDS),
        CROWDS,
        methods=tuple(chosen("methods", methods, SPECS)),
        settings=tuple(chosen("settings", settings, SPANS)),
        seeds=seeds,
        epochs=epochs,
        rows=rows,
        sheets=sheets,
        labelled=labelled,
    ):
        found = finding(plan, device, folder)
        seconds[plan.data, plan.model, plan.kind] = found.seconds
        if plan.kind == HUMAN:
            out += human_rows(plan.data, plan.model, found)
            bars += _crowd_bars(plan.data, plan.model, found.outcomes)
        else:
            whole_votes = labelled == 1 and plan.kind in TABLE_KINDS
            out += noise_rows(plan.data, plan.model, plan.kind, found, beside=whole_votes)
            promised = _quick_bars if quick else _bars if whole_votes else _behind_bars
            bars += promised(plan.data, plan.model, plan.kind, found.outcomes)
    whole = sum(seconds.get(("letter", model, "symmetric"), np.nan) for model in ("lr", "mlp"))
    if np.isfinite(whole) and not quick:
        limit = 30.0 if device.startswith("cuda") else 180.0
        bars.append(Bar.at_most("Letter table, LR and MLP, symmetric, seconds", whole, limit))
    if cost and federated.possible():
        for network in ("LR",) if quick else COST:
            shape = (2000, 4, 1) if quick else (16_000, *COST[network])
            more, promises = federated.cost(*shape, network)
            out, bars = out + more, bars + promises
    elif cost:
        logger.warning("cost not measured: cryptography or tenseal is not installed")
    return BenchResult(NAME, out, bars, device=device_name(device))


def _seconds(rows: int | None) -> tuple[list[dict[str, Any]], list[Bar]]:
    """One training of each method on every shape of the paper's Table 3, of `rows` rows at most."""
    lines: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for data, network in itertools.product(federated.SHAPES, ("LR", "MLP")):
        whole = federated.SHAPES[data][0]
        more, promises = federated.cost(min(whole, rows or whole), 10, 1, network, data)
        lines += more
        bars += [replace(bar, name=f"{data}, {bar.name}") for bar in promises]
    return lines, bars


def _corrector(
    shape: str,
    data: list[str],
    models: list[str],
    kinds: list[str],
    settings: list[str],
    how: dict[str, Any],
) -> BenchResult:
    out: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for name, model, kind in itertools.product(data, models, kinds):
        began = time.perf_counter()
        outcomes = federated.outcomes(name, model, shape, kind, settings, **how)
        found = Finding(outcomes, time.perf_counter() - began, 0, "cpu")
        rows = noise_rows(name, model, kind, found)
        out += [row | {"corrector": shape} for row in rows if "ceiling" not in row["method"]]
        own = _bars(name, model, kind, outcomes)
        bars += [replace(bar, name=f"{bar.name}, corrector {shape}") for bar in own]
    return BenchResult(NAME, out, bars, device=device_name("cpu"))


# ---------------------------------------------------------------------------------- showing


def noise_rows(
    name: str, model: str, kind: str, found: Finding, beside: bool = True
) -> list[dict[str, Any]]:
    """Accuracy and corrected labels of each method, setting by setting, the paper's beside ours."""
    rows = []
    for measure in ("accuracy", "corrected"):
        theirs = _paper(measure, name, model) if beside and kind == "symmetric" else {}
        for method in dict.fromkeys(outcome.method for outcome in found.outcomes):
            own = [each for each in found.outcomes if each.method == method]
            values = [_measured(each, measure) for each in own]
            row: dict[str, Any] = {"data": name, "model": model, "noise": kind, "of": measure}
            row["method"] = f"{CLEAN} (ceiling)" if (measure, method) == LIMIT else method
            row |= {each.setting: float(v.mean()) for each, v in zip(own, values, strict=True)}
            called = "InC" if method in (OURS, PUBLISHED) else method
            row |= {f"{each.setting}, paper": theirs.get((called, each.setting)) for each in own}
            row["sd"] = float(np.mean([value.std() for value in values]))
            row |= {"seconds, all": found.seconds, "redrawn": found.redrawn}
            rows.append(row)
    return rows


def _measured(outcome: Outcome, measure: str) -> np.ndarray:
    return outcome.accuracy if measure == "accuracy" else outcome.correction


def _paper(measure: str, name: str, model: str) -> dict[tuple[str, str], float]:
    """The paper has one MLP; its corrected labels are those of LR."""
    if measure == "corrected":
        return paper_table("correction", name, model)
    return paper_table("accuracy", name, model.split("-")[0])


def human_rows(name: str, model: str, found: Finding) -> list[dict[str, Any]]:
    return [
        {
            "data": name,
            "model": model,
            "noise": HUMAN,
            "method": outcome.method,
            "accuracy": float(outcome.accuracy.mean()),
            "corrected": float(outcome.correction.mean()),
            "sd": float(outcome.accuracy.std()),
            "seconds, all": found.seconds,
        }
        for outcome in found.outcomes
    ]


def _table(outcomes: list[Outcome]) -> dict[tuple[str, str], Outcome]:
    return {(outcome.method, outcome.setting): outcome for outcome in outcomes}


def _bars(name: str, model: str, kind: str, outcomes: list[Outcome]) -> list[Bar]:
    """The promises that these outcomes can keep or break."""
    table, bars = _table(outcomes), []
    for setting in dict.fromkeys(outcome.setting for outcome in outcomes):
        if (OURS, setting) not in table:
            continue
        ours = table[OURS, setting]
        where = f"{name} {model} {kind} {setting}"
        mean = float(ours.accuracy.mean())
        slack = {"letter": 0.005, "covertype": 0.002}.get(name)
        if slack is not None and (name == "letter" or (model, kind) == ("lr", "symmetric")):
            clean = float(table[CLEAN, setting].accuracy.mean())
            bars.append(Bar.at_least(f"{where}: accuracy", mean, round(clean - slack, 4)))
        if kind == "symmetric":
            bars += _symmetric_bars(name, model, setting, ours, where)
        elif setting == "high-large" and slack is not None and (PUBLISHED, setting) in table:
            lead = mean - float(table[PUBLISHED, setting].accuracy.mean())
            bars.append(Bar.at_least(f"{where}: ahead of the published rule", lead, 0.05))
    return bars + _behind_bars(name, model, kind, outcomes)


def _behind_bars(name: str, model: str, kind: str, outcomes: list[Outcome]) -> list[Bar]:
    """InC is nowhere behind Dawid–Skene."""
    table, bars = _table(outcomes), []
    for setting in dict.fromkeys(outcome.setting for outcome in outcomes):
        if ("EM", setting) in table and (OURS, setting) in table:
            means = [float(table[each, setting].accuracy.mean()) for each in ("EM", OURS)]
            where = f"{name} {model} {kind} {setting}: behind Dawid–Skene"
            bars.append(Bar.at_most(where, means[0] - means[1], 0.002))
    return bars


def _quick_bars(name: str, model: str, kind: str, outcomes: list[Outcome]) -> list[Bar]:
    """For two seeds and a tenth of the training: labels beside voting, networks within chance."""
    of = {
        (method, measure): float(
            np.mean([_measured(each, measure).mean() for each in outcomes if each.method == method])
        )
        for method in (OURS, *VOTES)
        for measure in ("corrected", "accuracy")
        if any(each.method == method for each in outcomes)
    }
    rivals = [method for method in VOTES if (method, "accuracy") in of]
    if not rivals or (OURS, "accuracy") not in of:
        return []
    return [
        Bar.at_least(
            f"{name} {model} {kind}: {measure}, beside the better of {' and '.join(rivals)}",
            of[OURS, measure],
            round(max(of[method, measure] for method in rivals) - chance, 4),
        )
        for measure, chance in (("corrected", 0.0), ("accuracy", CHANCE))
    ]


def _symmetric_bars(name: str, model: str, setting: str, ours: Outcome, where: str) -> list[Bar]:
    bars = []
    number = list(SPANS).index(setting)
    if (name, model) in CORRECTION:
        corrected = float(ours.correction.mean())
        bars.append(Bar.at_least(f"{where}: corrected", corrected, CORRECTION[name, model][number]))
    if model == "mlp-wide" and name in ("letter", "covertype"):
        theirs = paper_table("accuracy", name, "mlp")["InC", setting]
        mean = float(ours.accuracy.mean())
        bars.append(Bar.at_least(f"{where}: the paper's InC", mean, theirs))
    return bars


def _crowd_bars(name: str, model: str, outcomes: list[Outcome]) -> list[Bar]:
    if name != "labelme" or model != "lr":
        return []
    means = {each.method: float(each.accuracy.mean()) for each in outcomes}
    best = max(value for method, value in means.items() if method.startswith("InC"))
    bars = [Bar.at_least("labelme lr: best InC, majority vote", best, MAJORITY_LABELME)]
    if "EM" in means:
        bars.append(Bar.at_least("labelme lr: best InC, Dawid–Skene", best, round(means["EM"], 4)))
    return bars
