"""Recipes: mends in the order that worked best together, by name.

What each stage is good for alone, and which orders win, is measured by `fedmend bench flow`
(docs/recipes.md). A recipe is what would stand in a federation.toml:

    recipe = "correct-complete-vfl"          # in the file, above its tables
    fedmend run --recipe correct-complete-vfl
    fm.recipe("correct-complete-vfl").tables

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
COMPLETE: dict[str, Any] = {"name": "fedpsg-pum"}


@dataclass(frozen=True)
class Recipe:
    """A name, what it does and when to take it, and the tables of a federation.toml."""

    name: str
    words: str
    tables: dict[str, Any]

    @property
    def stages(self) -> list[str]:
        """What happens, in order.

        >>> recipe("correct-complete-vfl").stages
        ['inc', 'fedpsg-pum', 'vfl']
        """
        before = [self.tables[key]["name"] for key in ("correct", "complete") if key in self.tables]
        return before + [method["name"] for method in self.tables["method"]]


RECIPES: dict[str, Recipe] = {
    each.name: each
    for each in (
        Recipe(
            "correct-complete-vfl",
            "several parties label and err, few rows are known to all: correct the labels, "
            "complete the rows, train one network on all of them",
            {"correct": CORRECT, "complete": COMPLETE, "method": [{"name": "vfl"}]},
        ),
        Recipe(
            "infer-complete-vfl",
            "the same with labels inferred from the votes alone: quicker, and for labellers "
            "without columns of their own",
            {"correct": INFER, "complete": COMPLETE, "method": [{"name": "vfl"}]},
        ),
        Recipe(
            "correct-local-vfl",
            "several parties label and err: correct the labels, then train on all labelled rows, "
            "the absent side at its mean; the quick one",
            {"correct": CORRECT, "method": [{"name": "local-vfl"}]},
        ),
        Recipe(
            "correct-risa",
            "several parties label and err, and many rows to predict are known to one party: "
            "correct the labels, then learn by evidence, which also says how sure it is",
            {"correct": CORRECT, "method": [{"name": "risa"}]},
        ),
        Recipe(
            "correct-complete-risa",
            "several parties label and err, few rows are known to all: correct the labels, "
            "complete the rows, and learn by evidence, which believes completed rows as far as "
            "their cells deserve it and says how sure it is",
            {"correct": CORRECT, "complete": COMPLETE, "method": [{"name": "risa"}]},
        ),
        Recipe(
            "complete-vfl",
            "one party labels and is right, few rows are known to all: complete the rows, train "
            "one network on all of them",
            {"complete": COMPLETE, "method": [{"name": "vfl"}]},
        ),
    )
}


def recipe(name: str) -> Recipe:
    """A recipe by name."""
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}: {did_you_mean(name, RECIPES)}")
    return RECIPES[name]
