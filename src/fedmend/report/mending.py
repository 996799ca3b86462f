"""What was mended, as counts and statistics: the coordinator's knowledge of a completion.

Which person got which value stays at the party that completed it. What is reported here are
correlations between columns, cells by origin, and mean confidences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fedmend._json import plain
from fedmend.report import plots
from fedmend.report.amounts import counted, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedmend.methods.completion.fedpsg_pum import Completed, FedPSGPUM

ORIGIN_WORDS = {
    "observed": "seen at the party itself",
    "predicted": "predicted, and sure enough for the models to learn from",
    "filled": "predicted by the last model, for the rows that were left",
    "generated": "drawn by a generator, so that the column looks as it should",
}
ORIGINS = ("predicted", "filled", "generated")
# origin -> (colour, opacity). What is known is dark, what is made up is hollow.
ORIGIN_LOOKS: dict[str, dict[str, Any]] = {
    "observed": {"facecolor": plots.SERIES[0], "alpha": 0.78},
    "predicted": {"facecolor": plots.SERIES[2], "alpha": 0.78},
    "filled": {"facecolor": plots.SERIES[2], "alpha": 0.36},
    "generated": {"facecolor": plots.LABEL, "alpha": 0.45},
}
RULES = {
    "significance": "what chance alone would reach in 5 % of cases",
    "cv": "found by cross-validation",
}
"""How the threshold of a completion was chosen, by its `tau`."""
MAX_NAMED = 12
MAX_COLUMNS_DRAWN = 24
MAX_ROWS_DRAWN = 24
MAX_NUMBERED_CELLS = 120
# From so many letters below a table on, names are slanted.
LETTERS_ABREAST = 72


@dataclass(frozen=True)
class MendedColumn:
    """One column of B for A's rows.

    skill: the share of the error that predictions spare on rows held out; None if not measured.
    """

    name: str
    kind: str
    group: str
    strength: float | None
    predicted: int
    filled: int
    generated: int
    confidence: float | None
    why: str = ""
    skill: float | None = None

    @property
    def cells(self) -> int:
        return self.predicted + self.filled + self.generated

    def share(self, origin: str) -> float:
        return float(getattr(self, origin)) / self.cells if self.cells else 0.0


@dataclass(frozen=True)
class MendedPair:
    """B's columns for rows of A that B lacks.

    min_skill: columns with less are not trained on; None: all are. left_out: A's columns that the
    models did not see, because they are elsewhere on the rows that B lacks. changed: others that
    are distributed otherwise there.
    """

    rows_of: str
    columns_of: str
    rows: int
    observed: int
    threshold: float
    rule: str
    of_a: list[str]
    of_b: list[str]
    rho: list[list[float | None]]
    columns: list[MendedColumn]
    min_skill: float | None = None
    left_out: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, done: Completed, rule: str, observed: int, min_skill: float | None = None
    ) -> MendedPair:
        order = done.correlation.order
        columns = [_column(done, name) for name in order]
        return cls(
            rows_of=done.a,
            columns_of=done.b,
            rows=max((column.cells for column in columns), default=0),
            observed=observed,
            threshold=float(done.tau),
            rule=rule,
            of_a=[str(name) for name in done.correlation.matrix.index],
            of_b=list(order),
            rho=plain(done.correlation.matrix[order].to_numpy()),
            columns=columns,
            min_skill=min_skill,
            left_out=list(done.outcome.left_out),
            changed=list(done.outcome.changed),
        )

    def trained_on(self, column: MendedColumn) -> bool:
        """Whether models learn from this column's completed cells."""
        return self.min_skill is None or (column.skill or 0.0) >= self.min_skill

    def group(self, name: str) -> list[MendedColumn]:
        return [column for column in self.columns if column.group == name]

    def sentences(self) -> list[str]:
        """What happened to the columns, group by group."""
        a, b = self.rows_of, self.columns_of
        strong, weak, failed = (self.group(name) for name in ("strong", "weak", "failed"))
        above = f"above the threshold of {self.threshold:.2f} ({self.rule})"
        lines = [
            f"{self.rows:,} of {a}'s rows that {b} lacks were given {b}'s "
            f"{counted(len(self.columns), 'column')}."
        ]
        if strong:
            are, them, they = _forms(strong)
            lines.append(
                f"{_names(strong)} {are} strong: {a}'s columns speak of {them} {above}, so {they} "
                f"{are} predicted."
            )
        else:
            lines.append(f"No column of {b} is {above}.")
        if self.left_out:
            _, them, _ = _forms(self.left_out)
            lines.append(
                f"These rows are unlike those that both know: {', '.join(self.left_out)} of {a} "
                f"{'lies' if len(self.left_out) == 1 else 'lie'} beyond what was seen there. "
                f"Nothing was learnt from {them}, and of the predictions only what is clear was "
                "kept. Trust them less."
            )
        if self.changed:
            lines.append(
                f"{', '.join(self.changed)} of {a} changed there too, so what "
                f"{', '.join(self.left_out)} explained before was not learnt in "
                f"{'its' if len(self.changed) == 1 else 'their'} place."
            )
        if weak:
            are, them, _ = _forms(weak)
            lines.append(
                f"{_names(weak)} {are} weak: {a} knows next to nothing about {them}. The values "
                "are drawn by a generator: plausible, and no knowledge about a person."
            )
        lines += [
            f"{column.name} failed ({column.why}) and was generated instead." for column in failed
        ]
        unused = [column for column in self.columns if not self.trained_on(column)]
        if unused:
            lines.append(
                f"The completed cells of {_names(unused)} are not trained on: they say too little "
                f"about a person (skill below {self.min_skill:.2f})."
            )
        return lines


