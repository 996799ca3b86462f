"""Parameters of estimators as a file gives them: known names, fitting types, sensible values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fedmend._parameters import fits, type_words
from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError

__all__ = ["parameter_problems"]


def parameter_problems(where: str, kind: Any, given: Mapping[str, Any]) -> Iterator[str]:
    """All that is wrong with the parameters given for an estimator's class, each with its mend."""
    estimator, hints, fitting = kind(), kind.parameter_types(), {}
    known = estimator.get_params()
    preset = given.get("preset")
    if isinstance(preset, str) and preset in kind.PRESETS:
        estimator = kind.preset(preset)
    elif preset is not None:
        yield f"{where}.preset = {preset!r} is not known: {did_you_mean(str(preset), kind.PRESETS)}"
    for key, value in given.items():
        if key == "preset":
            continue
        if key == "seed":
            yield f"{where}.{key} = {value!r}: seeds stand in one place. Mend: set run.seed"
        elif key not in known:
            yield f"{where}.{key} = {value!r} is not known: {did_you_mean(key, known)}"
        elif not fits(value, hints.get(key, Any)):
            yield (
                f"{where}.{key} must be {type_words(hints[key])}, got {value!r}. "
                f"Mend: {_default(known[key])}"
            )
        else:
            fitting[key] = value
    try:
        estimator.set_params(**fitting)
        estimator.check_params()
    except ConfigError as error:
        yield from (f"{where}.{problem}" for problem in error.problems)


def _default(value: Any) -> str:
    return "leave it out" if value is None else f"the default is {json.dumps(value)}"
