"""Gradient-boosted trees of many targets over two parties, from sums over A's bins.

A sorts its columns into bins, once (`bins.py`). B holds targets, gradients and trees. For every
level of the trees of *all* targets together, one product of A's 0/1 bin indicators with B's
gradients (`histograms.py`) gives B the sums of gradients per node and bin; B picks the best cuts,
of A's columns by number and of its own, and asks A on which side of a chosen cut each row lies.
The same holds for the rows only A has, so they are predicted while the trees grow. Trees and
predictions are the same as when grown in the clear (`boost.py`, `grow.py`).

What each role learns
- The coordinator: sizes, A's numbers of bins, how many nodes, cuts and targets there are at each
  step. Sums and sides are hidden from it by masks and boxes.
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
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.errors import ConfigError
from fedmend.methods.boosting.bins import CutTable
from fedmend.methods.boosting.grow import Growth
from fedmend.methods.completion.boost import BATCH, BoostSettings
from fedmend.methods.completion.histograms import DealerHistograms, SessionHistograms
from fedmend.methods.completion.targets import FitReport, Progress, TargetModels
from fedmend.methods.completion.tree_workers import TreeFeatures, TreeTargets

if TYPE_CHECKING:
    from fedmend.federation.federation import Federation

__all__ = ["TreeModels"]

logger = logging.getLogger(__name__)


class TreeModels(TargetModels):
    """Boosted trees: squared error for numbers, logistic loss for two classes, softmax for more.

    trees, depth, learning_rate, l2, min_leaf, min_gain: as usual (min_leaf in rows; for classes
    0.05 times as much curvature).
    bins: most bins of a column. least: fewest rows in a bin of A's.
    subsample: share of rows drawn for each tree; colsample: share of columns.
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
        min_gain: float = 1e-6,
        bins: int = 32,
        least: int = 10,
        subsample: float = 1.0,
        colsample: float = 1.0,
        validation: float = 0.1,
        patience: int = 10,
        disclose: int | None = 128,
        search: float = 0.1,
        seed: int = 0,
        **options: Any,
    ) -> None:
        growth = Growth(depth, learning_rate, l2, min_leaf, min_gain)
        searching = max(1, round(search * trees))
        settings = BoostSettings(trees, validation, patience, colsample, disclose, searching, seed)
        _check(growth, settings, bins, subsample, search)
        self.trees, self.depth, self.subsample = trees, depth, subsample
        super().__init__(
            fed,
            a,
            b,
            **options,
            params={
                "a": {"bins": bins, "least": least, "disclose": disclose},
                "b": {"bins": bins, "growth": asdict(growth), "settings": asdict(settings)},
            },
        )
        self._layouts = self.at_a.layouts()
        self._stored = CutTable(self._layouts).stored
        self._number, self._rounds, self._seed = 0, 0, seed

    def fit(self, *, progress: Progress | None = None) -> FitReport:
        length = self.at_b.reach()
        self._rounds += 1
        needed = self.at_b.begin(self._layouts, length)
        kind = DealerHistograms if self.mode == "dealer" else SessionHistograms
        histograms = kind(self, length, self._stored, self._number) if needed else None
        grown = 0
        for tree in range(self.trees if self.targets else 0):
            self._sample(histograms, tree, length)
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

    def _sample(
        self, histograms: DealerHistograms | SessionHistograms | None, tree: int, length: int
    ) -> None:
        """Which rows the tree is grown on: drawn here, known to everybody."""
        source = np.random.SeedSequence([self.fed.seed, self._seed, self._rounds, tree])
        seed = int(source.generate_state(1)[0])
        if histograms is not None:
            histograms.sample(seed, self.subsample)
        else:
            self.at_b.sample(seed, self.subsample, length)

    def _level(self, histograms: DealerHistograms | SessionHistograms | None) -> int:
        """One level of all trees; tells how many nodes are open after it."""
        wanted = self.at_b.plan_level()
        for start in range(0, wanted, BATCH):
            count = self.at_b.load_numbers(start, min(wanted, start + BATCH))
            if histograms is not None:
                histograms.sums(count)
            self.at_b.gather_sums()
        request = self.at_b.choose(self.a)
        if request is not None:
            self.at_b.take_sides(self.at_a.sides_for(self.b, request), self.a)
        return int(self.at_b.split())


def _check(
    growth: Growth, settings: BoostSettings, bins: int, subsample: float, search: float
) -> None:
    problems = [
        f"{name} must be at least {least}, got {value}"
        for name, value, least in (
            ("trees", settings.trees, 1),
            ("depth", growth.depth, 1),
            ("patience", settings.patience, 1),
            ("min_leaf", growth.min_leaf, 1),
            ("bins", bins, 2),
            ("disclose", 0 if settings.disclose is None else settings.disclose, 0),
        )
        if value < least
    ]
    problems += [
        f"{name} must lie in {low} … 1, got {value}"
        for name, value, low in (
            ("subsample", subsample, "0"),
            ("colsample", settings.colsample, "0"),
            ("search", search, "0"),
        )
        if not 0 < value <= 1
    ]
    if not 0 <= settings.validation < 1:
        problems.append(f"validation must lie in 0 … 1, got {settings.validation}")
    if growth.depth > 12 or bins > 1024:
        problems.append(f"depth goes to 12 and bins to 1024, got {growth.depth}, {bins}")
    if growth.l2 <= 0 or growth.learning_rate <= 0 or growth.min_gain < 0:
        problems.append("l2 and learning_rate must be above 0, min_gain 0 or more")
    if problems:
        raise ConfigError(problems)
