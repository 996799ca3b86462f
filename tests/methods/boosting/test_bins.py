"""Bins and cuts: sums over stored bins give the sums left of every cut."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedmend.methods.boosting.bins import CutTable, LeftToAsk, bin_categories, bin_numbers

numbers = st.lists(st.one_of(st.integers(-3, 3), st.just(float("nan"))), min_size=1, max_size=60)
categories = st.lists(st.integers(-1, 5), min_size=1, max_size=60)


@settings(max_examples=100)
@given(numbers, st.integers(2, 6), st.integers(1, 5))
def test_ordered_bins_keep_the_order_and_are_not_small(values, most, least):
    array = np.array(values, dtype=np.float64)
    binned = bin_numbers(array, most, least)
    present = ~np.isnan(array)
    order = np.argsort(array[present], kind="stable")
    if not (0 < (~present).sum() < least):
        codes = binned.codes[present][order]
        assert (np.diff(codes) >= 0).all()
        assert (binned.codes[~present] == binned.bins).all()
    assert binned.bins <= most + 1
    counts = np.bincount(binned.codes, minlength=binned.bins)
    if binned.bins > 1:
        assert counts[: binned.bins].min() >= least
    same = array[:, None] == array[None, :]
    assert (binned.codes[:, None] == binned.codes[None, :])[same].all()


@settings(max_examples=100)
@given(categories, st.integers(1, 5))
@example([0, -1, -1], 2)
def test_categories_share_a_bin_only_if_they_are_rare(values, least):
    codes = np.array(values)
    binned = bin_categories(codes, least)
    counts = np.bincount(binned.codes, minlength=binned.bins + binned.missing)
    assert len(counts) == binned.bins + binned.missing or binned.bins == 1
    if len(codes) >= least and len(counts[counts > 0]) > 1:
        assert counts[counts > 0].min() >= least
    for code in range(6):
        assert len(np.unique(binned.codes[codes == code])) <= 1


def test_many_values_fall_into_bins_of_about_the_same_size():
    values = np.random.default_rng(0).normal(size=10_000)
    binned = bin_numbers(values, 32)
    counts = np.bincount(binned.codes)
    assert len(counts) == binned.bins == 32
    assert counts.min() > 250
    held = bin_numbers(values, 8, fitted_on=np.arange(100))
    assert held.bins == 8


@given(st.data())
def test_bins_give_the_sums_on_the_left(data):
    rows = data.draw(st.integers(2, 40))
    columns = []
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            values = data.draw(
                st.lists(st.sampled_from([0.0, 1.0, 2.5, np.nan]), min_size=rows, max_size=rows)
            )
            columns.append(bin_numbers(np.array(values), 4))
        else:
            values = data.draw(st.lists(st.integers(-1, 3), min_size=rows, max_size=rows))
            columns.append(bin_categories(np.array(values)))
    table = CutTable([column.layout for column in columns])
    codes = np.stack([column.codes for column in columns])
    weights = np.array(
        data.draw(st.lists(st.integers(-(2**40), 2**40), min_size=rows, max_size=rows))
    ).astype(np.float64)
    slot = np.arange(rows) % 2
    sums = table.sums(codes, np.arange(rows), slot, 2, weights)
    by_indicators = np.stack([table.indicators(codes)[slot == s].T @ weights[slot == s]
                              for s in (0, 1)])  # fmt: skip
    assert (sums == by_indicators).all()
    totals = np.array([weights[slot == s].sum() for s in (0, 1)])
    every = np.arange(len(table))
    lefts = table.lefts(sums.astype(np.int64), totals.astype(np.int64), every)
    for cut in range(len(table)):
        left = table.goes_left(cut, codes)
        for s in (0, 1):
            assert lefts[s, cut] == weights[left & (slot == s)].sum()
    drawn = data.draw(st.sets(st.integers(0, len(table) - 1))) if len(table) else set()
    known = {cut: table.goes_left(cut, codes) for cut in drawn}
    left = LeftToAsk.of(table, known, rows)
    numbers = np.stack([np.where(slot == s, weights, 0) for s in (0, 1)]).astype(np.int64)
    assert (left.complete(sums.astype(np.int64)[:, left.asked], numbers) == sums).all()
    assert (left.asked == LeftToAsk.of(table, known).asked).all()


def test_what_known_sides_tell_need_not_be_asked_for():
    table = CutTable([["ordered", 4, True], ["nominal", 3, True]])
    assert LeftToAsk.of(table, {}).asked.tolist() == list(range(table.stored))
    none = np.zeros(0, bool)
    first, second = np.flatnonzero(table.columns == 0)[[0, 2]]  # bin 0 alone, bins 0 and 1
    assert LeftToAsk.of(table, {first: none, second: none}).asked.tolist() == [2, 3, 4, 5, 6]
    everything = dict.fromkeys(range(len(table)), none)
    assert not len(LeftToAsk.of(table, everything).asked)


def test_where_nobody_goes_tells_no_cuts_apart():
    table = CutTable([["ordered", 3, True], ["nominal", 3, True], ["ordered", 3, True]])
    codes = np.array([[0, 1, 2], [0, 1, 2], [0, 1, 3]])  # a missing cell in the last column only
    kept = table.told_apart(codes)
    assert table.columns[kept].tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2, 2]
    sides = {tuple(table.goes_left(cut, codes)) for cut in kept[:5]}
    assert sides | {(False,) * 3} == {tuple(table.goes_left(cut, codes)) for cut in range(9)}


def test_cuts_of_a_column():
    ordered = CutTable([["ordered", 3, True]])
    codes = np.array([[0, 1, 2, 3]])
    sides = [ordered.goes_left(cut, codes).tolist() for cut in range(len(ordered))]
    assert sides == [
        [True, False, False, False],
        [True, False, False, True],
        [True, True, False, False],
        [True, True, False, True],
        [False, False, False, True],
    ]
    nominal = CutTable([["nominal", 3, False]])
    assert len(nominal) == 3
    assert len(CutTable([["nominal", 2, False]])) == 1
    assert len(CutTable([["ordered", 1, False]])) == 0
    assert nominal.goes_left(2, np.array([[0, 1, 2]])).tolist() == [False, False, True]
