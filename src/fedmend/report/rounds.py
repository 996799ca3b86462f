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
from fedmend.report.amounts import UNTOLD, percent
from fedmend.report.record import RunRecord

# What is drawn, where there is something to draw: key of a round's entry, words.
PANELS = {
    "accuracy": "accuracy on test rows",
    "utilisation": "unlabelled rows used",
    "pseudo_accuracy": "pseudo-labels that are right",
    "confidence_gap": "confidence gap, local and global",
}
CLIENT_PANELS = {"loss": "loss of its steps", **PANELS, "accuracy": "accuracy on its own test rows"}
Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Rounds:
    """The rounds of one method."""

    title: str
    history: Sequence[Mapping[str, Any]]

    @property
    def clients(self) -> list[str]:
        """Who took part in any round."""
        return sorted({str(part["client"]) for _, part in self._parts()})

    def _parts(self) -> list[tuple[int, Mapping[str, Any]]]:
        """(round, what one client did in it)"""
        return [
            (int(step["round"]), part)
            for step in self.history
            for part in step.get("per_client") or ()
        ]

    def series(self, key: str, client: str | None = None) -> Points:
        """(round, value) where the round has one; of one client, or of all together."""
        if client is None:
            parts = [(int(step["round"]), step.get(key)) for step in self.history]
        elif key == "accuracy":
            parts = [
                (int(step["round"]), (step.get("accuracy_by_party") or {}).get(client))
                for step in self.history
            ]
        else:
            parts = [(at, part.get(key)) for at, part in self._parts() if part["client"] == client]
        return [(at, float(value)) for at, value in parts if value is not None]

    def table(self) -> list[list[str]]:
        """A head, and a line for each client: means over the rounds it took part in."""
        head = ["client", "rounds", "loss", "rows used", "confidence gap", "labels right"]
        head.append("accuracy at the end")
        lines = [self._line(client) for client in self.clients]
        known = [at for at in range(len(head)) if any(line[at] != UNTOLD for line in lines)]
        return [[line[at] for at in known] for line in (head, *lines)] if lines else [head]

    def _line(self, client: str) -> list[str]:
        def mean(key: str) -> float | None:
            values = [value for _, value in self.series(key, client)]
            return sum(values) / len(values) if values else None

        loss, gap = (
            UNTOLD if value is None else f"{value:.3f}"
            for value in (mean("loss"), mean("confidence_gap"))
        )
        rounds = sum(part["client"] == client for _, part in self._parts())
        used, right = percent(mean("utilisation")), percent(mean("pseudo_accuracy"))
        last = [value for _, value in self.series("accuracy", client)][-1:]
        return [client, str(rounds), loss, used, gap, right, percent(last[0] if last else None)]

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
    found: dict[str, Rounds] = {}
    for run in record.methods:
        if run.history and "round" in run.history[0]:
            found.setdefault(run.title, Rounds(run.title, run.history))
    return list(found.values())


def picture(methods: Sequence[Rounds], titles: Sequence[str]) -> str | None:
    """A panel for each figure the rounds have, a line for each method.

    titles: all methods of the report in their order, so that colours stay the same in it.
    """
    lines = {
        method.title: (
            plots.method_colour(titles.index(method.title)),
            {key: method.series(key) for key in PANELS},
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
        points = {key: method.series(key, name) for key in CLIENT_PANELS}
        # What begins with an underscore has no line in a legend.
        lines[name if few else f"_{name}"] = (plots.SERIES[at] if few else plots.GRID, points)
    if not few:
        means = {key: method.series(key) for key in CLIENT_PANELS}
        lines[f"mean of {len(method.clients)} clients"] = (plots.SERIES[0], means)
    return _panels(CLIENT_PANELS, lines, "clients", f"{method.title}, client by client")


def _panels(
    wanted: Mapping[str, str],
    lines: Mapping[str, tuple[str, Mapping[str, Points]]],
    name: str,
    words: str,
) -> str | None:
    """Panels for those figures that any line has; lines: colour, and points by figure."""
    panels = [key for key in wanted if any(points[key] for _, points in lines.values())]
    if not panels:
        return None
    with plots.styled():
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        figure, axes = plots.new_figure(0.4 + 2.4 * rows, columns, rows)
        for each, key in zip(axes, panels, strict=False):
            for label, (colour, points) in lines.items():
                if points[key]:
                    mark = "o-" if len(points[key]) == 1 else "-"
                    x, y = zip(*points[key], strict=True)
                    each.plot(x, y, mark, color=colour, lw=1.5, ms=4, label=label)
            each.set_title(wanted[key], loc="left", fontsize=10, color=plots.INK)
            if key not in ("confidence_gap", "loss"):
                each.set_ylim(top=min(each.get_ylim()[1], 1.02))  # shares end at one
            each.set_xlabel("round")
            plots.whole_numbers(each)
        for spare in axes[len(panels) :]:
            spare.axis("off")
        plots.legend_below(figure, axes[: len(panels)], 4)
        return plots.to_svg(figure, name, words)
