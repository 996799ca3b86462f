"""What a run of a federation.toml does: which methods are trained on what, by whose labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmend.data.encode import NUMBERS
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
from fedmend.methods.costs import Cost, Facts, cost_of_alignment
from fedmend.methods.registry import ANNOTATED, METHODS, estimate, method_class, rated, record_of
from fedmend.report.record import COMPLETED

BOOSTING, ALONE = "boosting", "local-trees"


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
        return self.config.align.how

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

    def pairs(self, fed: Federation) -> list[Federation]:
        """Of more than two parties the label party and each other one, where trees may be grown."""
        owners = fed.label_parties
        if self.correct is not None and self.correct.to is not None:
            owners = [self.correct.to]
        features = {name: facts["features"] for name, facts in fed.roster.items()}
        return [fed.only(*owners, name) for name in self._paired(owners, features)]

    def _paired(self, owners: Sequence[str], features: Mapping[str, int]) -> list[str]:
        """The parties with which the label party is aligned as with one; features: of each."""
        align = self.config.align
        grown = self.choose is not None or any(each.name == BOOSTING for each in self.methods)
        if not grown or self.leaves_out("train") or len(owners) != 1 or len(features) < 3:
            return []
        if not align.pairs or align.mode == "same-order":
            return []
        return [name for name, count in features.items() if count and name not in owners]

    @property
    def methods(self) -> list[Method]:
        """What the file names."""
        named = [each for each in self.config.method if each.name != AUTO]
        return [Method(each.name, each.shown_as, each.params) for each in named]

    @property
    def alone(self) -> Method | None:
        """Trees at the label party, told of beside methods that ask partners; no model is kept.

        Over machines parties agree to the methods that a file names, and to no other.
        """
        config, names = self.config, {each.name for each in self.methods}
        policies = [party.policy.methods for party in config.party]
        if self.engine != "local" or config.horizontal or len(config.labellers) != 1:
            return None
        if ALONE in names or self.choose is not None or self.correct is not None:
            return None
        if self.leaves_out("train") or self.leaves_out("evaluate"):
            return None
        if not any(METHODS[name].partners for name in names):
            return None
        if any(methods is not None and ALONE not in methods for methods in policies):
            return None
        told: dict[str, Any] = {} if config.task is None else {"task": config.task}
        for method in self.methods:
            if method.params.get("label_dp") is not None:
                told["label_dp"] = method.params["label_dp"]  # one draw for all of a file
        return Method(ALONE, METHODS[ALONE].shown, told)

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
        # To trees completed cells are missing ones: the same trees would grow twice.
        if complete is not None and METHODS[method.name].partners and method.name != BOOSTING:
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

    @property
    def auto(self) -> Method:
        """``auto`` as a method of one party's labels, with what the file says of it."""
        how, corrected = self.choose, self.correct is not None
        assert how is not None
        given = how.params
        shared = ("task", "label_party", "label_dp")
        params: dict[str, Any] = {key: given.pop(key) for key in shared if key in given}
        params |= {
            "candidates": None if how.candidates is None else tuple(how.candidates),
            "folds": how.folds,
            "budget": how.budget,
            "metric": next(iter(self.config.evaluate.metrics), None),
            "settings": given or None,
        }
        params |= {"label_party": self.correct.to} if self.correct is not None else {}
        return Method(AUTO, how.shown_as + CORRECTED * corrected, params, corrected=corrected)

    def costs(
        self, facts: Facts, among: int | None = None, joined: int | None = None
    ) -> dict[str, Cost | None]:
        """What every part takes, None if nobody measured it.

        among, joined: rows known to all annotators, and to all parties with columns, where these
        are not all parties.
        """
        correct, complete, trained = self.correct, self.complete, self.trainings
        if self.choose is not None:
            also = replace(self.auto, title=self.auto.title + COMPLETED, completed=True)
            trained = [self.auto, *([also] if complete is not None else []), *trained]
        trained = [*trained, *([self.alone] if self.alone is not None else [])]
        found: dict[str, Cost | None] = {"start and report": Cost(3 + 0.7 * len(trained), 0)}
        if facts.aligned is not None:
            found["alignment"] = sum(self._pairs_of(facts), cost_of_alignment(facts))

        def add(name: str, title: str, sizes: Facts, params: dict[str, Any]) -> None:
            before = found.get(title) or Cost(0.0, 0)
            found[title] = before + estimate(name, sizes, params) if rated(name, sizes) else None

        if correct is not None:
            rows = (among if correct.among == "labellers" else None) or facts.aligned
            # Of votes alone the labels are wanted, not a network that learns them.
            params = correct.params | ({"epochs": 0} if method_class(correct.name).infers else {})
            add(correct.name, METHODS[correct.name].shown, replace(facts, aligned=rows), params)
        base = facts
        if correct is not None and joined is not None and facts.features.get(correct.to):
            base = replace(facts, aligned=joined)  # what only labels takes no further part
        if complete is not None:
            source = complete.params.get("source") or (correct.to if correct else facts.owner)
            sizes, shown = replace(base, labellers=(source,)), record_of(complete.name).shown
            add(complete.name, shown, sizes, complete.params)
        for each in trained * len(self.seeds):
            sizes = facts if each.name in ANNOTATED else base
            sizes = sizes.completed() if each.completed else sizes
            add(each.name, each.title, sizes, each.params)
        return found

    def _pairs_of(self, facts: Facts) -> list[Cost]:
        """Of finding what the label party shares with each other one, where `pairs` are sought."""
        names = self._paired(list(facts.labellers), facts.features)
        rows = [{name: facts.rows[name] for name in (facts.owner, other)} for other in names]
        return [cost_of_alignment(replace(facts, rows=each)) for each in rows]

    def named_methods(self) -> list[str]:
        """What the parties are asked to take part in, by the names that a run is bound to there."""
        horizontal, several_label = self.config.horizontal, len(self.config.labellers) > 1
        named = [method.name for method in self.trainings]
        named += [self.alone.name] if self.alone is not None else []
        if self.choose is not None:
            how = {"horizontal": horizontal, "several": several_label and not self.one_label}
            task = self.config.task
            numbers = None if task is None else task in NUMBERS
            named += [AUTO, *self.choose.names(**how, numbers=numbers)]
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
        text = without_passwords(self.config.source.read_text(encoding="utf-8-sig"))
        if self.config.recipe is None:
            return text
        line = f'recipe = "{self.config.recipe}"\n'
        changed, count = re.subn(r"(?m)^\s*recipe\s*=.*\n?", line, text, count=1)
        return changed if count else line + text


def plan_of(config: Config) -> Plan:
    """The plan of a federation.toml."""
    return Plan(config)
