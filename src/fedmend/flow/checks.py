"""``fedmend check``: every problem of a federation's tables, found before anything is trained.

Each table is read on its own. That the parties share rows is looked at here only because whoever
runs `check` has all the files at hand; a run finds it out by private set intersection.

Where nothing is wrong, `look` goes on as a run would: it aligns, asks the parties, and says what is
torn and what would mend it.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fedmend._suggest import closest, did_you_mean
from fedmend.data.encode import NUMBERS, LabelEncoder
from fedmend.data.schema import Schema
from fedmend.data.table import Table
from fedmend.errors import DataError, FedmendError, FedmendWarning
from fedmend.federation import Federation, Party, Policy
from fedmend.federation.policy import MIN_ROWS
from fedmend.flow.config import Config, PartySettings
from fedmend.flow.config.references import password_notes
from fedmend.flow.config.settings import MAJORITY, WEIGHTS, AutoSettings
from fedmend.flow.config.sniffing import mostly_alike
from fedmend.flow.doubts import (
    alike_doubts,
    class_doubts,
    doubtful_columns,
    told_elsewhere,
)
from fedmend.flow.plan import plan_of
from fedmend.flow.reading import (
    all_problems,
    classes_of_tests_alone,
    one_truth,
    problems_of_test,
    read_party,
    require_known_classes,
    seen_in_training,
    set_aside,
)
from fedmend.learn.metrics import CLASSIFICATION, REGRESSION
from fedmend.methods.auto.auto import few_to_compare
from fedmend.methods.horizontal.encoding import describe, merged
from fedmend.methods.registry import ANNOTATED, METHODS, make
from fedmend.report.advice import facts_of, told
from fedmend.report.amounts import counted, listed
from fedmend.report.overview import Overview, overview
from fedmend.report.record import seen_words
from fedmend.secure.align import align
from fedmend.secure.identifiers import RULES, better_rule, describe_ids, shared_by_rule


@dataclass
class Findings:
    """Problems stop a run; notes do not. parts: training and test tables by party."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    parts: dict[str, dict[str, Table]] = field(default_factory=lambda: {"training": {}, "test": {}})


def check_data(config: Config) -> Findings:
    """Read every table of a federation.toml, and list what is wrong with them."""
    found = Findings()
    for party in config.party:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FedmendWarning)
            _check_party(config, party, found)
        found.notes += dict.fromkeys(
            str(each.message) for each in caught if issubclass(each.category, FedmendWarning)
        )
    bare = [repr(name) for name, table in found.tables.items() if not table.feature_names]
    if bare:
        one = f"party {bare[0]} has"
        several = f"parties {listed(bare, 6)} have"
        found.notes.append(f"{several if bare[1:] else one} no columns besides id and label")
    if config.horizontal:
        found.problems += _misfits(config, "multiclass")
    found.problems += _small_batches(config)
    if len(found.tables) == len(config.party):
        between = _horizontal_problems if config.horizontal else _vertical_problems
        found.problems += between(config, found)
    if config.run.device != "cpu":
        import torch

        if not torch.cuda.is_available():
            found.problems.append(
                f"run.device = {config.run.device!r}, but there is no such device here. "
                'Mend: device = "cpu"'
            )
    found.notes += privacy_notes(config)
    return found


