"""CSV and Parquet files: what is read, and each way a file can be wrong."""

from __future__ import annotations

import gzip
import os
import sys
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data import Table, read
from fedmend.errors import DataError, FedmendWarning, ReadError


@pytest.fixture
def csv(tmp_path):
    def write(content, name="people.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


PEOPLE = "id,age,income,city,default\n3,31,1.5,Ulm,no\n1,45,,NA,yes\n2,28,2.5,Bonn,no\n"


def test_a_label_that_a_parquet_file_remembers_can_be_left_out(tmp_path):
    table = Table([3, 1], {"age": [31, 45], "bad": ["no", "yes"]}, label="bad")
    table.to_parquet(tmp_path / "people.parquet", id="customer")
    rows = read(tmp_path / "people.parquet", drop=["bad"])
    assert rows.label is None and rows.names == ["age"] and rows.ids.tolist() == [3, 1]


def test_what_is_no_table_is_told_with_the_mend():
    frame = pd.DataFrame({"id": [1, 2], "x": [0.5, 1.5]})
    with pytest.raises(DataError, match="column 'id': this is the index of the data frame.*reset_"):
        read(frame.set_index("id"), id="id")
    with pytest.raises(DataError, match="neither the path .* data frame: ndarray. Mend: pd.DataF"):
        read(frame.to_numpy())


def test_csv(csv):
    table = read(csv(PEOPLE), id="id", label="default")
    assert table.ids.tolist() == [3, 1, 2] and table.label == "default"
    kinds = {name: column.kind for name, column in table.schema.items()}
    assert kinds == {"age": "integer", "income": "binary", "city": "binary", "default": "binary"}
    assert table.missing().to_dict() == {"age": 0, "income": 1, "city": 1, "default": 0}
    assert table.frame["age"].tolist() == [31, 45, 28]


def test_csv_without_id_and_with_some_columns(csv):
    path = csv(PEOPLE)
    assert read(path).ids.tolist() == [0, 1, 2] and "id" in read(path).names
    assert read(csv(",x\n0,2\n1,5\n2,7\n"), columns=["x"]).frame["x"].tolist() == [2, 5, 7]
    path = csv(PEOPLE)
    table = read(path, id="id", label="default", columns=["city"])
    assert table.names == ["city", "default"] and table.ids.tolist() == [3, 1, 2]
    assert read(path, columns=["age"], kinds={"age": "nominal"}).schema["age"].categories == (
        28,
        31,
        45,
    )


def test_gzip_delimiter_bom_quotes_and_newlines(csv):
    packed = csv(gzip.compress(PEOPLE.encode()), "people.csv.gz")
    assert read(packed, id="id").equals(read(csv(PEOPLE), id="id"))
    semicolons = read(csv(PEOPLE.replace(",", ";")), id="id", delimiter=";")
    assert semicolons.equals(read(csv(PEOPLE), id="id"))
    bom = read(csv(b"\xef\xbb\xbf" + PEOPLE.encode()), id="id")
    assert bom.equals(read(csv(PEOPLE), id="id"))
    text = 'id,note\n1,"a, b"\n2,"two\nlines"\n3,"say ""hi"""\n'
    assert read(csv(text), id="id").frame["note"].tolist() == ["a, b", "two\nlines", 'say "hi"']


def test_decimal_commas_and_columns_left_out(csv, tmp_path):
    path = csv("id;x;day\n1;2,5;2020-01-01\n2;-3,25;2020-01-02\n")
    table = read(path, id="id", delimiter=";", decimal=",", drop="day")
    assert table.names == ["x"] and table.frame["x"].tolist() == [2.5, -3.25]
    table.to_parquet(tmp_path / "t.parquet", id="id")
    with pytest.raises(DataError, match="no such column .named in drop.*the columns are: id, x"):
        read(tmp_path / "t.parquet", drop=["y"])
    with pytest.raises(DataError, match="column 'dya': there is no such column"):
        read(path, id="id", delimiter=";", drop=["dya"])
    with pytest.raises(DataError, match="the id and the label cannot be dropped"):
        read(path, id="id", delimiter=";", drop=["id"])


def test_missing_marks_can_be_chosen(csv):
    path = csv("id,x,c\n1,?,NA\n2,5,?\n3,6,NL\n4,7,BE\n")
    table = read(path, id="id", missing=["?"])
    assert table.missing().to_dict() == {"x": 1, "c": 1}
    assert table.frame["c"][0] == "NA" and table.schema["x"].kind == "integer"


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["007", "12"], ["007", "12"]),
        (["7", "12"], [7, 12]),
        (["0", "-3"], [0, -3]),
        (["1.0", "2.0"], [1, 2]),
        (["a1", "7"], ["a1", "7"]),
        (["1.5", "2"], ["1.5", "2"]),
        ([" 5", "6 "], [5, 6]),
        (["9" * 30, "1"], ["9" * 30, "1"]),
    ],
)
def test_ids_in_csv(csv, ids, expected):
    path = csv("key,x\n" + "".join(f"{key},{n}\n" for n, key in enumerate(ids)))
    assert read(path, id="key").ids.tolist() == expected


