"""Vertical or horizontal: other columns of the same people, or the same columns of other people.

The methods of a file say which of the two a federation is; ``run.shape`` may say it too. What must
hold between the tables of a horizontal federation is checked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedmend._suggest import closest
from fedmend.data.labels import as_written
from fedmend.errors import DataError
from fedmend.methods.registry import HORIZONTAL

if TYPE_CHECKING:
    from fedmend.data.table import Table

__all__ = [
    "SHAPES",
    "alike_doubts",
    "alike_problems",
    "class_doubts",
    "mostly_alike",
    "shape_of",
    "shape_problems",
]

SHAPES = ("vertical", "horizontal")


def shape_of(raw: Mapping[str, Any]) -> str:
    """What a file's federation is: as it says, or as its first method needs."""
    run = raw.get("run")
    given = run.get("shape") if isinstance(run, dict) else None
    if given in SHAPES:
        return str(given)
    methods = raw.get("method")
    first = methods[0] if isinstance(methods, list) and methods else methods
    name = first.get("name") if isinstance(first, dict) else None
    return "horizontal" if isinstance(name, str) and name in HORIZONTAL else "vertical"


def shape_problems(raw: Mapping[str, Any]) -> Iterator[str]:
    """Methods, alignment and completion that do not go together with the shape."""
    shape = shape_of(raw)
    methods = raw.get("method")
    listed = methods if isinstance(methods, list) else [methods] if methods else []
    for method in listed:
        name = method.get("name") if isinstance(method, dict) else None
        if not isinstance(name, str) or name == "auto":
            continue
        if shape == "vertical" and name in HORIZONTAL:
            yield (
                f"method[{name}] needs parties with the same columns and different people. Mend: "
                'run.shape = "horizontal" and methods of that shape only'
            )
        if shape == "horizontal" and name not in HORIZONTAL:
            yield (
                f"method[{name}] needs parties that know the same people. Mend: "
                f"one of {', '.join(HORIZONTAL)}"
            )
    if shape == "vertical":
        return
    for table, why in (
        ("align", "nobody is known to two parties, so there is nothing to align"),
        ("complete", "all parties have the same columns, so there is nothing to complete"),
        ("correct", "nobody is known to two parties, so that no row has two labels"),
    ):
        if table in raw:
            yield f'[{table}] and shape = "horizontal": {why}. Mend: remove [{table}]'
    evaluate = raw.get("evaluate")
    if isinstance(evaluate, dict) and "reference" in evaluate:
        yield (
            f"evaluate.reference = {evaluate['reference']!r}: every party of a horizontal "
            "federation is measured on its own test rows. Mend: remove it"
        )


def mostly_alike(headers: Sequence[Sequence[str]]) -> bool:
    """Whether tables have most of their columns in common, be it that some are named otherwise."""
    common = set.intersection(*map(set, headers))
    return len(common) >= 0.5 * max(len(header) for header in headers) and len(common) > 2


def alike_doubts(tables: Mapping[str, Table]) -> Iterator[str]:
    """Values that parties with the same columns seem to write differently."""
    names = list(tables)
    shared = set.intersection(*(set(table.feature_names) for table in tables.values()))
    for column in (each for each in tables[names[0]].feature_names if each in shared):
        seen: dict[str, tuple[str, str]] = {}
        for name in names:
            if tables[name].schema[column].kind not in ("nominal", "binary"):
                break
            for value in map(str, tables[name].frame[column].dropna().unique()):
                before, at = seen.setdefault(" ".join(value.casefold().split()), (value, name))
                if before != value and at != name:
                    yield (
                        f"column {column!r}: {before!r} at {at!r} and {value!r} at {name!r} are "
                        "taken for different values. Mend: write them alike"
                    )
                    break
            else:
                continue
            break


