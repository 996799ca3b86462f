"""One encoding for parties with the same columns: kinds, categories, means and scales agreed on.

Every party tells its columns (kinds, categories, classes of the label) and, once these are agreed
on, count, mean and variance of each number; rows stay where they are. The result is what an
`Encoder` fitted on all rows together would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedmend.data.encode import Encoder
from fedmend.data.schema import (
    CATEGORICAL,
    NUMERIC,
    Column,
    Schema,
    known_as_written,
    numbers,
    plainly,
    python_scalar,
)
from fedmend.data.table import Table
from fedmend.errors import DataError
from fedmend.federation.rows import frequent
from fedmend.methods.horizontal.rounds import Pool
from fedmend.methods.horizontal.views import ImageViews, TableViews, Views

# ---------------------------------------------------------------------------------- at a party


def describe(table: Table, least: int = 1) -> dict[str, Any]:
    """A party's feature columns, its label's name and the classes that occur.

    A category of fewer than `least` rows is not told: its rows are encoded as unknown.
    """
    classes: list[Any] = []
    if table.label is not None:
        column = table.schema[table.label]
        present = table.y.dropna()
        if len(present) and column.kind == "continuous":
            raise DataError(
                f"clients learn classes, but the label is {column.kind}",
                column=table.label,
                mend=f"give its kind where the table is read: kinds={{{table.label!r}: 'nominal'}}",
            )
        # In an order that does not say which one the first row has.
        classes = sorted((python_scalar(value) for value in present.unique()), key=str)
    schema = Schema(
        _without_rare(column, table, least) for column in table.features.schema.values()
    )
    return {"schema": schema.to_dict(), "label": table.label, "classes": classes}


def _without_rare(column: Column, table: Table, least: int) -> Column:
    if column.is_numeric and bool(table.frame[column.name].isna().all()):
        # Without a value it may be whatever it is elsewhere: numbers, or categories.
        return replace(column, kind="nominal", categories=(), dtype="float64")
    if not column.is_categorical:
        return column
    categories = list(column.categories or ())
    codes = pd.Categorical(table.frame[column.name], categories=categories).codes.astype(np.int64)
    enough = frequent(codes, len(categories), least, names_only=True)
    if len(enough) == len(categories):
        return column
    kind = "nominal" if column.kind == "binary" else column.kind
    return replace(column, kind=kind, categories=tuple(categories[code] for code in enough))


def moments(
    table: Table, schema: Schema, may_tell: Callable[[str, np.ndarray], bool] = lambda *_: True
) -> dict[str, list[list[float]]]:
    """Count, mean and variance of the numbers in each column or image channel.

    may_tell: of a column and the rows that have a number in it; of others there are none.
    """
    found: dict[str, list[list[float]]] = {}
    for name, column in schema.items():
        if column.is_block:
            values = table.blocks[name].astype(np.float64)
            if table.blocks[name].dtype == np.uint8:
                values /= 255.0
            found[name] = [_moments(channel, name) for channel in values.swapaxes(0, 1)]
        elif column.is_numeric:
            values = numbers(table.frame[name])
            present = np.flatnonzero(~np.isnan(values))
            told = values[present] if may_tell(name, present) else values[:0]
            found[name] = [_moments(told, name)]
    return found


def _moments(values: np.ndarray, column: str) -> list[float]:
    present = values[~np.isnan(values)]
    if not len(present):
        return [0.0, 0.0, 0.0]
    with np.errstate(over="ignore", invalid="ignore"):
        found = [float(present.size), float(present.mean()), float(present.var())]
    if not np.isfinite(found).all():
        raise DataError(
            "numbers too large for a mean and a variance of all parties",
            column=column,
            value=float(np.abs(present).max()),
            mend="empty these cells where they stand for nothing",
        )
    return found


# ---------------------------------------------------------------------------------- together


def common_schema(described: Mapping[str, Mapping[str, Any]]) -> Schema:
    """The columns all parties have, with every category that occurs anywhere."""
    schemas = {party: Schema.from_dict(each["schema"]) for party, each in described.items()}
    first, reference = next(iter(schemas.items()))
    for party, schema in schemas.items():
        absent = [name for name in reference if name not in schema]
        extra = [name for name in schema if name not in reference]
        if absent or extra:
            what = f"lacks {absent[0]!r}" if absent else f"has {extra[0]!r} besides"
            raise DataError(
                f"the columns are not those of party {first!r}: it {what}",
                party=party,
                mend="clients need the same feature columns; rename, drop or add them",
            )
    return Schema(
        merged({party: schema[name] for party, schema in schemas.items()}) for name in reference
    )


def merged(columns: Mapping[str, Column]) -> Column:
    """What a column is to all parties; DataError at the first that cannot go with the others."""
    name = next(iter(columns.values())).name
    columns = {p: c for p, c in columns.items() if c.categories != () or not _is_number(c)}
    if not columns:
        return Column(name, "continuous")
    first, reference = next(iter(columns.items()))
    kinds = {column.kind for column in columns.values()}
    shapes = {column.shape for column in columns.values()}
    if len(kinds) == 1 and len(shapes) == 1 and not reference.is_categorical:
        return reference
    if kinds & set(NUMERIC) and all(_is_number(column) for column in columns.values()):
        return Column(name, "continuous")
    if kinds <= set(CATEGORICAL):
        lists = [column.categories or () for column in columns.values()]
        said = {party: c.categories[0] for party, c in columns.items() if c.categories}
        text = [value for each in lists for value in each if isinstance(value, str)]
        rest = [value for each in lists for value in each if not isinstance(value, str)]
        mixed = bool(text and rest)
        # Of the codes 12 and A1 a party may have the first alone, and read numbers.
        if mixed and "ordinal" not in kinds and known_as_written(pd.Series(rest), text):
            lists = [tuple(map(plainly, each)) for each in lists]
        elif mixed:
            one, known = next(iter(said.items()))
            party = next(p for p in said if isinstance(said[p], str) != isinstance(known, str))
            here, there = (type(value).__name__ for value in (said[party], known))
            raise DataError(
                f"holds {here} values here and {there} values at party {one!r}",
                party=party,
                column=name,
                mend="give the column one type at all parties",
            )
        kind = reference.kind if len(kinds) == 1 else "nominal"
        values = _union(lists, reference, kind)
        kind = "nominal" if kind == "binary" and len(values) > 2 else kind
        return Column(name, kind, tuple(values), dtype="object" if mixed else reference.dtype)
    party, other = next(
        (p, c) for p, c in columns.items() if c.kind != reference.kind or c.shape != reference.shape
    )
    mend = "write it alike; or, of codes, let kinds say 'nominal' of it at all parties"
    if reference.is_block and other.is_block:
        mend = "bring the images of all parties to one shape, as bytes (uint8)"
    raise DataError(
        f"is {_told(other)} here and {_told(reference)} at party {first!r}",
        party=party,
        column=reference.name,
        mend=mend,
    )


def _told(column: Column) -> str:
    """A column's kind, and the shape of one value where it is a block."""
    return f"{column.kind} of shape {column.shape}" if column.is_block else column.kind