def look(
    config: Config,
    found: Findings,
    *,
    curve: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Overview | None:
    """The federation at a glance, with its whole tables; None where a table is elsewhere."""
    if found.problems or len(found.tables) < len(config.party):
        return None
    parties = [
        Party(party.name, found.tables[party.name], policy=party.policy.build())
        for party in config.party
    ]
    shape = "horizontal" if config.horizontal else "vertical"
    with Federation(*parties, seed=config.run.all_seeds[0], device=config.run.device) as fed:
        if len(parties) > 1 and not config.horizontal:
            how = config.align.how
            align(fed, progress=progress, **how)
            holders = [name for name, facts in fed.roster.items() if facts["features"]]
            for some in (config.labellers, holders):
                # They may know many more rows together than everybody does.
                if 1 < len(some) < len(parties):
                    align(fed.only(*some), progress=progress, **how)
        training = 1.0 if any(each.has_test for each in config.party) else 1 - config.test_share
        seen = overview(fed, shape=shape, curve=curve, training=training, progress=progress)
    facts = facts_of(seen)
    if not facts.labellers or facts.aligned == 0:
        return seen
    costs = plan_of(config).costs(facts, seen.labellers_share, seen.columns_share)
    return replace(seen, takes=told(costs))


# ---------------------------------------------------------------- one party


def _check_party(config: Config, party: PartySettings, found: Findings) -> None:
    name = party.name
    if party.data is None and party.sql is None:
        found.notes.append(
            f"party {name!r} has its table elsewhere: 'fedmend party check' looks at it there"
        )
        return
    found.notes += password_notes(party)
    try:
        train, test = read_party(config, party)
    except DataError:
        found.problems += map(str, all_problems(config, party))
        return
    except FedmendError as error:
        found.problems.append(str(error))
        return
    found.tables[name] = train
    parts = (train, test) if test is not None else set_aside(config, train)
    found.parts["training"][name], found.parts["test"][name] = parts
    found.notes += doubtful_columns(train, name, task=_said_of_the_label(config, party))
    weights = {str(each.params[WEIGHTS]) for each in config.method if WEIGHTS in each.params}
    if party.label is not None and _is_the_truth(config, name):
        found.problems += _label_problems(config, train, parts, party)
        found.problems += [
            _told("there is no such weight_column", name, column, did_you_mean(column, train.names))
            for column in weights - set(train.feature_names)
        ]
        found.problems += [
            f"method[{method.name}]: party {name!r} has no columns besides id and label, so "
            "there is nothing to learn from by itself. Mend: remove this [[method]]"
            for method in config.method
            if not (train.feature_names or METHODS[method.name].partners)
        ]
    if test is not None:
        problems = list(problems_of_test(config, party, train, test))
        found.problems += map(str, problems)
        if not problems and "evaluate" not in config.run.leave_out:
            known, _, rows = seen_in_training(config, party, train, test)
            found.notes += [seen_words(name, known, rows)] if known else []


def _said_of_the_label(config: Config, party: PartySettings) -> str | None:
    """What the file takes the label for; methods of several parties' labels know classes only."""
    if config.horizontal or len(config.labellers) > 1:
        return "multiclass"
    said = (each.params.get("task") for each in config.method)
    return party.task or next((task for task in said if task), None)


def _told(problem: str, party: str, column: str | None, mend: str) -> str:
    return str(DataError(problem, party=party, column=column, mend=mend))


def _is_the_truth(config: Config, party: str) -> bool:
    """Whether a method takes this party's labels for the truth."""
    if config.horizontal or len(config.labellers) == 1:
        return not config.horizontal
    return any(
        method.params.get("label_party") == party
        for method in config.method
        if method.name not in ANNOTATED
    )


def _label_problems(
    config: Config, table: Table, parts: tuple[Table, Table], settings: PartySettings
) -> Iterator[str]:
    assert table.label is not None
    party = settings.name
    try:
        column = table.schema[table.label]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedmendWarning)  # said by `doubtful_columns`
            found = LabelEncoder(config.task or "auto").fit(table.y, column, party=party)
        if config.task or not any("task" in method.params for method in config.method):
            yield from _misfits(config, found.task)
        else:
            yield from _mixed_tasks(config, found.task)
        if one_truth(config) and parts[1].label is not None:
            require_known_classes(*parts, settings)
    except DataError as error:
        yield str(error.at(party))


