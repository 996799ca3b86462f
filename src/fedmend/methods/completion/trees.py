"""Gradient-boosted trees of many targets over two parties, from sums over A's bins.

A sorts its columns into bins, once. B holds targets, gradients and trees. For every level of the
trees of *all* targets together, one product of A's 0/1 bin indicators with B's gradients gives B
the sums of gradients per node and bin; B picks the best cuts, by number, and asks A on which side
of a chosen cut each row lies. The same holds for the rows only A has, so they are predicted while
the trees grow. Trees and predictions are the same as when grown in the clear (`methods/boosting`).

What each role learns
- The coordinator: sizes, A's numbers of bins, how many nodes, cuts and targets there are at each
  step. Sums and sides are hidden from it by masks and encryption.
- A: which of its cuts are used, not for which target, row or node; no gradient, no prediction.
- B: for every cut of A's that is used, one bit per row: on which side it lies, for the aligned
  rows and for those only A has. All cuts together would be the *bin* of every row in each of A's
  columns, without name, edge or category; `disclose` limits how many are told over the whole life
  of the models. And sums of its own gradients over A's bins in each node: where a node has few
  rows, B can work out from them into which bins those (aligned) rows fall. `least` and `min_leaf`
  keep bins and nodes from being that small, `bins` limits what there is to find.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedmend._parameters import (
    POSITIVE,
    POSITIVE_SHARE,
    PROPER_SHARE,
    Rules,
    at_least,
    check_values,
)
from fedmend.data.encode import as_numbers, positions
from fedmend.errors import Refused
from fedmend.federation.federation import Federation
from fedmend.federation.site import Site
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.methods.boosting.bins import Binned, CutTable, bin_categories, bin_numbers
from fedmend.methods.boosting.boost import BATCH, Boosting, BoostSettings, OwnBins, Target
from fedmend.methods.boosting.grow import Growth
from fedmend.methods.boosting.histograms import (
    BinsWorker,
    DealerHistograms,
    Histograms,
    SessionHistograms,
    SumsWorker,
)
from fedmend.methods.completion.targets import (
    FitReport,
    Progress,
    StoreWorker,
    TargetModels,
    TargetWorker,
)

logger = logging.getLogger(__name__)

SPREAD_TREES = 30
MIN_SPREAD = 0.05  # of the mean squared residual
RULES: Rules = {
    **dict.fromkeys(("trees", "patience", "min_leaf"), at_least(1)),
    "search": POSITIVE_SHARE,
    **dict.fromkeys(("l2", "learning_rate"), POSITIVE),
    "validation": PROPER_SHARE,
    "depth": ("in 1 … 12", lambda depth: 1 <= depth <= 12),
    "bins": ("in 2 … 1024", lambda bins: 2 <= bins <= 1024),
    "disclose": ("0 or more, or None", lambda cuts: cuts is None or cuts >= 0),
}


# ---------------------------------------------------------------------------------- at A


class TreeFeatures(BinsWorker, TargetWorker):
    """A's side: bin numbers of its columns. A cut is known outside by its number only.

    disclose: most cuts of which A tells the sides in the life of this worker.
    """

    def __init__(
        self,
        site: Site,
        scope: str = "train",
        *,
        bins: int,
        least: int,
        disclose: int | None,
        **params: Any,
    ) -> None:
        super().__init__(site, scope, **params)
        table, least = self.features(), max(least, site.rows.least)
        self._binned: list[Binned] = []
        varied = False
        for name in table.feature_names:
            if name in table.blocks:
                continue
            column, series = table.schema[name], table.frame[name]
            if column.kind == "nominal":
                codes = positions(series, column.categories or ())
                made = bin_categories(np.maximum(codes, -1), least)
            else:
                made = bin_numbers(as_numbers(column, series), bins, least)
            varied = varied or series.nunique(dropna=False) > 1
            # of so few rows that no bin may be cut off there is nothing to bin
            if made.bins + made.missing > 1:
                self._binned.append(made)
        if not varied:
            raise self.nothing_varies()
        self._codes = np.zeros((len(self._binned), len(table)), np.int16)
        for number, each in enumerate(self._binned):
            self._codes[number] = each.codes
        self._table = CutTable([each.layout for each in self._binned])
        self.indicators = self._table.indicators(self._codes)
        self._disclose, self._disclosed = disclose, set[int]()

    @exposed(kind="count")
    def layouts(self) -> list[list[Any]]:
        """Per column its kind, number of bins, and whether cells are missing; no names."""
        return [each.layout for each in self._binned]

    def _own_cuts(self, request: Sequence[int]) -> list[int]:
        cuts = super()._own_cuts(request)
        self._disclosed |= set(cuts)
        if self._disclose is not None and len(self._disclosed) > self._disclose:
            raise Refused(
                self.site.name,
                f"{len(self._disclosed)} cuts were asked for, {self._disclose} may be told",
                "a larger disclose=",
            )
        return cuts


# ---------------------------------------------------------------------------------- at B


class TreeTargets(SumsWorker, StoreWorker):
    """B's side: everything but A's columns."""

    def __init__(
        self,
        site: Site,
        scope: str = "train",
        *,
        growth: dict[str, Any],
        settings: dict[str, Any],
        **params: Any,
    ) -> None:
        super().__init__(site, scope, **params)
        self._growth, self._settings = Growth(**growth), BoostSettings(**settings)
        self._known: dict[int, np.ndarray] = {}
        self._asked: list[int] = []
        self._settled: set[str] = set()

    @exposed(kind="control", takes={"layouts": "count"})
    def begin(self, layouts: Sequence[Sequence[Any]], length: int) -> bool:
        """Start anew; tells whether sums over A's bins will be needed."""
        targets = {}
        for name in self.store.learnt:
            column = self.store[name]
            rows = np.flatnonzero(column.labelled)
            targets[name] = Target(column.labels, rows, len(column.classes))
        self._length = length
        self._boosting = Boosting(
            targets,
            CutTable(layouts),
            OwnBins.none(len(self.rows)),
            self._growth,
            self._settings,
            self._known,
            settled=self._settled >= set(targets),
        )
        return not self.boosting.spent

    # ------------------------------------------------------------------ a tree

    @exposed(kind="count")
    def start_tree(self, number: int) -> int:
        """Gradients of all rows; tells how many outputs grow."""
        return self.boosting.start_tree(number, None, self._length)

    @exposed(kind="count")
    def plan_level(self) -> int:
        """How many columns of numbers must be summed over A's bins."""
        return self.boosting.plan_level()

    @exposed(kind="count")
    def load_numbers(self, start: int, stop: int) -> int:
        self.numbers = self.boosting.numbers(start, stop)
        return len(self.numbers)

    def summed(self, sums: np.ndarray, other: str) -> None:
        self.boosting.take_sums(sums)

    @exposed(kind="control")
    def choose(self, other: str) -> Sealed | None:
        """Decide the splits; encrypted for A the cuts whose sides are needed, if any."""
        self._asked = self.boosting.choose()
        if not self._asked:
            return None
        return self.seal(self._asked, to=other, kind="control")

    @exposed(kind="control", takes={"message": "side"})
    def take_sides(self, message: Sealed, sender: str) -> None:
        packed = self.open(message, sender=sender, kind="side")
        sides = np.unpackbits(packed, axis=1, count=len(self.rows)).astype(bool)
        self._known |= dict(zip(self._asked, sides, strict=True))

    @exposed(kind="count")
    def split(self) -> int:
        """Send the rows down; tells how many nodes are open now, over all outputs."""
        return self.boosting.split()

    @exposed(kind="count")
    def finish_tree(self) -> dict[str, Any]:
        """Tells how many targets go on, and whether sums over A's bins are needed for them."""
        active = self.boosting.finish_tree()
        if self.boosting.settled:
            self._settled |= {task.name for task in self.boosting.tasks}
        return {"active": active, "needed": not self.boosting.spent}

    # ------------------------------------------------------------------ outputs

    @exposed(kind="control")
    def write_outputs(self, first: int) -> None:
        """Outputs of the rows from `first` on, and how uncertain they are, for the target store."""
        for task in self.boosting.tasks:
            outputs = task.predictions()
            outputs[:first] = np.nan
            self.store[task.name].outputs = outputs
        for name, spread in self._spreads().items():
            spread[:first] = np.nan
            self.store[name].spread = spread

    def _spreads(self) -> dict[str, np.ndarray]:
        """Deviation of the residuals, as trees over what B knows predict it from row to row.

        They learn the squared residuals of the rows held out, or of the training rows.
        """
        targets, means, flat = {}, {}, {}
        for task in self.boosting.tasks:
            if task.target.classes:
                continue
            rows = task.held_out if len(task.held_out) else task.rows
            squares = np.full(len(self.rows), np.nan)
            squares[rows] = (task.target.labels[rows] - task.final_scores()[0][rows]) ** 2
            mean = float(squares[rows].mean())
            if mean == 0 or len(rows) < 4 * self._growth.min_leaf:
                flat[task.name] = np.full(len(self.rows), np.sqrt(mean))
            else:
                targets[task.name] = Target(squares / mean, rows)
                means[task.name] = mean
        for task in self._grown_at_home(targets).tasks:
            share = np.clip(task.final_scores()[0], MIN_SPREAD, None)
            flat[task.name] = np.sqrt(means[task.name] * share)
        return flat

    def _grown_at_home(self, targets: dict[str, Target]) -> Boosting:
        boosting = Boosting(
            targets,
            self.boosting.cuts,
            self.boosting.own,
            replace(self._growth, depth=min(3, self._growth.depth)),
            BoostSettings(SPREAD_TREES, 0.0, 1, 0, 0, self._settings.seed),
            self._known,
        )
        if targets:
            used = np.unique(np.concatenate([target.rows for target in targets.values()]))
            boosting.grow_at_home(used, len(self.rows))
        return boosting


