"""What the generators learn of a table of three groups, each from one small fit."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.generate import load, make
from fedmend.generate.convolutional import SquareCritic
from fedmend.generate.ctgan import CTGAN
from fedmend.generate.tablegan import TableGAN

FEW_MODES = False
# As little training as shows what each can do.
GAN: dict[str, Any] = {"batch_size": 100, "latent": 8, "average": 0.98, "candidates": 2000}
ENOUGH: dict[str, dict[str, Any]] = {
    "ctgan": {**GAN, "epochs": 60, "hidden": 48, "lr": 2e-3},
    "ctabgan": {**GAN, "epochs": 25, "channels": 16, "penalty": 0.02, "hidden": 32, "lr": 2e-3},
    "tablegan": {**GAN, "epochs": 40, "channels": 16, "lr": 2e-3, "average": 0.97},
    "vae": {"epochs": 200, "latent": 4, "hidden": (64, 64), "patience": 10},
    "tabddpm": {
        **{"hidden": (64, 64), "steps": 800, "lr": 5e-3, "batch_size": 128, "sampling_steps": 25}
    },
    "gain": {"hidden": 32, "steps": 200, "lr": 6e-3, "refine": 1, "patience": 0},
    "vgain": {"hidden": 32, "latent": 4, "steps": 300, "lr": 4e-3, "refine": 1, "patience": 0},
}
CENTRES = {"a": -4.0, "b": 0.0, "c": 5.0}
# One here, the others every week: tests/generate/test_generators.py runs them all.
LATER = {"ctgan", "ctabgan", "tablegan", "tabddpm", "gain", "vgain"}
each = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LATER)) for name in ENOUGH]
)


@cache
def groups(rows: int = 500, seed: int = 0) -> Table:
    """x lies around its group's centre, flag nearly says whether it is a, debt is often none."""
    rng = np.random.default_rng(seed)
    group = rng.choice(3, rows, p=[0.5, 0.3, 0.2])
    flag = (group > 0) ^ (rng.random(rows) < 0.05)
    debt = np.where(rng.random(rows) < 0.5, 0.0, np.round(np.exp(rng.normal(6, 1.2, rows)), 2))
    frame = {
        "x": np.array(list(CENTRES.values()))[group] + rng.normal(size=rows) * 0.5,
        "group": np.array(list(CENTRES))[group],
        "flag": np.where(flag, "yes", "no"),
        "debt": debt,
    }
    return Table(np.arange(rows), frame, label="group")


@cache
def learnt(name: str) -> Any:
    torch.set_num_threads(1)
    return make(name, device="cpu", **ENOUGH[name]).fit(groups())


@each
def test_groups_and_their_values_are_learnt(name):
    made, real = learnt(name).sample(2000, seed=0).frame, groups().frame
    shares = made["group"].value_counts(normalize=True)
    assert (shares - real["group"].value_counts(normalize=True)).abs().max() < 0.1
    medians = made.groupby("group")["x"].median()
    assert np.allclose(medians[list(CENTRES)], list(CENTRES.values()), atol=1.2)
    assert ((made["flag"] == "yes") == (made["group"] != "a")).mean() > 0.8
    # a value that many rows share comes out exactly
    assert abs((made["debt"] == 0).mean() - 0.5) < 0.15


@each
def test_known_columns_steer_the_others(name):
    made = learnt(name).sample(300, given={"group": list(CENTRES) * 100}, seed=0).frame
    medians = made.groupby("group")["x"].median()
    assert np.allclose(medians[list(CENTRES)], list(CENTRES.values()), atol=1.2)
    assert made["x"].nunique() > 100
    back = learnt(name).sample(given={"x": list(CENTRES.values()) * 50}, seed=0).frame
    assert (back["group"] == list(CENTRES) * 50).mean() > 0.7


@each
def test_gaps_take_what_goes_with_the_row_and_one_draw_keeps_the_spread(name):
    truth = groups(120, seed=1).frame
    gaps = truth.assign(
        x=truth["x"].mask(truth.index < 60), group=truth["group"].mask(truth.index >= 60)
    )
    holes = Table(np.arange(120), gaps, schema=groups().schema)
    filled, drawn = (learnt(name).impute(holes, draws=draws).frame for draws in (None, 1))
    error, single = (
        np.sqrt(np.mean((made["x"] - truth["x"])[:60] ** 2)) for made in (filled, drawn)
    )
    assert error < 0.35 * truth["x"].std()
    assert error < single
    assert (filled["group"] == truth["group"])[60:].mean() > 0.75