def _mixed_tasks(config: Config, inferred: str) -> Iterator[str]:
    """Methods whose scores cannot be compared, as some predict numbers and others classes."""
    numbers = {
        method.shown_as: method.params.get("task", inferred) in NUMBERS for method in config.method
    }
    if len(set(numbers.values())) > 1:
        with_number, without = (
            ", ".join(name for name in numbers if numbers[name] is each) for each in (True, False)
        )
        yield (
            f"the label is a number to {with_number} and a class to {without}, whose scores "
            "cannot be compared. Mend: task beside label at its party, which is for all methods"
        )


def _misfits(config: Config, task: str) -> Iterator[str]:
    """Metrics of classes for a number, and of numbers for classes: a run trains before it sees."""
    fitting = REGRESSION if task == "regression" else CLASSIFICATION
    for metric in config.evaluate.metrics:
        if metric not in fitting:
            yield (
                f"evaluate.metrics: {metric!r} does not fit this label, which is taken for "
                f"{'a number' if task == 'regression' else 'classes'}. "
                f"Mend: choose from {', '.join(fitting)}"
            )
    if task == "regression":
        for method in config.method:
            if method.name in METHODS and METHODS[method.name].classes_only:
                yield (
                    f"method[{method.name}] learns classes, and the label is taken for a number. "
                    'Mend: name = "boosting" or "local-vfl", or task = "multiclass" beside the '
                    "label if these numbers are classes"
                )
    asked = [each.shown_as for each in config.method if each.params.get("label_dp") is not None]
    if task == "regression" and asked:
        yield (
            f"{', '.join(asked)}: label_dp is for classes, and the label is taken for a number. "
            "Mend: cut the numbers into classes first, or leave label_dp out"
        )


# ---------------------------------------------------------------- other columns of the same people


def _vertical_problems(config: Config, found: Findings) -> Iterator[str]:
    tables = found.tables
    if config.align.mode == "same-order":
        sizes = {name: len(table) for name, table in tables.items()}
        if len(set(sizes.values())) > 1:
            rows = ", ".join(f"{name} {rows:,}" for name, rows in sizes.items())
            yield (
                f'align.mode = "same-order", but the tables differ in their rows: {rows}. '
                'Mend: mode = "ecdh"'
            )
    else:
        yield from _overlap_problems(config, found)
    if config.complete is not None:
        how = make(config.complete.name, config.complete.params)
        may_leave = [party.policy.build().may_leave for party in config.party]
        if how.correlation_mode == "published" and not any("row" in each for each in may_leave):
            yield (
                'complete.correlation_mode = "published" shows the coordinator differences of rows '
                '(kind "row"), which no party\'s policy allows. Mend: correlation_mode = "bfv", '
                "which gives the same value; or, for a trial, policy.allow = "
                f"{json.dumps(sorted(Policy().may_leave | {'row'}))} at both"
            )
        ids = _ids_by(config.align.normalise, tables)
        common = set.intersection(*ids.values())
        source = config.complete.params.get("source")
        if not any(own - common for name, own in ids.items() if source in (None, name)):
            yield (
                f"complete: {source or 'no party'} has {'no ' if source else ''}rows that the "
                "others lack, so there is nothing to complete. Mend: remove [complete]"
            )
    if len(config.labellers) == 1:
        found.notes += _given_away(config, tables)
    if len(config.labellers) > 1:
        labelled = {name: tables[name] for name in config.labellers}
        yield from _class_problems(labelled, "methods for several annotators")
        found.notes += class_doubts(labelled)
        yield from _reference_problems(config, found)


def _given_away(config: Config, tables: Mapping[str, Table]) -> Iterator[str]:
    """Columns of partners that tell the label, on the rows that they share with its party."""
    (owner,) = config.labellers
    make = RULES[config.align.normalise]
    own = tables[owner]
    place = {make(each): at for at, each in enumerate(own.ids.tolist())}
    for name, table in tables.items():
        found = [place.get(make(each), -1) for each in table.ids.tolist()]
        rows = [at for at, mine in enumerate(found) if mine >= 0]
        if name == owner or not rows:
            continue
        labels = own.y.iloc[[found[at] for at in rows]].reset_index(drop=True)
        theirs = table.frame.iloc[rows].reset_index(drop=True)
        yield from told_elsewhere(owner, labels, name, theirs, task=config.task)


