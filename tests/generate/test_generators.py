"""The one suite that every generator passes."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ks_2samp
from torch import nn

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, NotFitted
from fedmend.generate import adversarial, gain, generators, load, make, tabddpm, vae
from fedmend.generate.training import History, train

each = pytest.mark.parametrize("name", generators())
# one of each make, for tables of which only a make's own code can make nonsense
makes = pytest.mark.parametrize("name", ["ctgan", "ctabgan", "vae", "tabddpm", "vgain"])


@pytest.fixture(scope="module", params=generators())
def fitted(request, small, mixed):
    """Every generator once, fitted on the mixed table."""
    told: list[tuple[str, int, int]] = []
    made = small(request.param).fit(mixed, progress=lambda *step: told.append(step))
    assert told and all(1 <= done <= total for _, done, total in told)
    return made


def test_sample_has_the_tables_schema_types_ranges_and_categories(fitted, mixed):
    made = fitted.sample(70, seed=1)
    assert made.n_rows == 70
    assert made.schema == mixed.schema
    assert made.label == mixed.label
    assert list(made.frame.columns) == list(mixed.frame.columns)
    assert (made.frame.dtypes == mixed.frame.dtypes).all()
    assert not made.frame.isna().to_numpy().any()
    for column in mixed.names:
        real, fake = mixed.frame[column], made.frame[column]
        if mixed.schema[column].is_numeric:
            assert fake.min() >= real.min(), column
            assert fake.max() <= real.max(), column
        else:
            assert set(fake) <= set(real), column
    cents = made.frame["income"] * 100
    assert np.allclose(cents, np.round(cents), atol=1e-6)


@makes
def test_the_same_seed_gives_the_same_rows(name, small, gappy):
    """Learnt from sixty rows with gaps, which are filled again."""
    one, again = (small(name).fit(gappy) for _ in range(2))
    rows = one.sample(20, seed=3)
    assert not rows.frame.isna().to_numpy().any()
    assert not one.impute(gappy).frame.isna().to_numpy().any()
    assert again.sample(20, seed=3).equals(rows)
    assert not one.sample(20, seed=4).equals(rows)
    # without a seed every call goes on, and the sequence of calls repeats
    one.draws_ = again.draws_
    first, second = one.sample(20), one.sample(20)
    assert not first.equals(second)
    assert again.sample(20).equals(first)
    assert not small(name, seed=1).fit(gappy).sample(20, seed=3).equals(rows)


def test_a_loaded_generator_makes_the_same_rows(fitted, gappy, tmp_path):
    loaded = load(fitted.save(tmp_path / "generator.fmw"))
    assert type(loaded) is type(fitted)
    assert loaded.get_params() == fitted.get_params()
    assert loaded.sample(25, seed=2).equals(fitted.sample(25, seed=2))
    assert loaded.impute(gappy).equals(fitted.impute(gappy))
    assert [path.name for path in tmp_path.iterdir()] == ["generator.fmw"]


def test_impute_fills_every_gap_and_leaves_the_rest_bit_for_bit(fitted, mixed, gappy):
    filled = fitted.impute(gappy)
    assert not filled.frame.isna().to_numpy().any()
    assert np.array_equal(filled.ids, gappy.ids)
    assert filled.label == gappy.label
    for column in gappy.names:
        before, after = gappy.frame[column], filled.frame[column]
        assert after.dtype == before.dtype, column
        there = before.notna()
        assert before[there].equals(after[there]), column
        real = mixed.frame[column]
        if mixed.schema[column].is_categorical:
            assert set(after[~there]) <= set(real), column
        else:
            assert after[~there].between(real.min(), real.max()).all(), column


def test_given_columns_come_back_exactly(fitted, mixed, mixed_frame):
    known = Table(np.arange(900, 940), mixed_frame(40, seed=5)[["city", "income", "member"]])
    made = fitted.sample(given=known, seed=0)
    assert np.array_equal(made.ids, known.ids)
    for column in known.names:
        assert made.frame[column].equals(known.frame[column]), column
    assert made.schema == mixed.schema
    assert not made.frame.isna().to_numpy().any()
    single = fitted.sample(15, given={"city": "Rome", "age": [33] * 15}, seed=0)
    assert set(single.frame["city"]) == {"Rome"}
    assert set(single.frame["age"]) == {33}
    assert single.frame["age"].dtype == mixed.frame["age"].dtype


@makes
def test_columns_with_nothing_to_learn(name, small, mixed_frame, quiet_table, tmp_path):
    frame = mixed_frame(60)[["income", "city"]].assign(
        constant=3.25, only=pd.Series(["x"] * 60, dtype=object), nothing=np.nan
    )
    table = quiet_table(np.arange(60), frame)
    generator = small(name).fit(table)
    made = generator.sample(20, seed=0)
    assert set(made.frame["constant"]) == {3.25}
    assert set(made.frame["only"]) == {"x"}
    assert made.frame["nothing"].isna().all()
    assert made.schema == table.schema
    holes = quiet_table(
        np.arange(60), frame.assign(constant=np.nan, only=None), schema=table.schema
    )
    filled = generator.impute(holes)
    assert set(filled.frame["constant"]) == {3.25}
    assert set(filled.frame["only"]) == {"x"}
    assert filled.frame["nothing"].isna().all()
    alone = load(small(name).fit(table.select(["constant", "only"])).save(tmp_path / "constants"))
    assert alone.sample(4, seed=0).frame.equals(table.frame[["constant", "only"]].iloc[:4])


@pytest.mark.daily("ctgan", "vae", "tabddpm")
@makes
def test_hundreds_of_categories(name, small):
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.arange(150), rng.integers(0, 150, 50)])
    shops = {"shop": [f"s{code:04}" for code in codes], "sum": np.round(codes / 10.0, 1)}
    table = Table(np.arange(200), shops)
    made = small(name, batch_size=200).fit(table).sample(30, seed=0)
    assert set(made.frame["shop"]) <= set(table.frame["shop"])


@pytest.mark.parametrize(
    ("name", "column"),
    [(n, "income") for n in ("ctgan", "ctabgan", "vae", "tabddpm", "vgain")]
    + [(n, "city") for n in ("ctgan", "vae", "vgain")],
)
def test_a_single_column(name, column, small, mixed_frame, quiet_table):
    table = Table(np.arange(60), mixed_frame(60)[[column]])
    generator = small(name).fit(table)
    made = generator.sample(12, seed=0)
    assert made.names == [column]
    assert made.n_rows == 12
    cells = pd.Series([None, table.frame[column].iloc[0]], dtype=object)
    holes = quiet_table([1, 2], {column: cells}, schema=table.schema)
    assert not generator.impute(holes).frame[column].isna().any()


@pytest.mark.parametrize(
    "name", ["ctgan", "vae", "tabddpm", pytest.param("vgain", marks=pytest.mark.slow)]
)
def test_training_stops_once_held_out_rows_are_met_no_better(name, small, mixed_frame):
    table = Table(np.arange(240), mixed_frame(240)[["age", "city", "default"]], label="default")
    generator = small(name, lr=1e-30, patience=1)  # steps so small that nothing changes
    narrow = {"hidden": 8} if isinstance(generator.get_params().get("hidden"), int) else {}
    longer = {"epochs": 100} if "epochs" in generator.get_params() else {"steps": 400}
    history = generator.set_params(**narrow, **longer).fit(table).history_
    assert history.stopped_early
    assert [at for at, _ in history.scores] == [history.best_step, history.steps]
    assert history.scores[0][1] == history.scores[1][1]


@pytest.mark.daily("ctgan", "vae", "tabddpm", "vgain")
@makes
def test_what_is_sampled_from_is_what_scored_best(name, small, mixed_frame, monkeypatch):
    kept: list[dict[str, torch.Tensor]] = []

    def spy(*args: Any, modules: list[nn.Module], **options: Any) -> History:
        history = train(*args, modules=modules, **options)  # its modules are the best, then
        kept.extend(copy.deepcopy(module.state_dict()) for module in modules)
        return history

    for room in (adversarial, gain, tabddpm, vae):
        monkeypatch.setattr(room, "train", spy)
    table = Table(np.arange(240), mixed_frame(240)[["age", "city", "default"]], label="default")
    fitted = small(name).fit(table)
    assert len(fitted.history_.scores) >= 1
    assert kept
    ours = [module.state_dict() for module in fitted.modules_.values()]
    for state in kept:
        same = [other for other in ours if other.keys() == state.keys()]
        assert any(all(torch.equal(state[k], other[k]) for k in state) for other in same)


@makes
def test_bad_input_is_named(name, small, mixed, quiet_table):
    from sklearn.base import clone

    again = clone(small(name, seed=7))
    assert again.get_params() == small(name, seed=7).get_params()
    with pytest.raises(ConfigError, match="did you mean 'seed'"):
        again.set_params(sed=3)
    with pytest.raises(NotFitted, match="fit"):
        small(name).sample(3)
    with pytest.raises(DataError, match="10 rows"):
        small(name).fit(mixed.take(np.arange(5)))
    with pytest.raises(DataError, match="every cell"):
        small(name).fit(quiet_table(np.arange(60), {"a": [np.nan] * 60}))
    with pytest.raises(DataError, match="image"):
        small(name).fit(mixed.with_columns(blocks={"photo": np.zeros((120, 1, 4, 4), np.uint8)}))
    with pytest.raises(ConfigError, match="seed"):
        small(name, seed=-1).fit(mixed)


PUBLISHED: dict[str, dict[str, Any]] = {
    "ctgan": {"pac": 10, "dropout": 0.5, "latent": 128, "hidden": 256},
    "ctabgan": {
        **{"channels": 64, "lr": 2e-4, "latent": 100, "epochs": 150, "batch_size": 500},
        **{"hidden": 256, "epsilon": 1e-8, "penalty": 0.0},
    },
    "tablegan": {"channels": 64, "lr": 2e-4, "beta2": 0.999, "epsilon": 1e-8, "numeric": "minmax"},
    "vae": {"latent": 128, "batch_size": 500, "draw": False},
    "tabddpm": {"batch_size": 4096, "levels": 0, "condition": 0.0, "sampling_steps": 1000},
}


for _name in ("gain", "vgain", "vfgain"):
    PUBLISHED[_name] = {"hint": 0.9, "alpha": 100.0, "refine": 0, "steps": 10_000, "patience": 0}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_form_is_a_preset(name, mixed):
    kind = type(make(name))
    published = kind.paper(device="cpu")
    assert {key: published.get_params()[key] for key in PUBLISHED[name]} == PUBLISHED[name]
    assert make(name, preset="paper", device="cpu").get_params() == published.get_params()
    small = {"epochs": 1, "steps": 2, "channels": 8, "sampling_steps": 3}
    if name == "tabddpm":
        small["hidden"] = (16, 16)
    changes = {key: value for key, value in small.items() if key in published.get_params()}
    assert kind.paper(**changes).fit(mixed).sample(5, seed=0).schema == mixed.schema


@pytest.mark.slow
@each
def test_a_known_mixture_is_recovered(name):
    rng = np.random.default_rng(0)
    group = rng.choice(3, 2000, p=[0.5, 0.3, 0.2])
    table = Table(
        np.arange(2000),
        {
            "x": np.array([-4.0, 0.0, 5.0])[group] + rng.normal(size=2000) * 0.5,
            "group": np.array(["a", "b", "c"])[group],
        },
    )
    made = make(name, device="cpu").fit(table).sample(2000, seed=0).frame
    assert ks_2samp(made["x"], table.frame["x"]).statistic < 0.12
    shares = made["group"].value_counts(normalize=True)
    assert (shares - table.frame["group"].value_counts(normalize=True)).abs().max() < 0.1
    centres = made.groupby("group")["x"].median()
    assert np.allclose(centres[["a", "b", "c"]], [-4, 0, 5], atol=1.0)
