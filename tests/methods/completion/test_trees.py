"""Federated trees: the same as grown in the clear, as good as scikit-learn's, and who sees what."""

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from tests.methods.completion.federations import numbered, stored

from fedmend.errors import ConfigError, CryptoError, DataError, PrivacyWarning, Refused
from fedmend.federation import Policy
from fedmend.federation.kinds import KINDS
from fedmend.methods.boosting.bins import CutTable, bin_categories, bin_numbers
from fedmend.methods.boosting.boost import Boosting, BoostSettings, OwnBins, Target
from fedmend.methods.boosting.grow import Growth, quantise
from fedmend.methods.completion.trees import TreeModels

N, ALIGNED = 420, 260
CITIES = ["Bonn", "Kiel", "Ulm"]


def joined(seed=0, n=N):
    rng = np.random.default_rng(seed)
    a = pd.DataFrame(rng.normal(size=(n, 3)), columns=list("abc"))
    a["stairs"] = rng.integers(0, 5, n)
    a["city"] = rng.choice(CITIES, n)
    signal = np.sin(2 * a["a"]) + 0.5 * a["b"] * (a["city"] == "Ulm") + 0.3 * a["stairs"]
    a.loc[rng.choice(n, 40, replace=False), "b"] = np.nan
    plain = rng.normal(size=n)
    b = pd.DataFrame(
        {
            "income": 1000 + 300 * signal + 100 * plain,
            "rate": plain + 0.5 * signal,
            "plan": np.array(["l", "m", "s"])[np.digitize(signal + 0.5 * plain, [0.3, 1.0])],
            "churn": np.where(signal - plain > 0.6, "yes", "no"),
        }
    )
    return a, b


def federation(a, b, aligned=ALIGNED, **policies):
    return numbered(a, b, aligned, policies=policies)


def booster(fed):
    """B's worker, to look at its trees while the models are open."""
    workers = fed.engine.sites["telco"]._workers.values()
    return next(each for each in workers if type(each).__name__ == "TreeTargets")


# ---------------------------------------------------------------------------------- in the clear


def a_bins(a, bins=16, least=5):
    columns = [bin_numbers(a[name].to_numpy(float), bins, least) for name in ("a", "b", "c")]
    columns.append(bin_numbers(a["stairs"].to_numpy(float), bins, least))
    columns.append(bin_categories(pd.Categorical(a["city"], CITIES).codes.astype(int), least))
    return columns


def binned(a):
    """Every cut of A's as the rows that go left, in the order A and B number them."""
    return [side for column in a_bins(a) for side in sides_of(column)]


def sides_of(column):
    codes, missing = column.codes, column.codes == column.bins
    if column.kind == "nominal":
        count = column.bins + column.missing
        return [codes == code for code in range(count if count > 2 else 1)]
    sides = []
    for last in range(column.bins - 1):
        sides.append((codes <= last) & ~missing)
        if column.missing:
            sides.append((codes <= last) | missing)
    return [*sides, missing] if column.missing else sides


def grow_in_the_clear(sides, gradient, curvature, train, depth, constant, l2=1.0, min_leaf=5):
    """One tree, node by node, by definition; leaf values times the learning rate of .1."""
    numbers, per_g, per_h = quantise(gradient[train], curvature[train], constant)
    g, h = np.zeros(len(gradient), np.int64), np.zeros(len(gradient), np.int64)
    g[train], h[train] = numbers >> 23, numbers & (2**23 - 1)
    least = min_leaf if constant else 0.05 * min_leaf
    cuts, values = {}, np.zeros(len(gradient))

    def score(rows):
        return (g[rows].sum() / per_g) ** 2 / (h[rows].sum() / per_h + l2)

    def grow(rows, node):
        found, best = -1, 1e-6
        for number, side in enumerate(sides if node < 2**depth else []):
            left, right = rows & side, rows & ~side
            if min(h[left].sum(), h[right].sum()) / per_h < least:
                continue
            gain = score(left) + score(right) - score(rows)
            if gain > best:
                found, best = number, gain
        if found < 0:
            inside = rows & train
            values[rows] = -0.1 * gradient[inside].sum() / (curvature[inside].sum() + l2)
            return
        cuts[node] = found
        grow(rows & sides[found], 2 * node)
        grow(rows & ~sides[found], 2 * node + 1)

    grow(np.ones(len(gradient), bool), 1)
    return cuts, values


