"""Runs in MLflow: what is logged of them, and what is said where it cannot be."""

from __future__ import annotations

import json
import sys

import pytest

from fedmend.errors import ConfigError, FedmendError, MissingExtra
from fedmend.report.record import MethodRun, RunRecord
from fedmend.report.tracking import Tracker, metrics_of, params_of, tags_of


def trained(title, seed, auc, **more):
    history = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25, "note": "words"}]
    scores = {"auc": auc, "auc (rows of bank)": auc - 0.1}
    params = {"epochs": 2, "widths": [8, 4], "words": "x" * 900}
    return MethodRun(title.lower(), title, seed, params, history, scores, 1.5, bytes=40, **more)


@pytest.fixture
def record():
    methods = [trained("VFL", 0, 0.8), trained("VFL", 1, 0.9), trained("RISA, ours", 0, 0.7)]
    settings = {"party": [{"name": "bank", "data": "/secret/place.csv"}]}
    return RunRecord("bank and telco", methods, "auc", seeds=[0, 1], settings=settings)


def test_what_is_logged_is_what_the_report_shows(record):
    logged = {(name, step): value for name, value, step in metrics_of(record)}
    assert logged["VFL/auc", 0] == pytest.approx(0.85) == logged["auc", 0]
    assert logged["VFL/auc/sd", 0] == pytest.approx(0.0707, abs=1e-4)
    assert logged["VFL/auc -rows of bank-", 0] == pytest.approx(0.75)
    assert logged["RISA- ours/auc", 0] == 0.7 and ("RISA- ours/auc/sd", 0) not in logged
    assert logged["VFL/training/loss", 2] == 0.25 and logged["VFL/bytes", 0] == 40
    assert not any("note" in name or "epoch" in name for name, _ in logged)
    params = params_of(record)
    assert params["VFL/method"] == "vfl" and params["VFL/widths"] == "[8, 4]"
    assert len(params["VFL/words"]) == 500
    assert tags_of(record)["fedmend.best"] == "VFL"
    # where tables are is not told
    assert "secret" not in json.dumps([[*metrics_of(record)], params, tags_of(record)])


def test_without_the_package_the_extra_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedmend\[mlflow\]'"):
        Tracker("sqlite:///mlflow.db", "a study")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of mlflow's own code
def test_a_run_is_logged_with_its_report(record, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a file's artifacts lie beside it
    mlflow = pytest.importorskip("mlflow")
    folder = tmp_path / "june"
    folder.mkdir()
    (folder / "report.html").write_text("the report")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = Tracker(uri, "a study").log(record, folder)
    client = mlflow.MlflowClient(tracking_uri=uri)
    found = client.get_run(run)
    assert found.info.run_name == "june" and found.info.status == "FINISHED"
    assert found.data.metrics["auc"] == pytest.approx(0.85)
    assert [each.path for each in client.list_artifacts(run)] == ["report.html"]
    losses = client.get_metric_history(run, "VFL/training/loss")
    assert [(each.step, each.value) for each in losses] == [(1, 0.5), (2, 0.25)]
    with pytest.raises(ConfigError, match="cannot be used"):
        Tracker("nothing://there", "a study")


class _Gone:
    """A server that goes away while a run trains."""

    def create_run(self, *given, **more):
        raise ConnectionError("it is gone.\nand more words")


def test_a_server_that_is_gone_afterwards_leaves_the_run(record, tmp_path):
    tracker = object.__new__(Tracker)
    tracker.uri, tracker._client, tracker._experiment = "http://there", _Gone(), "1"
    tracker._entities = (None, None, None)
    with pytest.raises(FedmendError, match="is done and in .* it is gone. Mend: .*--resume"):
        tracker.log(record, tmp_path)
