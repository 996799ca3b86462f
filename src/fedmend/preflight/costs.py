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

from fedmend.federation import Federation

__all__ = ["RATES", "Cost", "Facts", "Rate", "estimate", "facts_of", "units"]


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


RATES: dict[str, Rate] = {
    "align": Rate(0.1, 0.2, 2_000, 48),
    "local": Rate(0.15, 0.2, 25_000, 50),
    "vfl": Rate(0.15, 0.85, 0, 10_500),
    "local-vfl": Rate(0.15, 0.55, 0, 12_000),
    "ssl-vfl": Rate(0.1, 3.0, 0, 11_500),
    "risa": Rate(0.1, 1.25, 0, 22_000),
    "risa-images": Rate(0.5, 65.0, 1e8, 400_000),
    "fedpsg-pum": Rate(4.0, 1.0, 8e6, 3_500),
    "inc": Rate(0.9, 2.0, 26e6, 33_000),
    "majority": Rate(0.3, 1.8, 0, 26_500),
    "sage": Rate(1.5, 14.0, 0, 1.3e6),
    "fedavg": Rate(3.5, 1.5, 0, 1.3e6),
    "fedprox": Rate(3.5, 1.5, 0, 1.3e6),
    "fixmatch": Rate(1.5, 10.0, 0, 1.3e6),
}
"""By the names of federation.toml; bytes of horizontal methods are for each party."""
_HORIZONTAL = ("sage", "fedavg", "fedprox", "fixmatch")


def facts_of(fed: Federation, *, horizontal: bool = False) -> Facts:
    """From what the parties tell of their tables anyway."""
    roster = fed.roster
    return Facts(
        {name: int(each["rows"]) for name, each in roster.items()},
        {name: int(each["features"]) for name, each in roster.items()},
        tuple(name for name, each in roster.items() if each["labelled"]),
        None if horizontal or not fed.is_aligned else fed.alignment.aligned,
    )


def units(method: str, facts: Facts) -> int:
    """What the costs of a method are in proportion to."""
    if method == "align":
        return sum(facts.rows.values()) * max(1, facts.parties - 1)
    if method == "local":
        return facts.rows[facts.owner]
    if method == "local-vfl":
        return facts.rows[facts.owner] * facts.partners
    if method in ("risa", "risa-images"):
        return (facts.shared + facts.alone) * facts.partners
    if method == "fedpsg-pum":
        others = sum(count for name, count in facts.features.items() if name != facts.owner)
        return facts.shared * others
    if method in _HORIZONTAL:
        return sum(facts.rows.values())
    if method in ("inc", "majority"):
        return facts.shared * max(1, sum(count > 0 for count in facts.features.values()))
    return facts.shared * facts.partners


def estimate(method: str, facts: Facts) -> Cost:
    """Seconds and bytes of a method with its default settings."""
    rate, amount = RATES[method], units(method, facts)
    # Models travel there, not rows.
    sent = facts.parties if method in _HORIZONTAL else amount
    return Cost(
        rate.start + rate.seconds * amount / 1000, int(rate.start_bytes + rate.bytes * sent)
    )
