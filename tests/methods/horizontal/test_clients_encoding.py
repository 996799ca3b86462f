"""One encoding for all parties: that of their rows together, whatever each of them has seen."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import DataError
from fedmend.methods.horizontal.encoding import (
    common_classes,
    common_encoder,
    common_schema,
    describe,
    moments,
    pool_of,
)

numbers = st.floats(-1e6, 1e6, allow_nan=False) | st.none()


def agreed(tables: dict[str, Table]) -> dict:
    schema = common_schema({party: describe(table) for party, table in tables.items()})
    return common_encoder(schema, {p: moments(t, schema) for p, t in tables.items()}, "float64")


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")  # all cells missing
@given(st.lists(st.lists(numbers, min_size=1, max_size=12), min_size=1, max_size=4))
def test_means_and_scales_are_those_of_all_numbers(columns):
    tables = {
        f"p{number}": Table(
            np.arange(len(values)),
            pd.DataFrame({"x": np.array(values, dtype=float)}),
            kinds={"x": "continuous"},
        )
        for number, values in enumerate(columns)
    }
    ((name, mean, scale, _),) = agreed(tables)["scaled"]
    together = np.array([value for values in columns for value in values], dtype=float)
    present = together[~np.isnan(together)]
    assert name == "x"
    if len(present):
        spread = max(abs(present).max(), 1.0)
        assert mean == pytest.approx(present.mean(), abs=1e-9 * spread)
        expected = present.std()
        if expected > 1e-9 * spread:
            assert scale == pytest.approx(expected, rel=1e-6, abs=1e-9 * spread)
    else:
        assert (mean, scale) == (0.0, 1.0)


def test_small_numbers_are_measured_and_too_large_ones_refused():
    """Moles in a litre were taken for a column that never changes."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 40)) * 1e-14
    tables = {f"p{at}": Table(np.arange(40), {"x": each}) for at, each in enumerate(values)}
    ((_, mean, scale, _),) = agreed(tables)["scaled"]
    assert (mean, scale) == pytest.approx((values.mean(), values.std()), rel=1e-9)
    tables["p1"] = Table(np.arange(3), {"x": [1.7e308, 1.7e308, 0.5]})
    with pytest.raises(DataError, match="column 'x': numbers too large .*Mend: empty these cells"):
        agreed(tables)


def test_categories_of_all_parties_are_known_to_each():
    frames = {
        "a": pd.DataFrame({"city": ["Ulm", "Bonn"] * 5, "smoker": ["no"] * 9 + ["yes"]}),
        "b": pd.DataFrame({"city": ["Kiel", "Ulm"] * 5, "smoker": ["no", "yes"] * 5}),
        "c": pd.DataFrame({"city": ["Ulm", "Jena"] * 5, "smoker": ["often", "no"] * 5}),
    }
    tables = {name: Table.from_frame(frame) for name, frame in frames.items()}
    encoder = Encoder.from_dict(agreed(tables))
    assert encoder.code_names == ["city", "smoker"]
    whole = pd.concat(frames.values(), ignore_index=True)
    codes = np.concatenate([encoder.transform(table).codes for table in tables.values()])
    for column, name in enumerate(encoder.code_names):
        known = sorted(whole[name].unique())
        assert codes[:, column].tolist() == [known.index(value) + 1 for value in whole[name]]


def test_whole_numbers_here_and_fractions_there_are_numbers():
    rng = np.random.default_rng(0)
    tables = {
        "a": Table.from_frame(pd.DataFrame({"x": rng.integers(0, 1000, 60)})),
        "b": Table.from_frame(pd.DataFrame({"x": rng.normal(500, 100, 60)})),
    }
    encoder = Encoder.from_dict(agreed(tables))
    both = np.concatenate([encoder.transform(table).numeric for table in tables.values()])
    assert abs(both.mean()) < 1e-9
    assert both.std() == pytest.approx(1.0)


@pytest.mark.parametrize("rare", [[1.0] * 3, [1.0] * 3 + [0.0] * 4])
def test_two_numbers_of_which_one_is_rare_are_numbers_where_others_have_more(rare):
    """The pixel at a picture's edge: 0 and, at a client, three times 1."""
    few = np.concatenate([np.zeros(50 if len(rare) == 3 else 0), rare])
    tables = {
        "a": Table.from_frame(pd.DataFrame({"x": np.arange(60.0) / 4})),
        "b": Table.from_frame(pd.DataFrame({"x": few})),
    }
    assert tables["b"].schema["x"].kind == "binary"
    schema = common_schema({party: describe(table, 10) for party, table in tables.items()})
    assert schema["x"].kind == "continuous"
    words = Table.from_frame(pd.DataFrame({"x": ["no"] * 5 + ["yes"] * 4}))
    with pytest.raises(DataError, match="'x': is nominal here and continuous at party 'a'"):
        common_schema({"a": describe(tables["a"], 10), "b": describe(words, 10)})


def test_codes_that_are_numbers_here_and_text_there_are_one_column_as_the_error_says():
    codes = {"a": pd.DataFrame({"x": [1, 2, 3] * 10}), "b": pd.DataFrame({"x": list("123") * 10})}
    with pytest.raises(DataError, match=r"of codes, let kinds say 'nominal' of it"):
        common_schema({n: describe(Table.from_frame(x), 10) for n, x in codes.items()})
    kinds = {"x": "nominal"}
    tables = {name: Table.from_frame(x, kinds=kinds) for name, x in codes.items()}
    schema = common_schema({name: describe(table, 10) for name, table in tables.items()})
    assert schema["x"].categories == ("1", "2", "3")


