"""Gradient-boosted trees grown level by level, with sums of gradients that may come from elsewhere.

An `Output` is one sequence of trees: a numeric target, a binary one, or one class of several. All
outputs grow one level at a time, so that the sums of all their nodes are asked for at once. Only
the smaller of two siblings is summed; the other is the parent less it.

Gradient and curvature of a row are rounded to integers and travel as one number (gradient upper,
curvature lower half), scaled so that the sum over all rows fits: rounding is about 1 % of the mean
gradient at 40,000 rows, finer for fewer. It decides splits only; leaf values are computed from
the exact numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmend.errors import DataError
from fedmend.methods.boosting.bins import CutTable
from fedmend.secure.histogram_product import HALF

_LOW = (1 << HALF) - 1


@dataclass(frozen=True)
class Growth:
    """How trees grow; the same for every output.

    l2: on leaf values; min_leaf: least rows in a leaf (for classes: 0.05 times as much curvature);
    min_rows: least training rows in a leaf, of whatever curvature (0 where nobody's policy asks for
    it). later_missing: rows may come later whose cells are missing where none is now; a node sends
    these to its larger side.
    """

    depth: int = 5
    learning_rate: float = 0.1
    l2: float = 1.0
    min_leaf: int = 20
    min_rows: int = 0
    later_missing: bool = False

    def least(self, constant: bool) -> float:
        return float(self.min_leaf) if constant else 0.05 * self.min_leaf


@dataclass(frozen=True, repr=False)
class Tree:
    """A tree as arrays over heap numbers: 1 is the root, 2i and 2i+1 the children of i.

    cut: number of the cut, -1 at leaves; numbers from `len(A's cuts)` on are B's own. gain: what
    each cut lowered the loss by (twice that, by the rounded sums).
    """

    cut: np.ndarray
    value: np.ndarray
    gain: np.ndarray


@dataclass(repr=False)
class Source:
    """Where a part of the sums comes from: those of a table's bins, or of the rows left of a cut.

    cuts: the numbers of these cuts among all; places: in the table. twins: which of them have the
    cut that differs only in where missing cells go next to them; alike: which stand for it, too, as
    no cell is missing.
    """

    table: CutTable | None
    cuts: np.ndarray
    places: np.ndarray
    twins: np.ndarray
    alike: np.ndarray

    @classmethod
    def of(cls, table: CutTable, first: int, places: np.ndarray) -> Source:
        """Of the cuts at these places; `first`: the number of the table's first one."""
        twin = np.isin(places, table.twins)
        beside = np.append(places[1:], -1) == places + 1
        return cls(table, first + places, places, twin & beside, twin & ~beside)

    def lefts(self, sums: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """int64 [nodes, cuts]."""
        return sums if self.table is None else self.table.lefts(sums, totals, self.places)


@dataclass(repr=False)
class Output:
    """One sequence of trees and, while one grows, the state of its nodes.

    scores: the sum of the trees at all numbered rows; constant: the curvature of a row is 1, or its
    weight.
    usable: which of all cuts may be chosen.
    """

    scores: np.ndarray
    constant: bool
    usable: np.ndarray
    trees: list[Tree] = field(default_factory=list)
    energy: float = 1.0  # what a perfect tree would gain

    def start(
        self, gradient: np.ndarray, curvature: np.ndarray, counted: np.ndarray, growth: Growth
    ) -> None:
        """Begin a tree. gradient, curvature: at the training rows `counted`, rounded here."""
        self.growth = growth
        self.rows = counted
        self.numbers, self.unit_gradient, self.unit_curvature = quantise(
            gradient, curvature, self.constant
        )
        self.node = np.ones(len(self.scores), dtype=np.int64)
        self.cut = np.full(1 << (growth.depth + 1), -1, dtype=np.int64)
        self.gain = np.zeros(len(self.cut))
        self.open: list[int] = [1]
        self.asked: list[int] = [1]
        self.sums: dict[int, list[np.ndarray]] = {}
        self.totals: dict[int, int] = {}
        self._parents: dict[int, list[np.ndarray]] = {}

    # ------------------------------------------------------------------ a level

    def plan(self) -> list[int]:
        """The nodes whose sums are needed: of two siblings the one with fewer rows."""
        if self.open == [1]:
            self.asked = [1]
        else:
            counts = np.bincount(self.node[self.rows], minlength=len(self.cut))
            self.asked = [
                left if counts[left] <= counts[left + 1] else left + 1 for left in self.open[::2]
            ]
        self._parents, self.sums = self.sums, {}
        sums = np.bincount(
            self.node[self.rows], self.numbers.astype(np.float64), minlength=len(self.cut)
        )
        self.totals = {node: int(sums[node]) for node in self.open}
        return self.asked

    def slots(self, nodes: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Positions (among `rows`) in one of these nodes, and in which of them."""
        place = np.full(len(self.cut), -1)
        place[nodes] = np.arange(len(nodes))
        slot = place[self.node[self.rows]]
        at = np.flatnonzero(slot >= 0)
        return at, slot[at]

    def take(self, parts: list[np.ndarray]) -> None:
        """Sums of the asked nodes, [asked, …] from every source; the siblings follow."""
        for number, node in enumerate(self.asked):
            own = [part[number] for part in parts]
            self.sums[node] = own
            if node > 1:
                parent = self._parents[node // 2]
                self.sums[node ^ 1] = [up - one for up, one in zip(parent, own, strict=True)]

    def split(self, decided: dict[int, int], goes_left: Callable[[int], np.ndarray]) -> int:
        """Send the rows of the decided nodes down; tells how many nodes are open now."""
        if decided:
            place = np.full(len(self.cut), -1)
            place[list(decided)] = np.arange(len(decided))
            at = place[self.node]
            lefts = np.stack([goes_left(cut) for cut in decided.values()])
            below = np.where(at >= 0, 2 * self.node + ~lefts[at, np.arange(len(at))], self.node)
            counts = np.bincount(below[self.rows], minlength=2 * len(self.cut))
            least = self.growth.min_rows
            decided = {
                node: cut
                for node, cut in decided.items()
                if min(counts[2 * node], counts[2 * node + 1]) >= least
            }
            splits = np.zeros(len(self.cut), bool)
            splits[list(decided)] = True
            self.node = np.where(splits[self.node], below, self.node)
            self.cut[list(decided)] = list(decided.values())
        opened = [child for node in decided for child in (2 * node, 2 * node + 1)]
        self.open = opened if opened and opened[0] < 1 << self.growth.depth else []
        return len(self.open)

    def finish(self, gradient: np.ndarray, curvature: np.ndarray, rows: np.ndarray) -> None:
        """Leaf values from all training rows and exact numbers; the scores move."""
        size = len(self.cut)
        g = np.bincount(self.node[rows], gradient, minlength=size)
        h = np.bincount(self.node[rows], curvature, minlength=size)
        value = -self.growth.learning_rate * g / (h + self.growth.l2)
        self.scores = self.scores + value[self.node]
        self.trees.append(Tree(self.cut, value, np.where(self.cut >= 0, self.gain, 0.0)))


def gains_of(
    outputs: Sequence[Output], sources: Sequence[Source], twins: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gain of every cut at every open node, -inf where a child would be too small; and whether
    its left child is the larger one, to which cells go that are missing in later rows only.

    Of the nodes of all these outputs, one after the other. twins: which cuts differ from the next
    one only in where missing cells go. **Shape** [nodes, cuts of all sources] both.
    """
    nodes = [(output, node) for output in outputs for node in output.open]
    known = np.array([output.totals[node] for output, node in nodes])
    lefts = np.concatenate(
        [
            source.lefts(np.stack([output.sums[node][number] for output, node in nodes]), known)
            for number, source in enumerate(sources)
        ],
        axis=1,
    )
    growth, times = outputs[0].growth, [len(output.open) for output in outputs]
    facts = [
        (each.unit_gradient, each.unit_curvature, growth.least(each.constant)) for each in outputs
    ]
    upper, lower, least = np.repeat(np.array(facts), times, axis=0).T[:, :, None]

    def halves(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (numbers >> HALF) / upper, (numbers & _LOW) / lower

    def score(gradient: np.ndarray, curvature: np.ndarray) -> np.ndarray:
        """Writes over both."""
        curvature += growth.l2
        return np.divide(np.square(gradient, out=gradient), curvature, out=gradient)

    totals = known[:, None]
    whole = score(*halves(totals))
    g_left, h_left = halves(lefts)
    g_right, h_right = halves(totals - lefts)
    barred = (h_left < least) | (h_right < least)
    larger = h_left > h_right if growth.later_missing else np.zeros_like(barred)
    at = np.flatnonzero(twins)
    if growth.later_missing and len(at):
        same = lefts[:, at] == lefts[:, at + 1]
        barred[:, at] |= same & larger[:, at]
        barred[:, at + 1] |= same & ~larger[:, at]
    gains = score(g_left, h_left)
    gains += score(g_right, h_right)
    gains -= whole
    np.putmask(gains, barred, -np.inf)
    return gains, larger


def trees_to_wire(outputs: Sequence[Sequence[Tree]]) -> dict[str, Any]:
    """The trees of each output."""
    return {
        name: [np.stack([getattr(tree, name) for tree in trees]) for trees in outputs if trees]
        for name in ("cut", "value", "gain")
    }


def trees_from_wire(saved: Mapping[str, Any], outputs: int) -> list[list[Tree]]:
    """The other way round of `trees_to_wire`."""
    parts = zip(saved["cut"], saved["value"], saved["gain"], strict=True)
    trees = [[Tree(*each) for each in zip(*part, strict=True)] for part in parts]
    return trees or [[] for _ in range(outputs)]


def quantise(
    gradient: np.ndarray, curvature: np.ndarray, constant: bool
) -> tuple[np.ndarray, float, float]:
    """Both as one int64 a row, and what 1 is in units of each.

    The sum of gradients over any rows lies within ±2^22, that of curvatures below 2^23.
    """
    rounding = len(gradient) / 2 + 1
    if rounding >= 1 << (HALF - 2):
        raise DataError(
            f"{len(gradient)} training rows are too many for the sums of a tree",
            mend="give a sample of them",
        )
    largest = float(np.abs(gradient).sum())
    unit = ((1 << (HALF - 1)) - rounding) / largest if largest > 0 else 1.0
    whole = float(curvature.sum())
    most = (1 << HALF) - rounding
    exact = whole == 0 or (constant and whole <= most and not (curvature % 1).any())
    curve = 1.0 if exact else most / whole
    upper = np.rint(gradient * unit).astype(np.int64)
    lower = np.rint(curvature * curve).astype(np.int64)
    return (upper << HALF) + lower, unit, curve
