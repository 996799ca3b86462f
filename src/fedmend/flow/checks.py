"""``fedmend check``: every problem of a federation's tables, found before anything is trained.

Each table is read on its own. That the parties share rows is looked at here only because whoever
runs `check` has all the files at hand; a run finds it out by private set intersection.

Where nothing is wrong, `look` goes on as a run would: it aligns, asks the parties, and says what is
torn and what would mend it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fedmend.data.table import Table
from fedmend.errors import DataError, FedmendError, FedmendWarning
from fedmend.federation import Federation, Party
from fedmend.flow.config.doubts import doubtful_columns
from fedmend.flow.config.naming import MAJORITY
from fedmend.flow.config.passwords import password_notes
from fedmend.flow.config.seals import seal_notes
from fedmend.flow.config.shapes import alike_doubts, alike_problems, class_doubts, mostly_alike
from fedmend.flow.config.told_labels import told_label_notes, told_label_problems
from fedmend.flow.reading import (
    all_problems,
    one_truth,
    read_party,
    require_known_classes,
    set_aside,
)
from fedmend.learn.metrics import CLASSIFICATION, REGRESSION
from fedmend.methods.registry import ANNOTATED
from fedmend.report.overview import Overview, overview
from fedmend.secure.align import align
from fedmend.secure.identifiers import RULES, better_rule, describe_ids, shared_by_rule

if TYPE_CHECKING:
    from fedmend.flow.config import Config, PartySettings

__all__ = ["Findings", "check_data", "look"]


class Findings:
    """Problems stop a run; notes do not."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.tables: dict[str, Table] = {}
        self.parts: dict[str, dict[str, Table]] = {"training": {}, "test": {}}
        self.test_labels: list[str] = []


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
    if config.horizontal:
        found.problems += _misfits(config, "multiclass")
    if config.horizontal and len(found.tables) == len(config.party):
        found.problems += _nothing_to_train_on(found)
        found.problems += alike_problems(found.tables)
        found.notes += alike_doubts(found.tables)
        found.notes += class_doubts(found.tables)
    elif len(found.tables) == len(config.party):
        _check_overlap(config, found)
        _check_completion(config, found)
        if len(config.labellers) > 1:
            _check_labellers(config, found)
    _check_device(config, found)
    found.notes += seal_notes(config)
    found.notes += told_label_notes(config)
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
    share = config.evaluate.test_share
    with Federation(*parties, seed=config.run.all_seeds[0], device=config.run.device) as fed:
        if len(parties) > 1 and not config.horizontal:
            how = config.align.model_dump(exclude_none=True)
            align(fed, progress=progress, **how)
            if 1 < len(config.labellers) < len(parties):
                # They may know many more rows together than everybody does.
                align(fed.only(*config.labellers), progress=progress, **how)
        training = 1.0 if any(each.has_test for each in config.party) else 1 - share
        return overview(fed, shape=shape, curve=curve, training=training, progress=progress)


