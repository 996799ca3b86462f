"""Who labels how well: what a method for several annotators found out, as counts and statistics.

Which labels are suspicious stays with the party that gave them; reported is how many. And what
became of the labels where they were corrected before a training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fedmend._json import plain
from fedmend.report import plots
from fedmend.report.amounts import UNTOLD, human_bytes, human_seconds, listed, percent

if TYPE_CHECKING:
    from fedmend.methods.annotators.inc import InC

MAX_PARTIES_DRAWN = 12
ACROSS = 3
# Believed right less often than by chance by this much, a party's labels are turned round.
CLEARLY_BELOW = 0.02


@dataclass(frozen=True)
class AnnotatorSkills:
    """What the coordinator knows of the annotators after a training.

    votes: labelled rows by party. suspicious: how many of them are probably wrong, None where a
    party does not tell. expertise: by party T, T[j][l] = P(says l | true class j), of those whose
    policies let it out. standing: how likely votes are right, beside random ones.
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
    def of(cls, model: InC, suspicious: Mapping[str, int | None]) -> AnnotatorSkills:
        assert model.classes_ is not None
        content = {
            "rows": len(model.posterior_),
            "classes": [str(each) for each in model.classes_.tolist()],
            "votes": model.votes_,
            "suspicious": suspicious,
            "expertise": model.expertise_,
            "standing": model.standing_,
            "agreement": model.agreement_.observed,
            "chance": model.agreement_.chance,
            "beats_chance": bool(model.agreement_.beats_chance),
            "epsilon": model.label_dp,
        }
        return cls(**plain(content))

    def right(self, party: str) -> float | None:
        """How often this party's label is right by the noise model."""
        return self.standing.get(party, {}).get("believed")

    def table(self) -> list[list[str]]:
        """A head, and a line for each annotator."""
        lines = [["party", "labels", "probably wrong", "of its labels", "believed right"]]
        for party, votes in self.votes.items():
            wrong, right = self.suspicious.get(party), self.right(party)
            lines.append(
                [
                    party,
                    f"{votes:,}",
                    "not reported" if wrong is None else f"{wrong:,}",
                    percent(wrong / votes) if wrong is not None and votes else UNTOLD,
                    "not reported" if right is None else percent(right),
                ]
            )
        return lines

    def sentences(self) -> list[str]:
        """What was found, in words."""
        reported = {party: wrong for party, wrong in self.suspicious.items() if wrong is not None}
        given = sum(self.votes.values())
        lines = [
            f"{len(self.votes)} parties gave {given:,} labels for the {self.rows:,} rows that "
            "were learnt from."
        ]
        if reported:
            of = sum(self.votes[party] for party in reported)
            lines.append(
                f"{sum(reported.values()):,} of {of:,} labels contradict what all evidence "
                "together says. Which ones, each party learns of its own labels only."
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
            if _below_chance(found)
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
                "No row has two labels: nothing but the model itself tells good annotators from "
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


def _below_chance(found: Mapping[str, float | None]) -> bool:
    believed, chance = found.get("believed"), found.get("by_chance")
    return believed is not None and chance is not None and believed < chance - CLEARLY_BELOW


def corrected(found: Mapping[str, Any]) -> list[str]:
    """What the label-correction stage did."""
    rows, changed = int(found["rows"]), int(found["changed"])
    parties = [str(each) for each in found["parties"]]
    lines = [
        f"{listed(parties)} label. {found['method']} learned from all of them what each label "
        f"probably is; on {rows:,} rows {changed:,} labels of {found['to']} became another one."
    ]
    if found.get("filled"):
        lines.append(f"{int(found['filled']):,} rows without a label of {found['to']} got one.")
    if found.get("dropped"):
        lines.append(
            f"{int(found['dropped']):,} labels were too doubtful either way and are left out."
        )
    if found.get("rows_of") == "completed":
        lines.append("Completed rows took part in it.")
    lines.append(
        f"The corrected labels went to {found['to']} and nobody else; what it had before stays "
        f"with it. It took {human_seconds(float(found.get('seconds') or 0.0))} and "
        f"{human_bytes(int(found.get('bytes') or 0))} crossed."
    )
    return lines


def expertise(found: AnnotatorSkills, number: int = 0) -> str | None:
    """For each annotator: of the rows of a true class (down), what it says (across)."""
    shown = [party for party in found.votes if party in found.expertise][:MAX_PARTIES_DRAWN]
    if not shown:
        return None
    classes = found.classes if len(found.classes) <= 12 else []
    names = [plots.short(each, 11 if len(classes) < 4 else 8) for each in classes]
    lines, across = math.ceil(len(shown) / ACROSS), min(len(shown), ACROSS)
    with plots.styled():
        figure, axes = plots.new_figure(0.5 + 7.0 / ACROSS * lines, across, lines)
        for each, party in zip(axes, shown, strict=False):
            right = found.right(party)
            plots.cells(each, found.expertise[party])
            if len(found.classes) <= 6:
                plots.in_cells(each, found.expertise[party], _share, 8.5)
            each.set_aspect("equal")
            title = f"{plots.short(party, 14)}{'' if right is None else f', {100 * right:.0f} %'}"
            each.set_title(title, fontsize=10, color=plots.INK, loc="left")
            plots.names_below(each, names, slanted=sum(map(len, names)) > 24, fontsize=8)
            each.set_yticks([at + 0.5 for at in range(len(names))], names, fontsize=8)
        for each in axes[len(shown) :]:
            each.axis("off")
        figure.supxlabel("what the party says", fontsize=9, color=plots.FAINT)
        figure.supylabel("what is believed to be true", fontsize=9, color=plots.FAINT)
        return plots.to_svg(figure, f"expertise{number}", "How well each party labels")


def _share(value: float) -> str:
    return f"{100 * value:.0f}" if value >= 0.005 else ""
