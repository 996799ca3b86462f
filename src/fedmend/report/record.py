"""What a run leaves behind for people: one JSON-able record, and its stages with time and traffic.

From these and the ledger the report is drawn.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeGuard

from fedmend._html import html_table
from fedmend._json import plain, reading, typed, write_json
from fedmend._version import __version__
from fedmend.errors import DataError
from fedmend.report.amounts import UNTOLD, counted, human_bytes, pretty, score_text

FORMAT = 1
FEW_TESTED = 50
MANY_TESTED = 2_000
RECORD_FILE = "metrics.json"
AUDIT_FILE = "audit.json"
MANIFEST_FILE = "manifest.json"
STAGE_WORDS = {
    "align": "Finding the rows that are known to all",
    "diagnose": "Looking at what is torn",
    "complete": "Completing rows",
    "correct": "Correcting labels",
    "choose": "Choosing a method",
    "train": "Training",
    "evaluate": "Scoring on test rows",
    "report": "Writing this report",
}
COMPLETED = " + completed rows"
"""How the title of a method ends that was trained on completed rows, too."""
SHARES = ("auc", "accuracy", "f1")
ERRORS = ("rmse", "mae")
# Metrics of which less is better; of all others more is.
_LESS_IS_BETTER = ("loss", "error", "rmse", "mae", "mse", "brier", "ece", "nll")


@dataclass
class MethodRun:
    """One method trained once."""

    name: str
    title: str
    seed: int
    params: dict[str, Any]
    history: list[dict[str, Any]]
    scores: dict[str, float]
    seconds: float
    crossings: int = 0
    bytes: int = 0
    about: str = ""
    labelling: dict[str, Any] | None = None
    uncertainty: dict[str, Any] | None = None
    importance: list[dict[str, Any]] | None = None


def turns_of(history: list[dict[str, Any]]) -> str:
    """``40 epochs``; of trees nothing is told but their number, of several models together none."""
    told = {key for each in history for key in each}
    what = "round" if "round" in told else "tree" if told == {"epoch"} else "epoch"
    return counted(len(history), what) if history else ""


@dataclass(frozen=True)
class Summary:
    """One method over all its seeds."""

    title: str
    about: str
    seeds: int
    mean: dict[str, float]
    sd: dict[str, float]
    values: dict[str, list[float]]
    seconds: float
    crossings: int
    bytes: int

    def score(self, metric: str) -> str:
        """Of one metric the mean, and over several seeds how far they lie apart."""
        if metric not in self.mean:
            return UNTOLD
        spread = f" ± {score_text(self.sd[metric])}" if self.seeds > 1 else ""
        return score_text(self.mean[metric]) + spread


@dataclass
class RunRecord:
    """Everything the report shows but the ledger, which is a file of its own.

    tested: how many rows the scores are from, where that is known. set_aside: the share of all rows
    that these are, if they are no tables of their own. seen: by party, how many of its labelled
    test rows are labelled training rows, too, and how many there are. alone: the scores of what the
    label party has without partners, if no method is that.
    """

    title: str
    methods: list[MethodRun]
    metric: str
    overview: dict[str, Any] | None = None
    evaluated_on: str = "the test rows"
    measured_against: str = ""
    mending: dict[str, Any] | None = None
    correction: dict[str, Any] | None = None
    choice: dict[str, Any] | None = None
    alone: dict[str, Any] | None = None
    recipe: str | None = None
    device: str = "cpu"
    seeds: list[int] = field(default_factory=lambda: [0])
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S%z"))
    seconds: float = 0.0
    tested: int | None = None
    set_aside: float | None = None
    seen: dict[str, list[int]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=lambda: versions())
    format: int = FORMAT

    def trained(self) -> list[tuple[str, dict[str, Any]]]:
        """The methods' names and parameters, with the task as their scores tell it."""
        return [(run.name, run.params | task_told(run.scores)) for run in self.methods]

    def summaries(self) -> list[Summary]:
        """The methods in their order, each over all its seeds."""
        return [
            _summary([run for run in self.methods if run.title == title]) for title in self.titles()
        ]

    def titles(self) -> list[str]:
        """How the methods are shown, in their order."""
        return list(dict.fromkeys(run.title for run in self.methods))

    def best(self, among: Collection[str] | None = None) -> Summary | None:
        """The method with the best mean of the main metric, of all or of these titles."""
        able = [
            each
            for each in self.summaries()
            if self.metric in each.mean and (among is None or each.title in among)
        ]
        sign = 1 if better_is_higher(self.metric) else -1
        return max(able, key=lambda each: sign * each.mean[self.metric], default=None)

    def cautions(self) -> list[str]:
        """What to keep in mind when comparing: metrics that are not there, rows that are few."""
        found = [seen_words(party, *told) for party, told in self.seen.items()]
        if not all(_is_number(run.scores["auc"]) for run in self.methods if "auc" in run.scores):
            rest = "" if self.metric == "auc" else f", so that {self.metric} decides"
            found.append(
                f"There is no AUC: not every class is among {self.evaluated_on}{rest}. Mend: more "
                "test rows (evaluate.test_share, or a test table for each party), or leave the "
                "labels of a rare class empty"
            )
        if self.tested is not None and self.tested < FEW_TESTED and len(self.titles()) > 1:
            apart = ""
            if any("accuracy" in run.scores for run in self.methods):
                # Two standard errors of a share of one half, the widest there is.
                apart = f" (in accuracy, as a rule of thumb, {1 / math.sqrt(self.tested):.2f})"
            found.append(
                f"{self.tested:,} test rows are few: methods must be far apart{apart} for it not "
                "to be chance. Mend: a larger evaluate.test_share, or test tables"
            )
        if self.choice is None and (said := self.completing()):
            found.append(said)
        if said := self.without_partners():
            found.append(said)
        if self.set_aside and self.methods:
            found.append(
                f"The models have not seen {100 * self.set_aside:.0f} % of the rows, which were "
                "set aside for tests. Mend, for models of all rows: a test table at every party "
                '(test), or, once the scores are known, run.leave_out = ["evaluate"] and another '
                "folder"
            )
        return found

    def without_partners(self) -> str:
        """What the label party has alone beside the best method; empty where that is not known."""
        best, own = self.best(), (self.alone or {"scores": {}})["scores"].get(self.metric)
        if self.alone is None or best is None or own is None:
            return ""
        mean, sign = best.mean[self.metric], 1 if better_is_higher(self.metric) else -1
        shown, mine, theirs = pretty(self.metric), score_text(own), score_text(mean)
        said = (
            f"{self.alone['party']} alone, by boosted trees of its own columns "
            f"({self.alone['title']}), has {shown} {mine}, {best.title} {theirs}"
        )
        if sign * (mean - own) > 0:
            return said
        return f'{said}: partners do not pay here. Mend: method = "auto", which hears both'

    def completing(self) -> str:
        """Whether completed rows paid, as far as held-out rows tell; empty where none can.

        By the folds of a model that chose itself, otherwise by methods trained without and with
        them, on the same test rows.
        """
        if self.choice is not None:
            about = (line for line in self.choice["why"] if "ompleting rows" in line)
            return next(about, "")
        means = {each.title: each.mean for each in self.summaries() if self.metric in each.mean}
        both = {
            title: [means[each][self.metric] for each in (title, title + COMPLETED)]
            for title in means
            if title + COMPLETED in means
        }
        if not both:
            return ""
        sign = 1 if better_is_higher(self.metric) else -1
        gains = [sign * (mended - plain) for plain, mended in both.values()]
        gain, shown = statistics.fmean(gains), pretty(self.metric)
        told = "; ".join(
            f"{title} has {shown} {score_text(plain)} without and {score_text(mended)} with them"
            for title, (plain, mended) in both.items()
        )
        if gain <= 0:
            return f"Completing rows did not pay: {told}. Mend: leave [complete] out"
        noise = statistics.fmean(
            _noise(self.metric, plain, self.tested) for plain, _ in both.values()
        )
        if gain < noise:
            return f"Whether completing rows paid cannot be told from {self.tested:,} rows: {told}."
        return f"Completing rows paid: {told}."

    def sureness(self) -> str:
        """How far the best method's accuracy is known from so many rows; empty where many are."""
        best = self.best()
        if not self.tested or self.tested > MANY_TESTED or best is None:
            return ""
        right, rows = best.mean.get("accuracy"), self.tested
        if right is None:
            return ""
        low, high = _wilson(right, rows)
        said = (
            f"On {rows:,} rows the accuracy of {best.title}, {right:.3f}, stands for one between "
            f"{low:.2f} and {high:.2f} (95 %)."
        )
        if len(self.titles()) == 1:
            return said
        return (
            f"{said} All methods are compared on the same rows, so that their order is somewhat "
            "surer than that."
        )

    def comparison(self) -> tuple[list[str], list[list[str]]]:
        """A head, and a line for every method over its seeds."""
        names = self.metric_names()
        lines = []
        for each in self.summaries():
            costs = f"{each.seconds:.1f} s", human_bytes(each.bytes)
            lines.append([each.title, *map(each.score, names), *costs])
        return ["method", *map(pretty, names), "training", "crossed"], lines

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_table(*self.comparison(), title=self.title, below=self.cautions())

    def metric_names(self) -> list[str]:
        """Every metric that occurs, the main one first."""
        names = dict.fromkeys(name for run in self.methods for name in run.scores)
        return [self.metric, *(name for name in names if name != self.metric)]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return dict(plain(asdict(self)))

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunRecord:
        """The record of a JSON form."""
        content = dict(stored)
        if content.get("format") != FORMAT:
            raise DataError(
                "this is not a run record of this version of fedmend",
                value=content.get("format"),
                mend="make the run again",
            )
        content["methods"] = [typed(MethodRun, run) for run in content["methods"]]
        return typed(cls, content)

    def save(self, folder: str | Path) -> Path:
        """Write ``metrics.json`` into a run folder."""
        return write_json(Path(folder) / RECORD_FILE, self.to_dict())

    @classmethod
    def load(cls, folder: str | Path) -> RunRecord:
        """Read the record of a run folder."""
        path = Path(folder) / RECORD_FILE
        if not path.is_file():
            raise DataError(
                f"{folder} is not a run folder: {RECORD_FILE} is missing",
                mend="name a folder that 'fedmend run' has written",
            )
        with reading(path, "make the run again"):
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))


