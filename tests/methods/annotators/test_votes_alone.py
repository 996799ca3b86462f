"""Majority and Dawid–Skene where no party has a column: labels, and nothing to train."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.errors import AlignmentError, ConfigError, DataError, FedmendWarning
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.methods.annotators.baselines import EM, MJ, Random
from fedmend.methods.annotators.corrected import correct_labels
from fedmend.methods.annotators.estimator import Annotators
from fedmend.methods.annotators.inc import InC
from fedmend.methods.annotators.worker import EvidenceForm, label_review

CLASSES = ["cold", "cough", "flu"]


def voters(votes: np.ndarray, *, columns: int = 0, classes: list[str] = CLASSES) -> Federation:
    """Every annotator has its votes [n, K]; the first also so many columns of noise."""
    said = np.array([*classes, None], object)[votes]
    noise = np.random.default_rng(5).normal(size=(len(votes), columns))
    ids, parties = np.arange(len(votes)), []
    for number, told in enumerate(said.T):
        frame = pd.DataFrame(noise[:, : columns if number == 0 else 0]).add_prefix("x")
        table = Table(ids, frame.assign(y=told), label="y", kinds={"y": "nominal"})
        parties.append(Party(f"a{number:02}", table, test=table))
    fed = Federation(*parties, strict=True)
    for scope in ("train", "test"):
        for name in fed.names:
            fed.engine.site(name).alignments[scope] = Alignment(ids, ids[:0])
        fed.on(scope).note_alignment(AlignmentCounts(len(ids), dict.fromkeys(fed.names, 0)))
    return fed


def drawn(rows: int, right: list[float], given: float = 1.0, seed: int = 0) -> tuple[Any, Any]:
    """Truth [n] and votes [n, K] of annotators who are right so often."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, rows)
    wrong = (truth[:, None] + rng.integers(1, 3, (rows, len(right)))) % 3
    votes = np.where(rng.random((rows, len(right))) < right, truth[:, None], wrong)
    return truth, np.where(rng.random(votes.shape) < given, votes, -1)


def plain_dawid_skene(votes: np.ndarray, classes: int, steps: int) -> tuple[Any, Any]:
    """Dawid & Skene (1979), written down from the paper: loops, no logarithms, no sums of ours."""
    rows, people = votes.shape
    belief = np.array([[np.mean(row[row >= 0] == c) for c in range(classes)] for row in votes])
    for _ in range(steps):
        share = belief.mean(0)
        skill = np.full((people, classes, classes), 0.01)
        for person in range(people):
            for row in range(rows):
                if votes[row, person] >= 0:
                    skill[person, :, votes[row, person]] += belief[row]
        skill /= skill.sum(2, keepdims=True)
        for row in range(rows):
            product = share.copy()
            for person in range(people):
                if votes[row, person] >= 0:
                    product *= skill[person, :, votes[row, person]]
            belief[row] = product / product.sum()
    return belief, skill


def test_dawid_skene_of_votes_alone_is_the_published_one():
    truth, votes = drawn(250, [0.9, 0.8, 0.7, 0.6, 0.4], given=0.8)
    votes[(votes < 0).all(1), 0] = 0
    model = EM().fit(voters(votes))
    belief, skill = plain_dawid_skene(votes, 3, model.iterations_)
    np.testing.assert_allclose(model.posterior_, belief, atol=5e-3)  # sums are in fixed point
    for number, name in enumerate(model.label_parties_):
        np.testing.assert_allclose(model.expertise_[name], skill[number], atol=2e-3)
    assert (model.posterior_.argmax(1) == truth).mean() > (votes[:, 0] == truth).mean()
    assert model.history_ == []


