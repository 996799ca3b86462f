"""Metrics of predictions that the coordinator made up: each tells what it was made to ask.

InC's annotators compare predictions with their own labels and tell metrics over all rows. Whoever
chooses the predictions chooses the question: two that differ in one row tell its label, and so does
one log loss in which a row has all the weight. Measured: labels told in a run, of all rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.deploy.party_file import install_workers
from fedmend.errors import Refused
from fedmend.federation import Alignment, Policy, Site
from fedmend.federation.bound import Bound
from fedmend.federation.rows import RowAccount, Scored

from .reached import ENGINES, AtSite, party

ROWS = 200
CLASSES = ["no", "yes"]


@pytest.fixture(params=ENGINES)
def annotator(request, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=ROWS), "y": rng.choice(CLASSES, ROWS)})
    made = party(request.param, tmp_path / "bank", Table(np.arange(ROWS), frame, label="y"))
    made.site.alignments["train"] = Alignment(np.arange(ROWS), np.zeros(0, np.int64))
    made.truth = (frame["y"] == "yes").to_numpy()
    worker = made.worker("LabelWorker")
    made.metrics = lambda p: worker.metrics(
        probabilities=np.stack([1 - p, p], 1), classes=CLASSES, alone=False
    )
    yield made
    made.close()


def test_a_prediction_that_differs_in_one_row(annotator):
    p = np.full(ROWS, 0.3)
    annotator.metrics(p)
    for row in range(5):
        other = p.copy()
        other[row] = 0.9
        with pytest.raises(Refused, match="together with what was answered before"):
            annotator.metrics(other)


def test_predictions_of_which_the_classes_alone_differ_in_one_row(annotator):
    """Probabilities quite unlike, so that only accuracies are comparable: 20 answers, 19 labels."""
    rng, told = np.random.default_rng(1), []
    for row in range(ROWS):
        said = rng.uniform(0.05, 0.45, ROWS)
        if row:
            said[row] = 0.6
        try:
            told.append(annotator.metrics(said)["accuracy"])
        except Refused:
            break
    assert len(told) <= 20


def test_a_row_that_has_all_the_weight(annotator):
    p = np.full(ROWS, 0.5)
    p[7] = 1e-9
    with pytest.raises(Refused, match="together with"):
        annotator.metrics(p)


def test_random_questions_tell_no_labels(annotator):
    """Accuracies of random predictions, as many as are answered; labels by least squares."""
    rng, asked, told = np.random.default_rng(2), [], []
    for _ in range(ROWS):
        guess = rng.random(ROWS) < 0.5
        try:
            found = annotator.metrics(np.where(guess, 0.6, 0.4))["accuracy"]
        except Refused:
            break
        asked.append(np.where(guess, 1.0, -1.0))
        told.append(2 * found * ROWS - ROWS)
    assert 1 <= len(asked) <= 20
    signs, *_ = np.linalg.lstsq(np.array(asked), np.array(told), rcond=None)
    right = ((signs > 0) == annotator.truth).mean()
    # as many answers as there are tell so many labels beyond chance, and no more
    chance = max(annotator.truth.mean(), 1 - annotator.truth.mean())
    assert right <= chance + np.sqrt(len(asked) / ROWS) / 2 + 3 * np.sqrt(0.25 / ROWS)


@pytest.mark.parametrize("little", [(0.5 - 1e-7, 0.5 + 1e-7), (1e-12, 1e-10)])
def test_predictions_that_differ_in_next_to_nothing_are_models_of_their_own(annotator, little):
    """Ties, and probabilities below all that counts, decide an accuracy: a label each time."""
    worker = annotator.worker("LabelWorker")

    def accuracy(row):
        said = np.tile(np.array(little[::-1]), (ROWS, 1))
        said[row] = little
        return worker.metrics(probabilities=said, classes=CLASSES, alone=False)["accuracy"]

    told = []
    for row in range(ROWS):
        try:
            told.append(accuracy(row))
        except Refused:
            break
    assert len(told) <= 20


def test_classes_that_nobody_has_make_no_new_account(annotator):
    """Two classes, then three, then four: each with twenty answers of its own."""
    rng, worker, told = np.random.default_rng(4), annotator.worker("LabelWorker"), 0
    for more in range(30):
        said = rng.dirichlet(np.ones(2 + more), ROWS)
        classes = CLASSES + [f"none {number}" for number in range(more)]
        try:
            worker.metrics(probabilities=said, classes=classes, alone=False)
            told += 1
        except Refused:
            break
    assert 0 < told <= 20


def test_models_that_were_scored_count_in_all_sessions_of_a_run(tmp_path):
    rng, rows = np.random.default_rng(5), np.arange(500)
    table = Table(rows, pd.DataFrame({"x": rng.normal(size=len(rows))}))
    p = np.where(rows < 20, 0.5, rng.uniform(0.1, 0.4, len(rows)))
    tie = np.stack([p, 1 - p], 1)
    for number in range(20):
        account = RowAccount("bank", 10, run="r", file=tmp_path / "rows.jsonl")
        other = tie.copy()
        other[number] += (1e-7, -1e-7)
        account.admit("metrics", table, Scored(rows, other), "labels")
        account.admit("metrics", table, Scored(rows, other), "labels")  # the same is free
    account = RowAccount("bank", 10, run="r", file=tmp_path / "rows.jsonl")
    with pytest.raises(Refused, match="one more model than the 20 of a run"):
        account.admit("metrics", table, Scored(rows, tie), "labels")


# ------------------------------------------------------------------ what a posterior makes it tell

CHOSEN = "inc"


def posterior_of(row):
    """Of one row the class that is asked about, of all others the other one."""
    found = np.tile([0.0, 1.0], (ROWS, 1))
    found[row] = (1.0, 0.0)
    return found


@pytest.fixture
def guarded():
    """A party that lets statistics out, but neither votes nor labels."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=ROWS), "y": rng.choice(CLASSES, ROWS)})
    table = Table(np.arange(ROWS), frame, label="y")
    site = Site("bank", {"train": table}, policy=Policy(refuse={"votes"}, methods={CHOSEN}))
    site.alignments["train"] = Alignment(np.arange(ROWS), np.zeros(0, np.int64))
    install_workers()
    return AtSite(site)


