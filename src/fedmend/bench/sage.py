"""`fedmend bench sage`: SAGE and its baselines with few labels, beside the paper's Table 1.

One run is a method at an alpha under a seed. It writes its curve and a checkpoint into `folder`
after every few rounds, and goes on from there when it is asked for again: 300 rounds may take
several sittings at a GPU.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmend._json import plain, write_json
from fedmend._suggest import did_you_mean
from fedmend.bench.harness import Bar, BenchResult, device_name
from fedmend.bench.sage_data import World, paper_accuracy, world_of
from fedmend.errors import ConfigError

NAME = "sage"
HELP = "few labels at many clients: accuracy by round beside the paper's Table 1; resumable"

MARKS = (0.70, 0.80, 0.85)
# Rounds between two checkpoints.
KEEP_EVERY = 10


@dataclass
class Curve:
    """A run so far, as its JSON file holds it."""

    method: str
    dataset: str
    alpha: float
    seed: int
    settings: dict[str, Any]
    device: str = ""
    rounds: list[dict[str, Any]] = field(default_factory=list)
    peak_gb: float | None = None

    @property
    def accuracies(self) -> list[float]:
        return [float(each["accuracy"]) for each in self.rounds]

    def reached(self, share: float) -> int | None:
        """The first round at or above this accuracy."""
        hits = [each["round"] for each in self.rounds if each["accuracy"] >= share]
        return int(hits[0]) if hits else None

    def late(self, key: str, rounds: int = 10) -> float | None:
        """The mean of a figure over the last rounds."""
        values = [each[key] for each in self.rounds[-rounds:] if each.get(key) is not None]
        return float(np.mean(values)) if values else None

    def at(self, number: int) -> float | None:
        """Best accuracy up to a round that was reached."""
        if len(self.rounds) < number:
            return None
        return max(self.accuracies[:number])


def run(
    quick: bool = False,
    *,
    dataset: str = "cifar10",
    methods: str | Sequence[str] | None = None,
    alpha: float | Sequence[float] = 0.5,
    rounds: int = 300,
    minutes: float | None = None,
    folder: str | None = None,
    device: str = "auto",
    mode: str = "auto",
    precision: str = "bf16",
    settings: str = "paper",
    split: str = "paired",
    clients: int = 20,
    per_round: int = 8,
    labelled: float | int = 500,
    sheets: Sequence[int] = (1, 2, 3, 4, 5),
    seed: int | Sequence[int] = 0,
) -> BenchResult:
    """Train each method at each alpha; see docs/sage.md for what the options mean."""
    if quick:
        dataset, rounds, clients, per_round, labelled = "digits", min(rounds, 6), 5, 5, 10
        device, precision, settings, split = "cpu", "float32", "default", "plain"
    names = _names(methods or ("FixMatch-LPL,SAGE" if quick else "SAGE"))
    alphas = [float(each) for each in (alpha if isinstance(alpha, Sequence) else [alpha])]
    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    until = None if minutes is None else time.monotonic() + 60 * minutes
    home = Path(folder) if folder is not None else None
    curves = []
    facts = {"settings": settings, "split": split, "labelled": labelled}
    options = {"device": where, "mode": mode, "precision": precision}
    seeds = list(seed) if isinstance(seed, Sequence) else [seed]
    for each, name, number in itertools.product(alphas, names, seeds):
        world = world_of(
            dataset,
            each,
            clients=clients,
            labelled=labelled,
            split=split,
            seed=number,
            all_labels=name == "FedAvg-SL",
            sheets=sheets,
        )
        curve = Curve(name, dataset, each, number, facts)
        curves.append(_train(curve, world, rounds, per_round, until, home, options))
    result = BenchResult(NAME, [_row(curve) for curve in curves], _bars(curves))
    result.device = device_name(where)
    return result


def _names(methods: str | Sequence[str]) -> list[str]:
    from fedmend.bench.sage_methods import RECIPES

    given = methods.split(",") if isinstance(methods, str) else list(methods)
    if given == ["all"]:
        return list(RECIPES)
    wrong = [name for name in given if name not in RECIPES]
    if wrong:
        raise ConfigError(
            f"methods: {wrong[0]!r} is not a method: {did_you_mean(wrong[0], RECIPES)}"
        )
    return given


# ---------------------------------------------------------------- one run


def _train(
    curve: Curve,
    world: World,
    rounds: int,
    per_round: int,
    until: float | None,
    folder: Path | None,
    options: dict[str, Any],
) -> Curve:
    """Rounds until all are done or time is up; kept in the folder as it goes."""
    from fedmend.bench.sage_methods import estimator_of

    estimator = estimator_of(
        curve.method,
        curve.settings["settings"],
        rounds=rounds,
        per_round=per_round,
        seed=curve.seed,
        precision=options["precision"],
    )
    simulator = estimator.simulator(
        world.pools, world.net, device=options["device"], mode=options["mode"]
    )
    world = world.on(simulator)
    state, story = _files(curve, folder)
    if state is not None and story is not None and state.is_file() and story.is_file():
        simulator.load_checkpoint(state)
        curve = _read(story, simulator.round)
    cuda = str(options["device"]).startswith("cuda")
    curve.device = device_name(options["device"])
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    longest = 0.0
    while simulator.round < rounds:
        began = time.monotonic()
        if until is not None and began + longest > until:
            break
        entry = _round(simulator, world)
        entry["seconds"] = time.monotonic() - began
        longest = max(longest, entry["seconds"])
        curve.rounds.append(entry)
        if cuda:
            curve.peak_gb = max(curve.peak_gb or 0.0, torch.cuda.max_memory_allocated() / 1e9)
        if simulator.round % KEEP_EVERY == 0:
            _keep(curve, simulator, state, story)
    if curve.rounds:
        _keep(curve, simulator, state, story)
    return curve


def _keep(curve: Curve, simulator: Any, state: Path | None, story: Path | None) -> None:
    """Write the curve, then the checkpoint: a curve may be ahead of it, never behind."""
    if story is not None and state is not None:
        write_json(story, plain(asdict(curve)))
        simulator.save_checkpoint(state)


def _round(simulator: Any, world: World) -> dict[str, Any]:
    """One round and its test, as an entry of the curve; each is timed."""
    began = time.monotonic()
    report = simulator.run_round()
    training = time.monotonic() - began
    accuracy = simulator.accuracy(world.test, world.labels)
    entry = {
        "round": report.number,
        "clients": list(report.clients),
        "accuracy": float(accuracy),
        "loss": report.loss,
        "utilisation": report.utilisation,
        "pseudo_accuracy": report.pseudo_accuracy,
        "confidence_gap": report.confidence_gap if simulator.method.uses_world else None,
        "per_client": [dict(each) for each in report.per_client],
        "training": training,
    }
    if world.published is not None:
        entry["accuracy_published"] = float(simulator.accuracy(world.published, world.labels))
    entry["testing"] = time.monotonic() - began - training
    return entry


def _files(curve: Curve, folder: Path | None) -> tuple[Path | None, Path | None]:
    """Where a run keeps its checkpoint and its curve."""
    if folder is None:
        return None, None
    folder.mkdir(parents=True, exist_ok=True)
    method = curve.method.lower().replace("+", "-").replace(" ", "-")
    name = f"{curve.dataset}-{method}-{curve.alpha:g}-{curve.seed}"
    return folder / f"{name}.fmw", folder / f"{name}.json"


def _read(story: Path, done: int) -> Curve:
    """The curve so far, without rounds that came after the checkpoint."""
    curve = Curve(**json.loads(story.read_text(encoding="utf-8")))
    curve.rounds = curve.rounds[:done]
    return curve


# ---------------------------------------------------------------- the table


def _row(curve: Curve) -> dict[str, Any]:
    accuracies = curve.accuracies
    paper = paper_accuracy(curve.dataset, curve.alpha).get(curve.method)
    row: dict[str, Any] = {
        "method": curve.method,
        "alpha": curve.alpha,
        "seed": curve.seed,
        "rounds": len(curve.rounds),
        "last": 100 * accuracies[-1] if accuracies else None,
        "best": 100 * max(accuracies) if accuracies else None,
        "paper": paper,
    }
    row |= {f"to {100 * mark:.0f} %": curve.reached(mark) for mark in MARKS}
    return row | {
        "pseudo-labels right": curve.late("pseudo_accuracy"),
        "rows used": curve.late("utilisation"),
        "gap": curve.late("confidence_gap"),
        "s/round": curve.late("training", len(curve.rounds)),
        "GB": curve.peak_gb,
    }


def _bars(curves: Sequence[Curve]) -> list[Bar]:
    """The promises for CIFAR-10, as far as the runs of this call go."""
    bars = []
    found = {(curve.method, curve.alpha): curve for curve in curves if curve.rounds}
    for (method, alpha), curve in found.items():
        if method != "SAGE" or curve.dataset != "cifar10":
            continue
        best = 100 * max(curve.accuracies)
        if alpha == 0.5:
            bars.append(
                Bar.at_least(f"SAGE, alpha .5, best of {len(curve.rounds)} rounds", best, 88.05)
            )
        for other in ("FixMatch-LPL", "FixMatch-GPL"):
            rival = found.get((other, alpha))
            if rival is None:
                continue
            number = min(100, len(curve.rounds), len(rival.rounds))
            ours, theirs = curve.at(number), rival.at(number)
            assert ours is not None and theirs is not None
            bars.append(
                Bar.at_least(
                    f"SAGE beside {other}, alpha {alpha:g}, round {number}",
                    100 * ours,
                    100 * theirs,
                )
            )
            if other == "FixMatch-LPL":
                for key, words in (
                    ("pseudo_accuracy", "pseudo-labels right"),
                    ("utilisation", "rows used"),
                ):
                    mine, its = curve.late(key), rival.late(key)
                    if mine is not None and its is not None:
                        bars.append(Bar.at_least(f"{words}, beside {other}'s", mine, its))
        if curve.peak_gb is not None:
            bars.append(Bar.at_most("memory of the card, GB", curve.peak_gb, 40.0))
    return bars
