"""Reading a federation.toml: every problem found is in one ConfigError.

Problems of single values come from pydantic, and are told as key, value and mend. What must hold
between the values is looked at without those that are malformed, so that all come together.
"""

from __future__ import annotations

import contextlib
import copy
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedmend._parameters import fits, type_words
from fedmend._suggest import closest, did_you_mean
from fedmend.data.schema import KINDS as COLUMN_KINDS
from fedmend.errors import ConfigError
from fedmend.federation.ledger import COORDINATOR
from fedmend.flow.config.references import reference_problems
from fedmend.flow.config.settings import (
    AUTO,
    CORRECTED,
    MAJORITY,
    TABLES,
    WEIGHTS,
    AutoSettings,
    Config,
    PartySettings,
    party_name_of,
    slug_of,
)
from fedmend.learn.metrics import CLASSIFICATION, REGRESSION
from fedmend.methods.recipes import RECIPES
from fedmend.methods.registry import ANNOTATED, COMPLETIONS, HORIZONTAL, METHODS, method_class
from fedmend.report.record import COMPLETED

_EXAMPLES = {
    "name": '"bank"', "data": '"bank.csv"', "id": '"customer"', "label": '"default"',
    "party": "[[party]] with a name and data", "seed": "0", "seeds": "[0, 1, 2]",
    "test_share": "0.25", "metrics": '["auc", "accuracy"]', "minimum": "10", "device": '"cpu"',
    "strict": "true", "min_rows": "10", "folder": '"runs/first"', "min_intersection": "10",
    "title": '"Our run"', "candidates": '["vfl"]', "folds": "3", "budget": "120",
    "to": '"bank"', "labellers": '["bank", "telco"]', "alone": '["telco"]', "least": "0.6",
    "recipe": '"correct-auto"', "leave_out": '["report"]', "keep_stages": "false",
    "reference": '"bank"', "export": "true", "also_unmended": "true", "label_review": "true",
}  # fmt: skip
_MUST_BE = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "list_type": "a list in [ ]",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
METRICS = (*CLASSIFICATION, *REGRESSION)
Settings = TypeVar("Settings", bound=BaseModel)


def load_config(path: str | Path, *, recipe: str | None = None) -> Config:
    """Read and check a federation.toml; all its problems come in one ConfigError.

    recipe: a recipe's name, in place of the one that the file names.
    """
    path = Path(path)
    raw = _parse(path)
    given = raw.get("method", [])
    methods = [{"name": given}] if isinstance(given, str) else given
    methods = [methods] if isinstance(methods, dict) else methods
    problems: list[str] = []
    asked = recipe or raw.get("recipe")
    if isinstance(asked, str) and asked not in RECIPES:
        problems.append(f"recipe = {asked!r} is not known: {did_you_mean(asked, RECIPES)}")
    elif isinstance(asked, str):
        raw, methods = _with_recipe(raw, asked, methods)
    run = raw.get("run")
    if "method" in raw or methods:
        raw = {**raw, "method": methods}
    elif isinstance(run, dict) and run.get("shape") == "horizontal":
        raw = {**raw, "method": [{"name": AUTO}]}
    config, found = checked(Config, raw, _cross_problems)
    problems += found
    if problems or config is None:
        raise ConfigError(list(dict.fromkeys(problems)), source=str(path))
    config._source = path
    return _with_task(config)


def _with_task(config: Config) -> Config:
    """What a party says of its label is a parameter of every method that has it."""
    if config.task is not None:
        config.method = [
            method.model_copy(update={"task": config.task})
            if method.name == AUTO or "task" in method_class(method.name).parameter_names()
            else method
            for method in config.method
        ]
    return config


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # as Windows writes it
    except FileNotFoundError:
        said = "there is no such file. Mend: 'fedmend init' writes one to start from"
    except OSError as error:
        said = f"cannot be read: {error.strerror}. Mend: name a federation.toml that you may read"
    except UnicodeDecodeError as error:
        said = f"is not UTF-8 (byte {error.start}). Mend: save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        said = f"is not TOML: {error}. Mend: text needs quotes, lists need [ ]"
    raise ConfigError(said, source=str(path))


