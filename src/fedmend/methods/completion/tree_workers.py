"""The two sides of the trees: A's binned columns and their cuts, B's targets and boosting.

See `trees.py` for the protocol and for what each side learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.data.restore import positions
from fedmend.errors import DataError, NotFitted, Refused
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.methods.boosting.bins import Binned, CutTable, bin_categories, bin_numbers
from fedmend.methods.boosting.grow import Growth
from fedmend.methods.completion.board import TargetColumn, known
from fedmend.methods.completion.boost import Boosting, BoostSettings, OwnBins
from fedmend.methods.completion.histograms import BinsWorker, SumsWorker
from fedmend.methods.completion.targets import BoardWorker

if TYPE_CHECKING:
    from fedmend.federation.site import Site

__all__ = ["TreeFeatures", "TreeTargets"]

SPREAD_TREES = 30
LEAST_SPREAD = 0.05  # of the mean squared residual


class TreeFeatures(BinsWorker):
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
            elif column.is_categorical:
                at = positions(series, column.categories or ())
                made = bin_numbers(np.where(at < 0, np.nan, at.astype(np.float64)), bins, least)
            else:
                real = series.to_numpy(dtype=np.float64, na_value=np.nan)
                made = bin_numbers(real, bins, least)
            varied = varied or series.nunique(dropna=False) > 1
            # of so few rows that no bin may be cut off there is nothing to bin
            if made.bins + made.missing > 1:
                self._binned.append(made)
        if not varied:
            raise DataError(
                "no column varies, so nothing can be predicted from them",
                party=site.name,
                mend="give the party columns with one value a row that vary",
            )
        self._codes = np.zeros((len(self._binned), len(table)), np.int16)
        for number, each in enumerate(self._binned):
            self._codes[number] = each.codes
        self._table = CutTable([each.layout for each in self._binned])
        self.indicators = self._table.indicators(self._codes)
        self._disclose, self._told = disclose, set[int]()

    @exposed(kind="count")
    def layouts(self) -> list[list[Any]]:
        """Per column its kind, number of bins, and whether cells are missing; no names."""
        return [each.layout for each in self._binned]

    @exposed(kind="embedding", takes={"request": "control"})
    def sides_for(self, to: str, request: Sealed) -> Sealed:
        """On which side of the asked cuts every row lies, as bits in a box for B."""
        cuts = [int(cut) for cut in self.open(request, sender=to, kind="control")]
        if any(not 0 <= cut < len(self._table) for cut in cuts):
            raise DataError(f"there are {len(self._table)} cuts only", mend="ask for one of them")
        self._told |= set(cuts)
        if self._disclose is not None and len(self._told) > self._disclose:
            raise Refused(
                self.site.name,
                f"{len(self._told)} cuts were asked for, {self._disclose} may be told",
                "a larger disclose=",
            )
        sides = [self._table.goes_left(cut, self._codes) for cut in cuts]
        return self.seal(np.packbits(np.stack(sides), axis=1), to=to, kind="embedding")


class TreeTargets(SumsWorker, BoardWorker):
    """B's side: everything but A's columns."""

    def __init__(
        self,
        site: Site,
        scope: str = "train",
        *,
        bins: int,
        growth: dict[str, Any],
        settings: dict[str, Any],
        **params: Any,
    ) -> None:
        super().__init__(site, scope, **params)
        self._bins = bins
        self._growth, self._settings = Growth(**growth), BoostSettings(**settings)
        self._known: dict[int, np.ndarray] = {}
        self._asked: list[int] = []
        self._settled: set[str] = set()
        self._boosting: Boosting | None = None

    @property
    def boosting(self) -> Boosting:
        if self._boosting is None:
            raise NotFitted(f"party {self.site.name!r} grows no trees yet. Mend: begin first")
        return self._boosting

    @exposed(kind="control", takes={"layouts": "count"})
    def begin(self, layouts: Sequence[Sequence[Any]], length: int) -> bool:
        """Start anew; tells whether sums over A's bins will be needed."""
        board = self.board
        self._length = length
        self._boosting = Boosting(
            {name: board[name] for name in board.learnt},
            CutTable(layouts),
            self._own_bins(),
            self._growth,
            self._settings,
            self._known,
            settled=self._settled >= set(board.learnt),
        )
        return self._needed()

    def _own_bins(self) -> OwnBins:
        """B's own columns, binned by what was observed; rows without a guess are missing."""
        board, made = self.board, dict[str, Binned]()
        for name in board.own:
            column = board[name]
            seen = known(column.truth)
            if column.is_class:
                made[name] = bin_categories(column.guess, 1, seen)
            else:
                made[name] = bin_numbers(column.guess, self._bins, 1, seen)
        codes = [each.codes for each in made.values()]
        return OwnBins(
            np.stack(codes) if codes else np.zeros((0, board.rows), np.int16),
            CutTable([each.layout for each in made.values()]),
            list(made),
        )

    # ------------------------------------------------------------------ a tree

    @exposed(kind="count")
    def start_tree(self, number: int) -> int:
        """Gradients at the rows sampled last; tells how many outputs grow."""
        return self.boosting.start_tree(number, self.sampled, self._length)

    @exposed(kind="count")
    def plan_level(self) -> int:
        """How many columns of numbers must be summed over A's bins."""
        return self.boosting.plan_level()

    @exposed(kind="count")
    def load_numbers(self, start: int, stop: int) -> int:
        numbers = self.boosting.numbers(start, stop)
        self.keep("numbers", numbers)
        return len(numbers)

    @exposed(kind="control")
    def gather_sums(self) -> None:
        self.boosting.take_sums(self.kept("sums"))

    @exposed(kind="control")
    def choose(self, other: str) -> Sealed | None:
        """Decide the splits; a box for A with the cuts whose sides are needed, if any."""
        self._asked = self.boosting.choose()
        if not self._asked:
            return None
        return self.seal(self._asked, to=other, kind="control")

    @exposed(kind="control", takes={"box": "embedding"})
    def take_sides(self, box: Sealed, sender: str) -> None:
        packed = self.open(box, sender=sender, kind="embedding")
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
        return {"active": active, "needed": self._needed()}

    def _needed(self) -> bool:
        return not self.boosting.spent

    # ------------------------------------------------------------------ outputs

    @exposed(kind="control")
    def write_outputs(self, first: int) -> None:
        """The outputs of the rows from `first` on, and how uncertain they are, on the board."""
        for task in self.boosting.tasks:
            outputs = task.predictions()
            outputs[:first] = np.nan
            self.board[task.name].outputs = outputs
        for name, spread in self._spreads().items():
            spread[:first] = np.nan
            self.board[name].spread = spread

    def _spreads(self) -> dict[str, np.ndarray]:
        """Deviation of the residuals, as trees over what B knows predict it from row to row.

        They learn the squared residuals of the rows held out, or of the training rows.
        """
        targets, means, flat = {}, {}, {}
        for task in self.boosting.tasks:
            if task.column.is_class:
                continue
            rows = task.held_out if len(task.held_out) else task.rows
            squares = np.full(len(self.rows), np.nan)
            squares[rows] = (task.column.labels[rows] - task.final_scores()[0][rows]) ** 2
            mean = float(squares[rows].mean())
            if mean == 0 or len(rows) < 4 * self._growth.min_leaf:
                flat[task.name] = np.full(len(self.rows), np.sqrt(mean))
            else:
                targets[task.name] = replace(task.column, labels=squares / mean)
                means[task.name] = mean
        for task in self._grown_at_home(targets).tasks:
            share = np.clip(task.final_scores()[0], LEAST_SPREAD, None)
            flat[task.name] = np.sqrt(means[task.name] * share)
        return flat

    def _grown_at_home(self, targets: dict[str, TargetColumn]) -> Boosting:
        boosting = Boosting(
            targets,
            self.boosting.cuts,
            self.boosting.own,
            replace(self._growth, depth=min(3, self._growth.depth)),
            BoostSettings(SPREAD_TREES, 0.0, 1, 1.0, 0, 0, self._settings.seed),
            self._known,
        )
        used = [target.labelled for target in targets.values()]
        if used:
            boosting.grow_at_home(np.flatnonzero(np.any(used, axis=0)), len(self.rows))
        return boosting
