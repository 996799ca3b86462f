"""InC: both stages, its three posteriors, odd annotators, feedback, keeping and resuming."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.methods.annotators.in_the_clear import count_votes, expertise

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, FedmendWarning, NotFitted, ResumeError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party, Policy
from fedmend.methods.annotators import aggregation as crowds
from fedmend.methods.annotators.estimator import Fitting, crowd_roster
from fedmend.methods.annotators.inc import Correction, InC
from fedmend.methods.annotators.worker import label_review
from fedmend.secure.align import align

QUICK: dict[str, Any] = {
    "epochs": 14,
    "bottom": (),
    "embedding": 4,
    "top": (),
    "batch_size": 32,
    "lr": 0.02,
    "secure": "masks",
    "crossfit": False,
    "patience": None,
}


def accuracy(model: InC, truth: np.ndarray) -> float:
    return float((model.posterior_.argmax(1) == truth).mean())


# ------------------------------------------------------------------ one step, by hand


class Spoken:
    """Annotators in the clear, for the arithmetic of one step."""

    def __init__(self, votes: np.ndarray, rule: str, n_classes: int) -> None:
        self.votes, self.rule = votes, rule
        self.matrices = [np.eye(n_classes) for _ in votes.T]

    def evidence(self, weights: np.ndarray | None = None) -> np.ndarray:
        if weights is not None:
            self.matrices = [expertise(weights, v, smoothing=0.0) for v in self.votes.T]
        pieces = []
        for matrix, votes in zip(self.matrices, self.votes.T, strict=True):
            with np.errstate(divide="ignore"):
                form = {
                    "row": lambda m: m,
                    "product": lambda m: np.log(m).T,
                }[self.rule](matrix)
            pieces.append(form[votes])
        return np.sum(pieces, axis=0)


VOTES = np.array([[0, 0], [0, 1], [1, 1]])
PREDICTED = np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7]])
# Eq. 6 from PREDICTED, for the two annotators.
T1 = np.array([[1.4 / 1.7, 0.3 / 1.7], [0.6 / 1.3, 0.7 / 1.3]])
T2 = np.array([[0.8 / 1.7, 0.9 / 1.7], [0.2 / 1.3, 1.1 / 1.3]])


def test_published_step_by_hand():
    """Eq. 4 with T = I: ỹ is the mean of ŷ and the one-hot votes."""
    correction = Correction(Spoken(VOTES, "row", 2), count_votes(VOTES, 2), "row")
    correction.step(PREDICTED)
    expected = (PREDICTED + np.array([[2, 0], [1, 1], [0, 2]])) / 3
    np.testing.assert_allclose(correction.posterior, expected)
    # second step: Eq. 6 from ŷ, then row y of T
    correction.step(PREDICTED)
    expected = PREDICTED + np.stack([T1[0] + T2[0], T1[0] + T2[1], T1[1] + T2[1]])
    np.testing.assert_allclose(correction.posterior, expected / expected.sum(1, keepdims=True))


def test_product_weighs_by_votes_first_and_by_its_posterior_then():
    counts = count_votes(VOTES, 2)
    annotators = Spoken(VOTES, "product", 2)
    correction = Correction(annotators, counts, "product")
    correction.step(PREDICTED)
    first = (PREDICTED + counts) / 3
    t1 = expertise(first, VOTES[:, 0], smoothing=0.0)
    t2 = expertise(first, VOTES[:, 1], smoothing=0.0)
    expected = PREDICTED * np.stack([t1[:, 0] * t2[:, 0], t1[:, 0] * t2[:, 1], t1[:, 1] * t2[:, 1]])
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(correction.posterior, expected, rtol=1e-5)
    correction.step(PREDICTED)
    t1 = expertise(expected, VOTES[:, 0], smoothing=0.0)
    np.testing.assert_allclose(annotators.matrices[0], t1, rtol=1e-5)


# ------------------------------------------------------------------ the whole


@pytest.fixture(scope="module")
def plain(crowd_of):
    """An ordinary crowd, and InC on it."""
    crowd = crowd_of()
    return crowd, InC(**QUICK).fit(crowd.fed)


@pytest.mark.parametrize("posterior", ["product", "row"])
def test_labels_are_corrected(crowd_of, plain, posterior):
    crowd, model = plain
    if posterior != "product":
        crowd = crowd_of()
        model = InC(**QUICK, posterior=posterior)
        assert model.fit(crowd.fed) is model
    best = (crowd.votes == crowd.truth[:, None]).mean(0).max()
    assert accuracy(model, crowd.truth) > best + 0.02
    assert [row["stage"] for row in model.history_] == [1.0] * 7 + [2.0] * 7
    assert list(model.classes_) == ["a", "b", "c"]
    assert set(model.corrected_) == {"a", "b", "c"}
    test = crowd.fed.on("test")
    predicted = model.predict(test)
    assert (predicted == np.array(list("abc"))[crowd.test_truth]).mean() > 0.8
    assert set(model.evaluate(test)) == {"accuracy", "auc", "f1", "log_loss"}
    # all parties hold the same true test labels, so majority and any one party agree
    assert model.evaluate(test) == model.evaluate(test, against="p2")
    assert model.score(test) == pytest.approx(
        (predicted == np.array(list("abc"))[crowd.test_truth]).mean()
    )


def test_rows_of_one_party_are_judged_there(crowd_of, plain):
    """They were held against the labels of the aligned rows, which are others, and more."""
    fed = crowd_of().fed
    site, model = fed.engine.site("p0"), plain[1].to(fed)
    whole = site.alignments["test"]
    for name in fed.names:
        at = fed.engine.site(name).alignments
        at["test"] = Alignment(at["test"].aligned[:150], at["test"].aligned[150:])
    test = fed.on("test")
    test.note_alignment(AlignmentCounts(150, dict.fromkeys(fed.names, 50)))
    told = site.tables["test"].frame["y"].to_numpy()[whole.aligned[150:]]
    scores = model.evaluate(test, rows="p0")
    assert scores["accuracy"] == pytest.approx((model.predict(test, rows="p0") == told).mean())
    assert model.uncertainty_report(test, rows="p0")["rows"] == 50
    for wrong in ({"rows": "p0", "against": "p1"}, {"rows": "p2", "against": "p0"}):
        with pytest.raises(DataError, match="alone knows these rows"):
            model.evaluate(test, **wrong)
    with pytest.raises(DataError, match="several parties have labels"):
        model.uncertainty_report(test)


@pytest.mark.slow
def test_the_expertise_found_is_the_expertise_there(crowd_of):
    crowd = crowd_of(rows=800, rates=(0.1, 0.3, 0.4))
    model = InC(**QUICK).fit(crowd.fed)
    for number, party in enumerate(("p0", "p1", "p2")):
        empirical = expertise(np.eye(3)[crowd.truth], crowd.votes[:, number])
        assert np.abs(model.expertise_[party] - empirical).max() < 0.06
    believed = [model.standing_[party]["believed"] for party in ("p0", "p1", "p2")]
    assert believed == sorted(believed, reverse=True)
    assert model.standing_["p0"]["by_chance"] == pytest.approx(1 / 3, abs=0.02)


def test_of_two_helpers_the_one_that_has_not_seen_a_row_is_asked(crowd_of):
    crowd = crowd_of()
    model, rows = InC(**QUICK | {"crossfit": True}), len(crowd.truth)
    features, _ = crowd_roster(crowd.fed, None)
    soft = crowds.soft_labels(count_votes(crowd.votes, 3))
    named: Any = SimpleNamespace(classes=["a", "b", "c"])
    with ExitStack() as stack:
        made = model._classifier(stack, Fitting(crowd.fed, features, named, soft), soft)
        (_, one, two) = (session for session, _ in made._all)
        assert sorted([*one.train, *two.train]) == list(range(rows))
        made.epoch(1)
        found = made.predicted()
        for seen, other in ((one, two), (two, one)):
            np.testing.assert_allclose(found[seen.train], other.outputs(seen.train), atol=1e-6)
        assert np.abs(one.outputs() - two.outputs()).max() > 1e-3


@pytest.mark.slow
def test_a_corrector_corrects_and_the_network_asked_for_is_trained(crowd_of):
    shape, how = {"bottom": (6,), "embedding": 5, "top": (7,)}, QUICK | {"epochs": 10}
    model = InC(**how, corrector=shape).fit(crowd_of().fed)
    alone = InC(**how | shape).fit(crowd_of().fed)
    np.testing.assert_array_equal(model.posterior_, alone.posterior_)
    assert model.network_.config.top == ()
    predicted, theirs = (each.predict_proba(each.fed_) for each in (model, alone))
    assert not np.array_equal(predicted, theirs)
    assert (predicted.argmax(1) == model.posterior_.argmax(1)).mean() > 0.85
    with pytest.raises(ConfigError, match="corrector: some of bottom, .*got 'depth'"):
        InC(corrector={"depth": 3}).fit(crowd_of().fed)


def test_missing_votes_and_labels_only_parties(crowd_of):
    crowd = crowd_of(rates=(0.1, 0.2, 0.3, 0.3, 0.3), missing=0.5, featureless=3)
    model = InC(**QUICK).fit(crowd.fed)
    assert model.network_.parties == ["p0", "p1"]
    assert model.label_parties_ == ["p0", "p1", "p2", "p3", "p4"]
    assert model.votes_ == {f"p{k}": int((crowd.votes[:, k] >= 0).sum()) for k in range(5)}
    assert accuracy(model, crowd.truth) > 0.93
    silent = (crowd.votes < 0).all(1)
    assert silent.any()
    np.testing.assert_allclose(model.posterior_[silent].sum(1), 1.0, rtol=1e-6)


def test_a_choice_of_annotators(crowd_of):
    crowd = crowd_of(rates=(0.1, 0.2, 0.6))
    model = InC(**QUICK | {"epochs": 2}, label_parties=("p0", "p1")).fit(crowd.fed)
    assert model.label_parties_ == ["p0", "p1"]
    assert set(model.expertise_) == {"p0", "p1"}
    with pytest.raises(ConfigError, match="'nobody', which have no labels.*Mend: name some of p0"):
        InC(**QUICK, label_parties=("p0", "nobody")).fit(crowd.fed)


# ------------------------------------------------------------------ odd annotators


@pytest.mark.slow
def test_a_party_that_inverts_is_used(crowd_of):
    truth_votes = crowd_of(rates=(0.3, 0.3, 0.3), classes=("no", "yes"), rows=400)
    votes = truth_votes.votes.copy()
    votes[:, 2] = 1 - truth_votes.truth
    crowd = crowd_of(votes=votes, classes=("no", "yes"), rows=400)
    with pytest.warns(FedmendWarning) as warned:
        model = InC(**QUICK).fit(crowd.fed)
    assert any(
        "'p2'" in str(each.message) and "turned round" in str(each.message) for each in warned
    )
    without = InC(**QUICK, label_parties=("p0", "p1")).fit(
        crowd_of(votes=votes, classes=("no", "yes"), rows=400).fed
    )
    assert accuracy(model, crowd.truth) > accuracy(without, crowd.truth) + 0.02
    assert accuracy(model, crowd.truth) > 0.985
    assert model.expertise_["p2"].diagonal().max() < 0.1


def test_a_class_nobody_votes_for(crowd_of):
    crowd = crowd_of()
    model = InC(**QUICK | {"epochs": 4}, classes=("a", "b", "c", "d")).fit(crowd.fed)
    assert list(model.classes_) == ["a", "b", "c", "d"]
    assert model.posterior_.shape == (300, 4)
    assert (model.posterior_.argmax(1) < 3).all()
    np.testing.assert_allclose(model.expertise_["p0"].sum(1), 1.0)
    with pytest.raises(DataError, match=r"p0.*'y'.*none of the classes.*seen: 'c'.*Mend"):
        InC(**QUICK, classes=("a", "b")).fit(crowd.fed)


def test_one_good_party_keeps_two_inverters_from_swapping_the_classes(crowd_of):
    """As long as the parties together beat chance, T turns the inverters round."""
    rng = np.random.default_rng(4)
    truth = crowd_of().truth
    right = np.where(rng.random((300, 2)) < 0.9, truth[:, None], (truth[:, None] + 1) % 3)
    turned = np.where(rng.random((300, 1)) < 0.9, (truth[:, None] + 1) % 3, truth[:, None])
    crowd = crowd_of(votes=np.hstack([right, turned]))
    with pytest.warns(FedmendWarning, match="'p2' are right less often than by chance"):
        model = InC(**QUICK).fit(crowd.fed)
    assert accuracy(model, crowd.truth) > 0.97
    np.testing.assert_array_equal(model.expertise_["p2"].argmax(1), [1, 2, 0])


def test_guessing_parties_are_warned_about(crowd_of):
    crowd = crowd_of(rates=(0.5, 0.5, 0.5), classes=(0, 1))
    with pytest.warns(FedmendWarning, match="no better than chance.*Mend"):
        InC(**QUICK | {"epochs": 2}).fit(crowd.fed)


def test_whole_numbers_with_gaps_are_classes_alike():
    """One party's column has gaps and is read as float, the other's as int."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    gaps = np.where(rng.random(60) < 0.3, np.nan, y)
    one = pd.DataFrame({"u": y + rng.normal(size=60), "label": y})
    two = pd.DataFrame({"v": y + rng.normal(size=60), "label": gaps})
    fed = Federation(
        Party("a", Table(np.arange(60), one, label="label")),
        Party("b", Table(np.arange(60), two, label="label", kinds={"label": "nominal"})),
        strict=True,
    )
    align(fed)
    model = InC(**QUICK | {"epochs": 2}).fit(fed)
    assert model.classes_.tolist() == [0, 1]
    assert model.votes_["b"] == int((~np.isnan(gaps)).sum())


