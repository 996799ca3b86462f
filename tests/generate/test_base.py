"""What the base class settles for all generators, tried on one."""

import re

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, NotFitted
from fedmend.generate import generators, load, make
from fedmend.generate.vae import VAE
from fedmend.split.parts import read_file, write_file


@pytest.fixture(scope="module")
def fitted(small, mixed):
    return small("vae").fit(mixed)


def test_all_are_listed_and_made():
    published = ("ctgan", "tablegan", "ctabgan", "vae", "tabddpm", "gain", "vgain", "vfgain")
    assert set(generators()) >= set(published)
    for name in generators():
        assert make(name).name == name
    with pytest.raises(ConfigError, match="did you mean 'tabddpm'"):
        make("tab-ddpm")


def test_a_fit_that_was_stopped_leaves_what_was_fitted_before(small, mixed):
    def stop(*_):
        raise KeyboardInterrupt

    generator = small("vae")
    with pytest.raises(KeyboardInterrupt):
        generator.fit(mixed, progress=stop)
    with pytest.raises(NotFitted):
        generator.sample(3)
    rows = generator.fit(mixed).sample(3, seed=1)
    with pytest.raises(KeyboardInterrupt):
        generator.fit(mixed.select(["age"]), progress=stop)
    assert generator.sample(3, seed=1).equals(rows)


def test_given_missing_cells_are_generated(fitted, mixed):
    assert fitted.sample(given=mixed, seed=0).frame.equals(mixed.frame)
    assert fitted.impute(mixed) is mixed
    made = fitted.sample(given=pd.DataFrame({"city": ["Rome", None, "Oslo"]}), seed=0)
    assert made.frame["city"].iloc[[0, 2]].tolist() == ["Rome", "Oslo"]
    assert made.frame["city"].iloc[1] in {"Rome", "Oslo", "Lima"}


def test_given_numbers_outside_the_observed_range_are_kept(fitted):
    made = fitted.sample(3, given={"income": 1e9, "age": 17}, seed=0)
    assert made.frame["income"].tolist() == [1e9] * 3
    assert made.frame["age"].tolist() == [17] * 3


def test_given_whole_numbers_come_back_exactly_and_are_refused_where_there_is_no_room(small):
    account = 2**60 + np.arange(40)
    level = np.arange(40, dtype=np.uint8)
    generator = small("vae").fit(Table(np.arange(40), {"account": account, "level": level}))
    made = generator.sample(given={"account": [2**60 + 3, 2**60 + 5], "level": 200}, seed=0)
    assert made.frame["account"].tolist() == [2**60 + 3, 2**60 + 5]
    assert made.frame["level"].tolist() == [200] * 2
    assert made.frame.dtypes.equals(generator.sample(1).frame.dtypes)
    with pytest.raises(DataError, match=r"'level': a column of uint8 holds numbers from 0 to 255"):
        generator.sample(given={"level": [7, 1000]})


@pytest.mark.parametrize(
    ("n", "given", "message"),
    [
        (2, {"town": "Rome"}, "no such column"),
        (2, {"city": "Paris"}, "never saw.*Paris.*Oslo"),
        (2, {"age": 33.5}, "fraction"),
        (2, {"age": [1, 2, 3]}, "3 rows are given for n=2"),
        (None, {"age": [1, 2], "city": ["Rome"]}, "1 values are given for 2 rows"),
        (2, {"age": "old"}, "type changed"),
    ],
)
def test_given_that_cannot_be(fitted, n, given, message):
    with pytest.raises(DataError, match=message):
        fitted.sample(n, given=given)


def test_how_many_rows_must_be_said(fitted):
    with pytest.raises(ConfigError, match="n must be"):
        fitted.sample()
    with pytest.raises(ConfigError, match="how many rows"):
        fitted.sample(given={"city": "Rome"})
    assert fitted.sample(0).n_rows == 0


def test_impute_keeps_what_the_generator_does_not_know(fitted, mixed_frame):
    frame = mixed_frame(20, seed=3)[["age", "city"]].assign(note=[None, "x"] * 10)
    frame["city"] = frame["city"].where(frame.index > 4, "Paris").mask(frame.index > 15)
    frame["age"] = frame["age"].astype(float).mask(frame.index < 4)
    table = Table(np.arange(20), frame)
    filled = fitted.impute(table)
    assert filled.frame["note"].equals(table.frame["note"])
    assert (filled.frame["city"].iloc[:5] == "Paris").all()
    assert not filled.frame[["age", "city"]].isna().to_numpy().any()
    with pytest.raises(DataError, match="none of the generator's columns"):
        fitted.impute(table.select(["note"]))


def test_impute_into_columns_of_another_type(fitted, mixed_frame):
    frame = mixed_frame(20, seed=3)[["income", "city"]]
    whole = frame["income"].round().astype("Int64").mask(frame.index < 3)
    filled = fitted.impute(Table(np.arange(20), {"income": whole})).frame["income"]
    assert filled.dtype == "Int64" and filled.notna().all()
    assert filled[3:].tolist() == whole[3:].tolist()
    codes = pd.Series(1.5, index=frame.index).mask(frame.index < 3)
    with pytest.raises(DataError, match="'city': the type changed: expected text"):
        fitted.impute(Table(np.arange(20), {"city": codes}))


