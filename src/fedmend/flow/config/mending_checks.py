"""What must hold between the mending tables of a federation.toml and the rest of it.

``[complete]``, ``[correct]``, a method chosen by cross-validation, and ``[predict]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedmend._suggest import did_you_mean
from fedmend.flow.config.naming import AUTO
from fedmend.flow.config.parameters import parameter_problems
from fedmend.flow.config.shapes import shape_of
from fedmend.methods.registry import (
    ANNOTATED,
    COMPLETIONS,
    HORIZONTAL,
    METHODS,
    method_class,
)

__all__ = ["holders_of", "known_methods", "mending_problems", "tables_of"]

AUTO_KEYS = ("name", "title", "candidates", "folds", "budget")


def mending_problems(raw: Mapping[str, Any]) -> Iterator[str]:
    """All of them."""
    yield from _complete(raw)
    yield from _correct(raw)
    yield from _auto(raw)
    yield from _alone(raw)


def tables_of(raw: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The tables of a list of tables; names that are no text are left out."""
    found = raw.get(key)
    tables = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return [
        {key: value for key, value in each.items() if key != "name" or isinstance(value, str)}
        for each in tables
    ]


def holders_of(raw: Mapping[str, Any]) -> list[str]:
    """The parties with a label column."""
    parties = tables_of(raw, "party")
    return [
        str(party.get("name", number))
        for number, party in enumerate(parties, 1)
        if "label" in party
    ]