def crowd_kit(votes: np.ndarray, classes: int, steps: int) -> np.ndarray:
    """crowd-kit's DawidSkene, written anew: tables of errors [worker, said, true], no smoothing."""
    tasks, workers = np.nonzero(votes >= 0)
    said = votes[tasks, workers]
    probas = np.zeros((len(votes), classes))
    np.add.at(probas, (tasks, said), 1.0)
    probas /= probas.sum(1, keepdims=True)
    for _ in range(steps):
        errors = np.zeros((votes.shape[1], classes, classes))
        np.add.at(errors, (workers, said), probas[tasks])
        errors /= np.maximum(errors.sum(1, keepdims=True), 1e-300)
        logs = np.tile(np.log(probas.mean(0)), (len(votes), 1))
        np.add.at(logs, tasks, np.log(np.maximum(errors[workers, said], 1e-300)))
        probas = np.exp(logs - logs.max(1, keepdims=True))
        probas /= probas.sum(1, keepdims=True)
    return probas


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "least", "most"),
    [((0.32, 0.38, 0.54, 0.47), 0.6, 0.8), ((0.59, 0.46, 0.6, 0.33), 0.2, 0.45)],
)
def test_annotators_who_err_in_most_rows_turn_two_classes_round_for_everybody(wrong, least, most):
    # error rates of Covertype, high-large (benchmarks/results/inc.md): why EM has .555 there
    rng = np.random.default_rng(1)
    truth = (rng.random(4000) < 0.57).astype(np.int64)
    votes = np.where(rng.random((4000, 4)) < wrong, 1 - truth[:, None], truth[:, None])
    with pytest.warns(FedmendWarning):  # of annotators who are right less often than by chance
        model = EM().fit(voters(votes, classes=["1", "2"]))
    theirs = crowd_kit(votes, 2, model.iterations_)
    np.testing.assert_allclose(model.posterior_, theirs, atol=0.02)
    assert least < (theirs.argmax(1) == truth).mean() < most


def test_it_stops_where_going_on_changes_nothing():
    _, votes = drawn(300, [0.85, 0.75, 0.7, 0.6])
    model = EM().fit(voters(votes))
    settled, _ = plain_dawid_skene(votes, 3, 100)
    assert model.iterations_ < 60
    assert (settled.argmax(1) != model.posterior_.argmax(1)).mean() < 0.01


def test_tied_majorities_are_the_first_class_in_order():
    # crowd-kit takes the first of the tied labels, which it has in sorted order
    votes = np.array([[2, 1], [0, 2], [1, 1], [-1, 2], [-1, -1]] + [[0, 0], [2, 2]] * 12)
    model = MJ().fit(voters(votes))
    assert model.corrected_[:4].tolist() == ["cough", "cold", "cough", "flu"]
    np.testing.assert_array_equal(model.posterior_[0], [0, 0.5, 0.5])
    assert (model.posterior_[4] == 0).all()


@pytest.mark.parametrize("method", [MJ, EM])
def test_an_estimator_of_the_rows_that_were_voted_on(method, tmp_path):
    _, votes = drawn(200, [0.9, 0.8, 0.8], given=0.7)
    fed = voters(votes)
    model = method().fit(fed)
    told = model.predict_proba(fed)
    np.testing.assert_allclose(told.sum(1), 1, rtol=1e-6)
    voted = (votes >= 0).any(1)
    assert (model.predict(fed) == model.corrected_)[voted].all()
    assert model.evaluate(fed, against="a00")["accuracy"] > 0.8
    table = model.predict_table(fed)
    assert list(table) == ["prediction", "p(cold)", "p(cough)", "p(flu)", "uncertainty"]
    assert set(model.review_labels()) == set(fed.names)
    model.save(tmp_path / "m")
    again = method.load(tmp_path / "m", fed)
    np.testing.assert_array_equal(again.predict_proba(fed), told)
    assert again.get_params() == model.get_params()
    assert model.hand_out(tmp_path / "m", ["a01"]) == [
        f"a01 cannot predict alone: {method.__name__} uses none of its columns"
    ]
    with pytest.raises(DataError, match=r"200 rows of 'train' that were voted on.* Mend: predict"):
        again.predict(fed.on("test"))


def test_corrected_labels_of_votes_alone():
    truth, votes = drawn(300, [0.9, 0.85, 0.8, 0.7], given=0.8)
    fed = voters(votes)
    model = EM().fit(fed)
    found = correct_labels(fed, model, to="a03")
    labels = fed.engine.site("a03").tables["train-corrected"].y
    assert (labels == np.array(CLASSES)[truth]).mean() > 0.9
    assert found.changed > 0


def test_a_row_without_votes_has_no_majority():
    votes = np.array([[0, 0], [1, 1], [-1, -1], [2, 2]] * 4)
    fed = voters(votes)
    found = correct_labels(fed, MJ().fit(fed))
    labels = fed.engine.site("a00").tables["train-corrected"].y
    assert labels[2] is None or pd.isna(labels[2])
    assert found.filled == 0