def test_impute_a_whole_block_of_columns(fitted, mixed, quiet_table):
    frame = mixed.frame.assign(city=np.nan, income=np.nan)
    filled = fitted.impute(quiet_table(mixed.ids, frame, label="default"))
    assert filled.schema["city"] == mixed.schema["city"]
    assert set(filled.frame["city"]) <= set(mixed.frame["city"])
    assert filled.frame["income"].dtype == np.float64


@pytest.mark.slow
def test_draws_trade_spread_for_error(small, quiet_table):
    # Two unrelated columns: the best guess is the mean, one draw is as spread as the column.
    rng = np.random.default_rng(0)
    table = Table(np.arange(300), {"a": rng.normal(size=300), "b": rng.normal(size=300)})
    generator = small("vae", epochs=20).fit(table)
    holes = quiet_table(table.ids, table.frame.assign(b=np.nan))
    one = generator.impute(holes, draws=1).frame["b"].std()
    many = generator.impute(holes, draws=30).frame["b"].std()
    assert many < 0.6 * one
    with pytest.raises(ConfigError, match="draws"):
        generator.impute(holes, draws=0)


def test_files_that_are_no_generator(fitted, tmp_path):
    from fedmend.federation import wire
    from fedmend.generate.tabddpm import TabDDPM

    (tmp_path / "text").write_text("hello")
    with pytest.raises(DataError, match="text is damaged") as found:
        load(tmp_path / "text")
    assert str(found.value).count("Mend:") == 1
    with pytest.raises(DataError, match="cannot read .*nowhere: No such file"):
        load(tmp_path / "nowhere")
    (tmp_path / "other").write_bytes(wire.encode({"format": "other"}))
    with pytest.raises(DataError, match="no generator"):
        load(tmp_path / "other")
    (tmp_path / "later").write_bytes(wire.encode({"format": "fedmend generator", "version": 99}))
    with pytest.raises(DataError, match="version 99"):
        load(tmp_path / "later")
    path = fitted.save(tmp_path / "vae")
    assert isinstance(VAE.load(path), VAE)
    with pytest.raises(DataError, match="holds a VAE, not a TabDDPM"):
        TabDDPM.load(path)


def test_a_generator_of_a_machine_with_an_accelerator_loads_without_one(
    fitted, tmp_path, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(fitted, "device", "cuda")
    found = load(fitted.save(tmp_path / "a new folder" / "vae"))
    assert found.device_.type == "cpu"
    assert found.sample(3, seed=0).frame.equals(fitted.sample(3, seed=0).frame)


def test_a_generator_saved_with_a_parameter_that_is_no_more_loads(fitted, tmp_path):
    path = fitted.save(tmp_path / "vae")
    values = read_file(path)
    write_file(path, {**values, "params": {**values["params"], "reconstruction": 2.0}})
    assert load(path).sample(3, seed=0).frame.equals(fitted.sample(3, seed=0).frame)


def test_a_number_that_cannot_be_squared_is_named():
    """A sentinel for missing cells, say: some generators crashed on it, others made gaps of it."""
    values = np.r_[np.arange(30.0), 1.7e308]
    for sign in (1, -1):
        table = Table(np.arange(31), {"a": np.arange(31) % 7, "b": sign * values})
        with pytest.raises(DataError, match=r"column 'b'.*1\.7e\+308.*Mend: leave the cell empty"):
            make("vae", epochs=1).fit(table)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("vae", {"validation": 1.0, "hidden": (), "latent": 0, "candidates": 0, "epochs": 0}),
        ("tabddpm", {"validation": 1.5, "hidden": (8, 0)}),
        ("gain", {"dropout": 1.0, "steps": 0}),
        ("ctgan", {"dropout": 1.0, "hidden": 0}),
        ("ctabgan", {"channels": 0, "candidates": -1, "sampling": "even", "penalty": -1}),
        ("tablegan", {"batch_size": 0, "lr": 0.0, "epsilon": 0, "numeric": "mode"}),
        ("ctgan", {"latent": 0, "pac": 0, "average": 1.0, "patience": -1}),
        ("tabddpm", {"sampling_steps": 0, "condition": 1.5}),
        ("gain", {"hidden": 0, "hint": 1.2, "seed": -1}),
        ("vgain", {"latent": 0}),
    ],
)
def test_sizes_and_shares_are_checked_before_anything_is_trained(name, wrong):
    """With all rows held out, or all units dropped, training went on and meant nothing."""
    table = Table(np.arange(30), {"a": np.arange(30.0)})
    with pytest.raises(ConfigError) as caught:
        make(name, **wrong).fit(table)
    for key, value in wrong.items():
        assert re.search(rf"{key} must be .*got {re.escape(repr(value))}", str(caught.value))
    # batch normalisation cannot normalise one row
    with pytest.raises(ConfigError, match="batch_size must be 2 or more"):
        make("tablegan", batch_size=1).fit(table)


def test_arguments_of_another_type_are_told_all_at_once():
    table = Table(np.arange(30), {"a": np.arange(30.0)})
    with pytest.raises(ConfigError) as caught:
        make("tablegan", batch_size=True, epochs=1.5, lr="fast").fit(table)
    told = str(caught.value)
    for wrong in ("batch_size of TableGAN must be a whole number, got True", "1.5", "'fast'"):
        assert wrong in told


def test_a_frame_is_no_table(fitted):
    for call in (make("vae").fit, fitted.impute):
        with pytest.raises(DataError, match=r"a Table, not a DataFrame. Mend: Table.from_frame"):
            call(fitted.sample(20).frame)
    with pytest.raises(ConfigError, match="n must be a whole number"):
        fitted.sample(2.5)
