"""What must hold between the values of a federation.toml.

These checks look at the raw file and forgive what is malformed in it, so that their findings
stand beside those of single values instead of after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedmend._suggest import did_you_mean
from fedmend.data.schema import KINDS as COLUMN_KINDS
from fedmend.errors import ConfigError
from fedmend.federation.ledger import COORDINATOR
from fedmend.federation.policy import Policy
from fedmend.flow.config.environment import reference_problems
from fedmend.flow.config.mending_checks import (
    holders_of,
    known_methods,
    mending_problems,
    tables_of,
)
from fedmend.flow.config.naming import AUTO, COMPLETED, CORRECTED, MAJORITY, METRICS, slug_of
from fedmend.flow.config.parameters import parameter_problems
from fedmend.flow.config.shapes import shape_of, shape_problems
from fedmend.methods.registry import ANNOTATED, METHODS, method_class

__all__ = ["cross_problems"]


def cross_problems(raw: Mapping[str, Any]) -> list[str]:
    """Everything wrong between the values of a file, each with its mend."""
    return [problem for check in _CHECKS for problem in check(raw)]


def _where(party: Mapping[str, Any], number: int) -> str:
    return f"party[{party.get('name', number)}]"


def _party_names(raw: Mapping[str, Any]) -> Iterator[str]:
    names = [party.get("name") for party in tables_of(raw, "party")]
    for name in dict.fromkeys(names):
        if names.count(name) > 1 and name is not None:
            yield f"party[{name}].name = {name!r} is given {names.count(name)} times. Mend: rename"
    if COORDINATOR in names:
        yield f"party[{COORDINATOR}].name = {COORDINATOR!r} is taken. Mend: use another name"


def _party_sources(raw: Mapping[str, Any]) -> Iterator[str]:
    for number, party in enumerate(tables_of(raw, "party"), 1):
        where = _where(party, number)
        if "data" in party and "sql" in party:
            yield f"{where} has both data and sql. Mend: keep one of them"
        # Parties on machines of their own say in their party.toml where their table is.
        if "data" not in party and "sql" not in party and "flare" not in raw:
            yield f'{where} has no table. Mend: add data = "file.csv", or sql and uri'
        for key in ("sql", "test_sql"):
            if key in party and "uri" not in party:
                yield f'{where}.{key} needs a database. Mend: add uri = "sqlite:///file.db"'
        if "test" in party and "test_sql" in party:
            yield f"{where} has both test and test_sql. Mend: keep one of them"
        yield from reference_problems(where, party)
        if "label" in party and party.get("label") == party.get("id"):
            yield f"{where}.label = {party['label']!r} is the id too. Mend: name two columns"


def _seeds(raw: Mapping[str, Any]) -> Iterator[str]:
    run = raw.get("run")
    given = run if isinstance(run, dict) else {}
    seeds = given["seeds"] if isinstance(given.get("seeds"), list) else []
    for seed in [given.get("seed"), *seeds]:
        if isinstance(seed, int) and seed >= 2**63:
            yield f"run: a seed has 63 bits at most, got {seed}. Mend: seed = 0"
    twice = sorted({seed for seed in seeds if isinstance(seed, int) and seeds.count(seed) > 1})
    if twice:
        yield (
            f"run.seeds: {', '.join(map(str, twice))} is given more than once, and the same seed "
            "gives the same result. Mend: seeds = [0, 1, 2]"
        )


def _labels(raw: Mapping[str, Any]) -> Iterator[str]:
    if tables_of(raw, "party") and not holders_of(raw):
        yield 'no party has a label. Mend: add label = "column" to the party that has it'


def _labellers(raw: Mapping[str, Any]) -> Iterator[str]:
    """Every method finds the labels it needs: one party's, or those of several."""
    if shape_of(raw) == "horizontal":
        return
    holders = holders_of(raw)
    told = ", ".join(holders)
    methods = known_methods(raw) or ([] if "method" in raw else [{"name": "vfl"}])
    for method in methods:
        where, party = f"method[{method['name']}]", method.get("label_party")
        if method["name"] in ANNOTATED:
            if len(holders) == 1:
                yield (
                    f"{where} learns from several labellers, but only {told} has a label. "
                    'Mend: add label = "column" to another party, or name = "vfl"'
                )
            chosen = method.get("label_parties")
            for name in chosen if isinstance(chosen, list) and holders else ():
                if name not in holders:
                    hint = did_you_mean(str(name), holders)
                    yield f"{where}.label_parties: {name!r} has no label: {hint}"
        elif isinstance(party, str) and holders and party not in holders:
            yield f"{where}.label_party = {party!r} has no label: {did_you_mean(party, holders)}"
        elif party is None and len(holders) > 1 and "correct" not in raw:
            yield (
                f"several parties have a label: {told}; {where} learns from one of them. Mend: "
                f'label_party = "{holders[0]}", a method for several ({", ".join(ANNOTATED)}), or '
                "[correct], which makes one label of them"
            )