# --- CTGAN ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_category_is_asked_for_by_the_conditional_vector():
    fitted = learnt("ctgan")
    encoder = fitted.encoder_
    wanted = encoder.encode(encoder.raw(pd.DataFrame({"group": ["c", "a"] * 150})))
    made = encoder.decode(fitted._generate(300, wanted, torch.Generator().manual_seed(0)))
    # before anything is pasted: the network itself makes the rare category
    assert np.array_equal(made["group"], encoder.decode(wanted.values)["group"])
    medians = pd.Series(made["x"]).groupby(made["group"]).median()
    assert np.allclose(medians, [-4, 5], atol=1)
    assert len(pd.DataFrame(made).round(6).drop_duplicates()) > 290


def test_several_columns_are_matched():
    both = learnt("ctgan").sample(200, given={"group": "b", "flag": "no"}, seed=0).frame
    assert set(both["group"]) == {"b"}
    assert set(both["flag"]) == {"no"}
    assert both["x"].between(-2, 2).mean() > 0.6
    assert both["x"].nunique() > 10


def test_rows_that_know_different_columns_are_filled_each_by_its_own():
    given = pd.DataFrame(
        {"x": [5.0, np.nan, np.nan, -4.0] * 25, "group": [None, "c", None, "a"] * 25}
    )
    made = learnt("ctgan").sample(given=given, seed=1).frame
    assert (made["x"].iloc[::4] == 5.0).all()
    assert (made["group"].iloc[1::4] == "c").all()
    assert made["x"].iloc[1::4].median() > 3
    assert (made["group"].iloc[::4] == "c").mean() > 0.6
    assert set(made["group"].iloc[2::4]) >= {"a", "b"}


def test_a_loaded_one_knows_the_frequencies(tmp_path):
    fitted = learnt("ctgan")
    loaded: Any = load(fitted.save(tmp_path / "ctgan"))
    assert torch.equal(loaded.conditions_.counts, fitted.conditions_.counts)
    given = {"group": ["a", "c"], "x": [0.0, 1.0]}
    assert loaded.sample(given=given, seed=0).equals(fitted.sample(given=given, seed=0))


def test_without_conditions_and_with_a_category_that_is_nearly_empty():
    x = groups().frame["x"]
    few: dict[str, Any] = {"epochs": 1, "batch_size": 50, "hidden": 8, "device": "cpu"}
    generator = CTGAN(**few).fit(Table(groups().ids, {"x": x, "y": x * 2 + 1}))
    assert generator.conditions_.width == 0
    assert generator.sample(5, given={"x": 1.0}, seed=0).n_rows == 5
    note = pd.Series([None] * len(x), dtype=object)  # so that no held-out row shows it
    note.iloc[:4] = ["x", "y", "x", "y"]
    generator = CTGAN(**few).fit(Table(groups().ids, {"x": x, "note": note}))
    assert set(generator.sample(50, seed=0).frame["note"]) <= {"x", "y"}


