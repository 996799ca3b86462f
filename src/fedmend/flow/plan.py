"""What a run of a federation.toml does: which methods are trained on what, by whose labels."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmend.federation import Federation
from fedmend.flow.config.rewriting import without_passwords
from fedmend.flow.config.settings import (
    AUTO,
    CORRECTED,
    AutoSettings,
    CompleteSettings,
    Config,
    CorrectSettings,
    slug_of,
)
from fedmend.methods.registry import ANNOTATED, METHODS
from fedmend.report.record import COMPLETED


@dataclass(frozen=True)
class Method:
    """A method of the comparison: its name in METHODS, how it is shown, its parameters.

    completed: trained on the federation with the completed rows. corrected: on corrected labels.
    """

    name: str
    title: str
    params: dict[str, Any] = field(default_factory=dict)
    completed: bool = False
    corrected: bool = False

    @property
    def slug(self) -> str:
        return slug_of(self.title) or self.name

    @property
    def about(self) -> str:
        words = METHODS[self.name].words
        words += "; labels corrected before" if self.corrected else ""
        return f"{words}; completed rows included" if self.completed else words


@dataclass
class Plan:
    """A federation.toml and what only a run knows of it.

    federation: makes the federation in the run's folder, where the parties are elsewhere. extras:
    puts further files into the folder.
    """

    config: Config
    engine: str = "local"
    federation: Callable[[Path], Federation] | None = None
    extras: Callable[[Path], None] | None = None

    @property
    def seeds(self) -> list[int]:
        return self.config.run.all_seeds

    @property
    def align(self) -> dict[str, Any]:
        return self.config.align.model_dump(exclude_none=True)

    def leaves_out(self, stage: str) -> bool:
        return stage in self.config.run.leave_out

    @property
    def complete(self) -> CompleteSettings | None:
        return None if self.leaves_out("complete") else self.config.complete

    @property
    def correct(self) -> CorrectSettings | None:
        """How labels are corrected, and where they go."""
        given = self.config.correct
        if given is None or self.leaves_out("correct"):
            return None
        annotators = given.labellers or self.config.labellers
        return given.model_copy(update={"to": given.to or annotators[0]})

    @property
    def choose(self) -> AutoSettings | None:
        given = (each for each in self.config.method if isinstance(each, AutoSettings))
        return None if self.leaves_out("train") else next(given, None)

    @property
    def one_label(self) -> bool:
        """Whether ``auto`` has one party's labels to learn: that of the file, or corrected ones."""
        how = self.choose
        asked = how is not None and "label_party" in how.params
        return self.correct is not None or len(self.config.labellers) == 1 or asked

    @property
    def methods(self) -> list[Method]:
        """What the file names."""
        named = [each for each in self.config.method if each.name != AUTO]
        return [Method(each.name, each.shown_as, each.params) for each in named]

    @property
    def trainings(self) -> list[Method]:
        """The methods as they are trained: without and with corrected labels, completed rows."""
        if self.leaves_out("train"):
            return []
        return [each for method in self.methods for each in self._trainings(method)]

    def _trainings(self, method: Method) -> list[Method]:
        correct, complete = self.correct, self.complete
        labels, rows = [False], [False]
        if correct is not None and method.name not in ANNOTATED:
            labels = [False, True] if correct.also_uncorrected else [True]
        if complete is not None and METHODS[method.name].partners:
            rows = [False, True] if complete.also_unmended else [True]
        return [
            self._on(method, corrected, completed) for corrected in labels for completed in rows
        ]

    def _on(self, method: Method, corrected: bool, completed: bool) -> Method:
        """The same method on a mended federation, which its title tells.

        Corrected labels are at one party, whichever a method would ask otherwise.
        """
        title, params = method.title + CORRECTED * corrected + COMPLETED * completed, method.params
        if self.correct is not None and method.name not in ANNOTATED:
            asked = None if corrected else params.get("label_party")
            params = {**params, "label_party": asked or self.correct.to}
        return replace(method, title=title, params=params, corrected=corrected, completed=completed)

    def named_methods(self) -> list[str]:
        """What the parties are asked to take part in, by the names that a run is bound to there."""
        horizontal, several_label = self.config.horizontal, len(self.config.labellers) > 1
        named = [method.name for method in self.trainings]
        if self.choose is not None:
            several = several_label and not self.one_label
            named += [AUTO, *self.choose.names(horizontal=horizontal, several=several)]
        if self.complete is not None:
            named.append(self.complete.name)
        if self.correct is not None:
            named += ["correct", self.correct.name]
        if horizontal:
            named.append("label-skew")
        elif several_label:
            named += ["label-agreement", "reference"]
        return list(dict.fromkeys(named))

    @property
    def text(self) -> str:
        """The file as the run folder keeps it: with the run's recipe, and without passwords."""
        text = without_passwords(self.config.source.read_text(encoding="utf-8"))
        if self.config.recipe is None:
            return text
        line = f'recipe = "{self.config.recipe}"\n'
        if re.search(r"(?m)^\s*recipe\s*=", text):
            return re.sub(r"(?m)^\s*recipe\s*=.*\n?", line, text, count=1)
        return line + text


def plan_of(config: Config) -> Plan:
    """The plan of a federation.toml."""
    return Plan(config)
