"""Parameters of estimators as a file gives them: known names, fitting types, sensible values."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError

__all__ = ["parameter_problems", "type_words"]

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
}
_MANY = {int: "a list of whole numbers", float: "a list of numbers", str: "a list of texts"}
# By preference: a hook made for it, the checks that `fit` begins with, the network's settings.
_HOOKS = ("check_params", "_check", "_config")


def parameter_problems(where: str, estimator: Any, given: Mapping[str, Any]) -> Iterator[str]:
    """All that is wrong with the parameters given for an estimator, each with its mend."""
    known = estimator.get_params()
    hints = {
        name: hint
        for each in reversed(type(estimator).__mro__)
        if "__init__" in vars(each)
        for name, hint in get_type_hints(vars(each)["__init__"]).items()
    }
    fitting = {}
    for key, value in given.items():
        if key == "seed":
            yield f"{where}.{key} = {value!r}: seeds stand in one place. Mend: set run.seed"
        elif key not in known:
            yield f"{where}.{key} = {value!r} is not known: {did_you_mean(key, known)}"
        elif not _fits(value, hints[key]):
            yield (
                f"{where}.{key} must be {type_words(hints[key])}, however: {value!r}. "
                f"Mend: {_default(known[key])}"
            )
        else:
            fitting[key] = value
    try:
        estimator.set_params(**fitting)
        hook = next(name for name in _HOOKS if hasattr(estimator, name))
        getattr(estimator, hook)()
    except ConfigError as error:
        yield from (f"{where}.{problem}" for problem in error.problems)


def _default(value: Any) -> str:
    return "leave it out" if value is None else f"the default is {json.dumps(value)}"


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of a TOML file is what an annotation asks for."""
    origin = get_origin(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if origin is tuple or origin is Sequence:
        item = get_args(hint)[0]
        return isinstance(value, list) and all(_fits(each, item) for each in value)
    if origin is Mapping:
        return isinstance(value, dict)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def type_words(hint: Any) -> str:
    """An annotation for people who read no code: ``a number or text in quotes``."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        parts = [type_words(each) for each in get_args(hint) if each is not type(None)]
        return " or ".join(parts)
    if origin is tuple or origin is Sequence:
        return _MANY.get(get_args(hint)[0], "a list")
    if origin is Mapping:
        return "a table"
    return _WORDS.get(hint, "another value")