def _with_recipe(raw: dict[str, Any], name: str, methods: Any) -> tuple[dict[str, Any], list[Any]]:
    """The file's content over the recipe's, key by key, and the methods of both.

    Methods that only the file has are trained beside the recipe's, to compare.
    """
    tables = copy.deepcopy(RECIPES[name].tables)
    theirs = methods if isinstance(methods, list) else [methods]
    ours = {each["name"]: each for each in tables.pop("method")}
    rest = []
    for each in theirs:
        # Compared, not looked up: what the file calls a name may be anything.
        called = each.get("name") if isinstance(each, dict) else None
        if isinstance(called, str) and called in ours:
            ours[called] |= each
        else:
            rest.append(each)
    merged = {
        key: {**table, **raw.get(key, {})}
        for key, table in tables.items()
        if isinstance(raw.get(key, {}), dict)
    }
    return {**raw, **merged, "recipe": name}, [*ours.values(), *rest]


# ---------------------------------------------------------------- single values


def checked(
    kind: type[Settings], raw: Mapping[str, Any], holds: Callable[[Settings], Iterable[str]]
) -> tuple[Settings | None, list[str]]:
    """The settings of a file, and all its problems.

    holds: the problems between values. It gets the settings without what is malformed; what a
    party calls its things is taken for text then, so that it does not seem to be missing.
    """
    rest, problems = copy.deepcopy(dict(raw)), list[str]()
    for _ in range(8):
        try:
            found = kind.model_validate(rest)
        except ValidationError as error:
            errors = {tuple(_location(each)): each for each in error.errors()}
            problems = problems or [problem_of(each, raw) for each in error.errors()]
            for location, each in reversed(errors.items()):
                with contextlib.suppress(LookupError, TypeError):
                    _leave_out(rest, location, each)
        else:
            return found, list(dict.fromkeys([*problems, *holds(found)]))
    return None, problems


def _leave_out(rest: Any, location: Sequence[Any], error: Any) -> None:
    *way, last = location
    above, here = rest, rest
    for part in way:
        above, here = here, here[part]
    in_party = not way or way[0] == "party"  # of a federation.toml, or a party.toml itself
    if last == "name" and in_party:
        here[last] = str(way[-1] + 1) if way else "party"
    elif error["type"] == "string_type" and in_party:
        here[last] = str(error["input"])
    elif last == "name" and way and isinstance(way[-1], int):
        del above[way[-1]]  # a method without a name is none
    else:
        del here[last]


def problem_of(error: Any, raw: Mapping[str, Any]) -> str:
    """One pydantic error as key, value and mend."""
    location = _location(error)
    key, last = _key_name(location, raw), str(location[-1])
    kind, value = error["type"], error["input"]
    if kind == "missing":
        example = '"vfl"' if key.startswith("method") else _EXAMPLES.get(last, "…")
        near = closest(last, [str(each) for each in value]) if isinstance(value, Mapping) else None
        mend = f"add {last} = {example}" if near is None else f"write {near!r} as {last!r}"
        return f"{key} is missing. Mend: {mend}"
    if kind == "extra_forbidden":
        homes = [table for table, model in TABLES.items() if last in model.model_fields]
        if len(homes) == 1:
            home = {"party": "[[party]]", "policy": "[party.policy]"}.get(homes[0], f"[{homes[0]}]")
            return f"{key} = {value!r} is not known there. Mend: write it under {home}"
        return f"{key} = {value!r} is not known: {did_you_mean(last, _known_keys(location))}"
    if kind == "too_short":
        return f"{key} is empty. Mend: give {_EXAMPLES.get(last, 'at least one')}"
    if kind == "value_error":  # a settings class of ours says it itself; the value may be a secret
        return f"{key}: {str(error['msg']).removeprefix('Value error, ')}"
    if kind == "string_pattern_mismatch" and last == "name":
        return _name_problem(key, str(value))
    if kind == "string_pattern_mismatch":
        wanted = {"device": "'cpu', 'cuda' or 'cuda:0'"}.get(last, "another text")
    elif kind == "literal_error":
        wanted = f"one of {error['ctx']['expected']}"
    else:
        said = str(error["msg"]).removeprefix("Input should be ").lower()
        wanted = _MUST_BE.get(kind, said)
    mend = f"for instance {last} = {_EXAMPLES[last]}" if last in _EXAMPLES else f"give {wanted}"
    return f"{key} must be {wanted}, got {value!r}. Mend: {mend}"