def _reference(raw: Mapping[str, Any]) -> Iterator[str]:
    """All methods must be measured against the same labels."""
    evaluate, holders = raw.get("evaluate"), holders_of(raw)
    reference = evaluate.get("reference") if isinstance(evaluate, dict) else None
    if isinstance(reference, str) and holders and reference not in (*holders, MAJORITY):
        hint = did_you_mean(reference, [*holders, MAJORITY])
        yield f"evaluate.reference = {reference!r} has no label: {hint}"
    if reference == MAJORITY and len(holders) == 1:
        yield (
            f"evaluate.reference = {MAJORITY!r}, but only {holders[0]} has a label. "
            "Mend: leave it out"
        )
    methods = known_methods(raw)
    told = {
        method["label_party"]
        for method in methods
        if method["name"] not in ANNOTATED and isinstance(method.get("label_party"), str)
    }
    if reference is None and len(told) > 1:
        yield (
            "the methods have different label parties, and nothing says whose test labels count. "
            f'Mend: evaluate.reference = "{holders[0] if holders else "bank"}" or "{MAJORITY}"'
        )


def _test_tables(raw: Mapping[str, Any]) -> Iterator[str]:
    parties = tables_of(raw, "party")
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
    for number, party in enumerate(tables_of(raw, "party"), 1):
        kinds = party.get("kinds")
        for column, kind in kinds.items() if isinstance(kinds, dict) else ():
            if isinstance(kind, str) and kind not in COLUMN_KINDS:
                hint = did_you_mean(kind, COLUMN_KINDS)
                yield f"{_where(party, number)}.kinds.{column} = {kind!r} is not a kind: {hint}"


def _policies(raw: Mapping[str, Any]) -> Iterator[str]:
    for number, party in enumerate(tables_of(raw, "party"), 1):
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
    for number, method in enumerate(tables_of(raw, "method"), 1):
        name = method.get("name")
        if not isinstance(name, str):
            continue
        if name == AUTO:
            continue
        if name not in METHODS:
            hint = did_you_mean(name, [*METHODS, AUTO])
            yield f"method[{number}].name = {name!r} is not a method: {hint}"
            continue
        shown = str(method.get("title") or METHODS[name].class_name)
        titles.append(shown)
        if "complete" in raw and METHODS[name].partners:
            titles.append(shown + COMPLETED)
        if "correct" in raw and name not in ANNOTATED:
            titles.append(shown + CORRECTED)
        params = {key: value for key, value in method.items() if key not in ("name", "title")}
        yield from parameter_problems(f"method[{name}]", method_class(name), params)
    # Files are named after titles, so that they must differ in more than signs.
    slugs = [slug_of(title) for title in titles]
    for slug in dict.fromkeys(slugs):
        if slugs.count(slug) > 1:
            yield (
                f"method: {slugs.count(slug)} methods are shown as {titles[slugs.index(slug)]!r}. "
                'Mend: give each its own title = "…"'
            )


def _metrics(raw: Mapping[str, Any]) -> Iterator[str]:
    evaluate = raw.get("evaluate")
    metrics = evaluate.get("metrics") if isinstance(evaluate, dict) else None
    for metric in metrics if isinstance(metrics, list) else ():
        if isinstance(metric, str) and metric not in METRICS:
            yield f"evaluate.metrics: {metric!r} is not a metric: {did_you_mean(metric, METRICS)}"


_CHECKS: tuple[Callable[[Mapping[str, Any]], Iterator[str]], ...] = (
    _party_names,
    _party_sources,
    shape_problems,
    _seeds,
    _labels,
    _labellers,
    _reference,
    _test_tables,
    _column_kinds,
    _policies,
    _methods,
    mending_problems,
    _metrics,
)
