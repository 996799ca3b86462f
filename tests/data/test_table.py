"""Tables: ids, parts, missing cells, files."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmend.data import Column, Schema, Table, read
from fedmend.errors import DataError, FedmendWarning


@pytest.fixture
def table():
    return Table(
        ["p1", "p2", "p3", "p4"],
        {
            "age": [31, 45, 28, 60],
            "income": [1.5, np.nan, 2.5, 3.25],
            "city": ["Ulm", None, "Bonn", "Kiel"],
            "default": ["no", "yes", "no", "no"],
        },
        label="default",
        blocks={"face": np.arange(4 * 3 * 2 * 2, dtype=np.uint8).reshape(4, 3, 2, 2)},
    )


def test_take(table):
    assert repr(table) == "Table(4 rows, 4 features, label 'default')"
    taken = table.take([2, 0])
    assert taken.ids.tolist() == ["p3", "p1"] and taken.frame["age"].tolist() == [28, 31]
    assert np.array_equal(taken.blocks["face"], table.blocks["face"][[2, 0]])
    assert taken.frame.index.tolist() == [0, 1] and taken.schema == table.schema
    assert table.take(np.array([True, False, False, True])).ids.tolist() == ["p1", "p4"]
    assert table.take([-1]).ids.tolist() == ["p4"]
    assert table.take([]).n_rows == 0 and table.take([]).ids.dtype == object


@pytest.mark.parametrize(
    "rows", [[4], [-5], [1, 1], [True, False], [1, 0.7], [1, None], ["p1"], slice(2)]
)
def test_take_refuses(table, rows):
    with pytest.raises(DataError, match="Mend"):
        table.take(rows)


def test_select_drop_and_label(table):
    chosen = table.select(["face", "age"])
    assert chosen.names == ["face", "age"] and chosen.label is None
    assert table.select(["default", "age"]).label == "default"
    assert table.drop("income").names == ["age", "city", "default", "face"]
    assert table.drop(["default"]).label is None
    assert table.with_label(None).label is None and "default" in table.with_label(None).names
    assert table.with_label("city").feature_names == ["age", "income", "default", "face"]
    with pytest.raises(DataError, match="no label"):
        _ = table.features.y
    for attempt in (
        lambda: table.select(["agee"]),
        lambda: table.drop(["agee"]),
        lambda: table.with_label("agee"),
        lambda: Table([1], {"age": [1]}, label="agee"),
        lambda: Table([1], {"age": [1]}, kinds={"agee": "integer"}),
    ):
        with pytest.raises(DataError, match="did you mean 'age'"):
            attempt()
    for attempt in (
        lambda: table.with_label("face"),
        lambda: table.with_columns(blocks={"default": np.zeros((4, 3))}),
    ):
        with pytest.raises(DataError, match="a block cannot be the label"):
            attempt()
    for name in (lambda: table.select([0]), lambda: table.with_label(5)):
        with pytest.raises(DataError, match="there is no such column"):
            name()


def test_with_columns_adds_and_replaces(table):
    more = table.with_columns({"age": [1.5, 2.5, 3.5, 4.5], "new": [1, 2, 3, 4]})
    assert more.names == ["age", "income", "city", "default", "face", "new"]
    assert more.schema["age"].kind == "continuous" and more.label == "default"
    assert more.frame.columns.tolist() == ["age", "income", "city", "default", "new"]
    block = table.with_columns(blocks={"face": np.zeros((4, 7))})
    assert block.schema["face"].shape == (7,) and block.blocks["face"].shape == (4, 7)
    assert table.schema["age"].kind == "integer", "the first table is as it was"


def test_a_frame_is_copied_and_its_index_ignored():
    frame = pd.DataFrame({"x": [1, 2, 3]}, index=[9, 9, 9])
    table = Table([1, 2, 3], frame)
    frame["x"] = 0
    assert table.frame["x"].tolist() == [1, 2, 3] and table.frame.index.tolist() == [0, 1, 2]
    series = pd.Series([3, 2, 1], index=[2, 1, 0])
    assert Table([1, 2, 3], {"x": series}).frame["x"].tolist() == [3, 2, 1]


def test_from_frame():
    frame = pd.DataFrame({"key": [3.0, 1.0, 2.0], "x": [1, 2, 3], "y": list("aba")})
    table = Table.from_frame(frame, id="key", label="y", kinds={"x": "nominal"})
    assert table.ids.tolist() == [3, 1, 2] and table.ids.dtype == np.int64
    assert table.schema["x"].kind == "nominal"
    assert Table.from_frame(frame).ids.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"no such id column.*did you mean 'key'"):
        Table.from_frame(frame, id="keys")
    with pytest.raises(DataError, match="cannot be the label too"):
        Table.from_frame(frame, id="key", label="key")


@pytest.mark.parametrize(
    ("ids", "dtype"),
    [
        ([1, 2], np.int64),
        (np.array([1, 2], np.uint16), np.int64),
        ([1.0, 2.0], np.int64),
        (pd.array([1, 2], dtype="Int64"), np.int64),
        (["a", "b"], object),
        (np.array(["a", "b"]), object),
        (pd.array(["a", "b"], dtype="string"), object),
        (pd.Categorical(["a", "b"]), object),
        (pd.Categorical([5, 6]), np.int64),
        (pd.Index(["007", "7"]), object),
    ],
)
def test_ids_are_int64_or_strings(ids, dtype):
    checked = Table(ids).ids
    assert checked.dtype == dtype
    assert type(checked[0]) in (np.int64, str)


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([1, 2, 2, 3, 3], r"2 ids occur more than once \(seen: \[2, 3\]\)"),
        (["a", "b", "a"], r"1 id occurs more than once \(seen: 'a'\)"),
        ([1.0, np.nan, np.nan], "missing id in 2 rows"),
        (["a", None], "missing id in 1 row"),
        (["a", ""], "missing id in 1 row"),
        (pd.array(["a", pd.NA, ""], dtype="string"), "missing id in 2 rows"),
        ([1, "a"], "mixed types: int and str"),
        ([1.5, 2.0], "not a whole number"),
        ([np.inf, 2.0], "not a whole number"),
        ([True, False], "ids of type bool"),
        (pd.to_datetime(["2020-01-01"]), "ids of type Timestamp"),
        ([2**63], "does not fit into 64 bits"),
    ],
)
def test_bad_ids(ids, says):
    with pytest.raises(DataError, match=says) as caught:
        Table(ids)
    assert caught.value.mend
    with pytest.raises(DataError, match="ids of shape"):
        Table(np.zeros((2, 2), int), {"x": [1, 2]})
    with pytest.raises(DataError, match="column 'key'"):
        Table.from_frame(pd.DataFrame({"key": ids}), id="key")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"columns": {"x": [1]}}, "1 values for 2 ids"),
        ({"columns": pd.DataFrame({"x": [1]})}, "1 rows for 2 ids"),
        ({"columns": pd.DataFrame([[1, 2]] * 2, columns=["x", "x"])}, "two columns"),
        ({"columns": pd.DataFrame([[1, 2]] * 2)}, "no usable name"),
        ({"columns": {"": [1, 2]}}, "no usable name"),
        ({"columns": {"x": np.zeros((2, 2))}}, "pass it in blocks="),
        ({"blocks": {"b": np.zeros((3, 2))}}, "for 2 ids"),
        ({"blocks": {"b": np.zeros(2)}}, "for 2 ids"),
        ({"columns": {"b": [1, 2]}, "blocks": {"b": np.zeros((2, 2))}}, "two columns"),
        ({"columns": {"x": [np.inf, 1.0]}}, "infinite"),
        ({"blocks": {"b": np.zeros((2, 2))}, "label": "b"}, "cannot be the label"),
    ],
)
def test_parts_that_do_not_fit(arguments, says):
    with pytest.raises(DataError, match=says):
        Table([1, 2], **arguments)


def test_an_all_missing_column_is_kept_with_a_warning():
    with pytest.warns(FedmendWarning, match="column 'x': all 2 cells are missing") as caught:
        table = Table([1, 2], {"x": [None, None], "y": [1, 2]})
    assert len(caught) == 1 and table.schema["x"].kind == "continuous"
    with pytest.warns(FedmendWarning):
        given = Table([1, 2], {"x": [None, None]}, kinds={"x": "nominal"})
    assert given.schema["x"].kind == "nominal"
    assert table.take([0]).missing()["x"] == 1


def test_a_given_schema_is_checked():
    schema = Schema([Column("x", "integer", dtype="int64"), Column("c", "nominal", ("a", "b"))])
    table = Table([1, 2], {"x": [1, 2], "c": ["a", "never seen"]}, schema=schema)
    assert table.schema == schema
    for columns, says in [
        ({"x": [1, 2]}, "no such column in the values"),
        ({"x": [1, 2], "c": ["a", "b"], "d": [1, 2]}, "no such column in the schema"),
        ({"x": ["1", "2"], "c": ["a", "b"]}, r"type changed.*seen: '1'"),
        ({"x": [1, 2], "c": [1, 2]}, "type changed: expected text for kind 'nominal', got int"),
        ({"x": [1.5, 2], "c": ["a", "b"]}, r"fraction.*seen: 1.5"),
    ]:
        with pytest.raises(DataError, match=says):
            Table([1, 2], columns, schema=schema)
    with pytest.raises(DataError, match="both schema and kinds"):
        Table([1, 2], {"x": [1, 2], "c": ["a", "b"]}, schema=schema, kinds={"x": "integer"})
    blocks = Schema([Column("b", "tensor", shape=(3,))])
    with pytest.raises(DataError, match=r"rows of shape \(2,\)"):
        Table([1], blocks={"b": np.zeros((1, 2))}, schema=blocks)
    with pytest.raises(DataError, match="the values say otherwise"):
        Table([1], {"b": [1]}, schema=blocks)


def test_equals(table):
    assert table.equals(table.take([0, 1, 2, 3]))
    different = [
        table.take([0, 1, 2]),
        table.take([1, 0, 2, 3]),
        table.with_label(None),
        table.with_ids([1, 2, 3, 4]),
        table.with_columns({"age": [31, 45, 28, 61]}),
        table.with_columns(blocks={"face": table.blocks["face"] + np.uint8(1)}),
        table.drop("face"),
    ]
    assert not any(table.equals(other) or other.equals(table) for other in different)


def test_describe_shows_no_values(table):
    described = table.describe()
    assert described[0] == {
        "name": "age",
        "kind": "integer",
        "missing": 0,
        "distinct": 4,
        "shape": None,
        "label": False,
    }
    assert [row["label"] for row in described] == [False, False, False, True, False]
    assert described[4]["shape"] == [3, 2, 2] and described[4]["distinct"] is None
    assert "Ulm" not in str(described)


def test_parquet_gives_everything_back(table, tmp_path):
    ordered = pd.Categorical(["lo", "hi", None, "lo"], categories=["lo", "mid", "hi"], ordered=True)
    table = table.with_columns(
        {
            "grade": ordered,
            "children": pd.array([1, None, 3, 2], dtype="Int64"),
            "code": [10, 20, 10, 30],
        },
        kinds={"code": "nominal"},
    )
    table.to_parquet(tmp_path / "t.parquet", id="person")
    assert read(tmp_path / "t.parquet").equals(table)
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]


def test_csv_gives_values_back(table, tmp_path):
    table.drop("face").to_csv(tmp_path / "t.csv", id="person")
    back = read(tmp_path / "t.csv", id="person", label="default")
    assert back.equals(table.drop("face"))


def test_writing_refuses(table, tmp_path):
    with pytest.raises(DataError, match="savez"):
        table.to_csv(tmp_path / "t.csv")
    with pytest.raises(DataError, match="the name meant for the ids"):
        table.to_parquet(tmp_path / "t.parquet", id="age")
    with pytest.raises(DataError, match="cannot be written"):
        table.to_parquet(tmp_path / "no such folder" / "t.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(table, tmp_path, monkeypatch):
    target = tmp_path / "t.csv"
    table.drop("face").to_csv(target)
    before = target.read_bytes()

    def full_disk(*_args, **_kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full_disk)
    with pytest.raises(DataError, match="no space"):
        table.drop("face").take([0]).to_csv(target)
    assert target.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize("value", ["ab", b"ab", 5, None, np.array(3)])
def test_one_value_is_not_a_column(value):
    with pytest.raises(DataError, match="column 'a': one value is not a column"):
        Table([1, 2], {"a": value})


@pytest.mark.parametrize(("value", "sort"), [({7: 1.5, 8: 2.5}, "dict"), ({1.5, 2.5}, "set")])
def test_values_without_an_order_are_not_a_column(value, sort):
    with pytest.raises(DataError, match=f"column 'a': a {sort} is not a column"):
        Table([7, 8], {"a": value})


@pytest.mark.parametrize("dtype", ["Float64", "Float32", "double[pyarrow]"])
def test_not_a_number_is_a_missing_cell_in_every_type(dtype):
    values = pd.Series([0.0, 1.0, 6.0, None], dtype=dtype) / pd.Series([0.0, 1, 2, 1], dtype=dtype)
    table = Table([1, 2, 3, 4], {"share": values})
    assert table.missing()["share"] == 2
    assert table.describe()[0]["distinct"] == 2


def test_what_is_no_frame_of_pandas_is_told():
    with pytest.raises(DataError, match="a data frame of pandas is needed, not a list"):
        Table.from_frame([[1, 2]], id="id")
    with pytest.raises(DataError, match="'id': two columns have this name"):
        Table.from_frame(pd.DataFrame([[1, 2]], columns=["id", "id"]), id="id")


def test_a_data_frame_by_itself():
    frame = pd.DataFrame({"key": [7, 8, 9], "x": [1.5, 2.5, 3.5], "y": ["a", "b", "a"]})
    table = Table(frame, id="key", label="y")
    assert table.equals(Table.from_frame(frame, id="key", label="y"))
    assert table.ids.tolist() == [7, 8, 9] and table.feature_names == ["x"]
    assert table.equals(read(frame, id="key", label="y"))
    assert read(frame, id="key", label="y", drop="x").names == ["y"]
    assert read(frame, id="key", columns=["x"]).names == ["x"]
    with pytest.raises(DataError, match="no such column"):
        read(frame, id="key", drop="z")
    with pytest.raises(DataError, match="further columns"):
        Table(frame, {"z": [1, 2, 3]})
    with pytest.raises(DataError, match="id= names a column of a data frame"):
        Table([1, 2], {"x": [1, 2]}, id="x")


def test_a_notebook_shows_columns_and_no_cell():
    table = Table([1, 2], {"<b>": ["secret", None], "y": [0.5, 1.5]}, label="y")
    shown = table._repr_html_()
    assert "&lt;b&gt;" in shown and "secret" not in shown and "y (label)" in shown
    assert shown.count("<tr>") == 3


def test_an_index_with_a_name_is_not_left_out_in_silence():
    frame = pd.DataFrame({"customer": ["a", "b"], "age": [31, 45]}).set_index("customer")
    with pytest.warns(FedmendWarning, match=r"\(customer\) is left out.*frame.reset_index\(\)"):
        assert Table(frame).ids.tolist() == [0, 1]
    with pytest.raises(DataError, match="'customer': this is the index of the data frame"):
        Table(frame, id="customer")
    assert Table(frame.reset_index().iloc[1:], id="customer").ids.tolist() == ["b"]


def test_columns_that_only_pandas_has_become_plain_ones(tmp_path):
    sparse = pd.arrays.SparseArray([0, 0, 3, 1])
    with pytest.warns(FedmendWarning, match="'died': all 4 cells are missing"):
        table = Table(range(4), {"visits": sparse, "died": pd.to_datetime([None] * 4)})
    assert table.frame["visits"].tolist() == [0, 0, 3, 1]
    assert {name: column.dtype for name, column in table.schema.items()} == {
        "visits": "int64",
        "died": "float64",
    }
    table.to_parquet(tmp_path / "t.parquet")
    with pytest.warns(FedmendWarning, match="'died'"):
        assert read(tmp_path / "t.parquet").equals(table)