def _location(error: Any) -> list[Any]:
    """A union names its branches in the location; only keys and positions are the file's own."""
    return [
        part
        for part in error["loc"]
        if isinstance(part, int)
        or (part not in ("str", "int") and not part.startswith(("list[", "dict[")))
    ]


def _name_problem(key: str, name: str) -> str:
    """A party's name is also a folder's; what it stands for goes into the title."""
    plain = party_name_of(name)[:40].rstrip("-_.")
    return (
        f"{key} must be letters a to z, digits, '-', '_' and '.', 64 at most, got {name!r}. "
        f'Mend: for instance name = "{plain or "bank"}"'
    )


def _key_name(location: list[Any], raw: Mapping[str, Any]) -> str:
    """``party[bank].data``: entries of lists are named by their name where they have one."""
    text, here = "", raw
    for part in location:
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            here = {}
        if isinstance(part, int):
            name = here.get("name") if isinstance(here, Mapping) else None
            text += f"[{name if isinstance(name, str) else part + 1}]"
        else:
            text += f".{part}" if text else str(part)
    return text


def _known_keys(location: list[Any]) -> list[str]:
    model: type[BaseModel] = Config
    for part in location[:-1]:
        model = TABLES.get(str(part), model)
    return list(model.model_fields)


def parameter_problems(where: str, kind: Any, given: Mapping[str, Any]) -> Iterator[str]:
    """All that is wrong with the parameters given for an estimator's class, each with its mend."""
    estimator, hints, fitting = kind(), kind.parameter_types(), {}
    known = estimator.get_params()
    preset = given.get("preset")
    if isinstance(preset, str) and preset in kind.PRESETS:
        estimator = kind.preset(preset)
    elif preset is not None and not kind.PRESETS:
        yield f"{where}.preset = {preset!r}: it has none. Mend: leave it out"
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
            usual = known[key]
            mend = "leave it out" if usual is None else f"the default is {json.dumps(usual)}"
            yield f"{where}.{key} must be {type_words(hints[key])}, got {value!r}. Mend: {mend}"
        else:
            fitting[key] = value
    try:
        estimator.set_params(**fitting)
        estimator.check_params()
    except ConfigError as error:
        yield from (f"{where}.{problem}" for problem in error.problems)


# ---------------------------------------------------------------- between the values


def _cross_problems(config: Config) -> Iterator[str]:
    """Everything wrong between the values of a file, each with its mend."""
    for check in (
        _parties,
        _shape,
        _seeds,
        _annotators,
        _task,
        _reference,
        _test_tables,
        _methods,
        _weights,
        _complete,
        _correct,
        _auto,
        _evaluated_and_predicted,
    ):
        yield from check(config)


def _parties(config: Config) -> Iterator[str]:
    names = [party.name for party in config.party]
    if not names:
        yield f"party is missing. Mend: add {_EXAMPLES['party']}"
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"party[{name}].name = {name!r} is given {names.count(name)} times. Mend: rename"
    for party in config.party:
        # Parties on machines of their own say in their party.toml where their table is.
        yield from party_problems(party, elsewhere="flare" in config.model_fields_set)


def party_problems(party: PartySettings, *, elsewhere: bool = False) -> Iterator[str]:
    """What is wrong within a party. elsewhere: its table may be named in another file."""
    where = f"party[{party.name}]"
    for wrong, problem in (
        (party.name == COORDINATOR, f".name = {COORDINATOR!r} is taken. Mend: use another name"),
        (party.data and party.sql, " has both data and sql. Mend: keep one of them"),
        (
            party.data is None and party.sql is None and not elsewhere,
            ' has no table. Mend: add data = "file.csv", or sql and uri',
        ),
        (
            party.sql is not None and party.uri is None,
            '.sql needs a database. Mend: add uri = "sqlite:///file.db"',
        ),
        (
            party.test_sql is not None and party.uri is None,
            '.test_sql needs a database. Mend: add uri = "sqlite:///file.db"',
        ),
        (party.test and party.test_sql, " has both test and test_sql. Mend: keep one of them"),
        (
            party.label is not None and party.label == party.id,
            f".label = {party.label!r} is the id too. Mend: name two columns",
        ),
    ):
        if wrong:
            yield where + problem
    yield from reference_problems(where, party)
    for column, kind in party.kinds.items():
        if isinstance(kind, str) and kind not in COLUMN_KINDS:
            hint = did_you_mean(kind, COLUMN_KINDS)
            yield f"{where}.kinds.{column} = {kind!r} is not a kind: {hint}"
    try:
        absent = sorted({"control", "count"} - party.policy.build().may_leave)
    except ConfigError as error:
        yield from (f"{where}.{problem}" for problem in error.problems)
        return
    if absent:
        yield (
            f"{where}.policy keeps {absent[0]!r} back, which every run needs. Mend: allow names "
            "all kinds that may leave, not further ones; refuse takes some away"
        )


