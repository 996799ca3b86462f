"""SecureBoost: gradient-boosted trees over any number of parties, as a final model.

(Cheng, Fan, Jin, Liu, Chen, Papadopoulos, Yang: "SecureBoost: A Lossless Federated Learning
Framework", IEEE Intelligent Systems 2021; histograms by exact secure products instead of one
encryption for every row.) The label party B holds labels, gradients and trees. For every level of a
tree one product of a partner's 0/1 bin indicators with B's numbers gives B the sums of gradients
per node and bin; B picks the best cuts, by number, and asks on which side of a chosen cut each row
lies. Trees are those that the same algorithm grows in the clear (to 1e-9: sums of floats).

A person whom a partner does not know has that partner's cells missing: every cut sends missing
cells to the side that pays, so that all of B's rows train the trees, and all can be predicted. That
holds for completed rows too: trees that take made-up cells for seen ones do worse
(docs/boosting.md).

What each role learns
- The coordinator: sizes, numbers of bins, how many nodes and cuts there are at each step. Sums and
  sides are hidden from it by masks and encryption.
- A partner A: which of its cuts are used, not for which row or node; no gradient, no prediction.
- B: for every cut of A's that is used, one bit for each row A knows: on which side it lies. All
  cuts together would be the bin of every row in each of A's columns, without name, edge or
  category. And sums of its own gradients over A's bins in each node. Bins have at least A's
  `min_rows` rows, and so have leaves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pandas as pd

from fedmend._parameters import (
    POSITIVE,
    PROPER_SHARE,
    Rules,
    at_least,
    check_values,
    one_of,
    parameters,
)
from fedmend.data.encode import Encoder, LabelEncoder
from fedmend.errors import ConfigError, DataError, Refused, ResumeError
from fedmend.federation import Each, Federation
from fedmend.federation.bound import but, declare
from fedmend.federation.rows import Asked
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.methods.boosting.bins import ColumnBins, CutTable, LeftToAsk, bin_table, codes_of
from fedmend.methods.boosting.boost import (
    BATCH,
    HARDLY,
    SHARED_TO_JUDGE,
    Boosting,
    BoostSettings,
    OwnBins,
    Target,
    outputs_of,
)
from fedmend.methods.boosting.grow import Growth, Tree, trees_from_wire, trees_to_wire
from fedmend.methods.boosting.histograms import (
    BinsWorker,
    DealerHistograms,
    Histograms,
    SessionHistograms,
    SumsWorker,
)
from fedmend.methods.network import FEW_ROWS, LabelledEstimator, LocalOnly
from fedmend.split.checkpoints import KeepsPart, digest_of_rows
from fedmend.split.features import Segments, check_names, own_rows, presence
from fedmend.split.labels import account_of, row_confidence, warn_of_noise
from fedmend.split.parts import (
    ids_of,
    keep_part,
    leave_outputs,
    read_json,
    write_json,
)
from fedmend.split.training import Judged, Progress
from fedmend.split.workers import JUDGED, AnsweringWorker, has_label

if TYPE_CHECKING:
    import os

    from fedmend.data.table import Table
    from fedmend.federation.federation import WorkerGroup
    from fedmend.federation.site import Site

__all__ = ["LocalTrees", "SecureBoost"]

MODES = ("dealer", "bfv", "plain")
TARGET = "label"
OWN_BINS = 255
CHECKPOINT_EVERY = 10  # trees
WORTH_ASKING_LESS = 0.75  # of the bins that are asked for; to encrypt so few anew takes two trees
STATE = "trees.json"


# ---------------------------------------------------------------------------------- what is kept


@dataclass(frozen=True, repr=False)
class OwnColumns:
    """A party's columns in bins; encoder: what its tables look like (None: it has no column)."""

    mark: ClassVar[str] = "columns"

    encoder: Encoder | None
    columns: list[ColumnBins]

    @classmethod
    def fit(cls, table: Table, rows: np.ndarray | None, most: int, least: int) -> OwnColumns:
        """Bins fitted on these rows (all if None)."""
        seen = table if rows is None else table.take(rows)
        encoder = Encoder().fit(table) if table.feature_names else None
        return cls(encoder, bin_table(seen, most, least))

    def to_wire(self) -> dict[str, Any]:
        encoder = None if self.encoder is None else self.encoder.to_json()
        columns = json.dumps([each.to_dict() for each in self.columns]).encode()
        return {"encoder": encoder, "columns": columns}

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> OwnColumns:
        encoder = saved["encoder"] and Encoder.from_dict(saved["encoder"])
        columns = saved["columns"]  # models of before have them as they are
        told = json.loads(columns) if isinstance(columns, bytes) else columns
        return cls(encoder, [ColumnBins.from_dict(each) for each in told])

    @property
    def layouts(self) -> list[list[Any]]:
        return [each.layout for each in self.columns]

    def codes(self, table: Table) -> np.ndarray:
        """The bin numbers of a table's rows, int16 [columns, n]."""
        return codes_of(self.columns, table)


