"""Recipes: mends in the order that worked best together, by name.

What each stage is good for alone, and which orders win, is measured by `fedmend bench flow`
(docs/recipes.md). A recipe is what would stand in a federation.toml:

    recipe = "correct-auto"          # in the file, above its tables
    fedmend run --recipe correct-auto
    fm.recipe("correct-auto").tables

What the file says itself goes before the recipe, key by key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError

# Labels are corrected among those who label: they have more rows in common than all parties.
CORRECT: dict[str, Any] = {"name": "inc", "among": "labellers"}
INFER: dict[str, Any] = {"name": "dawid-skene", "among": "labellers"}  # from the votes alone
AUTO: dict[str, Any] = {"name": "auto"}


@dataclass(frozen=True)
class Recipe:
    """A name, what it does and when to take it, and the tables of a federation.toml."""

    name: str
    words: str
    tables: dict[str, Any]

    @property
    def stages(self) -> list[str]:
        """What happens, in order.

        >>> recipe("correct-auto").stages
        ['inc', 'auto']
        """
        return [self.tables["correct"]["name"], *(each["name"] for each in self.tables["method"])]


RECIPES: dict[str, Recipe] = {
    each.name: each
    for each in (
        Recipe(
            "correct-auto",
            "several parties label and err, few rows are known to all: correct the labels while "
            "learning from the annotators' columns, then hear trees and networks as far as "
            "held-out rows say",
            {"correct": CORRECT, "method": [AUTO]},
        ),
        Recipe(
            "infer-auto",
            "the same with labels inferred from the votes alone: quicker, fewer bytes, and for "
            "labellers without columns of their own",
            {"correct": INFER, "method": [AUTO]},
        ),
    )
}


def recipe(name: str) -> Recipe:
    """A recipe by name."""
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}: {did_you_mean(name, RECIPES)}")
    return RECIPES[name]