def _shape(config: Config) -> Iterator[str]:
    """Methods, alignment and completion that do not go together with the shape."""
    for name in [each.name for each in config.method if each.name != AUTO]:
        if not config.horizontal and name in HORIZONTAL:
            yield (
                f"method[{name}] needs parties with the same columns and different people. Mend: "
                'run.shape = "horizontal" and methods of that shape only'
            )
        if config.horizontal and name not in HORIZONTAL:
            yield (
                f"method[{name}] needs parties that know the same people. Mend: "
                f"one of {', '.join(HORIZONTAL)}"
            )
    if not config.horizontal:
        return
    for table, why in (
        ("align", "nobody is known to two parties, so there is nothing to align"),
        ("complete", "all parties have the same columns, so there is nothing to complete"),
        ("correct", "nobody is known to two parties, so that no row has two labels"),
    ):
        if table in config.model_fields_set:
            yield f'[{table}] and shape = "horizontal": {why}. Mend: remove [{table}]'
    if config.evaluate.reference is not None:
        yield (
            f"evaluate.reference = {config.evaluate.reference!r}: every party of a horizontal "
            "federation is measured on its own test rows. Mend: remove it"
        )


def _seeds(config: Config) -> Iterator[str]:
    seeds = config.run.seeds or []
    for seed in [config.run.seed, *seeds]:
        if seed >= 2**63:
            yield f"run: a seed has 63 bits at most, got {seed}. Mend: seed = 0"
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if twice:
        yield (
            f"run.seeds: {', '.join(map(str, twice))} is given more than once, and the same seed "
            "gives the same result. Mend: seeds = [0, 1, 2]"
        )


def _annotators(config: Config) -> Iterator[str]:
    """Every method finds the labels it needs: one party's, or those of several."""
    holders = config.labellers
    if config.party and not holders:
        yield 'no party has a label. Mend: add label = "column" to the party that has it'
    if config.horizontal:
        return
    for method in [each for each in config.method if each.name in METHODS]:
        where, party = f"method[{method.name}]", method.params.get("label_party")
        if method.name in ANNOTATED:
            if len(holders) == 1:
                yield (
                    f"{where} learns from several annotators, but only {holders[0]} has a label. "
                    'Mend: add label = "column" to another party, or name = "vfl"'
                )
            chosen = method.params.get("label_parties")
            for name in chosen if isinstance(chosen, list) and holders else ():
                if name not in holders:
                    hint = did_you_mean(str(name), holders)
                    yield f"{where}.label_parties: {name!r} has no label: {hint}"
        elif isinstance(party, str) and holders and party not in holders:
            yield f"{where}.label_party = {party!r} has no label: {did_you_mean(party, holders)}"
        elif party is None and len(holders) > 1 and config.correct is None and method.name != AUTO:
            yield (
                f"several parties have a label: {', '.join(holders)}; {where} learns from one of "
                f'them. Mend: label_party = "{holders[0]}", a method for several '
                f"({', '.join(ANNOTATED)}), or [correct], which makes one label of them"
            )


def _task(config: Config) -> Iterator[str]:
    """One label is one thing, for all methods."""
    said = {party.name: party.task for party in config.party if party.task is not None}
    for name in said:
        if name not in config.labellers:
            yield (
                f"party[{name}].task = {said[name]!r}, but {name} has no label. "
                'Mend: add label = "column", or remove task'
            )
    if len(set(said.values())) > 1:
        told = ", ".join(f"{task!r} at {name}" for name, task in said.items())
        yield f"task is {told}: the parties label the same. Mend: one task at all of them"
    for method in config.method if said else ():
        name, task = next(iter(said.items()))
        other = method.params.get("task")
        if other not in (None, task):
            yield (
                f"method[{method.name}].task = {other!r}, but party[{name}].task = {task!r}. "
                "Mend: keep the one beside the label, which is for all methods"
            )