def test_classes_written_differently_are_refused(crowd_of):
    crowd = crowd_of(rows=60)
    site = crowd.fed.engine.site("p1")
    numbers = site.tables["train"].frame["y"].map({"a": 0, "b": 1, "c": 2})
    site.tables["train"] = site.tables["train"].with_columns({"y": numbers}, kinds={"y": "nominal"})
    with pytest.raises(DataError, match="text at 'p0'.*not at 'p1'.*Mend: write the classes alike"):
        InC(**QUICK).fit(crowd.fed)


def test_a_single_annotator_is_sent_to_vfl(crowd_of):
    with pytest.raises(DataError, match="needs two or more.*Mend: fm.VFL"):
        InC(**QUICK, label_parties=("p1",)).fit(crowd_of(rows=60).fed)


# ------------------------------------------------------------------ stages


def test_only_stage_one_still_has_a_posterior(crowd_of):
    model = InC(**QUICK | {"epochs": 4, "batch_size": 0.1}, initial_epochs=4).fit(crowd_of().fed)
    assert {row["stage"] for row in model.history_} == {1.0}
    assert model.posterior_.shape == (300, 3)


# ------------------------------------------------------------------ what comes back


def test_label_parties_hear_which_of_their_labels_are_probably_wrong(plain, tmp_path):
    crowd, model = plain
    told = model.review_labels(path=tmp_path / "out")
    for number, party in enumerate(("p0", "p1", "p2")):
        site = crowd.fed.engine.site(party)
        review = label_review(site)
        wrong = crowd.votes[:, number] != crowd.truth
        suspicious = review.suspicious.to_numpy()
        assert told[party] == suspicious.sum()
        assert (suspicious & wrong).sum() / wrong.sum() > 0.85  # found
        assert (suspicious & wrong).sum() / suspicious.sum() > 0.85  # and rightly
        assert review.id.tolist() == list(range(300))  # its own ids, in the common order
        written = pd.read_csv(tmp_path / "out" / party / "label_review.csv")
        assert written.suspicious.sum() == told[party]
    only = model.review_labels(parties=["p1"], doubt=0.05)
    assert set(only) == {"p1"}
    assert only["p1"] < told["p1"]
    with pytest.raises(ConfigError, match="gave no labels"):
        model.review_labels(parties=["nobody"])