def test_steps_that_are_text_stay_text_where_a_file_has_numbers_alone(csv):
    table = read(csv("id,rooms\n1,1\n2,3\n"), id="id", kinds={"rooms": ["1", "2", "3", "4+"]})
    assert table.frame["rooms"].tolist() == ["1", "3"]
    assert read(csv("id,rooms\n1,1\n"), id="id", kinds={"rooms": [1, 2]}).frame["rooms"][0] == 1


def test_postcodes_keep_their_zeros_when_nominal(csv):
    path = csv("id,zip\n1,01234\n2,90210\n3,55555\n")
    assert read(path, id="id", kinds={"zip": "nominal"}).frame["zip"][0] == "01234"


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("", {}, "the file is empty"),
        ("\n\n", {}, "the file is empty"),
        ("id,x\n", {}, "a header but no rows"),
        ("id,x\n1,2,3\n", {}, "row 2 has 3 cells, the header 2"),
        (PEOPLE, {"id": "ids"}, r"column 'ids': there is no such id column.*did you mean 'id'"),
        (PEOPLE, {"label": "defualt"}, r"no such label column.*mean 'default'.*id, age"),
        (PEOPLE, {"columns": ["aeg"]}, "no such column.*mean 'age'"),
        (PEOPLE, {"kinds": {"ages": "integer"}}, "no such column .named in kinds.*mean 'age'"),
        (PEOPLE, {"id": "id", "kinds": {"city": "integer"}}, r"'city'.*seen: 'Ulm'.*Mend"),
        (PEOPLE.replace(",", ";"), {"id": "id"}, "delimiter=';', or write it with ','"),
        ("id,x\n1,2\n1,3\n", {"id": "id"}, r"column 'id': duplicate id.*people.csv.*seen: 1"),
        ("id,x\n1,2\n,3\n", {"id": "id"}, "column 'id': missing id in 1 row"),
        ("id,x\n1,inf\n2,3\n", {"id": "id"}, "column 'x': infinite value in 1 of 2"),
        ("x,x\n1,2\n", {}, "two columns have this name"),
        (",x\n1,2\n", {}, "column 1 has no name"),
        ("id,day\n1,2020-01-01\n", {"id": "id"}, "column 'day': dates and times"),
        (PEOPLE, {"encoding": "klingon"}, "no encoding 'klingon'"),
        (PEOPLE, {"delimiter": "::"}, "the header cannot be read"),
    ],
)
def test_bad_csv(csv, content, options, says):
    with pytest.raises(DataError, match=says) as caught:
        read(csv(content), **options)
    assert caught.value.mend


def test_not_utf8_names_the_byte_and_the_mend_works(csv):
    text = "id,city\n1,Köln\n2,Ulm\n3,Bonn\n"
    path = csv(text.encode("latin-1"))
    with pytest.raises(ReadError) as caught:
        read(path, id="id")
    message = str(caught.value)
    assert "people.csv: not utf-8: byte 0xf6 at offset 11" in message and "encoding=" in message
    assert read(path, id="id", encoding="latin-1").frame["city"][0] == "Köln"
    with pytest.raises(ReadError, match="encoding='utf-16'"):
        read(csv(text.encode("utf-16")), id="id")
    assert read(csv(text.encode("utf-16")), id="id", encoding="utf-16").n_rows == 3
    with pytest.raises(ReadError, match="not ascii: byte 0xc3 at offset 11"):
        read(csv(text), id="id", encoding="ascii")


