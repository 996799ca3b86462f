"""Metrics of predictions that the coordinator made up: each tells what it was made to ask.

InC's annotators compare predictions with their own labels and tell metrics over all rows. Whoever
chooses the predictions chooses the question: two that differ in one row tell its label, and so does
one log loss in which a row has all the weight. Measured: labels told in a run, of all rows.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.errors import Refused
from fedmend.federation import Alignment
from fedmend.federation.rows import RowAccount, Scored

from .reached import ENGINES, party

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
