"""The picture of what is torn: who has which columns of which rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedmend.report.overview import Overview, PartyOverview
from fedmend.report.plots import FAINT, GRID, LABEL, SERIES, TORN, new_figure, styled, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["overlap", "stacked"]

MOST_BANDS = 24
LABEL_STRIP = 0.022


def overlap(found: Overview) -> str:
    """The torn table: columns by party from left to right, rows from top to bottom.

    Filled is there, empty is what nobody can look up. The aligned rows are whole; below them come
    rows that the labellers share, where these are known, and then every party's own, which are
    linked to nobody. Of a horizontal federation, see `stacked`.
    """
    if found.shape == "horizontal":
        return stacked(found)
    parties = [
        party
        for party in found.parties
        if not party.withheld and (party.n_columns or party.labelled)
    ]
    bands = _bands(parties, found)
    with styled():
        figure, (axes,) = new_figure(7.6, 1.0 + 2.9 * min(1.0, 0.4 + 0.2 * len(bands)))
        lefts, widths = _columns(parties)
        top = 0.0
        for owners, rows, height in bands:
            for number, party in enumerate(parties):
                there = party in owners
                _block(axes, lefts[number], top, widths[number], height, there, number)
                if party.labelled and there:
                    strip = LABEL_STRIP if party.n_columns else widths[number]
                    _label_strip(axes, lefts[number], top, height, strip)
            words = _band_words(owners, parties, found.aligned)
            axes.text(-0.02, top + height / 2 - 0.028, f"{rows:,} rows", ha="right", va="center")
            axes.text(
                -0.02, top + height / 2 + 0.028, words, ha="right", va="center", color=FAINT, size=9
            )
            top += height + 0.025
        for number, party in enumerate(parties):
            centre = lefts[number] + widths[number] / 2
            narrow = not party.n_columns
            size, weight = (9, "normal") if narrow else (10, "bold")
            colour = SERIES[number % len(SERIES)]
            axes.text(
                centre, -0.085, party.name, ha="center", weight=weight, size=size, color=colour
            )
            noun = "column" if party.n_columns == 1 else "columns"
            label = " + label" if party.labelled else ""
            words = f"{party.n_columns} {noun}{label}" if party.n_columns else "labels"
            axes.text(centre, -0.028, words, ha="center", color=FAINT, size=9)
        axes.set_xlim(-0.3 if len(parties) < 3 else -0.38, 1.0)
        axes.set_ylim(max(top, 0.1), -0.14)
        axes.axis("off")
        return to_svg(figure, "overlap", "Which rows have which columns, and what is missing")


def stacked(found: Overview) -> str:
    """The parties' rows one below the other, all with the same columns; yellow where labelled."""
    parties = [party for party in found.parties if not party.withheld and party.rows]
    total = sum(party.rows for party in parties) or 1
    shown = parties[:MOST_BANDS]
    with styled():
        figure, (axes,) = new_figure(7.6, 0.7 + 0.3 * max(2, len(shown)))
        top = 0.0
        for number, party in enumerate(shown):
            height = max(0.5, 4 * party.rows / total)
            _block(axes, 0.0, top, 1.0, height, True, number)
            labelled = height * party.labelled_rows / party.rows
            if labelled:
                _label_strip(axes, 0.0, top, labelled)
            words = f"{party.name}  {party.rows:,} rows, {party.labelled_rows:,} labelled"
            axes.text(-0.02, top + height / 2, words, ha="right", va="center", size=9)
            top += height + 0.1
        if len(parties) > len(shown):
            words = f"and {len(parties) - len(shown)} more"
            axes.text(-0.02, top + 0.2, words, ha="right", va="center", color=FAINT, size=9)
            top += 0.5
        columns = max((party.n_columns for party in parties), default=0)
        axes.text(0.5, -0.15, f"the same {columns} columns + label", ha="center", size=9)
        axes.set_xlim(-0.75, 1.0)
        axes.set_ylim(max(top, 0.5), -0.6)
        axes.axis("off")
        return to_svg(figure, "overlap", "Which party has how many rows, and how many labelled")


def _bands(
    parties: Sequence[PartyOverview], found: Overview
) -> list[tuple[list[PartyOverview], int, float]]:
    """(who knows them, rows, height): the shared rows first, then each party's own."""
    everybody, aligned = list(parties), found.aligned or 0
    bands = [(everybody, aligned)] if aligned else []
    linked = dict.fromkeys((party.name for party in parties), aligned)
    if found.labellers_share is not None and found.labellers_share > aligned:
        labellers = [party for party in parties if party.labelled]
        bands.append((labellers, found.labellers_share - aligned))
        linked |= dict.fromkeys((party.name for party in labellers), found.labellers_share)
    bands += [
        ([party], party.rows - linked[party.name])
        for party in parties
        if party.rows > linked[party.name]
    ]
    total = sum(rows for _, rows in bands) or 1
    # Heights follow the rows, but a thin band must still hold its two lines of text.
    return [(owners, rows, max(0.14, 0.85 * rows / total)) for owners, rows in bands]


def _band_words(
    owners: Sequence[PartyOverview], parties: Sequence[PartyOverview], aligned: int | None
) -> str:
    if aligned is None:
        return f"at {owners[0].name}"
    if len(owners) == len(parties):
        return "known to all"
    if len(owners) > 1:
        return "known to those who label"
    return (
        f"only at {owners[0].name}"
        if len(parties) == 2
        else f"{owners[0].name}'s, not known to all"
    )


def _columns(parties: Sequence[PartyOverview]) -> tuple[list[float], list[float]]:
    gap = 0.015
    total = sum(party.n_columns for party in parties) or 1
    raw = [max(0.12, party.n_columns / total) if party.n_columns else 0.13 for party in parties]
    scale = (1.0 - gap * (len(raw) - 1)) / sum(raw)
    widths = [width * scale for width in raw]
    lefts = [sum(widths[:number]) + gap * number for number in range(len(widths))]
    return lefts, widths


def _block(
    axes: Axes, left: float, top: float, width: float, height: float, there: bool, number: int
) -> None:
    from matplotlib.patches import Rectangle

    if there:
        patch = Rectangle(
            (left, top), width, height, facecolor=SERIES[number % len(SERIES)], alpha=0.78, lw=0
        )
    else:
        patch = Rectangle(
            (left, top), width, height, facecolor=TORN, edgecolor=GRID, lw=0.8, ls=(0, (4, 3))
        )
    axes.add_patch(patch)


def _label_strip(
    axes: Axes, left: float, top: float, height: float, width: float = LABEL_STRIP
) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top), width, height, facecolor=LABEL, lw=0))
