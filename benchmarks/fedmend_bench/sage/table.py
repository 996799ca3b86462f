"""`fedmend bench sage`: SAGE and its baselines with few labels, beside the paper's Table 1.

One run is a method at an alpha under a seed. It writes its curve and a checkpoint into `folder`
after every few rounds, and goes on from there when it is asked for again: 300 rounds may take
several sittings at a GPU. A plan (`plan.py`) lists many runs in the order they are wanted; several
processes may work off one plan in one folder (`workers.py`).
"""

from __future__ import annotations

import itertools
import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedmend.errors import DatasetAbsent, FedmendWarning
from fedmend.methods.horizontal.baselines import FedAvg
from fedmend.methods.horizontal.round_average import RoundAverage
from fedmend.methods.horizontal.simulator import Simulator
from fedmend.split.parts import read_file, write_file
from fedmend_bench.harness import BenchResult, device_name
from fedmend_bench.options import chosen
from fedmend_bench.sage.curves import Curve, bars_of, row_of
from fedmend_bench.sage.data import TENTH, World, world_of
from fedmend_bench.sage.methods import RECIPES, estimator_of
from fedmend_bench.sage.plan import Unit, read_plan
from fedmend_bench.sage.workers import Clock, Workers, stop_kindly

logger = logging.getLogger(__name__)

NAME = "sage"
HELP = "few labels at many clients: accuracy by round beside the paper's Table 1; resumable"

# Rounds between two checkpoints.
KEEP_EVERY = 10
# Rounds between two tests of the means over rounds, which move slowly.
MEAN_EVERY = 5


@dataclass(frozen=True)
class Setting:
    """What all runs of a call have in common."""

    device: str
    mode: str
    precision: str
    settings: str
    split: str
    clients: int
    per_round: int
    labelled: float | int | None
    sheets: Sequence[int]
    warmup: int
    averages: Sequence[int]
    clock: Clock
    folder: Path | None
    workers: Workers | None

    def labels(self, dataset: str) -> float | int:
        """Labels of a class; a tenth of them all where nothing else is said."""
        return TENTH[dataset] if self.labelled is None else self.labelled

    def world(self, unit: Unit) -> World:
        return world_of(
            unit.dataset,
            unit.alpha,
            clients=self.clients,
            labelled=self.labels(unit.dataset),
            split=self.split,
            seed=unit.seed,
            all_labels=unit.method == "FedAvg-SL",
            sheets=self.sheets,
        )

    def curve(self, unit: Unit) -> Curve:
        facts = {
            "settings": self.settings,
            "split": self.split,
            "labelled": self.labels(unit.dataset),
        }
        if self.warmup and RECIPES[unit.method][0] is not FedAvg:
            facts["warmup"] = self.warmup
        return Curve(unit.method, unit.dataset, unit.alpha, unit.seed, facts)


def run(
    quick: bool = False,
    *,
    plan: str | None = None,
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
    labelled: float | int | None = None,
    sheets: Sequence[int] = (1, 2, 3, 4, 5),
    warmup: int = 0,
    average_rounds: int | Sequence[int] = 5,
    seed: int | Sequence[int] = 0,
) -> BenchResult:
    """Train each method at each alpha, or what a plan lists; docs/sage.md has the options."""
    if quick:
        dataset, rounds, clients, per_round, labelled = "digits", min(rounds, 6), 5, 5, 10
        device, precision, settings, split = "cpu", "float32", "default", "plain"
    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    until = None if minutes is None else time.monotonic() + 60 * minutes
    common = (where, mode, precision, settings, split, clients, per_round, labelled, sheets, warmup)
    averages = [average_rounds] if isinstance(average_rounds, int) else list(average_rounds)
    if plan is not None:
        units = read_plan(plan)
    else:
        names = chosen("methods", methods or ("FixMatch-LPL,SAGE" if quick else "SAGE"), RECIPES)
        alphas = [float(each) for each in (alpha if isinstance(alpha, Sequence) else [alpha])]
        seeds = list(seed) if isinstance(seed, Sequence) else [seed]
        units = [
            Unit(name, rounds, each, dataset, number)
            for each, name, number in itertools.product(alphas, names, seeds)
        ]
    here = None if folder is None else Path(folder)
    workers = None if here is None else Workers(here)
    with stop_kindly() as asked, nullcontext() if workers is None else workers.present():
        setting = Setting(*common, averages, Clock(until, asked), here, workers)
        runs = list(_runs(units, setting, forgiving=plan is not None))
    # A plan may come back to a run for more rounds, and other processes go on with theirs.
    longest: dict[str, Curve] = {}
    for unit, curve in runs:
        curve = curve if here is None else _kept(curve, unit.rounds, here)
        if len(curve.rounds) >= len(longest.setdefault(curve.name, curve).rounds):
            longest[curve.name] = curve
    begun = [curve for curve in longest.values() if curve.rounds or plan is None]
    result = BenchResult(NAME, [row_of(curve) for curve in begun], bars_of(begun))
    # Runs that are only shown were trained elsewhere.
    devices = dict.fromkeys(curve.device for curve in begun if curve.device)
    result.device = ", ".join(devices) or device_name(where)
    return result


# ---------------------------------------------------------------- one run


