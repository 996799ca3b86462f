"""Columns that lie elsewhere on the rows only A has are found, and all families do without them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.data.table import Table
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.methods.completion.beyond import beyond, columns_within, held_within
from fedmend.methods.completion.board import board_of
from fedmend.methods.completion.vfpum import FAMILIES, family_of

ALIGNED, N = 150, 260


@given(seed=st.integers(0, 2**16), n=st.integers(2, 40), m=st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_how_far_a_number_is_beyond(seed: int, n: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    column = rng.normal(size=n + m).round(1)
    column[rng.random(n + m) < 0.1] = np.nan
    found = beyond(column, n)
    seen = [value for value in column[:n] if not np.isnan(value)]
    assert found.shape == (m,)
    for value, share in zip(column[n:], found, strict=True):
        if np.isnan(value) or not seen:
            expected = 0.0 if np.isnan(value) else 1.0
        elif min(seen) == max(seen):
            expected = float(value != seen[0])
        else:
            off = max(min(seen) - value, value - max(seen), 0.0)
            expected = min(1.0, off / (max(seen) - min(seen)))
        assert share == pytest.approx(expected)


def table() -> Table:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"steady": rng.normal(size=N), "rate": rng.normal(size=N)})
    frame.loc[ALIGNED:, "rate"] += 30.0
    frame["month"] = rng.choice(["may", "june"], N)
    frame.loc[ALIGNED:, "month"] = "november"
    frame["city"] = rng.choice(["Ulm", "Bonn"], N)
    frame.loc[N - 1, "city"] = "Kiel"
    frame["level"] = rng.choice([1, 2, 3], N)
    kinds = {"level": [1, 2, 3]}
    return Table(np.arange(N), frame, kinds=kinds)


def test_columns_that_lie_elsewhere_are_left_out() -> None:
    assert columns_within(table(), ALIGNED) == ["steady", "city", "level"]
    assert columns_within(table(), ALIGNED, most=1.0) == table().feature_names
    assert columns_within(table(), N) == table().feature_names
    # rows of the same kind lie within, and a table of nothing else is better than none
    assert columns_within(table().take(np.arange(ALIGNED)), 100) == table().feature_names
    alone = table().select(["rate", "month"])
    assert columns_within(alone, ALIGNED) == ["rate", "month"]


def test_columns_that_go_beyond_a_little_end_with_the_first_rows() -> None:
    rng = np.random.default_rng(0)
    columns = rng.uniform(size=(300, 3))
    columns[200:, 0] += 0.5  # half of the range
    columns[-1, 1] = 1.5  # one row of a hundred, by half of the range
    held = held_within(columns, 200)
    np.testing.assert_array_equal(held[:200], columns[:200])
    np.testing.assert_array_equal(held[:, 1:], columns[:, 1:])
    assert held[200:, 0].max() == columns[:200, 0].max()
    np.testing.assert_array_equal(held_within(columns[:200], 200), columns[:200])


def test_blocks_stay() -> None:
    images = np.zeros((N, 3), np.float32)
    images[ALIGNED:] = 9.0
    whole = table()
    with_block = Table(whole.ids, whole.frame, blocks={"image": images})
    assert "image" in columns_within(with_block, ALIGNED)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_learns_from_a_column_that_is_left_out(family: str) -> None:
    """What is predicted is the same with other values there, and to the bit without the column."""
    settings = {"neural": {"epochs": 2}, "tree": {"trees": 4}}.get(family, {})
    target = table().frame["steady"] + 0.5 * table().frame["rate"]
    found = {}
    for case in ("as it is", "other values", "without"):
        a = table().frame
        if case == "other values":
            a.loc[ALIGNED:, "rate"] += 1000.0
        if case == "without":
            a = a.drop(columns=["rate", "month"])
        fed = Federation(
            Party("bank", Table(np.arange(N), a)),
            Party("telco", Table(np.arange(ALIGNED), pd.DataFrame({"sum": target[:ALIGNED]}))),
            strict=True,
        )
        rows, rest = np.arange(ALIGNED), np.arange(ALIGNED, N)
        fed.engine.site("bank").alignments["train"] = Alignment(rows, rest)
        fed.engine.site("telco").alignments["train"] = Alignment(rows, rest[:0])
        fed.note_alignment(AlignmentCounts(ALIGNED, {"bank": N - ALIGNED, "telco": 0}))
        with family_of(family)(fed, "bank", "telco", beyond=False, **settings) as models:
            left_out = models.at_a.left_out()
            models.fit()
            models.predict()
        found[case] = board_of(fed.engine.site("telco"), models.model)["sum"].outputs[ALIGNED:]
        assert left_out == ([] if case == "without" else ["rate", "month"])
    np.testing.assert_allclose(found["as it is"], found["other values"], atol=1e-6)
    np.testing.assert_allclose(found["as it is"], found["without"], atol=1e-6)