@dataclass(repr=False)
class TreesPart:
    """What the label party keeps of a model.

    layouts: of each partner's columns, by its name, in the order of their cuts' numbers; the label
    party's own cuts come after all others. starts, trees: of each output.
    """

    mark: ClassVar[str] = "layouts"

    layouts: dict[str, list[Any]]
    own: OwnColumns
    labels: LabelEncoder
    counts: bool
    starts: list[float] = field(default_factory=list)
    trees: list[list[Tree]] = field(default_factory=list)

    def to_wire(self) -> dict[str, Any]:
        return {
            "layouts": self.layouts,
            **self.own.to_wire(),
            "labels": self.labels.to_dict(),
            "counts": self.counts,
            "starts": self.starts,
            **trees_to_wire(self.trees),
        }

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> TreesPart:
        return cls(
            dict(saved["layouts"]),
            OwnColumns.from_wire(saved),
            LabelEncoder.from_dict(saved["labels"]),
            bool(saved["counts"]),
            list(saved["starts"]),
            trees_from_wire(saved, len(saved["starts"])),
        )

    @cached_property
    def tables(self) -> dict[str, CutTable]:
        return {name: CutTable(layouts) for name, layouts in self.layouts.items()}

    @cached_property
    def joint(self) -> CutTable:
        """The cuts of all partners, one after the other."""
        return CutTable([each for layouts in self.layouts.values() for each in layouts])

    @property
    def classes(self) -> int:
        return len(self.labels.classes_)

    def used(self) -> list[int]:
        """The cuts that some tree uses."""
        cuts = [tree.cut[tree.cut >= 0] for trees in self.trees for tree in trees]
        return [int(cut) for cut in np.unique(np.concatenate([np.zeros(0, np.int64), *cuts]))]

    def gains(self) -> dict[str, list[float]]:
        """What the cuts of each column gained: by party, of partners in the order of layouts."""
        own = CutTable(self.own.layouts)
        columns = np.concatenate([self.joint.columns, len(self.joint.layouts) + own.columns])
        trees = [tree for trees in self.trees for tree in trees]
        cut = np.concatenate([np.zeros(0, np.int64), *(tree.cut for tree in trees)])
        gain = np.concatenate([np.zeros(0), *(tree.gain for tree in trees)])
        found = np.bincount(
            columns[cut[cut >= 0]],
            gain[cut >= 0],
            minlength=len(self.joint.layouts) + len(own.layouts),
        )
        lengths = [len(each) for each in self.layouts.values()]
        parts = np.split(found, np.cumsum(lengths)) if len(found) else [found] * (len(lengths) + 1)
        return {
            name: [float(each) for each in part]
            for name, part in zip([*self.layouts, ""], parts, strict=True)
        }

    def scores(self, sides: Mapping[int, np.ndarray], rows: int) -> np.ndarray:
        """[outputs, rows], from the side of each row at every cut that is used."""
        place = {cut: at for at, cut in enumerate(sides)}
        matrix = np.stack(list(sides.values())) if sides else np.zeros((1, rows), bool)
        every = np.arange(rows)
        out = np.tile(np.array(self.starts)[:, None], (1, rows))
        for number, trees in enumerate(self.trees):
            for tree in trees:
                at = np.array([place.get(int(cut), 0) for cut in tree.cut])
                node = np.ones(rows, np.int64)
                for _ in range(len(tree.cut).bit_length() - 2):
                    inner = tree.cut[node] >= 0
                    node = np.where(inner, 2 * node + ~matrix[at[node], every], node)
                out[number] += tree.value[node]
        return out


# ---------------------------------------------------------------------------------- the parties


