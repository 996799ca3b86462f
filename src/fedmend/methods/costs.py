"""What a method will cost on a federation, from its sizes and measured rates.

Seconds and bytes grow in proportion to a method's *units*: how many rows it looks at, times the
parties that look. The rates were read off `fedmend bench preflight -o parts=cost` at 600 and 2,400
rows of Credit and Bank (processor seconds of one thread of an x86 server, default settings, early
stopping as it comes); a machine of another kind shifts all seconds alike. An estimate is good for
"seconds, minutes or hours", not more: docs/benchmarks.md says by how much it is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmend.federation import Federation

__all__ = ["ALIGN", "Cost", "Facts", "Rate", "cost_of", "facts_of"]


@dataclass(frozen=True)
class Facts:
    """The sizes that costs follow from.

    rows, features: by party. labellers: the parties with a label column. aligned: rows known to
    all, None in a horizontal federation. training: the share of the rows that is trained on.
    """

    rows: Mapping[str, int]
    features: Mapping[str, int]
    labellers: tuple[str, ...]
    aligned: int | None = None
    training: float = 1.0

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

    def all_rows(self) -> int:
        return sum(self.rows.values())

    def exchanged(self) -> int:
        """Embeddings of shared rows that travel."""
        return self.shared * self.partners

    def known_anywhere(self) -> int:
        """The same with the rows that one party alone knows."""
        return (self.shared + self.alone) * self.partners

    def embedded(self) -> int:
        """Embeddings that travel to a top model which is at no party."""
        return self.shared * max(1, sum(count > 0 for count in self.features.values()))

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


ALIGN = Rate(0.1, 0.2, 2_000, 48)
"""Of finding the common rows; the rates of methods stand in their records."""


def facts_of(fed: Federation, *, horizontal: bool = False) -> Facts:
    """From what the parties tell of their tables anyway."""
    roster = fed.roster
    return Facts(
        {name: int(each["rows"]) for name, each in roster.items()},
        {name: int(each["features"]) for name, each in roster.items()},
        tuple(name for name, each in roster.items() if each["labelled"]),
        None if horizontal or not fed.is_aligned else fed.alignment.aligned,
    )


def cost_of(rate: Rate, amount: int, sent: int | None = None) -> Cost:
    """sent: what bytes are in proportion to, if it is not the same amount."""
    return Cost(
        rate.start + rate.seconds * amount / 1000,
        int(rate.start_bytes + rate.bytes * (amount if sent is None else sent)),
    )
