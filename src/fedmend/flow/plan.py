"""What a run is to do: parties, stages and methods, from a federation.toml or from Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend.federation import Federation, Party
from fedmend.flow.choosing import Choosing
from fedmend.flow.completing import Completing
from fedmend.flow.config.naming import AUTO, COMPLETED, CORRECTED, slug_of
from fedmend.flow.config.passwords import without_passwords
from fedmend.flow.correcting import Correcting
from fedmend.flow.reading import read_parties
from fedmend.methods.registry import ANNOTATED, METHODS

if TYPE_CHECKING:
    from fedmend.flow.config import Config

__all__ = ["Method", "Plan", "plan_of"]


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

    def on(self, *, corrected: bool, completed: bool) -> Method:
        """The same method on a mended federation, which its title tells."""
        title = self.title + CORRECTED * corrected + COMPLETED * completed
        return replace(self, title=title, corrected=corrected, completed=completed)


@dataclass
class Plan:
    """Everything a run needs, wherever it came from: a federation.toml or the demo.

    leave_out: stages that are not done though they could be. keep_stages: what stages left in
    the folder stays when the run is done, so that it can go on with other settings.
    alone: parties that get what they need to predict their own rows alone. reproducible: random
    choices follow from the seed between machines, too. several_label: more than one party has a
    label column.
    """

    title: str
    parties: Callable[[], list[Party]]
    methods: Sequence[Method]
    seeds: Sequence[int] = (0,)
    metrics: Sequence[str] = ()
    device: str = "cpu"
    strict: bool = False
    align: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    extras: Callable[[Path], None] | None = None
    complete: Completing | None = None
    correct: Correcting | None = None
    choose: Choosing | None = None
    reference: str | None = None
    label_review: bool = False
    federation: Callable[[Path], Federation] | None = None
    horizontal: bool = False
    engine: str = "local"
    recipe: str | None = None
    leave_out: Sequence[str] = ()
    keep_stages: bool = True
    alone: Sequence[str] = ()
    reproducible: bool = False
    several_label: bool = False

    @property
    def trainings(self) -> list[Method]:
        """The methods as they are trained: without and with corrected labels, completed rows."""
        if "train" in self.leave_out:
            return []
        return [each for method in self.methods for each in self._trainings(method)]

    def _trainings(self, method: Method) -> list[Method]:
        labels = [False]
        if self.correct is not None and method.name not in ANNOTATED:
            labels = [False, True] if self.correct.also_uncorrected else [True]
        rows = [False]
        if self.complete is not None and METHODS[method.name].partners:
            rows = [False, True] if self.complete.also_unmended else [True]
        return [
            self._for_labels(method.on(corrected=corrected, completed=completed))
            for corrected in labels
            for completed in rows
        ]

    def _for_labels(self, method: Method) -> Method:
        """Corrected labels are at one party, whichever a method would ask otherwise."""
        if self.correct is None or method.name in ANNOTATED:
            return method
        asked = None if method.corrected else method.params.get("label_party")
        return replace(method, params={**method.params, "label_party": asked or self.correct.to})

    def named_methods(self) -> list[str]:
        """What the parties are asked to take part in, by the names that a run is bound to there."""
        named = [method.name for method in self.trainings]
        if self.choose is not None:
            several = self.several_label and self.correct is None
            named += [AUTO, *self.choose.names(horizontal=self.horizontal, several=several)]
        if self.complete is not None:
            named.append(self.complete.name)
        if self.correct is not None:
            named += ["correct", self.correct.name]
        if self.horizontal:
            named.append("label-skew")
        elif self.several_label:
            named += ["label-agreement", "reference"]
        return list(dict.fromkeys(named))


def plan_of(config: Config) -> Plan:
    """The plan of a federation.toml."""
    given = [each for each in config.method if each.name != AUTO]
    out = config.run.leave_out
    return Plan(
        title=config.title,
        parties=lambda: read_parties(config),
        methods=[Method(each.name, each.shown_as, each.params) for each in given],
        seeds=config.run.all_seeds,
        metrics=config.evaluate.metrics,
        device=config.run.device,
        strict=config.run.strict,
        align=config.align.model_dump(exclude_none=True),
        settings=config.shown(),
        config_text=_text(config),
        complete=None if "complete" in out else Completing.of(config),
        correct=None if "correct" in out else Correcting.of(config),
        choose=None if "train" in out else Choosing.of(config),
        reference=config.evaluate.reference,
        label_review=config.report.label_review,
        horizontal=config.horizontal,
        recipe=config.recipe,
        leave_out=out,
        keep_stages=config.run.keep_stages,
        alone=config.predict.alone,
        reproducible=config.run.reproducible,
        several_label=len(config.labellers) > 1,
    )


def _text(config: Config) -> str:
    """The file as the run folder keeps it: with the run's recipe, and without passwords."""
    text = without_passwords(config.source.read_text(encoding="utf-8"))
    if config.recipe is None:
        return text
    line = f'recipe = "{config.recipe}"\n'
    if re.search(r"(?m)^\s*recipe\s*=", text):
        return re.sub(r"(?m)^\s*recipe\s*=.*\n?", line, text, count=1)
    return line + text
