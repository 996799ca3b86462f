"""The report's pictures: matplotlib drawings as small inline SVG that follow the page's colours.

A figure is drawn with placeholder colours; in the SVG these become CSS variables, so that one
picture serves light, dark and print. :func:`standalone` puts fixed colours in instead, for a
picture that lives outside the page. First how figures become SVG, then the pictures of what every
run has; those of mends, annotators, uncertainty and rounds stand beside their words.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedmend.report.amounts import human_bytes, human_seconds, pretty, score_text
from fedmend.report.overview import Overview, PartyOverview
from fedmend.report.record import STAGE_WORDS, MethodRun, RunRecord, Stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.6
# placeholder -> (CSS variable, its light value). They must differ from any real colour drawn.
INK, FAINT, GRID, TORN = "#010203", "#010204", "#010205", "#010206"
SERIES = ("#020101", "#020102", "#020103", "#020104", "#020105", "#020106")
LABEL = "#020107"
COLOURS: dict[str, tuple[str, str]] = {
    INK: ("--ink", "#1d2530"),
    FAINT: ("--faint", "#5d6875"),
    GRID: ("--line", "#dfe3e8"),
    TORN: ("--torn", "#eef0f3"),
    SERIES[0]: ("--s1", "#2f6db5"),
    SERIES[1]: ("--s2", "#c2680f"),
    SERIES[2]: ("--s3", "#0f8573"),
    SERIES[3]: ("--s4", "#a8447f"),
    SERIES[4]: ("--s5", "#6b5fb3"),
    SERIES[5]: ("--s6", "#7a7a30"),
    LABEL: ("--label", "#e0ad12"),
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "fedmend",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": GRID,
    "axes.labelcolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": INK,
    "text.color": INK,
}
DASHED, DOTTED = (0, (4, 3)), (0, (2, 3))
Look = dict[str, Any]
LEFT_OF: Look = {"ha": "right", "va": "center"}
SHARES = ("auc", "accuracy", "f1")
# Shares that differ by less than this must not stand at the two ends of a picture.
NARROWEST_SHARES = 0.02
MAX_BANDS = 24
SHADES = 12
# Numbers must stay readable on the darkest cell, on white paper and on dark screens.
DARKEST = 0.68
LABEL_STRIP = 0.022


# ---------------------------------------------------------------- from a figure to SVG


def new_figure(
    height: float,
    columns: int = 1,
    rows: int = 1,
    heights: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """An empty figure, see-through, with its axes line by line."""
    # Figure and canvas without pyplot: no global state, no display, no warning in threads.
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_alpha(0)
    axes = list(figure.subplots(rows, columns, squeeze=False, height_ratios=heights).ravel())
    for each in axes:
        each.patch.set_alpha(0)
    return figure, axes


def styled() -> Any:
    """The page's style, as a context."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def to_svg(figure: Figure, name: str, title: str) -> str:
    """The figure as an SVG element: CSS colours, ids of its own, a title for screen readers."""
    text = _drawn(figure)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    # Two figures in one page must not share ids, or one would take the other's clip paths.
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    for size in ("width", "height"):
        text = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", text)
    # A hundredth of a point is finer than anybody sees.
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    # Fonts come from the page; sizes stay.
    text = re.sub(r"font: ((?:\w+ )?[\d.]+px) [^;\"]*", r"font-size: \1; ", text)
    text = re.sub(r"font-size: (bold|\d{3}) ", r"font-weight: \1; font-size: ", text)
    for placeholder, (variable, _) in COLOURS.items():
        text = text.replace(placeholder, f"var({variable})")
    # A page's policy admits no style but its own sheet; attributes are none.
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' style="([^"]*)"', _as_attributes, text)
    head, rest = text.split(">", 1)
    head += ' stroke-linejoin="round" stroke-linecap="butt"'
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    text = f'{head} role="img" aria-label="{label}"><title>{label}</title>{rest}'
    return re.sub(r"\n\s*", "\n", text).strip()


def _as_attributes(style: re.Match[str]) -> str:
    """``fill: none; stroke: red`` as ``fill="none" stroke="red"``; fonts come from the page."""
    declared = (each.partition(":") for each in style[1].split(";"))
    pairs = ((name.strip(), value.strip()) for name, _, value in declared)
    return "".join(f' {name}="{value}"' for name, value in pairs if name not in ("", "font-family"))