@pytest.mark.slow
def test_gaps_do_not_show_in_what_is_learnt():
    """A column whose cells are missing, and another that says where, keep their distributions."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 600)
    size = np.where(group == 0, -3.0, 3.0) + rng.normal(size=600) * 0.3
    size[rng.random(600) < np.where(group == 0, 0.7, 0.1)] = np.nan
    table = Table(np.arange(600), {"size": size, "group": np.where(group == 0, "a", "b")})
    made = CTGAN(**{**ENOUGH["ctgan"], "epochs": 60}, device="cpu").fit(table)
    frame = made.sample(1000, seed=0).frame
    assert abs((frame["group"] == "a").mean() - (group == 0).mean()) < 0.1
    # of the 300 rows of group a only 90 show their size
    assert abs((frame["size"] < 0).mean() - (group == 0).mean()) < 0.15


# --- CTAB-GAN and TableGAN ------------------------------------------------------------------


def test_mixed_columns_have_a_mode_of_their_own_and_conditions_cover_all_modes(small):
    fitted: Any = small("ctabgan", epochs=1).fit(groups(200))
    codec = fitted.encoder_._coded["debt"].codec
    assert codec.centres[codec.scales == 0].tolist() == [0.0]
    assert len(codec.log) == 2
    assert {span.column for span in fitted._conditional()} == {"x", "debt", "group", "flag"}
    widths = sum(span.stop - span.start for span in fitted._conditional())
    assert fitted.conditions_.width == widths
    # the mode of a number says not all there is to know about it
    assert fitted._whole_columns().sum() == 5


@pytest.mark.slow
def test_a_mixed_column_is_learnt_by_its_logarithm():
    made, real = learnt("ctabgan").sample(2000, seed=0).frame["debt"], groups().frame["debt"]
    assert abs(np.log(made[made > 0]).median() - np.log(real[real > 0]).median()) < 0.6


def test_the_critic_is_told_the_conditions(small, monkeypatch):
    seen: list[torch.Tensor] = []
    features = SquareCritic.features

    def spy(critic: SquareCritic, rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows.detach().clone())
        return features(critic, rows)

    monkeypatch.setattr(SquareCritic, "features", spy)
    small("ctabgan", epochs=1).fit(groups(200))
    real, asked = seen[0].chunk(2, dim=1)
    assert (asked.sum(1) == 1).all()
    assert (asked.sum(0) > 0).sum() > 3
    assert ((real * asked).sum(1) == 1).all()  # real rows were drawn for their conditions
    assert torch.equal(seen[1].chunk(2, dim=1)[1], asked)  # and made rows asked for the same


def test_the_classifiers_target_and_the_published_optimizer():
    with pytest.raises(ConfigError, match="did you mean 'debt'"):
        TableGAN(target="dept", device="cpu").fit(groups())
    small: dict[str, Any] = {"epochs": 1, "channels": 4, "device": "cpu"}
    published = TableGAN.paper(**small).fit(groups(120))
    assert published._target().spans[0].column == "group"
    settings = published._optimizer(torch.nn.Linear(1, 1)).spec
    assert (settings.lr, settings.betas, settings.eps) == (2e-4, (0.5, 0.999), 1e-8)
    assert {span.activation for span in published.encoder_.of("x")} == {"tanh"}
    assert TableGAN(target="x", **small).fit(groups(120))._target().spans[0].column == "x"
    assert not TableGAN(**small).fit(groups(120).with_label(None))._target().is_used


# --- TVAE -----------------------------------------------------------------------------------


def test_candidates_are_weighed_by_likelihood_and_the_search_stays_near_the_prior():
    fitted = learnt("vae")
    encoder = fitted.encoder_
    known = encoder.encode(encoder.raw(groups().frame.iloc[:200]))
    known.observed[3, 0] = False
    values, observed = (
        torch.from_numpy(part) for part in (known.values, encoder.spread(known.observed))
    )
    pool = torch.randn(5, fitted.latent)
    with torch.no_grad():
        fast = fitted._likelihood(pool, values[:7], observed[:7])
        slow = torch.stack(
            [-fitted._misfit(code.expand(7, -1), values[:7], observed[:7]) for code in pool], 1
        )
    # equal up to a constant for each row
    assert torch.allclose(fast - fast[:, :1], slow - slow[:, :1], rtol=1e-3, atol=1e-2)
    stream = torch.Generator().manual_seed(0)
    known.observed[:] = False
    free = fitted._search(known, stream)  # nothing known: only the prior draws
    assert free.norm(dim=1).mean() < 0.95 * np.sqrt(fitted.latent)
    known.observed[:, 0] = True
    observed = torch.from_numpy(encoder.spread(known.observed))
    code = fitted._search(known, stream)
    pool = torch.randn(200, fitted.latent, generator=stream)
    with torch.no_grad():
        met, any_code = (fitted._misfit(z, values, observed).mean() for z in (code, pool))
    assert met < any_code
    assert code.norm(dim=1).mean() < 1.5 * np.sqrt(fitted.latent)


# --- TabDDPM --------------------------------------------------------------------------------


@pytest.mark.slow
def test_in_painting_steers_the_others_too():
    given = {"x": list(CENTRES.values()) * 50}
    few = {**ENOUGH["tabddpm"], "steps": 400, "condition": 0.0}
    model = make("tabddpm", device="cpu", **few)
    back = model.fit(groups().select(["x", "group"])).sample(given=given, seed=0).frame
    assert (back["group"] == list(CENTRES) * 50).mean() > 0.75
