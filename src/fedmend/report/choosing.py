"""Why a method was chosen: the candidates of ``method = "auto"`` and their scores in the folds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmend.report import plots

__all__ = ["picture", "table"]


def table(choice: Mapping[str, Any]) -> list[list[str]]:
    """A head, and a line for each candidate."""
    metric = plots.pretty(str(choice["metric"]))
    lines = [["candidate", f"{metric}, held-out rows", "time", "remark"]]
    for each in choice["candidates"]:
        mean, sd = each.get("mean"), each.get("sd")
        score = "–" if mean is None else f"{mean:.3f}"
        if mean is not None and sd is not None:
            score += f" ± {sd:.3f}"
        remark = "chosen" if each["title"] == choice["chosen"] else str(each.get("skipped") or "")
        lines.append([str(each["title"]), score, f"{each.get('seconds') or 0.0:.1f} s", remark])
    return lines


def picture(choice: Mapping[str, Any]) -> str | None:
    """Mean and spread of every candidate over the folds; the chosen one is dark."""
    shown = [each for each in choice["candidates"] if each.get("mean") is not None]
    if len(shown) < 2:
        return None
    with plots.styled():
        figure, (axes,) = plots.new_figure(7.6, 0.8 + 0.36 * len(shown))
        for at, each in enumerate(shown):
            mean, sd = float(each["mean"]), float(each.get("sd") or 0.0)
            chosen = each["title"] == choice["chosen"]
            colour = plots.SERIES[0] if chosen else plots.FAINT
            axes.plot([mean - sd, mean + sd], [at, at], color=colour, lw=6, alpha=0.25)
            axes.plot([mean], [at], "o", color=colour, ms=7 if chosen else 5, mew=0)
            weight = "bold" if chosen else "normal"
            axes.annotate(
                f"{mean:.3f}", (mean + sd, at), (8, 0), textcoords="offset points", va="center",
                weight=weight,
            )  # fmt: skip
        axes.set_yticks(range(len(shown)), [str(each["title"]) for each in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.margins(x=0.14)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{plots.pretty(str(choice['metric']))} on held-out rows")
        return plots.to_svg(figure, "choice", "How the candidates did in cross-validation")