class PassiveTrees(KeepsPart, BinsWorker):
    """A partner: bin numbers of its columns. A cut is known outside by its number only.

    met: the scope in which its rows and the label party's are aligned, if that is another.
    """

    conversation = "boosted trees"
    part_type = OwnColumns

    def __init__(self, site: Site, scope: str = "train", *, model: str, met: str = "") -> None:
        super().__init__(site, scope)
        self.model, self._met, self.party = model, met or scope, site.name
        self._table = CutTable([])
        self._codes: np.ndarray = np.zeros((0, 0), np.int16)

    @exposed(kind="count")
    def create(self, bins: int) -> list[list[Any]]:
        """Bins of this party's columns, fitted on aligned rows; tells their layouts, no names."""
        aligned = self._aligned[self._observed(self._aligned)]
        self.site.policy.admit_aligned(self.site.name, len(aligned))
        own = OwnColumns.fit(self.table, aligned, bins, max(1, self.site.rows.least))
        keep_part(self.site, self.model, own)
        return own.layouts

    @exposed(kind="control")
    def least(self) -> int:
        """How few rows an answer of this party may rest on."""
        return self.site.rows.least

    @property
    def _aligned(self) -> np.ndarray:
        """The rows that the label party knows, too."""
        met = self.site.alignments.get(self._met)
        return self.alignment.aligned if met is None else met.aligned

    @exposed(kind="control")
    def train(self) -> None:
        """Take the rows that the label party knows, too."""
        self._take(self._aligned)
        self.indicators = self._table.indicators(self._codes)

    @exposed(kind="control")
    def attach(self, segments: list[Any]) -> None:
        """Take the rows of these segments that this party knows."""
        rows = own_rows(
            self.site.name, segments, self.site.alignments.get(self.scope), len(self.table)
        )
        self._take(rows[rows >= 0])

    def _take(self, rows: np.ndarray) -> None:
        own: OwnColumns = self._part()
        self._table = CutTable(own.layouts)
        self._codes = own.codes(self.table.take(rows))
        missing = np.array([each.bins for each in own.columns], np.int16)
        self._codes = np.where(self._observed(rows), self._codes, missing[:, None])

    def _observed(self, rows: np.ndarray) -> np.ndarray:
        """Which of these rows this party has seen; the cells of others a method has made up."""
        trust = row_confidence(self.site, self.scope.partition("@")[0])
        return np.ones(len(rows), bool) if trust is None else trust[rows] == 1.0

    @exposed(kind="count", takes={"request": "control"})
    def leave_out(self, to: str, request: Sealed) -> int:
        """Products go over bins that B cannot sum by the sides it has; tells how many these are."""
        known = self._own_cuts(self.open(request, sender=to, kind="control"))
        asked = LeftToAsk.of(self._table, dict.fromkeys(known, np.zeros(0, bool))).asked
        self.indicators = self._table.indicators(self._codes)[:, asked]
        return len(asked)

    @cached_property
    def made_of(self) -> str:
        return digest_of_rows(self.table.features, self._aligned)

    @exposed(kind="statistic")
    def column_names(self) -> list[str]:
        """What the columns with bins are called."""
        return [each.column.name for each in self._part().columns]

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        return [self._aligned]