def test_not_utf8_far_into_the_file(csv, monkeypatch):
    monkeypatch.setattr("fedmend.data.readers._CHUNK", 1 << 10)
    start = b"id,city\n" + b"".join(b"%d,x\n" % n for n in range(300))
    path = csv(start + "9999999,ä\n".encode("latin-1"))
    assert len(start) > 1 << 10
    with pytest.raises(ReadError, match=f"offset {len(start) + 8}"):
        read(path, id="id")


@given(st.binary(max_size=200))
def test_any_bytes_give_a_table_or_a_clean_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "x.csv"
    path.write_bytes(content)
    try:
        assert isinstance(read(path), Table)
    except DataError as error:
        assert error.mend
    path.rename(path.with_suffix(".parquet"))
    with pytest.raises(ReadError):
        read(path.with_suffix(".parquet"))


@contextmanager
def not_root():
    """Root may read everything, so stop being root for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_files_that_cannot_be_read(csv, tmp_path):
    path = csv(PEOPLE)
    with pytest.raises(ReadError, match=r"no such file.*the folder holds people.csv"):
        read(tmp_path / "poeple.csv")
    with pytest.raises(ReadError, match="no such file"):
        read(tmp_path / "nowhere" / "people.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ReadError, match="a folder"):
        read(tmp_path / "folder.csv")
    with pytest.raises(ReadError, match=r"unknown kind of file.*\.parquet"):
        read(tmp_path / "people.txt")
    path.chmod(0)
    with not_root(), pytest.raises(ReadError, match="no permission"):
        read(path)
    with pytest.raises(ReadError, match="not a whole gzip file"):
        read(csv(gzip.compress(PEOPLE.encode())[:-9], "cut.csv.gz"))


def test_parquet(tmp_path):
    frame = pd.DataFrame(
        {
            "key": ["007", "b"],
            "n": pd.array([1, None], dtype="Int64"),
            "x": [0.5, 1.5],
            "c": pd.Categorical(["u", "v"]),
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    table = read(tmp_path / "t.parquet", id="key", label="c", columns=["n"])
    assert table.ids.tolist() == ["007", "b"] and table.names == ["n", "c"]
    assert str(table.frame["n"].dtype) == "Int64"


def test_parquet_of_other_tools(tmp_path):
    arrow = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int32()),
            "money": pa.array(["1.50", "2.25", None]).cast(pa.decimal128(6, 2)),
            "big": pa.array([2**60 + 1, None, 5], pa.int64()),
            "count": pa.array([1, None, 5], pa.int64()),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6.0)), 2),
            "flag": pa.array([True, None, False]),
        }
    )
    pq.write_table(arrow, tmp_path / "t.parquet")
    table = read(tmp_path / "t.parquet", id="id", kinds={"money": "continuous"})
    assert table.frame["money"].dropna().tolist() == [1.5, 2.25]
    assert table.frame["big"].dropna().tolist() == [2**60 + 1, 5]
    assert table.schema["count"].kind == "binary" and table.frame["count"].dtype == np.float64
    assert table.blocks["vector"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert table.frame["flag"].tolist() == [True, None, False]


def test_types_that_pandas_notes_and_does_not_know(tmp_path):
    words = pa.array(["x", None, "y", "x"]).dictionary_encode()
    arrow = pd.array(words, dtype=pd.ArrowDtype(words.type))
    frame = pd.DataFrame({"id": [1, 2, 3, 4], "city": arrow, "n": [1, 2, 3, 4]})
    assert read(frame, id="id").schema["city"].categories == ("x", "y")
    frame.to_parquet(tmp_path / "t.parquet")
    table = read(tmp_path / "t.parquet", id="id")
    assert table.frame["city"].tolist()[::2] == ["x", "y"] and table.frame["city"].isna()[1]
    noted = pq.read_table(tmp_path / "t.parquet")
    notes = noted.schema.metadata[b"pandas"].replace(str(arrow.dtype).encode(), b"geometry")
    assert b'"geometry"' in notes
    pq.write_table(noted.replace_schema_metadata({b"pandas": notes}), tmp_path / "g.parquet")
    assert read(tmp_path / "g.parquet", id="id").frame.equals(table.frame)


def test_own_parquet_with_overrides(tmp_path):
    table = Table(
        [5, 6, 7],
        {"x": [1, 2, 3], "y": ["a", "b", "a"]},
        kinds={"x": "nominal"},
        label="y",
        blocks={"b": np.ones((3, 2, 2), np.float32)},
    )
    path = tmp_path / "t.parquet"
    table.to_parquet(path)
    assert read(path).equals(table)
    assert read(path, kinds={"x": "integer"}).schema["x"].kind == "integer"
    assert read(path, label="x").label == "x"
    some = read(path, columns=["b"])
    assert some.names == ["b"] and some.label is None and some.ids.tolist() == [5, 6, 7]
    with pytest.raises(DataError, match="named in kinds"):
        read(path, kinds={"z": "integer"})


def test_whole_numbers_that_parquet_has_not_are_named(tmp_path) -> None:
    large = Table([1, 2], {"x": [1, 2], "count": [2**70, 1]})
    with pytest.raises(DataError, match="count.*beyond 64 bits.*Mend: use to_csv"):
        large.to_parquet(tmp_path / "t.parquet")
    assert not (tmp_path / "t.parquet").exists()


def test_bad_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    path.write_bytes(b"")
    with pytest.raises(ReadError, match="the file is empty"):
        read(path)
    Table([1, 2], {"x": [1, 2]}).to_parquet(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ReadError, match="not a whole Parquet file"):
        read(path)
    pd.DataFrame({"x": []}).to_parquet(path)
    with pytest.raises(ReadError, match="no rows"):
        read(path)
    pd.DataFrame({"x": [1, 2]}).to_parquet(path)
    with pytest.raises(DataError, match="no such column"):
        read(path, id="id")
    with pytest.raises(DataError, match=r"duplicate id.*t.parquet"):
        pd.DataFrame({"id": [1, 1]}).to_parquet(path)
        read(path, id="id")
    pq.write_table(pa.table([[1, 2], [3, 4]], names=["id", "id"]), path)
    with pytest.raises(DataError, match="'id': two columns have this name"):
        read(path, id="id")
    lists = pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2))
    pq.write_table(pa.table({"b": lists}), path)
    with pytest.raises(DataError, match="column 'b': a block may not have missing"):
        read(path)


# --- an index of pandas -------------------------------------------------------------


def test_a_named_index_of_pandas_is_a_column(tmp_path):
    frame = pd.DataFrame({"customer": [3, 1, 2], "age": [31, None, 28], "x": [1.5, 2.5, 3.5]})
    frame["age"] = frame["age"].astype("Int64")
    frame.set_index("customer").to_parquet(tmp_path / "people.parquet")
    table = read(tmp_path / "people.parquet", id="customer")
    assert table.ids.tolist() == [3, 1, 2] and table.names == ["age", "x"]
    assert str(table.frame["age"].dtype) == "Int64" and table.frame["x"].tolist() == [1.5, 2.5, 3.5]
    assert read(tmp_path / "people.parquet", columns=["x"]).names == ["x"]
    assert "customer" in read(tmp_path / "people.parquet").names
    two = frame.assign(shop=list("aab")).set_index(["shop", "customer"])
    two.to_parquet(tmp_path / "two.parquet")
    assert read(tmp_path / "two.parquet", id="customer").frame["shop"].tolist() == list("aab")


def test_row_numbers_that_pandas_kept_are_no_column(tmp_path):
    frame = pd.DataFrame({"id": [3, 1, 2], "x": [1.5, 2.5, 3.5]}).sort_values("id")
    frame.to_parquet(tmp_path / "sorted.parquet")
    table = read(tmp_path / "sorted.parquet", id="id")
    assert table.ids.tolist() == [1, 2, 3] and table.names == ["x"]
    assert table.frame["x"].tolist() == [2.5, 3.5, 1.5]
    with pytest.raises(DataError, match="no such column"):
        read(tmp_path / "sorted.parquet", id="__index_level_0__")


def test_a_packed_csv_is_packed_and_the_same_each_time(tmp_path):
    table = Table([1, 2], {"a": ["x", "y"], "b": [1.5, None]})
    for name in ("one.csv.gz", "two.CSV.GZ", "plain.csv"):
        table.to_csv(tmp_path / name)
        back = read(tmp_path / name, id="id")
        assert back.equals(table)
    packed = [(tmp_path / name).read_bytes() for name in ("one.csv.gz", "two.CSV.GZ")]
    assert gzip.decompress(packed[0]) == gzip.decompress(packed[1])
    table.to_csv(tmp_path / "again.csv.gz")
    assert (tmp_path / "plain.csv").read_bytes() == gzip.decompress(packed[0])
    assert packed[0][4:8] == bytes(4)  # no date in the header


def test_a_quoted_mark_of_a_missing_cell_is_one_too(csv):
    table = read(csv('id,city,x\n1,"NA",1\n2,"",2\n3,"Bonn",3\n4,"Ulm",""\n'), id="id")
    assert table.missing().to_dict() == {"city": 2, "x": 1}
    kept = read(csv('id,city\n1,"NA"\n2,"Ulm"\n'), id="id", missing=["-"])
    assert kept.frame["city"].tolist() == ["NA", "Ulm"]


def test_a_column_s_type_is_taken_from_all_of_it(csv, monkeypatch):
    """Whatever stands in the parser's first block, of which large files have many."""
    monkeypatch.setattr("fedmend.data.readers._BLOCK", 1 << 10)
    rows = "".join(f"{number},{number}\n" for number in range(2000))
    table = read(csv("id,x\n" + rows + "2000,0.5\n"), id="id")
    assert table.schema["x"].kind == "continuous" and table.frame["x"].iloc[-1] == 0.5
    assert read(csv("id,x\n" + rows + "2000,many\n"), id="id").schema["x"].kind == "nominal"