def boost_in_the_clear(sides, labels, train, kind, trees, depth):
    """Scores [outputs, n] and the cuts of every tree of every output."""
    if kind == "regression":
        scores = np.full((1, len(labels)), labels[train].mean())
    else:
        logs = np.log(np.bincount(labels[train]) + 0.5)
        starts = [logs[1] - logs[0]] if len(logs) == 2 else logs - logs.mean()
        scores = np.tile(np.array(starts)[:, None], len(labels))
    grown = []
    for _ in range(trees):
        gradient, curvature = derivatives(scores, labels, kind)
        for output in range(len(scores)):
            cuts, values = grow_in_the_clear(
                sides, gradient[output], curvature[output], train, depth, kind == "regression"
            )
            grown.append((output, cuts))
            scores[output] = scores[output] + values
    return scores, grown


def derivatives(scores, labels, kind):
    if kind == "regression":
        return scores - labels, np.ones_like(scores)
    if kind == "binary":
        shares = 0.5 * (1 + np.tanh(0.5 * scores))
        return shares - labels, shares * (1 - shares)
    powers = np.exp(scores - scores.max(axis=0))
    shares = powers / powers.sum(axis=0)
    return shares - (labels == np.arange(len(scores))[:, None]), shares * (1 - shares)


OPTIONS = {
    "trees": 4, "depth": 3, "bins": 16, "least": 5, "min_leaf": 5, "validation": 0.0,
    "disclose": None,
}  # fmt: skip


@pytest.mark.daily("bfv", "plain")
@pytest.mark.parametrize("mode", ["dealer", "bfv", "plain"])
def test_trees_are_those_grown_in_the_clear(mode):
    a, b = joined()
    policy = Policy(allow=frozenset(KINDS)) if mode == "plain" else None
    fed = federation(a, b, bank=policy, telco=policy)
    options = {**OPTIONS, "trees": 2, "depth": 2} if mode == "bfv" else OPTIONS
    targets = ["income", "plan", "churn"]
    context = pytest.warns(PrivacyWarning) if mode == "plain" else nullcontext()
    with TreeModels(fed, "bank", "telco", targets=targets, mode=mode, **options) as models:
        with context:
            models.fit()
        models.predict(rows="all")
        held, tasks = stored(fed, models), booster(fed).boosting.tasks
    train = np.arange(N) < ALIGNED
    for task in tasks:
        target = held[task.name]
        labels = np.where(train, target.truth, 0)
        scores, grown = boost_in_the_clear(
            binned(a), labels, train, target.task, options["trees"], options["depth"]
        )
        found = [
            (at, {node: int(cut) for node, cut in enumerate(tree.cut) if cut >= 0})
            for round_ in zip(*(output.trees for output in task.outputs), strict=True)
            for at, tree in enumerate(round_)
        ]
        assert found == grown
        assert np.stack([output.scores for output in task.outputs]) == pytest.approx(
            scores, abs=1e-9
        )
    assert held["income"].outputs == pytest.approx(tasks[0].outputs[0].scores)
    assert held["plan"].outputs.sum(axis=1) == pytest.approx(np.ones(N))


def test_own_columns_are_cut_as_well_but_never_the_target_itself():
    """Boosting alone, where the sides of all cuts are known: nothing has to come from outside."""
    a, b = joined()
    train = np.arange(N) < ALIGNED
    rate = b["rate"].to_numpy()
    churn = pd.Categorical(b["churn"], ["no", "yes"]).codes.astype(int)
    targets = {"income": (b["income"] / 300).to_numpy(), "rate": rate}
    columns, own = a_bins(a), [bin_numbers(rate, 16), bin_categories(churn)]
    sides = binned(a)
    boosting = Boosting(
        {name: Target(labels, np.flatnonzero(train)) for name, labels in targets.items()},
        CutTable([each.layout for each in columns]),
        OwnBins(
            np.stack([each.codes for each in own]),
            CutTable([each.layout for each in own]),
            ["rate", "churn"],
        ),
        Growth(depth=3, min_leaf=5),
        BoostSettings(4, 0.0, 1, None, 0, 0),
        dict(enumerate(sides)),
    )
    boosting.grow_at_home(np.arange(N), N)
    for task in boosting.tasks:
        mine = [sides_of(each) for each, name in zip(own, ("rate", "churn"), strict=True)
                if name != task.name]  # fmt: skip
        usable = [*sides, *(side for each in mine for side in each)]
        labels = np.where(train, targets[task.name], 0)
        scores, grown = boost_in_the_clear(usable, labels, train, "regression", 4, 3)
        assert task.outputs[0].scores == pytest.approx(scores[0], abs=1e-9)
        assert any(cut >= len(sides) for _, cuts in grown for cut in cuts.values())


# ---------------------------------------------------------------------------------- how good


