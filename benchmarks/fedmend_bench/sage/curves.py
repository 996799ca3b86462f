"""Runs of `fedmend bench sage` as curves over rounds: kept as JSON, told as rows and bars."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from fedmend._files import write_whole
from fedmend._json import plain, write_json
from fedmend_bench.harness import Bar
from fedmend_bench.sage.data import paper_accuracy
from fedmend_bench.sage.methods import with_settings

__all__ = ["MARKS", "Curve", "add_curves", "add_searched", "bars_of", "read_curves", "row_of"]

MARKS = (0.70, 0.80, 0.85)
# Rounds at which runs of other lengths are compared: those of the short runs and of the middle.
STATIONS = (30, 100)


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
    def name(self) -> str:
        """What its files are called."""
        method = re.sub("[+ =]", "-", self.method.lower())
        warm = f"-warm{self.settings['warmup']}" if self.settings.get("warmup") else ""
        held = f"-held{self.settings['held_out']:g}" if self.settings.get("held_out") else ""
        return f"{self.dataset}-{method}{warm}{held}-{self.alpha:g}-{self.seed}"

    @property
    def title(self) -> str:
        warmup = self.settings.get("warmup")
        return f"{self.method}, warm-up {warmup}" if warmup else self.method

    @property
    def accuracies(self) -> list[float]:
        return [float(each["accuracy"]) for each in self.rounds]

    def reached(self, share: float) -> int | None:
        """The first round at or above this accuracy."""
        hits = [each["round"] for each in self.rounds if each["accuracy"] >= share]
        return int(hits[0]) if hits else None

    def figures(self, key: str, rounds: slice) -> list[float]:
        """A figure of some rounds, where it is known."""
        return [each[key] for each in self.rounds[rounds] if each.get(key) is not None]

    def late(self, key: str, until: int | None = None, rounds: int = 10) -> float | None:
        """The mean of a figure over the last rounds, or over those that end at `until`."""
        end = len(self.rounds) if until is None else until
        values = self.figures(key, slice(max(0, end - rounds), end))
        return fmean(values) if values else None

    def at(self, number: int) -> float | None:
        """Best accuracy up to a round that was reached."""
        if not 0 < number <= len(self.rounds):
            return None
        return max(self.accuracies[:number])

    @property
    def whole(self) -> bool:
        """Whether every round is known: of a run long ago only those that were printed are."""
        return bool(self.rounds) and self.rounds[-1]["round"] == len(self.rounds)

    @property
    def averaged(self) -> dict[str, float]:
        """Accuracies of means over rounds in the last one, by how many rounds; not always told."""
        return self.rounds[-1].get("accuracy_averaged", {}) if self.rounds else {}

    def write(self, path: Path) -> None:
        write_json(path, plain(asdict(self)))

    @classmethod
    def read(cls, path: Path, done: int) -> Curve:
        """The curve so far, without rounds that came after the checkpoint."""
        curve = cls(**json.loads(path.read_text(encoding="utf-8")))
        curve.rounds = curve.rounds[:done]
        return curve


# ---------------------------------------------------------------- all rounds in one file

_RUN = ("method", "alpha", "seed")
_SHARES = ("accuracy", "accuracy_published", "utilisation", "pseudo_accuracy", "confidence_gap")
_AVERAGED = "accuracy_averaged_5"
_SEARCHED = ("method", "alpha", "rounds", "seed", "held_out")
_TOLD = ("accuracy", "pseudo_accuracy", "utilisation")
# Rounds whose mean stands for a short run: one of them is a matter of chance.
LATE = 5


def read_curves(file: Path) -> list[Curve]:
    """The runs of a CSV file with a line for every round."""
    found: dict[tuple[str, ...], Curve] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            run = tuple(line[key] for key in _RUN)
            if run not in found:
                found[run] = Curve(run[0], "cifar10", float(run[1]), int(run[2]), {})
            entry: dict[str, Any] = {key: float(line[key]) for key in _SHARES if line[key]}
            if line[_AVERAGED]:
                entry["accuracy_averaged"] = {"5": float(line[_AVERAGED])}
            found[run].rounds.append(entry | {"round": int(line["round"])})
    return list(found.values())


def add_curves(file: Path, folder: Path) -> None:
    """Take CIFAR-10's curves of a folder into the file, each in place of a shorter one."""
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        columns, rows = list(reader.fieldnames or []), list(reader)
    for story in sorted(folder.glob("cifar10-*.json")):
        curve = Curve(**json.loads(story.read_text(encoding="utf-8")))
        run = {"method": curve.method, "alpha": f"{curve.alpha:g}", "seed": str(curve.seed)}
        same = [row for row in rows if all(row[key] == run[key] for key in _RUN)]
        unlike = curve.settings.get("warmup") or curve.settings.get("held_out")
        if unlike or len(curve.rounds) <= len(same):
            continue
        rows = [row for row in rows if row not in same]
        for entry in curve.rounds:
            shares = {key: entry.get(key) for key in _SHARES}
            shares[_AVERAGED] = entry.get("accuracy_averaged", {}).get("5")
            told = {key: "" if value is None else f"{value:.4f}" for key, value in shares.items()}
            spent = {"round": str(entry["round"]), "seconds": f"{entry['seconds']:.2f}"}
            rows.append(run | told | spent)
    text = [",".join(columns), *(",".join(row.get(key, "") for key in columns) for row in rows)]
    write_whole(file, "\n".join(text) + "\n")


