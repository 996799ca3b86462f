"""Votes, majority and Dawid–Skene against hand-computed cases and an implementation in loops."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.methods.annotators.in_the_clear import Known, count_votes, expertise, log_evidence

from fedmend.data.crowds import annotators
from fedmend.methods.annotators import aggregation as crowd


def in_the_clear(votes, c, *, smoothing=crowd.SMOOTHING, **options):
    """Dawid–Skene with annotators whose votes are known."""
    known = Known(votes, smoothing)
    posterior, _, iterations = crowd.dawid_skene(count_votes(votes, c), known, **options)
    return SimpleNamespace(posterior=posterior, iterations=iterations, expertise=known.matrices)


def test_counts_and_soft_labels_leave_missing_votes_out():
    votes = np.array([[0, 0, 1], [2, -1, 2], [-1, -1, -1]])
    counts = count_votes(votes, 3)
    assert counts.tolist() == [[2, 1, 0], [0, 0, 2], [0, 0, 0]]
    np.testing.assert_allclose(crowd.soft_labels(counts), [[2 / 3, 1 / 3, 0], [0, 0, 1], [0, 0, 0]])


def test_rows_that_nobody_labels_teach_nothing():
    truth = (np.arange(200) % 4 == 0).astype(np.int64)
    votes = annotators(truth, rates=[0.1, 0.2, 0.4], n_classes=2, seed=0)
    silent = np.full((400, 3), -1)
    alone = in_the_clear(votes, 2)
    among = in_the_clear(np.vstack([votes, silent]), 2)
    np.testing.assert_allclose(among.expertise, alone.expertise, atol=1e-9)
    np.testing.assert_allclose(among.posterior[:200], alone.posterior, atol=1e-9)


def test_majority_takes_the_first_of_tied_classes_and_knows_silence():
    counts = np.array([[2, 2, 0], [0, 1, 1], [0, 3, 0], [0, 0, 0]])
    assert crowd.majority(counts).tolist() == [0, 1, 1, -1]


def test_majority_equals_crowd_kit():
    aggregation = pytest.importorskip("crowdkit.aggregation")
    pd = pytest.importorskip("pandas")
    votes = np.random.default_rng(0).integers(0, 3, (200, 4))
    task, worker = np.indices(votes.shape)
    frame = pd.DataFrame({"task": task.ravel(), "worker": worker.ravel(), "label": votes.ravel()})
    theirs = aggregation.MajorityVote().fit_predict(frame)
    assert crowd.majority(count_votes(votes, 3)).tolist() == theirs.tolist()


def test_m_step_by_hand():
    """Two rows surely of class 0, one half and half; the annotator says 0, 1, 1."""
    weights = np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    matrix = expertise(weights, np.array([0, 1, 1]), smoothing=0.0)
    np.testing.assert_allclose(matrix, [[1 / 2.5, 1.5 / 2.5], [0.0, 1.0]])


@pytest.mark.parametrize("n_classes", [3, crowd.FEW_CLASSES + 6])
def test_m_step_counts_whatever_the_number_of_classes(n_classes, monkeypatch):
    monkeypatch.setattr(crowd, "PIECE", 100)
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(n_classes), 350).astype(np.float32)
    votes = rng.integers(-1, n_classes - 1, 350)  # the last class is never said
    counts = crowd.Sayings(votes).when(weights)
    for said in range(n_classes):
        expected = weights[votes == said].sum(0, dtype=np.float64)
        np.testing.assert_allclose(counts[:, said], expected, rtol=1e-5, atol=1e-9)
    assert (crowd.Sayings(np.full(350, -1)).when(weights) == 0).all(), "nobody said anything"


def test_e_step_by_hand():
    matrix = np.array([[0.9, 0.1], [0.3, 0.7]])
    evidence = log_evidence(matrix, np.array([0, 1, -1]))
    np.testing.assert_allclose(np.exp(evidence), [[0.9, 0.3], [0.1, 0.7], [1.0, 1.0]])
    posterior = crowd.combine(np.log(np.full((3, 2), 0.5)), evidence)
    np.testing.assert_allclose(posterior, [[0.75, 0.25], [0.125, 0.875], [0.5, 0.5]])
    assert log_evidence(np.eye(2), np.array([0]))[0, 1] == -30.0


def slow_dawid_skene(votes: np.ndarray, c: int, iterations: int) -> np.ndarray:
    """The textbook, one number at a time."""
    n, k = votes.shape
    q = [[float((votes[i] == j).sum()) for j in range(c)] for i in range(n)]
    q = [[v / sum(row) for v in row] for row in q]
    for _ in range(iterations):
        t = [[[0.01] * c for _ in range(c)] for _ in range(k)]
        for i in range(n):
            for a in range(k):
                if votes[i, a] >= 0:
                    for j in range(c):
                        t[a][j][votes[i, a]] += q[i][j]
        t = [[[v / sum(row) for v in row] for row in matrix] for matrix in t]
        prior = [sum(row[j] for row in q) / n for j in range(c)]
        new = []
        for i in range(n):
            row = [
                max(prior[j], 1e-300)
                * math.prod(t[a][j][votes[i, a]] for a in range(k) if votes[i, a] >= 0)
                for j in range(c)
            ]
            new.append([v / sum(row) for v in row])
        q = new
    return np.array(q)


def test_dawid_skene_equals_the_textbook():
    truth = np.random.default_rng(1).integers(0, 3, 60)
    votes = annotators(truth, rates=[0.1, 0.3, 0.4, 0.5], missing=0.2, seed=3)
    votes[:, 0] = np.where((votes < 0).all(1), truth, votes[:, 0])
    found = in_the_clear(votes, 3, max_iterations=7, tolerance=0.0)
    assert found.iterations == 7
    np.testing.assert_allclose(found.posterior, slow_dawid_skene(votes, 3, 7), atol=1e-9)


@pytest.mark.parametrize("iterations", [5])
def test_dawid_skene_equals_crowd_kit(iterations):
    """Step by step: crowd-kit decides by the likelihood when to stop, which is earlier."""
    aggregation = pytest.importorskip("crowdkit.aggregation")
    pd = pytest.importorskip("pandas")
    truth = np.random.default_rng(1).integers(0, 3, 200)
    votes = annotators(truth, rates=[0.1, 0.3, 0.4, 0.5], seed=3)
    task, worker = np.indices(votes.shape)
    frame = pd.DataFrame({"task": task.ravel(), "worker": worker.ravel(), "label": votes.ravel()})
    theirs = aggregation.DawidSkene(n_iter=iterations, tol=0.0).fit_predict_proba(frame)
    ours = in_the_clear(votes, 3, smoothing=1e-9, tolerance=0.0, max_iterations=iterations)
    np.testing.assert_allclose(ours.posterior, theirs[[0, 1, 2]].to_numpy(), atol=1e-7)


def test_agreement_notices_parties_no_better_than_chance():
    truth = np.random.default_rng(0).integers(0, 2, 4000)
    good = crowd.agreement(count_votes(annotators(truth, rates=[0.3, 0.3, 0.4]), 2))
    guesses = crowd.agreement(count_votes(annotators(truth, rates=[0.5, 0.5, 0.5]), 2))
    at_odds = crowd.agreement(count_votes(annotators(truth, rates=[0.3, 0.7], seed=2), 2))
    assert good.beats_chance
    assert not guesses.beats_chance
    assert not at_odds.beats_chance
    assert not crowd.agreement(np.array([[1, 0], [0, 1]])).beats_chance


@given(st.integers(2, 5), st.integers(1, 6), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_whatever_the_votes_the_posterior_is_one(c, k, n, seed):
    votes = np.random.default_rng(seed).integers(-1, c, (n, k))
    found = in_the_clear(votes, c, max_iterations=5)
    np.testing.assert_allclose(found.posterior.sum(1), 1.0)
    np.testing.assert_allclose(np.sum(found.expertise, 2), 1.0)
    assert np.isfinite(found.posterior).all()


def test_predictions_are_believed_as_far_as_they_explain_the_votes() -> None:
    """Surer than they are right they are drawn to the shares of the classes; a row's own votes have
    no say in it."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 4000)
    said = np.where(rng.random(4000) < 0.9, truth, 1 - truth)
    evidence = np.log(np.where(np.arange(2) == said[:, None], 0.9, 0.1))
    guess = np.where(rng.random(4000) < 0.7, truth, 1 - truth)
    shares = np.array([0.5, 0.5])

    def sure(p: float) -> np.ndarray:
        return np.where(np.arange(2) == guess[:, None], p, 1 - p)

    found = crowd.believed(sure(0.99), evidence, shares)
    assert found.max() == pytest.approx(0.7, abs=0.08)
    assert (found.argmax(1) == guess).all()
    np.testing.assert_allclose(crowd.believed(sure(0.7), evidence, shares), sure(0.7), atol=0.05)
    noise = rng.dirichlet([1, 1], 4000)
    assert abs(crowd.believed(noise, evidence, shares) - 0.5).max() < 0.12
    changed = evidence.copy()
    changed[::2] = changed[::2, ::-1]
    again = crowd.believed(sure(0.99), changed, shares)
    np.testing.assert_array_equal(again[::2], found[::2])
    assert abs(again[1::2] - 0.5).max() < 0.12, "of the others' votes the predictions say nothing"