# ---------------------------------------------------------------------------------- coordinator


class TreeModels(TargetModels):
    """Boosted trees: squared error for numbers, logistic loss for two classes, softmax for more.

    trees, depth, learning_rate, l2, min_leaf: as usual (min_leaf in rows; for classes 0.05 times as
    much curvature).
    bins: most bins of a column. least: fewest rows in a bin of A's.
    validation, patience: a share of each target's training rows is held out, and its trees stop
    when the loss there has not fallen for `patience` trees; 0.0 grows all trees.
    disclose: most cuts of A's of which B learns the sides, over the life of this object; None for
    any number, whenever they pay.
    search: the share of the trees that may ask for new cuts; the others choose among those that B
    knows, for which nothing has to cross.
    """

    family = "tree"
    workers = (TreeFeatures, TreeTargets)

    def __init__(
        self,
        fed: Federation,
        a: str,
        b: str,
        *,
        trees: int = 100,
        depth: int = 5,
        learning_rate: float = 0.1,
        l2: float = 1.0,
        min_leaf: int = 20,
        bins: int = 32,
        least: int = 10,
        validation: float = 0.1,
        patience: int = 10,
        disclose: int | None = 128,
        search: float = 0.1,
        seed: int = 0,
        **options: Any,
    ) -> None:
        check_values(SimpleNamespace(**locals()), RULES)
        growth = Growth(depth, learning_rate, l2, min_leaf)
        searching = max(1, round(search * trees))
        settings = BoostSettings(trees, validation, patience, disclose, searching, seed)
        self.trees, self.depth = trees, depth
        super().__init__(
            fed,
            a,
            b,
            **options,
            params={
                "a": {"bins": bins, "least": least, "disclose": disclose},
                "b": {"growth": asdict(growth), "settings": asdict(settings)},
            },
        )
        self._layouts = self.at_a.layouts()
        self._stored = CutTable(self._layouts).stored
        self._number = 0

    def fit(self, *, progress: Progress | None = None) -> FitReport:
        length = self.at_b.reach()
        needed = self.at_b.begin(self._layouts, length)
        kind = DealerHistograms if self.mode == "dealer" else SessionHistograms
        histograms = kind(self, length, self._stored, self._number) if needed else None
        grown = 0
        for tree in range(self.trees if self.targets else 0):
            self.at_b.start_tree(tree)
            for _ in range(self.depth):
                if not self._level(histograms):
                    break
            grown = tree + 1
            if progress is not None:
                progress("trees", grown, self.trees)
            state = self.at_b.finish_tree()
            if not state["active"]:
                break
            if histograms is not None and not state["needed"]:
                self._number = histograms.close()
                histograms = None
        if histograms is not None:
            self._number = histograms.close()
        logger.debug("%d trees of %d targets", grown, len(self.targets))
        return self._report()

    def predict(self, *, rows: str = "unaligned", progress: Progress | None = None) -> None:
        self.at_b.write_outputs(self._first_row(rows))

    def _level(self, histograms: Histograms | None) -> int:
        """One level of all trees; tells how many nodes are open after it."""
        wanted = self.at_b.plan_level()
        for start in range(0, wanted, BATCH):
            count = self.at_b.load_numbers(start, min(wanted, start + BATCH))
            if histograms is not None:
                histograms.sums(count)
        request = self.at_b.choose(self.a)
        if request is not None:
            self.at_b.take_sides(self.at_a.sides_for(self.b, request), self.a)
        return int(self.at_b.split())
