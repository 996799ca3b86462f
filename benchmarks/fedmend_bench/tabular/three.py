"""`fedmend bench tabular -o part=three`: two partners, each of whom knows people of its own.

The label party has `rows` rows, and each partner, which has half of the other columns, knows a
share of them drawn by itself: at 30 % all three know 9 % of the rows. Trees learn from what the
label party shares with each where the two are aligned as two, otherwise from rows known to all.
The same test rows are scored three times: known to all, to one of the partners, and to the label
party alone. Beside ours scikit-learn's boosting in the clear on the left join.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

import fedmend as fm
from fedmend.data.encode import as_numbers
from fedmend.data.table import Table
from fedmend.federation import Alignment
from fedmend.learn import metrics
from fedmend.methods import registry
from fedmend_bench.cells import run_cells
from fedmend_bench.risa.data import ALONE, LABELS, Sides, load_sides
from fedmend_bench.risa.runs import start
from fedmend_bench.simulation import apart, know, together, without_cryptography

__all__ = ["KNOWN", "METHODS", "Torn", "three"]

KNOWN = ("all", "one partner", "label party")
LEFT_JOIN, PAIRS = "GBDT left join", "SecureBoost"
METHODS = {
    "LocalTrees": "local-trees",
    "SecureBoost, rows known to all": "boosting",
    PAIRS: "boosting",
    "auto": "auto",
    LEFT_JOIN: "",
}


@dataclass(frozen=True)
class Torn:
    """One method on one draw. share: of the label party's rows that a partner knows, in percent."""

    data: str
    method: str
    share: float
    seed: int
    rows: int
    test: int


def three(
    sets: Sequence[str],
    shares: Sequence[float],
    seeds: Sequence[int],
    rows: int,
    test: int,
    **how: Any,
) -> list[dict[str, Any]]:
    """A row for every method: AUC, mean ± standard error, by set, share and who knows the row."""
    cells = [
        Torn(name, method, share, seed, rows, test)
        for seed in seeds
        for name in sets
        for share in shares
        for method in METHODS
    ]
    found = run_cells(measure, cells, start=start, **how)
    return summary([vars(cell) | line for cell, line in zip(cells, found, strict=True) if line])


def summary(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every set, share and method the mean AUC and its standard error."""
    groups: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["data"], line["share"], line["method"]), []).append(line)
    table = []
    for (data, share, method), runs in groups.items():
        row: dict[str, Any] = {"data": data, "share, %": share, "method": method}
        for known in KNOWN if "failed" not in runs[0] else ():
            values = [each[known] for each in runs]
            row[known] = statistics.mean(values)
            row[f"± {known}"] = statistics.stdev(values) / len(values) ** 0.5 if runs[1:] else None
        table.append(row | {"seeds": len(runs)})
    return table


def measure(cell: Torn) -> dict[str, Any]:
    """Fit one method; its AUC of all three kinds of rows."""
    sides = load_sides(cell.data, cell.seed, cell.rows, cell.test, 3)
    known = _draw(sides, cell)
    if cell.method == LEFT_JOIN:
        return _in_the_clear(sides, known, cell.seed)
    fed = _federation(sides, known, cell.seed, pairs="known to all" not in cell.method)
    model = registry.make(METHODS[cell.method], {}, cell.seed).fit(fed)
    partner = next(iter(known))
    views = (fed.on("test"), fed.on("test").only(LABELS, partner), fed.on(ALONE))
    kinds = ("aligned", "aligned", LABELS)
    return {
        name: model.evaluate(view, rows=kind)["auc"]
        for name, view, kind in zip(KNOWN, views, kinds, strict=True)
    }


def _draw(sides: Sides, cell: Torn) -> dict[str, np.ndarray]:
    """For each partner which rows it knows."""
    n, rng = len(sides.train[LABELS]), np.random.default_rng([cell.seed, 41])
    count = round(cell.share / 100 * n)
    return {name: rng.permutation(n)[:count] for name in sides.train if name != LABELS}


def _federation(
    sides: Sides, known: dict[str, np.ndarray], seed: int, pairs: bool
) -> fm.Federation:
    """Ids are row numbers; orders are those of the alignments, which are not computed."""
    without_cryptography()
    n, n_test = len(sides.train[LABELS]), len(sides.test[LABELS])
    first = 1 + int(sides.test[LABELS].ids.max())
    rows = {LABELS: np.arange(n), **known}
    parties = []
    for name, own in rows.items():
        table = sides.train[name].take(own)
        train = Table(first + own, table.frame, schema=table.schema, label=table.label)
        parties.append(fm.Party(name, train, test=sides.test[name], alone=sides.test[name]))
    fed = fm.Federation(*parties, seed=seed)

    def shared(*names: str) -> dict[str, Alignment]:
        common = np.flatnonzero(np.all([np.isin(np.arange(n), rows[each]) for each in names], 0))
        place = {name: np.argsort(rows[name]) for name in names}
        found = {}
        for name in names:
            aligned = place[name][np.searchsorted(np.sort(rows[name]), common)]
            found[name] = Alignment(aligned, np.setdiff1d(np.arange(len(rows[name])), aligned))
        return found

    know(fed, shared(*rows))
    for name in known:
        know(fed.on("test").only(LABELS, name), together(n_test))
        if pairs:
            know(fed.only(LABELS, name), shared(LABELS, name))
    know(fed.on("test"), together(n_test))
    know(fed.on(ALONE), apart(n_test))
    return fed


def _in_the_clear(sides: Sides, known: dict[str, np.ndarray], seed: int) -> dict[str, float]:
    schemas = {name: table.features.schema for name, table in sides.train.items()}

    def cells(tables: Any, there: dict[str, np.ndarray]) -> np.ndarray:
        columns = []
        for name, schema in schemas.items():
            for each in schema.values():
                values = np.asarray(as_numbers(each, tables[name].frame[each.name]), np.float64)
                columns.append(np.where(there[name], values, np.nan))
        return np.stack(columns, axis=1)

    nominal = [
        column.kind == "nominal" and len(column.categories or ()) <= 254
        for schema in schemas.values()
        for column in schema.values()
    ]
    n, n_test = len(sides.train[LABELS]), len(sides.test[LABELS])
    there = {name: np.isin(np.arange(n), own) for name, own in known.items()}
    names, y = np.unique(sides.train[LABELS].y.astype(str), return_inverse=True)
    model = HistGradientBoostingClassifier(categorical_features=nominal, random_state=seed)
    model.fit(cells(sides.train, {LABELS: np.ones(n, bool)} | there), y)
    truth = np.searchsorted(names, sides.test[LABELS].y.astype(str))
    found, partner = {}, next(iter(known))
    for kind, some in zip(KNOWN, (set(known), {partner}, set()), strict=True):
        here = {name: np.full(n_test, name == LABELS or name in some) for name in schemas}
        shares = model.predict_proba(cells(sides.test, here))
        found[kind] = metrics.classification(truth, shares)["auc"]
    return found
