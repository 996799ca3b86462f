"""`fedmend bench sage-tables`: who is taken, and what the lines say of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedmend_bench.sage.tables import CANDIDATES, Cell, bars_of, summary, taken, world_of

CELL = Cell("digits", "every", 0.5, 10.0, 300, 1, 0, 2, 0)


def found(*folds: float, ahead: float = 0.0) -> dict[str, Any]:
    """FixMatch is so far ahead of the others in each fold, and on the test rows."""
    scores = {"accuracy": 0.8, "auc": float("nan")}
    test = {name: dict(scores) for name in CANDIDATES}
    test["FixMatch"]["accuracy"] += ahead
    return {
        "labels": [20, 30],
        "alone": [scores, scores],
        "own rows": 10,
        "alone, own": 7.0,
        "own": dict.fromkeys(CANDIDATES, 8.0),
        "test": test,
        "folds": {
            name: [scores | {"accuracy": 0.8 + each * (name == "FixMatch")} for each in folds]
            for name in CANDIDATES
        },
    }


def test_fedavg_is_left_for_what_is_ahead_and_where_folds_were_judged() -> None:
    assert taken(found()) == taken(found(-0.01, 0.03)) == "FedAvg"
    assert taken(found(0.01, 0.03)) == "FixMatch"


def test_a_line_is_a_mean_over_seeds() -> None:
    lines = [(CELL, found(0.1, 0.11, ahead=0.02)), (replace(CELL, seed=1), found(-0.01, 0.03))]
    (row,) = summary(lines)
    assert row["default less FedAvg"] == "+1.0 ± 1.0"
    assert row["default less alone, own rows"] == "+10.0 ± 0.0"
    assert (row["FedAvg left"], row["compared"], row["seeds"]) == (1, 2, 2)
    assert [bar.holds for bar in bars_of(lines)] == [True, True]
    assert not bars_of([(CELL, found(0.1, 0.11, ahead=-0.02))])[0].holds


@pytest.mark.parametrize("where", ["every", "some", "server"])
def test_labels_are_where_they_are_said_to_be_and_no_row_is_in_two_places(where: str) -> None:
    world = world_of(replace(CELL, where=where))
    labelled = [len(each.labelled) for each in world.shares]
    expected = {"every": 5, "some": 2, "server": 1}
    assert sum(count > 0 for count in labelled) == expected[where]
    parts = [each for share in world.shares for each in (share.labelled, share.rest)]
    rows = [row for part in (*parts, world.test) for row in part.tolist()]
    assert len(rows) == len(set(rows))
    own = {row for share in world.shares for row in share.own_test.tolist()}
    assert not own & set(rows)
