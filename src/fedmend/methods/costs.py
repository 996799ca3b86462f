"""What a method will cost on a federation, from its sizes and measured rates.

Seconds and bytes grow in proportion to a method's *units*: how many rows it looks at, times the
parties that look; of trees also the columns, and a tree for every class of several. An epoch of a
network has a least number of steps, so that below some thousand rows it costs the same. The rates
are processor seconds of one thread of an x86 server with default settings, stopping early as it
comes; a machine of another kind shifts all seconds alike. Within a factor of two, mostly: how long
a training goes on depends on the data (benchmarks/results/preflight.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

EPOCH_ROWS = 1280
"""An epoch of a network has at least 20 batches of 64 rows."""


@dataclass(frozen=True)
class Facts:
    """The sizes that costs follow from.

    rows, features: by party. labellers: the parties with a label column. aligned: rows known to
    all, None in a horizontal federation. training: the share of the rows that is trained on.
    classes: of the label, 1 where it is a number. same_order: the tables have the same rows.
    numeric: how many of the features are numbers, by party; all of them where nobody tells.
    """

    rows: Mapping[str, int]
    features: Mapping[str, int]
    labellers: tuple[str, ...]
    aligned: int | None = None
    training: float = 1.0
    classes: int = 2
    same_order: bool = False
    numeric: Mapping[str, int] = field(default_factory=dict)

    @property
    def outputs(self) -> int:
        """Trees that are grown at once: one for every class of several."""
        return self.classes if self.classes > 2 else 1

    @property
    def trained_on(self) -> int:
        """Shared rows that are not set aside for tests."""
        return round(self.shared * self.training)

    @property
    def parties(self) -> int:
        return len(self.rows)

    @property
    def shared(self) -> int:
        """Rows known to all; with a party alone, its rows."""
        return self.aligned if self.aligned is not None else max(self.rows.values())

    @property
    def owner(self) -> str:
        return self.labellers[0] if self.labellers else next(iter(self.rows))

    @property
    def partners(self) -> int:
        """Parties with columns whose embeddings have to travel."""
        holders = [name for name, count in self.features.items() if count]
        return max(1, len([name for name in holders if name != self.owner]))

    @property
    def alone(self) -> int:
        """Rows that one party alone knows, over all parties with columns."""
        return sum(
            max(0, self.rows[name] - self.shared) for name, count in self.features.items() if count
        )

    def of_a_pair(self) -> int:
        """Rows that the label party or a partner knows."""
        own = max(0, self.rows[self.owner] - self.shared) if self.features[self.owner] else 0
        return self.shared + own + round((self.alone - own) / self.partners)

    def all_rows(self) -> int:
        return sum(self.rows.values())

    def _looked_at(self, rows: int) -> float:
        """Rows that a network looks at, all epochs together, in epochs of a small table's length.

        The more classes there are, and up to some thousand rows, the longer it goes on learning.
        """
        longer = (min(max(rows, 1), 2400) / 600) ** 0.4 * (max(self.classes, 2) / 2) ** 0.4
        return max(EPOCH_ROWS, rows) * longer

    def own(self) -> int:
        """Of a network of the label party's own."""
        return round(self._looked_at(self.rows[self.owner]))

    @property
    def _halves(self) -> float:
        """Bottoms of all parties and a top, over those of two parties."""
        return (2 + self.partners) / 3

    def exchanged(self) -> int:
        """Of one on shared rows, of all parties' bottoms."""
        return round(self._looked_at(self.shared) * self._halves)

    def labelled(self) -> int:
        """The same with the label party's other rows."""
        return round(self.own() * self._halves)

    def known_anywhere(self) -> int:
        """Shared rows and those that one party alone knows, each partner's embedding apart."""
        return (self.shared + self.alone) * self.partners

    def weighed(self) -> int:
        """The same where sources are weighed on held-out rows, which takes its time on few too.

        An epoch has at least 10 batches, of several classes 20; few rows have fewer epochs.
        """
        least = 4000 if self.classes <= 2 else 8000
        length = 0.6 if self.rows[self.owner] < 1000 else 1.0
        return round((least + self.of_a_pair()) * length * self._halves)

    def sent_weighed(self) -> int:
        """What crosses of them: a small table of two classes is gone through once in an epoch."""
        every = self.weighed() / self._halves
        once = 720 + 1.55 * self.of_a_pair() if self.classes <= 2 else every
        return round(min(once, every) * self.partners)

    def grown(self) -> int:
        """Nodes of trees at the label party, and what its rows and columns take of them."""
        rows, own = self.rows[self.owner], self.features[self.owner]
        return round(self._nodes() * self.outputs * (10 + own * (1 + rows / 6500)))

    def _nodes(self) -> float:
        """Nodes of an output's trees that are summed over bins: how many, the data say most of."""
        return float(61 * max(self.rows[self.owner], 1) ** 0.36)

    def _bins(self) -> float:
        """Of all partners' columns: up to 64 each, of 10 rows at least; categories have few."""
        columns = sum(count for name, count in self.features.items() if name != self.owner)
        numbers = sum(count for name, count in self.numeric.items() if name != self.owner)
        numbers = numbers if self.numeric else columns
        return 0.6 * min(64.0, self.shared / 10) * numbers + 3 * (columns - numbers)

    def summed(self) -> int:
        """Messages of all trees, and what is computed for them in as much time."""
        rows, own = self.rows[self.owner], self.features[self.owner]
        each = self.partners * self.shared / 10_000 + self._bins() / 1500
        each += own * (1 / 45 + rows / 200_000)
        return round(self._nodes() * (self.partners + self.outputs * each))

    def sent_sums(self) -> int:
        """Numbers that cross: masked bins, then for every node a number a row and sums of bins."""
        once = self.shared * self._bins()
        each = self.outputs * (self.shared * self.partners + 2 * self._bins())
        return round(once + self._nodes() * (each + 60 * self.partners))

    def voted(self, batch: int = 64) -> int:
        """Rows of an epoch where the top is at no party, over those of two parties with columns.

        An epoch has at least 20 batches; without a column there is none.
        """
        holders = sum(count > 0 for count in self.features.values())
        return round(max(20 * batch, self.shared) * (1 + holders) / 3) if holders else 0

    def heard(self, batch: int = 64) -> int:
        """The same with the work of every annotator, who sends little besides."""
        return self.voted(batch) + 16 * len(self.labellers)

    def sent_votes(self) -> int:
        """What crosses of them in batches of 64: that of few rows is less from the start."""
        return round(replace(self, aligned=0).voted() * (self.shared / 600) ** 0.8)

    def sent_evidence(self) -> int:
        """The same with some rounds of what is likely of every row and what annotators say of it.

        The latter, from nine annotators on, of a class less.
        """
        told = len(self.labellers) * self.shared * (2 * self.classes - 1)
        return self.sent_votes() + round(told / 400)

    def cells_elsewhere(self) -> int:
        """Cells of shared rows that the label party has not."""
        others = sum(count for name, count in self.features.items() if name != self.owner)
        return self.shared * others

    def completed(self) -> Facts:
        """The same federation once the label party's rows are completed: all of them are shared."""
        return replace(self, aligned=max(self.shared, self.rows[self.owner]))


@dataclass(frozen=True)
class Rate:
    """Seconds to begin with and for a thousand units; bytes to begin with and for a unit."""

    start: float
    seconds: float
    start_bytes: float
    bytes: float


@dataclass(frozen=True)
class Cost:
    """What a method is expected to take."""

    seconds: float
    bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.bytes + other.bytes)


ALIGN = Rate(0.1, 0.125, 2_000, 80)
SAME_ORDER = Rate(0.02, 0.00125, 0, 1_800)
"""Of finding the common rows, and of seeing that all are; those of methods are in their records."""


def cost_of(rate: Rate, amount: int, sent: int | None = None) -> Cost:
    """sent: what bytes are in proportion to, if it is not the same amount."""
    return Cost(
        rate.start + rate.seconds * amount / 1000,
        int(rate.start_bytes + rate.bytes * (amount if sent is None else sent)),
    )
