from __future__ import annotations

import io

import pandas as pd
import pytest
from rich.console import Console

from fedmend.cli import demo
from fedmend.flow import read_manifest
from fedmend.flow.config import load_config
from fedmend.report.record import RunRecord

pytestmark = pytest.mark.usefixtures("bare_report")


@pytest.fixture
def short(monkeypatch):
    """The demo with one seed, few epochs and simple models: its story, not its figures."""
    text = demo.CONFIG.replace("seeds = [0, 1, 2]", "seeds = [0]")
    text = text.replace("epochs = 40", "epochs = 4")
    quick = 'epochs = 1 }\nmodel = "linear"\ncorrelation_mode = "dealer"'
    text = text.replace("epochs = 20 }", quick)
    for name in ("local", "vfl", "risa"):
        text = text.replace(f'name = "{name}"', f'epochs = 2\nname = "{name}"')
    monkeypatch.setattr(demo, "CONFIG", text)


def test_tables_are_torn_as_told():
    train, test, new = demo.demo_tables()
    a, b = train["hospital-a"], train["hospital-b"]
    assert (len(a), len(b)) == (427, 427)
    shared = set(a.ids) & set(b.ids)
    assert len(shared) == round(0.2 * 427)
    assert a.label == "diagnosis" and b.label is None
    assert len(a.feature_names) + len(b.feature_names) == 30
    assert not set(a.feature_names) & set(b.feature_names)
    assert set(test["hospital-a"].ids) == set(test["hospital-b"].ids)
    assert not set(test["hospital-a"].ids) & (set(a.ids) & set(b.ids))
    assert set(new["hospital-b"].ids) < set(new["hospital-a"].ids)
    assert not set(new["hospital-a"].ids) & (set(a.ids) | set(test["hospital-a"].ids))
    assert new["hospital-a"].names == a.feature_names, "new patients have no diagnosis"


def test_readers_err_as_told():
    train, test, _ = demo.demo_tables()
    truth = demo.datasets.load("breast-cancer")
    true = pd.Series(truth.y.to_numpy(), truth.ids)
    # Torn rows have numbers of their own: people are known by their tumours.
    a = train["hospital-a"]
    looks = a.feature_names
    known = dict(zip(map(tuple, truth.frame[looks].to_numpy()), truth.y, strict=True))
    rows = pd.Series([known[tuple(row)] for row in a.frame[looks].to_numpy()], a.ids)
    for name, wrong in demo.WRONG.items():
        said = pd.Series(train[name].y.to_numpy(), train[name].ids).dropna()
        assert set(train[name].ids) == set(a.ids)
        assert (said != rows[said.index]).mean() == pytest.approx(wrong, abs=0.05)
    assert train["laboratory"].y.isna().mean() == pytest.approx(demo.UNREAD, abs=0.07)
    tested = pd.Series(test["hospital-a"].y.to_numpy(), test["hospital-a"].ids)
    assert (tested == true[tested.index]).all(), "test diagnoses are the true ones"


def test_story_report_ledger_prediction_and_a_file_to_change(short, tmp_path):
    stream = io.StringIO()
    out = tmp_path / "demo-run"
    demo.run_demo(out, Console(file=stream, width=100))
    text = " ".join(stream.getvalue().split())
    for part in (
        "What would mend it", "Annotators who disagree",
        "The rows known to all grew from 85 to 427", "labels of hospital-a were corrected",
        "Local + corrected labels", "RISA + corrected labels + completed rows",
        "20 patients by", "10 of them known to the other hospital too",
        "No row and no label left a party in the clear, but values made of them did",
        "The coordinator saw", "hospital-a received", "registry received", "report.html",
    ):  # fmt: skip
        assert part in text, part
    assert (out / "report.html").is_file() and (out / "ledger.jsonl").is_file()
    assert len(RunRecord.load(out).methods) == 10
    assert {each.stage for each in read_manifest(out).entries} == {
        "align", "diagnose", "complete", "correct", "train", "evaluate", "report",
    }  # fmt: skip
    predicted = pd.read_csv(out / "predictions" / "hospital-a" / "predictions.csv")
    assert len(predicted) == 20 and predicted["prediction"].isin(["malignant", "benign"]).all()
    config = load_config(out / "federation.toml")
    assert all(config.at(party.data).is_file() for party in config.party)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["demo-run"]


def test_the_closing_sentence_says_what_was_measured():
    from fedmend.report.record import MethodRun

    def record(alone, best):
        runs = [
            MethodRun("local", "Local", 0, {}, [], {"auc": alone}, 0.0),
            MethodRun("vfl", "VFL + corrected labels", 0, {}, [], {"auc": best}, 0.0),
        ]
        return RunRecord("demo", runs, "auc")

    told = demo._closing(record(0.95, 0.99))
    assert "in 5.0 % of cases; VFL + corrected labels does in 1.0 %" in told
    assert "no better than hospital A alone" in demo._closing(record(0.95, 0.9))


@pytest.mark.slow
def test_together_is_better_than_alone(tmp_path):
    record = demo.run_demo(tmp_path / "d", Console(file=io.StringIO()))
    means = {each.title: each.mean["auc"] for each in record.summaries()}
    assert means["VFL"] > means["Local"] + 0.01
    assert means["Local + corrected labels"] > means["Local"] + 0.01
    assert means["VFL + corrected labels"] > means["Local + corrected labels"] + 0.01
