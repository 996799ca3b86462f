"""One world of `fedmend bench recipes`: labels, completion and training in every combination.

A *line* is one combination, written "labels → completion → learner"; stages that lines share are
run once and counted in each. Lines are kept one by one, so that a stopped benchmark goes on.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import numpy as np

from fedmend.errors import FedmendWarning
from fedmend.federation import Federation
from fedmend.learn import metrics
from fedmend.methods import EM, MJ, VFL, Local, LocalVFL
from fedmend.methods.annotators.corrected import correct_labels
from fedmend.methods.annotators.estimator import CrowdEstimator
from fedmend.methods.annotators.inc import InC
from fedmend.methods.completion.fedpsg_pum import FedPSGPUM
from fedmend.methods.recipes import CORRECT, TRAIN
from fedmend.methods.risa.risa import RISA
from fedmend.secure.align import align
from fedmend.split.belief import cell_confidence, keep_belief, keep_confidence, label_belief
from fedmend_bench.cells import run_cells
from fedmend_bench.flow.world import ALONE, BANK, Shape, World, make_world

OWN, MAJORITY, SKENE, CORRECTED = "own", "majority", "Dawid–Skene", "InC"
LABELS = (OWN, MAJORITY, SKENE, CORRECTED)
COMPLETED = "FedPSG-PUM"
LEARNERS: dict[str, Any] = {"Local": Local, "VFL": VFL, "LocalVFL": LocalVFL, "RISA": RISA}
# What each of the parts that make stages meet is worth: a recipe's line without it.
CONFIDENT = "InC → FedPSG-PUM → RISA, all cells believed"
CERTAIN = ("InC → FedPSG-PUM → VFL, labels certain", "InC → RISA, labels certain")
WITHOUT = (CONFIDENT, *CERTAIN)
ALONE_LINES = ("InC alone", "InC on the labellers' rows", "oracle")
INC = {key: value for key, value in CORRECT.items() if key not in ("name", "among")}


@dataclass(frozen=True)
class Line:
    """A combination in a world."""

    shape: Shape
    name: str
    epochs: int | None = None


def combined(labels: str, completed: bool, learner: str) -> str:
    """A line's name.

    >>> combined("InC", False, "RISA"), combined("own", True, "VFL")
    ('InC → RISA', 'FedPSG-PUM → VFL')
    """
    stages = [labels if labels != OWN else "", COMPLETED if completed else ""]
    return " → ".join([stage for stage in stages if stage] + [learner])


def all_lines() -> list[str]:
    """Every line: single methods first, then combinations."""
    found = [combined(OWN, False, learner) for learner in LEARNERS]
    found += [combined(OWN, True, "VFL"), *ALONE_LINES]
    for labels in LABELS:
        found += [combined(labels, False, learner) for learner in LEARNERS]
        found += [combined(labels, True, learner) for learner in ("VFL", "RISA")]
    return list(dict.fromkeys([*found, *WITHOUT]))


# ---------------------------------------------------------------------------------- one world


@dataclass
class Bench:
    """A world with its stages; each is run when a line first needs it."""

    shape: Shape
    epochs: int | None = None
    world: World = field(init=False)
    costs: dict[str, dict[str, float]] = field(default_factory=dict, init=False)
    _kept: dict[str, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.world = make_world(self.shape)

    def line(self, name: str) -> dict[str, Any]:
        """Run a line: AUC on rows known to both and to the bank alone, seconds, megabytes."""
        if name == "oracle":
            return self._oracle()
        if name in ALONE_LINES:
            view = self.world.fed if name == ALONE_LINES[0] else self.world.labellers
            model, stages = self._crowd(CORRECTED, view)
            return self._scored(model, stages)
        *before, learner = name.partition(",")[0].split(" → ")
        labels = next((stage for stage in before if stage in LABELS), OWN)
        fed, stages = self._columns(COMPLETED in before)
        if labels != OWN:
            fed, more = self._labelled(labels, fed)
            stages += more
        if name in WITHOUT:
            fed = self._without(fed, name)
        model = self._learner(learner, fed)
        with self._measured("training"):
            model.fit(fed)
        found = self._scored(model, [*stages, "training"])
        return found | {"labels right": self._right(labels)}

    # ------------------------------------------------------------------ stages

    def _columns(self, completed: bool) -> tuple[Federation, list[str]]:
        """The bank and the telco, as they are or with completed rows."""
        pair = self.world.columns
        stages = [self._align(pair)]
        if not completed:
            return pair, stages
        if COMPLETED not in self._kept:
            mended = FedPSGPUM(source=BANK, correlation_mode="dealer", seed=self.shape.seed)
            with self._measured(COMPLETED):
                self._kept[COMPLETED] = mended.fit(pair).federation
        return self._kept[COMPLETED], [*stages, COMPLETED]

    def _labelled(self, labels: str, fed: Federation) -> tuple[Federation, list[str]]:
        """The same federation with the bank's labels corrected."""
        labellers = self.world.labellers
        model, stages = self._crowd(labels, labellers)
        name = f"{fed.dataset}-{LABELS.index(labels)}"
        if name not in self._kept:
            self._kept[name] = correct_labels(labellers, model, to=BANK, into=fed, name=name)
        return self._kept[name].federation, stages

    def _without(self, fed: Federation, name: str) -> Federation:
        """The same tables under another name, with less noted beside them."""
        view = fed.on(f"{fed.dataset}-{WITHOUT.index(name)}")
        engine: Any = fed.engine
        for party in fed.names:
            site = engine.site(party)
            site.tables[view.dataset] = site.tables[fed.dataset]
            site.alignments[view.scope] = site.alignments[fed.scope]
            belief, cells = label_belief(site, fed.dataset), cell_confidence(site, fed.dataset)
            if belief is not None and name not in CERTAIN:
                keep_belief(site, view.dataset, belief)
            if cells is not None:
                ones = {column: np.ones_like(trust) for column, trust in cells.items()}
                keep_confidence(site, view.dataset, ones if name == CONFIDENT else cells)
        view.note_alignment(fed.alignment)
        return view

    def _crowd(self, labels: str, fed: Federation) -> tuple[CrowdEstimator, list[str]]:
        """A method for several labellers, fitted on the rows that `fed` has in common."""
        stages = [self._align(fed), f"{labels} on {fed.scope}"]
        if stages[1] not in self._kept:
            model: CrowdEstimator
            if labels == CORRECTED:
                fewer = {"epochs": self.epochs, "initial_epochs": None} if self.epochs else {}
                model = InC(**{**INC, **fewer, "secure": "masks"})
            else:
                model = {MAJORITY: MJ, SKENE: EM}[labels](epochs=1, secure="masks")
            with self._measured(stages[1]):
                self._kept[stages[1]] = model.set_params(seed=self.shape.seed).fit(fed)
        return self._kept[stages[1]], stages

    def _align(self, fed: Federation) -> str:
        stage = f"align {fed.scope}"
        if not fed.is_aligned:
            with self._measured(stage):
                align(fed)
        return stage

    def _learner(self, learner: str, fed: Federation) -> Any:
        """All learners train alike but RISA, whose own defaults are known to be better for it."""
        if learner == "RISA":
            fewer: dict[str, Any] = {"epochs": self.epochs} if self.epochs else {}
            return RISA(**fewer, seed=self.shape.seed)
        return LEARNERS[learner](**self._training(fed, learner), seed=self.shape.seed)

    def _training(self, fed: Federation, learner: str = "VFL") -> dict[str, Any]:
        settings = TRAIN | ({"epochs": self.epochs} if self.epochs else {})
        aligned = fed.alignment.aligned
        if learner == "VFL" and 4 * aligned < self.shape.rows:
            # On few rows smaller batches, so that there are about as many updates.
            batch = min(256, max(16, aligned // 10))
            return settings | {"batch_size": batch, "epochs": 2 * settings["epochs"]}
        return settings

    def _oracle(self) -> dict[str, Any]:
        """True labels, and all rows known to both."""
        pair = make_world(self.shape, mended=True).columns
        align(pair)
        model = VFL(**self._training(pair), seed=self.shape.seed)
        with self._measured("training", pair):
            model.fit(pair)
        return self._scored(model, ["training"], pair) | {"labels right": 1.0}

    # ------------------------------------------------------------------ measuring

    @contextmanager
    def _measured(self, stage: str, fed: Federation | None = None) -> Iterator[None]:
        ledger = (fed or self.world.fed).ledger
        began, crossed = time.perf_counter(), ledger.total_bytes()
        yield
        self.costs[stage] = {
            "seconds": time.perf_counter() - began,
            "mb": (ledger.total_bytes() - crossed) / 1e6,
        }

    def _scored(
        self, model: Any, stages: Sequence[str], pair: Federation | None = None
    ) -> dict[str, Any]:
        pair = self.world.columns if pair is None else pair
        costs = {stage: self.costs[stage] for stage in stages}
        both = model.predict_proba(pair.on("test"), rows="aligned")
        one = model.predict_proba(pair.on(ALONE), rows=BANK)
        return {
            "auc": 100 * self._auc(model, both),
            "auc, bank alone": 100 * self._auc(model, one),
            "seconds": sum(costs[stage]["seconds"] for stage in stages),
            "mb": sum(costs[stage]["mb"] for stage in stages),
            "stages": costs,
        }

    def _auc(self, model: Any, outputs: np.ndarray) -> float:
        place = {value: at for at, value in enumerate(model.classes_.tolist())}
        codes = np.array([place[value] for value in self.world.test_truth])
        return metrics.classification(codes, outputs)["auc"]

    def _right(self, labels: str) -> float:
        """The share of the bank's labels that are right, of those it has."""
        if labels == OWN:
            sites: Any = self.world.fed.engine
            said = sites.site(BANK).tables["train"].y.to_numpy(dtype=object)
            known = np.array([value is not None and value == value for value in said])
            return float((said[known] == self.world.truth[known]).mean())
        model, _ = self._crowd(labels, self.world.labellers)
        sites = self.world.fed.engine
        rows = sites.site(BANK).alignments[self.world.labellers.scope].aligned
        return float((model.corrected_ == self.world.truth[rows]).mean())


# ---------------------------------------------------------------------------------- many


def run_world(
    shape: Shape, lines: Sequence[str], folder: str | None = None, *, epochs: int | None = None
) -> list[dict[str, Any]]:
    """The named lines of one world, whose stages are run once."""
    bench = cache(lambda: Bench(shape, epochs))
    cells = [Line(shape, name, epochs) for name in lines]

    def measure(line: Line) -> dict[str, Any]:
        with warnings.catch_warnings():
            # few aligned rows, no strong column, a labeller below chance: the figures show it
            warnings.simplefilter("ignore", FedmendWarning)
            return bench().line(line.name)

    return [
        asdict(shape) | {"line": cell.name, "epochs": epochs} | found
        for cell, found in zip(cells, run_cells(measure, cells, folder), strict=True)
    ]
