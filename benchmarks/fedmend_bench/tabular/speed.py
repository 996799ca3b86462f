"""How long SecureBoost takes beside scikit-learn on the same rows, and how that grows.

Seconds by the clock, and the processor's, which other work on the machine changes less: these are
compared.

Bank, all rows known to both parties, numbers at the label party and categories at its partner. Both
grow as many trees of the same depth, without rows held out but for the few that ours must have.
Encryption (``bfv``) is measured on few of the rows, and multiplied: trees cannot be left out, the
later ones ask for fewer sums than the first. It is also measured with both sides the other way
round: numbers have more bins than categories.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmend.data.table import Table
from fedmend.federation import Federation, Party
from fedmend.methods.boosting.secureboost import SecureBoost
from fedmend_bench import datasets
from fedmend_bench.clear import Clear
from fedmend_bench.harness import Bar
from fedmend_bench.risa.data import LABELS, PARTNER, columns_of
from fedmend_bench.simulation import know, together, without_cryptography

TREES, DEPTH = 100, 5
MOST_SECONDS, MOST_BFV, MOST_TIMES = 60, 600, 20
FEW_ROWS = 8  # one in so many, where encryption is measured
LINEAR = 1.25
"""By how much twice the rows or columns may take longer than twice as long."""


def speed(quick: bool = False) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Lines and bars; quick is a small table and few trees."""
    table = datasets.load("breast-cancer" if quick else "bank")
    trees = 10 if quick else TREES
    rows, columns = len(table), len(table.feature_names)
    found = [_line(_sample(table, rows, columns), trees, "dealer")]
    if quick:
        return found, [Bar.at_most("times scikit-learn", found[0]["times"], 1000)]
    whole = found[0]
    few = trees // 5
    base = _line(_sample(table, rows, columns), few, "dealer")
    less_rows = _line(_sample(table, rows // 2, columns), few, "dealer")
    less_columns = _line(_sample(table, rows, columns // 2), few, "dealer")
    encrypted = [
        _line(_sample(table, rows // FEW_ROWS, columns, swapped), trees, "bfv")
        for swapped in (False, True)
    ]
    found += [base, less_rows, less_columns, *encrypted]
    bars = [
        Bar.at_most("dealer, seconds", whole["seconds"], MOST_SECONDS),
        Bar.at_most("dealer, times scikit-learn", whole["times"], MOST_TIMES),
        *(
            Bar.at_most(
                f"bfv, {what} at the partner: processor's seconds, by those of few rows",
                round(FEW_ROWS * line["cpu s"], 1),
                MOST_BFV,
            )
            for what, line in zip(("categories", "numbers"), encrypted, strict=True)
        ),
        _grown("rows", base, less_rows),
        _grown("columns", base, less_columns),
    ]
    return found, bars


def _grown(what: str, whole: dict[str, Any], half: dict[str, Any]) -> Bar:
    times = whole["cpu s"] / half["cpu s"]
    return Bar.at_most(f"twice the {what}, times as long", round(times, 2), 2 * LINEAR)


def _sample(table: Table, rows: int, columns: int, swapped: bool = False) -> Federation:
    """A federation of two that know the same rows; of each side the first columns.

    swapped: the label party has the categories."""
    without_cryptography()
    taken = table.take(np.random.default_rng(0).permutation(len(table))[:rows])
    sides = {
        name: names[: round(len(names) * columns / len(table.feature_names))]
        for name, names in columns_of(table).items()
    }
    if swapped:
        sides = {LABELS: sides[PARTNER], PARTNER: sides[LABELS]}
    fed = Federation(
        Party(LABELS, taken.select([*sides[LABELS], str(table.label)])),
        Party(PARTNER, taken.select(sides[PARTNER])),
    )
    know(fed, together(rows))
    return fed


def _line(fed: Federation, trees: int, mode: str) -> dict[str, Any]:
    """Ours and scikit-learn's on the same rows, one after the other."""
    rows = fed.roster[LABELS]["rows"]
    columns = sum(fed.roster[name]["features"] for name in fed.names)
    ours = SecureBoost(
        trees=trees, depth=DEPTH, mode=mode, validation=0.01, patience=trees, refit=False
    )
    settings = {"max_iter": trees, "max_depth": DEPTH, "max_leaf_nodes": None}
    theirs = Clear("GBDT joined (oracle)", settings=settings | {"early_stopping": False})
    theirs.fit(fed, np.arange(rows))  # what is loaded at first is not to be counted
    clock, seconds = _took(lambda: ours.fit(fed))
    _, reference = _took(lambda: theirs.fit(fed, np.arange(rows)))
    return {
        "rows": rows,
        "columns": columns,
        "trees": trees,
        "mode": mode,
        "seconds": round(clock, 2),
        "cpu s": round(seconds, 2),
        "scikit-learn cpu s": round(reference, 2),
        "times": round(seconds / reference, 1),
    }


def _took(what: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    began, used = time.perf_counter(), time.process_time()
    what()
    return time.perf_counter() - began, time.process_time() - used
