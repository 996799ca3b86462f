"""Pictures of tables: correlations, where cells come from, and how well each party labels.

Cells of like darkness are one path, so that large tables stay small files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedmend.report.labelling import Labelling
from fedmend.report.mending import MendedColumn, MendedPair
from fedmend.report.plots import (
    FAINT,
    INK,
    LABEL,
    SERIES,
    TORN,
    new_figure,
    styled,
    to_svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["correlations", "expertise", "provenance"]

MOST_COLUMNS = 24
MOST_ROWS = 24
MOST_PARTIES = 12
ACROSS = 3
POSITIVE, NEGATIVE = SERIES[0], SERIES[1]
# origin -> (colour, opacity). What is known is dark, what is made up is hollow.
ORIGIN_LOOKS = {
    "observed": (SERIES[0], 0.78),
    "predicted": (SERIES[2], 0.78),
    "filled": (SERIES[2], 0.36),
    "generated": (LABEL, 0.45),
}
_STEPS = 12
# Numbers must stay readable on the darkest cell, on white paper and on dark screens.
DARKEST = 0.68


def _cells(axes: Axes, values: Sequence[Sequence[float | None]]) -> None:
    """A heat map: the stronger, the darker; negative values in the second colour."""
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path

    rows, columns = len(values), len(values[0]) if values else 0
    axes.add_patch(Rectangle((0, 0), columns, rows, facecolor=TORN, lw=0))
    groups: dict[tuple[str, int], list[Path]] = {}
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            step = 0 if value is None else round(min(abs(value), 1.0) * _STEPS)
            if value is None or step == 0:
                continue
            square = Path([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1), (x, y)], closed=True)
            groups.setdefault((POSITIVE if value > 0 else NEGATIVE, step), []).append(square)
    for (colour, step), squares in sorted(groups.items()):
        path = Path.make_compound_path(*squares)
        axes.add_patch(PathPatch(path, facecolor=colour, alpha=DARKEST * step / _STEPS, lw=0))
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)


def _bare(axes: Axes) -> None:
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _slanted(axes: Axes, *, long: bool) -> None:
    """Names below a table, slanted where they would run into each other."""
    axes.tick_params(axis="x", rotation=40 if long else 0, labelcolor=INK)
    for tick in axes.get_xticklabels():
        tick.set_horizontalalignment("right" if long else "center")
        tick.set_rotation_mode("anchor")


def _short(text: str, most: int = 18) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# ---------------------------------------------------------------- correlations


def correlations(pair: MendedPair, number: int = 0) -> str:
    """Every column of A against every column of B, the strongest column of B at the left."""
    names, rows = pair.of_b[:MOST_COLUMNS], _strongest_rows(pair)
    values = [[pair.rho[row][column] for column in range(len(names))] for row in rows]
    strong = sum(
        1
        for column in pair.columns[: len(names)]
        if column.strength is not None and column.strength > pair.threshold
    )
    with styled():
        figure, (above, axes) = new_figure(
            7.6, 2.5 + 0.24 * len(rows), rows=2, heights=(1.0, 0.35 + 0.24 * len(rows))
        )
        _strengths(above, pair, len(names), strong)
        _cells(axes, values)
        if len(names) * len(rows) <= 120:
            _numbers(axes, values)
        if 0 < strong < len(names):
            axes.plot([strong, strong], [-0.1, len(rows) + 0.25], color=INK, lw=1.4, clip_on=False)
        _bare(axes)
        axes.set_xticks([x + 0.5 for x in range(len(names))], [_short(name) for name in names])
        _slanted(axes, long=max(map(len, names)) * len(names) > 72)
        axes.set_yticks(
            [y + 0.5 for y in range(len(rows))], [_short(pair.of_a[row]) for row in rows]
        )
        title = f"Correlation of {pair.rows_of}'s columns with {pair.columns_of}'s"
        return to_svg(figure, f"correlations{number}", title)


def _strengths(axes: Axes, pair: MendedPair, shown: int, strong: int) -> None:
    """Above the table: how strong each column of B is, and the threshold."""
    values = [abs(each.strength or 0.0) for each in pair.columns[:shown]]
    for x, value in enumerate(values):
        colour, alpha = (SERIES[0], 0.78) if x < strong else (FAINT, 0.35)
        axes.bar(x + 0.5, value, 0.82, color=colour, alpha=alpha, lw=0)
    axes.axhline(pair.threshold, color=INK, lw=1.2, ls=(0, (4, 3)))
    words = f"threshold {pair.threshold:.2f}"
    axes.text(shown, pair.threshold, f" {words}", va="center", size=9, clip_on=False)
    _bare(axes)
    axes.set_xlim(0, shown)
    axes.set_ylim(0, max([*values, pair.threshold]) * 1.15 or 1.0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylabel("strongest\ncorrelation", rotation=0, ha="right", va="center", fontsize=9)


def _strongest_rows(pair: MendedPair) -> list[int]:
    """A's columns in their order; of very many, those that say most."""
    everything = list(range(len(pair.of_a)))
    if len(everything) <= MOST_ROWS:
        return everything
    says = [max((abs(value) for value in line if value is not None), default=0.0)
            for line in pair.rho]  # fmt: skip
    best = sorted(everything, key=lambda row: -says[row])[:MOST_ROWS]
    return sorted(best)


