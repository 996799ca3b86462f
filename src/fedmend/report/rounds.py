"""How the rounds of a horizontal federation went: curves, and each client's part in them.

A method that trains in rounds has a history of one entry a round: its number, who took part, and
means over the clients' steps (utilisation, confidence gap, and where the truth is known the
pseudo-labels' accuracy), each also client by client under ``per_client``; and where test rows are
watched the common model's accuracy on them, on each party's own under ``accuracy_by_party``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedmend.report import plots
from fedmend.report.amounts import percent
from fedmend.report.record import MethodRun, RunRecord

__all__ = ["PANELS", "Rounds", "clients_picture", "picture", "rounds_of"]

# What is drawn, where there is something to draw: key of a round's entry, words.
PANELS = (
    ("accuracy", "accuracy on test rows"),
    ("utilisation", "unlabelled rows used"),
    ("pseudo_accuracy", "pseudo-labels that are right"),
    ("confidence_gap", "confidence gap, local and global"),
)
UNTOLD = "–"
CLIENT_PANELS = (
    ("loss", "loss of its steps"),
    ("accuracy", "accuracy on its own test rows"),
    *PANELS[1:],
)


@dataclass(frozen=True)
class Rounds:
    """The rounds of one method."""

    title: str
    history: Sequence[Mapping[str, Any]]

    @property
    def clients(self) -> list[str]:
        """Who took part in any round."""
        parts = [each for step in self.history for each in step.get("per_client") or ()]
        return sorted({str(each["client"]) for each in parts})

    def series(self, key: str, client: str | None = None) -> list[tuple[int, float]]:
        """(round, value) where the round has one; of one client, or of all together."""
        if client is not None and key == "accuracy":
            told = ((int(s["round"]), s.get("accuracy_by_party") or {}) for s in self.history)
            return [(number, float(by[client])) for number, by in told if client in by]
        return [
            (int(step["round"]), float(part[key]))
            for step in self.history
            for part in ([step] if client is None else step.get("per_client") or ())
            if part.get(key) is not None and (client is None or part["client"] == client)
        ]

    def table(self) -> list[list[str]]:
        """A head, and a line for each client: means over the rounds it took part in."""
        parts: dict[str, list[Mapping[str, Any]]] = {}
        for step in self.history:
            for each in step.get("per_client") or ():
                parts.setdefault(str(each["client"]), []).append(each)
        head = ["client", "rounds", "loss", "rows used", "confidence gap", "labels right"]
        head.append("accuracy at the end")
        lines = [
            [*_line(name, parts[name]), _last(self.series("accuracy", name))]
            for name in sorted(parts)
        ]
        told = [at for at in range(len(head)) if any(line[at] != UNTOLD for line in lines)]
        return [[line[at] for at in told] for line in (head, *lines)] if lines else [head]

    def sentences(self) -> list[str]:
        """What happened, in words."""
        clients = {name for step in self.history for name in step.get("clients") or ()}
        each = {len(step.get("clients") or ()) for step in self.history}
        part = f", {max(each)} of them in each" if each and max(each) < len(clients) else ""
        lines = [f"{len(self.history)} rounds with {len(clients)} clients{part}."]
        accuracy = self.series("accuracy")
        if accuracy:
            best, value = max(accuracy, key=lambda point: point[1])
            lines.append(
                f"Accuracy on the test rows: {percent(accuracy[-1][1])} after the last round, "
                f"best {percent(value)} after round {best}."
            )
        used = self.series("utilisation")
        if used:
            # Rounds of a warm-up make none.
            first = "the first round" if used[0][0] == 1 else f"round {used[0][0]}"
            lines.append(
                f"Of the unlabelled rows {percent(used[0][1])} had a pseudo-label in {first} "
                f"and {percent(used[-1][1])} in the last."
            )
        return lines


def rounds_of(record: RunRecord) -> list[Rounds]:
    """Every method of a run that trains in rounds, under its first seed."""
    found: dict[str, MethodRun] = {}
    for run in record.methods:
        if run.history and "round" in run.history[0]:
            found.setdefault(run.title, run)
    return [Rounds(title, run.history) for title, run in found.items()]


def picture(methods: Sequence[Rounds], titles: Sequence[str] | None = None) -> str | None:
    """A panel for each figure the rounds have, a line for each method.

    titles: all methods of the report in their order, so that colours stay the same in it.
    """
    order = list(titles) if titles is not None else [method.title for method in methods]
    lines = {
        method.title: (
            plots.SERIES[plots.method_series(order.index(method.title)) - 1],
            {key: method.series(key) for key, _ in PANELS},
        )
        for method in methods
    }
    return _panels(PANELS, lines, "rounds", "Accuracy and pseudo-labels, round by round")


def clients_picture(methods: Sequence[Rounds]) -> str | None:
    """The first method's figures client by client; many clients are faint lines round a mean."""
    method = next((each for each in methods if len(each.clients) > 1), None)
    if method is None:
        return None
    few = len(method.clients) <= len(plots.SERIES)
    lines = {}
    for at, name in enumerate(method.clients):
        points = {key: method.series(key, name) for key, _ in CLIENT_PANELS}
        # What begins with an underscore has no line in a legend.
        lines[name if few else f"_{name}"] = (plots.SERIES[at] if few else plots.GRID, points)
    if not few:
        means = {key: method.series(key) for key, _ in CLIENT_PANELS}
        lines[f"mean of {len(method.clients)} clients"] = (plots.SERIES[0], means)
    return _panels(CLIENT_PANELS, lines, "clients", f"{method.title}, client by client")