def _ids_by(rule: str, tables: Mapping[str, Table]) -> dict[str, set[bytes]]:
    make = RULES[rule]
    return {name: {make(each) for each in table.ids.tolist()} for name, table in tables.items()}


def _overlap_problems(config: Config, found: Findings) -> Iterator[str]:
    rule = config.align.normalise
    ids = _ids_by(rule, found.tables)
    pairs = [pair for pair in itertools.combinations(ids, 2) if not ids[pair[0]] & ids[pair[1]]]
    for one, two in pairs:
        tables = {name: found.tables[name] for name in (one, two)}
        styles = " and ".join(describe_ids(table.ids) for table in tables.values())
        yield (
            f"parties {one!r} and {two!r} share no id ({styles}; compared as "
            f"align.normalise = {rule!r} says). Mend: name the columns that hold the same ids"
            + _other_rule(tables)
            + _other_shape(*tables.values())
        )
    if not pairs and not set.intersection(*ids.values()):
        yield (
            f"every two of {', '.join(ids)} share ids, but no id is known to all of them. "
            "Mend: leave out the party whose people are others, or give it the rows it lacks"
        )
    elif not pairs and len(ids) > 1:
        yield from _too_few_shared(config, found)
    shared = shared_by_rule([table.ids.tolist() for table in found.tables.values()])
    better = better_rule(shared, rule)
    if shared.get(rule) and better != rule:
        found.notes.append(
            f"align.normalise = {rule!r}: {shared[rule]:,} ids are shared, and {shared[better]:,} "
            f"if they are compared by {better!r}"
            + " (added up over every two parties)" * (len(found.tables) > 2)
            + f". Mend: normalise = {better!r} under [align], if these are the same people"
        )


def _too_few_shared(config: Config, found: Findings) -> Iterator[str]:
    """A run aligns training and test rows apart, and a party may refuse so few of either."""
    strictest = max(config.party, key=lambda party: party.policy.build().min_intersection)
    least = strictest.policy.build().min_intersection
    for part, tables in found.parts.items():
        if part == "test" and not config.test_share and not config.party[0].has_test:
            continue
        shared = set.intersection(*_ids_by(config.align.normalise, tables).values())
        if part != "test" or "evaluate" not in config.run.leave_out:
            found.notes += _too_few_labelled(config, found, part, shared)
        told_of = max(party.policy.build().min_rows for party in config.party)
        compared = len(config.labellers) == 1 and any(
            isinstance(each, AutoSettings) for each in config.method
        )
        if part != "test" and compared and least <= len(shared) < told_of:
            yield few_to_compare(len(shared), told_of)
        if len(shared) < least:
            yield (
                f"{len(shared):,} {part} rows are known to all, and party {strictest.name!r} takes "
                f"part from {least:,}. Mend: find more common rows, another evaluate.test_share, "
                f"or a lower policy.min_intersection of {strictest.name!r}"
            )


def _small_batches(config: Config) -> Iterator[str]:
    """Batches of fewer rows than a party lets a step rest on, at which training would end."""
    for party in config.party:
        if not config.horizontal and config.labellers != [party.name]:
            continue
        told_of = party.policy.build().min_rows
        least = told_of if config.horizontal else min(told_of, MIN_ROWS)
        for method in config.method:
            size = method.params.get("batch_size")
            if isinstance(size, int) and size < least:
                yield (
                    f"method {method.shown_as!r}: batch_size = {size}, and party {party.name!r} "
                    f"lets no step rest on fewer than {least} rows (policy.min_rows). "
                    f"Mend: batch_size = {least} or more, or a lower policy.min_rows"
                )


