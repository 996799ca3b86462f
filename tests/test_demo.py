from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedmend import demo
from fedmend.config import load_config
from fedmend.flow import Method
from fedmend.report.record import RunRecord


@pytest.fixture
def short(monkeypatch):
    """The demo with few epochs and one seed: its story, not its figures."""
    methods = [Method(each.name, each.title, {"epochs": 3}) for each in demo.METHODS]
    monkeypatch.setattr(demo, "METHODS", methods)
    monkeypatch.setattr(demo, "SEEDS", (0,))


def test_tables_are_torn_as_told():
    train, test = demo.demo_tables()
    a, b = train["hospital-a"], train["hospital-b"]
    assert (len(a), len(b)) == (427, 427)
    shared = set(a.ids) & set(b.ids)
    assert len(shared) == round(0.2 * 427)
    assert a.label == "diagnosis" and b.label is None
    assert len(a.feature_names) + len(b.feature_names) == 30
    assert not set(a.feature_names) & set(b.feature_names)
    assert set(test["hospital-a"].ids) == set(test["hospital-b"].ids)
    assert not set(test["hospital-a"].ids) & (set(a.ids) & set(b.ids))


def test_story_report_ledger_and_a_file_to_change(short, tmp_path):
    stream = io.StringIO()
    out = tmp_path / "demo-run"
    demo.run_demo(out, Console(file=stream, width=100))
    text = " ".join(stream.getvalue().split())
    for part in (
        "342 of hospital-a's 427 rows (80 %) are not linked to hospital-b",
        "Local", "VFL", "LocalVFL",
        "No row and no label left a party in the clear.",
        "The coordinator saw", "hospital-a received", "hospital-b received", "report.html",
    ):  # fmt: skip
        assert part in text, part
    assert (out / "report.html").is_file() and (out / "ledger.jsonl").is_file()
    assert len(RunRecord.load(out).methods) == 3
    config = load_config(out / "federation.toml")
    assert all(config.at(party.data).is_file() for party in config.party)
    demo.run_demo(out, Console(file=stream, width=100))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["demo-run"]


def test_the_closing_sentence_says_what_was_measured(short, tmp_path):
    record = demo.run_demo(tmp_path / "d", Console(file=io.StringIO()))
    for run in record.methods:
        run.scores["auc"] = {"Local": 0.95, "VFL": 0.99, "LocalVFL": 0.98}[run.title]
    assert "in 5.0 % of cases; together the hospitals do in 1.0 %" in demo._closing(record)
    for run in record.methods:
        run.scores["auc"] = 0.9
    assert "no better than hospital A alone" in demo._closing(record)


@pytest.mark.slow
def test_together_is_better_than_alone(tmp_path):
    record = demo.run_demo(tmp_path / "d", Console(file=io.StringIO()))
    means = {each.title: each.mean["auc"] for each in record.summaries()}
    assert means["VFL"] > means["Local"] + 0.01
    assert means["LocalVFL"] > means["Local"] + 0.01