def _reference(config: Config) -> Iterator[str]:
    """All methods must be measured against the same labels."""
    reference, holders = config.evaluate.reference, config.labellers
    if reference is not None and holders and reference not in (*holders, MAJORITY):
        hint = did_you_mean(reference, [*holders, MAJORITY])
        yield f"evaluate.reference = {reference!r} has no label: {hint}"
    if reference == MAJORITY and len(holders) == 1:
        yield (
            f"evaluate.reference = {MAJORITY!r}, but only {holders[0]} has a label. "
            "Mend: leave it out"
        )
    asked = {
        str(method.params["label_party"])
        for method in config.method
        if method.name in METHODS
        and method.name not in ANNOTATED
        and "label_party" in method.params
    }
    if reference is None and len(asked) > 1:
        yield (
            "the methods have different label parties, and nothing says whose test labels count. "
            f'Mend: evaluate.reference = "{holders[0] if holders else "bank"}" or "{MAJORITY}"'
        )


def _test_tables(config: Config) -> Iterator[str]:
    without = [party.name for party in config.party if not party.has_test]
    if len(without) == len(config.party):
        return
    for name in without:
        yield (
            f"party[{name}].test is missing, while others have one. "
            "Mend: give it a test table too, or remove the others'"
        )
    if "test_share" in config.evaluate.model_fields_set:
        yield (
            f"evaluate.test_share = {config.evaluate.test_share!r} and test tables are both given. "
            "Mend: keep one of them"
        )


def _methods(config: Config) -> Iterator[str]:
    titles: list[str] = []
    for number, method in enumerate(config.method, 1):
        name, shown = method.name, method.shown_as
        if name == AUTO:
            continue
        if name not in METHODS:
            hint = did_you_mean(name, METHODS)
            yield f"method[{number}].name = {name!r} is not a method: {hint}"
            continue
        titles.append(shown)
        if config.complete is not None and METHODS[name].partners:
            titles.append(shown + COMPLETED)
        if config.correct is not None and name not in ANNOTATED:
            titles.append(shown + CORRECTED)
        yield from parameter_problems(f"method[{name}]", method_class(name), method.params)
    # Files are named after titles, so that they must differ in more than signs.
    slugs = [slug_of(title) for title in titles]
    for slug in dict.fromkeys(slugs):
        if slugs.count(slug) > 1:
            yield (
                f"method: {slugs.count(slug)} methods are shown as {titles[slugs.index(slug)]!r}. "
                'Mend: give each its own title = "…"'
            )


def _weights(config: Config) -> Iterator[str]:
    """To a method that does not weight rows a column of weights is one to learn from."""
    column = next((each.params[WEIGHTS] for each in config.method if WEIGHTS in each.params), None)
    if column is None:
        return
    trained = {"complete": config.complete, "correct": config.correct}
    others = [f"[{table}]" for table, asked in trained.items() if asked is not None]
    how = {"horizontal": config.horizontal, "several": len(config.labellers) > 1}
    for method in config.method:
        names = method.names(**how) if isinstance(method, AutoSettings) else [method.name]
        others += [
            name
            for name in names
            if name in METHODS
            and not (
                method.params.get(WEIGHTS) == column
                and WEIGHTS in method_class(name).parameter_names()
            )
        ]
    if others:
        yield (
            f"{WEIGHTS} = {column!r}: {', '.join(dict.fromkeys(others))} would take this column "
            f'for one to learn from. Mend: name = "boosting" and "local-trees" only (of "{AUTO}": '
            f'candidates = ["local-trees", "boosting"]), each with {WEIGHTS} = {column!r}'
        )