def _runs(units: Sequence[Unit], setting: Setting, forgiving: bool) -> Iterator[tuple[Unit, Curve]]:
    """One run after another; forgiving: leave out those whose data set is not here."""
    for unit in units:
        try:
            yield unit, _curve(unit, setting)
        except DatasetAbsent as error:
            if not forgiving:
                raise
            warnings.warn(f"{unit.method} is left out: {error}", FedmendWarning, stacklevel=3)


def _curve(unit: Unit, setting: Setting) -> Curve:
    """The run of a unit: what is kept of it, and as many more rounds as are wanted and allowed.

    A run that another process is at is left to it.
    """
    curve = setting.curve(unit)
    if setting.folder is None or setting.workers is None:
        late = setting.clock.late()
        return curve if late else _train(curve, setting.world(unit), unit.rounds, setting)
    with setting.workers.claim(curve.name) as ours:
        kept = _kept(curve, unit.rounds, setting.folder)
        # A finished run needs no checkpoint any more.
        if not ours or setting.clock.late() or len(kept.rounds) >= unit.rounds:
            return kept
        return _train(curve, setting.world(unit), unit.rounds, setting)


def _kept(curve: Curve, rounds: int, folder: Path) -> Curve:
    """What the folder has of this run, if it has more of it."""
    _, story = _files(curve, folder)
    kept = Curve.read(story, rounds) if story.is_file() else curve
    return kept if len(kept.rounds) > len(curve.rounds) else curve


def _files(curve: Curve, folder: Path) -> tuple[Path, Path]:
    """Where a run keeps its checkpoint and its curve."""
    return folder / f"{curve.name}.fmw", folder / f"{curve.name}.json"


def _train(curve: Curve, world: World, rounds: int, setting: Setting) -> Curve:
    """Rounds until all are done or time is up; kept in the folder as it goes."""
    estimator = estimator_of(
        curve.method,
        curve.settings["settings"],
        rounds=rounds,
        per_round=setting.per_round,
        seed=curve.seed,
        precision=setting.precision,
        warmup=curve.settings.get("warmup", 0),
    )
    simulator = estimator.simulator(
        world.pools, world.net, device=setting.device, mode=setting.mode
    )
    world = world.on(simulator)
    means = {str(rounds): RoundAverage(rounds) for rounds in setting.averages}
    if setting.folder is not None:
        state, story = _files(curve, setting.folder)
        if state.is_file() and story.is_file():
            _resume(state, simulator, means)
            curve = Curve.read(story, simulator.round)
    cuda = setting.device.startswith("cuda")
    curve.device = device_name(setting.device)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    while simulator.round < rounds and not setting.clock.late():
        began = time.monotonic()
        others = _others(setting)
        entry = _round(simulator, world, means, rounds)
        entry["seconds"] = time.monotonic() - began
        entry["beside"] = max(others, _others(setting))
        setting.clock.took(entry["seconds"])
        curve.rounds.append(entry)
        said = (curve.name, entry["round"], 100 * entry["accuracy"], entry["seconds"])
        logger.debug("%s: round %d, accuracy %.2f %%, %.3f s, beside %d", *said, entry["beside"])
        if cuda:
            curve.peak_gb = max(curve.peak_gb or 0.0, torch.cuda.max_memory_allocated() / 1e9)
        if simulator.round % KEEP_EVERY == 0 or simulator.round == rounds:
            _keep(curve, simulator, means, setting.folder)
    if simulator.round % KEEP_EVERY and simulator.round < rounds:
        _keep(curve, simulator, means, setting.folder)
    return curve


def _others(setting: Setting) -> int:
    """Processes that share the folder, and so most likely the card."""
    return 0 if setting.workers is None else setting.workers.others()


def _keep(
    curve: Curve, simulator: Simulator, means: dict[str, RoundAverage], folder: Path | None
) -> None:
    """Write the curve, then the checkpoint: a curve may be ahead of it, never behind."""
    accuracy = 100 * curve.accuracies[-1]
    logger.info("%s: round %d, accuracy %.2f %%", curve.name, simulator.round, accuracy)
    if folder is not None:
        state, story = _files(curve, folder)
        curve.write(story)
        kept = {rounds: mean.state() for rounds, mean in means.items()}
        write_file(state, simulator.checkpoint() | {"means": kept})


def _resume(state: Path, simulator: Simulator, means: dict[str, RoundAverage]) -> None:
    """Go on from a checkpoint; a mean that it has not begins with the next round."""
    saved = read_file(state)
    simulator.restore(saved)
    for rounds, kept in saved.get("means", {}).items():
        if rounds in means:
            means[rounds].restore(kept, simulator.weights)


def _round(
    simulator: Simulator, world: World, means: dict[str, RoundAverage], last: int
) -> dict[str, Any]:
    """One round and its test, as an entry of the curve; each is timed.

    Tested is the round's model, and at every fifth and the last beside it the means over rounds.
    """
    began = time.monotonic()
    report = simulator.run_round()
    training = time.monotonic() - began
    accuracy = simulator.accuracy(world.test, world.labels)
    entry: dict[str, Any] = {
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
    averaged = {rounds: mean.add(simulator.weights) for rounds, mean in means.items()}
    if report.number % MEAN_EVERY == 0 or report.number == last:
        entry["accuracy_averaged"] = {
            rounds: simulator.accuracy(world.test, world.labels, weights)
            for rounds, weights in averaged.items()
        }
    entry["testing"] = time.monotonic() - began - training
    return entry