def _numbers(axes: Axes, values: Sequence[Sequence[float | None]]) -> None:
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            if value is not None:
                text = f"{value:.2f}".replace("-", "−").replace("0.", ".", 1)
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", size=8, color=INK)


# ---------------------------------------------------------------- provenance


def provenance(pair: MendedPair, number: int = 0) -> str:
    """The completing party's table: seen rows on top, completed ones below, column by column."""
    from matplotlib.patches import Patch

    columns = pair.columns[:MOST_COLUMNS]
    top, below = _heights(pair)
    with styled():
        figure, (axes,) = new_figure(7.6, 3.6)
        for x, column in enumerate(columns):
            _stack(axes, x, column, top, below)
        axes.set_xlim(-0.02, len(columns))
        axes.set_ylim(top + below + 0.1, -0.02)
        _bare(axes)
        axes.set_xticks(
            [x + 0.47 for x in range(len(columns))], [_short(each.name) for each in columns]
        )
        _slanted(axes, long=max(len(each.name) for each in columns) * len(columns) > 72)
        axes.set_yticks(
            [top / 2, top + 0.03 + below / 2],
            [f"{pair.observed:,} rows\nof {pair.columns_of}",
             f"{pair.rows:,} rows\nadded from {pair.rows_of}"],
        )  # fmt: skip
        used = [
            origin
            for origin in ORIGIN_LOOKS
            if origin == "observed" or any(getattr(each, origin) for each in columns)
        ]
        figure.legend(
            [Patch(facecolor=ORIGIN_LOOKS[name][0], alpha=ORIGIN_LOOKS[name][1]) for name in used],
            used,
            loc="outside upper left",
            ncols=len(used),
            frameon=False,
            fontsize=9,
        )
        title = f"Where the cells of {pair.columns_of}'s completed table come from"
        return to_svg(figure, f"provenance{number}", title)


def _heights(pair: MendedPair) -> tuple[float, float]:
    total = max(pair.observed + pair.rows, 1)
    top = min(max(pair.observed / total, 0.18), 0.6)
    return top, 1.0 - top


def _stack(axes: Axes, x: int, column: MendedColumn, top: float, below: float) -> None:
    from matplotlib.patches import Rectangle

    colour, alpha = ORIGIN_LOOKS["observed"]
    axes.add_patch(Rectangle((x, 0), 0.94, top, facecolor=colour, alpha=alpha, lw=0))
    at = top + 0.03
    for origin in ("predicted", "filled", "generated"):
        height = below * column.share(origin)
        if height:
            colour, alpha = ORIGIN_LOOKS[origin]
            axes.add_patch(Rectangle((x, at), 0.94, height, facecolor=colour, alpha=alpha, lw=0))
        at += height
    if column.confidence is not None and column.share("generated") < 1:
        text = f"{100 * column.confidence:.0f} %"
        axes.text(x + 0.47, top + 0.03 + below / 2, text, ha="center", va="center", size=8.5)


# ---------------------------------------------------------------- labellers


def expertise(found: Labelling, number: int = 0) -> str | None:
    """For each labeller: of the rows of a true class (down), what it says (across)."""
    shown = [party for party in found.parties if party in found.expertise][:MOST_PARTIES]
    if not shown:
        return None
    lines = math.ceil(len(shown) / ACROSS)
    across = min(len(shown), ACROSS)
    small = len(found.classes) <= 6
    with styled():
        height = 0.5 + 7.0 / max(across, 3) * lines
        figure, axes = new_figure(7.6, height, across, lines)
        for each, party in zip(axes, shown, strict=False):
            matrix = found.expertise[party]
            _cells(each, matrix)
            _bare(each)
            each.set_aspect("equal")
            if small:
                _shares(each, matrix)
            right = found.right(party)
            believed = "" if right is None else f", {100 * right:.0f} %"
            each.set_title(f"{_short(party, 14)}{believed}", fontsize=10, color=INK, loc="left")
            ticks = range(len(found.classes)) if len(found.classes) <= 12 else []
            names = [_short(found.classes[at], 11 if len(found.classes) < 4 else 8) for at in ticks]
            each.set_xticks([at + 0.5 for at in ticks], names, fontsize=8)
            _slanted(each, long=sum(map(len, names)) > 24)
            each.set_yticks([at + 0.5 for at in ticks], names, fontsize=8)
        for each in axes[len(shown) :]:
            each.axis("off")
        figure.supxlabel("what the party says", fontsize=9, color=FAINT)
        figure.supylabel("what is believed to be true", fontsize=9, color=FAINT)
        return to_svg(figure, f"expertise{number}", "How well each party labels")


def _shares(axes: Axes, matrix: Sequence[Sequence[float]]) -> None:
    for y, line in enumerate(matrix):
        for x, value in enumerate(line):
            if value >= 0.005:
                text = f"{100 * value:.0f}"
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", size=8.5, color=INK)
