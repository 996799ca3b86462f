"""Encoders: there and back, missing cells, categories never seen, types that changed."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.preprocessing import LabelEncoder as Reference
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedmend.data import Column, Encoded, Encoder, LabelEncoder, Table, infer_column
from fedmend.data.encode import BlockScaler, from_numbers, looks_counted
from fedmend.data.table import Excerpt
from fedmend.errors import DataError, FedmendWarning, NotFitted
from tests.conftest import texts


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return Table(
        np.arange(6),
        {
            "flag": [True, False, None, True, True, False],
            "city": ["Ulm", None, "Bonn", "Kiel", "Ulm", "Ulm"],
            "rooms": [1, 2, 3, 4, 5, None],
            "size": [0.1, 0.2, 0.3, np.nan, 0.5, 0.6],
            "children": pd.array([1, 2, None, 4, 5, 6], dtype="Int64"),
            "grade": pd.Categorical(
                ["lo", "hi", "mid", "lo", None, "hi"], ["lo", "mid", "hi"], ordered=True
            ),
            "zone": pd.array(list("abcabc"), dtype="string"),
            "answer": pd.Categorical(["yes", "no", "no", None, "yes", "yes"], ["yes", "no"]),
            "level": np.arange(6, dtype=np.uint8),
            "zero_one": [0, 1] * 3,
            "target": ["b", "a"] * 3,
        },
        label="target",
        blocks={
            "face": rng.integers(0, 256, (6, 3, 4, 4)).astype(np.uint8),
            "signal": rng.normal(3, 2, (6, 5)),
        },
    )


EXACT = ["flag", "city", "rooms", "children", "grade", "zone", "answer", "level", "zero_one"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ordinal": "codes", "binary": "codes", "missing_indicator": True},
        {"dtype": "float64"},
    ],
)
def test_there_and_back(table, options):
    encoder = Encoder(**options).fit(table)
    back = encoder.inverse(encoder.transform(table), ids=table.ids)
    pd.testing.assert_frame_equal(back.frame[EXACT], table.frame[EXACT], check_categorical=False)
    assert back.frame["grade"].dtype == table.frame["grade"].dtype
    precision = 1e-12 if options.get("dtype") == "float64" else 1e-6
    np.testing.assert_allclose(back.frame["size"], table.frame["size"], rtol=precision)
    assert np.array_equal(back.blocks["face"], table.blocks["face"])
    np.testing.assert_allclose(back.blocks["signal"], table.blocks["signal"], rtol=1e-5)
    assert back.label is None and back.names == table.feature_names
    assert back.schema == table.features.schema


def test_numbers_are_standardised_as_scikit_learn_does(table):
    encoder = Encoder(dtype="float64").fit(table)
    found = encoder.transform(table)
    index = encoder.numeric_names.index("size")
    expected = StandardScaler().fit_transform(table.frame[["size"]])[:, 0]
    np.testing.assert_allclose(found.numeric[:, index], np.nan_to_num(expected), atol=1e-12)
    assert found.missing[:, index].tolist() == [False] * 3 + [True] + [False] * 2
    assert found.numeric[3, index] == 0


def test_onehot_is_what_scikit_learn_makes(table):
    encoder = Encoder(ordinal="codes", binary="codes").fit(table)
    found = encoder.transform(table)
    p = len(encoder.numeric_names)
    categories = [["Bonn", "Kiel", "Ulm"]]
    expected = OneHotEncoder(categories=categories, handle_unknown="ignore", sparse_output=False)
    city = expected.fit_transform(table.frame[["city"]].fillna("?").replace("?", "other"))
    start = p + sum(k - 2 for k in encoder.cardinalities[: encoder.code_names.index("city")])
    assert np.array_equal(found.onehot()[:, start : start + 3], city)
    assert found.onehot().shape == (6, p + sum(k - 2 for k in encoder.cardinalities))
    assert found.onehot().dtype == np.float32


def test_blocks_are_standardised_per_channel(table):
    found = Encoder(dtype="float64").fit(table).transform(table)
    scaled = table.blocks["face"] / 255.0
    mean, sd = scaled.mean((0, 2, 3), keepdims=True), scaled.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(found.blocks["face"], (scaled - mean) / sd, atol=1e-12)
    np.testing.assert_allclose(found.blocks["signal"].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(found.blocks["signal"].std(0), 1, atol=1e-12)


def test_missing_indicator(table):
    encoder = Encoder(missing_indicator=True).fit(table)
    found = encoder.transform(table)
    indicated = [name for name in encoder.numeric_names if name.startswith("missing(")]
    assert indicated == [
        f"missing({n})" for n in ("flag", "rooms", "size", "children", "grade")
    ] + ["missing(answer)"]
    column = found.numeric[:, encoder.numeric_names.index("missing(rooms)")]
    assert column.tolist() == [0, 0, 0, 0, 0, 1]


def test_the_label_is_never_looked_at(table):
    encoder = Encoder().fit(table)
    assert "target" not in [*encoder.numeric_names, *encoder.code_names, *encoder.schema]
    unlabelled = encoder.transform(table.features)
    assert np.array_equal(unlabelled.numeric, encoder.transform(table).numeric)


def test_fitted_on_some_rows_only(table):
    encoder = Encoder(dtype="float64").fit(table, rows=[0, 1, 2])
    found = encoder.transform(table)
    assert encoder.cardinalities[encoder.code_names.index("city")] == 4, "Kiel was not there"
    assert abs(found.numeric[:3, encoder.numeric_names.index("size")].mean()) < 1e-12
    assert found.codes[:, 0].tolist() == [2, 0, 1, 3, 2, 2]
    back = encoder.inverse(found)
    assert back.frame["city"].tolist() == ["Ulm", None, "Bonn", None, "Ulm", "Ulm"]


def test_never_seen_categories(table):
    encoder = Encoder(binary="codes").fit(table)
    other = table.with_columns(
        {
            "city": ["Rome", "Ulm", None, "Ulm", "Ulm", "Ulm"],
            "zero_one": [2, 1, 0, 1, 0, 1],
        }
    )
    found = encoder.transform(other)
    assert found.codes[:3, encoder.code_names.index("city")].tolist() == [4, 3, 0]
    assert found.codes[:3, encoder.code_names.index("zero_one")].tolist() == [3, 2, 1]
    assert found.onehot()[0, -2:].tolist() == [0, 0]
    as_number = Encoder().fit(table).transform(other)
    index = Encoder().fit(table).numeric_names.index("zero_one")
    assert as_number.missing[0, index] and as_number.numeric[0, index] == 0
    for options in ({}, {"binary": "codes"}):
        strict = Encoder(unseen="error", **options).fit(table)
        with pytest.raises(DataError, match="party 'telco', column .*seen: (2|'Rome')") as caught:
            strict.transform(other, party="telco")
        assert "in 1 rows" in str(caught.value) and "Mend" in str(caught.value)
        strict.transform(table)


def test_types_that_changed(table):
    encoder = Encoder().fit(table)
    for columns, says in [
        ({"size": list("abcdef")}, "column 'size': the type changed.*seen: 'a'"),
        ({"city": [1, 2, 3, 4, 5, 6]}, "column 'city': the type changed"),
        ({"flag": ["t", "f"] * 3}, "column 'flag': the type changed"),
    ]:
        with pytest.raises(DataError, match=f"party 'bank', {says}"):
            encoder.transform(table.with_columns(columns), party="bank")
    with pytest.raises(DataError, match="party 'bank', column 'size': there is no such column"):
        encoder.transform(table.drop("size"), party="bank")
    with pytest.raises(DataError, match="shape"):
        encoder.transform(table.with_columns(blocks={"signal": np.zeros((6, 4))}))
    with pytest.raises(DataError, match="shape"):
        encoder.transform(table.drop("signal").with_columns({"signal": range(6)}))
    whole = Table([1, 2, 3], {"x": [1.0, np.nan, 4.0]}, kinds={"x": "integer"})
    half = Table([1, 2, 3], {"x": [1.5, 2.5, 3.0]})
    assert not Encoder().fit(whole).transform(half).missing.any()


def test_codes_are_the_same_read_as_numbers_or_as_text():
    """Of the codes 12 and A1 a file of one row may hold the first alone, and be read as numbers."""
    kinds = {"code": "nominal"}
    mixed = Table(range(5), {"code": ["12", "A1", "12", "7", "A1"]})
    some = Table(range(4), {"code": [12, 7, 99, None]}, kinds=kinds)
    whole = Table(range(4), {"code": [12, 7, 9, 7]}, kinds=kinds)
    strange = Table(range(4), {"code": ["12", "A1", "07", "9"]}, kinds=kinds)
    for known, later, codes in [
        (mixed, some, [1, 2, 4, 0]),  # 12, 7, A1; then what was never seen
        (whole, strange, [3, 4, 4, 2]),  # 7, 9, 12
    ]:
        encoder = Encoder().fit(known)
        assert encoder.transform(later).codes[:, 0].tolist() == codes
    with pytest.raises(DataError, match="type changed: expected numbers.*seen: 'A1'"):
        Encoder().fit(whole).transform(Table(range(2), {"code": ["A1", "B2"]}, kinds=kinds))
    labels = LabelEncoder().fit(mixed.frame["code"], mixed.schema["code"])
    assert labels.transform(pd.Series([7, 12.0])).tolist() == [
        labels.classes_.index("7"),
        labels.classes_.index("12"),
    ]


def test_constant_and_all_missing_columns():
    with pytest.warns(FedmendWarning):
        table = Table([1, 2, 3], {"c": [0.1, 0.1, 0.1], "i": [9, 9, 9], "none": [None] * 3})
    encoder = Encoder().fit(table)
    found = encoder.transform(table)
    assert np.array_equal(found.numeric, np.zeros((3, 3), np.float32))
    assert found.missing.tolist() == [[False, False, True]] * 3
    assert encoder.inverse(found, ids=table.ids).equals(table)
    with pytest.warns(FedmendWarning):
        nominal = Table([1, 2], {"none": [None, None]}, kinds={"none": "nominal"})
    codes = Encoder().fit(nominal).transform(nominal)
    assert codes.codes.tolist() == [[0], [0]] and codes.cardinalities == (2,)


def test_a_cell_as_large_as_numbers_get_stays_a_number():
    """What stands for nothing in some programs: a network made nan of it, and then "no"."""
    encoder = Encoder().fit(Table([1, 2, 3], {"x": [0.1, 0.2, 0.4]}))
    for large in (3.4028235e38, 1.7976931348623157e308):
        later = Table([1, 2, 3], {"x": [large, -large, 0.3]})
        found = encoder.transform(later).numeric[:, 0]
        assert np.isfinite(found**3).all() and found[0] > 1e9 and found[1] < -1e9
        assert found[2] == encoder.transform(later.take([2])).numeric[0, 0]


def test_generated_numbers_go_to_the_nearest_value(table):
    encoder = Encoder(dtype="float64").fit(table)
    found = encoder.transform(table)
    found.missing[:] = False
    found.numeric[:] = np.linspace(-30, 30, 6)[:, None]
    back = encoder.inverse(found).frame
    assert back["grade"].tolist() == ["lo"] * 3 + ["hi"] * 3
    assert back["level"].tolist()[0] == 0 and back["level"].dtype == np.uint8
    assert back["flag"].tolist() == [False] * 3 + [True] * 3
    assert all(value == int(value) for value in back["rooms"])


def test_missing_cells_where_the_type_had_no_room_for_them():
    table = Table([1, 2, 3], {"i": [10, 20, 30], "b": [True, False, True]})
    encoder = Encoder().fit(table)
    found = encoder.transform(table)
    found.missing[1] = True
    back = encoder.inverse(found)
    assert str(back.frame["i"].dtype) == "Int64" and back.frame["i"].tolist() == [10, pd.NA, 30]
    assert str(back.frame["b"].dtype) == "boolean" and back.schema["i"].dtype == "Int64"


def test_whole_numbers_beyond_64_bits_stay_whole_numbers():
    series = pd.Series([2**70, None, 2**71], dtype=object)
    column = infer_column("count", series, "integer")
    assert from_numbers(column, np.array([2.0**70, np.nan, 2.0**71])).tolist() == series.tolist()


def test_an_excerpt_is_the_same_rows_and_its_whole_is_encoded_once(table, monkeypatch):
    plain = table.select([name for name in table.names if name not in table.blocks])
    encoder = Encoder(missing_indicator=True).fit(plain)
    encoded, real = [], encoder._numeric
    monkeypatch.setattr(encoder, "_numeric", lambda each: encoded.append(each) or real(each))
    for whole in (plain, plain.take([5, 4, 3, 2, 1, 0])):
        for rows in ([4, 0, 3], [2], []):
            picked = np.array(rows, np.int64)
            some, expected = Excerpt(whole, picked), whole.take(picked)
            found, wanted = encoder.transform(some), encoder.transform(expected)
            for name in ("numeric", "missing", "codes"):
                np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
        assert [each for each in encoded if each is whole] == [whole]
        assert some.equals(expected) and Excerpt(whole, np.array([4, 0, 3])).take([2, 0]).equals(
            whole.take([3, 4])
        )
    with pytest.raises(DataError, match="taken twice"):
        Excerpt(plain, np.array([1, 1]))
    with_blocks = Encoder().fit(table)
    found = with_blocks.transform(Excerpt(table, np.array([3, 1])))
    np.testing.assert_array_equal(
        found.blocks["face"], with_blocks.transform(table.take([3, 1])).blocks["face"]
    )


def test_arrays_of_another_encoder(table):
    encoder = Encoder().fit(table)
    found = encoder.transform(table)
    wrong = Encoded(found.numeric[:, :2], found.missing[:, :2], found.codes, found.blocks)
    with pytest.raises(DataError, match="use the encoder that made them"):
        encoder.inverse(wrong)
    with pytest.raises(DataError, match="2 ids for 6 rows"):
        encoder.inverse(found, ids=[1, 2])
    with pytest.raises(DataError, match="cardinalities"):
        Encoded(found.numeric, found.missing, found.codes).onehot()


def test_bad_options_and_not_fitted():
    for option in ("ordinal", "binary", "unseen", "dtype"):
        with pytest.raises(DataError, match=f"{option}='wrong'.*Mend: use one of"):
            Encoder(**{option: "wrong"})
    for attempt in (
        lambda: Encoder().transform(Table([1])),
        lambda: Encoder().cardinalities,
        lambda: Encoder().to_dict(),
        lambda: LabelEncoder().transform(pd.Series([1])),
    ):
        with pytest.raises(NotFitted):
            attempt()
    with pytest.raises(DataError, match="unknown task"):
        LabelEncoder("clustering")


def test_json_gives_an_equal_encoder(table):
    encoder = Encoder(missing_indicator=True, binary="codes", unseen="error").fit(table)
    copy = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    mine, other = encoder.transform(table), copy.transform(table)
    assert np.array_equal(mine.numeric, other.numeric) and np.array_equal(mine.codes, other.codes)
    assert all(np.array_equal(mine.blocks[n], other.blocks[n]) for n in mine.blocks)
    assert copy.inverse(other).equals(encoder.inverse(mine))
    assert copy.numeric_names == encoder.numeric_names and copy.unseen == "error"


def test_empty_table(table):
    empty = Encoder().fit(table).transform(table.take([]))
    assert empty.numeric.shape == (0, 8) and empty.codes.shape == (0, 2)
    assert Encoder().fit(table.take([])).transform(table).n_rows == 6


INTS = st.integers(-(2**21), 2**21)
DTYPES = ["int64", "int32", "float64", "Int64", "object", "int64[pyarrow]"]


def _columns(draw_from):
    return st.lists(st.one_of(st.none(), draw_from), min_size=1, max_size=12)


@given(_columns(INTS), st.sampled_from(DTYPES), st.sampled_from(["float32", "float64"]))
def test_integers_come_back_exactly(values, dtype, precision):
    if dtype in ("int64", "int32"):
        values = [0 if value is None else value for value in values]
    if all(value is None for value in values):
        values[0] = 5
    series = pd.Series(values, dtype=dtype)
    table = Table(range(len(values)), {"x": series}, kinds={"x": "integer"})
    encoder = Encoder(dtype=precision).fit(table)
    back = encoder.inverse(encoder.transform(table)).frame["x"]
    assert back.dtype == series.dtype
    assert back.isna().tolist() == series.isna().tolist()
    assert back.dropna().tolist() == series.dropna().tolist()


CATEGORIES = st.one_of(
    _columns(texts(max_size=3)),
    _columns(st.integers(-(2**60), 2**60)),
    _columns(st.booleans()),
    _columns(st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x != 0)),
)


@given(
    CATEGORIES,
    st.sampled_from(["object", "category", "category[ordered]"]),
    st.sampled_from(["codes", "numeric"]),
)
@example(["", "\0"], "object", "codes")
def test_categories_come_back_exactly(values, dtype, ordinal):
    if all(value is None for value in values):
        return
    series = pd.Series(values, dtype=object)
    if dtype != "object":
        series = pd.Series(pd.Categorical(values, ordered=dtype == "category[ordered]"))
    kind = None if dtype == "category[ordered]" else "nominal"
    table = Table(range(len(values)), {"x": series}, kinds={"x": kind} if kind else None)
    encoder = Encoder(ordinal=ordinal).fit(table)
    back = encoder.inverse(encoder.transform(table)).frame["x"]
    assert back.dtype == series.dtype
    assert back.isna().tolist() == series.isna().tolist()
    assert back.dropna().tolist() == series.dropna().tolist()
    assert [type(v) for v in back.dropna()] == [type(v) for v in series.dropna()]


FLOATS = st.floats(-1e300, 1e300)


@given(_columns(FLOATS), st.sampled_from(["float32", "float64"]))
def test_floats_come_back_to_precision_and_codes_are_finite(values, precision):
    series = pd.Series(values, dtype="float64")
    if series.isna().all():
        return
    table = Table(range(len(values)), {"x": series}, kinds={"x": "continuous"})
    encoder = Encoder(dtype=precision).fit(table)
    encoded = encoder.transform(table)
    assert np.isfinite(encoded.numeric).all()
    back = encoder.inverse(encoded).frame["x"]
    assert back.isna().tolist() == series.isna().tolist()
    reach = np.nanmax(np.abs(series))
    unit = 2.0 ** (-23 if precision == "float32" else -50)
    assert np.nanmax(np.abs(back / 4 - series / 4)) <= max(reach * unit, 1e-300)


def test_a_block_of_small_numbers_is_standardised() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 3))
    table = Table(np.arange(50), {}, blocks={"x": rows * 1e-14, "same": np.full((50, 2), 0.1)})
    found = Encoder().fit(table).transform(table).blocks
    assert found["x"] == pytest.approx((rows - rows.mean(0)) / rows.std(0), abs=1e-5)
    assert np.abs(found["same"]).max() < 1e-12


def test_bytes_are_scaled_like_any_other_image() -> None:
    """The short ways for uint8 (counting, float32) give what the long way gives."""
    images = np.random.default_rng(0).integers(0, 256, (50, 3, 4, 6), dtype=np.uint8)
    images[:, 2] = 7
    images[0, 2, 0, 0] = 8
    column = Column("i", "image", shape=(3, 4, 6), dtype="uint8")
    found = BlockScaler.fit(column, images)
    plain = images.astype(np.float64) / 255
    np.testing.assert_allclose(found.mean.ravel(), plain.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(found.scale.ravel(), plain.std((0, 2, 3)), rtol=1e-9)
    exact = found.transform(images, "float64")
    np.testing.assert_allclose(found.transform(images, "float32"), exact, atol=1e-4)
    assert found.transform(images, "float32").dtype == np.float32
    np.testing.assert_array_equal(found.inverse(found.transform(images, "float32")), images)


def test_codes_that_stand_for_nothing_come_back_as_missing():
    table = Table([1, 2, 3], {"city": ["Ulm", "Bonn", "Kiel"]})
    encoder = Encoder().fit(table)
    encoded = encoder.transform(table)
    encoded.codes[:, 0] = [-2, 99, 1]
    assert encoder.inverse(encoded).frame["city"].tolist() == [None, None, "Bonn"]


# --- labels ------------------------------------------------------------------------


def fit_labels(values, kind=None, **options):
    series = pd.Series(values, name="y")
    column = infer_column("y", series, kind)
    return LabelEncoder(**options).fit(series, column, party="bank"), series


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["no", "yes", "no"], "binary", ["no", "yes"]),
        ([True, False], "binary", [False, True]),
        ([1, 2, 1], "binary", [1, 2]),
        (["a", "b", "c"], "multiclass", ["a", "b", "c"]),
        ([0, 1, 2] * 5, "multiclass", [0, 1, 2]),
        (list(range(31)) * 2, "regression", []),
        ([3, 1, 4, 15, 9, 2], "regression", []),
        ([0.5, 1.5, 2.5], "regression", []),
        (
            pd.Categorical(["hi", "lo", "mid"], categories=["lo", "mid", "hi"], ordered=True),
            "multiclass",
            ["lo", "mid", "hi"],
        ),
        (pd.Categorical(["b", "a", "b"], categories=["c", "b", "a"]), "binary", ["b", "a"]),
    ],
)
def test_task_and_classes(values, task, classes):
    encoder, series = fit_labels(values)
    assert (encoder.task, encoder.classes_) == (task, classes)
    if task != "regression":
        assert encoder.inverse(encoder.transform(series)).tolist() == list(series)


def test_classes_are_numbered_as_scikit_learn_does():
    rng = np.random.default_rng(0)
    values = rng.choice(np.array(["x", "bb", "a", "Zz"], dtype=object), 50)
    encoder, series = fit_labels(values)
    assert np.array_equal(encoder.transform(series), Reference().fit_transform(values))
    assert encoder.transform(series).dtype == np.int64


def test_regression_is_standardised_and_comes_back():
    encoder, series = fit_labels([1.5, 2.0, 7.25, None])
    found = encoder.transform(series)
    assert found.dtype == np.float32 and np.isnan(found[3])
    np.testing.assert_allclose(np.nanmean(found), 0, atol=1e-6)
    np.testing.assert_allclose(np.nanstd(found), 1, atol=1e-6)
    np.testing.assert_allclose(encoder.inverse(found), series, rtol=1e-6)
    assert encoder.inverse(found).dtype == np.float64


def test_what_is_told_of_numbers_lies_within_means_of_the_least_rows():
    series = pd.Series(np.arange(1.0, 101.0), name="y")
    encoder = LabelEncoder(least=10).fit(series, infer_column("y", series))
    far = np.array([-1e6, 0.0, 1e6])
    assert encoder.told(far).tolist() == [5.5, 50.5, 95.5], "nobody's own label"
    copy = LabelEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert copy.told(far).tolist() == [5.5, 50.5, 95.5]
    before = {key: value for key, value in encoder.to_dict().items() if key != "span"}
    assert LabelEncoder.from_dict(before).told(far)[2] > 1e7, "as a model of before was"
    np.testing.assert_allclose(encoder.inverse(encoder.transform(series)), series, rtol=1e-5)


def test_task_can_be_said():
    assert fit_labels([1, 2, 3, 4], task="multiclass")[0].classes_ == [1, 2, 3, 4]
    assert fit_labels([0, 1, 2] * 5, task="regression")[0].mean_ == 1.0
    assert fit_labels([0, 1, 0], task="regression")[0].task == "regression"
    assert fit_labels(["a", "b"], task="multiclass")[0].task == "multiclass"


def test_missing_labels_are_minus_one_or_nan():
    encoder, series = fit_labels(["no", None, "yes"])
    assert encoder.transform(series).tolist() == [0, -1, 1]
    assert encoder.inverse(np.array([1, -1])).tolist() == ["yes", None]
    numbers, series = fit_labels(pd.array([1, None, 2, 1], dtype="Int64"))
    assert numbers.transform(series).tolist() == [0, -1, 1, 0]


def test_types_come_back():
    small, series = fit_labels(np.array([3, 7, 3], dtype=np.int8))
    assert small.inverse(small.transform(series)).dtype == np.int8
    flags, series = fit_labels([True, False])
    assert flags.inverse(np.array([1, 0])).dtype == bool
    nullable, _ = fit_labels(pd.array([1, None, 2], dtype="Int64"))
    assert nullable.inverse(np.array([1, 0])).dtype == np.int64


@pytest.mark.parametrize(
    ("values", "options", "says"),
    [
        (["no", "no", None], {}, r"one class only.*seen: 'no'"),
        ([1, 1, 1, 1], {}, r"one class only.*seen: 1"),
        ([2.5, 2.5, None, 2.5], {"task": "regression"}, r"one value only.*seen: 2\.5"),
        ([0.1] * 7, {"task": "regression"}, r"one value only.*seen: 0\.1"),
        ([0, 0, 0], {"task": "count"}, r"one value only.*seen: 0"),
        ([None, None], {}, "all 2 labels are missing"),
        (["a", "b", "c"], {"task": "binary"}, "3 classes"),
        (["a", "b"], {"task": "regression"}, "cannot be a regression target"),
    ],
)
def test_what_cannot_be_a_label(values, options, says):
    with pytest.raises(DataError, match=f"party 'bank', column 'y': .*{says}") as caught:
        fit_labels(values, **options)
    assert caught.value.mend


def test_labels_never_seen_or_of_another_type():
    encoder, _ = fit_labels(["no", "yes"])
    with pytest.raises(DataError, match=r"party 'telco', column 'y'.*seen: 'maybe'.*known classes"):
        encoder.transform(pd.Series(["no", "maybe"]), party="telco")
    with pytest.raises(DataError, match="type changed"):
        encoder.transform(pd.Series([0, 1]))
    for wrong in ([2], [-2]):
        with pytest.raises(DataError, match="must lie in"):
            encoder.inverse(np.array(wrong))


@pytest.mark.parametrize(
    "values", [["b", "a", None], [1, 2, 3] * 3, [0.5, 2.5, 3.5], [True, False]]
)
def test_json_gives_an_equal_label_encoder(values):
    encoder, series = fit_labels(values)
    copy = LabelEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    np.testing.assert_array_equal(copy.transform(series), encoder.transform(series))
    assert (copy.task, copy.classes_, copy.scale_) == (
        encoder.task,
        encoder.classes_,
        encoder.scale_,
    )


# ---------------------------------------------------------------- counts


def test_counts_are_numbers_from_zero_on():
    y = pd.Series([0, 1, 1, 2, 5] * 4, name="visits")
    encoder = LabelEncoder("count").fit(y, Column("visits", "integer"))
    same = LabelEncoder("regression").fit(y, Column("visits", "integer"))
    assert encoder.task == "regression"
    np.testing.assert_array_equal(encoder.transform(y), same.transform(y))
    again = LabelEncoder.from_dict(encoder.to_dict())
    np.testing.assert_allclose(again.inverse(again.transform(y)), y, atol=1e-6)
    with pytest.raises(DataError, match=r"clinic.*visits.*a count cannot be negative.*-1"):
        LabelEncoder("count").fit(y - 1, Column("visits", "integer"), party="clinic")


def test_counts_are_not_classes_in_silence():
    rng = np.random.default_rng(0)
    y = pd.Series(rng.poisson(1.7, 500), name="visits")
    with pytest.warns(FedmendWarning, match="look like counts are taken for classes"):
        assert LabelEncoder().fit(y, Column("visits", "integer")).task == "multiclass"
    codes = pd.Series(rng.integers(0, 9, 500), name="kind")
    assert LabelEncoder().fit(codes, Column("kind", "integer")).task == "multiclass"


@pytest.mark.parametrize("mean", [0.8, 1.5, 3.0, 6.0])
def test_what_looks_counted(mean):
    rng = np.random.default_rng(5)
    found = [looks_counted(rng.poisson(mean, 600)) for _ in range(50)]
    assert np.mean(found) > (0.9 if mean > 1 else 0.2)  # few different values may be anything


def test_what_looks_like_classes():
    """Classes with shares at random, evenly shared, or that begin elsewhere."""
    rng = np.random.default_rng(6)
    shares = rng.dirichlet(np.full(8, 2.0), 100)
    found = [looks_counted(rng.choice(8, 600, p=each)) for each in shares]
    assert np.mean(found) < 0.1
    assert not looks_counted(np.arange(600) % 10)
    assert not looks_counted(rng.poisson(2, 600) + 10)
