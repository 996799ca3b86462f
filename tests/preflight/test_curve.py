"""The learning curve: repeatable, bounded, and right about curves that are known."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation, Party
from fedmend.preflight import curve
from fedmend.preflight.curve import _widening, learning_curve, power_laws, read_curve
from fedmend.secure.align import align

QUICK = {"sizes": 3, "repeats": 2, "seconds": 20.0}


@pytest.fixture
def few_epochs(monkeypatch):
    """Where it does not matter how well the networks do."""
    monkeypatch.setattr(curve, "_EPOCHS", 2)


def bank_and_telco(n=160, task="binary", extra=0, labelled=1.0, seed=0, rare=None):
    """Half of what decides is at each; `extra` people only the bank knows."""
    rng = np.random.default_rng(seed)
    own, other = rng.normal(size=(2, n + extra))
    signal = own + other
    y = np.where(signal > 0, "yes", "no") if task == "binary" else 100 + 10 * signal
    if rare is not None:
        y = np.where(np.argsort(np.argsort(-signal)) < rare, "yes", "no")
    y = pd.Series(y, dtype=object if task == "binary" else float)
    y[rng.random(len(y)) > labelled] = None
    bank = pd.DataFrame({"id": np.arange(n + extra), "income": own, "y": y})
    telco = pd.DataFrame({"id": np.arange(n), "calls": other[:n]})
    fed = Federation(
        Party("bank", Table.from_frame(bank, id="id", label="y")),
        Party("telco", Table.from_frame(telco, id="id")),
        strict=True,
    )
    align(fed)
    return fed


def test_together_is_better_than_alone_and_the_same_call_gives_the_same(monkeypatch):
    monkeypatch.setattr(curve, "_EPOCHS", 8)
    fed, told = bank_and_telco(extra=60), []
    before = len(fed.ledger.entries())
    found = learning_curve(fed, progress=lambda *what: told.append(what), **QUICK)
    assert told[-1] == ("learning curve", 6, 6)
    kinds = {entry.kind for entry in fed.ledger.entries()[before:]}
    assert kinds <= {"control", "count", "statistic", "embedding", "gradient"}
    assert [point.rows for point in found.points] == [24, 54, 120]
    assert found.twice.rows == 240 and found.held_out == 40
    assert found.alone is not None and found.alone.rows == 180
    assert found.now.score > found.alone.score
    assert found.twice.low <= found.twice.score <= found.twice.high
    assert learning_curve(bank_and_telco(extra=60), **QUICK) == found
    assert found.words[1].startswith("bank alone, with 180 rows of its own, reaches 0.")


@pytest.mark.parametrize("held_out", [0.001, 0.9, 0.99])
def test_too_few_rows_on_either_side_are_refused(held_out):
    with pytest.raises(ConfigError, match="of 160 rows aside, and trains on .* Mend: held_out"):
        learning_curve(bank_and_telco(), held_out=held_out, **QUICK)


def test_numbers_are_measured_by_their_error(monkeypatch):
    monkeypatch.setattr(curve, "_EPOCHS", 8)
    found = learning_curve(bank_and_telco(task="regression"), **QUICK)
    assert found.metric == "rmse"
    assert found.points[0].score > found.now.score
    assert "RMSE" in found.words[0]


@pytest.mark.usefixtures("toys", "few_epochs")
@pytest.mark.daily("6-auc", "1-accuracy")
@pytest.mark.parametrize(("rare", "metric"), [(30, "auc"), (6, "auc"), (1, "accuracy")])
def test_a_class_may_be_absent_from_the_rows_set_aside(rare, metric):
    found = learning_curve(bank_and_telco(n=120, rare=rare), sizes=3, repeats=4, seconds=20.0)
    assert found.metric == metric
    scores = [each for point in (*found.points, found.twice) for each in (point.low, point.high)]
    assert all(0 <= each <= 1 for each in scores)
    assert found.repeats + found.left_out == 4
    told = found.words[-1]
    if metric == "accuracy":
        assert found.left_out == 0 and "a class is too rare" in told
    assert ("lacked a class" in told) == (metric == "auc" and found.left_out > 0)


def test_repeats_that_lack_a_class_are_left_out():
    good, bad = {"auc": 0.8, "accuracy": 0.7}, {"auc": float("nan"), "accuracy": 0.9}
    assert curve._judged_by([[good, good], [good, bad], [good, good]]) == ("auc", [0, 2])
    assert curve._judged_by([[good], [bad], [bad]]) == ("accuracy", [0, 1, 2])
    assert curve._judged_by([[{"rmse": 3.0}]] * 2) == ("rmse", [0, 1])


@pytest.mark.usefixtures("few_epochs")
def test_rows_without_label_do_not_count():
    found = learning_curve(bank_and_telco(n=200, labelled=0.6), **QUICK)
    assert 80 < found.now.rows + found.held_out < 140


def test_too_few_rows_are_told():
    with pytest.raises(DataError, match=r"bank.*50 aligned rows with a label are too few"):
        learning_curve(bank_and_telco(n=50))


def test_bad_settings_are_listed_together():
    with pytest.raises(ConfigError) as caught:
        learning_curve(bank_and_telco(), sizes=2, repeats=1, held_out=1.0, seconds=0)
    assert len(caught.value.problems) == 4


def test_the_work_is_bounded_beforehand():
    assert curve._most_rows(60, 6, 4, 2) > curve._most_rows(10, 6, 4, 2)
    assert curve._most_rows(60, 6, 4, 2) > curve._most_rows(60, 6, 4, 5)
    assert curve._most_rows(1e-3, 6, 4, 2) == curve.ROWS_NEEDED


@given(st.floats(0, 0.4), st.floats(0.2, 5), st.floats(0.15, 1.4))
def test_a_power_law_is_found_again(floor, a, b):
    rows = np.array([50, 100, 200, 400, 800.0])
    errors = floor + a * rows**-b
    (found,) = power_laws(rows, errors[None], np.ones((1, len(rows))))
    for n in (400, 1600):
        expected = floor + a * n**-b
        assert found[0] + found[1] * n ** -found[2] == pytest.approx(expected, abs=0.02 * errors[0])


def test_every_row_has_its_turn():
    held = [curve._in_turn(np.arange(103), 25, repeat, [0, 0])[0] for repeat in range(8)]
    for turns in (held[:4], held[4:]):
        together = np.concatenate(turns)
        assert len(together) == len(set(together.tolist())) == 100
    kept, rest = curve._in_turn(np.arange(103), 25, 5, [0, 0])
    assert set(kept.tolist()) | set(rest.tolist()) == set(range(103))
    assert len(kept) + len(rest) == 103


@pytest.mark.daily("101")
@pytest.mark.parametrize("rows", [80, 101, 202])
def test_no_number_of_shared_rows_is_refused_by_the_default_policy(rows, few_epochs):
    """Rows left over by two cuts into quarters, and losses told beside, once were too telling."""
    assert learning_curve(bank_and_telco(n=rows), seconds=20.0).repeats == 8


@pytest.mark.parametrize("repeats", [4, 6, 8, 20])
def test_intervals_are_widened_by_t_and_by_shared_people(repeats):
    student = scipy.stats.t.ppf(0.9, repeats - 1) / scipy.stats.norm.ppf(0.9)
    expected = student * np.sqrt(repeats / (repeats - 1)) * np.sqrt(1 + repeats / 3)
    assert _widening(repeats, 1 / 3) == pytest.approx(expected, rel=0.01)


def test_a_flat_or_rising_error_promises_nothing():
    rows = np.array([100.0, 200, 400])
    for errors in ([0.2, 0.2, 0.2], [0.1, 0.2, 0.3]):
        ((floor, a, b),) = power_laws(rows, np.array([errors]), np.ones((1, 3)))
        assert a * (400.0**-b - 800.0**-b) == pytest.approx(0)
        assert floor == pytest.approx(0.2)


def test_the_interval_holds_what_is_true_of_noisy_curves():
    rng = np.random.default_rng(1)
    sizes = [100, 200, 400, 800]
    truth = 0.9 - 1.5 * np.array([*sizes, 1600]) ** -0.5
    inside = 0
    for _ in range(60):
        scores = truth[:-1] + rng.normal(0, 0.01, (6, 4))
        _, twice, gain = read_curve(sizes, scores, "auc", 1.0, rng)
        inside += twice.low <= truth[-1] <= twice.high
        assert gain[1] <= gain[0] <= gain[2]
    assert inside >= 36  # of 60; bootstrap means of six are a little narrow


def test_the_next_doubling_brings_no_more_than_the_last_and_a_share_of_it_at_least():
    """The law is a guess; that curves flatten, and no faster than the steepest law, is not."""
    sizes = [100, 200, 400, 800]
    errors = 2.0 * np.array(sizes) ** -0.5
    last = errors[-2] - errors[-1]
    _, twice, (gain, low, high) = read_curve(
        sizes, np.tile(1 - errors, (4, 1)), "auc", 1.0, np.random.default_rng(0)
    )
    assert gain == pytest.approx(last * 2**-0.5, rel=1e-3)
    assert low == pytest.approx(2**-1.5 * last) and high == pytest.approx(last)
    assert twice.score == pytest.approx(1 - 2.0 * 1600**-0.5, abs=1e-4)