@pytest.mark.slow
def test_as_good_as_scikit_learns_histogram_trees():
    a, b = joined(n=3000)
    cut = 2000
    fed = federation(a, b, aligned=cut)
    with TreeModels(
        fed, "bank", "telco", targets=["income", "plan"], trees=60, validation=0.0
    ) as models:
        models.fit()
        models.predict()
    held = stored(fed, models)
    x = a.assign(city=pd.Categorical(a["city"]).codes)
    peer = {"max_iter": 60, "max_depth": 5, "max_bins": 32, "early_stopping": False}
    y = ((b["income"] - b["income"][:cut].mean()) / b["income"][:cut].std(ddof=0)).to_numpy()
    regressor = HistGradientBoostingRegressor(categorical_features=[4], **peer)
    theirs = regressor.fit(x[:cut], y[:cut]).predict(x[cut:])
    error = ((held["income"].outputs[cut:] - y[cut:]) ** 2).mean()
    assert error < 1.1 * ((theirs - y[cut:]) ** 2).mean() < 0.3
    classifier = HistGradientBoostingClassifier(categorical_features=[4], **peer)
    plan = classifier.fit(x[:cut], b["plan"][:cut]).predict(x[cut:])
    right = (
        held["plan"].decode(held["plan"].outputs[cut:].argmax(1)).to_numpy()
        == b["plan"][cut:].to_numpy()
    )
    assert right.mean() > (plan == b["plan"][cut:]).mean() - 0.02


def test_trees_stop_when_rows_held_out_get_no_better():
    a, b = joined()
    b["noise"] = np.random.default_rng(1).normal(size=N)
    fed = federation(a, b)
    stages = []
    with TreeModels(
        fed, "bank", "telco", targets=["noise"], trees=80, validation=0.2, patience=5
    ) as models:
        models.fit(progress=lambda stage, done, total: stages.append(done))
        models.predict()
        task = booster(fed).boosting.tasks[0]
    assert stages[-1] < 80
    assert stages[-1] == task.best_at + 6
    assert len(task.held_out) == round(0.2 * ALIGNED)
    assert not np.intersect1d(task.held_out, task.rows).size
    assert stored(fed, models)["noise"].outputs[ALIGNED:].std() < 0.5


def test_the_spread_is_wide_where_the_target_is_noisy():
    a, b = joined(n=1300)
    rng = np.random.default_rng(3)
    noisy = a["c"] > 0
    b["level"] = a["a"] + rng.normal(size=1300) * np.where(noisy, 1.5, 0.2)
    fed = federation(a, b, aligned=1000)
    with TreeModels(fed, "bank", "telco", targets=["level"], trees=30) as models:
        models.fit()
        models.predict()
    spread = stored(fed, models)["level"].spread
    assert np.isnan(spread[:1000]).all()
    assert spread[1000:][noisy[1000:]].mean() > 2 * spread[1000:][~noisy[1000:]].mean()


def test_pseudo_labels_train_the_next_round():
    a, b = joined()
    fed = federation(a, b)
    with TreeModels(fed, "bank", "telco", targets=["income", "churn"], **OPTIONS) as models:
        models.fit()
        held = stored(fed, models)
        joining = np.arange(ALIGNED, N, 2)
        held.adopt("income", joining, np.full(len(joining), 3.0))
        models.fit()
        models.predict(rows="all")
    train = held["income"].labelled
    assert train.sum() == ALIGNED + len(joining)
    labels = np.where(train, held["income"].labels, 0.0)
    scores, _ = boost_in_the_clear(binned(a), labels, train, "regression", 4, 3)
    assert held["income"].outputs == pytest.approx(scores[0], abs=1e-9)


# ---------------------------------------------------------------------------------- who sees what


def test_what_crosses_and_to_whom():
    a, b = joined()
    fed = federation(a, b)
    with TreeModels(fed, "bank", "telco", targets=["income", "plan"], **OPTIONS) as models:
        models.fit()
        models.predict()
    entries = fed.ledger.entries()
    assert {entry.kind for entry in entries} <= {"control", "count", "masked", "side"}
    to_a = [entry for entry in entries if entry.receiver == "bank"]
    assert {entry.kind for entry in to_a} == {"control"}
    sides = [entry for entry in entries if entry.kind == "side"]
    assert sides
    assert all(entry.sealed_for == "telco" for entry in sides)
    requests = [entry for entry in to_a if entry.call.endswith("sides_for")]
    assert any(entry.sealed_for == "bank" for entry in requests)


