"""What must hold between the values of a federation.toml.

These checks look at the raw file and forgive what is malformed in it, so that their findings
stand beside those of single values instead of after them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedmend._suggest import did_you_mean
from fedmend.data.schema import KINDS as COLUMN_KINDS
from fedmend.errors import ConfigError
from fedmend.federation.ledger import COORDINATOR
from fedmend.federation.policy import Policy
from fedmend.learn.metrics import CLASSIFICATION, REGRESSION

__all__ = ["METHODS", "METRICS", "cross_problems", "method_class"]

METHODS: dict[str, tuple[str, str]] = {
    "local": ("Local", "the label party alone, with its own columns"),
    "vfl": ("VFL", "all parties together, on the rows known to all"),
    "local-vfl": ("LocalVFL", "all parties and all labelled rows, zeros where a side is missing"),
}
METRICS = (*CLASSIFICATION, *REGRESSION)


def cross_problems(raw: Mapping[str, Any]) -> list[str]:
    """Everything wrong between the values of a file, each with its mend."""
    return [problem for check in _CHECKS for problem in check(raw)]


def _tables(raw: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = raw.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _where(party: Mapping[str, Any], number: int) -> str:
    return f"party[{party.get('name', number)}]"


def _party_names(raw: Mapping[str, Any]) -> Iterator[str]:
    names = [party.get("name") for party in _tables(raw, "party")]
    for name in dict.fromkeys(names):
        if names.count(name) > 1 and name is not None:
            yield f"party[{name}].name = {name!r} is given {names.count(name)} times. Mend: rename"
    if COORDINATOR in names:
        yield f"party[{COORDINATOR}].name = {COORDINATOR!r} is taken. Mend: use another name"


def _party_sources(raw: Mapping[str, Any]) -> Iterator[str]:
    for number, party in enumerate(_tables(raw, "party"), 1):
        where = _where(party, number)
        if "data" in party and "sql" in party:
            yield f"{where} has both data and sql. Mend: keep one of them"
        if "data" not in party and "sql" not in party:
            yield f'{where} has no table. Mend: add data = "file.csv", or sql and uri'
        for key in ("sql", "test_sql"):
            if key in party and "uri" not in party:
                yield f'{where}.{key} needs a database. Mend: add uri = "sqlite:///file.db"'
        if "test" in party and "test_sql" in party:
            yield f"{where} has both test and test_sql. Mend: keep one of them"
        if "label" in party and party.get("label") == party.get("id"):
            yield f"{where}.label = {party['label']!r} is the id too. Mend: name two columns"


def _labels(raw: Mapping[str, Any]) -> Iterator[str]:
    parties = _tables(raw, "party")
    holders = [_where(party, number) for number, party in enumerate(parties, 1) if "label" in party]
    if parties and not holders:
        yield 'no party has a label. Mend: add label = "column" to the party that has it'
    if len(holders) > 1:
        yield f"several parties have a label: {', '.join(holders)}. Mend: keep it at one of them"


def _test_tables(raw: Mapping[str, Any]) -> Iterator[str]:
    parties = _tables(raw, "party")
    with_test = [party for party in parties if "test" in party or "test_sql" in party]
    if with_test and len(with_test) < len(parties):
        for number, party in enumerate(parties, 1):
            if party not in with_test:
                yield (
                    f"{_where(party, number)}.test is missing, while others have one. "
                    "Mend: give it a test table too, or remove the others'"
                )
    evaluate = raw.get("evaluate")
    if with_test and isinstance(evaluate, dict) and "test_share" in evaluate:
        yield (
            f"evaluate.test_share = {evaluate['test_share']!r} and test tables are both given. "
            "Mend: keep one of them"
        )


def _column_kinds(raw: Mapping[str, Any]) -> Iterator[str]:
    for number, party in enumerate(_tables(raw, "party"), 1):
        kinds = party.get("kinds")
        for column, kind in kinds.items() if isinstance(kinds, dict) else ():
            if isinstance(kind, str) and kind not in COLUMN_KINDS:
                hint = did_you_mean(kind, COLUMN_KINDS)
                yield f"{_where(party, number)}.kinds.{column} = {kind!r} is not a kind: {hint}"


def _policies(raw: Mapping[str, Any]) -> Iterator[str]:
    for number, party in enumerate(_tables(raw, "party"), 1):
        policy = party.get("policy")
        if not isinstance(policy, dict):
            continue
        given = {
            key: policy[key]
            for key in ("allow", "refuse")
            if isinstance(policy.get(key), list) and all(isinstance(k, str) for k in policy[key])
        }
        try:
            Policy(**given)
        except ConfigError as error:
            yield from (f"{_where(party, number)}.{problem}" for problem in error.problems)


def _methods(raw: Mapping[str, Any]) -> Iterator[str]:
    titles: list[str] = []
    for number, method in enumerate(_tables(raw, "method"), 1):
        name = method.get("name")
        if not isinstance(name, str):
            continue
        if name not in METHODS:
            yield f"method[{number}].name = {name!r} is not a method: {did_you_mean(name, METHODS)}"
            continue
        titles.append(str(method.get("title") or METHODS[name][0]))
        params = {key: value for key, value in method.items() if key not in ("name", "title")}
        yield from _parameters(name, params)
    for title in dict.fromkeys(titles):
        if titles.count(title) > 1:
            yield (
                f"method: {titles.count(title)} methods are shown as {title!r}. "
                'Mend: give each its own title = "…"'
            )


def _parameters(name: str, params: Mapping[str, Any]) -> Iterator[str]:
    estimator = method_class(name)()
    known = estimator.get_params()
    fitting = {}
    for key, value in params.items():
        where = f"method[{name}].{key}"
        if key == "seed":
            yield f"{where} = {value!r}: seeds stand in one place. Mend: set run.seed"
        elif key not in known:
            yield f"{where} = {value!r} is not known: {did_you_mean(key, known)}"
        elif (wanted := _unlike(value, known[key])) is not None:
            default = json.dumps(known[key])
            yield f"{where} must be {wanted}, however: {value!r}. Mend: the default is {default}"
        else:
            fitting[key] = value
    try:
        estimator.set_params(**fitting)._config()
    except ConfigError as error:
        yield from (f"method[{name}].{problem}" for problem in error.problems)


def _unlike(value: Any, default: Any) -> str | None:
    """What a value should be, judged by the default, when it is something else."""
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, int):
        fits = isinstance(value, int) and not isinstance(value, bool)
        return None if fits else "a whole number"
    if isinstance(default, float):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        return None if fits else "a number"
    if isinstance(default, tuple):
        fits = isinstance(value, list) and all(_unlike(each, 0) is None for each in value)
        return None if fits else "a list of whole numbers"
    return None if isinstance(value, str) else "text in quotes"


def _metrics(raw: Mapping[str, Any]) -> Iterator[str]:
    evaluate = raw.get("evaluate")
    metrics = evaluate.get("metrics") if isinstance(evaluate, dict) else None
    for metric in metrics if isinstance(metrics, list) else ():
        if isinstance(metric, str) and metric not in METRICS:
            yield f"evaluate.metrics: {metric!r} is not a metric: {did_you_mean(metric, METRICS)}"


_CHECKS: tuple[Callable[[Mapping[str, Any]], Iterator[str]], ...] = (
    _party_names,
    _party_sources,
    _labels,
    _test_tables,
    _column_kinds,
    _policies,
    _methods,
    _metrics,
)


def method_class(name: str) -> Any:
    """The estimator of a method's name."""
    import fedmend

    if name not in METHODS:
        raise ConfigError(f"{name!r} is not a method: {did_you_mean(name, METHODS)}")
    return getattr(fedmend, METHODS[name][0])