def class_doubts(tables: Mapping[str, Table]) -> Iterator[str]:
    """Parties whose classes nobody else has: the same ones, perhaps, in other words."""
    classes = {
        name: sorted(str(as_written(value)) for value in table.y.dropna().unique())
        for name, table in tables.items()
        if table.label is not None and table.y.notna().any()
    }
    for name, own in classes.items():
        others = {each: said for each, said in classes.items() if each != name}
        if others and not any(set(own) & set(said) for said in others.values()):
            other, theirs = next(iter(others.items()))
            error = DataError(
                f"no other party has one of these classes; {other!r} has {', '.join(theirs[:3])}",
                party=name,
                column=tables[name].label,
                value=own[:3],
                mend="write the classes alike at all parties",
            )
            yield str(error)


def alike_problems(tables: Mapping[str, Table]) -> Iterator[str]:
    """Differences between tables that should have the same columns and the same label."""
    names = list(tables)
    first = tables[names[0]]
    for name in names[1:]:
        other = tables[name]
        lacking = [column for column in first.feature_names if column not in other.names]
        extra = [column for column in other.feature_names if column not in first.names]
        for column in lacking[:3]:
            near = closest(column, extra)
            error = DataError(
                f"party {names[0]!r} has this column and this party has not",
                party=name,
                column=column,
                mend=f"rename {near!r} in the table of {name!r}, if it is the same column"
                if near
                else f"give all parties the same columns, or drop = [{column!r}] where it is",
            )
            yield str(error)
        renamed = {closest(column, extra) for column in lacking}
        for column in [each for each in extra if each not in renamed][:3]:
            error = DataError(
                f"party {names[0]!r} has no such column",
                party=name,
                column=column,
                mend=f"drop = [{column!r}] at {name!r}, or give it to all parties",
            )
            yield str(error)
        for column in first.feature_names:
            if column not in other.names:
                continue
            mine, theirs = first.schema[column], other.schema[column]
            if not _go_together(mine.kind, theirs.kind):
                error = DataError(
                    f"is {theirs.kind} here and {mine.kind} at {names[0]!r}",
                    party=name,
                    column=column,
                    mend=f'write it alike, or kinds = {{{column} = "{mine.kind}"}} at both',
                )
                yield str(error)
    yield from _label_problems(tables)


def _label_problems(tables: Mapping[str, Table]) -> Iterator[str]:
    labelled = {name: table for name, table in tables.items() if table.label is not None}
    if len({table.label for table in labelled.values()}) > 1:
        told = ", ".join(f"{name}: {table.label}" for name, table in labelled.items())
        yield f"the label has several names ({told}). Mend: name the column alike at all parties"
        return
    classes: dict[object, str] = {}
    for name, table in labelled.items():
        kind = table.schema[str(table.label)].kind
        # A column without a value is taken for numbers; here it only says: no labels.
        if kind == "continuous" and table.y.notna().any():
            error = DataError(
                "is a number, and methods of horizontal federations need classes",
                party=name,
                column=table.label,
                mend='name the column of classes, or bin it; kinds = "nominal" for codes',
            )
            yield str(error)
            return
        for value in table.y.dropna().unique().tolist():
            classes.setdefault(value, name)
    text = [value for value in classes if isinstance(value, str)]
    if text and len(text) < len(classes):
        other = next(value for value in classes if not isinstance(value, str))
        yield (
            f"labels are text at {classes[text[0]]!r} ({text[0]!r}) and not at "
            f"{classes[other]!r} ({other!r}). Mend: write the classes alike at all parties"
        )
    if len(classes) < 2:
        yield (
            f"the labels of all parties have one class only: {[*classes]}. "
            "Mend: check the label columns"
        )


def _go_together(one: str, other: str) -> bool:
    """Whether one encoder can serve both; a column of two values may have more elsewhere."""
    numbers, categories = {"continuous", "integer", "binary"}, {"binary", "nominal", "ordinal"}
    return one == other or {one, other} <= numbers or {one, other} <= categories
