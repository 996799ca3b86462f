"""What a method's uncertainty is worth, and which party carried its decisions.

Everything here was computed over the test rows where their labels are (or from how many annotators
say what, where the majority counts): histograms, rates and means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedmend.report import plots
from fedmend.report.amounts import percent


@dataclass(frozen=True)
class Uncertainty:
    """What is known of one method's uncertainty.

    worth: as `fedmend.learn.calibration.describe` tells it. carried: by party the mean
    share of decisions on rows known to all. mass: of opinions, given to no class. trust: by kind of
    row and source. made_up: by passive party how many rows got a label, kept it, and how many there
    are. against: what counts as right where that is a matter of votes.
    """

    worth: dict[str, Any]
    carried: dict[str, float] = field(default_factory=dict)
    mass: float | None = None
    trust: dict[str, dict[str, float]] = field(default_factory=dict)
    made_up: dict[str, dict[str, int]] = field(default_factory=dict)
    against: str = ""

    @property
    def surer_half(self) -> float | None:
        """The accuracy on the half of the rows that the method is surer of."""
        shares = {each["share"]: each["accuracy"] for each in self.worth["selective"]}
        return shares.get(0.5)

    def sentences(self) -> list[str]:
        """What was found, in words."""
        lines = []
        if self.against:
            lines.append(
                f"Right and wrong are by {self.against}: {self.worth['rows']:,} test rows. Where "
                "most annotators err together, a true answer counts as wrong here."
            )
        auroc = self.worth["auroc"]
        if auroc is not None:
            how = "well" if auroc >= 0.75 else "somewhat" if auroc >= 0.6 else "hardly"
            lines.append(
                f"Uncertainty tells wrong answers from right ones {how}: of one wrong and one "
                f"right answer, the wrong one is the less certain in {percent(auroc)} of cases."
            )
        if self.surer_half is not None:
            lines.append(
                f"Answering all rows, {percent(1 - self.worth['error'])} are right; answering the "
                f"surer half only, {percent(self.surer_half)}."
            )
        for party, found in self.made_up.items():
            lines.append(
                f"Of {found['rows']:,} rows that only {party} has, {found['chosen']:,} were sure "
                f"enough to get a label in training; {found['kept']:,} kept it to the end."
            )
        if self.mass is not None:
            lines.append(
                f"Of its opinions {percent(self.mass)} is given to no class (the mass of evidence "
                "theory; uncertainty is the error rate to expect)."
            )
        aligned = self.trust.get("aligned", {})
        distrusted = [source for source, value in aligned.items() if value == 0]
        if distrusted:
            lines.append(
                f"On rows held out from training, listening to {' and '.join(distrusted)} as well "
                "made predictions no better, so nobody listens to them."
            )
        return lines

    def table(self) -> list[list[str]]:
        """A head, and a line for each party: its share of decisions, and how far it is trusted."""
        from fedmend.methods.risa.trust import COLUMNS  # which needs torch

        lines = [["party", "carried", "trusted"]]
        for party, share in self.carried.items():
            # A party speaks by its head or by what its columns add up to, at full weight at most.
            trust = self.trust.get("aligned", {})
            found = [trust[source] for source in (party, party + COLUMNS) if source in trust]
            lines.append([party, percent(share), percent(min(1.0, max(found)) if found else None)])
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def overall(methods: Sequence[tuple[str, Uncertainty]]) -> list[list[str]]:
    """A head, and a line for each method: what its probabilities and its doubts are worth."""
    lines = [["method", "right", "surer half right", "calibration error", "doubt finds errors"]]
    for title, found in methods:
        worth = found.worth
        right = None if worth["error"] is None else 1 - worth["error"]
        shares = (right, found.surer_half, worth["calibration_error"], worth["auroc"])
        lines.append([title, *map(percent, shares)])
    return lines


def picture(found: Uncertainty, number: int = 0) -> str | None:
    """Histogram of uncertainty (right and wrong answers), reliability, error by decile."""
    worth = found.worth
    if not worth["rows"]:
        return None
    with plots.styled():
        figure, (rows, reliability, errors) = plots.new_figure(2.6, 3)
        _histogram(rows, worth["histogram"])
        rows.set(xlabel="uncertainty", title="rows", xlim=(0, 1))
        sure, right = (
            [each[key] for each in worth["reliability"]] for key in ("confidence", "accuracy")
        )
        reliability.plot([0, 1], [0, 1], color=plots.GRID, linewidth=1)
        reliability.plot(sure, right, marker="o", markersize=3.5, color=plots.SERIES[0])
        reliability.set(xlabel="how sure", title="share that is right", xlim=(0, 1), ylim=(0, 1.02))
        deciles = [each["error"] for each in worth["deciles"]]
        errors.bar(range(1, len(deciles) + 1), deciles, color=plots.SERIES[1], width=0.8)
        errors.set(xlabel="tenth of rows, surest first", title="share of errors")
        for each in (rows, reliability, errors):
            each.title.set_fontsize(10)
        return plots.to_svg(figure, f"uncertainty{number}", "What the uncertainty is worth")


def _histogram(axes: Any, bins: Mapping[str, Sequence[float]]) -> None:
    left, right, wrong = bins["edges"][:-1], bins["right"], bins["wrong"]
    bars = {"width": bins["edges"][1] - bins["edges"][0], "align": "edge"}
    axes.bar(left, right, **bars, color=plots.SERIES[0], label="right")
    axes.bar(left, wrong, **bars, bottom=right, color=plots.SERIES[1], label="wrong")
    axes.set_ylim(0, 1.3 * max(map(sum, zip(right, wrong, strict=True))) or 1.0)
    # Above the bars, where there is room: a search for the best place warns on a slow machine.
    axes.legend(loc="upper center", ncols=2, frameon=False, fontsize=8)