@pytest.mark.parametrize("ask", ["expertise", "standing"])
def test_what_a_posterior_of_one_row_says_of_its_label_is_of_kind_votes(guarded, ask):
    """T and how likely votes are, estimated by a posterior that is about one row alone."""
    worker = guarded.worker("LabelWorker")
    worker.attach(classes=CLASSES)
    form = {"low": 0, "high": 1, "fraction_bits": None}
    with pytest.raises(Refused, match="'votes'"):
        worker.prepare_round(
            number=1, name="votes", form=form, parties=["bank", "telco"], given=posterior_of(7)
        )
    with pytest.raises(Refused, match="'votes'"):
        getattr(worker, ask)()


def test_how_many_labels_are_doubtful_by_a_posterior_of_one_row(guarded):
    worker = guarded.worker("LabelWorker")
    worker.review(posterior=posterior_of(7), classes=CLASSES, doubt=0.5)
    with pytest.raises(Refused, match="'votes'"):
        worker.suspicious()


def test_how_many_labels_a_posterior_of_one_row_changes(guarded):
    guarded.site.policy = replace(guarded.site.policy, methods=frozenset({"correct"}))
    posterior = np.zeros((ROWS, 2))
    posterior[7] = (1.0, 0.0)
    with pytest.raises(Refused, match="'votes'"):
        guarded.worker("CorrectedLabelWorker").adopt(
            dataset="c", scope="c", learnt_in="train", posterior=posterior, likelihood=posterior,
            classes=CLASSES, least=0.5, doubting=False,
        )  # fmt: skip


def test_who_scores_a_reference_asks_for_scores_alone():
    install_workers()
    bound = Bound.to("bank", ["reference"], Policy())
    bound.admit_call("bank", "LabelWorker", "metrics")
    for call in ("expertise", "standing", "suspicious", "review", "take_turns"):
        with pytest.raises(Refused, match=f"LabelWorker.{call} is used by none of the methods"):
            bound.admit_call("bank", "LabelWorker", call)


@pytest.mark.parametrize("method", ["inc", "majority", "dawid-skene"])
def test_nobody_votes_alone_but_where_the_method_is_that(method):
    """`Random` asks one annotator at a time; under another method's name nobody can be."""
    install_workers()
    with pytest.raises(Refused, match="LabelWorker.take_turns is used by none"):
        Bound.to("bank", [method], Policy()).admit_call("bank", "LabelWorker", "take_turns")


def test_honest_models_are_compared(annotator):
    rng = np.random.default_rng(3)
    for noise in (0.5, 1.0, 2.0, 4.0):
        scores = annotator.truth - 0.5 + noise * rng.normal(size=ROWS)
        assert 0 <= annotator.metrics(1 / (1 + np.exp(-scores)))["accuracy"] <= 1


def test_no_more_models_are_scored_than_a_comparison_needs():
    """Of many rows leverage alone would admit hundreds of models, each with a bit about them."""
    rng, rows = np.random.default_rng(3), np.arange(5000)
    table = Table(rows, pd.DataFrame({"x": rng.normal(size=len(rows))}))
    account = RowAccount("bank", 10)
    for _ in range(20):
        account.admit("metrics", table, Scored(rows, rng.normal(size=(len(rows), 2))))
    with pytest.raises(Refused, match="one more model than the 20 of a run"):
        account.admit("metrics", table, Scored(rows, rng.normal(size=(len(rows), 2))))