def _too_few_labelled(
    config: Config, found: Findings, part: str, shared: set[bytes]
) -> Iterator[str]:
    """A party tells no score of fewer of its rows than its policy says, and no loss either."""
    make = RULES[config.align.normalise]
    for party in config.party:
        table, least = found.parts[part][party.name], party.policy.build().min_rows
        if config.labellers != [party.name] or table.label is None:
            continue
        learnt = int(found.parts["training"][party.name].y.notna().sum())
        if learnt < least:
            if part == "training" and learnt:
                yield (
                    f"party {party.name!r} has {counted(learnt, 'labelled training row')}, and no "
                    f"answer of its may rest on fewer than {least:,} (policy.min_rows): methods "
                    "will be refused. Mend: more labelled rows, or a lower policy.min_rows"
                )
            continue
        labelled = table.take(table.y.notna().to_numpy()).ids.tolist()
        rows = len(shared & set(map(make, labelled)))
        if part == "test" and 0 < rows < least:
            more = "more common rows in the test tables"
            if not any(each.has_test for each in config.party):
                more = "a larger evaluate.test_share, test tables"
            yield (
                f"only {counted(rows, 'labelled test row')} known to all, and party "
                f"{party.name!r} tells no score of fewer than {least:,} (policy.min_rows): the run "
                f'will have a model and no scores. Mend: {more}, or run.leave_out = ["evaluate"]'
            )


def _other_rule(tables: Mapping[str, Table]) -> str:
    """The rule under which two tables do share ids, if there is one."""
    for rule in RULES:
        shared = set.intersection(*_ids_by(rule, tables).values())
        if shared:
            return f', or align.normalise = "{rule}", by which they share {len(shared):,}'
    return ""


def _other_shape(one: Table, two: Table) -> str:
    equal = set(one.feature_names) == set(two.feature_names)
    if not equal and not mostly_alike([one.feature_names, two.feature_names]):
        return ""
    same = "the same" if equal else "mostly the same"
    return f'; or, as they have {same} columns, run.shape = "horizontal" and a method for it'


def _reference_problems(config: Config, found: Findings) -> Iterator[str]:
    reference = config.evaluate.reference
    labelled = [name for name, table in found.parts["test"].items() if table.label is not None]
    if reference not in (None, MAJORITY) and reference not in labelled:
        lacking = f"party {reference!r} has no test labels"
    elif not labelled:
        lacking = "no party has test labels"
    else:
        return
    yield (
        f"evaluate.reference: {lacking}. "
        "Mend: give a test table the label column, or name another reference"
    )


# ---------------------------------------------------------------- the same columns of other people


def _horizontal_problems(config: Config, found: Findings) -> Iterator[str]:
    least = {party.name: party.policy.build().min_rows for party in config.party}
    for party, table in found.parts["training"].items():
        if not len(table):  # a party of very few rows may have all of them set aside
            yield (
                f"party {party!r}: all of its {len(found.tables[party]):,} rows are set aside for "
                "tests. Mend: leave it out, a smaller evaluate.test_share, or another run.seed"
            )
        elif len(table) < least[party]:
            yield (
                f"party {party!r} trains on {counted(len(table), 'row')}, and tells nothing of "
                f"fewer than {least[party]:,} (policy.min_rows). Mend: give it more rows, leave "
                "it out, or lower its policy.min_rows"
            )
    for error in classes_of_tests_alone(config, found.parts["training"], found.parts["test"]):
        yield str(error)
    yield from alike_problems(found.tables)
    found.notes += alike_doubts(found.tables)
    found.notes += class_doubts(found.tables)


