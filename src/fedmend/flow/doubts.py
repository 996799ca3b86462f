"""Columns that are probably not what they are taken for: what a pair of eyes would notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from fedmend.data.encode import as_written
from fedmend.data.table import Table
from fedmend.errors import DataError

__all__ = ["alike_doubts", "class_doubts", "doubtful_columns"]

# A category that nearly every row has for itself says nothing about other rows.
DIFFERENT_SHARE = 0.3
FEW_VALUES = 20
MOSTLY_NUMBERS = 0.8
DATE = r"\s*\d{1,4}([./-])\d{1,2}\1\d{2,4}(?:[ T]\d{1,2}:\d{2}(?::\d{2})?)?\s*"
AMOUNT = (
    r"\s*(?:[€$£]\s*|[A-Z]{3}\s+)?[-+−]?\d{1,3}(?:[.,'\u00a0\u202f ]?\d{3})*(?:[.,]\d+)?"
    r"(?:\s*[%€$£]|\s+[A-Za-z]{1,3})?\s*"
)
MISSING_MARKS = (-1, -9, -99, -999, -9999)


def doubtful_columns(table: Table, party: str) -> list[str]:
    """A sentence for each column that is worth a second look; none of them is an error."""
    notes = []
    for name in table.feature_names:
        column = table.schema[name]
        if column.is_block:
            continue
        values = table.frame[name].dropna()
        if not len(values):
            continue
        looks = _text_doubts if column.kind == "nominal" else _number_doubts
        if len(values) >= FEW_VALUES and values.nunique() == 1:
            looks = _constant_doubts
        for words, mend in looks(name, values):
            notes.append(f"party {party!r}, column {name!r}: {words}. Mend: {mend}")
    return notes


def _constant_doubts(name: str, values: pd.Series) -> Iterator[tuple[str, str]]:
    yield (
        f"{values.tolist()[0]!r} in all {len(values):,} cells that are not empty: it tells no row "
        "from another",
        f"drop = [{name!r}]",
    )


def _text_doubts(name: str, values: pd.Series) -> Iterator[tuple[str, str]]:
    texts = values.astype(str)
    distinct = texts.unique().tolist()
    numbers = pd.to_numeric(texts, errors="coerce").notna()
    if MOSTLY_NUMBERS <= numbers.mean() < 1:
        others = ", ".join(repr(each) for each in texts[~numbers].unique()[:3].tolist())
        first = texts[~numbers].iloc[0]
        yield (
            f"{numbers.sum():,} of its {len(texts):,} values are numbers, but it is taken for "
            f"text, as others read {others}",
            f"correct these cells, or missing = [{first!r}] where they stand for nothing",
        )
    elif len(distinct) >= FEW_VALUES and texts.str.fullmatch(DATE).all():
        yield (
            f"its values are dates (such as {distinct[0]!r}), but they are taken for categories",
            f"make it a number (days since a start date, month, age), or drop = [{name!r}]",
        )
    elif numbers.mean() < MOSTLY_NUMBERS <= texts.str.fullmatch(AMOUNT).mean():
        yield (
            f"its values look like numbers (such as {distinct[0]!r}), but they are taken for text",
            "write plain numbers, without units or signs between thousands; decimal = ',' at the "
            "party where a comma is the decimal sign",
        )
    elif len(distinct) > max(FEW_VALUES, DIFFERENT_SHARE * len(texts)):
        yield (
            f"{len(distinct):,} different values in {len(texts):,} rows (such as {distinct[0]!r}): "
            "as a category it says next to nothing",
            f"make it a number where it is a date or an amount, or drop = [{name!r}]",
        )
    alike: dict[str, list[str]] = {}
    for each in distinct:
        alike.setdefault(_folded(each), []).append(each)
    twice = next((each for each in alike.values() if len(each) > 1), None)
    if twice is not None:
        yield (
            f"{twice[0]!r} and {twice[1]!r} are taken for different values",
            "write them alike",
        )


def _number_doubts(name: str, values: pd.Series) -> Iterator[tuple[str, str]]:
    numbers = pd.to_numeric(values, errors="coerce").dropna()
    if len(numbers) < FEW_VALUES:
        return
    for mark in MISSING_MARKS:
        rest = numbers[numbers != mark]
        count = len(numbers) - len(rest)
        # One value below zero, well apart from all others: it stands for something.
        if count and len(rest) and rest.min() >= 0 and count < len(rest):
            yield (
                f"{count:,} {'cell is' if count == 1 else 'cells are'} {mark}, all others "
                f"{rest.min():g} or more",
                f'missing = ["{mark}"] where it stands for an empty cell',
            )


# ---------------------------------------------------------------- between parties


def alike_doubts(tables: Mapping[str, Table]) -> Iterator[str]:
    """Values that parties with the same columns seem to write differently."""
    names = list(tables)
    shared = set.intersection(*(set(table.feature_names) for table in tables.values()))
    for column in (each for each in tables[names[0]].feature_names if each in shared):
        if note := _written_otherwise(column, tables):
            yield note


def _written_otherwise(column: str, tables: Mapping[str, Table]) -> str | None:
    seen: dict[str, tuple[str, str]] = {}
    for name, table in tables.items():
        if table.schema[column].kind not in ("nominal", "binary"):
            return None
        for value in map(str, table.frame[column].dropna().unique()):
            before, at = seen.setdefault(_folded(value), (value, name))
            if before != value and at != name:
                return (
                    f"column {column!r}: {before!r} at {at!r} and {value!r} at {name!r} are "
                    "taken for different values. Mend: write them alike"
                )
    return None


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


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