def _is_number(column: Column) -> bool:
    """A column of two numbers is binary, though it may have more of them elsewhere.

    Where one of the two is rare it is not told (`_without_rare`), and the column comes as nominal.
    """
    if column.is_numeric:
        return True
    told = column.categories or ()
    two = column.kind == "binary" or (column.kind == "nominal" and len(told) < 2)
    typed = column.dtype.lower().startswith(("int", "uint", "float"))
    # True is a number to Python, and to no column of numbers.
    whole = (isinstance(value, (int, float)) and not isinstance(value, bool) for value in told)
    return two and (all(whole) if told else typed)


def _union(lists: Sequence[Sequence[Any]], column: Column, kind: str) -> list[Any]:
    values: list[Any] = []
    for each in lists:
        values += [value for value in each if value not in values]
    alike = _in_order(values, column.name)
    return _one_order(lists, column.name) if kind == "ordinal" else alike


def _one_order(lists: Sequence[Sequence[Any]], column: str) -> list[Any]:
    """The shortest list in which all of these stand in their order.

    A party leaves out its rare steps (`_without_rare`). Of steps that nobody compares either may
    come first: to the network they are codes.
    """
    steps: TopologicalSorter[Any] = TopologicalSorter()
    for each in lists:
        for value in each:
            steps.add(value)
        for lower, higher in pairwise(each):
            steps.add(higher, lower)
    try:
        return list(steps.static_order())
    except CycleError as error:
        raise DataError(
            "the parties have the steps of this order in different orders",
            column=column,
            value=error.args[1],
            mend="give the same ordered categories at all parties",
        ) from None


def common_classes(described: Mapping[str, Mapping[str, Any]]) -> tuple[str, list[Any]]:
    """The label's name and its classes in order."""
    labels = {each["label"] for each in described.values() if each["label"] is not None}
    if len(labels) > 1:
        raise DataError(
            f"the parties' labels have different names: {', '.join(sorted(labels))}",
            mend="give the label column one name",
        )
    classes: list[Any] = []
    for each in described.values():
        classes += [value for value in each["classes"] if value not in classes]
    if len(classes) < 2:
        raise DataError(
            f"there are labels of {len(classes)} classes in all",
            column=next(iter(labels), None),
            value=classes,
            mend="give labelled rows of two classes or more, at some party",
        )
    label = next(iter(labels))
    return label, _in_order(classes, label)