def _check_party(config: Config, party: PartySettings, found: Findings) -> None:
    if party.data is None and party.sql is None:
        found.notes.append(
            f"party {party.name!r} has its table elsewhere: 'fedmend party check' looks at it there"
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
    found.tables[party.name] = train
    parts = (train, test) if test is not None else set_aside(config, train)
    for part, table in zip(found.parts.values(), parts, strict=True):
        part[party.name] = table
    found.notes += doubtful_columns(train, party.name)
    if not train.feature_names:
        found.notes.append(f"party {party.name!r} has no columns besides id and label")
    if party.label is not None and _learns_alone_from(config, party.name):
        _check_label(config, train, test, party.name, found)
        if not train.feature_names and any(method.name == "local" for method in config.method):
            found.problems.append(
                f"method[local]: party {party.name!r} has no columns besides id and label, so "
                "there is nothing to learn from alone. Mend: remove this [[method]]"
            )
    if test is not None:
        # Where several label, nobody needs to label the test rows but the reference.
        spared = party.label if len(config.labellers) > 1 else None
        _check_same_columns(train, test, party.name, spared, found)
        if test.label is not None:
            found.test_labels.append(party.name)
    elif party.label is not None:
        found.test_labels.append(party.name)


def _learns_alone_from(config: Config, party: str) -> bool:
    """Whether a method takes this party's labels for the truth."""
    if config.horizontal:
        return False
    alone = [method for method in config.method if method.name not in ANNOTATED]
    if len(config.labellers) == 1:
        return True
    return any(method.params.get("label_party") == party for method in alone)


def _check_label(
    config: Config, table: Table, test: Table | None, party: str, found: Findings
) -> None:
    from fedmend.data.labels import LabelEncoder

    assert table.label is not None
    try:
        task = LabelEncoder().fit(table.y, table.schema[table.label], party=party).task
        if not any("task" in method.params for method in config.method):
            found.problems += _misfits(config, task)
        if one_truth(config):
            train, later = set_aside(config, table) if test is None else (table, test)
            if later.label is not None:
                require_known_classes(train, later, party)
    except DataError as error:
        found.problems.append(str(error.at(party)))


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
    yield from told_label_problems(config, task)


def _check_labellers(config: Config, found: Findings) -> None:
    """Several labellers need classes they all write alike, and somebody's test labels."""
    seen: dict[object, str] = {}
    for party in config.labellers:
        table = found.tables[party]
        if table.schema[str(table.label)].kind == "continuous":
            error = DataError(
                "is a number, and methods for several labellers need classes",
                party=party,
                column=table.label,
                mend='name the column of classes, or bin it; kinds = "nominal" for codes',
            )
            found.problems.append(str(error))
        for value in table.y.dropna().unique().tolist():
            seen.setdefault(value, party)
    text = [value for value in seen if isinstance(value, str)]
    other = [value for value in seen if not isinstance(value, str)]
    if text and other:
        found.problems.append(
            f"labels are text at {seen[text[0]]!r} ({text[0]!r}) and not at {seen[other[0]]!r} "
            f"({other[0]!r}). Mend: write the classes alike at all parties"
        )
    if len(seen) < 2:
        found.problems.append(
            f"the labels of {', '.join(config.labellers)} have one class only: {[*seen]}. "
            "Mend: check the label columns"
        )
    found.notes += class_doubts({name: found.tables[name] for name in config.labellers})
    _check_reference(config, found)


def _check_reference(config: Config, found: Findings) -> None:
    reference = config.evaluate.reference
    if reference in (None, MAJORITY):
        lacking = "" if found.test_labels else "no party has test labels"
    else:
        lacking = (
            "" if reference in found.test_labels else f"party {reference!r} has no test labels"
        )
    if lacking:
        found.problems.append(
            f"evaluate.reference: {lacking}. "
            "Mend: give a test table the label column, or name another reference"
        )


def _check_completion(config: Config, found: Findings) -> None:
    if config.complete is None:
        return
    rule = RULES[config.align.normalise]
    ids = {
        name: {rule(each) for each in table.ids.tolist()} for name, table in found.tables.items()
    }
    common = set.intersection(*ids.values())
    source = config.complete.params.get("source")
    if not any(own - common for name, own in ids.items() if source in (None, name)):
        found.problems.append(
            f"complete: {source or 'no party'} has {'no ' if source else ''}rows that the others "
            "lack, so there is nothing to complete. Mend: remove [complete]"
        )


def _check_same_columns(
    train: Table, test: Table, party: str, spared: str | None, found: Findings
) -> None:
    absent = [name for name in train.names if name not in test.names and name != spared]
    if absent:
        error = DataError(
            "the test table lacks this column of the training table",
            party=party,
            column=", ".join(absent[:5]),
            mend="give both tables the same columns",
        )
        found.problems.append(str(error))


def _check_overlap(config: Config, found: Findings) -> None:
    if config.align.mode == "same-order":
        sizes = {name: len(table) for name, table in found.tables.items()}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{name} {rows:,}" for name, rows in sizes.items())
            found.problems.append(
                f'align.mode = "same-order", but the tables differ in their rows: {told}. '
                'Mend: mode = "ecdh"'
            )
        return
    rule = config.align.normalise
    ids = {
        name: {RULES[rule](each) for each in table.ids.tolist()}
        for name, table in found.tables.items()
    }
    pairs = [pair for pair in itertools.combinations(ids, 2) if not ids[pair[0]] & ids[pair[1]]]
    for one, two in pairs:
        styles = " and ".join(describe_ids(found.tables[name].ids) for name in (one, two))
        found.problems.append(
            f"parties {one!r} and {two!r} share no id ({styles}; compared as "
            f"align.normalise = {rule!r} says). Mend: name the columns that hold the same ids"
            + _other_rule(found.tables[one], found.tables[two])
            + _other_shape(found.tables[one], found.tables[two])
        )
    if not pairs and not set.intersection(*ids.values()):
        found.problems.append(
            f"every two of {', '.join(ids)} share ids, but no id is known to all of them. "
            "Mend: leave out the party whose people are others, or give it the rows it lacks"
        )
    elif not pairs and len(ids) > 1:
        found.problems += _too_few_shared(config, found)
    shared = shared_by_rule([table.ids.tolist() for table in found.tables.values()])
    better = better_rule(shared, rule)
    if shared.get(rule) and better != rule:
        found.notes.append(
            f"align.normalise = {rule!r}: {shared[rule]:,} ids are shared, and {shared[better]:,} "
            f"if they are compared by {better!r}. Mend: normalise = {better!r} under [align], if "
            "these are the same people"
        )


def _too_few_shared(config: Config, found: Findings) -> Iterator[str]:
    """A run aligns training and test rows apart, and a party may refuse so few of either."""
    strictest = max(config.party, key=lambda party: party.policy.build().min_intersection)
    least = strictest.policy.build().min_intersection
    rule = RULES[config.align.normalise]
    for part, tables in found.parts.items():
        shared = set.intersection(
            *({rule(each) for each in table.ids.tolist()} for table in tables.values())
        )
        if len(shared) < least:
            yield (
                f"{len(shared):,} {part} rows are known to all, and party {strictest.name!r} takes "
                f"part from {least:,}. Mend: find more common rows, another evaluate.test_share, "
                f"or a lower policy.min_intersection of {strictest.name!r}"
            )


def _nothing_to_train_on(found: Findings) -> Iterator[str]:
    """A party of very few rows may have all of them set aside."""
    for party, table in found.parts["training"].items():
        if not len(table):
            yield (
                f"party {party!r}: all of its {len(found.tables[party]):,} rows are set aside for "
                "tests. Mend: leave it out, a smaller evaluate.test_share, or another run.seed"
            )


def _other_rule(one: Table, two: Table) -> str:
    """The rule under which two tables do share ids, if there is one."""
    for rule, make in RULES.items():
        known = [{make(each) for each in table.ids.tolist()} for table in (one, two)]
        if known[0] & known[1]:
            return (
                f', or align.normalise = "{rule}", by which they share {len(known[0] & known[1]):,}'
            )
    return ""


def _other_shape(one: Table, two: Table) -> str:
    equal = set(one.feature_names) == set(two.feature_names)
    if not equal and not mostly_alike([one.feature_names, two.feature_names]):
        return ""
    same = "the same" if equal else "mostly the same"
    return f'; or, as they have {same} columns, run.shape = "horizontal" and a method for it'


def _check_device(config: Config, found: Findings) -> None:
    if config.run.device == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        found.problems.append(
            f"run.device = {config.run.device!r}, but there is no such device here. "
            'Mend: device = "cpu"'
        )