def alike_problems(tables: Mapping[str, Table]) -> Iterator[str]:
    """Differences between tables that should have the same columns and the same label."""
    (first, model), *others = tables.items()
    for name, table in others:
        lacking = [column for column in model.feature_names if column not in table.feature_names]
        extra = [column for column in table.feature_names if column not in model.feature_names]
        for column in lacking[:3]:
            near = closest(column, extra)
            yield _told(
                f"party {first!r} has this column and this party has not",
                name,
                column,
                f"rename {near!r} in the table of {name!r}, if it is the same column"
                if near
                else f"give all parties the same columns, or drop = [{column!r}] where it is",
            )
        renamed = {closest(column, extra) for column in lacking}
        for column in [each for each in extra if each not in renamed][:3]:
            mend = f"drop = [{column!r}] at {name!r}, or give it to all parties"
            yield _told(f"party {first!r} has no such column", name, column, mend)
    schemas = {name: describe(table.features)["schema"] for name, table in tables.items()}
    told = {name: Schema.from_dict(schema) for name, schema in schemas.items()}
    for column in model.feature_names:
        try:
            merged({name: schema[column] for name, schema in told.items() if column in schema})
        except DataError as error:
            yield str(error)
    labelled = {name: table for name, table in tables.items() if table.label is not None}
    if len({table.label for table in labelled.values()}) > 1:
        names = ", ".join(f"{name}: {table.label}" for name, table in labelled.items())
        yield f"the label has several names ({names}). Mend: name the column alike at all parties"
        return
    # A column without a value is taken for numbers; here it only says: no labels.
    labelled = {name: table for name, table in labelled.items() if table.y.notna().any()}
    yield from _class_problems(labelled, "methods of horizontal federations")


def _class_problems(tables: Mapping[str, Table], asking: str) -> Iterator[str]:
    """Several parties' labels must be classes that they all write alike."""
    kinds = {name: table.schema[str(table.label)].kind for name, table in tables.items()}
    if "continuous" in kinds.values():
        mend = 'name the column of classes, or bin it; kinds = "nominal" for codes'
        for name in [each for each in kinds if kinds[each] == "continuous"]:
            yield _told(f"is a number, and {asking} need classes", name, tables[name].label, mend)
        return
    seen: dict[object, str] = {}
    for name, table in tables.items():
        for value in table.y.dropna().unique().tolist():
            seen.setdefault(value, name)
    text = [value for value in seen if isinstance(value, str)]
    other = [value for value in seen if not isinstance(value, str)]
    if text and other:
        yield (
            f"labels are text at {seen[text[0]]!r} ({text[0]!r}) and not at {seen[other[0]]!r} "
            f"({other[0]!r}). Mend: write the classes alike at all parties"
        )
    if len(seen) < 2:
        yield (
            f"the labels of {', '.join(tables) or 'all parties'} have one class only: {[*seen]}. "
            "Mend: check the label columns"
        )


# ---------------------------------------------------------------- privacy


def privacy_notes(config: Config) -> Iterator[str]:
    """Where a promise of one method does not hold for the file as a whole."""
    open_ = [
        each.shown_as
        for each in config.method
        if each.params.get("seal") is False and each.name not in ANNOTATED
    ]
    if open_:
        yield (
            f"{', '.join(open_)}: seal = false lets the coordinator read every embedding and "
            "gradient also between machines, where by default it only passes them on. Mend: leave "
            "seal out"
        )
    given = {each.shown_as: each.params.get("label_dp") for each in config.method}
    private = {title: float(epsilon) for title, epsilon in given.items() if epsilon is not None}
    several = sorted(set(private.values()))
    if len(several) > 1:
        yield (
            f"label_dp is {' and '.join(f'{each:g}' for each in several)} in one file: each is a "
            f"draw of its own, and together a label is reported with ε = {sum(several):g}. Mend: "
            "one label_dp for all methods, which then share a draw"
        )
    # Of a method without partners nothing leaves the label party.
    local = {each.shown_as for each in config.method if not METHODS[each.name].partners}
    plain = [title for title in given if title not in private and title not in local]
    if private and plain:
        yield (
            f"{', '.join(plain)} learns from labels as they are where it is trained before "
            f"{', '.join(private)}, so that label_dp does not bound what this run tells of them; "
            "after it, from the same draws. Mend: label_dp for all methods of the file"
        )