def _forms(things: Sequence[Any]) -> tuple[str, str, str]:
    return ("is", "it", "it") if len(things) == 1 else ("are", "them", "they")


def _names(columns: Sequence[MendedColumn]) -> str:
    return listed([column.name for column in columns], MAX_NAMED)


@dataclass(frozen=True)
class Mending:
    """A completion as the report shows it."""

    method: str
    pairs: list[MendedPair]
    aligned_before: int
    aligned_after: int
    seconds: float = 0.0
    crossings: int = 0
    bytes: int = 0
    exported: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, method: str, model: FedPSGPUM, *, rows: Mapping[str, int], **costs: Any) -> Mending:
        """From a fitted completion; ``rows``: how many rows each party has of its own."""
        params = model.get_params()
        rule, least = RULES.get(params.get("tau", ""), "as set"), params.get("min_skill")
        pairs = [MendedPair.of(done, rule, rows[b], least) for (_, b), done in model.pairs_.items()]
        before = model.fed_.alignment.aligned
        return cls(method, pairs, before, model.federation.alignment.aligned, **costs)

    @property
    def words(self) -> str:
        return (
            f"The rows known to all grew from {self.aligned_before:,} to {self.aligned_after:,}. "
            f"It took {self.seconds:.0f} seconds."
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return dict(plain(asdict(self)))

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Mending:
        """The mending of a JSON form."""
        pairs = [
            MendedPair(**{**pair, "columns": [MendedColumn(**each) for each in pair["columns"]]})
            for pair in stored["pairs"]
        ]
        return cls(**{**stored, "pairs": pairs})


def _column(done: Completed, name: str) -> MendedColumn:
    cells = done.cells[name]
    failed = name in done.outcome.failed
    group = "failed" if failed else "strong" if name in done.strong else "weak"
    strength, confidence = float(done.correlation.strengths[name]), float(cells["confidence"])
    skill = float(cells["skill"])
    return MendedColumn(
        name=name,
        kind=done.kinds[name],
        group=group,
        strength=strength if math.isfinite(strength) else None,
        predicted=int(cells["predicted"]),
        filled=int(cells["filled"]),
        generated=int(cells["generated"]),
        confidence=confidence if math.isfinite(confidence) else None,
        why=done.outcome.failed.get(name, ""),
        skill=skill if group == "strong" and math.isfinite(skill) else None,
    )


# ---------------------------------------------------------------- pictures


def correlations(pair: MendedPair, number: int = 0) -> str:
    """Every column of A against every column of B, the strongest column of B at the left."""
    names, rows = pair.of_b[:MAX_COLUMNS_DRAWN], _strongest_rows(pair)
    values = [pair.rho[row][: len(names)] for row in rows]
    strengths = [column.strength or 0.0 for column in pair.columns[: len(names)]]
    strong = sum(strength > pair.threshold for strength in strengths)
    heights = (1.0, 0.35 + 0.24 * len(rows))
    with plots.styled():
        figure, (above, axes) = plots.new_figure(2.5 + 0.24 * len(rows), rows=2, heights=heights)
        _strengths(above, [abs(each) for each in strengths], pair.threshold, strong)
        plots.cells(axes, values)
        if len(names) * len(rows) <= MAX_NUMBERED_CELLS:
            plots.in_cells(axes, values, _correlation, 8)
        if 0 < strong < len(names):
            ends = [-0.1, len(rows) + 0.25]
            axes.plot([strong, strong], ends, color=plots.INK, lw=1.4, clip_on=False)
        slanted = max(map(len, names)) * len(names) > LETTERS_ABREAST
        plots.names_below(axes, [plots.short(name) for name in names], slanted=slanted)
        axes.set_yticks(
            [y + 0.5 for y in range(len(rows))], [plots.short(pair.of_a[row]) for row in rows]
        )
        title = f"Correlation of {pair.rows_of}'s columns with {pair.columns_of}'s"
        return plots.to_svg(figure, f"correlations{number}", title)


def _correlation(value: float) -> str:
    return f"{value:.2f}".replace("-", "−").replace("0.", ".", 1)


def _strengths(axes: Axes, values: Sequence[float], threshold: float, strong: int) -> None:
    """Above the table: how strong each column of B is, and the threshold."""
    for x, value in enumerate(values):
        colour, alpha = (plots.SERIES[0], 0.78) if x < strong else (plots.FAINT, 0.35)
        axes.bar(x + 0.5, value, 0.82, color=colour, alpha=alpha, lw=0)
    axes.axhline(threshold, color=plots.INK, lw=1.2, ls=plots.DASHED)
    words = f" threshold {threshold:.2f}"
    axes.text(len(values), threshold, words, va="center", size=9, clip_on=False)
    plots.bare(axes)
    axes.set_xlim(0, len(values))
    axes.set_ylim(0, max([*values, threshold]) * 1.15 or 1.0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylabel("strongest\ncorrelation", rotation=0, ha="right", va="center", fontsize=9)


def _strongest_rows(pair: MendedPair) -> list[int]:
    """A's columns in their order; of very many, those that say most."""
    says = [max((abs(value) for value in line if value is not None), default=0.0)
            for line in pair.rho]  # fmt: skip
    best = sorted(range(len(pair.of_a)), key=lambda row: -says[row])
    return sorted(best[:MAX_ROWS_DRAWN])


def provenance(pair: MendedPair, number: int = 0) -> str:
    """The completing party's table: seen rows on top, completed ones below, column by column."""
    from matplotlib.patches import Patch

    columns = pair.columns[:MAX_COLUMNS_DRAWN]
    top, below = _heights(pair)
    with plots.styled():
        figure, (axes,) = plots.new_figure(3.6)
        for x, column in enumerate(columns):
            _stack(axes, x, column, top, below)
        axes.set_xlim(-0.02, len(columns))
        axes.set_ylim(top + below + 0.1, -0.02)
        plots.bare(axes)
        slanted = max(len(each.name) for each in columns) * len(columns) > LETTERS_ABREAST
        names = [plots.short(each.name) for each in columns]
        plots.names_below(axes, names, slanted=slanted, at=0.47)
        axes.set_yticks(
            [top / 2, top + 0.03 + below / 2],
            [f"{pair.observed:,} rows\nof {pair.columns_of}",
             f"{pair.rows:,} rows\nadded from {pair.rows_of}"],
        )  # fmt: skip
        made = [name for name in ORIGINS if any(getattr(each, name) for each in columns)]
        used = ["observed", *made]
        figure.legend(
            [Patch(**ORIGIN_LOOKS[name]) for name in used],
            used,
            loc="outside upper left",
            ncols=len(used),
            frameon=False,
            fontsize=9,
        )
        title = f"Where the cells of {pair.columns_of}'s completed table come from"
        return plots.to_svg(figure, f"provenance{number}", title)


def _heights(pair: MendedPair) -> tuple[float, float]:
    total = max(pair.observed + pair.rows, 1)
    top = min(max(pair.observed / total, 0.18), 0.6)
    return top, 1.0 - top


def _stack(axes: Axes, x: int, column: MendedColumn, top: float, below: float) -> None:
    plots.block(axes, x, 0, 0.94, top, **ORIGIN_LOOKS["observed"])
    at = top + 0.03
    for origin in ORIGINS:
        height = below * column.share(origin)
        if height:
            plots.block(axes, x, at, 0.94, height, **ORIGIN_LOOKS[origin])
        at += height
    if column.confidence is not None and column.share("generated") < 1:
        text = f"{100 * column.confidence:.0f} %"
        axes.text(x + 0.47, top + 0.03 + below / 2, text, ha="center", va="center", size=8.5)
