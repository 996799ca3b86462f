"""What a method will cost on a federation, from its sizes, a file's settings and measured rates.

Seconds and bytes grow in proportion to a method's *units*: rows that it looks at, epochs and
parties; of trees nodes, rows and columns. An epoch of a network has 20 steps or more, so that below
some thousand rows it costs the same. The rates are processor seconds of one thread of an x86
server, stopping early as it comes; another machine shifts all alike. Within a factor of two,
mostly: how long a training goes on depends on the data (benchmarks/results/preflight.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Facts:
    """The sizes that costs follow from.

    rows, features: by party. labellers: the parties with a label column. aligned: rows known to
    all, None in a horizontal federation. training: the share of the rows that is trained on.
    classes: of the label, 1 where it is a number. same_order: the tables have the same rows.
    numeric: how many of the features are numbers, by party; all of them where nobody tells.
    pictures: whether some are pictures, whose networks nobody has measured. asked: all parameters
    of the method, where a file gives some; without them the default ones count.
    """

    rows: Mapping[str, int]
    features: Mapping[str, int]
    labellers: tuple[str, ...]
    aligned: int | None = None
    training: float = 1.0
    classes: int = 2
    same_order: bool = False
    numeric: Mapping[str, int] = field(default_factory=dict)
    pictures: bool = False
    asked: Mapping[str, Any] = field(default_factory=dict)

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
        return max(1, sum(count > 0 for name, count in self.features.items() if name != self.owner))

    @property
    def alone(self) -> int:
        """Rows that one party alone knows, over all parties with columns."""
        holders = [self.rows[name] for name, count in self.features.items() if count]
        return sum(max(0, rows - self.shared) for rows in holders)

    def of_a_pair(self) -> float:
        """Rows that the label party or a partner knows."""
        own = max(0, self.rows[self.owner] - self.shared) if self.features[self.owner] else 0
        return self.shared + own + (self.alone - own) / self.partners

    def all_rows(self) -> int:
        return sum(self.rows.values())

    def blinded(self) -> float:
        """Ids of all, those of the smallest party once more by every other; keys of all pairs."""
        return self.all_rows() + min(self.rows.values()) * (self.parties - 1) + 4 * self.parties**2

    def batch(self, usual: int) -> float:
        """Rows of a step; below 1 a share of all."""
        asked = self.asked.get("batch_size") or usual
        return asked if asked >= 1 else max(1.0, asked * self.shared)

    def _length(self, usual: float, patience: int = 0) -> float:
        """Epochs in all; those asked for, unless held-out rows end them: usually after so many."""
        epochs, waits = self.asked.get("epochs"), self.asked.get("patience")
        if epochs is None:
            return usual
        return min(usual + waits - patience, 2 * epochs) if waits else epochs

    def _looked_at(self, rows: int) -> float:
        """By a network in all epochs: more classes, and a little more rows, take it longer."""
        usual = 24 * (max(rows, 1) / 600) ** 0.15 * (max(self.classes, 2) / 2) ** 0.6
        return max(20 * self.batch(64), rows) * self._length(min(usual, 200), 10)

    def own(self) -> float:
        """Of a network of the label party's own."""
        return self._looked_at(self.rows[self.owner])

    @property
    def halves(self) -> float:
        """Bottoms of all parties and a top, over those of two parties."""
        return (2 + self.partners) / 3

    def exchanged(self) -> float:
        """Of one on shared rows, of all parties' bottoms."""
        return self._looked_at(self.shared) * self.halves

    def pretrained(self) -> float:
        """The same once for every epoch before it, which takes most of the time."""
        return self.exchanged() * self.asked.get("pretrain_epochs", 20)

    def weighed(self) -> float:
        """The same where sources are weighed; an epoch has 10 batches or more, of classes 20."""
        least = 4000 if self.classes <= 2 else 8000
        usual = 12 if self.rows[self.owner] < 1000 and self.asked.get("members", 5) > 1 else 20
        length = (0.35 * usual + 0.65 * self._length(usual)) / 20
        labelling = 1.5 if self.asked.get("threshold") else 1
        return (least + self.of_a_pair()) * length * labelling * self.halves

    def sent_weighed(self) -> float:
        """What crosses, most of it for members to be judged; two classes are gone through once."""
        every, members = self.weighed() / self.halves, self.asked.get("members", 5)
        every = min(every, 720 + 1.55 * self.of_a_pair() if members > 1 >= self.outputs else every)
        voices = members / 5 if self.asked.get("fusion", "pool") == "pool" else 1
        return every * voices * self.partners

    def voted(self, usual: int = 64, epochs: int = 18) -> float:
        """Of a top at no party, over that of two parties with columns; usual: rows of a step."""
        holders = sum(count > 0 for count in self.features.values())
        least = 20 * self.batch(usual) if self.asked.get("patience", True) else 0
        halves = (1 if self.asked.get("crossfit", True) else 0.5) * (1 + holders) / 3
        return max(least, self.shared) * self._length(epochs, 5) * halves * (holders > 0)

    def heard(self, usual: int = 64, epochs: int = 18, encrypted: float = 0) -> float:
        """The same with every annotator's work; encrypted: of evidence whose sums are encrypted."""
        each = 2.7 * usual * len(self.labellers)
        return self.voted(usual, epochs) + each + encrypted * (self.asked.get("secure") == "he")

    def sent_evidence(self) -> float:
        """The same with rounds of what is likely of every row and what annotators say of it."""
        told = len(self.labellers) * self.shared * (2 * self.classes - 1)
        return self.voted() + told / 29 + 60_000 * (self.asked.get("secure") == "he")

    def _rounds(self, usual: int) -> float:
        """In all; where held-out rows count them, those waited for, and as many on all rows."""
        rounds, waits = self.asked.get("rounds", 50), self.asked.get("patience", 10)
        usual = min(rounds, max(usual, 5 * self.outputs))
        return rounds if waits is None else min(rounds, usual + waits) + usual

    def sent_models(self, usual: int, encrypted: int = 9) -> float:
        """Of parties in 50 rounds; encrypted: how much larger they are then."""
        parties = min(self.asked.get("per_round") or self.parties, self.parties)
        larger = encrypted if self.asked.get("secure") == "he" else 1
        return parties * self._rounds(usual) / 50 * larger

    def in_rounds(self, usual: int) -> float:
        """Rows of all rounds, over 50 of them with 5 epochs; usual: rounds of two classes."""
        passes = self.sent_models(usual, encrypted=1) / self.parties
        return self.all_rows() * passes * self.asked.get("epochs", 5) / 5

    def grown(self) -> float:
        """Nodes of trees at the label party, and what its rows and columns take of them."""
        rows, own = self.rows[self.owner], self.features[self.owner]
        return self._nodes() * self.outputs * (10 + own * (1 + rows / 6500))

    def _nodes(self) -> float:
        """Nodes of an output's trees, some ten each: how many trees, the data say most of."""
        asked, rows = self.asked.get, max(self.rows[self.owner], 1)
        found = 61 * rows**0.36 * (0.1 / asked("learning_rate", 0.1)) ** 0.7
        most = 10 * asked("trees", 200) * (1 + asked("refit", True))
        deep = min(2 ** (0.6 * (asked("depth", 5) - 5)), max(1.0, (rows / 400) ** 0.4))
        return float(min(found, most) * deep)

    def _elsewhere(self) -> tuple[int, int]:
        """Columns of numbers and of categories that the label party has not."""
        columns = sum(count for name, count in self.features.items() if name != self.owner)
        numbers = sum(count for name, count in self.numeric.items() if name != self.owner)
        return (numbers, columns - numbers) if self.numeric else (columns, 0)

    def _bins(self) -> float:
        """Of all partners' columns: up to 64 each, of 10 rows at least; categories have few."""
        numbers, categories = self._elsewhere()
        return 0.6 * min(64.0, self.shared / 10) * numbers + 3 * categories

    def _encrypted(self, cells: int) -> float:
        """Messages of a node in mode "bfv"; rows times bins take as much as so many cells."""
        asked = self.outputs * (self.asked.get("mode") == "bfv")
        return asked * (self.partners + self.shared * self._bins() / cells)

    def summed(self) -> float:
        """Messages of all trees, and what is computed for them in as much time."""
        rows, own = self.rows[self.owner], self.features[self.owner]
        each = self.partners * self.shared / 10_000 + self._bins() / 1500
        each = self.outputs * (each + own * (1 / 45 + rows / 200_000))
        return self._nodes() * (self.partners + each + 12 * self._encrypted(85_000))

    def sent_sums(self) -> float:
        """Numbers that cross: masked bins, then for every node a number a row and sums of bins."""
        each = self.outputs * (self.shared * self.partners + 2 * self._bins())
        each += 60 * self.partners + 80_000 * self._encrypted(190_000)
        return self.shared * self._bins() + self._nodes() * each

    def filled_in(self, category: int, growth: float, sums: float, paillier: float) -> float:
        """Partners' columns by shared rows; sums: by mode "bfv", paillier: of a row and pair."""
        (numbers, categories), asked = self._elsewhere(), self.asked.get
        found = 20 * self.partners
        found += (self.shared / 180) ** growth * (numbers + category * categories)
        found *= 1 if "tree" in asked("model", "tree") else 0.4
        found += sums * (numbers + 15 * categories) * (asked("mode") == "bfv")
        paillier *= (asked("correlation_mode") == "published") * self.shared
        own = self.features[self.owner] * (asked("key_bits", 2048) / 2048) ** 2.7
        return found + paillier * own * (numbers + 4 * categories)

    def completed(self) -> Facts:
        """The same federation once the label party's rows are completed: all of them are shared."""
        return replace(self, aligned=max(self.shared, self.rows[self.owner]))