def test_image_channels_are_measured_together():
    rng = np.random.default_rng(1)
    blocks = [rng.integers(0, 256, (n, 3, 4, 4), dtype=np.uint8) for n in (5, 9)]
    tables = {
        f"p{number}": Table(
            np.arange(len(block)), pd.DataFrame(index=range(len(block))), blocks={"i": block}
        )
        for number, block in enumerate(blocks)
    }
    found = agreed(tables)["blocks"]["i"]
    pixels = np.concatenate(blocks) / 255
    assert found["mean"] == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert found["scale"] == pytest.approx(pixels.std((0, 2, 3)).tolist())


def grades(*steps: object, **rows: int) -> Table:
    """A column with this order, and so many rows of each step."""
    said = [step for step in steps for _ in range(rows.get(str(step), 0))]
    values = pd.Series(pd.Categorical(said, categories=list(steps), ordered=True))
    return Table.from_frame(pd.DataFrame({"grade": values}))


STEPS = ("low", "mid", "high")


@pytest.mark.parametrize(
    ("a", "b", "together"),
    [
        ({"low": 20, "mid": 20, "high": 20}, {"low": 20, "mid": 20, "high": 20}, STEPS),
        ({"low": 20, "mid": 20}, {"mid": 20, "high": 20}, STEPS),
        ({"mid": 20, "high": 20}, {"low": 20, "mid": 20}, STEPS),
        ({"low": 20, "mid": 9, "high": 20}, {"low": 20, "mid": 20, "high": 20}, STEPS),
        ({"low": 20, "high": 30}, {"high": 30, "low": 20}, ("low", "high")),
    ],
)
def test_orders_are_joined_though_a_party_leaves_rare_steps_out(a, b, together):
    tables = {"a": grades(*STEPS, **a), "b": grades(*STEPS, **b)}
    schema = common_schema({party: describe(table, 10) for party, table in tables.items()})
    assert (schema["grade"].kind, schema["grade"].categories) == ("ordinal", together)


def test_steps_that_no_party_compares_are_known_to_all():
    tables = {"a": grades(*STEPS, low=20, high=20), "b": grades(*STEPS, mid=20, high=20)}
    schema = common_schema({party: describe(table, 10) for party, table in tables.items()})
    steps = schema["grade"].categories
    assert sorted(steps) == sorted(STEPS)
    assert steps[-1] == "high"


def test_orders_that_contradict_each_other_are_refused():
    torn = {"a": grades("low", "mid", "high"), "b": grades("high", "low")}
    with pytest.raises(
        DataError, match=r"'grade': the parties have the steps of .*'high', 'low'\]"
    ):
        common_schema({party: describe(table, 0) for party, table in torn.items()})
    numbers = {"a": grades("low", "high"), "b": grades(1, 2)}
    with pytest.raises(DataError, match="party 'b', column 'grade': holds int values here and str"):
        common_schema({party: describe(table, 0) for party, table in numbers.items()})


def test_missing_cells_cost_no_category_unless_rare_values_need_company():
    def told(**rows: int) -> tuple[str, ...] | None:
        values = [name for name, count in rows.items() for _ in range(count)]
        frame = pd.DataFrame({"q": [None if name == "none" else name for name in values]})
        table = Table.from_frame(frame, kinds={"q": "nominal"})
        return common_schema({"p": describe(table, 10)})["q"].categories

    assert told(a=40, b=30, c=27, none=3) == ("a", "b", "c")
    assert told(a=40, b=30, c=27, d=3, none=3) == ("a", "b")


@pytest.mark.parametrize("first", ["a", "b"])
def test_classes_are_joined_where_one_party_writes_true_and_false(first):
    frame = pd.DataFrame({"x": np.arange(6.0)})
    said = {"a": [0, 1, 1] * 2, "b": [False, True, True] * 2}
    tables = {
        name: Table.from_frame(frame.assign(y=said[name]), label="y")
        for name in sorted(said, key=lambda name: name != first)
    }
    described = {name: describe(table) for name, table in tables.items()}
    common = {"classes": common_classes(described)[1], "encoder": agreed(tables)}
    assert common["classes"] == [0, 1]
    for name, table in tables.items():
        assert pool_of(table, common, name).labels.tolist() == [0, 1, 1] * 2
    other = Table.from_frame(frame.assign(y=[0, 9] * 3), label="y")
    with pytest.raises(DataError, match=r"not there in training \(seen: 9\)"):
        pool_of(other, common, "c")


def test_classes_are_those_of_all_parties_in_order():
    described = {
        "a": {"label": "y", "classes": ["b", "a"]},
        "b": {"label": None, "classes": []},
        "c": {"label": "y", "classes": ["c"]},
    }
    assert common_classes(described) == ("y", ["a", "b", "c"])
    described["c"]["classes"] = [3]
    with pytest.raises(DataError, match="text at one party, numbers at another"):
        common_classes(described)
    with pytest.raises(DataError, match="labels of 0 classes"):
        common_classes({"b": described["b"]})


def test_labels_that_are_measured_are_refused():
    frame = pd.DataFrame({"x": range(60), "y": np.random.default_rng(0).normal(size=60)})
    table = Table.from_frame(frame, label="y")
    with pytest.raises(DataError, match="column 'y': clients learn classes.*Mend: give its kind"):
        describe(table)


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")  # all cells missing
def test_a_party_may_have_an_empty_label_column():
    table = Table.from_frame(pd.DataFrame({"x": range(6), "y": [None] * 6}), label="y")
    assert describe(table)["classes"] == []