def known_methods(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [each for each in tables_of(raw, "method") if each.get("name") in METHODS]


def _complete(raw: Mapping[str, Any]) -> Iterator[str]:
    complete = raw.get("complete")
    if not isinstance(complete, dict):
        return
    name = complete.get("name", "fedpsg-pum")
    if isinstance(name, str) and name not in COMPLETIONS:
        yield f"complete.name = {name!r} does not complete rows: {did_you_mean(name, COMPLETIONS)}"
    elif isinstance(name, str):
        own = ("name", "also_unmended", "export", "export_format", "pairs")
        params = {key: value for key, value in complete.items() if key not in own}
        yield from parameter_problems("complete", COMPLETIONS[name].load(), params)
    names = [str(party.get("name")) for party in tables_of(raw, "party")]
    source = complete.get("source")
    if isinstance(source, str) and source not in names:
        yield f"complete.source = {source!r} is not a party: {did_you_mean(source, names)}"
    if len(names) == 1:
        yield "complete needs two parties, one to complete the other's rows. Mend: remove it"
    align = raw.get("align")
    if isinstance(align, dict) and align.get("mode") == "same-order":
        yield (
            'complete and align.mode = "same-order": all parties know all rows, so there is '
            'nothing to complete. Mend: remove complete, or mode = "ecdh"'
        )
    methods = known_methods(raw)
    auto = any(each.get("name") == AUTO for each in tables_of(raw, "method"))
    if methods and not auto and not any(METHODS[method["name"]].partners for method in methods):
        yield (
            "complete: no method uses completed rows, because local looks at one party's own. "
            'Mend: add [[method]] name = "vfl"'
        )


def _correct(raw: Mapping[str, Any]) -> Iterator[str]:
    correct = raw.get("correct")
    if not isinstance(correct, dict):
        return
    name, holders = correct.get("name", "inc"), holders_of(raw)
    if isinstance(name, str) and name not in ANNOTATED:
        yield f"correct.name = {name!r} does not correct labels: {did_you_mean(name, ANNOTATED)}"
    elif isinstance(name, str):
        own = ("name", "to", "labellers", "among", "least", "rows", "also_uncorrected")
        params = {key: value for key, value in correct.items() if key not in own}
        yield from parameter_problems("correct", method_class(name), params)
    if len(holders) == 1:
        yield (
            f"[correct] needs several parties that label, but only {holders[0]} does. "
            'Mend: add label = "column" to another party, or remove [correct]'
        )
    asked = correct.get("labellers")
    labellers = [each for each in asked if isinstance(each, str)] if isinstance(asked, list) else []
    for each in labellers:
        if holders and each not in holders:
            yield f"correct.labellers: {each!r} has no label: {did_you_mean(each, holders)}"
    to, able = correct.get("to"), labellers or holders
    if isinstance(to, str) and able and to not in able:
        yield f"correct.to = {to!r} is none of the labellers: {did_you_mean(to, able)}"
    if correct.get("rows") == "completed" and "complete" not in raw:
        yield (
            'correct.rows = "completed", but nothing is completed. '
            'Mend: add [complete], or rows = "aligned"'
        )
    if correct.get("rows") == "completed" and correct.get("among") == "labellers":
        yield (
            'correct.rows = "completed" and among = "labellers": rows are completed for all '
            'parties, not among labellers. Mend: rows = "aligned", or among = "all"'
        )
    methods = tables_of(raw, "method")
    if methods and all(each.get("name") in ANNOTATED for each in methods):
        yield (
            "[correct]: every method learns from several labellers itself, so that none uses the "
            'corrected labels. Mend: add [[method]] name = "vfl", or remove [correct]'
        )


def _auto(raw: Mapping[str, Any]) -> Iterator[str]:
    autos = [each for each in tables_of(raw, "method") if each.get("name") == AUTO]
    if len(autos) > 1:
        yield f'method: {len(autos)} methods are "{AUTO}". Mend: keep one, with all candidates'
    for auto in autos[:1]:
        yield from _auto_values(auto)
        names = auto.get("candidates")
        shape = shape_of(raw)
        for name in names if isinstance(names, list) else ():
            if not isinstance(name, str) or name not in METHODS:
                hint = did_you_mean(str(name), METHODS)
                yield f"method[{AUTO}].candidates: {name!r} is not a method: {hint}"
            elif (name in HORIZONTAL) != (shape == "horizontal"):
                yield (
                    f"method[{AUTO}].candidates: {name!r} is for the other shape of federation. "
                    f"Mend: leave it out; run.shape is {shape!r} here"
                )
            elif name in ANNOTATED and "correct" in raw:
                yield (
                    f"method[{AUTO}].candidates: {name!r} learns from several labellers, the "
                    "others from the corrected labels, which cannot be compared. Mend: leave it out"
                )
    if len(tables_of(raw, "party")) == 1 and autos:
        yield f'method "{AUTO}" compares methods on rows several parties know. Mend: name = "local"'


def _auto_values(auto: Mapping[str, Any]) -> Iterator[str]:
    where = f"method[{AUTO}]"
    names = auto.get("candidates")
    if names is not None and not (isinstance(names, list) and names):
        yield f'{where}.candidates must be a list of methods, got {names!r}. Mend: ["vfl"]'
    folds = auto.get("folds", 3)
    if not isinstance(folds, int) or isinstance(folds, bool) or folds < 2:
        yield f"{where}.folds must be a whole number from 2, got {folds!r}. Mend: folds = 3"
    budget = auto.get("budget", 120)
    if not isinstance(budget, int | float) or isinstance(budget, bool) or budget <= 0:
        yield f"{where}.budget must be seconds above 0, got {budget!r}. Mend: budget = 120"
    asked = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    known = [name for name in asked if name in METHODS]
    classes = [method_class(name)() for name in known or ("local-vfl", "risa", "inc", "sage")]
    for key, value in auto.items():
        if key in AUTO_KEYS:
            continue
        takers = [each for each in classes if key in each.get_params()]
        if not takers:
            every = sorted({name for each in classes for name in each.get_params()})
            yield f"{where}.{key} = {value!r} is not known: {did_you_mean(key, every)}"
        else:
            yield from parameter_problems(where, type(takers[0]), {key: value})


def _alone(raw: Mapping[str, Any]) -> Iterator[str]:
    predict = raw.get("predict")
    asked = predict.get("alone") if isinstance(predict, dict) else None
    names = [str(party.get("name")) for party in tables_of(raw, "party")]
    for name in asked if isinstance(asked, list) else ():
        if name not in names:
            yield f"predict.alone: {name!r} is not a party: {did_you_mean(str(name), names)}"