Points = list[tuple[int, float]]


def _panels(
    wanted: Sequence[tuple[str, str]],
    lines: Mapping[str, tuple[str, Mapping[str, Points]]],
    name: str,
    words: str,
) -> str | None:
    """Panels for those figures that any line has; lines: colour, and points by figure."""
    panels = [(key, title) for key, title in wanted if any(p[key] for _, p in lines.values())]
    if not panels:
        return None
    from matplotlib.ticker import MaxNLocator

    with plots.styled():
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        figure, axes = plots.new_figure(7.6, 0.4 + 2.4 * rows, columns, rows)
        for each, (key, title) in zip(axes, panels, strict=False):
            for label, (colour, points) in lines.items():
                if points[key]:
                    mark = "o" if len(points[key]) == 1 else ""
                    x, y = zip(*points[key], strict=True)
                    each.plot(x, y, mark + "-", color=colour, lw=1.5, ms=4, label=label)
            each.set_title(title, loc="left", fontsize=10, color=plots.INK)
            if key not in ("confidence_gap", "loss"):
                each.set_ylim(top=min(each.get_ylim()[1], 1.02))  # shares end at one
            each.set_xlabel("round")
            each.xaxis.set_major_locator(MaxNLocator(integer=True))
        for spare in axes[len(panels) :]:
            spare.axis("off")
        _legend(figure, axes[: len(panels)])
        return plots.to_svg(figure, name, words)


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    handles: dict[str, Any] = {}
    for each in axes:
        drawn, names = each.get_legend_handles_labels()
        handles = dict(zip(names, drawn, strict=True)) | handles
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower left",
        ncols=min(4, len(handles)),
        frameon=False,
        fontsize=9,
    )


def _last(points: Points) -> str:
    return percent(points[-1][1]) if points else UNTOLD


def _line(name: str, parts: Sequence[Mapping[str, Any]]) -> list[str]:
    def mean(key: str) -> float | None:
        values = [float(part[key]) for part in parts if part.get(key) is not None]
        return sum(values) / len(values) if values else None

    def share(key: str) -> str:
        value = mean(key)
        return UNTOLD if value is None else percent(value)

    loss, gap = mean("loss"), mean("confidence_gap")
    return [
        name,
        str(len(parts)),
        UNTOLD if loss is None else f"{loss:.3f}",
        share("utilisation"),
        UNTOLD if gap is None else f"{gap:.3f}",
        share("pseudo_accuracy"),
    ]