def _drawn(figure: Any) -> str:
    """As `figure.savefig` writes it, which draws twice: once to find out where things go."""
    buffer = io.StringIO()
    engine = figure.get_layout_engine()
    with warnings.catch_warnings():
        # Text stays text, drawn by the reader's fonts; matplotlib's own only measures it.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        if engine is not None:
            images, figure.dpi = figure.dpi, 72  # an SVG's own
            engine.execute(figure)
            figure.set_layout_engine("none")
            figure.dpi = images
        figure.canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def standalone(svg: str) -> str:
    """The same picture as a file of its own: fixed colours on white, a plain font."""
    for variable, light in COLOURS.values():
        svg = svg.replace(f"var({variable})", light)
    style = "<style>text{font-family:system-ui,Helvetica,Arial,sans-serif}</style>"
    head, rest = svg.split(">", 1)
    if "xmlns=" not in head:
        head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f'{head}>{style}<rect width="100%" height="100%" fill="#ffffff"/>{rest}\n'


# ---------------------------------------------------------------- parts of pictures


def method_series(number: int) -> int:
    """The series (1 to 6) of a method: parties take the first colours, methods the next ones."""
    return (number + 2) % len(SERIES) + 1


def method_colour(number: int) -> str:
    return SERIES[method_series(number) - 1]


def bare(axes: Axes) -> None:
    """No grid, no ticks, no frame."""
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def block(axes: Axes, left: float, top: float, width: float, height: float, **look: Any) -> None:
    """A filled rectangle, without a line unless `look` says otherwise."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top), width, height, **{"lw": 0, **look}))


def beside(axes: Axes, text: str, x: float, y: float, away: float = 8, **look: Any) -> None:
    """Words to the right of a point."""
    axes.annotate(text, (x, y), (away, 0), textcoords="offset points", va="center", **look)


def cells(axes: Axes, values: Sequence[Sequence[float | None]]) -> None:
    """A heat map: the stronger, the darker; negative values in the second colour.

    Cells of like darkness are one path, so that large tables stay small files.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    rows, columns = len(values), len(values[0]) if values else 0
    bare(axes)
    block(axes, 0, 0, columns, rows, facecolor=TORN)
    groups: dict[tuple[str, int], list[Path]] = {}
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            step = round(min(abs(value or 0.0), 1.0) * SHADES)
            if value and step:
                square = Path([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1), (x, y)], closed=True)
                groups.setdefault((SERIES[value < 0], step), []).append(square)
    for (colour, step), squares in sorted(groups.items()):
        path = Path.make_compound_path(*squares)
        axes.add_patch(PathPatch(path, facecolor=colour, alpha=DARKEST * step / SHADES, lw=0))
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)


def in_cells(
    axes: Axes,
    values: Sequence[Sequence[float | None]],
    written: Callable[[float], str],
    size: float,
) -> None:
    """A text in every cell of a heat map that has one."""
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            if value is not None and (text := written(value)):
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", size=size, color=INK)


def names_below(
    axes: Axes, names: Sequence[str], *, slanted: bool, at: float = 0.5, **look: Any
) -> None:
    """Names below columns, slanted where they would run into each other."""
    axes.set_xticks([at + x for x in range(len(names))], names, **look)
    axes.tick_params(axis="x", rotation=40 if slanted else 0, labelcolor=INK)
    for tick in axes.get_xticklabels():
        tick.set_horizontalalignment("right" if slanted else "center")
        tick.set_rotation_mode("anchor")


def short(text: str, most: int = 18) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def legend_below(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """One legend for all axes, each name once, at most so many abreast."""
    handles: dict[str, Any] = {}
    for each in axes:
        drawn, names = each.get_legend_handles_labels()
        handles = dict(zip(names, drawn, strict=True)) | handles
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower left",
        ncols=min(columns, len(handles)),
        frameon=False,
        fontsize=9,
    )


