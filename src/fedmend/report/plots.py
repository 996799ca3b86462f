"""The report's pictures: matplotlib drawings as small inline SVG that follow the page's colours.

A figure is drawn with stand-in colours; in the SVG these become CSS variables, so that one
picture serves light, dark and print. :func:`standalone` puts fixed colours in instead, for a
picture that lives outside the page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fedmend.report.amounts import score_text
from fedmend.report.record import MethodRun, RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["comparison", "curves", "new_figure", "standalone", "styled", "to_svg"]

# stand-in -> (CSS variable, its light value). Stand-ins must differ from any real colour drawn.
INK, FAINT, GRID, TORN = "#010203", "#010204", "#010205", "#010206"
SERIES = ("#020101", "#020102", "#020103", "#020104", "#020105", "#020106")
LABEL = "#020107"
SHARES = ("auc", "accuracy", "f1")
LEAST_SPAN = 0.02
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


def new_figure(
    width: float,
    height: float,
    columns: int = 1,
    rows: int = 1,
    heights: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """An empty figure, see-through, with its axes line by line."""
    # Figure and canvas without pyplot: no global state, no display, no warning in threads.
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
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
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    # Two figures in one page must not share ids, or one would take the other's clip paths.
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text)
    # A hundredth of a point is finer than anybody sees.
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    # Fonts come from the page; sizes stay.
    text = re.sub(r"font: ((?:\w+ )?[\d.]+px) [^;\"]*", r"font-size: \1; ", text)
    text = text.replace("font-size: bold ", "font-weight: bold; font-size: ")
    text = re.sub(r"font-size: (\d{3}) ", r"font-weight: \1; font-size: ", text)
    for stand_in, (variable, _) in COLOURS.items():
        text = text.replace(stand_in, f"var({variable})")
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
    for _, (variable, light) in COLOURS.items():
        svg = svg.replace(f"var({variable})", light)
    style = "<style>text{font-family:system-ui,Helvetica,Arial,sans-serif}</style>"
    head, rest = svg.split(">", 1)
    if "xmlns=" not in head:
        head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f'{head}>{style}<rect width="100%" height="100%" fill="#ffffff"/>{rest}\n'


def method_series(number: int) -> int:
    """The series (1 to 6) of a method: parties take the first colours, methods the next ones."""
    return (number + 2) % len(SERIES) + 1


def _method_colour(number: int) -> str:
    return SERIES[method_series(number) - 1]


# ---------------------------------------------------------------- curves


def curves(record: RunRecord) -> str | None:
    """Training loss, and the validation metric where there is one; a line for each run."""
    runs = [run for run in record.methods if len(run.history) > 1]
    panels = (
        [("loss", "training loss")] if any("loss" in h for r in runs for h in r.history) else []
    )
    validation = _validation_key(runs, record.metric)
    if validation is not None:
        panels.append((validation, f"validation {pretty(validation.removeprefix('val_'))}"))
    if not panels:
        return None
    from matplotlib.ticker import MaxNLocator

    titles = list(dict.fromkeys(run.title for run in record.methods))
    with styled():
        longest = max(len(title) for title in titles)
        across = max(1, min(len(titles), 104 // (longest + 8)))
        figure, axes = new_figure(7.6, 2.7 + 0.19 * -(-len(titles) // across), len(panels))
        for each, (key, words) in zip(axes, panels, strict=True):
            for run in runs:
                _line(each, run, key, titles)
            each.set_title(words, loc="left", fontsize=10, color=INK)
            each.set_xlabel("round" if all("round" in r.history[0] for r in runs) else "epoch")
            each.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, names = axes[0].get_legend_handles_labels()
        if not handles:
            handles, names = axes[-1].get_legend_handles_labels()
        figure.legend(
            handles, names, loc="outside lower left", ncols=across, frameon=False, fontsize=9
        )
        return to_svg(figure, "curves", "Training and validation curves of every method")


def _validation_key(runs: Iterable[MethodRun], metric: str) -> str | None:
    keys = dict.fromkeys(key for run in runs for step in run.history for key in step)
    if f"val_{metric}" in keys:
        return f"val_{metric}"
    return next((key for key in keys if key.startswith("val_")), None)


def _line(axes: Axes, run: MethodRun, key: str, titles: list[str]) -> None:
    points = [
        (step.get("epoch", number), step[key])
        for number, step in enumerate(run.history, 1)
        if step.get(key) is not None
    ]
    if not points:
        return
    first = run.title not in axes.get_legend_handles_labels()[1]
    number = titles.index(run.title)
    axes.plot(
        *zip(*points, strict=True),
        color=_method_colour(number),
        # Where there are more methods than colours, these come back dashed.
        ls="-" if number < len(SERIES) else (0, (4, 1.5)),
        lw=1.6 if first else 1.0,
        alpha=1.0 if first else 0.45,
        label=run.title if first else None,
    )


# ---------------------------------------------------------------- comparison


def comparison(record: RunRecord) -> str | None:
    """The main metric of every method: a dot for each seed, a bar at the mean."""
    summaries = [each for each in record.summaries() if record.metric in each.mean]
    if not summaries:
        return None
    with styled():
        figure, (axes,) = new_figure(7.6, 0.85 + 0.5 * len(summaries))
        for number, each in enumerate(summaries):
            values = each.values[record.metric]
            mean = each.mean[record.metric]
            if len(values) > 1:
                axes.plot(
                    [min(values), max(values)],
                    [number, number],
                    color=_method_colour(number),
                    lw=7,
                    alpha=0.22,
                    solid_capstyle="round",
                )
                axes.plot(
                    values,
                    [number] * len(values),
                    "o",
                    ms=4,
                    mew=0,
                    color=_method_colour(number),
                    alpha=0.65,
                )
            axes.plot([mean], [number], "|", ms=18, mew=2.6, color=_method_colour(number))
            axes.annotate(
                score_text(mean),
                (max(values), number),
                (9, 0),
                textcoords="offset points",
                va="center",
                weight="bold",
            )
        axes.set_yticks(range(len(summaries)), [each.title for each in summaries])
        axes.set_ylim(len(summaries) - 0.45, -0.55)
        axes.margins(x=0.12)
        _not_too_close(axes, record.metric)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"{pretty(record.metric)} on {record.evaluated_on}")
        axes.spines["left"].set_visible(False)
        return to_svg(figure, "comparison", f"{pretty(record.metric)} of every method")


def _not_too_close(axes: Any, metric: str) -> None:
    """Shares that differ in the third place must not stand at the two ends of a picture."""
    low, high = axes.get_xlim()
    spare = LEAST_SPAN - (high - low)
    if metric in SHARES and spare > 0:
        axes.set_xlim(low - spare / 2, high + spare / 2)


METRIC_WORDS = {
    "auc": "AUC: of two rows of different classes, how often the one is put before the other as it "
    "should be; 0.5 is chance, 1 never errs.",
    "accuracy": "Accuracy: the share of rows whose class is right.",
    "f1": "F1: how well each class is found without others in it, all classes alike; 1 is best.",
    "log_loss": "Log loss: how surprising the true class is to the method; less is better, 0 best.",
    "rmse": "RMSE: how far predictions are off, in the label's own units, far ones counting more.",
    "mae": "MAE: how far predictions are off on average, in the label's own units.",
    "r2": "R²: the share of the label's ups and downs that is foreseen; 1 is all, 0 none.",
}
"""What the metrics say, for people who have not met them."""


def pretty(metric: str) -> str:
    """A metric's name as people write it."""
    known = {
        "auc": "AUC",
        "accuracy": "accuracy",
        "f1": "F1",
        "rmse": "RMSE",
        "mae": "MAE",
        "r2": "R²",
        "ece": "ECE",
        "log_loss": "log loss",
    }
    return known.get(metric, metric.replace("_", " "))
