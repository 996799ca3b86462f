"""What overlap is worth: scores by shared rows, and where twice as many would probably lead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmend.report import plots

__all__ = ["picture"]


def picture(curve: Mapping[str, Any]) -> str | None:
    """Measured points with their range, the estimate for twice the rows, and the party alone."""
    points = [each for each in curve.get("points", []) if each.get("score") is not None]
    if len(points) < 2:
        return None
    with plots.styled():
        figure, (axes,) = plots.new_figure(7.6, 2.7)
        rows = [float(each["rows"]) for each in points]
        axes.plot(
            rows,
            [float(each["score"]) for each in points],
            "o-",
            color=plots.SERIES[0],
            lw=1.6,
            ms=5,
        )
        for each in points:
            _range(axes, each, plots.SERIES[0])
        twice = curve.get("twice")
        if twice and twice.get("score") is not None:
            _range(axes, twice, plots.SERIES[1])
            axes.plot(
                [rows[-1], float(twice["rows"])],
                [float(points[-1]["score"]), float(twice["score"])],
                "o--",
                color=plots.SERIES[1],
                lw=1.2,
                ms=5,
            )
            axes.annotate(
                "estimate",
                (float(twice["rows"]), float(twice["score"])),
                (0, 8),
                textcoords="offset points",
                ha="right",
                size=9,
            )
        if curve.get("alone"):
            alone = float(curve["alone"]["score"])
            axes.axhline(alone, color=plots.FAINT, lw=1, ls=(0, (2, 3)))
            axes.text(rows[0], alone, "the label party alone", va="bottom", size=9)
        axes.set_xlabel("rows known to all")
        axes.set_title(plots.pretty(str(curve["metric"])), loc="left", fontsize=10)
        axes.margins(x=0.06, y=0.15)
        return plots.to_svg(figure, "worth", "What more shared rows would be worth")


def _range(axes: Any, point: Mapping[str, Any], colour: str) -> None:
    low, high = point.get("low"), point.get("high")
    if low is not None and high is not None:
        x = float(point["rows"])
        axes.plot([x, x], [float(low), float(high)], color=colour, lw=5, alpha=0.22)