def test_policies_decide_what_is_told(crowd_of):
    quiet = Policy(refuse=frozenset({"statistic"}))
    crowd = crowd_of(policy={"p1": quiet})
    with pytest.warns(FedmendWarning, match="'p1' refused"):
        model = InC(**QUICK | {"epochs": 4}).fit(crowd.fed)
    assert set(model.expertise_) == {"p0", "p2"}
    assert model.review_labels()["p1"] > 0  # a count, which it lets out
    kept = InC(**QUICK | {"epochs": 2}, share_expertise=False).fit(crowd_of().fed)
    assert kept.expertise_ == {}


def test_no_review_before_there_is_one(crowd_of):
    with pytest.raises(NotFitted, match="review_labels"):
        label_review(crowd_of(rows=40).fed.engine.site("p0"))


# ------------------------------------------------------------------ estimator


def test_keeping_and_moving(crowd_of, plain, tmp_path):
    crowd, model = plain
    model.save(tmp_path / "model")
    other = crowd_of()
    loaded = InC.load(tmp_path / "model", other.fed)
    test = other.fed.on("test")
    np.testing.assert_array_equal(
        loaded.predict_proba(test), model.predict_proba(crowd.fed.on("test"))
    )
    assert loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(loaded.posterior_, model.posterior_)
    np.testing.assert_allclose(loaded.expertise_["p0"], model.expertise_["p0"])
    assert loaded.review_labels() == model.review_labels()
    assert loaded.agreement_ == model.agreement_
    with pytest.raises(ConfigError, match="another federation"):
        model.predict(test)
    np.testing.assert_array_equal(model.to(other.fed).predict(test), loaded.predict(test))


