"""Who labels how well: what a method for several labellers found out, as counts and statistics.

Which labels are suspicious stays with the party that gave them; told is how many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fedmend._json import plain
from fedmend.report.amounts import percent

if TYPE_CHECKING:
    from fedmend.methods.annotators.inc import InC

__all__ = ["Labelling"]


@dataclass(frozen=True)
class Labelling:
    """What the coordinator knows of the labellers after a training.

    votes: labelled rows by party. suspicious: how many of them are probably wrong, None where a
    party does not tell. expertise: by party T, T[j][l] = P(says l | true class j), of those whose
    policies let it out. standing: how far votes are believed, beside random ones.
    """

    rows: int
    classes: list[str]
    votes: dict[str, int]
    suspicious: dict[str, int | None]
    expertise: dict[str, list[list[float]]]
    standing: dict[str, dict[str, float | None]]
    agreement: float | None
    chance: float | None
    beats_chance: bool
    epsilon: float | None = None

    @classmethod
    def of(cls, model: InC, suspicious: Mapping[str, int | None]) -> Labelling:
        assert model.classes_ is not None
        found = model.agreement_
        return cls(
            **plain(
                {
                    "rows": len(model.posterior_),
                    "classes": [str(each) for each in model.classes_.tolist()],
                    "votes": model.votes_,
                    "suspicious": suspicious,
                    "expertise": model.expertise_,
                    "standing": model.standing_,
                    "agreement": found.observed,
                    "chance": found.chance,
                    "beats_chance": bool(found.beats_chance),
                    "epsilon": model.label_dp,
                }
            )
        )

    @property
    def parties(self) -> list[str]:
        return list(self.votes)

    def right(self, party: str) -> float | None:
        """How often this party's label is believed to be right."""
        return self.standing.get(party, {}).get("believed")

    def table(self) -> list[list[str]]:
        """A head, and a line for each labeller."""
        head = ["party", "labels", "probably wrong", "of its labels", "believed right"]
        return [head, *(self._line(party) for party in self.parties)]

    def _line(self, party: str) -> list[str]:
        votes, wrong, right = self.votes[party], self.suspicious.get(party), self.right(party)
        return [
            party,
            f"{votes:,}",
            "not told" if wrong is None else f"{wrong:,}",
            "–" if wrong is None or not votes else percent(wrong / votes),
            "not told" if right is None else percent(right),
        ]

    def sentences(self) -> list[str]:
        """What was found, in words."""
        told = {party: wrong for party, wrong in self.suspicious.items() if wrong is not None}
        given = sum(self.votes.values())
        lines = [
            f"{len(self.votes)} parties gave {given:,} labels for {self.rows:,} rows known to all."
        ]
        if told:
            of = sum(self.votes[party] for party in told)
            lines.append(
                f"{sum(told.values()):,} of {of:,} labels contradict what all evidence together "
                "says, and were corrected for the training. Which ones, each party learns of its "
                "own labels only."
            )
        if self.agreement is not None and self.chance is not None:
            lines.append(
                f"Two labels of a row agree in {percent(self.agreement)} of cases; by chance it "
                f"would be {percent(self.chance)}."
            )
        lines += [
            f"{party}'s labels are right less often than by chance. They were used as the "
            "evidence they are, turned round: its classes may be coded the other way."
            for party, found in self.standing.items()
            if _below(found)
        ]
        if self.epsilon is not None:
            lines.append(
                f"The parties answered at random now and then (label_dp = {self.epsilon:g}), so "
                "that no single answer can be held against a row."
            )
        return lines

    @property
    def warning(self) -> str:
        """What must not be overlooked, or nothing."""
        if self.agreement is None:
            return (
                "No row has two labels: nothing but the model itself tells good labellers from "
                "bad ones."
            )
        if not self.beats_chance:
            return (
                "Together the label parties are no better than chance. Corrected labels may be "
                "swapped, and nothing below should be relied on."
            )
        return ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def _below(found: Mapping[str, float | None]) -> bool:
    believed, chance = found.get("believed"), found.get("by_chance")
    return believed is not None and chance is not None and believed < chance - 0.02