def add_searched(file: Path, folder: Path) -> None:
    """Take runs on digits into a file with a line each, in place of the same run."""
    stories = sorted(folder.glob("digits-*.json"))
    if not stories:
        return
    with file.open(encoding="utf-8", newline="") as lines:
        kept = {tuple(line[key] for key in _SEARCHED): line for line in csv.DictReader(lines)}
    for story in stories:
        curve = Curve(**json.loads(story.read_text(encoding="utf-8")))
        held_out = curve.settings.get("held_out", 0.0)
        of = (curve.method, f"{curve.alpha:g}", str(len(curve.rounds)), str(curve.seed))
        told = (curve.late(key, rounds=LATE) for key in _TOLD)
        values = (*of, f"{held_out:g}", *("" if each is None else f"{each:.4f}" for each in told))
        kept[values[: len(_SEARCHED)]] = dict(zip(_SEARCHED + _TOLD, values, strict=True))
    text = [",".join(_SEARCHED + _TOLD), *(",".join(kept[run].values()) for run in sorted(kept))]
    write_whole(file, "\n".join(text) + "\n")


# ---------------------------------------------------------------- rows and bars


def row_of(curve: Curve) -> dict[str, Any]:
    """A line of the table: accuracies in per cent beside the paper's, and what labels were worth.

    Seconds are the middle ones, as other programs on the card slow single rounds down.
    """
    accuracies = curve.accuracies
    row: dict[str, Any] = {
        "data": curve.dataset,
        "method": curve.title,
        "alpha": curve.alpha,
        "seed": curve.seed,
        "rounds": len(curve.rounds),
        "last": 100 * accuracies[-1] if accuracies else None,
        "best": 100 * max(accuracies) if accuracies else None,
        "paper": paper_accuracy(curve.dataset, curve.alpha).get(with_settings(curve.method)[0]),
    }
    row |= {f"mean of {rounds}": _percent(share) for rounds, share in curve.averaged.items()}
    row |= {f"at {number}": _percent(curve.at(number)) for number in STATIONS}
    row |= {f"to {100 * mark:.0f} %": curve.reached(mark) for mark in MARKS}
    seconds = [each["training"] for each in curve.rounds if each.get("training") is not None]
    return row | {
        "right": curve.late("pseudo_accuracy"),
        "used": curve.late("utilisation"),
        "gap": curve.late("confidence_gap"),
        "s/round": median(seconds) if seconds else None,
        "GB": curve.peak_gb,
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def bars_of(curves: Sequence[Curve]) -> list[Bar]:
    """The promises for CIFAR-10, as far as the runs of this call go; on digits the quick ones."""
    found = {
        (curve.method, curve.alpha, curve.seed): curve
        for curve in curves
        if curve.rounds and curve.dataset == "cifar10"
    }
    bars = []
    for (method, alpha, seed), curve in found.items():
        if method != "SAGE":
            continue
        if alpha == 0.5:
            best, rounds = 100 * max(curve.accuracies), len(curve.rounds)
            bars.append(Bar.at_least(f"SAGE, alpha .5, best of {rounds} rounds", best, 88.05))
        for other in ("FixMatch-LPL", "FixMatch-GPL"):
            rival = found.get((other, alpha, seed))
            if rival is not None:
                bars += _beside(curve, rival)
        if curve.peak_gb is not None:
            bars.append(Bar.at_most("memory of the card, GB", curve.peak_gb, 40.0))
    return bars + _quick_bars([each for each in curves if each.rounds and each.dataset == "digits"])


def _quick_bars(curves: Sequence[Curve]) -> list[Bar]:
    """Of six rounds on digits: both learn, and the defect that is known of SAGE on small tables."""
    best = {curve.method: 100 * max(curve.accuracies) for curve in curves}
    bars = [
        Bar.at_least(f"digits: {method}, best round", best[method], least)
        for method, least in (("FixMatch-LPL", 85.0), ("SAGE", 80.0))
        if method in best
    ]
    if len(bars) == 2:
        behind = best["FixMatch-LPL"] - best["SAGE"]
        bars.append(
            Bar.at_most("digits: SAGE behind FixMatch-LPL (known on small tables)", behind, 0.0)
        )
    return bars


def _standing(curve: Curve, number: int) -> dict[str, float]:
    """How a run stands after so many rounds."""
    accuracies = curve.accuracies[:number]
    return {
        "SAGE": accuracies[-1],
        "SAGE, best so far,": max(accuracies),
        "SAGE, mean of ten rounds,": fmean(accuracies[-10:]),
    }


def _beside(curve: Curve, rival: Curve) -> list[Bar]:
    """SAGE and another method after as many rounds, at most a hundred: in the last of these, the
    best of them, and the mean of the last ten, as one round is a matter of chance."""
    number = min(100, len(curve.rounds), len(rival.rounds))
    where = f"{rival.method}, alpha {curve.alpha:g}, round {number}"
    bars = [
        Bar.at_least(f"{words} beside {where}", 100 * mine, 100 * its)
        for (words, mine), its in zip(
            _standing(curve, number).items(), _standing(rival, number).values(), strict=True
        )
    ]
    if rival.method != "FixMatch-LPL":
        return bars
    for key, words in (("pseudo_accuracy", "pseudo-labels right"), ("utilisation", "rows used")):
        mine, its = curve.late(key, number), rival.late(key, number)
        if mine is not None and its is not None:
            bars.append(Bar.at_least(f"{words}, beside {where}", mine, its))
    return bars