class ActiveTrees(SumsWorker, AnsweringWorker):
    """The label party: everything but its partners' columns."""

    conversation = "boosted trees"
    part_type = TreesPart
    keeps_numbers = True

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._known: dict[int, np.ndarray] = {}
        self._met: dict[str, np.ndarray] = {}
        self._asked: list[tuple[int, str, int]] = []
        self._sums: dict[str, np.ndarray] = {}
        self._left: dict[str, LeftToAsk] = {}
        self._weight_column: str | None = None

    # ------------------------------------------------------------------ training

    @exposed(kind="control", takes={"layouts": "count"})
    def create(self, settings: dict[str, Any], layouts: dict[str, list[Any]]) -> dict[str, Any]:
        """A model without trees; returns the task and the classes' names."""
        task = str(settings["task"])
        counts = task == "count"
        encoder = self._fitted_labels("regression" if counts else task, "float64")
        if counts:
            self._check_counts(encoder)
        self._weight_column = settings["weight_column"]
        own, table = OwnColumns(None, []), self._without_weights()
        if settings["own"]:
            own = OwnColumns.fit(table, None, max(OWN_BINS, int(settings["bins"])), 1)
        keep_part(self.site, self.model, TreesPart(dict(layouts), own, encoder, counts))
        return self.about()

    def _check_counts(self, encoder: LabelEncoder) -> None:
        values = self.table.frame[self._label_column(encoder)].dropna()
        if (values < 0).any():
            raise DataError(
                "a count cannot be negative",
                party=self.site.name,
                column=self._label_column(encoder),
                value=values.min(),
                mend='task = "regression", or correct the label',
            )

    def _without_weights(self) -> Table:
        """The table as trees see it."""
        name = self._weight_column
        if name is None:
            return self.table
        if name == self.table.label or name in self.table.blocks:
            raise self._wrong_weights("weights are a column of numbers besides the label", name)
        try:
            return self.table.drop(name)
        except DataError as error:
            raise error.at(self.site.name) from None

    def _weights(self, rows: np.ndarray, min_leaf: int) -> np.ndarray | None:
        """How often each of the rows at hand counts; those of `rows` are checked."""
        if self._weight_column is None:
            return None
        cells = self.table.frame[self._weight_column].astype(object).iloc[self._rows_used]
        weights = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64)
        found = weights[rows]
        wrong = rows[~(np.isfinite(found) & (found >= 0))]
        if len(wrong):
            raise self._wrong_weights("a weight is a number from 0 on", cells.iloc[wrong[0]])
        if found.sum() < min(min_leaf, len(rows)):
            problem = f"all weights together are less than one leaf's min_leaf={min_leaf}"
            raise self._wrong_weights(problem, float(found.sum()))
        return weights

    def _wrong_weights(self, problem: str, value: Any) -> DataError:
        return DataError(
            problem,
            party=self.site.name,
            column=self._weight_column,
            value=value,
            mend="a number for every labelled row, 1 on average, in the weight_column",
        )

    @exposed(kind="control")
    def begin(
        self,
        segments: list[Any],
        growth: dict[str, Any],
        settings: dict[str, Any],
        least: int,
        met: dict[str, str],
    ) -> None:
        """Take the rows of these segments that have a label and a weight.

        met: for each partner the scope in which rows are aligned with it.
        """
        if self._boosting is None:  # a second growth is on the same rows, whose sides stay known
            self._take(segments)
            number = np.full(len(self.table) + 1, -1)  # the last is that of a row held out
            number[self._rows_used] = np.arange(len(self._rows_used))
            self._met = {
                name: number[self.site.alignments[scope].aligned] for name, scope in met.items()
            }
        part = self._part()
        grown = Growth(**growth, min_rows=max(least, self.site.rows.least), later_missing=True)
        encoded = part.labels.transform(
            self.table.frame[self._label_column(part.labels)], party=self.site.name
        )[self._rows_used]
        rows = np.flatnonzero(has_label(encoded))
        weights = self._weights(rows, grown.min_leaf)
        counted, call = np.ones(len(rows)), "begin"
        if weights is not None:
            rows = rows[weights[rows] > 0]
            counted, call = weights[rows], f"begin, by the weights in {self._weight_column!r},"
        self.site.rows.require(call, self.table, self._rows_used[rows], counted)
        if part.counts:
            encoded = part.labels.inverse(encoded)
        likelihood, likely = self._label_likelihood(), None
        if likelihood is not None and part.classes:
            likely = likelihood.of(part.labels.classes_)[self._rows_used]
        shared = None
        # How many trees are kept is told: it rests on no fewer rows than the policy says.
        if part.joint and self.site.rows.least <= SHARED_TO_JUDGE:
            shared = np.zeros(len(self._rows_used), bool)
            shared[np.concatenate([self._shared(name) for name in self._met])] = True
        target = Target(encoded, rows, part.classes, part.counts, likely, weights, shared)
        own = OwnBins(
            part.own.codes(self.table.take(self._rows_used)),
            CutTable(part.own.layouts),
            [each.column.name for each in part.own.columns],
        )
        self._boosting = Boosting(
            {TARGET: target}, part.joint, own, grown, BoostSettings(**settings), self._known
        )

    @exposed(kind="count")
    def start_tree(self, number: int) -> int:
        """Gradients of all rows; tells what `split` tells, of the root."""
        self.boosting.start_tree(number, None, len(self._rows_used))
        return self._plan_level()

    def _plan_level(self) -> int:
        wanted = self.boosting.plan_level()
        if wanted:
            self.load_numbers(0, min(wanted, BATCH))
        return wanted

    def numbers_for(self, other: str) -> np.ndarray:
        """Zero at a row that the partner has and this party holds out."""
        places = self._met[other]
        if np.array_equal(places, np.arange(len(places))):
            return self.numbers[:, : len(places)]
        return np.where(places >= 0, self.numbers[:, places], 0)

    def _shared(self, other: str) -> np.ndarray:
        """The rows at hand that a partner knows."""
        places = self._met[other]
        return places[places >= 0]

    @exposed(kind="count")
    def load_numbers(self, start: int, stop: int) -> int:
        """The next numbers."""
        self._sums = {}
        self.numbers = self.boosting.numbers(start, stop)
        for name, table in self._part().tables.items():
            if not (len(self._left[name].asked) if name in self._left else table.stored):
                self.summed(np.zeros((len(self.numbers), 0), np.int64), name)
        return len(self.numbers)

    @exposed(kind="control")
    def leave_out(self) -> dict[str, Sealed]:
        """Encrypted for each partner of whose bins many follow from sides that are known by now:
        the cuts these are of. Sums over the other bins are enough then."""
        requests = {}
        placed = self._placed(list(self._known))
        for name, table in self._part().tables.items():
            known = {
                own: self._known[cut][self._shared(name)]
                for cut, whose, own in placed
                if whose == name
            }
            held = len(self._left[name].asked) if name in self._left else table.stored
            few = WORTH_ASKING_LESS * held
            # A cut spares a bin at most, missing cells one of each column: too few need no count.
            if not held or table.stored - len(known) - len(table.layouts) > few:
                continue
            if len(LeftToAsk.of(table, known).asked) <= few:
                self._left[name] = LeftToAsk.of(table, known, len(self._shared(name)))
                requests[name] = self.seal(list(known), to=name, kind="control")
        return requests

    def summed(self, sums: np.ndarray, other: str) -> None:
        if other in self._left:
            sums = self._left[other].complete(sums, self.numbers[:, self._shared(other)])
        self._sums[other] = sums
        names = list(self._part().layouts)
        if len(self._sums) == len(names):
            self.boosting.take_sums(np.concatenate([self._sums[name] for name in names], axis=1))

    @exposed(kind="control")
    def choose(self, again: bool = False) -> dict[str, Sealed]:
        """Decide the splits; encrypted for each partner the cuts whose sides are needed, if any.

        again: sides have come, by which a cut may be too small."""
        choose = self.boosting.choose_again if again else self.boosting.choose
        return self._requests(choose())

    @exposed(kind="control", takes={"sealed": "side"})
    def take_sides(self, sealed: Sealed, sender: str) -> None:
        """Of the rows that a partner knows; all others go where its missing cells go."""
        packed = self.open(sealed, sender=sender, kind="side")
        places = self._met[sender]
        sides = np.unpackbits(packed, axis=1, count=len(places)).astype(bool)
        asked = [(cut, own) for cut, name, own in self._asked if name == sender]
        for (cut, own), told in zip(asked, sides, strict=True):
            left = np.full(len(self._rows_used), self._part().tables[sender].missing_left(own))
            left[self._shared(sender)] = told[places >= 0]
            self._known[cut] = left

    @exposed(kind="count")
    def split(self) -> int | None:
        """Send the rows down; tells how many columns of numbers must be summed over the partners'
        bins for the next level, of which the first ones are loaded. None: no node is open."""
        return self._plan_level() if self.boosting.split() else None

    @exposed(kind="count")
    def finish_tree(self) -> int:
        """Tells how many outputs go on."""
        return self.boosting.finish_tree()

    @exposed(kind="count")
    def grow_tree(self, number: int) -> int:
        """All of a tree from own columns, where there are no others; how many outputs go on."""
        return self.boosting.grow_alone(number, None, len(self._rows_used))

    @exposed(kind="count")
    def keep_trees(self) -> int:
        """Take the trees up to the best one into the model; tells how many these are."""
        (task,), part = self.boosting.tasks, self._part()
        count = task.kept
        part.starts = list(task.starts)
        part.trees = [output.trees[:count] for output in task.outputs]
        return count

    def _state(self) -> dict[str, Any]:
        (task,) = self.boosting.tasks
        sides = np.stack([*self._known.values()]) if self._known else np.zeros((0, 0), bool)
        return {
            **task.state(),
            "known": list(self._known),
            "sides": np.packbits(sides, axis=1),
        }

    def _restore(self, saved: Mapping[str, Any]) -> None:
        (task,) = self.boosting.tasks
        task.restore(saved)
        sides = np.unpackbits(saved["sides"], axis=1, count=len(self._rows_used)).astype(bool)
        self._known.update(zip(saved["known"], sides, strict=True))

    # ------------------------------------------------------------------ predicting

    @exposed(kind="control")
    def attach(self, segments: list[Any], partners: list[str]) -> dict[str, Sealed]:
        """Take these rows; encrypted for each partner the cuts whose sides are needed, if any."""
        self._take(segments)
        part, first = self._part(), len(self._part().joint)
        here = CutTable(part.own.layouts)
        known = self._rows_used >= 0
        missing = np.array([each.bins for each in part.own.columns], np.int16)
        codes = np.tile(missing[:, None], (1, len(known)))
        codes[:, known] = part.own.codes(self.table.take(self._rows_used[known]))
        self._known = {
            cut: here.goes_left(cut - first, codes) for cut in part.used() if cut >= first
        }
        asked = [cut for cut in part.used() if cut < first]
        known_to = {name: np.flatnonzero(presence(name, segments)) for name in partners}
        self._met = {name: places for name, places in known_to.items() if len(places)}
        for cut, name, own in self._placed(asked):
            if name not in self._met:
                self._known[cut] = np.full(len(known), part.tables[name].missing_left(own))
        return self._requests([cut for cut in asked if cut not in self._known])

    @exposed(kind="control")
    def run(self) -> None:
        """Outputs of the attached rows, once all sides are there."""
        part = self._part()
        scores = part.scores(self._known, len(self._rows_used))
        outputs = outputs_of(scores, part.classes, part.counts)
        if not part.classes and not part.counts:
            outputs = part.labels.inverse(outputs)
        self._outputs = outputs

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if self._boosting is not None and method not in JUDGED:
            return [self._rows_used[self._rows_used >= 0]]
        return super().rows_asked(method, kwargs)

    # ------------------------------------------------------------------ keeping

    @exposed(kind="statistic")
    def gains(self) -> dict[str, dict[str, float]]:
        """Of the cuts of every column: a partner's by its number, own ones by their names."""
        part = self._part()
        names = {name: [str(at) for at in range(len(each))] for name, each in part.layouts.items()}
        names[""] = [each.column.name for each in part.own.columns]
        return {
            name or self.site.name: dict(zip(names[name], found, strict=True))
            for name, found in part.gains().items()
        }

    @exposed(kind="control")
    def leave_outputs(self, name: str) -> None:
        """Keep the outputs at this party, for a model that several have a say in."""
        classes = self._part().labels.classes_
        ids = ids_of(self.table, self._rows_used)
        leave_outputs(self.site, name, ids, self._take_outputs(), classes)

    def _labels(self) -> LabelEncoder:
        return self._part().labels

    def _part(self) -> TreesPart:
        found: TreesPart = super()._part()
        return found

    # ------------------------------------------------------------------ parts

    def _take(self, segments: list[Any]) -> None:
        self._rows_used = self._rows(segments)
        self._known.clear()
        self._outputs = None

    def _placed(self, cuts: Sequence[int]) -> list[tuple[int, str, int]]:
        """For each cut its number, whose it is, and its number there."""
        placed, first = [], 0
        for name, table in self._part().tables.items():
            placed += [(cut, name, cut - first) for cut in cuts if 0 <= cut - first < len(table)]
            first += len(table)
        return placed

    def _requests(self, cuts: Sequence[int]) -> dict[str, Sealed]:
        self._asked = self._placed(cuts)
        wanted: dict[str, list[int]] = {}
        for _, name, own in self._asked:
            wanted.setdefault(name, []).append(own)
        return {name: self.seal(each, to=name, kind="control") for name, each in wanted.items()}