def _lines_of_names(axes: Axes, names: Sequence[str], about: str) -> None:
    """A line for each name, top to bottom."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(about)


# ---------------------------------------------------------------- methods


def curves(record: RunRecord) -> str | None:
    """Training loss, and the validation metric where there is one; a line for each run."""
    runs = [run for run in record.methods if len(run.history) > 1]
    keys = dict.fromkeys(key for run in runs for step in run.history for key in step)
    validation = [f"val_{record.metric}", *(key for key in keys if key.startswith("val_"))]
    panels = {"loss": "training loss"} if "loss" in keys else {}
    if found := next((key for key in validation if key in keys), None):
        panels[found] = f"validation {pretty(found.removeprefix('val_'))}"
    if not panels:
        return None
    titles = record.titles()
    with styled():
        across = max(1, min(len(titles), 104 // (max(map(len, titles)) + 8)))
        figure, axes = new_figure(2.7 + 0.19 * -(-len(titles) // across), len(panels))
        for each, (key, words) in zip(axes, panels.items(), strict=True):
            for run in runs:
                _curve(each, run, key, titles.index(run.title))
            each.set_title(words, loc="left", fontsize=10, color=INK)
            each.set_xlabel("round" if all("round" in run.history[0] for run in runs) else "epoch")
            whole_numbers(each)
        legend_below(figure, axes, across)
        return to_svg(figure, "curves", "Training and validation curves of every method")


def _curve(axes: Axes, run: MethodRun, key: str, number: int) -> None:
    points = [
        (step.get("epoch", at), step[key])
        for at, step in enumerate(run.history, 1)
        if step.get(key) is not None
    ]
    if not points:
        return
    first = run.title not in axes.get_legend_handles_labels()[1]
    axes.plot(
        *zip(*points, strict=True),
        color=method_colour(number),
        # Where there are more methods than colours, these come back dashed.
        ls="-" if number < len(SERIES) else (0, (4, 1.5)),
        lw=1.6 if first else 1.0,
        alpha=1.0 if first else 0.45,
        label=run.title if first else None,
    )


def comparison(record: RunRecord) -> str | None:
    """The main metric of every method: a dot for each seed, a bar at the mean."""
    summaries = [each for each in record.summaries() if record.metric in each.mean]
    if not summaries:
        return None
    with styled():
        figure, (axes,) = new_figure(0.85 + 0.5 * len(summaries))
        for number, each in enumerate(summaries):
            colour, values = method_colour(number), each.values[record.metric]
            mean, ends = each.mean[record.metric], [min(values), max(values)]
            if len(values) > 1:
                line: Look = {"lw": 7, "alpha": 0.22, "solid_capstyle": "round"}
                axes.plot(ends, [number] * 2, color=colour, **line)
                axes.plot(
                    values, [number] * len(values), "o", ms=4, mew=0, color=colour, alpha=0.65
                )
            axes.plot([mean], [number], "|", ms=18, mew=2.6, color=colour)
            beside(axes, score_text(mean), ends[1], number, 9, weight="bold")
        about = f"{pretty(record.metric)} on {record.evaluated_on}"
        _lines_of_names(axes, [each.title for each in summaries], about)
        axes.margins(x=0.12)
        _not_too_close(axes, record.metric)
        return to_svg(figure, "comparison", f"{pretty(record.metric)} of every method")


def _not_too_close(axes: Any, metric: str) -> None:
    low, high = axes.get_xlim()
    spare = NARROWEST_SHARES - (high - low)
    if metric in SHARES and spare > 0:
        axes.set_xlim(low - spare / 2, high + spare / 2)


def choice(found: Mapping[str, Any]) -> str | None:
    """The score of every candidate of ``method = "auto"``; those that are heard are dark.

    On the rows that partners know, where there are other kinds.
    """
    kind = next(iter(found["candidates"][0]["weights"]))
    shown = [each for each in found["candidates"] if kind in each["scores"]]
    if len(shown) < 2:
        return None
    with styled():
        figure, (axes,) = new_figure(0.8 + 0.36 * len(shown))
        for at, each in enumerate(shown):
            mean = float(each["scores"][kind]["score"])
            ends = each["scores"][kind]["interval"] or [mean, mean]
            chosen = each["weights"][kind] > 0
            colour = SERIES[0] if chosen else FAINT
            axes.plot(ends, [at, at], color=colour, lw=6, alpha=0.25)
            axes.plot([mean], [at], "o", color=colour, ms=7 if chosen else 5, mew=0)
            beside(axes, f"{mean:.3f}", ends[1], at, weight="bold" if chosen else "normal")
        about = f"{pretty(str(found['metric']))} on held-out rows"
        _lines_of_names(axes, [str(each["title"]) for each in shown], about)
        axes.margins(x=0.14)
        return to_svg(figure, "choice", "How the candidates did in cross-validation")


def worth(curve: Mapping[str, Any]) -> str | None:
    """What overlap is worth: points with their range, and the estimate for twice the rows."""
    points = [each for each in curve.get("points", []) if each.get("score") is not None]
    if len(points) < 2:
        return None
    twice, local_only = curve.get("twice"), curve.get("alone")
    with styled():
        figure, (axes,) = new_figure(2.7)
        _measured(axes, points, points, "o-", SERIES[0], 1.6)
        if twice and twice.get("score") is not None:
            _measured(axes, [points[-1], twice], [twice], "o--", SERIES[1], 1.2)
            at = (float(twice["rows"]), float(twice["score"]))
            axes.annotate("estimate", at, (0, 8), textcoords="offset points", ha="right", size=9)
        if local_only:
            score = float(local_only["score"])
            axes.axhline(score, color=FAINT, lw=1, ls=DOTTED)
            axes.text(
                float(points[0]["rows"]), score, "label party, local-only", va="bottom", size=9
            )
        axes.set_xlabel("rows known to all")
        axes.set_title(pretty(str(curve["metric"])), loc="left", fontsize=10)
        axes.margins(x=0.06, y=0.15)
        return to_svg(figure, "worth", "What more shared rows would be worth")


def _measured(
    axes: Axes,
    points: Sequence[Mapping[str, Any]],
    ranges: Sequence[Mapping[str, Any]],
    line: str,
    colour: str,
    width: float,
) -> None:
    rows, scores = ([float(each[key]) for each in points] for key in ("rows", "score"))
    axes.plot(rows, scores, line, color=colour, lw=width, ms=5)
    for each in ranges:
        if each.get("low") is not None and each.get("high") is not None:
            ends = [float(each["low"]), float(each["high"])]
            axes.plot([float(each["rows"])] * 2, ends, color=colour, lw=5, alpha=0.22)


# ---------------------------------------------------------------- stages


def stages(found: Sequence[Stage]) -> str | None:
    """Two bars for each stage: how long it took, and how much crossed."""
    shown = [each for each in found if each.seconds or each.bytes]
    if len(shown) < 2:
        return None
    places = range(len(shown))
    panels: list[tuple[str, str, list[float], Callable[[float], str]]] = [
        ("time", SERIES[0], [each.seconds for each in shown], human_seconds),
        ("crossed", SERIES[2], [each.bytes for each in shown], human_bytes),
    ]
    with styled():
        figure, axes = new_figure(0.7 + 0.36 * len(shown), 2)
        for each, (title, colour, values, written) in zip(axes, panels, strict=True):
            each.barh(places, values, color=colour, alpha=0.78, height=0.62)
            for at, value in zip(places, values, strict=True):
                beside(each, written(value), value, at, 5, size=9)
            each.set_title(title, loc="left", fontsize=10, color=INK)
            each.set_ylim(len(shown) - 0.4, -0.6)
            each.set_xlim(0, 1.32 * max(values, default=0.0) or 1.0)
            each.set_yticks(places, [""] * len(shown))
            each.grid(visible=False)
            each.tick_params(length=0, labelbottom=False)
            each.spines["bottom"].set_visible(False)
        axes[0].set_yticks(places, [STAGE_WORDS.get(each.name, each.name) for each in shown])
        return to_svg(figure, "stages", "How long each stage took, and how much crossed")


# ---------------------------------------------------------------- who has what


def overlap(found: Overview) -> str | None:
    """The torn table: columns by party from left to right, rows from top to bottom.

    Filled is there, empty is what nobody can look up. The aligned rows are whole; below them come
    rows that the annotators share, where these are known, and then every party's own, which are
    linked to nobody. Of a horizontal federation, see `stacked`.
    """
    if found.shape == "horizontal":
        return stacked(found)
    parties = [
        party
        for party in found.parties
        if not party.withheld and (party.n_columns or party.labelled)
    ]
    if not parties:
        return None
    bands = _bands(parties, found)
    with styled():
        figure, (axes,) = new_figure(1.0 + 2.9 * min(1.0, 0.4 + 0.2 * len(bands)))
        columns = list(zip(parties, SERIES * len(parties), *_places(parties), strict=False))
        top = 0.0
        for owners, rows, height in bands:
            for party, colour, left, width in columns:
                if party not in owners:
                    block(axes, left, top, width, height, fc=TORN, ec=GRID, lw=0.8, ls=DASHED)
                    continue
                block(axes, left, top, width, height, facecolor=colour, alpha=0.78)
                if party.labelled:
                    strip = LABEL_STRIP if party.n_columns else width
                    block(axes, left, top, strip, height, facecolor=LABEL)
            middle = top + height / 2
            words = _band_words(owners, parties, found.aligned)
            axes.text(-0.02, middle - 0.028, f"{rows:,} rows", **LEFT_OF)
            axes.text(-0.02, middle + 0.028, words, **LEFT_OF, color=FAINT, size=9)
            top += height + 0.025
        for party, colour, left, width in columns:
            centre, words = left + width / 2, "labels"
            look: Look = {"weight": "normal", "size": 9}
            if party.n_columns:
                noun = "column" if party.n_columns == 1 else "columns"
                words = f"{party.n_columns} {noun}{' + label' * party.labelled}"
                look = {"weight": "bold", "size": 10}
            axes.text(centre, -0.085, party.name, ha="center", color=colour, **look)
            axes.text(centre, -0.028, words, ha="center", color=FAINT, size=9)
        axes.set_xlim(-0.3 if len(parties) < 3 else -0.38, 1.0)
        axes.set_ylim(max(top, 0.1), -0.14)
        axes.axis("off")
        return to_svg(figure, "overlap", "Which rows have which columns, and what is missing")


def stacked(found: Overview) -> str:
    """The parties' rows one below the other, all with the same columns; yellow where labelled."""
    parties = [party for party in found.parties if not party.withheld and party.rows]
    total = sum(party.rows for party in parties) or 1
    shown = parties[:MAX_BANDS]
    with styled():
        figure, (axes,) = new_figure(0.7 + 0.3 * max(2, len(shown)))
        top = 0.0
        for party, colour in zip(shown, SERIES * len(shown), strict=False):
            height = max(0.5, 4 * party.rows / total)
            block(axes, 0.0, top, 1.0, height, facecolor=colour, alpha=0.78)
            if party.labelled_rows:
                labelled = height * party.labelled_rows / party.rows
                block(axes, 0.0, top, LABEL_STRIP, labelled, facecolor=LABEL)
            words = f"{party.name}  {party.rows:,} rows, {party.labelled_rows:,} labelled"
            axes.text(-0.02, top + height / 2, words, **LEFT_OF, size=9)
            top += height + 0.1
        if len(parties) > len(shown):
            words = f"and {len(parties) - len(shown)} more"
            axes.text(-0.02, top + 0.2, words, **LEFT_OF, color=FAINT, size=9)
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
    aligned, shared = found.aligned or 0, found.labellers_share
    bands = [(list(parties), aligned)] if aligned else []
    linked = dict.fromkeys((party.name for party in parties), aligned)
    if shared is not None and shared > aligned:
        annotators = [party for party in parties if party.labelled]
        bands.append((annotators, shared - aligned))
        linked |= dict.fromkeys((party.name for party in annotators), shared)
    own = ((party, party.rows - linked[party.name]) for party in parties)
    bands += [([party], rows) for party, rows in own if rows > 0]
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
    name = owners[0].name
    return f"only at {name}" if len(parties) == 2 else f"{name}'s, not known to all"


def _places(parties: Sequence[PartyOverview]) -> tuple[list[float], list[float]]:
    """Left edges and widths, by how many columns a party has."""
    gap = 0.015
    total = sum(party.n_columns for party in parties) or 1
    raw = [max(0.12, party.n_columns / total) if party.n_columns else 0.13 for party in parties]
    scale = (1.0 - gap * (len(raw) - 1)) / sum(raw)
    widths = [width * scale for width in raw]
    return [sum(widths[:at]) + gap * at for at in range(len(widths))], widths
