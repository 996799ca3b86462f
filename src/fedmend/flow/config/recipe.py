"""``recipe = "…"``: tables of a federation.toml by name, below what the file says itself."""

from __future__ import annotations

import copy
from typing import Any

from fedmend._suggest import did_you_mean

__all__ = ["RecipeUnknown", "with_recipe"]


class RecipeUnknown(ValueError):
    """There is no recipe of this name; the message has the mend."""


def with_recipe(raw: dict[str, Any], name: str | None) -> dict[str, Any]:
    """The file's content over the recipe's: tables key by key, methods by their names.

    Methods that only the file has are trained beside the recipe's, to compare.
    """
    from fedmend.methods.recipes import RECIPES

    if name is None:
        return raw
    if name not in RECIPES:
        raise RecipeUnknown(f"recipe = {name!r} is not known: {did_you_mean(name, RECIPES)}")
    tables = copy.deepcopy(dict(RECIPES[name].tables))
    merged = {**raw, "recipe": name}
    for key, table in tables.items():
        if key == "method":
            merged[key] = _methods(table, raw.get("method"))
        elif isinstance(raw.get(key, {}), dict):
            merged[key] = {**table, **raw.get(key, {})}
    return merged


def _methods(ours: list[dict[str, Any]], theirs: Any) -> list[Any]:
    listed = theirs if isinstance(theirs, list) else [] if theirs is None else [theirs]
    names = [each["name"] for each in ours]
    # Compared, not looked up: what the file calls a name may be anything.
    same = [each for each in listed if isinstance(each, dict) and each.get("name") in names]
    named = {each["name"]: each for each in same}
    taken = [{**each, **named.get(each["name"], {})} for each in ours]
    rest = [each for each in listed if not isinstance(each, dict) or each.get("name") not in names]
    return taken + rest
