from __future__ import annotations

import json
import statistics

import numpy as np
import pytest
from scipy import stats

from fedmend.errors import DataError
from fedmend.report.record import MethodRun, RunRecord, better_is_higher, turns_of


def test_round_trip_through_the_run_folder(record, tmp_path):
    path = record.save(tmp_path)
    assert path.name == "metrics.json"
    assert RunRecord.load(tmp_path) == record


def test_summaries_over_seeds(record):
    local, vfl = record.summaries()
    assert (local.title, vfl.title) == ("Local", "VFL")
    assert vfl.mean["auc"] == pytest.approx(0.905)
    assert vfl.sd["auc"] == pytest.approx(statistics.stdev([0.9, 0.91]))
    assert record.best().title == "VFL"
    assert record.metric_names() == ["auc", "accuracy"]


def test_less_is_better_for_errors(record):
    for run in record.methods:
        run.scores = {"rmse": 1 - run.scores["auc"]}
    record.metric = "rmse"
    assert not better_is_higher("rmse") and better_is_higher("auc")
    assert record.best().title == "VFL"
    record.methods[0].scores["rmse"] = record.methods[1].scores["rmse"] = 0.0
    assert record.best().title == "Local"


def test_numpy_values_and_nan_are_written_as_json(tmp_path):
    run = MethodRun("m", "M", 0, {"shape": (1, 2)}, [{"epoch": 1, "loss": np.float32(0.5)}],
                    {"auc": float("nan")}, 1.0)  # fmt: skip
    record = RunRecord("t", [run], "auc")
    assert record.best() is None and record.summaries()[0].mean == {}
    record.save(tmp_path)
    stored = json.loads((tmp_path / "metrics.json").read_text())["methods"][0]
    assert stored["history"][0]["loss"] == 0.5 and stored["scores"]["auc"] is None
    loaded = RunRecord.load(tmp_path)
    assert loaded.best() is None
    assert loaded.summaries()[0].mean == {}


def test_a_metric_that_cannot_be_told_is_explained(record):
    assert record.cautions() == []
    for run in record.methods:
        run.scores = {"auc": None, "accuracy": 0.5 + 0.1 * (run.title == "Local")}
    record.metric = "accuracy"
    (told,) = record.cautions()
    assert "no AUC" in told and "so that accuracy decides. Mend:" in told
    assert record.best().title == "Local"
    assert record.best(among=["VFL"]).title == "VFL" and record.best(among=[]) is None


def test_few_test_rows_are_told(record):
    record.tested = 16
    (told,) = record.cautions()
    assert told.startswith("16 test rows are few") and "accuracy, as a rule of thumb, 0.25)" in told
    record.tested = 50
    assert record.cautions() == []


def test_whether_completed_rows_paid_is_told(record):
    assert record.completing() == ""
    local, vfl = ([run for run in record.methods if run.title == name] for name in ("Local", "VFL"))
    for run in local:
        run.title = "VFL + completed rows"
    means = [statistics.fmean(run.scores["auc"] for run in runs) for runs in (vfl, local)]
    assert means[1] < means[0]
    assert record.completing().startswith("Completing rows did not pay: VFL has AUC 0.")
    assert record.completing() in record.cautions()
    for run in local:
        run.scores["auc"] += means[0] - means[1] + 0.05
    record.tested = 100
    assert record.completing().startswith("Whether completing rows paid cannot be told from 100")
    record.tested = 10_000
    assert record.completing().startswith("Completing rows paid: ")
    record.choice = {"why": ["It pays.", "Completing rows pays here: …"]}
    assert record.completing() == "Completing rows pays here: …"


@pytest.mark.parametrize(("rows", "said"), [(80, "Whether "), (4000, "Completing rows paid: ")])
def test_a_small_gain_in_an_error_is_told_from_many_rows_only(record, rows, said):
    """Two standard errors of an RMSE of 58.9 on 80 rows are 9.3."""
    record.metric, record.tested = "rmse", rows
    for run in record.methods:
        run.scores = {"rmse": 58.9 if run.title == "VFL" else 56.9}
        run.title = run.title if run.title == "VFL" else "VFL + completed rows"
    assert record.completing().startswith(said)


def test_what_the_label_is_stands_in_the_scores(record):
    assert record.trained() == [(run.name, run.params) for run in record.methods]
    for run in record.methods:
        run.scores = {"rmse": 1.0}
    assert {params["task"] for _, params in record.trained()} == {"regression"}


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 99, "methods": []}'])
def test_damaged_records_are_named(tmp_path, text):
    (tmp_path / "metrics.json").write_text(text)
    with pytest.raises(DataError, match="Mend"):
        RunRecord.load(tmp_path)


def test_how_far_an_accuracy_is_known_is_told(record):
    """Wilson's interval, against scipy's."""
    assert record.sureness() == ""  # how many rows there were is not known
    record.tested = 77
    right = record.best().mean["accuracy"]
    record.methods = [run for run in record.methods if run.title == record.best().title][:1]
    record.methods[0].scores["accuracy"] = 63 / 77
    interval = stats.binomtest(63, 77).proportion_ci(method="wilson")
    assert f"between {interval.low:.2f} and {interval.high:.2f}" in record.sureness()
    assert right and "0.818" in record.sureness()
    record.tested = 50_000
    assert record.sureness() == ""
    record.tested, record.methods[0].scores = 77, {"auc": 0.7, "rmse": 3.0}
    assert record.sureness() == ""


def test_a_training_is_told_in_its_own_turns():
    assert turns_of([{"epoch": 1.0}, {"epoch": 2.0}]) == "2 trees"
    assert turns_of([{"epoch": 1.0, "loss": 0.5}]) == "1 epoch"
    assert turns_of([{"round": 1.0, "loss": 0.5}] * 3) == "3 rounds"
    assert turns_of([]) == "", "of several models together"
