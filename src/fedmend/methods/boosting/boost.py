"""Boosting of many targets at the party B that holds them; sums over A's bins come from outside.

Of A's columns B knows what it was told: for every cut that some tree uses, on which side each row
lies. `disclose` limits how many cuts that may be, and `search` for how many trees there may be new
ones: they are spent on the largest gains, paced over the first half of these trees. From then on
trees choose among the cuts B knows and B's own columns, sums are computed at B, and nothing crosses
any more. (A later training of the same targets starts with the cuts that are known.)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmend.methods.boosting.bins import CutTable
from fedmend.methods.boosting.grow import (
    Growth,
    Output,
    Source,
    gains_of,
    trees_from_wire,
    trees_to_wire,
)

BATCH = 64  # columns of numbers that are summed at once
CELLS = 1 << 15
"""Outputs are weighed together as long as they have no more cells: of few rows what takes long are
operations, of many what no longer fits the cache."""
LARGEST_LOG = 50.0  # of a count's mean
MIN_GAIN = 1e-6  # of a split


@dataclass(frozen=True)
class BoostSettings:
    """How many trees, and what keeps them from fitting noise; see `TreeModels`."""

    trees: int
    validation: float
    patience: int
    disclose: int | None
    search: int
    seed: int

    def allowance(self, tree: int, known: int) -> int | None:
        """How many new cuts may be asked for at this tree; None for any number."""
        if self.disclose is None:
            return None
        if tree >= self.search:
            return 0
        paced = self.disclose * (tree + 1) / max(1, self.search // 2)
        return max(0, int(min(self.disclose, paced)) - known)


@dataclass(frozen=True, repr=False)
class Target:
    """What is learnt: labels at all numbered rows (numbers, or class numbers), and training rows.

    classes: how many; 0 for numbers. counts: they are counts, whose logarithm is learnt (Poisson).
    likelihoods: how likely what is said of a row is under each class, where labels are corrected or
    reported at random (`split.labels`): the loss is -log sum p_y L_y. weights: how often each row
    counts, above 0 at training rows; once if None. shared: which rows some partner knows.

    **Shape** labels, weights, shared [n]; likelihoods [n, C].
    """

    labels: np.ndarray
    rows: np.ndarray
    classes: int = 0
    counts: bool = False
    likelihoods: np.ndarray | None = None
    weights: np.ndarray | None = None
    shared: np.ndarray | None = None

    @property
    def constant(self) -> bool:
        """Whether the curvature of a row's loss is 1, or its weight."""
        return not self.classes and not self.counts

    def weights_of(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.weights is None else self.weights[rows]

    def shared_among(self, rows: np.ndarray) -> np.ndarray:
        return rows[:0] if self.shared is None else rows[self.shared[rows]]

    def wanted(self, rows: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """The classes of rows as shares [outputs, rows]: 0 or 1, or what is likely after all."""
        if self.likelihoods is None:
            numbers = np.arange(len(shares))[:, None] if len(shares) > 1 else 1
            return np.asarray(self.labels[rows] == numbers, dtype=np.float64)
        likely = self.likelihoods[rows].T
        both = likely * (shares if len(shares) > 1 else np.concatenate([1 - shares, shares]))
        both = both / np.maximum(both.sum(0), 1e-300)
        return both if len(shares) > 1 else both[1:]


@dataclass(frozen=True, repr=False)
class OwnBins:
    """B's own columns: bin numbers [columns, n], their cuts, and the name of each column.

    A column is never used for the target of its name.
    """

    codes: np.ndarray
    table: CutTable
    names: list[str]

    @classmethod
    def none(cls, rows: int) -> OwnBins:
        return cls(np.zeros((0, rows), np.int16), CutTable([]), [])


HARDLY = 2
"""The best of so few trees says that most rows held out learn nothing."""
SHARED_TO_JUDGE = 20
"""Fewer held-out rows that partners know do not decide how many trees are kept."""


@dataclass(repr=False)
class _Task:
    """One target in training: its rows, its outputs, and how it does on rows held out.

    best, best_at: the least loss of all of these and at which tree; shared: the same of those that
    partners know. What only partners' columns can tell, most rows cannot show where few are shared:
    where hardly a tree helps all of them, the shared ones decide.
    """

    name: str
    target: Target
    rows: np.ndarray
    held_out: np.ndarray
    outputs: list[Output]
    starts: list[float]
    best: float = np.inf
    best_at: int = 0
    shared_best: float = np.inf
    shared_at: int = 0
    best_scores: list[np.ndarray] = field(default_factory=list)
    active: bool = True

    @property
    def kept(self) -> int:
        """How many trees are kept."""
        if not len(self.held_out):
            return len(self.outputs[0].trees)
        return 1 + (self.best_at if self.best_at >= HARDLY else max(self.best_at, self.shared_at))

    def derivatives(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and curvature of the loss at these rows, [outputs, rows]."""
        target = self.target
        scores = np.stack([output.scores[rows] for output in self.outputs])
        if target.classes:
            shares = _shares(scores)
            gradient = shares - target.wanted(rows, shares)
            curvature = np.maximum(shares * (1 - shares), 1e-12)
        elif target.counts:
            means = np.exp(np.minimum(scores, LARGEST_LOG))
            gradient, curvature = means - target.labels[rows], np.maximum(means, 1e-12)
        else:
            gradient, curvature = scores - target.labels[rows], np.ones_like(scores)
        weights = target.weights_of(rows)
        return (
            (gradient, curvature) if weights is None else (gradient * weights, curvature * weights)
        )

    def loss(self, rows: np.ndarray) -> float:
        """The mean loss of these rows."""
        target = self.target
        scores = np.stack([output.scores[rows] for output in self.outputs])
        labels = target.labels[rows]
        if target.classes:
            shares = _shares(scores)
            if len(scores) == 1:
                shares = np.concatenate([1 - shares, shares])
            if target.likelihoods is None:
                likely = shares[labels, np.arange(len(labels))]
            else:
                likely = (shares * target.likelihoods[rows].T).sum(0)
            losses = -np.log(np.maximum(likely, 1e-15))
        elif target.counts:
            losses = np.exp(np.minimum(scores[0], LARGEST_LOG)) - labels * scores[0]
        else:
            losses = (scores[0] - labels) ** 2
        return float(np.average(losses, weights=target.weights_of(rows)))

    def judge(self, number: int, patience: int) -> None:
        """Keep the scores of the best round; stop when it is `patience` rounds back."""
        if not len(self.held_out):
            return
        loss, shared = self.loss(self.held_out), self.target.shared_among(self.held_out)
        judges = len(shared) >= SHARED_TO_JUDGE and self.best_at < HARDLY
        if judges and (here := self.loss(shared)) < self.shared_best:
            self.shared_best, self.shared_at = here, number
            self.best_scores = [output.scores for output in self.outputs]
        if loss < self.best:
            self.best, self.best_at = loss, number
            self.best_scores = [output.scores for output in self.outputs]
        elif number + 1 - self.kept >= patience:
            self.active = False

    def state(self) -> dict[str, Any]:
        """All that another tree needs, as a wire value."""
        return {
            "scores": [output.scores for output in self.outputs],
            **trees_to_wire([output.trees for output in self.outputs]),
            "best": self.best,
            "best_at": self.best_at,
            "shared": [self.shared_best, float(self.shared_at)],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        trees = trees_from_wire(saved, len(self.outputs))
        for output, scores, grown in zip(self.outputs, saved["scores"], trees, strict=True):
            output.scores, output.trees = scores, grown
        self.best, self.best_at = float(saved["best"]), int(saved["best_at"])
        self.shared_best, self.shared_at = saved["shared"][0], int(saved["shared"][1])

    def final_scores(self) -> np.ndarray:
        best = self.best_scores or [output.scores for output in self.outputs]
        return np.stack(best)

    def predictions(self) -> np.ndarray:
        """[n], or probabilities [n, C], at all numbered rows."""
        return outputs_of(self.final_scores(), self.target.classes, self.target.counts)


def outputs_of(scores: np.ndarray, classes: int, counts: bool = False) -> np.ndarray:
    """Scores [outputs, n] as numbers [n] or probabilities [n, C]."""
    if not classes:
        return np.exp(np.minimum(scores[0], LARGEST_LOG)) if counts else scores[0]
    shares = _shares(scores)
    return np.concatenate([1 - shares, shares]).T if len(scores) == 1 else shares.T


def _shares(scores: np.ndarray) -> np.ndarray:
    if len(scores) == 1:
        return 0.5 * (1.0 + np.tanh(0.5 * scores))
    powers = np.exp(scores - scores.max(axis=0))
    return np.asarray(powers / powers.sum(axis=0))


def _starts(target: Target, rows: np.ndarray) -> list[float]:
    """What every row's scores are before the first tree: of the mean, of the classes' shares."""
    labels, weights = target.labels[rows], target.weights_of(rows)
    if not target.classes:
        mean = float(np.average(labels, weights=weights))
        return [float(np.log(max(mean, 1e-12)))] if target.counts else [mean]
    if target.likelihoods is None:
        counts = np.bincount(labels, weights, minlength=target.classes)
    else:
        likely = target.likelihoods[rows]
        shares = likely / likely.sum(1, keepdims=True)
        counts = (shares if weights is None else shares * weights[:, None]).sum(0)
    logs = np.log(counts + 0.5)
    return [logs[1] - logs[0]] if len(logs) == 2 else list(logs - logs.mean())


class Boosting:
    """All targets. `known` maps the number of a cut of A's to the rows that go left by it.

    settled: no cut besides the known ones is looked for.
    """

    def __init__(
        self,
        targets: dict[str, Target],
        cuts: CutTable,
        own: OwnBins,
        growth: Growth,
        settings: BoostSettings,
        known: dict[int, np.ndarray],
        *,
        settled: bool = False,
    ) -> None:
        self.cuts, self.own, self.growth, self.settings = cuts, own, growth, settings
        self.known, self.settled = known, settled
        self._own_source = Source.of(own.table, len(cuts), own.table.told_apart(own.codes))
        self._others = Source.of(cuts, 0, np.arange(len(cuts)))
        self._columns = np.concatenate([cuts.columns, len(cuts.layouts) + own.table.columns])
        self.tasks = [self._task(name, target) for name, target in targets.items()]
        self._growing: list[tuple[_Task, Output]] = []
        self._sides: np.ndarray | None = None

    def _task(self, name: str, target: Target) -> _Task:
        rows, held = target.rows, np.zeros(0, np.int64)
        if self.settings.validation:
            shuffled = np.random.default_rng([self.settings.seed, len(rows)]).permutation(rows)
            count = round(self.settings.validation * len(rows))
            held, rows = np.sort(shuffled[:count]), np.sort(shuffled[count:])
        starts = _starts(target, rows)
        places = [at for at, own in enumerate(self.own.names) if own == name]
        usable = ~np.isin(self._columns - len(self.cuts.layouts), places)
        outputs = [
            Output(np.full(len(target.labels), float(start)), target.constant, usable)
            for start in starts
        ]
        return _Task(name, target, rows, held, outputs, starts)

    @property
    def spent(self) -> bool:
        """No cut is left to ask for: all are known, or as many as agreed, or the search is over."""
        how = self.settings
        if how.disclose is not None and (self.settled or len(self.known) >= how.disclose):
            return True
        return len(self.known) == len(self.cuts)

    @property
    def active(self) -> list[_Task]:
        return [task for task in self.tasks if task.active]

    # ------------------------------------------------------------------ a tree

    def start_tree(self, number: int, sample: np.ndarray | None, length: int) -> int:
        """Gradients of all targets that go on, at `sample` or all rows; how many outputs."""
        self._number = number
        self._rows = np.arange(length) if sample is None else sample
        counted = np.zeros(length, dtype=bool)
        counted[self._rows] = True
        self._position = np.cumsum(counted) - 1
        self.at_home = self.spent
        self._sources = [self._known_source() if self.at_home else self._others, self._own_source]
        self._cuts, self._twins, self._alike = (
            np.concatenate([getattr(source, name) for source in self._sources])
            for name in ("cuts", "twins", "alike")
        )
        self._growing = []
        for task in self.active:
            gradient, curvature = task.derivatives(task.rows)
            inside = counted[task.rows]
            for at, output in enumerate(task.outputs):
                output.start(
                    gradient[at, inside], curvature[at, inside], task.rows[inside], self.growth
                )
                output.energy = max(float((gradient[at] ** 2 / curvature[at]).sum()), 1e-12)
                self._growing.append((task, output))
        return len(self._growing)

    def _known_source(self) -> Source:
        """The cuts B knows, as columns of zeros and ones of its own."""
        cuts = np.array(sorted(self.known), dtype=np.int64)
        rows = self._rows
        if self._sides is None or self._sides.shape != (len(rows), len(cuts)):
            self._sides = np.zeros((len(rows), len(cuts)))
            for at, cut in enumerate(cuts):
                self._sides[:, at] = self.known[int(cut)][rows]
        none: np.ndarray = np.zeros(len(cuts), bool)
        return Source(None, cuts, cuts, none, none)

    # ------------------------------------------------------------------ a level

    def plan_level(self) -> int:
        """How many nodes need sums over A's bins."""
        self._wanted = [(output, node) for _, output in self._open() for node in output.plan()]
        self._a_sums: list[np.ndarray] = []
        if self.at_home and not self.known:
            self.take_sums(np.zeros((len(self._wanted), 0), np.int64))
            return 0
        if self.at_home:
            for start in range(0, len(self._wanted), BATCH):
                numbers = self.numbers(start, start + BATCH).astype(np.float64)
                assert self._sides is not None
                self.take_sums((numbers @ self._sides).astype(np.int64))
            return 0
        return len(self._wanted)

    def _open(self) -> list[tuple[_Task, Output]]:
        return [(task, output) for task, output in self._growing if output.open]

    def numbers(self, start: int, stop: int) -> np.ndarray:
        """Rounded gradients and curvatures, one wanted node each: int64 [nodes, rows]."""
        wanted = self._wanted[start:stop]
        out = np.zeros((len(wanted), len(self._rows)), dtype=np.int64)
        first = 0
        for _, group in itertools.groupby(wanted, key=lambda each: id(each[0])):
            outputs, nodes = zip(*group, strict=True)
            output = outputs[0]
            at, slot = output.slots(list(nodes))
            out[first + slot, self._position[output.rows[at]]] = output.numbers[at]
            first += len(nodes)
        return out

    def take_sums(self, sums: np.ndarray) -> None:
        """Sums over A's bins of the next wanted nodes, [nodes, stored]."""
        self._a_sums.append(sums)

    def choose(self) -> list[int]:
        """Decide the splits; tells the cuts of A's of which the sides are not known yet."""
        a_sums = np.concatenate(self._a_sums) if self._a_sums else np.zeros((0, 0), np.int64)
        self._gains, asked = [], 0
        for outputs in self._together():
            own_sums, first = self._own_sums(outputs), asked
            for output in outputs:
                some = slice(asked, asked + len(output.asked))
                asked = some.stop
                output.take([a_sums[some], own_sums[some.start - first : asked - first]])
            gains, larger = gains_of(outputs, self._sources, self._twins)
            cuts, at = self._cuts + (larger & self._alike), 0
            for output in outputs:
                here = slice(at, at + len(output.open))
                at = here.stop
                left_out = ~output.usable[self._cuts]
                if left_out.any():
                    gains[here, left_out] = -np.inf
                self._gains.append((output, gains[here], cuts[here]))
        return self.choose_again()

    def _together(self) -> list[list[Output]]:
        """The outputs with open nodes, in groups that are weighed at once."""
        groups: list[list[Output]] = []
        room = 0
        for _, output in self._open():
            cells = max(len(output.open) * len(self._cuts), len(output.rows))
            room -= cells
            if room < 0:
                groups, room = [*groups, []], CELLS - cells
            groups[-1].append(output)
        return groups

    def choose_again(self) -> list[int]:
        """The same, once sides are known that were not: a cut may leave too few rows on one."""
        unknown: dict[int, float] = {}
        found = [self._best(*each) for each in self._gains]
        for (output, *_), nodes in zip(self._gains, found, strict=True):
            for best, cut in nodes:
                if 0 <= cut < len(self.cuts) and cut not in self.known:
                    unknown[cut] = max(unknown.get(cut, 0.0), best / output.energy)
        allowed = self.settings.allowance(self._number, len(self.known))
        asked = sorted(unknown, key=lambda cut: (-unknown[cut], cut))[:allowed]
        if len(asked) < len(unknown):
            found = self._restricted([*asked, *self.known])
        self._decided = []
        for (output, *_), nodes in zip(self._gains, found, strict=True):
            output.gain[output.open] = [gain for gain, _ in nodes]
            decided = {
                node: cut for node, (_, cut) in zip(output.open, nodes, strict=True) if cut >= 0
            }
            self._decided.append((output, decided))
        return asked

    def _own_sums(self, outputs: list[Output]) -> np.ndarray:
        """Sums over B's own bins of the nodes that each asks for, int64 [nodes, stored]."""
        if not self.own.names:
            return np.zeros((sum(len(each.asked) for each in outputs), 0), dtype=np.int64)
        nodes, found = 0, []
        for output in outputs:
            places, slot = output.slots(output.asked)
            found.append((output.rows[places], nodes + slot, output.numbers[places]))
            nodes += len(output.asked)
        rows, slots, numbers = map(np.concatenate, zip(*found, strict=True))
        sums = self.own.table.sums(self.own.codes, rows, slots, nodes, numbers.astype(np.float64))
        return sums.astype(np.int64)

    def _best(self, output: Output, gains: np.ndarray, cuts: np.ndarray) -> list[tuple[float, int]]:
        """Per open node the best gain and its cut, -1 where none pays; cuts: [nodes, cuts].

        At the root a cut that is known to leave fewer than `min_rows` rows on a side is passed
        over: a root that insists on one is never split, nor is that of any tree to come. (A lower
        node stays whole then: with the next best cut there trees did worse on rows held out.)
        """
        if not cuts.size:  # so few rows that no bin may be cut off
            return [(0.0, -1)] * len(gains)
        found = []
        for node, own, numbers in zip(output.open, gains, cuts, strict=True):
            at = int(own.argmax())
            while node == 1 and own[at] > MIN_GAIN and self._too_small(output, numbers[at]):
                own[at] = -np.inf
                at = int(own.argmax())
            found.append((float(own[at]), int(numbers[at]) if own[at] > MIN_GAIN else -1))
        return found

    def _too_small(self, output: Output, cut: int) -> bool:
        """Whether a cut of all rows, if its sides are known, leaves too few on one."""
        if cut < len(self.cuts) and cut not in self.known:
            return False
        left, rows = np.count_nonzero(self._goes_left(cut)[output.rows]), len(output.rows)
        return bool(min(left, rows - left) < self.growth.min_rows)

    def _restricted(self, sayable: list[int]) -> list[list[tuple[float, int]]]:
        """The best cuts if of A's only these can be told."""
        for _, gains, cuts in self._gains:
            silent = (cuts[0] < len(self.cuts)) & ~np.isin(cuts[0], sayable)
            gains[:, silent] = -np.inf
        return [self._best(*each) for each in self._gains]

    def split(self) -> int:
        """Send all rows down; tells how many nodes are open now."""
        return sum(output.split(decided, self._goes_left) for output, decided in self._decided)

    def _goes_left(self, cut: int) -> np.ndarray:
        if cut < len(self.cuts):
            return self.known[cut]
        return self.own.table.goes_left(cut - len(self.cuts), self.own.codes)

    def finish_tree(self) -> int:
        """Leaf values and new scores; tells how many targets go on."""
        for task in self.active:
            gradient, curvature = task.derivatives(task.rows)
            for at, output in enumerate(task.outputs):
                output.finish(gradient[at], curvature[at], task.rows)
            task.judge(self._number, self.settings.patience)
        self.settled = self.settled or self._number + 1 >= self.settings.search
        return len(self.active)

    def grow_at_home(self, sample: np.ndarray, length: int) -> None:
        """All trees from B's own columns and the known cuts only (`disclose` must be spent)."""
        for number in range(self.settings.trees if self.tasks else 0):
            self.grow_alone(number, sample, length)

    def grow_alone(self, number: int, sample: np.ndarray | None, length: int) -> int:
        """One of them; tells how many targets go on."""
        self.start_tree(number, sample, length)
        for _ in range(self.growth.depth):
            self.plan_level()
            self.choose()
            if not self.split():
                break
        return self.finish_tree()