def seen_words(party: str, known: int, rows: int) -> str:
    """What to think of test rows that were trained on."""
    return (
        f"Party {party!r}: {known:,} of its {rows:,} labelled test rows have the ids of labelled "
        "training rows. Where they are the same rows, scores are better than on new ones. "
        "Mend: give the test table other rows, or leave test out at every party"
    )


def task_told(scores: Mapping[str, Any]) -> dict[str, str]:
    """Where parameters leave it open ("auto"): an RMSE is of numbers."""
    return {"task": "regression"} if "rmse" in scores else {}


def better_is_higher(metric: str) -> bool:
    """Whether a larger value of this metric is the better one."""
    return not any(word in metric.lower() for word in _LESS_IS_BETTER)


def main_metric(metrics: list[str], scores: Sequence[Mapping[str, float | None]]) -> str:
    """The metric that decides: the first asked for, else the first usual one, that all scores have.

    An AUC cannot be told of rows among which a class is absent.
    """
    usual = [name for name in ("auc", "accuracy", "rmse") if name in scores[0]]
    names = [*metrics, *usual] or list(scores[0])
    told = (name for name in names if all(_is_number(each.get(name)) for each in scores))
    return next(told, names[0])


_installed = cache(metadata.version)  # reads a file


def versions() -> dict[str, str]:
    """The versions that shaped the result."""
    found = {"fedmend": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "pandas", "scikit-learn"):
        try:
            found[package] = _installed(package)
        except metadata.PackageNotFoundError:
            continue
    found["machine"] = f"{platform.system()} {platform.machine()}"
    return found


