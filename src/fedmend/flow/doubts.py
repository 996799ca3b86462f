"""Columns that are probably not what they are taken for: what a pair of eyes would notice.

A column that tells the label by itself is looked for in the label party's own table, and by
`fedmend check`, which has all files at hand, in those of its partners.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.encode import MOST_CLASSES, NUMBERS, as_written, looks_counted
from fedmend.data.table import Table
from fedmend.errors import DataError

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
SAYS_NOTHING = {"", ".", "-", "?", "none", "<na>"}
# Nothing is measured so large; several programs write the largest float for an empty cell.
LARGEST = 1e34
# A column that orders the classes, or follows a number, better than this gives the label away.
TELLS_ALL = 0.995
LOOKED_AT = 4000
FEWEST_OF_A_CLASS = 10
A_COPY = 0.999


def doubtful_columns(table: Table, party: str, *, task: str | None = None) -> list[str]:
    """A sentence for each column that is worth a second look; none of them is an error.

    task: what the label is said to be.
    """
    notes = list(_label_doubts(table, party)) if task is None else []
    if table.label is not None and task not in NUMBERS:
        texts = table.y.dropna().astype(str)
        doubts = [*_written_twice(texts.unique().tolist()), *_marks(texts, "class")]
        if task is None and table.schema[table.label].kind == "nominal":
            doubts += _as_text(texts, "classes")
        for words, mend in doubts:
            notes.append(f"party {party!r}, label {table.label!r}: {words}. Mend: {mend}")
    if table.label is not None and table.schema[table.label].is_numeric:
        numbers = table.y.dropna()  # of which -1 may be a class as good as 0 and 1
        for words, mend in _number_doubts(table.label, numbers[numbers != -1]):
            notes.append(f"party {party!r}, label {table.label!r}: {words}. Mend: {mend}")
    notes += _telling_columns(table, party, task=task)
    for name in table.feature_names:
        column = table.schema[name]
        if column.is_block:
            continue
        values = table.frame[name].dropna()
        if not len(values):
            continue
        text = column.kind == "nominal" or isinstance(values.iloc[0], str)
        looks = _text_doubts if text else _number_doubts
        if len(values) >= FEW_VALUES and values.nunique() == 1:
            looks = _constant_doubts
        for words, mend in looks(name, values):
            notes.append(f"party {party!r}, column {name!r}: {words}. Mend: {mend}")
    return notes


# ---------------------------------------------------------------- the label


def _label_doubts(table: Table, party: str) -> Iterator[str]:
    """Whole numbers may be classes, counts or measures, and nobody but their owner knows."""
    if table.label is None or table.schema[table.label].kind != "integer":
        return
    values = table.y.dropna()
    distinct = int(values.nunique())
    if distinct < 3 or (distinct > MOST_CLASSES and values.min() < 0):
        return
    classes = distinct <= min(MOST_CLASSES, max(len(values) // 2, 1))
    found = f"{distinct} different whole numbers, {values.min():g} to {values.max():g}"
    taken = f"{distinct} classes without order" if classes else "a measured number"
    seem = ", though they look like counts" if classes and looks_counted(values) else ""
    yield (
        f"party {party!r}, label {table.label!r}: {found}, are taken for {taken}{seem}. Mend: "
        'write task = "count" beside label if they count something, task = "regression" if they '
        'measure something, task = "multiclass" if they are classes'
    )


def _telling_columns(table: Table, party: str, *, task: str | None = None) -> Iterator[str]:
    """The columns of the label party that give the label away."""
    if table.label is None:
        return
    for name in table.feature_names:
        if table.schema[name].is_block:
            continue
        how = telling(table.frame[name], table.y, task=task)
        if how is not None:
            yield (
                f"party {party!r}, column {name!r}: it tells the label {table.label!r} by itself "
                f"({how}). Mend: drop = [{name!r}] there if it is a copy of the label or known "
                "only after it"
            )


def telling(column: pd.Series, label: pd.Series, *, task: str | None = None) -> str | None:
    """How well a column tells the label on held-out rows, if nearly perfectly.

    A small tree learns it on one half of the rows and is judged on the other: it finds copies,
    other codes for the same classes, thresholds, and cells that are empty for one class only.
    """
    from sklearn.metrics import r2_score, roc_auc_score
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    number = task in NUMBERS or (
        task is None and pd.api.types.is_numeric_dtype(label) and label.nunique() > MOST_CLASSES
    )
    known = label.notna()
    if not number:  # classes that hardly occur in one of the halves cannot be judged
        often = label.map(label.value_counts())
        known &= often >= 2 * FEWEST_OF_A_CLASS
    at = np.flatnonzero(known.to_numpy())
    at = at[:: -(-len(at) // LOOKED_AT) or 1]
    x, y = _as_number(column.iloc[at]), label.iloc[at]
    if len(y) < 2 * FEW_VALUES or y.nunique() < 2 or len(pd.unique(x)) < 2:
        return None
    learnt = np.arange(len(y)) % 2 == 0
    if number:
        truth = y.to_numpy(dtype=np.float64)
        tree = DecisionTreeRegressor(max_leaf_nodes=256)
        said = tree.fit(x[learnt, None], truth[learnt]).predict(x[~learnt, None])
        # Half of the rows are few to learn a line from; its ranks are as good.
        ranks = pd.Series(x).rank().corr(pd.Series(truth).rank())
        metric, told = "R²", max(r2_score(truth[~learnt], said), np.nan_to_num(ranks) ** 2)
    else:
        truth, classes = pd.factorize(y, sort=True)
        if len(np.unique(truth[learnt])) < len(classes) or len(np.unique(truth[~learnt])) < len(
            classes
        ):
            return None
        tree = DecisionTreeClassifier(max_leaf_nodes=4 * len(classes))
        said = tree.fit(x[learnt, None], truth[learnt]).predict_proba(x[~learnt, None])
        said = said[:, 1] if len(classes) == 2 else said
        metric, told = "AUC", roc_auc_score(truth[~learnt], said, multi_class="ovr")
    return f"{metric} {told:.3f} on held-out rows" if told > TELLS_ALL else None


def _as_number(values: pd.Series) -> np.ndarray:
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        # A tree of scikit-learn refuses what a float32 cannot hold, and adds some of it up.
        return values.to_numpy(dtype=np.float64, na_value=np.nan).clip(-LARGEST, LARGEST)
    codes, _ = pd.factorize(values.astype(object), sort=False)
    return np.where(codes < 0, np.nan, codes).astype(np.float64)


# ---------------------------------------------------------------- a column by itself


def _constant_doubts(name: str, values: pd.Series) -> Iterator[tuple[str, str]]:
    yield (
        f"{values.tolist()[0]!r} in all {len(values):,} cells that are not empty: it tells no row "
        "from another",
        f"drop = [{name!r}]",
    )


def _text_doubts(name: str, values: pd.Series) -> Iterator[tuple[str, str]]:
    texts = values.astype(str)
    distinct = texts.unique().tolist()
    numbers = list(_as_text(texts, "text"))
    if numbers:
        yield from numbers
    elif len(distinct) >= FEW_VALUES and texts.str.fullmatch(DATE).all():
        yield (
            f"its values are dates (such as {distinct[0]!r}), but they are taken for categories",
            f"make it a number (days since a start date, month, age), or drop = [{name!r}]",
        )
    elif len(distinct) > max(FEW_VALUES, DIFFERENT_SHARE * len(texts)):
        yield (
            f"{len(distinct):,} different values in {len(texts):,} rows (such as {distinct[0]!r}): "
            "as a category it says next to nothing",
            f"make it a number where it is a date or an amount, or drop = [{name!r}]",
        )
    yield from _written_twice(distinct)
    yield from _marks(texts, "value")


def _as_text(texts: pd.Series, taken: str) -> Iterator[tuple[str, str]]:
    """Numbers that are text, for what stands beside them or the way they are written."""
    numbers = pd.to_numeric(texts, errors="coerce").notna()
    if MOSTLY_NUMBERS <= numbers.mean() < 1:
        others = ", ".join(repr(each) for each in texts[~numbers].unique()[:3].tolist())
        first = texts[~numbers].iloc[0]
        yield (
            f"{numbers.sum():,} of its {len(texts):,} values are numbers, but it is taken for "
            f"{taken}, as others read {others}",
            f"correct these cells, or missing = [{first!r}] where they stand for nothing",
        )
    elif numbers.mean() < MOSTLY_NUMBERS <= texts.str.fullmatch(AMOUNT).mean():
        yield (
            f"its values look like numbers (such as {max(texts, key=len)!r}), but they are taken "
            f"for {taken}",
            "write plain numbers, without units or signs between thousands; decimal = ',' at the "
            "party where a comma is the decimal sign",
        )


def _marks(texts: pd.Series, taken: str) -> Iterator[tuple[str, str]]:
    """Cells that hold blanks only, or a sign that hardly is a class."""
    found = texts[texts.map(_folded).isin(SAYS_NOTHING if taken == "class" else {""})]
    if len(found):
        mark = found.iloc[0]
        yield (
            f"{len(found):,} {'cell reads' if len(found) == 1 else 'cells read'} {mark!r}, which "
            f"is taken for a {taken}",
            f"missing = [{mark!r}] where it stands for an empty cell",
        )


def _written_twice(distinct: list[str]) -> Iterator[tuple[str, str]]:
    alike: dict[str, list[str]] = {}
    for each in distinct:
        alike.setdefault(_folded(each), []).append(each)
    twice = next((each for each in alike.values() if len(each) > 1), None)
    if twice is not None:
        yield f"{twice[0]!r} and {twice[1]!r} are taken for different values", "write them alike"


def _number_doubts(name: str, values: pd.Series) -> Iterator[tuple[str, str]]:
    numbers = pd.to_numeric(values, errors="coerce").dropna()
    if len(numbers) < FEW_VALUES:
        return
    far = numbers[numbers.abs() >= LARGEST]
    if 0 < len(far) < len(numbers):
        yield (
            f"{len(far):,} {'cell is' if len(far) == 1 else 'cells are'} as large as "
            f"{far.iloc[0]:g}: beside it all others are one number to a network",
            "empty these cells, or name them in missing as the file has them",
        )
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
        if {table.schema[column].kind for table in tables.values()} <= {"nominal", "binary"}:
            own = {name: table.frame[column].dropna().unique() for name, table in tables.items()}
            yield from _written_otherwise(column, own)


def _written_otherwise(column: str, values: Mapping[str, Iterable[Any]]) -> Iterator[str]:
    seen: dict[str, tuple[str, str]] = {}
    for name, own in values.items():
        for value in map(str, own):
            before, at = seen.setdefault(_folded(value), (value, name))
            if before != value and at != name:
                yield (
                    f"column {column!r}: {before!r} at {at!r} and {value!r} at {name!r} are "
                    "taken for different values. Mend: write them alike"
                )
                return


def told_elsewhere(
    owner: str, labels: pd.Series, partner: str, theirs: pd.DataFrame, *, task: str | None = None
) -> Iterator[str]:
    """Columns of a partner that give the label away, or label the same rows again.

    labels, theirs: of the rows that both know, in the same order.
    """
    known = labels.notna().to_numpy()
    for name in theirs.columns:
        where = f"party {partner!r}, column {name!r}"
        both = known & theirs[name].notna().to_numpy()
        same = _agreement(labels[both], theirs.loc[both, name]) if both.sum() >= FEW_VALUES else 0.0
        if same >= A_COPY:
            yield (
                f"{where}: the same as the label {labels.name!r} of {owner!r} in {both.sum():,} "
                f"shared rows: a copy, which would be all that is learnt. Mend: drop = [{name!r}] "
                f"at {partner!r}"
            )
        elif (how := telling(theirs[name], labels, task=task)) is not None:
            yield (
                f"{where}: it tells the label {labels.name!r} of {owner!r} by itself ({how}). "
                f"Mend: drop = [{name!r}] at {partner!r} if it is the label in other words or "
                "known only after it"
            )
        elif _folded(str(name)) == _folded(str(labels.name)) and both.sum() >= FEW_VALUES:
            yield (
                f"{where}: it has the name of the label of {owner!r}, and agrees with it in "
                f"{100 * same:.0f} % of {both.sum():,} shared rows. Mend: label = {name!r} at "
                f"{partner!r} too if it is a second annotator's (docs/inc.md), or drop = [{name!r}]"
            )


def _agreement(one: pd.Series, two: pd.Series) -> float:
    words = (each.map(lambda value: _folded(str(as_written(value)))) for each in (one, two))
    mine, theirs = (each.to_numpy(dtype=object) for each in words)
    return float((mine == theirs).mean())


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def class_doubts(tables: Mapping[str, Table]) -> Iterator[str]:
    """Parties whose classes nobody else has: the same ones, perhaps, in other words or letters."""
    classes = {
        name: set(table.y.dropna().tolist())  # in a set True is 1, as to the methods
        for name, table in tables.items()
        if table.label is not None and table.y.notna().any()
    }
    for name, own in classes.items():
        others = {each: said for each, said in classes.items() if each != name}
        if others and not any(own & said for said in others.values()):
            other, theirs = next(iter(others.items()))
            shown, told = (sorted(str(as_written(each)) for each in two) for two in (own, theirs))
            error = DataError(
                f"no other party has one of these classes; {other!r} has {', '.join(told[:3])}",
                party=name,
                column=tables[name].label,
                value=shown[:3],
                mend="write the classes alike at all parties",
            )
            yield str(error)
    said = {name: sorted(map(str, own)) for name, own in classes.items()}
    for name in list(classes)[:1]:
        yield from _written_otherwise(str(tables[name].label), said)