# ---------------------------------------------------------------------------------- coordinator


@dataclass(repr=False)
class _Pair:
    """The label party and one partner, as the histograms want them."""

    a: str
    b: str
    model: str
    mode: Any
    fed: Federation
    at_a: Any
    at_b: Any

    def scoped(self, name: str, length: int) -> Federation:
        """Products run over the rows aligned between the two, which have a scope already."""
        return self.fed


@dataclass
class _Checkpoint:
    """Where a training is.

    stage: 0, or 1 where the trees of stage 0 were counted and are grown again on all rows. trees:
    how many are to be grown in it; grown: how many are; number: of the checkpoint.
    """

    mark: str
    trees: int
    stage: int = 0
    grown: int = 0
    number: int = 0


def _aligned(fed: Federation) -> int:
    return fed.alignment.aligned


class TreeEnsemble(Judged):
    """Boosted trees over parties, with what the estimators ask of a split network.

    history: an entry for each tree that is kept; best_epoch: how many these are.
    """

    stays = "trees tell of its labels and stay with it"

    def __init__(
        self,
        fed: Federation,
        *,
        parties: list[str],
        label_party: str,
        how: SecureBoost,
    ) -> None:
        check_names(parties)
        super().__init__(fed, label_party, "trees")
        self.parties, self.config = parties, how
        self.folder: Path | None = None
        self._stored: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._at = _Checkpoint("", how.trees)

    @contextmanager
    def workers(
        self,
        fed: Federation,
        asked: list[str] | None = None,
        met: Mapping[str, Federation] | None = None,
    ) -> Iterator[tuple[WorkerGroup, Any]]:
        """At partners that are there (by default all), and at the label party, whom they meet.

        met: the federations in which partners' rows are aligned with the label party's.
        """
        names = [name for name in (self.passive if asked is None else asked) if name in fed.names]
        where = Each({name: met[name].scope if met else "" for name in names})
        with (
            fed.workers(PassiveTrees, parties=names, model=self.model, met=where) as passive,
            fed.workers(ActiveTrees, parties=[self.label_party], model=self.model) as group,
        ):
            active = group[self.label_party]
            if names:  # partners meet the label party, not each other
                active.meet(passive.public_key())
                passive.meet({self.label_party: active.public_key()})
            yield passive, active

    # ------------------------------------------------------------------ training

    def fit(
        self,
        segments: Segments,
        *,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> TreeEnsemble:
        """Grow trees on these rows; with `resume` from the last checkpoint in the folder on."""
        how, self.folder = self.config, None if checkpoint is None else Path(checkpoint)
        met = self._met_by()
        with self.workers(self.fed, met=met) as (passive, active):
            if how.label_dp is not None:
                kept = None if self.folder is None else str(self.folder)
                account = active.tell_labels(float(how.label_dp), how.task, kept)
                self.privacy = account_of({self.label_party: account})
            layouts = {name: passive[name].create(how.bins) for name in self.passive}
            settings = {
                "task": how.task,
                "bins": how.bins,
                "own": self.label_party in self.parties,
                "weight_column": how.weight_column,
            }
            about = active.create(settings, layouts)
            self.take_about(about)
            if about["label_dp"] and how.label_dp is None:  # of an earlier training
                self.privacy = account_of({self.label_party: about["label_dp"]})
                warn_of_noise(self.privacy)
            self._stored = {name: CutTable(each).stored for name, each in layouts.items()}
            passive.train()
            mark = self._mark(segments, layouts, met)
            self._at = self._found(mark) if resume else _Checkpoint(mark, trees=how.trees)
            shares = [how.validation, 0.0] if how.validation and how.refit else [how.validation]
            for stage in range(self._at.stage, len(shares)):
                self._at.stage = stage
                count = self._grow(passive, active, segments, met, shares[stage], progress)
                if stage + 1 < len(shares):
                    longer = max(1, round(count / (1 - how.validation)))
                    self._at.trees, self._at.grown = min(how.trees, longer), 0
            self.best_epoch = count
            if how.validation and how.trees > count <= HARDLY:
                few = "one tree" if count == 1 else f"{count} trees"
                self.notes = [
                    f"{type(how).__name__} keeps {few}: the rows held out are told no better by "
                    "more. A larger patience, or validation = 0, grows them anyway."
                ]
            self.history = [{"epoch": float(tree)} for tree in range(1, count + 1)]
        return self

    def _grow(
        self,
        passive: WorkerGroup,
        active: Any,
        segments: Segments,
        met: Mapping[str, Federation],
        validation: float,
        progress: Progress | None,
    ) -> int:
        """Boost so many trees, or as many as lower the loss of the rows held out; how many kept."""
        how, at = self.config, self._at
        names = ("depth", "learning_rate", "l2", "min_leaf")
        growth = {name: getattr(how, name) for name in names}
        settings = BoostSettings(at.trees, validation, how.patience, None, at.trees, how.seed)
        least = max(passive.least().values(), default=1)
        scopes = {name: view.scope for name, view in met.items()}
        active.begin(list(segments), growth, asdict(settings), least, scopes)
        if at.grown:
            active.load_checkpoint(str(self.folder), at.number)
            passive.load_checkpoint(str(self.folder), at.number)
        kind = DealerHistograms if how.mode == "dealer" else SessionHistograms
        histograms: dict[str, Histograms] = {}
        for tree in range(at.grown, at.trees):
            for name, request in active.leave_out().items() if self.passive else ():
                self._stored[name] = passive[name].leave_out(self.label_party, request)
                if name in histograms:
                    self._numbers[name] = histograms.pop(name).close()
            for name in self.passive:
                if self._stored[name] and name not in histograms:
                    b, at_a = self.label_party, passive[name]
                    histograms[name] = kind(
                        _Pair(name, b, self.model, how.mode, met[name], at_a, active),
                        _aligned(met[name]),
                        self._stored[name],
                        self._numbers.get(name, 0),
                    )
            going = self._tree(tree, passive, active, histograms)
            if going and self.folder is not None and (tree + 1) % CHECKPOINT_EVERY == 0:
                self._checkpoint(passive, active, tree + 1)
            if progress is not None:
                progress("trees", tree + 1, at.trees, {})
            if not going:
                break
        self._numbers |= {name: each.close() for name, each in histograms.items()}
        return int(active.keep_trees())

    def _met_by(self) -> dict[str, Federation]:
        """For each partner the federation in which the label party's rows are aligned with it.

        Of several partners each may know rows that others do not: where the two have aligned their
        tables as two (``align(fed.only(a, b))``), all that they share are used. Fewer rows more
        than the partner's `min_rows` could be told from the rows known to all, which it is asked
        about elsewhere.
        """
        pairs = {name: self.fed.only(self.label_party, name) for name in self.passive}
        known = [
            name for name, pair in pairs.items() if pair.scope != self.fed.scope and pair.is_aligned
        ]
        if known:
            with self.fed.workers(PassiveTrees, parties=known, model=self.model) as asked:
                least = asked.least()
            known = [
                name for name in known if _aligned(pairs[name]) - _aligned(self.fed) >= least[name]
            ]
        return {name: pairs[name] if name in known else self.fed for name in pairs}

    def _tree(
        self,
        tree: int,
        passive: WorkerGroup,
        active: Any,
        histograms: Mapping[str, Any],
    ) -> int:
        """Grow one of each output; how many outputs go on."""
        if not self.passive:
            return int(active.grow_tree(tree))
        wanted = active.start_tree(tree)
        while wanted is not None:
            for start in range(0, wanted, BATCH):
                stop = min(wanted, start + BATCH)
                if start:
                    active.load_numbers(start, stop)
                for each in histograms.values():
                    each.sums(stop - start)
            requests = active.choose()
            while requests:
                self._exchange(passive, active, requests)
                requests = active.choose(True)
            wanted = active.split()
        return int(active.finish_tree())

    # ------------------------------------------------------------------ checkpoints

    def _mark(
        self, segments: Segments, layouts: Mapping[str, Any], met: Mapping[str, Federation]
    ) -> str:
        """Changes when a checkpoint would not continue the same training."""
        known = {name: _aligned(view) for name, view in met.items()}
        facts = [self.config.get_params(), self.parties, segments, layouts, known]
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _checkpoint(self, passive: WorkerGroup, active: Any, grown: int) -> None:
        """The parties' files first, ours last: a kill in between leaves the one before valid.

        Partners' bins follow from their tables: they keep only of which rows these are.
        """
        assert self.folder is not None
        self._at.grown, self._at.number = grown, self._at.number + 1
        passive.save_checkpoint(str(self.folder), self._at.number)
        active.save_checkpoint(str(self.folder), self._at.number)
        write_json(self.folder / STATE, asdict(self._at))

    def _found(self, mark: str) -> _Checkpoint:
        """Where a training was interrupted; its start, where it was not."""
        if self.folder is None or not (self.folder / STATE).is_file():
            return _Checkpoint(mark, trees=self.config.trees)
        found = _Checkpoint(**read_json(self.folder / STATE, "the checkpoint"))
        if found.mark != mark:
            raise ResumeError(
                f"the checkpoint in {self.folder} was made with other settings, parties or rows. "
                "Mend: resume with the same ones, or start in another folder"
            )
        return found

    def _exchange(self, passive: WorkerGroup, active: Any, requests: Mapping[str, Sealed]) -> None:
        """Let partners tell the label party the sides it asks for."""
        for name, request in requests.items():
            active.take_sides(passive[name].sides_for(self.label_party, request), name)

    # ------------------------------------------------------------------ using

    @contextmanager
    def judged(self, fed: Federation, segments: Segments) -> Iterator[Any]:
        """The label party's worker with outputs of these rows; one round with each partner."""
        with self.workers(fed) as (passive, active):
            names = [name for name in self.passive if name in fed.names]
            requests = active.attach(list(segments), names)
            for name in requests:
                passive[name].attach(list(segments))
            self._exchange(passive, active, requests)
            active.run()
            yield active

    def importance(self) -> pd.DataFrame:
        """Every column's share of what all cuts have gained; unnamed where that is not told."""
        with self.workers(self.fed) as (passive, active):
            gains: dict[str, dict[str, float]] = active.gains()
            rows = []
            for party, found in gains.items():
                names = list(found)
                if party != self.label_party:
                    names = [f"column {at} of {party}" for at in range(1, len(found) + 1)]
                    if party in passive:
                        with suppress(Refused):
                            names = passive[party].column_names()
                rows += [(party, *each) for each in zip(names, found.values(), strict=True)]
        told = pd.DataFrame(rows, columns=["party", "column", "gain"])
        told["gain"] /= max(float(told["gain"].sum()), 1e-300)
        return told.sort_values("gain", ascending=False, ignore_index=True, kind="stable")


# ---------------------------------------------------------------------------------- estimators


@parameters
class SecureBoost(LabelledEstimator):
    """Boosted trees over all parties, of all rows of the label party.

    trees, depth, learning_rate, l2, min_leaf: as usual (min_leaf in rows; for classes 0.05 times as
    much curvature). bins: most bins of a partner's column; the label party's
    own, whose sums cost nothing, have up to 255.
    validation, patience: trees stop when the loss of the rows held out has not fallen for so many;
    refit: as many are then grown on all rows. mode: of the products (docs/inner-products.md).
    task: "auto", "binary", "multiclass", "regression" or "count". label_party: whose labels.
    label_dp: ε of randomised response, through which alone the trees know labels, or None.
    weight_column: of the label party, says how often each of its rows counts; no feature then.
    A checkpoint is what the label party keeps every ten trees; partners keep of which rows it is.
    """

    trees: int = 200
    depth: int = 5
    learning_rate: float = 0.1
    l2: float = 1.0
    min_leaf: int = 20
    bins: int = 64
    validation: float = 0.15
    patience: int = 15
    refit: bool = True
    mode: str = "dealer"
    task: str = "auto"
    label_party: str | None = None
    label_dp: float | None = None
    weight_column: str | None = None
    seed: int = 0

    _trains_on: ClassVar[str] = "labelled"
    _rules: ClassVar[Rules] = {
        **dict.fromkeys(("trees", "patience", "min_leaf"), at_least(1)),
        **dict.fromkeys(("l2", "learning_rate"), POSITIVE),
        "validation": PROPER_SHARE,
        "depth": ("in 1 … 12", lambda depth: 1 <= depth <= 12),
        "bins": ("in 2 … 1024", lambda bins: 2 <= bins <= 1024),
        "mode": one_of(MODES),
        "task": one_of(("auto", "binary", "multiclass", "regression", "count")),
    }

    def shorten(self, classes: int, rows: int) -> int:
        super().shorten(classes, rows)
        if classes <= 2 or rows >= FEW_ROWS or not self.validation or self.learning_rate > 0.5:
            return 1
        # Half as many trees, each of several classes, say the same of held-out rows.
        self.set_params(learning_rate=2 * self.learning_rate, patience=(self.patience + 1) // 2)
        return 2

    def _make_network(self, fed: Federation, parties: list[str], label_party: str) -> TreeEnsemble:
        return TreeEnsemble(fed, parties=parties, label_party=label_party, how=self)

    def importance(self) -> pd.DataFrame:
        """What each column is worth to the trees: party, column, its share of all gains.

        A partner's columns are named where its policy lets statistics out, else they are numbered.
        """
        self._require_fit()
        return cast("TreeEnsemble", self.network_).importance()

    def _check(self) -> None:
        check_values(self, self._rules)
        if self.label_dp is not None and self.task in ("regression", "count"):
            raise ConfigError(
                f"label_dp is for classes, got task={self.task!r}. Mend: leave label_dp out"
            )


class LocalTrees(LocalOnly, SecureBoost):
    """Boosted trees at the label party."""


# Of split networks: best weights, batches.
UNUSED = ("keep_best", "restore_best", "seal_for")
WITH_PARTNERS = (
    *("load_numbers", "unmask_with", "mask_numbers", "take_sums", "hold_numbers"),
    *("take_products", "take_sides", "meet", "public_key"),
)
BY_LEVELS = ("start_tree", "choose", "split", "finish_tree")
declare(
    "local-trees",
    but(ActiveTrees, *UNUSED, *WITH_PARTNERS, *BY_LEVELS),
)
declare(
    "boosting",
    PassiveTrees,
    but(ActiveTrees, *UNUSED, "grow_tree"),
    providers=["state"],
)