def _noise(metric: str, score: float, rows: int | None) -> float:
    """Two standard errors of a score on so many rows; on the same rows a difference takes less.

    Of shares those of one half, the widest there are; of errors those of normal ones.
    """
    if not rows or metric not in (*SHARES, *ERRORS):
        return 0.0
    return 1 / math.sqrt(rows) if metric in SHARES else score * math.sqrt(2 / rows)


def _is_number(value: float | None) -> TypeGuard[float]:
    """A score that there is: a record in memory has NaN where its file has nothing."""
    return value is not None and math.isfinite(value)


def _wilson(share: float, rows: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval, which holds for few rows and shares near one (a mean over seeds, so that
    scipy's, which takes a count, does not do)."""
    whole = 1 + z * z / rows
    middle = (share + z * z / (2 * rows)) / whole
    away = z * math.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2) / whole
    return middle - away, middle + away


def _summary(runs: list[MethodRun]) -> Summary:
    names = dict.fromkeys(name for run in runs for name in run.scores)
    values = {
        name: [value for run in runs if _is_number(value := run.scores.get(name))] for name in names
    }
    values = {name: found for name, found in values.items() if found}
    return Summary(
        title=runs[0].title,
        about=runs[0].about,
        seeds=len(runs),
        mean={name: statistics.fmean(found) for name, found in values.items()},
        sd={name: statistics.stdev(each) if each[1:] else 0.0 for name, each in values.items()},
        values=values,
        seconds=statistics.fmean(run.seconds for run in runs),
        crossings=round(statistics.fmean(run.crossings for run in runs)),
        bytes=round(statistics.fmean(run.bytes for run in runs)),
    )


# ---------------------------------------------------------------- stages


@dataclass(frozen=True)
class Stage:
    """One kind of stage, all its units together (a training is a unit for each method and seed)."""

    name: str
    units: int
    seconds: float
    crossings: int
    bytes: int
    reused: int
    says: str

    @property
    def words(self) -> str:
        words = STAGE_WORDS.get(self.name, self.name)
        return f"{words}, {self.units} times" if self.units > 1 else words

    @property
    def note(self) -> str:
        """What came out, and whether it was taken over from before."""
        if self.units > 1:
            return f"{self.reused} taken over from before" if self.reused else ""
        return f"{self.says} (taken over from before)" if self.reused else self.says


def read_stages(folder: Path) -> list[Stage]:
    """The stages of a run folder, in their order; none where there is no manifest.

    It is read as plain JSON: whatever a later version adds to it, the page still shows.
    """
    try:
        stored = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        return stages_of(stored["stages"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def stages_of(entries: Sequence[Mapping[str, Any]]) -> list[Stage]:
    """Entries of a manifest, those of one stage added up."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        grouped.setdefault(str(entry["stage"]), []).append(entry)
    return [
        Stage(
            name,
            len(group),
            sum(float(each.get("seconds", 0.0)) for each in group),
            sum(int(each.get("crossings", 0)) for each in group),
            sum(int(each.get("bytes", 0)) for each in group),
            sum(bool(each.get("reused")) for each in group),
            # What is torn has a section of its own.
            "" if name == "diagnose" else str(group[-1].get("says", "")),
        )
        for name, group in grouped.items()
    ]