def test_a_row_without_votes_gets_the_commonest_class_everywhere():
    votes = np.array([[2, 2]] * 14 + [[0, 0]] * 6 + [[-1, -1]] * 4)
    fed = voters(votes)
    model = MJ().fit(fed)
    assert (model.posterior_[20:] == 0).all()
    assert set(model.corrected_[20:]) == set(model.predict(fed)[20:]) == {"flu"}
    model.review_labels()
    assert set(label_review(fed.engine.site("a00")).corrected[20:]) == {"flu"}


def test_whose_labels_an_uncertainty_report_goes_by_is_asked():
    _, votes = drawn(60, [0.9, 0.8])
    fed = voters(votes)
    model = MJ().fit(fed)
    with pytest.raises(DataError, match=r"labels: a00, a01. Mend: name the one .*against="):
        model.uncertainty_report(fed)
    assert model.uncertainty_report(fed, against="a01")["rows"] == 60


def test_one_class_that_was_asked_for_is_not_blamed_on_the_labels():
    _, votes = drawn(60, [0.9, 0.8])
    with pytest.raises(ConfigError, match=r"classes= names fewer than two classes: \['flu'\]"):
        EM(classes=["flu", "flu"]).fit(voters(votes))


def test_epochs_0_leaves_columns_alone():
    _, votes = drawn(100, [0.9, 0.8])
    fed = voters(votes, columns=2)
    model = EM(epochs=0).fit(fed)
    assert model.history_ == []
    assert not any("BottomWorker" in entry.call for entry in fed.ledger)


@pytest.mark.parametrize("method", [InC, Random])
def test_other_methods_need_a_column(method):
    _, votes = drawn(40, [0.9, 0.8])
    with pytest.raises(DataError, match=r"no party has a feature column.* fm.EM and fm.MJ do"):
        method().fit(voters(votes))


@pytest.mark.slow
def test_many_annotators_and_no_vote_leaves():
    truth, votes = drawn(200, list(np.linspace(0.5, 0.9, 24)), given=0.35)
    fed = voters(votes)
    model = EM().fit(fed)
    assert (model.corrected_ == np.array(CLASSES)[truth]).mean() > 0.9
    kinds = {entry.kind for entry in fed.ledger}
    assert not kinds & {"label", "row", "embedding", "gradient"}


@pytest.mark.parametrize("secure", ["masks", "he"])
def test_among_many_annotators_one_class_less_is_summed_and_labels_are_the_same(
    secure, monkeypatch
):
    """Only differences between classes are needed, and the last class's evidence is not told."""
    _, votes = drawn(80, [0.8, 0.7, 0.6] * 4, given=0.6)
    widths: list[int] = []

    def decode(form: EvidenceForm, total: np.ndarray, annotators: int) -> np.ndarray:
        widths.append(total.shape[1])
        return decoded(form, total, annotators)

    decoded = EvidenceForm.decode
    monkeypatch.setattr(EvidenceForm, "decode", decode)
    contrasts = EM(secure=secure).fit(voters(votes))
    assert set(widths) == {2}
    monkeypatch.setattr(EM, "_annotators", lambda self, *at: Annotators(*at, secure=secure))
    whole = EM(secure=secure).fit(voters(votes))
    assert set(widths) == {2, 3}
    assert contrasts.iterations_ == whole.iterations_
    np.testing.assert_allclose(contrasts.posterior_, whole.posterior_, rtol=0, atol=1e-12)


def test_among_few_annotators_narrow_sums_stay():
    """Of 16 bits for each class, where a difference would take 32."""
    _, votes = drawn(80, [0.8, 0.7, 0.6])
    fed = voters(votes)
    with EM()._annotators(fed, fed.names) as few:
        few.attach()
        assert few.evidence().shape == (80, 3) and (few.evidence()[:, -1] != 0).any()


def test_rows_that_are_aligned_anew_are_not_those_that_were_voted_on():
    _, votes = drawn(60, [0.9, 0.8, 0.7])
    fed = voters(votes)
    model = EM(secure="masks").fit(fed)
    assert model.predict_proba(fed).shape == (60, 3)
    for name in fed.names:
        fed.engine.site(name).alignments["train"] = Alignment(np.arange(60)[::-1], np.arange(0))
    with pytest.raises(AlignmentError, match="party 'a00': .*another order"):
        model.predict_proba(fed)
