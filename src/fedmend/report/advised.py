"""What an advice is: tears with what mends each, settings for a file, and the words for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedmend.methods.costs import Cost
from fedmend.methods.recipes import RECIPES
from fedmend.methods.registry import record_of
from fedmend.report.amounts import about, in_bytes, in_time

__all__ = ["Advice", "Tear"]


@dataclass(frozen=True)
class Tear:
    """One thing that is torn, and what mends it.

    methods: their names in federation.toml. cost: of the mend, beyond plain training.
    """

    name: str
    title: str
    words: str
    mend: str
    methods: list[str]
    seconds: float | None = None
    bytes: int | None = None

    @property
    def sentence(self) -> str:
        cost = ""
        if self.seconds is not None and self.bytes is not None:
            cost = f" ({in_time(self.seconds)}, {in_bytes(self.bytes)})"
        return f"{self.title}: {self.words} {self.mend}{cost}."


@dataclass(frozen=True)
class Advice:
    """The tears, the widest first, and the settings that mend them.

    recipe: the one that mends them, or None. complete, correct: the tables of these names, or
    None. methods: the tables [[method]], those recommended first and what they are compared with
    after them; beside a recipe only the latter. whole: what all of it takes. choosing: what
    cross-validation would take instead, None where there is nothing to choose by.
    """

    tears: list[Tear]
    methods: list[dict[str, Any]]
    complete: dict[str, Any] | None = None
    correct: dict[str, Any] | None = None
    recipe: str | None = None
    whole: Cost = field(default_factory=lambda: Cost(0.0, 0))
    choosing: Cost | None = None

    @property
    def words(self) -> list[str]:
        return [*(tear.sentence for tear in self.tears), *self.closing]

    @property
    def closing(self) -> list[str]:
        """What to begin with, at what cost, and how to have it chosen instead."""
        if not self.methods and self.recipe is None:
            return []
        named = [record_of(str(method["name"])).shown for method in self.methods]
        cost = f"{about(self.whole.seconds)} and {in_bytes(self.whole.bytes)} in all"
        if self.recipe is None:
            found = [f"To begin with: {', '.join(named)}; {cost}."]
        else:
            stages = " → ".join(record_of(name).shown for name in RECIPES[self.recipe].stages)
            found = [
                f'To begin with: recipe = "{self.recipe}" ({stages}), and {_listed(named)} beside '
                f"it, to compare; {cost}."
            ]
        if self.choosing is not None:
            found.append(
                'Rather not choose? method = "auto" compares the methods that fit by '
                "cross-validation on the rows known to all, and takes the best "
                f"({about(self.choosing.seconds)} more)."
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "tears": [asdict(tear) | {"sentence": tear.sentence} for tear in self.tears],
            "words": self.words,
            "settings": {
                "recipe": self.recipe,
                "correct": self.correct,
                "complete": self.complete,
                "methods": self.methods,
            },
            "seconds": self.whole.seconds,
            "bytes": self.whole.bytes,
        }


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