@pytest.mark.parametrize(
    "notes", [b"{", b"[]", b"{}", b'{"schema": 1}', b'{"schema": {"columns": [1]}}']
)
def test_damaged_notes_in_a_parquet_file_are_named(tmp_path, notes):
    plain = pa.table({"id": [1, 2], "x": [1.5, 2.5]}).replace_schema_metadata({b"fedmend": notes})
    pq.write_table(plain, tmp_path / "noted.parquet")
    with pytest.raises(ReadError, match=r"noted.parquet: its notes .* are damaged"):
        read(tmp_path / "noted.parquet", id="id")


@pytest.mark.parametrize(("dtype", "big"), [("Int64", 2**62 + 1), ("UInt64", 2**64 - 1)])
def test_large_whole_numbers_stay_exact_beside_missing_cells(tmp_path, dtype, big):
    frame = pd.DataFrame({"id": [1, 2, 3], "n": pd.array([big, None, 7], dtype=dtype)})
    pq.write_table(
        pa.Table.from_pandas(frame).replace_schema_metadata(None), tmp_path / "n.parquet"
    )
    table = read(tmp_path / "n.parquet", id="id", kinds={"n": "nominal"})
    assert table.frame["n"].iloc[0] == big and table.missing()["n"] == 1


# ---------------------------------------------------------------- Excel


