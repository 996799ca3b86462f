"""What a run took: its stages with time and traffic, as the manifest tells them.

The manifest is read as plain JSON: whatever a later version adds to it, the page still shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmend.report import plots
from fedmend.report.amounts import human_bytes, human_seconds

__all__ = ["MANIFEST_FILE", "STAGE_WORDS", "Stage", "picture", "read_stages"]

MANIFEST_FILE = "manifest.json"
STAGE_WORDS = {
    "align": "Finding the rows that are known to all",
    "diagnose": "Looking at what is torn",
    "complete": "Completing rows",
    "correct": "Correcting labels",
    "choose": "Choosing a method",
    "train": "Training",
    "evaluate": "Scoring on test rows",
    "report": "Writing this report",
}


@dataclass(frozen=True)
class Stage:
    """One kind of stage, all its units together (a training is a unit for each method and seed)."""

    name: str
    units: int
    seconds: float
    crossings: int
    bytes: int
    reused: int
    says: str

    @property
    def words(self) -> str:
        words = STAGE_WORDS.get(self.name, self.name)
        return f"{words}, {self.units} times" if self.units > 1 else words

    @property
    def note(self) -> str:
        """What came out, and whether it was taken over from before."""
        if self.units > 1:
            return f"{self.reused} taken over from before" if self.reused else ""
        return f"{self.says} (taken over from before)" if self.reused else self.says


def read_stages(folder: Path) -> list[Stage]:
    """The stages of a run folder, in their order; none where there is no manifest."""
    try:
        stored = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        return stages_of(stored["stages"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def stages_of(entries: Sequence[Mapping[str, Any]]) -> list[Stage]:
    """Entries of a manifest, those of one stage added up."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        grouped.setdefault(str(entry["stage"]), []).append(entry)
    return [
        Stage(
            name,
            len(group),
            sum(float(each.get("seconds", 0.0)) for each in group),
            sum(int(each.get("crossings", 0)) for each in group),
            sum(int(each.get("bytes", 0)) for each in group),
            sum(bool(each.get("reused")) for each in group),
            # What is torn has a section of its own.
            "" if name == "diagnose" else str(group[-1].get("says", "")),
        )
        for name, group in grouped.items()
    ]


def picture(stages: Sequence[Stage]) -> str | None:
    """Two bars for each stage: how long it took, and how much crossed."""
    shown = [each for each in stages if each.seconds or each.bytes]
    if len(shown) < 2:
        return None
    with plots.styled():
        figure, axes = plots.new_figure(7.6, 0.7 + 0.36 * len(shown), 2)
        places = range(len(shown))
        for each, values, tell, title in (
            (axes[0], [stage.seconds for stage in shown], human_seconds, "time"),
            (axes[1], [float(stage.bytes) for stage in shown], _bytes, "crossed"),
        ):
            colour = plots.SERIES[0] if title == "time" else plots.SERIES[2]
            each.barh(places, values, color=colour, alpha=0.78, height=0.62)
            for at, value in zip(places, values, strict=True):
                each.annotate(
                    tell(value),
                    (value, at),
                    (5, 0),
                    textcoords="offset points",
                    va="center",
                    size=9,
                )
            each.set_title(title, loc="left", fontsize=10, color=plots.INK)
            each.set_ylim(len(shown) - 0.4, -0.6)
            each.set_xlim(0, 1.32 * max(values, default=0.0) or 1.0)
            each.grid(visible=False)
            each.tick_params(length=0, labelbottom=False)
            each.spines["bottom"].set_visible(False)
        words = [STAGE_WORDS.get(each.name, each.name) for each in shown]
        axes[0].set_yticks(places, words)
        axes[1].set_yticks(places, [""] * len(shown))
        return plots.to_svg(figure, "stages", "How long each stage took, and how much crossed")


def _bytes(size: float) -> str:
    return human_bytes(int(size))
