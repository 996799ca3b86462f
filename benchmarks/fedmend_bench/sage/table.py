"""`fedmend bench sage`: SAGE and its baselines with few labels, beside the paper's Table 1.

One run is a method at an alpha under a seed. It writes its curve and a checkpoint into `folder`
after every few rounds, and goes on from there when it is asked for again: 300 rounds may take
several sittings at a GPU. A plan (`plan.py`) lists many runs in the order they are wanted.
"""

from __future__ import annotations

import itertools
import logging
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from fedmend.errors import FedmendWarning
from fedmend.methods.horizontal.baselines import FedAvg
from fedmend.methods.horizontal.rounds import RoundAverage
from fedmend.split.parts import read_file, write_file
from fedmend_bench.datasets import DatasetAbsent
from fedmend_bench.harness import BenchResult, device_name
from fedmend_bench.options import chosen, listed
from fedmend_bench.sage.curves import Curve, bars_of, row_of
from fedmend_bench.sage.data import TENTH, World, world_of
from fedmend_bench.sage.methods import METHODS, estimator_of, with_settings
from fedmend_bench.sage.plan import Unit, read_plan
from fedmend_bench.sage.simulator import Simulator, simulator_of

logger = logging.getLogger(__name__)

NAME = "sage"
HELP = "few labels at many clients: accuracy by round beside the paper's Table 1; resumable"

# Seconds between two checkpoints; of longer rounds each has one.
KEEP_EVERY = 30.0
# Rounds between two tests of the means over rounds, which move slowly.
MEAN_EVERY = 5


@dataclass(frozen=True)
class Setting:
    """What all runs of a call have in common."""

    device: str
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
    held_out: float = 0.0

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
            held_out=self.held_out,
        )

    def curve(self, unit: Unit) -> Curve:
        facts = {
            "settings": self.settings,
            "split": self.split,
            "labelled": self.labels(unit.dataset),
        }
        if self.warmup and METHODS[with_settings(unit.method)[0]][0] is not FedAvg:
            facts["warmup"] = self.warmup
        if self.held_out:
            facts["held_out"] = self.held_out
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
    precision: str = "bf16",
    settings: str = "paper",
    split: str = "paired",
    clients: int = 20,
    per_round: int = 8,
    labelled: float | int | None = None,
    sheets: Sequence[int] = (1, 2, 3, 4, 5),
    warmup: int = 0,
    average_rounds: int | Sequence[int] = 5,
    held_out: float = 0.0,
    seed: int | Sequence[int] = 0,
) -> BenchResult:
    """Train each method at each alpha, or what a plan lists; docs/sage.md has the options.

    held_out: to choose settings: a share of the training rows, which no client gets, is what
    accuracies are of, and no test row is looked at.
    """
    if quick:
        dataset, rounds, clients, per_round, labelled = "digits", min(rounds, 6), 5, 5, 10
        device, precision, settings, split = "cpu", "float32", "default", "plain"
    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    until = None if minutes is None else time.monotonic() + 60 * minutes
    common = (where, precision, settings, split, clients, per_round, labelled, sheets, warmup)
    averages = [average_rounds] if isinstance(average_rounds, int) else list(average_rounds)
    if plan is not None:
        units = read_plan(plan)
    else:
        names = listed(methods or ("FixMatch-LPL,SAGE" if quick else "SAGE"))
        known = chosen("methods", [with_settings(name)[0] for name in names], METHODS)
        names = known if len(known) != len(names) else names
        alphas = [float(each) for each in (alpha if isinstance(alpha, Sequence) else [alpha])]
        seeds = list(seed) if isinstance(seed, Sequence) else [seed]
        units = [
            Unit(name, rounds, each, dataset, number)
            for each, name, number in itertools.product(alphas, names, seeds)
        ]
    here = None if folder is None else Path(folder)
    clock = Clock(until)
    with stop_kindly(clock):
        setting = Setting(*common, averages, clock, here, held_out)
        runs = list(_runs(units, setting, forgiving=plan is not None))
    # A plan may come back to a run for more rounds.
    longest: dict[str, Curve] = {}
    for curve in runs:
        if len(curve.rounds) >= len(longest.setdefault(curve.name, curve).rounds):
            longest[curve.name] = curve
    begun = [curve for curve in longest.values() if curve.rounds or plan is None]
    result = BenchResult(NAME, [row_of(curve) for curve in begun], bars_of(begun))
    # Runs that are only shown were trained elsewhere.
    devices = dict.fromkeys(curve.device for curve in begun if curve.device)
    result.device = ", ".join(devices) or device_name(where)
    return result


