"""Imputed embeddings of a party that does not know a row."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict

import fedmend as fm
from fedmend.federation import wire
from fedmend.split.features import among, is_known
from fedmend.split.imputed import DRAWS, RIDGES, ImputedEmbeddings, _best_ridge


def gaussian(n=400, seed=0, dims=(3, 4)):
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(sum(dims), sum(dims)))
    joined = torch.from_numpy(rng.normal(size=(n, sum(dims))) @ mix)
    names = ["a", "b", "c"][: len(dims)]
    return dict(zip(names, joined.split(list(dims), 1), strict=True))


def test_the_mean_of_the_draws_is_ridge_regression():
    both = gaussian()
    sides = ImputedEmbeddings.of(both)
    draws = sides.draws({"a": both["a"][:5]})
    mean = torch.stack([each["b"] for each in draws]).mean(0)
    x, y = both["a"].numpy(), both["b"].numpy()
    unit = np.square(x - x.mean(0)).sum() / x.shape[1]
    reference = Ridge(alpha=sides.ridges["a"] * unit).fit(x, y)
    np.testing.assert_allclose(mean.numpy(), reference.predict(x[:5]), atol=1e-8)
    assert all(torch.equal(each["a"], both["a"][:5]) for each in draws)


@pytest.mark.parametrize("known", [["a"], ["c"], ["a", "c"]])
def test_draws_have_the_covariance_that_is_left_once_the_others_are_known(known):
    """It is the inverse of that block of the inverse: another formula for the same matrix."""
    three = gaussian(300, dims=(2, 3, 2))
    sides = ImputedEmbeddings.of(three)
    rest = [name for name in three if name not in known]
    at, of = sides._at(known), sides._at(rest)
    noisy = np.cov(torch.cat(list(three.values()), 1).numpy(), rowvar=False)
    ridge = np.exp(np.mean([np.log(sides.ridges[name]) for name in known]))
    noisy[at, at] += ridge * np.diag(noisy)[at].mean()
    expected = np.linalg.inv(np.linalg.inv(noisy)[np.ix_(of, of)])
    _, root = sides._conditional({name: three[name][:1] for name in known}, rest)
    np.testing.assert_allclose((root @ root.T).numpy(), expected, rtol=1e-8)
    draws = sides.draws({name: three[name][:1] for name in known})
    drawn = torch.stack([torch.cat([each[name][0] for name in rest]) for each in draws])
    noise = torch.linalg.solve(root, (drawn - drawn.mean(0)).T).T
    assert torch.allclose(noise[: DRAWS // 2], -noise[DRAWS // 2 :])
    assert 0.5 < float(noise.square().mean()) < 1.6  # of numbers with variance 1


@pytest.mark.parametrize(("rows", "seed"), [(12, 0), (7, 1), (7, 2)])
def test_ridges_are_those_of_leaving_one_out(rows, seed):
    both = gaussian(rows, seed)
    x, y = (both[name] - both[name].mean(0) for name in ("a", "b"))
    found = _best_ridge(x, y)
    unit = float(x.square().sum()) / x.shape[1]
    misses = {}
    for ridge in RIDGES:
        guess = cross_val_predict(Ridge(alpha=ridge * unit), x.numpy(), y.numpy(), cv=LeaveOneOut())
        misses[ridge] = np.square(guess - y.numpy()).mean()
    assert misses[found] == pytest.approx(min(misses.values()), rel=1e-9)


def test_a_fixed_embedding_is_taken_as_it_is():
    both = gaussian()
    fixed = torch.arange(4.0)
    (only,) = ImputedEmbeddings.of(both, {"b": fixed}).draws({"a": both["a"][:2].float()})
    assert torch.equal(only["b"], fixed.expand(2, -1)) and only["b"].dtype == torch.float32


@given(rows=st.integers(2, 12), seed=st.integers(0, 100))
def test_few_rows_give_finite_draws_and_survive_the_wire(rows, seed):
    both = gaussian(rows, seed)
    sides = ImputedEmbeddings.of(both)
    again = ImputedEmbeddings.from_wire(wire.decode(wire.encode(sides.to_wire())))
    one, other = sides.draws({"b": both["b"]}), again.draws({"b": both["b"]})
    assert all(torch.isfinite(each["a"]).all() for each in one)
    assert all(torch.equal(x["a"], y["a"]) for x, y in zip(one, other, strict=True))


def test_names_of_segments():
    some = among(["bank", "telco"])
    assert is_known(some, "bank") and not is_known(some, "shop")
    assert is_known("aligned", "shop") and is_known("shop", "shop") and not is_known("bank", "shop")


# ---------------------------------------------------------------- in a network


@pytest.mark.slow
def test_rows_of_one_party_are_better_guessed_than_filled(make_fed, make_frame):
    """telco's column d decides with the bank's a; here they are correlated."""
    frame = make_frame(600)
    frame["d"] = 0.9 * frame["a"] + 0.45 * frame["d"]
    frame["y"] = np.where(frame["a"] + frame["d"] > 0, "yes", "no")
    columns = {"bank": ["a", "b", "y"], "telco": ["c", "d"]}
    fed = make_fed(frame, aligned=150, columns=columns)
    model = fm.VFL(epochs=40, seed=1).fit(fed)
    own = fed.engine.site("bank").alignments["train"].unaligned
    truth = (fed.engine.site("bank").tables["train"].y.to_numpy()[own] == "yes").astype(int)

    def loss(probabilities):
        return -np.log(probabilities[np.arange(len(truth)), truth]).mean()

    guessed = loss(model.predict_proba(fed, rows="bank"))
    model.network_.has_imputed = False
    assert guessed < loss(model.predict_proba(fed, rows="bank"))


def test_nobody_who_lacks_the_rows_is_asked(make_fed, make_frame):
    fed = make_fed(make_frame(200), aligned=80)
    model = fm.VFL(epochs=2).fit(fed)

    def crossed(party):
        return sum(each.count for each in fed.ledger if party in (each.sender, each.receiver))

    before = crossed("telco"), crossed("bank")
    assert model.predict_proba(fed, rows="bank").shape == (120, 2)
    assert crossed("telco") == before[0] and crossed("bank") > before[1]