def _in_order(values: list[Any], column: str) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        raise DataError(
            "text at one party, numbers at another",
            column=column,
            value=values[:4],
            mend="give the column one type at all parties",
        ) from None


def common_encoder(
    schema: Schema, found: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], dtype: str
) -> dict[str, Any]:
    """An encoder for all parties, as `Encoder.to_dict` has it."""
    measured = [name for name, column in schema.items() if column.is_block or column.is_numeric]
    blocks, scaled = {}, []
    for name in measured:
        values = _joined([each[name] for each in found.values()])
        if schema[name].is_block:
            blocks[name] = {"mean": [m for m, _ in values], "scale": [s for _, s in values]}
        else:
            scaled.append([name, *values[0], False])
    options = Encoder(ordinal="codes", binary="codes", dtype=dtype)
    names = ("ordinal", "binary", "unseen", "missing_indicator")
    return {
        "options": {name: getattr(options, name) for name in names} | {"dtype": dtype},
        "schema": schema.to_dict(),
        "scaled": scaled,
        "coded": {
            name: list(column.categories or ())
            for name, column in schema.items()
            if column.is_categorical
        },
        "blocks": blocks,
    }


def _joined(parts: Sequence[Sequence[Sequence[float]]]) -> list[tuple[float, float]]:
    """Mean and standard deviation over all parties, one pair a channel."""
    results = []
    for channel in zip(*parts, strict=True):
        count = sum(n for n, _, _ in channel)
        mean = sum(n * m for n, m, _ in channel) / count if count else 0.0
        spread = sum(n * (v + (m - mean) ** 2) for n, m, v in channel)
        deviation = math.sqrt(spread / count) if count else 0.0
        negligible = deviation <= 1e-12 * abs(mean)
        results.append((mean, 1.0 if negligible else deviation))
    return results


# ---------------------------------------------------------------------------------- rows, encoded


def pool_of(table: Table, common: Mapping[str, Any], party: str) -> Pool:
    """A party's rows as a client's, encoded as all parties agreed."""
    labels = np.full(len(table), -1, np.int64)
    if table.label is not None:
        present = table.y.notna().to_numpy()
        given = table.y[present]
        known = {value: at for at, value in enumerate(common["classes"])}
        # Not by the dictionary itself: to pandas True is not the 1 of the other parties.
        numbers = given.astype(object).map(known.get)
        unknown = numbers.isna().to_numpy()
        if unknown.any():
            raise DataError(
                "a label that was not there in training",
                party=party,
                column=table.label,
                value=python_scalar(given[unknown].iloc[0]),
                mend=f"the known classes are {common['classes'][:10]}; correct or drop those rows",
            )
        labels[present] = numbers.to_numpy(np.int64)
    return Pool(views_of(table, common, party), labels, name=party)


def views_of(table: Table, common: Mapping[str, Any], party: str) -> Views:
    """A table's rows as views: its one image block, or its columns."""
    encoder = Encoder.from_dict(common["encoder"])
    if not encoder.block_shapes:
        encoded = encoder.transform(table, party)
        return TableViews(torch.from_numpy(encoded.numeric), torch.from_numpy(encoded.codes))
    ((name, shape),) = encoder.block_shapes.items()
    scaler = common["encoder"]["blocks"][name]
    images = _block(table, name, shape, party)
    if images.dtype != np.uint8:
        low, high = float(images.min()), float(images.max())
        if low < 0 or high > 1:
            raise DataError(
                "images must be bytes, or numbers from 0 to 1",
                party=party,
                column=name,
                value=low if low < 0 else high,
                mend="give the block as uint8",
            )
        images = np.rint(images * 255.0).astype(np.uint8)
    return ImageViews(
        torch.from_numpy(np.ascontiguousarray(images)),
        scaler["mean"],
        scaler["scale"],
        flip=common["views"]["flip"],
    )


def _block(table: Table, name: str, shape: tuple[int, ...], party: str) -> np.ndarray:
    """A table's images, which must be there and of the size that all parties agreed on."""
    images = table.blocks.get(name)
    if images is None:
        raise DataError(
            "the images are not there",
            party=party,
            column=name,
            mend=f"give them as a block {name!r} of the table",
        )
    if images.shape[1:] != tuple(shape):
        raise DataError(
            f"images of shape {tuple(shape)} were trained on, these are of another",
            party=party,
            column=name,
            value=images.shape[1:],
            mend="bring them to the size of the training images",
        )
    return images
