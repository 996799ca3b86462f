"""Who hears how a run goes on: nobody, the terminal, the live page, or several at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmend.flow.manifest import StageEntry
    from fedmend.report.mending import Mending
    from fedmend.report.overview import Overview
    from fedmend.report.record import MethodRun

__all__ = ["Listener"]


class Listener:
    """Hears how a run goes on; the command line draws it, the library stays silent."""

    def stage(self, words: str) -> None:
        """A stage begins."""

    def overview(self, found: Overview) -> None:
        """The overview is there."""

    def progress(
        self, title: str, done: int, total: int, facts: dict[str, float] | None = None
    ) -> None:
        """A part of a stage is done: rows of an alignment, epochs of a training."""

    def mended(self, found: Mending) -> None:
        """Rows were completed."""

    def corrected(self, found: dict[str, Any]) -> None:
        """Labels were corrected."""

    def chose(self, choice: dict[str, Any]) -> None:
        """A method was chosen by cross-validation."""

    def done(self, entry: StageEntry) -> None:
        """A stage is done, or taken up from before."""

    def scored(self, run: MethodRun) -> None:
        """A method was trained and scored."""