def test_no_more_cuts_are_told_than_agreed_and_then_nothing_crosses():
    a, b = joined()
    fed = federation(a, b)
    options = {**OPTIONS, "disclose": 6, "trees": 12}
    with TreeModels(fed, "bank", "telco", targets=["income", "plan"], **options) as models:
        models.fit()
        worker = booster(fed)
        assert len(worker._known) == 6
        used = {
            int(cut)
            for task in worker.boosting.tasks
            for output in task.outputs
            for tree in output.trees
            for cut in tree.cut
            if cut >= 0
        }
        assert used == set(worker._known)
        before = len([entry for entry in fed.ledger.entries() if entry.kind == "masked"])
        models.fit()
        after = len([entry for entry in fed.ledger.entries() if entry.kind == "masked"])
        assert before == after > 0
        models.predict()
        # A keeps count as well
        request = worker.seal(list(range(7)), to="bank", kind="control")
        with pytest.raises(Refused, match="may be told"):
            models.at_a.sides_for("telco", request)
    error = stored(fed, models)["income"].outputs[ALIGNED:]
    truth = (b["income"] - b["income"][:ALIGNED].mean()) / b["income"][:ALIGNED].std(ddof=0)
    assert ((error - truth[ALIGNED:]) ** 2).mean() < 0.75


def test_new_cuts_are_asked_for_by_the_first_trees_only():
    a, b = joined()
    fed = federation(a, b)
    options = {**OPTIONS, "disclose": 1000, "trees": 10, "search": 0.3}

    def crossed() -> int:
        return sum(entry.count for entry in fed.ledger.entries() if entry.kind == "masked")

    with TreeModels(fed, "bank", "telco", targets=["income", "plan"], **options) as models:
        models.fit()
        worker, before = booster(fed), crossed()
        told = len(worker._known)
        by_tree = [
            {int(cut) for task in worker.boosting.tasks for output in task.outputs
             for cut in output.trees[number].cut if cut >= 0}
            for number in range(10)
        ]  # fmt: skip
        assert set.union(*by_tree[:3]) == set(worker._known)
        assert all(len(cuts) for cuts in by_tree)
        # the same targets again: their cuts are known
        models.fit()
        assert crossed() == before > 0
        assert len(worker._known) == told
    # other targets may look for cuts of their own
    with TreeModels(fed, "bank", "telco", targets=["income", "churn"], **options) as models:
        judge = stored(fed, models)
        judge.targets = ["income"]
        models.fit()
        before = crossed()
        judge.targets = ["income", "churn"]
        models.fit()
        assert crossed() > before


def test_masks_are_never_used_twice():
    a, b = joined()
    fed = federation(a, b)
    with TreeModels(fed, "bank", "telco", targets=["income"], **OPTIONS) as models:
        models.fit()
        with pytest.raises(CryptoError, match="used twice"):
            models.at_a.mask_bins("telco", 1, ALIGNED)
        with pytest.raises(DataError, match="cuts only"):
            request = booster(fed).seal([100_000], to="bank", kind="control")
            models.at_a.sides_for("telco", request)


# ---------------------------------------------------------------------------------- arithmetic


def test_rounded_gradients_fit_whatever_their_size():
    rng = np.random.default_rng(0)
    for gradient in (rng.normal(size=500), rng.normal(size=500) * 1e-9, np.eye(1, 500)[0] * 1e6):
        curvature = rng.random(500)
        numbers, per_g, per_h = quantise(gradient, curvature, False)
        upper, lower = numbers >> 23, numbers & (2**23 - 1)
        assert np.abs(upper).sum() < 2**22
        assert lower.sum() < 2**23
        assert upper / per_g == pytest.approx(gradient, abs=0.51 / per_g)
        assert lower / per_h == pytest.approx(curvature, abs=0.51 / per_h)
    with pytest.raises(DataError, match="too many"):
        quantise(np.zeros(2**23), np.zeros(2**23), True)


# ---------------------------------------------------------------------------------- bad input


def test_bad_calls_are_refused_with_a_mend():
    a, b = joined()
    fed = federation(a, b)
    with pytest.raises(ConfigError, match="trees must be at least 1") as found:
        TreeModels(fed, "bank", "telco", trees=0, bins=1, disclose=-1, search=0)
    assert len(found.value.problems) == 4
    with pytest.raises(DataError, match="no column varies"):
        TreeModels(federation(pd.DataFrame({"x": np.ones(N)}), b), "bank", "telco")


@pytest.mark.parametrize(
    ("rows", "targets", "rounds"),
    [(N, ["income", "churn"], 1), (15, ["income"], 1), (N, ["income"], 2)],
    ids=["hardly any rows", "no bin may be cut off", "a second round, no cut to choose from"],
)
def test_hardly_any_rows_give_the_mean(rows, targets, rounds):
    a, b = joined()
    fed = federation(a[:rows], b[:rows][targets], aligned=12)
    with TreeModels(fed, "bank", "telco", targets=targets) as models:
        for _ in range(rounds):
            assert models.fit().fitted == targets
            assert targets != ["income"] or not booster(fed)._known  # no cut of A's paid
        models.predict()
    held = stored(fed, models)
    assert np.ptp(held["income"].outputs[12:]) == 0
    assert abs(held["income"].outputs[12:].mean()) < 0.5
    if "churn" in targets:
        assert held["churn"].outputs[12:].min() > 0.05