def test_excel_without_openpyxl(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(ReadError, match=r"t.xlsx: an Excel file.*Mend: save it as CSV, or pip"):
        read(tmp_path / "t.xlsx", id="id")
    (tmp_path / "t.xls").write_bytes(b"")
    with pytest.raises(ReadError, match="unknown kind of file.*Mend: save it as CSV"):
        read(tmp_path / "t.xls")


def test_excel_is_read_like_csv(tmp_path, csv):
    pytest.importorskip("openpyxl")
    frame = pd.DataFrame(
        {
            "id": ["007", "8", "9", "10"],
            "n": [1, None, 3, 4],
            "x": [0.5, 1.5, 2.5, 3.5],
            "city": ["Ulm", "NA", "", "Bonn"],
            "y": ["no", "yes", "no", "no"],
        }
    )
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    frame.to_csv(tmp_path / "t.csv", index=False)
    how = {"id": "id", "label": "y", "drop": "x"}
    one, two = read(tmp_path / "t.xlsx", **how), read(tmp_path / "t.csv", **how)
    assert one.ids.tolist() == two.ids.tolist() == ["007", "8", "9", "10"]
    assert one.schema["n"].kind == two.schema["n"].kind == "integer"
    assert one.missing().to_dict() == two.missing().to_dict() == {"n": 1, "city": 2, "y": 0}
    with pd.ExcelWriter(tmp_path / "two.xlsx") as book:
        frame.to_excel(book, sheet_name="first", index=False)
        frame.to_excel(book, sheet_name="second", index=False)
    with pytest.warns(FedmendWarning, match="the sheet 'first' was read, and not second"):
        assert len(read(tmp_path / "two.xlsx", id="id")) == 4
    (tmp_path / "cut.xlsx").write_bytes((tmp_path / "t.xlsx").read_bytes()[:500])
    with pytest.raises(ReadError, match="cut.xlsx: not a whole Excel file"):
        read(tmp_path / "cut.xlsx")