# ---------------------------------------------------------------- one run


def _runs(units: Sequence[Unit], setting: Setting, forgiving: bool) -> Iterator[Curve]:
    """One run after another; forgiving: leave out those whose data set is not here."""
    for unit in units:
        try:
            yield _curve(unit, setting)
        except DatasetAbsent as error:
            if not forgiving:
                raise
            warnings.warn(f"{unit.method} is left out: {error}", FedmendWarning, stacklevel=3)


def _curve(unit: Unit, setting: Setting) -> Curve:
    """The run of a unit: what is kept of it, and as many more rounds as are wanted and allowed."""
    curve = setting.curve(unit)
    if setting.folder is not None:
        _, story = _files(curve, setting.folder)
        kept = Curve.read(story, unit.rounds) if story.is_file() else curve
        # A finished run needs no checkpoint any more.
        if setting.clock.late() or len(kept.rounds) >= unit.rounds:
            return kept
    late = setting.clock.late()
    return curve if late else _train(curve, setting.world(unit), unit.rounds, setting)


def _files(curve: Curve, folder: Path) -> tuple[Path, Path]:
    """Where a run keeps its checkpoint and its curve."""
    return folder / f"{curve.name}.fmw", folder / f"{curve.name}.json"


def _train(curve: Curve, world: World, rounds: int, setting: Setting) -> Curve:
    """Rounds until all are done or time is up; kept in the folder as it goes.

    A round that is broken off leaves momentum and clients' states of half a round behind: the
    checkpoint before it stands.
    """
    estimator = estimator_of(
        curve.method,
        curve.settings["settings"],
        rounds=rounds,
        per_round=setting.per_round,
        seed=curve.seed,
        precision=setting.precision,
        warmup=curve.settings.get("warmup", 0),
    )
    simulator = simulator_of(
        *(estimator, world.pools, world.net),
        carry_momentum=curve.settings["settings"] == "paper",
        device=setting.device,
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
    kept, last_kept = time.monotonic(), simulator.round
    while simulator.round < rounds and not setting.clock.late():
        began = time.monotonic()
        try:
            with setting.clock.round():
                entry = _round(simulator, world, means, rounds)
        except BrokenOff:
            return curve
        entry["seconds"] = time.monotonic() - began
        setting.clock.took(entry["seconds"])
        curve.rounds.append(entry)
        said = (curve.name, entry["round"], 100 * entry["accuracy"], entry["seconds"])
        logger.debug("%s: round %d, accuracy %.2f %%, %.3f s", *said)
        if cuda:
            curve.peak_gb = max(curve.peak_gb or 0.0, torch.cuda.max_memory_allocated() / 1e9)
        if time.monotonic() - kept >= KEEP_EVERY:
            _keep(curve, simulator, means, setting.folder)
            kept, last_kept = time.monotonic(), simulator.round
    if simulator.round > last_kept:
        _keep(curve, simulator, means, setting.folder)
    return curve


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
        "confidence_gap": report.confidence_gap if simulator.method.uses_global else None,
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


# ---------------------------------------------------------------- the end of a sitting


class BrokenOff(Exception):
    """The process was asked to end in the middle of a round."""


class Clock:
    """Is there time for another round? It is taken to last as long as the longer of the last two.

    until: by the monotonic clock; None is for ever.
    """

    def __init__(self, until: float | None = None) -> None:
        self.until = until
        self._ended = self._in_round = False
        self._last: tuple[float, ...] = ()

    @contextmanager
    def round(self) -> Iterator[None]:
        """A round, which `end` breaks off: without a GPU it may take twenty minutes."""
        self._in_round = True
        try:
            yield
        finally:
            self._in_round = False

    def end(self) -> None:
        """The process is to end."""
        self._ended = True
        if self._in_round:
            self._in_round = False  # whoever asks twice does not cut the ending off
            raise BrokenOff

    def took(self, seconds: float) -> None:
        """A round took so long."""
        self._last = (*self._last[-1:], seconds)

    def late(self) -> bool:
        """Once it is too late for a round it stays so: the next run would not get far either."""
        ahead = time.monotonic() + max(self._last, default=0.0)
        if self.until is not None and ahead > self.until:
            self._ended = True
        return self._ended


@contextmanager
def stop_kindly(clock: Clock) -> Iterator[None]:
    """SIGTERM ends the sitting: what was kept is shown, and gone on with another time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        clock.end()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