def _complete(config: Config) -> Iterator[str]:
    how = config.complete
    if how is None:
        return
    if how.name not in COMPLETIONS:
        hint = did_you_mean(how.name, COMPLETIONS)
        yield f"complete.name = {how.name!r} does not complete rows: {hint}"
    else:
        yield from parameter_problems("complete", COMPLETIONS[how.name].load(), how.params)
    names, source = [party.name for party in config.party], how.params.get("source")
    if isinstance(source, str) and source not in names:
        yield f"complete.source = {source!r} is not a party: {did_you_mean(source, names)}"
    if len(names) == 1:
        yield "complete needs two parties, one to complete the other's rows. Mend: remove it"
    if config.align.mode == "same-order":
        yield (
            'complete and align.mode = "same-order": all parties know all rows, so there is '
            'nothing to complete. Mend: remove complete, or mode = "ecdh"'
        )
    methods = [each.name for each in config.method]
    known = [METHODS[name] for name in methods if name in METHODS]
    if known and AUTO not in methods and not any(each.partners for each in known):
        yield (
            "complete: no method uses completed rows, because local looks at one party's own. "
            'Mend: add [[method]] name = "vfl"'
        )


def _correct(config: Config) -> Iterator[str]:
    how, holders = config.correct, config.labellers
    if how is None:
        return
    if how.name not in ANNOTATED:
        hint = did_you_mean(how.name, ANNOTATED)
        yield f"correct.name = {how.name!r} does not correct labels: {hint}"
    else:
        yield from parameter_problems("correct", method_class(how.name), how.params)
    if len(holders) == 1:
        yield (
            f"[correct] needs several parties that label, but only {holders[0]} does. "
            'Mend: add label = "column" to another party, or remove [correct]'
        )
    for each in how.labellers or ():
        if holders and each not in holders:
            yield f"correct.labellers: {each!r} has no label: {did_you_mean(each, holders)}"
    able = how.labellers or holders
    if how.to and able and how.to not in able:
        yield f"correct.to = {how.to!r} is none of the annotators: {did_you_mean(how.to, able)}"
    if how.rows == "completed" and config.complete is None:
        yield (
            'correct.rows = "completed", but nothing is completed. '
            'Mend: add [complete], or rows = "aligned"'
        )
    if how.rows == "completed" and how.among == "labellers":
        yield (
            'correct.rows = "completed" and among = "labellers": rows are completed for all '
            'parties, not among annotators. Mend: rows = "aligned", or among = "all"'
        )
    if all(each.name in ANNOTATED for each in config.method):
        yield (
            "[correct]: every method learns from several annotators itself, so that none uses the "
            'corrected labels. Mend: add [[method]] name = "vfl", or remove [correct]'
        )


def _auto(config: Config) -> Iterator[str]:
    autos = [each for each in config.method if isinstance(each, AutoSettings)]
    if len(autos) > 1:
        yield f'method: {len(autos)} methods are "{AUTO}". Mend: keep one, with all candidates'
    if len(config.party) == 1 and autos:
        yield f'method "{AUTO}" compares methods on rows several parties know. Mend: name = "local"'
    shape, where = "horizontal" if config.horizontal else "vertical", f"method[{AUTO}]"
    for auto in autos[:1]:
        for name in auto.candidates or ():
            if name not in METHODS or name == AUTO:
                hint = did_you_mean(name, METHODS)
                yield f"{where}.candidates: {name!r} is not a method: {hint}"
            elif (name in HORIZONTAL) != config.horizontal:
                yield (
                    f"{where}.candidates: {name!r} is for the other shape of federation. "
                    f"Mend: leave it out; run.shape is {shape!r} here"
                )
            elif name in ANNOTATED and config.correct is not None:
                yield (
                    f"{where}.candidates: {name!r} learns from several annotators, the "
                    "others from the corrected labels, which cannot be compared. Mend: leave it out"
                )
        known = [name for name in auto.candidates or () if name in METHODS]
        typical = ("local-vfl", "risa", "boosting", "inc", "sage")
        tried = [method_class(name) for name in known or typical]
        every = {name: kind for kind in reversed(tried) for name in kind().get_params()}
        for key, value in auto.params.items():
            if key in every:
                yield from parameter_problems(where, every[key], {key: value})
            else:
                yield f"{where}.{key} = {value!r} is not known: {did_you_mean(key, every)}"


def _evaluated_and_predicted(config: Config) -> Iterator[str]:
    names = [party.name for party in config.party]
    for name in config.predict.alone:
        if name not in names:
            yield f"predict.alone: {name!r} is not a party: {did_you_mean(name, names)}"
    for metric in config.evaluate.metrics:
        if metric not in METRICS:
            yield f"evaluate.metrics: {metric!r} is not a metric: {did_you_mean(metric, METRICS)}"
