"""Kinds: inferred, overridden, refused."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.data import KINDS, Column, Schema, infer_column
from fedmend.errors import DataError
from tests.conftest import texts

INFERRED = [
    ([True, False, True], "binary", (False, True)),
    ([True, True], "binary", (False, True)),
    ([True, None, False], "binary", (False, True)),
    ([0, 1, 1, 0], "binary", (0, 1)),
    ([2, 1, 2], "binary", (1, 2)),
    ([0.0, 1.0, np.nan, 1.0], "binary", (0.0, 1.0)),
    (["yes", "no", "yes"], "binary", ("no", "yes")),
    (["b", "a", "c", None], "nominal", ("a", "b", "c")),
    (["only", "only"], "nominal", ("only",)),
    ([1, 2, 3], "integer", None),
    ([7, 7, 7], "integer", None),
    ([1.0, 2.0, 3.0], "continuous", None),
    ([1.0, 2.0, 3.0, np.nan], "integer", None),
    ([1.5, 2.0, 3.0, np.nan], "continuous", None),
    (pd.array([1, None, 3, 4], dtype="Int64"), "integer", None),
    (pd.array(["x", None, "y", "z"], dtype="string"), "nominal", ("x", "y", "z")),
    (pd.array([True, None, False], dtype="boolean"), "binary", (False, True)),
    (pd.Categorical(["b", "a", "b"], categories=["b", "a"]), "binary", ("a", "b")),
    (pd.Categorical(["b", "a"], categories=["c", "b", "a"]), "nominal", ("c", "b", "a")),
    (
        pd.Categorical(["lo", "hi"], categories=["lo", "hi"], ordered=True),
        "ordinal",
        ("lo", "hi"),
    ),
    ([None, None], "continuous", None),
    (np.array([1, 2, 3], dtype=object), "integer", None),
    (np.array([1, 2.5, None], dtype=object), "binary", (1, 2.5)),
]


@pytest.mark.parametrize(("values", "kind", "categories"), INFERRED)
def test_inferred_kind(values, kind, categories):
    column = infer_column("x", pd.Series(values))
    assert (column.kind, column.categories) == (kind, categories)


def test_two_values_among_the_first_thousand_do_not_make_a_column_binary():
    values = pd.Series([0, 1] * 600 + [2])
    assert infer_column("x", values).kind == "integer"


@pytest.mark.parametrize(
    ("values", "kind", "categories"),
    [
        ([1, 2, 3], "nominal", (1, 2, 3)),
        ([3, 1, 2], "ordinal", (1, 2, 3)),
        ([1, 2, 3], "continuous", None),
        ([1.0, 2.0], "integer", None),
        ([0, 1, 0], "integer", None),
        ([5, 5], "binary", (5,)),
        (["a", "b"], "nominal", ("a", "b")),
        ([None, None], "nominal", ()),
        (pd.Categorical(["x"], categories=["y", "x"], ordered=True), "nominal", ("y", "x")),
    ],
)
def test_override(values, kind, categories):
    column = infer_column("x", pd.Series(values), kind)
    assert (column.kind, column.categories) == (kind, categories)


def test_the_order_of_strings_is_given_as_a_list():
    column = infer_column("grade", pd.Series(["mid", "low", None]), ["low", "mid", "high"])
    assert column == Column("grade", "ordinal", ("low", "mid", "high"), dtype="object")


@pytest.mark.parametrize(
    ("values", "kind", "seen"),
    [
        (["a", "b", "c"], "integer", "'a'"),
        (["a", "b", "c"], "continuous", "'a'"),
        ([True, False], "integer", "True"),
        ([1.0, 2.5], "integer", "2.5"),
        ([1, 2, 3], "binary", "[1, 2, 3]"),
        (["a", "b", "c"], "ordinal", "['a', 'b', 'c']"),
        (["a", "b", "c"], ["a", "b"], "'c'"),
        (["a", "b"], ["a", "b", "a"], "['a', 'b', 'a']"),
        ([1, 2], "numeric", "'numeric'"),
        ([1, 2], "image", "one cell"),
    ],
)
def test_impossible_override_names_column_value_and_mend(values, kind, seen):
    with pytest.raises(DataError) as caught:
        infer_column("price", pd.Series(values), kind)
    message = str(caught.value)
    assert "column 'price'" in message and seen in message and "Mend: " in message


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([1, "a"], "mixed types: int and str"),
        (["a", 2.5, None], "mixed types: str and float"),
        ([datetime.date(2020, 1, 1)], "dates and times"),
        (pd.to_datetime(["2020-01-01"]), "dates and times"),
        (pd.to_timedelta([1], unit="s"), "dates and times"),
        ([b"a"], "values of type bytes"),
        ([1 + 2j], "values of type complex"),
        ([[1, 2], [3]], "values of type list"),
    ],
)
def test_values_without_a_kind(values, says):
    with pytest.raises(DataError, match=says) as caught:
        infer_column("x", pd.Series(values))
    assert caught.value.column == "x" and caught.value.mend


@pytest.mark.parametrize("dtype", ["float64", "float32", "Float64", "object"])
def test_infinite_values_are_counted(dtype):
    values = pd.Series([1.5, np.inf, -np.inf, 2.0, 3.0]).astype(dtype)
    with pytest.raises(DataError, match="infinite value in 2 of 5 rows") as caught:
        infer_column("x", values)
    assert caught.value.value == np.inf and "NaN" in str(caught.value)


def test_blocks():
    assert infer_column("x", np.zeros((2, 3, 8, 8), np.uint8)).kind == "image"
    assert infer_column("x", np.zeros((2, 3, 8, 8), np.float32)).kind == "tensor"
    assert infer_column("x", np.zeros((2, 3, 8, 8), np.float32), "image").shape == (3, 8, 8)
    assert infer_column("x", np.zeros((2, 5))).shape == (5,)
    for bad, kind in [
        (np.zeros((2, 5)), "image"),
        (np.zeros((2, 5)), "integer"),
        (np.full((2, 5), np.nan), None),
        (np.array([["a"]]), None),
    ]:
        with pytest.raises(DataError, match="Mend"):
            infer_column("x", bad, kind)


@pytest.mark.parametrize(
    "arguments",
    [
        ("x", "colour"),
        ("x", "nominal"),
        ("x", "binary", (1, 2, 3)),
        ("x", "image"),
    ],
)
def test_a_column_must_make_sense(arguments):
    with pytest.raises(DataError, match="column 'x'"):
        Column(*arguments)


SCALARS = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), texts())
COLUMNS = st.builds(
    lambda kind, categories, shape, dtype: Column(
        "x",
        kind,
        tuple(categories[:2]) if kind in ("ordinal", "binary", "nominal") else None,
        tuple(shape) if kind in ("image", "tensor") else None,
        dtype,
    ),
    st.sampled_from(KINDS),
    st.lists(SCALARS, max_size=4),
    st.lists(st.integers(1, 64), min_size=1, max_size=3),
    st.sampled_from(["float64", "int8", "object", "category"]),
)


@settings(max_examples=100)
@given(COLUMNS)
def test_column_survives_json(column):
    assert Column.from_dict(json.loads(json.dumps(column.to_dict()))) == column


def test_schema_is_an_ordered_mapping():
    schema = Schema(
        [Column("a", "integer"), Column("b", "nominal", ("x",)), Column("c", "continuous")]
    )
    assert schema.names == list(schema) == ["a", "b", "c"] and len(schema) == 3
    assert schema.of_kind("integer", "continuous") == ["a", "c"]
    assert schema.select(["c", "a"]).names == ["c", "a"]
    assert schema != schema.select(["b", "a", "c"]) and schema == schema.select("abc")
    assert hash(schema) == hash(schema.select("abc"))
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    assert repr(schema) == "Schema(a: integer, b: nominal, c: continuous)"
    with pytest.raises(DataError, match="two columns have this name"):
        Schema([Column("a", "integer"), Column("a", "integer")])