@pytest.mark.daily("helped1-3")
@pytest.mark.parametrize(
    ("helped", "killed_after"), [({}, 6), ({"crossfit": True, "corrector": {"top": (8,)}}, 3)]
)
def test_a_resumed_run_ends_the_same(crowd_of, tmp_path, helped, killed_after):
    settings = QUICK | {"epochs": 7, "posterior": "product"} | helped
    undisturbed = InC(**settings).fit(crowd_of(rows=120).fed)

    class Killed(Exception):
        pass

    def kill(stage: str, done: int, total: int, facts: dict[str, float]) -> None:
        if done == killed_after + 1:  # before that epoch's checkpoint
            raise Killed

    with pytest.raises(Killed):
        InC(**settings).fit(crowd_of(rows=120).fed, checkpoint=tmp_path / "c", progress=kill)
    done: list[int] = []
    resumed = InC(**settings).fit(
        crowd_of(rows=120).fed,
        checkpoint=tmp_path / "c",
        resume=True,
        progress=lambda stage, number, total, facts: done.append(number),
    )
    assert done == list(range(killed_after + 1, 8))
    np.testing.assert_array_equal(resumed.posterior_, undisturbed.posterior_)
    assert resumed.history_ == undisturbed.history_
    with pytest.raises(ResumeError, match="other settings"):
        InC(**settings | {"posterior": "row"}).fit(
            crowd_of(rows=120).fed, checkpoint=tmp_path / "c", resume=True
        )


def test_parameters_and_presets():
    paper = InC.paper("mlp", seed=4)
    assert (paper.posterior, paper.top, paper.seed) == ("row", (32,), 4)
    assert InC.paper().top == ()
    # 50 + 50 epochs as published, and half and half in a run made shorter for a try.
    assert [InC.paper(epochs=epochs)._first for epochs in (100, 10, 3, 1)] == [50, 5, 1, 0]
    with pytest.raises(ConfigError, match="Mend: initial_epochs = 0.5 goes with any length"):
        InC(initial_epochs=2.5).check_params()
    assert "posterior='row'" in repr(InC(posterior="row"))
    with pytest.raises(ConfigError) as caught:
        InC(posterior="sum", secure="yes", initial_epochs=200, label_dp=0, seal=True).fit(
            Federation(Party("a", Table(np.arange(2), {"x": [1.0, 2.0]})))
        )
    assert len(caught.value.problems) == 5
