from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError
from fedmend.federation import wire
from fedmend.generate.encoder import Encoder

Frame = Callable[..., pd.DataFrame]
Quiet = Callable[..., Table]
forms = pytest.mark.parametrize("numeric", ["mode", "quantile", "spiked", "rank", "minmax"])


@forms
@pytest.mark.parametrize("levels", [0, 12])
def test_cells_come_back_exactly(numeric: str, levels: int, mixed: Table) -> None:
    encoder = Encoder(numeric, levels=levels).fit(mixed)
    for rng in (None, np.random.default_rng(0)):
        encoded = encoder.encode(encoder.raw(mixed.frame), rng)
        assert encoded.is_complete
        back = encoder.restore(encoder.decode(encoded.values))
        # all but the one column of full float32 precision
        rest = [name for name in mixed.names if name != "score"]
        pd.testing.assert_frame_equal(back[rest], mixed.frame[rest])
        assert np.allclose(back["score"], mixed.frame["score"], atol=1e-4)
        assert back["score"].dtype == np.float32


@forms
def test_the_wire_form_is_the_encoder(numeric: str, gappy: Table) -> None:
    encoder = Encoder(numeric, levels=5).fit(gappy)
    again = Encoder.from_dict(wire.decode(wire.encode(encoder.to_dict())))
    assert again.schema == encoder.schema
    assert again.spans == encoder.spans
    raw = encoder.raw(gappy.frame)
    assert np.array_equal(again.encode(raw).values, encoder.encode(raw).values)
    noise = np.random.default_rng(0).normal(size=(30, encoder.width)).astype(np.float32)
    pd.testing.assert_frame_equal(
        again.restore(again.decode(noise)), encoder.restore(encoder.decode(noise))
    )


@forms
def test_any_coordinates_decode_into_range_and_categories(numeric: str, mixed: Table) -> None:
    encoder = Encoder(numeric).fit(mixed)
    noise = 10 * np.random.default_rng(0).normal(size=(200, encoder.width)).astype(np.float32)
    made = encoder.restore(encoder.decode(noise))
    for name, column in mixed.schema.items():
        if column.is_numeric:
            assert made[name].between(mixed.frame[name].min(), mixed.frame[name].max()).all()
        else:
            assert set(made[name]) <= set(mixed.frame[name])


def test_missing_cells_are_neutral_and_marked(gappy: Table) -> None:
    encoder = Encoder("minmax").fit(gappy)
    encoded = encoder.encode(encoder.raw(gappy.frame))
    expected = gappy.frame[encoder.columns].notna().to_numpy()
    assert np.array_equal(encoded.observed, expected)
    gaps = ~encoder.spread(encoded.observed)
    assert np.array_equal(encoded.values[gaps], np.broadcast_to(encoder.neutral, gaps.shape)[gaps])
    back = encoder.raw(gappy.frame)
    for name, numbers in back.items():
        assert np.array_equal(np.isnan(numbers), gappy.frame[name].isna().to_numpy())


def test_spans_cover_the_matrix_in_order(mixed: Table) -> None:
    encoder = Encoder("mode").fit(mixed)
    ends = [0, *(span.stop for span in encoder.spans)]
    assert ends[:-1] == [span.start for span in encoder.spans]
    assert ends[-1] == encoder.width == len(encoder.neutral)
    assert [encoder.columns[i] for i in encoder.owner] == [
        span.column for span in encoder.spans for _ in range(span.start, span.stop)
    ]
    assert [span.column for span in encoder.of("income")] == ["income"] * len(encoder.of("income"))


def test_columns_with_nothing_to_learn_take_no_room(quiet_table: Quiet) -> None:
    table = quiet_table(
        range(12),
        {
            "x": np.arange(12.0),
            "same": [5] * 12,
            "none": [np.nan] * 12,
            "nobody": pd.Series([None] * 12, dtype=object),
            "unused": pd.Categorical(["a"] * 12, categories=["a", "b"]),
        },
    )
    encoder = Encoder("quantile").fit(table)
    assert encoder.columns == ["x"]
    assert encoder.empty == ["none", "nobody"]
    made = encoder.restore(encoder.decode(np.zeros((3, 1), np.float32)))
    assert made["same"].tolist() == [5] * 3
    assert made[["none", "nobody"]].isna().all(axis=None)
    assert made["unused"].dtype == table.frame["unused"].dtype


def test_declared_categories_that_never_occur_are_not_made() -> None:
    values = pd.Categorical(["a", "c"] * 10, categories=["a", "b", "c"])
    encoder = Encoder().fit(Table(range(20), {"x": values}))
    assert encoder.categories("x") == ["a", "c"]
    assert encoder.width == 2
    made = encoder.restore(encoder.decode(np.eye(2, dtype=np.float32)))
    assert made["x"].tolist() == ["a", "c"]
    assert np.isnan(encoder.raw(pd.DataFrame({"x": ["b"]}))["x"]).all()


def test_unseen_categories(mixed: Table) -> None:
    encoder = Encoder().fit(mixed)
    frame = pd.DataFrame({"city": ["Rome", "Paris"]})
    assert np.isnan(encoder.raw(frame)["city"]).tolist() == [False, True]
    with pytest.raises(DataError, match="'city'.*never saw.*'Paris'.*use one of 'Lima'"):
        encoder.raw(frame, strict=True)
    with pytest.raises(DataError, match="'age'.*numbers were expected.*'old'"):
        encoder.raw(pd.DataFrame({"age": ["old"]}))


def test_average_is_mean_or_majority(mixed: Table) -> None:
    encoder = Encoder().fit(mixed)
    averaged = encoder.average(
        {
            "age": np.array([[20.0, 30], [21, 31], [23, 36]]),
            "city": np.array([[0.0, 2], [1, 1], [1, 2]]),
        }
    )
    assert averaged["age"].tolist() == [21.0, 32.0]
    assert averaged["city"].tolist() == [1.0, 2.0]


def test_decimals_are_learnt() -> None:
    rng = np.random.default_rng(0)
    table = Table(range(300), {"cents": np.round(rng.normal(size=300), 2), "full": rng.random(300)})
    encoder = Encoder("quantile").fit(table)
    made = encoder.decode(rng.normal(size=(500, 2)).astype(np.float32))
    assert np.array_equal(made["cents"], np.round(made["cents"], 2))
    assert not np.array_equal(made["full"], np.round(made["full"], 6))


def test_bad_options_and_blocks() -> None:
    with pytest.raises(ConfigError, match="numeric must be one of"):
        Encoder("modes")
    table = Table([1, 2], blocks={"photo": np.zeros((2, 1, 2, 2), np.uint8)})
    with pytest.raises(DataError, match="'photo'.*not blocks"):
        Encoder().fit(table)