@dataclass(frozen=True)
class Cost:
    """What a method is expected to take."""

    seconds: float
    bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.bytes + other.bytes)


@dataclass(frozen=True)
class Rate:
    """Seconds to begin with and for a thousand units; bytes to begin with and for a unit.

    units: how many a federation has. sends: those that bytes are in proportion to, if they are
    others. batch: rows of a step by default; a step takes its time however few they are.
    """

    start: float
    seconds: float
    start_bytes: float
    bytes: float
    units: Callable[[Facts], float]
    sends: Callable[[Facts], float] | None = None
    batch: int = 0

    def of(self, facts: Facts) -> Cost:
        units, usual = self.units(facts), self.batch
        pace = (1 + 460 / facts.batch(usual)) / (1 + 460 / usual) if usual else 1.0
        seconds = self.start + self.seconds * units * pace / 1000
        sent = self.sends(facts) if self.sends else units
        return Cost(seconds, int(self.start_bytes + self.bytes * sent))


ALIGN = Rate(0.1, 0.125, 2_000, 80, Facts.blinded)
SAME_ORDER = Rate(
    *(0.02, 0.00125, 0, 1_800),
    lambda facts: facts.all_rows() + 4_000 * facts.parties,
    lambda facts: facts.parties,
)
"""Of finding the common rows, and of seeing that all are; those of methods are in their records."""


def cost_of_alignment(facts: Facts) -> Cost:
    """Of finding the rows that all parties know."""
    return (SAME_ORDER if facts.same_order else ALIGN).of(facts)
