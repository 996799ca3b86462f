"""Federated ridge and logistic regression against scikit-learn on the joined columns."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression, Ridge
from tests.methods.completion.federations import numbered, stored

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import (
    AlignmentError,
    ConfigError,
    DataError,
    FedmendWarning,
    PartyFailed,
    PrivacyWarning,
    Refused,
)
from fedmend.federation import Policy
from fedmend.federation.kinds import KINDS
from fedmend.methods.completion import linear
from fedmend.methods.completion.linear import LinearModels, LogisticTarget, rotate, secret_rotation
from fedmend.secure.correlation import rank_correlation

N, ALIGNED = 320, 200


def joined(seed=0, n=N):
    """A's columns (a gap, a category, a copied and a constant column among them) and B's."""
    rng = np.random.default_rng(seed)
    a = pd.DataFrame(rng.normal(size=(n, 4)) * [1, 5, 0.1, 2] + 3, columns=list("abcd"))
    a["copy"] = 2 * a["a"] + 1
    a["flat"] = 7.0
    a["city"] = rng.choice(["Ulm", "Bonn", "Kiel"], n)
    signal = a["a"] + 0.3 * a["b"] + 2 * (a["city"] == "Ulm")
    a.loc[rng.choice(n, 30, replace=False), "d"] = np.nan
    plain = rng.normal(size=n)
    b = pd.DataFrame(
        {
            "income": 1000 + 300 * signal + 200 * plain,
            "rate": plain + 0.5 * signal + rng.normal(size=n),
            "visits": np.rint(np.exp(0.4 * plain + 0.1 * signal)).astype(int),
            "plan": np.array(["s", "m", "l"])[np.digitize(signal + plain, [3.6, 5.5])],
            "churn": np.where(signal - plain + rng.normal(size=n) > 4.5, "yes", "no"),
        }
    )
    return a, b


def federation(a, b, aligned=ALIGNED, **policies):
    """B has the first rows only; A has all of them, in an order of its own."""
    order = np.random.default_rng(5).permutation(len(a))
    return numbered(a, b, aligned, order=order, policies=policies)


def design(a):
    table = Table(np.arange(len(a)), a)
    return (
        Encoder(dtype="float64", missing_indicator=True).fit(table).transform(table, None).onehot()
    )


def standard(column, rows=slice(0, ALIGNED)):
    return (column - column[rows].mean()) / column[rows].std(ddof=0)


# ---------------------------------------------------------------------------------- ridge


@pytest.mark.parametrize(("alpha", "mode"), [(1e-3, "dealer"), (100.0, "dealer"), (1.0, "bfv")])
def test_ridge_of_all_targets_is_scikit_learns(alpha, mode):
    a, b = joined()
    fed = federation(a, b)
    with LinearModels(
        fed, "bank", "telco", targets=["income", "rate", "visits"], alpha=alpha, mode=mode
    ) as models:
        report = models.fit()
        models.predict()
    assert report.fitted == ["income", "rate", "visits"]
    x = design(a)
    for name in report.fitted:
        reference = Ridge(alpha=alpha).fit(x[:ALIGNED], standard(b[name])[:ALIGNED])
        found = stored(fed, models)[name]
        assert found.outputs[ALIGNED:] == pytest.approx(reference.predict(x[ALIGNED:]), abs=1e-6)
        assert np.isnan(found.outputs[:ALIGNED]).all()
        residuals = standard(b[name])[:ALIGNED] - reference.predict(x[:ALIGNED])
        deviation = np.sqrt((residuals**2).mean())
        assert found.spread[ALIGNED:] == pytest.approx(np.full(N - ALIGNED, deviation), rel=1e-5)


def test_a_line_goes_on_beyond_the_aligned_rows_only_if_it_may():
    a, b = joined()
    high = a["b"][:ALIGNED].max()
    width = high - a["b"][:ALIGNED].min()
    for row in range(ALIGNED, N, 10):
        a.loc[row + 1] = a.loc[row]
        a.loc[row : row + 1, "b"] = [high + 0.8 * width, high]
    found = {}
    for beyond in (True, False):
        fed = federation(a, b)
        with LinearModels(fed, "bank", "telco", targets=["income"], beyond=beyond) as models:
            assert models.at_a.left_out() == []
            models.fit()
            models.predict()
        found[beyond] = stored(fed, models)["income"].outputs[ALIGNED : ALIGNED + 2]
    assert found[False][0] == pytest.approx(found[False][1], abs=1e-9)
    assert found[True][0] > found[True][1] + 1


def test_rows_that_join_later_and_gaps_in_a_target_train_as_well():
    a, b = joined()
    b["rate"] = b["rate"].where(np.arange(N) % 7 > 0)
    fed = federation(a, b)
    x = design(a)
    y = standard(b["income"])
    with LinearModels(fed, "bank", "telco", targets=["income", "rate"]) as models:
        held = stored(fed, models)
        models.fit()
        models.predict()
        first = held["income"].outputs[ALIGNED:].copy()
        joining = np.array([ALIGNED, ALIGNED + 3, N - 1])
        held.adopt("income", joining, held["income"].outputs[joining] + 1.0)
        assert len(held.waiting("income")) == N - ALIGNED - 3
        models.fit()
        models.predict(rows="all")
    rows = np.concatenate([np.arange(ALIGNED), joining])
    labels = np.concatenate([y[:ALIGNED], first[joining - ALIGNED] + 1.0])
    reference = Ridge().fit(x[rows], labels)
    assert held["income"].outputs == pytest.approx(reference.predict(x), abs=1e-6)
    seen = np.flatnonzero(b["rate"][:ALIGNED].notna())
    values = b["rate"][seen]
    reference = Ridge().fit(x[seen], (values - values.mean()) / values.std(ddof=0))
    assert held["rate"].outputs == pytest.approx(reference.predict(x), abs=1e-6)


# ---------------------------------------------------------------------------------- logistic


@pytest.mark.daily("dealer")
@pytest.mark.parametrize("mode", ["dealer", "bfv"])
def test_logistic_regression_is_scikit_learns(mode):
    a, b = joined()
    fed = federation(a, b)
    with LinearModels(
        fed, "bank", "telco", targets=["plan", "churn"], alpha=0.5, tolerance=1e-5, mode=mode
    ) as models:
        models.fit()
        models.predict()
    x = design(a)
    for name in ("plan", "churn"):
        reference = LogisticRegression(C=2.0, tol=1e-10, max_iter=3000)
        reference.fit(x[:ALIGNED], b[name][:ALIGNED])
        target = stored(fed, models)[name]
        assert list(target.decode(np.arange(len(target.classes)))) == list(reference.classes_)
        assert target.outputs[ALIGNED:] == pytest.approx(
            reference.predict_proba(x[ALIGNED:]), abs=1e-4
        )
        agrees = target.decode(target.outputs[ALIGNED:].argmax(1)).to_numpy() == reference.predict(
            x[ALIGNED:]
        )
        assert agrees.mean() > 0.98


def test_logistic_with_pseudo_labels():
    a, b = joined()
    fed = federation(a, b)
    with LinearModels(fed, "bank", "telco", targets=["churn", "income"], tolerance=1e-5) as models:
        held = stored(fed, models)
        joining = np.arange(ALIGNED, N, 4)
        held.adopt("churn", joining, np.arange(len(joining)) % 2)
        models.fit()
        models.predict()
    x = design(a)
    rows = np.concatenate([np.arange(ALIGNED), joining])
    labels = np.concatenate(
        [(b["churn"][:ALIGNED] == "yes").astype(int), np.arange(len(joining)) % 2]
    )
    reference = LogisticRegression(tol=1e-10, max_iter=3000).fit(x[rows], labels)
    assert held["churn"].outputs[ALIGNED:] == pytest.approx(
        reference.predict_proba(x[ALIGNED:]), abs=1e-4
    )


def test_a_rare_class_converges_within_the_steps(whole_training):
    a, b = joined(n=1500)
    b["rare"] = np.where(b["income"] > np.quantile(b["income"], 0.985), "yes", "no")
    fed = federation(a, b, aligned=1400)
    stages = []
    with LinearModels(fed, "bank", "telco", targets=["rare"]) as models:
        models.fit(progress=lambda stage, done, total: stages.append((stage, done)))
        models.predict()
    assert 2 < max(done for stage, done in stages if stage == "logistic") < 30
    x = design(a)
    reference = LogisticRegression(tol=1e-10, max_iter=9000).fit(x[:1400], b["rare"][:1400])
    assert stored(fed, models)["rare"].outputs[1400:] == pytest.approx(
        reference.predict_proba(x[1400:]), abs=0.01
    )


# ---------------------------------------------------------------------------------- who sees what


def test_what_crosses_and_to_whom():
    a, b = joined()
    fed = federation(a, b)
    with LinearModels(fed, "bank", "telco", targets=["income", "plan"]) as models:
        models.fit()
        models.predict()
    entries = fed.ledger.entries()
    kinds = {entry.kind for entry in entries}
    assert kinds <= {"control", "count", "masked", "statistic"} <= set(KINDS)
    # A is told sizes; what it gets beyond keys and settings would be a number per row or target
    to_a = [entry for entry in entries if entry.receiver == "bank"]
    assert {entry.kind for entry in to_a} == {"control"}
    assert max(entry.bytes for entry in to_a) < 2000
    # the one statistic goes to B in an encrypted message
    statistics = [entry for entry in entries if entry.kind == "statistic"]
    assert statistics
    assert all(entry.sealed_for == "telco" for entry in statistics)


def test_b_cannot_undo_the_rotation_and_it_is_new_every_time():
    a, _ = joined()
    x = design(a)
    one, other = rotate(x), rotate(x)
    n, r = one.values.shape
    assert r == np.linalg.matrix_rank(x - x.mean(axis=0))
    assert one.values.T @ one.values == pytest.approx(n * np.eye(r), abs=1e-6 * n)
    assert np.abs(one.values - other.values).max() > 0.1
    assert (one.values**2).sum(axis=1).max() <= n * (1 + 1e-9)
    assert np.linalg.eigvalsh(one.penalty) == pytest.approx(np.linalg.eigvalsh(other.penalty))
    turn = secret_rotation(6)
    assert turn @ turn.T == pytest.approx(np.eye(6), abs=1e-12)
    back = np.linalg.pinv(x - x.mean(axis=0)) @ one.values  # w = back @ u
    assert back.T @ back == pytest.approx(one.penalty, rel=1e-6, abs=1e-9)


def test_plain_mode_is_refused_by_default_and_gives_the_same():
    a, b = joined()
    fed = federation(a, b)
    with (
        pytest.warns(PrivacyWarning, match="in the clear"),
        pytest.raises(Refused, match="row"),
        LinearModels(fed, "bank", "telco", targets=["income"], mode="plain") as models,
    ):
        models.fit()
    open_policy = Policy(allow=frozenset(KINDS))
    fed = federation(a, b, bank=open_policy, telco=open_policy)
    with (
        pytest.warns(PrivacyWarning, match="in the clear"),
        LinearModels(fed, "bank", "telco", targets=["income"], mode="plain") as models,
    ):
        models.fit()
        models.predict()
    x = design(a)
    reference = Ridge().fit(x[:ALIGNED], standard(b["income"])[:ALIGNED]).predict(x[ALIGNED:])
    assert stored(fed, models)["income"].outputs[ALIGNED:] == pytest.approx(reference, abs=1e-6)


def test_a_scope_of_products_lists_no_row_of_a_table():
    """A coordinator that cheats opens one as long as it likes, and asks for a mean over it."""
    a, b = joined()
    fed = federation(a, b)
    with LinearModels(fed, "bank", "telco", targets=["income"]) as models:
        view = models.scoped("rows", 5000)
        site = fed.engine.sites["telco"]
        rows = site.alignments[view.scope].aligned
        assert len(rows) == 5000
        with pytest.raises(DataError, match="row positions"):
            site.table_of(view.scope).take(rows)
        with pytest.raises(PartyFailed, match="out-of-bounds"):
            rank_correlation(view, "bank", "telco", mode="dealer")
        with pytest.raises(ConfigError, match="is not one of"):
            models.at_b.open_scope("train", 5000)


# ---------------------------------------------------------------------------------- bad input


def test_targets_that_cannot_be_learnt_are_reported_and_the_others_survive():
    a, b = joined()
    b["flat"] = 3
    b["empty"] = np.nan
    b["huge"] = np.where(np.arange(len(b)) == 3, -1e308, b["income"])
    with pytest.warns(FedmendWarning, match="all 200 cells are missing"):
        fed = federation(a, b)
    wanted = ["flat", "income", "empty", "huge"]
    with LinearModels(fed, "bank", "telco", targets=wanted) as models:
        report = models.fit()
        models.predict()
    assert report.fitted == ["income"]
    assert "one value only" in report.failed["flat"]
    assert "no value" in report.failed["empty"]
    assert "squares" in report.failed["huge"]
    assert np.isfinite(stored(fed, models)["income"].outputs[ALIGNED:]).all()


def test_a_target_whose_equations_fail_leaves_the_others_alone(monkeypatch):
    a, b = joined()
    fed = federation(a, b)
    solve = linear.solve_ridge

    def failing(moments, target, penalty):
        if target == 1:
            raise np.linalg.LinAlgError("singular")
        return solve(moments, target, penalty)

    monkeypatch.setattr(linear, "solve_ridge", failing)
    with LinearModels(fed, "bank", "telco", targets=["income", "rate", "visits"]) as models:
        report = models.fit()
        models.predict()
    assert report.fitted == ["income", "visits"]
    assert "no solution" in report.failed["rate"]
    held = stored(fed, models)
    assert held["rate"].outputs is None
    assert np.isfinite(held["visits"].outputs[ALIGNED:]).all()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"mode": "published"}, "mode must be one of"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"targets": ["salary"]}, "no such column"),
    ],
)
def test_bad_calls_are_refused_with_a_mend(how, message):
    with pytest.raises((ConfigError, DataError), match=message):
        LinearModels(federation(*joined()), "bank", "telco", **how)


def test_parties_that_cannot_be_learnt_from_are_named():
    a, b = joined()
    with pytest.raises(ConfigError, match="two parties"):
        LinearModels(federation(a, b), "bank", "bank")
    constant = federation(pd.DataFrame({"x": np.ones(N)}), b)
    with (
        LinearModels(constant, "bank", "telco", targets=["income"]) as models,
        pytest.raises(DataError, match="no column varies"),
    ):
        models.fit()
    few = federation(a, b, bank=Policy(min_intersection=500))
    with pytest.raises(AlignmentError, match="min_intersection"):
        LinearModels(few, "bank", "telco")


def test_the_target_store_keeps_its_books():
    a, b = joined()
    fed = federation(a, b)
    with LinearModels(fed, "bank", "telco", targets=["income"]) as models:
        held = stored(fed, models)
        with pytest.raises(ConfigError, match="adopt a row once"):
            held.adopt("income", np.array([ALIGNED, ALIGNED]), np.zeros(2))
        with pytest.raises(ConfigError, match="pseudo-labels are for rows"):
            held.adopt("income", np.array([0]), np.zeros(1))
        held.adopt("income", np.array([ALIGNED]), np.zeros(1))
        with pytest.raises(ConfigError, match="adopt a row once"):
            held.adopt("income", np.array([ALIGNED]), np.zeros(1))
        held.release("income")
        assert len(held.waiting("income")) == N - ALIGNED
        models.fit()
    # only the target store is left behind
    left = [key for key in fed.engine.sites["telco"].state if key.startswith(models.model)]
    assert left == [f"{models.model}:targets"]
    assert list(fed.engine.sites["bank"].alignments) == ["train"]
    values = held["income"].decode(held["income"].truth[:ALIGNED])
    assert values.to_numpy() == pytest.approx(b["income"][:ALIGNED].to_numpy())


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("far", [0.5, 20.0, 60.0])
def test_the_length_of_a_step_is_the_minimum_along_it(width, far):
    """Also from scores so far off that Newton's own step would leave all rows behind."""
    rng = np.random.default_rng(0)
    rows, classes = 60, max(2, width)
    labels = rng.integers(0, classes, rows)
    target = LogisticTarget.__new__(LogisticTarget)
    hot = labels[:, None] == (np.array([1]) if width == 1 else np.arange(width))
    target._hot = hot.astype(np.float64)
    target.scores = far * (1 - 2 * target._hot) + rng.normal(size=(rows, width))
    target._penalty = 0.01 * np.eye(2)
    target.parameters = rng.normal(size=(2, width))
    direction = rng.normal(size=(2, width))
    change = (2 * target._hot - 1) * rng.uniform(0.1, 3.0, size=(rows, width))

    def loss(length):
        scores = target.scores + length * change
        if width == 1:
            lost = np.logaddexp(0, np.where(target._hot == 1, -scores, scores)).sum()
        else:
            lost = (logsumexp(scores, axis=1) - scores[np.arange(rows), labels]).sum()
        moved = target.parameters + length * direction
        return lost + 0.5 * (moved * (target._penalty @ moved)).sum()

    found = target._search(change, direction)
    best = minimize_scalar(loss, bounds=(0, 2000), method="bounded", options={"xatol": 1e-9})
    assert loss(found) == pytest.approx(best.fun, rel=1e-4)
