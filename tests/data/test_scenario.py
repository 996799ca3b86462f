"""Tearing on purpose: who keeps which columns and rows, under which ids."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data import Table
from fedmend.data.scenario import (
    missing_block,
    split_columns,
    split_image,
    split_rows,
    tear,
    tear_rows,
)
from fedmend.errors import DataError


def perfect(n=100, text_ids=False):
    """Every cell of row i can be told from i, so that rows can be traced."""
    rows = np.arange(n)
    ids = [f"p{row}" for row in rows] if text_ids else rows * 7
    return Table(
        ids,
        {
            **{f"n{j}": rows * 10 + j for j in range(5)},
            **{f"c{j}": [f"{'abc'[row % 3]}{j}" for row in rows] for j in range(3)},
            "y": np.where(rows % 4 == 0, "yes", "no"),
        },
        label="y",
    )


def test_columns_by_name():
    parts = split_columns(perfect(), {"bank": ["c0", "n1"], "telco": ["n0", "c2"], "shop": ["n4"]})
    assert {name: part.names for name, part in parts.items()} == {
        "bank": ["n1", "c0", "y"],
        "telco": ["n0", "c2"],
        "shop": ["n4"],
    }
    assert parts["bank"].label == "y" and parts["telco"].label is None
    assert all(np.array_equal(part.ids, perfect().ids) for part in parts.values())


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=4), st.integers(0, 99), st.booleans())
def test_columns_by_share(shares, seed, within_kinds):
    table = perfect(4)
    parties = {f"p{k}": share for k, share in enumerate(shares)}
    try:
        parts = split_columns(table, parties, seed=seed, within_kinds=within_kinds)
    except DataError as error:
        assert "no column is left" in str(error)
        return
    dealt = [name for part in parts.values() for name in part.feature_names]
    assert sorted(dealt) == sorted(table.feature_names)
    for name, share in parties.items():
        fair = share / sum(shares) * 8
        assert abs(len(parts[name].feature_names) - fair) < 2
    again = split_columns(table, parties, seed=seed, within_kinds=within_kinds)
    assert all(parts[name].equals(again[name]) for name in parties)


def test_half_of_the_numbers_and_half_of_the_rest():
    for seed in range(10):
        parts = split_columns(perfect(4), ["a", "b"], seed=seed)
        numbers = [sum(n.startswith("n") for n in part.feature_names) for part in parts.values()]
        assert sorted(numbers) == [2, 3]
        assert [len(part.feature_names) for part in parts.values()] == [4, 4]
    different = {tuple(split_columns(perfect(4), ["a", "b"], seed=s)["a"].names) for s in range(10)}
    assert len(different) > 3


@pytest.mark.parametrize(
    ("parties", "options", "says"),
    [
        ([], {}, "no parties"),
        (["a", "a"], {}, "named twice"),
        (["a", "b"], {"label_party": "c"}, r"label_party='c' is not one of the parties.*a, b"),
        ({"a": ["n9"], "b": ["n1"]}, {}, "column 'n9': there is no such column"),
        ({"a": ["n0"], "b": ["n0"]}, {}, r"party 'b', column 'n0': given to 'a' and to 'b'"),
        ({"a": ["n0"], "b": 0.5}, {}, "lists for all parties"),
        ({"a": ["n0"], "b": "n1"}, {}, "lists for all parties"),
        ({"a": ["n0"], "b": []}, {}, "party 'b': no column is left"),
        ({"a": -1.0, "b": 2.0}, {}, "shares must be positive"),
        ({"a": float("nan"), "b": 2.0}, {}, "shares must be positive"),
        ({"a": float("inf"), "b": 2.0}, {}, "shares must be positive"),
        ([f"p{k}" for k in range(12)], {}, "no column is left"),
    ],
)
def test_bad_column_splits(parties, options, says):
    with pytest.raises(DataError, match=says) as caught:
        split_columns(perfect(4), parties, **options)
    assert caught.value.mend


def test_images_are_cut_into_strips():
    images = np.arange(2 * 3 * 4 * 6, dtype=np.uint8).reshape(2, 3, 4, 6)
    table = Table([1, 2], {"y": ["a", "b"], "z": [1, 2]}, label="y", blocks={"image": images})
    parts = split_image(table, "image", ["left", "right"], label_party="right")
    assert parts["left"].names == ["image"] and parts["right"].names == ["y", "z", "image"]
    joined = np.concatenate([part.blocks["image"] for part in parts.values()], axis=3)
    assert np.array_equal(joined, images)
    assert parts["left"].schema["image"].shape == (3, 4, 3) and parts["right"].label == "y"
    top = split_image(table, "image", ["top", "bottom"], axis="height")["top"]
    assert np.array_equal(top.blocks["image"], images[:, :, :2])
    for arguments in (("image", list("abcd")), ("image", ["a"], "depth"), ("y", ["a", "b"])):
        name, parties, *axis = arguments
        with pytest.raises(DataError, match="Mend"):
            split_image(table, name, parties, **({"axis": axis[0]} if axis else {}))


def original_rows(torn):
    """Rows of the perfect table, read off a column that numbers them."""
    name = next(name for name in torn.feature_names if name.startswith("n"))
    return torn.frame[name].to_numpy() // 10


def two_parties(**options):
    table = perfect(**options)
    return split_columns(table, {"bank": ["n0", "c0"], "telco": ["n1", "c1"]})


@pytest.mark.parametrize("text_ids", [False, True])
def test_unlinkable_tear(text_ids):
    tables = two_parties(text_ids=text_ids)
    torn = tear(tables, overlap=0.2, seed=3)
    assert all(table.n_rows == 100 for table in torn.values())
    bank, telco = torn["bank"], torn["telco"]
    common = set(bank.ids) & set(telco.ids)
    assert len(common) == 20 and common <= set(tables["bank"].ids)
    rows = {name: dict(zip(t.ids, original_rows(t), strict=True)) for name, t in torn.items()}
    by_id = dict(zip(tables["bank"].ids, range(100), strict=True))
    for person in common:
        assert rows["bank"][person] == rows["telco"][person] == by_id[person]
    fresh = (set(bank.ids) | set(telco.ids)) - common
    assert len(fresh) == 160 and not fresh & set(tables["bank"].ids)
    assert {type(person) for person in fresh} == {type(person) for person in common}
    assert sorted(original_rows(bank)) == sorted(original_rows(telco)) == list(range(100))
    assert not np.array_equal(original_rows(bank), original_rows(telco)), "shuffled on their own"
    assert bank.label == "y" and telco.label is None
    expected = np.where(original_rows(bank) % 4 == 0, "yes", "no")
    assert bank.y.tolist() == expected.tolist()


def test_fresh_ids_tell_nothing_about_the_rows():
    torn = tear(two_parties(n=4000), overlap=0.0, seed=0)
    for table in torn.values():
        assert abs(np.corrcoef(table.ids, original_rows(table))[0, 1]) < 0.06
    # nor does a person's id at one party about that at the other
    one, other = (table.ids[np.argsort(original_rows(table))] for table in torn.values())
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.06


def test_dealt_out_tear():
    tables = two_parties()
    torn = tear(tables, overlap=0.3, unlinkable=False, seed=1)
    bank, telco = set(torn["bank"].ids), set(torn["telco"].ids)
    assert len(bank & telco) == 30 and len(bank) == len(telco) == 65
    assert bank | telco == set(tables["bank"].ids)
    for table in torn.values():
        assert np.array_equal(original_rows(table) * 7, table.ids)


def test_only():
    tables = two_parties()
    dealt = tear(tables, overlap=0.5, only={"bank": 0.3}, unlinkable=False)
    assert dealt["bank"].n_rows == 80 and dealt["telco"].n_rows == 50
    assert set(dealt["telco"].ids) <= set(dealt["bank"].ids)
    hidden = tear(tables, overlap=0.5, only={"bank": 0.5, "telco": 0.1})
    assert hidden["bank"].n_rows == 100 and hidden["telco"].n_rows == 60
    assert len(set(hidden["bank"].ids) & set(hidden["telco"].ids)) == 50


def test_tear_is_deterministic_and_rows_can_be_recomputed():
    tables = two_parties()
    for options in ({}, {"unlinkable": False}, {"only": {"bank": 0.2, "telco": 0.4}}):
        torn = tear(tables, overlap=0.25, seed=5, **options)
        again = tear(tables, overlap=0.25, seed=5, **options)
        other = tear(tables, overlap=0.25, seed=6, **options)
        assert all(torn[name].equals(again[name]) for name in tables)
        assert not any(torn[name].equals(other[name]) for name in tables)
        common, kept = tear_rows(100, list(tables), overlap=0.25, seed=5, **options)
        for name, table in torn.items():
            truth = np.concatenate([common, kept[name]])
            assert sorted(truth) == sorted(original_rows(table))


def test_tables_in_another_row_order_are_matched_by_id():
    tables = two_parties()
    tables["telco"] = tables["telco"].take(np.arange(100)[::-1])
    torn = tear(tables, overlap=0.4)
    rows = {name: dict(zip(t.ids, original_rows(t), strict=True)) for name, t in torn.items()}
    for person in set(torn["bank"].ids) & set(torn["telco"].ids):
        assert rows["bank"][person] == rows["telco"][person]


def test_ids_at_the_edge_of_64_bits():
    table = Table([2**63 - 1, 5], {"n0": [0, 10]})
    torn = tear({"a": table, "b": table}, overlap=0.0)
    assert len(set(torn["a"].ids) | set(torn["b"].ids)) == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"overlap": 1.2}, "overlap must be a share"),
        ({"overlap": "half"}, "overlap must be a share"),
        ({"overlap": 0.5, "only": {"bank": 0.6}}, "more than all rows"),
        ({"overlap": 0.5, "only": {"bank": 0.3, "telco": 0.3}, "unlinkable": False}, "more than"),
        ({"overlap": 0.5, "only": {"bnak": 0.1}}, "did you mean 'bank'"),
        ({"overlap": 0.5, "label_party": "bnak"}, "did you mean 'bank'"),
    ],
)
def test_bad_tears(options, says):
    with pytest.raises(DataError, match=says):
        tear(two_parties(), **options)


def test_only_the_same_people_can_be_torn():
    tables = two_parties()
    with pytest.raises(DataError, match="party 'telco'.*shares 50 of the 100 ids"):
        tear({**tables, "telco": tables["telco"].take(range(50))}, overlap=0.5)
    with pytest.raises(DataError, match="no tables"):
        tear({}, overlap=0.5)


def test_split_rows_keeps_people_together():
    torn = tear(two_parties(n=200), overlap=0.3, seed=2)
    train, test = split_rows(torn, 0.25, seed=4, stratify="bank")
    for name in torn:
        assert set(train[name].ids) | set(test[name].ids) == set(torn[name].ids)
        assert len(train[name]) + len(test[name]) == len(torn[name])
    assert not set(train["bank"].ids) & set(test["telco"].ids)
    assert len(test["bank"]) == 50
    assert (torn["bank"].y == "yes").sum() == 50 and (test["bank"].y == "yes").sum() in (12, 13)
    again = split_rows(torn, 0.25, seed=4, stratify="bank")
    assert all(again[0][name].equals(train[name]) for name in torn)
    everybody = split_rows({"a": perfect()}, 0.2)
    assert len(everybody[1]["a"]) == 20


def test_bad_row_splits():
    with pytest.raises(DataError, match="no tables are given"):
        split_rows({}, 0.5)
    with pytest.raises(DataError, match="share must be"):
        split_rows(two_parties(), 20)
    with pytest.raises(DataError, match="did you mean 'bank'"):
        split_rows(two_parties(), 0.2, stratify="bnak")
    with pytest.raises(DataError, match="no label"):
        split_rows(two_parties(), 0.2, stratify="telco")


def test_missing_block():
    table = perfect(10).with_columns(
        {
            "flag": [True, False] * 5,
            "f": np.arange(10) / 3,
            "k": pd.Categorical(list("ab") * 5),
            "s": pd.array(list("xyxyxyxyxy"), dtype="string"),
        }
    )
    columns = ["n0", "c0", "flag", "f", "k", "s"]
    torn, rows = missing_block(table, columns, 0.3)
    assert rows.tolist() == [7, 8, 9]
    assert torn.frame[columns].isna().all(axis=1).tolist() == [False] * 7 + [True] * 3
    assert torn.missing().drop(columns).sum() == 0 and table.missing().sum() == 0
    kept = torn.frame.loc[:6, columns].astype(object)
    assert kept.equals(table.frame.loc[:6, columns].astype(object))
    assert str(torn.frame["n0"].dtype) == "Int64" and torn.schema["n0"].dtype == "Int64"
    assert torn.schema["flag"].kind == "binary"
    scattered, rows = missing_block(table, ["n0"], 0.3, where="random", seed=1)
    assert len(rows) == 3 and np.array_equal(np.flatnonzero(scattered.frame["n0"].isna()), rows)
    assert not np.array_equal(rows, missing_block(table, ["n0"], 0.3, where="random", seed=2)[1])
    whole, rows = missing_block(table, ["n0"], 0.0)
    assert len(rows) == 0 and whole.equals(table)
    with pytest.raises(DataError, match="unknown where"):
        missing_block(table, ["n0"], 0.3, where="first")
    with pytest.raises(DataError, match="no such column"):
        missing_block(table, ["n77x"], 0.3)
