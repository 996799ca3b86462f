from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from fedmend.deploy.consent import open_question
from fedmend.deploy.party_screen import PartyScreen
from fedmend.federation.engines.flare.events import Events
from fedmend.federation.ledger import Ledger
from fedmend.federation.wire import measure


@pytest.fixture
def screen(tmp_path):
    def make(answer=None):
        console = Console(file=io.StringIO(), width=200)
        made = PartyScreen(tmp_path, console, answer)
        made.text = lambda: console.file.getvalue()
        return made

    return make


def test_events_and_crossings_are_shown_once(screen, tmp_path):
    Events(tmp_path / "events.jsonl").note("long ago")
    shown = screen()
    events = Events(tmp_path / "events.jsonl")
    ledger = Ledger(tmp_path / "ledgers" / "r1.jsonl")
    events.note("the coordinator asks for a run 'x'")
    for _ in range(3):
        ledger.record("bank", "coordinator", "W.step", "embedding", measure(b"abc"))
    ledger.record("coordinator", "bank", "W.sums", "statistic", measure(1), note="refused")
    ledger.close()
    shown.tick()
    shown.tick()
    text = shown.text()
    assert text.count("asks for a run 'x'") == 1
    assert "→ W.step: embedding 3 bytes, 24 bytes ×3" in text
    assert "← W.sums: statistic, 21 bytes (refused)" in text
    assert "long ago" not in text


def test_a_half_written_line_waits(screen, tmp_path):
    shown = screen()
    path = tmp_path / "events.jsonl"
    line = json.dumps({"time": 1.0, "level": "info", "words": "whole"})
    path.write_text(line[:10])
    shown.tick()
    assert shown.text() == ""
    path.write_text(line + "\n")
    shown.tick()
    assert "whole" in shown.text()


def test_a_damaged_line_is_told(screen, tmp_path):
    shown = screen()
    (tmp_path / "events.jsonl").write_text("nonsense\n")
    shown.tick()
    assert "a damaged line" in shown.text()


def question(tmp_path):
    content = {"run": "r1", "title": "spring", "methods": ["VFL"], "asked": 1.0}
    (tmp_path / "question.json").write_text(json.dumps(content))


def test_a_question_is_asked_and_the_answer_taken(screen, tmp_path):
    answers = iter([None, True])
    shown = screen(lambda: next(answers))
    question(tmp_path)
    shown.tick()
    assert not (tmp_path / "answer.txt").exists()
    shown.tick()
    assert (tmp_path / "answer.txt").read_text() == "yes r1"
    assert shown.text().count("may the coordinator run 'spring' with VFL?") == 1


def test_where_nobody_sits_the_commands_are_named(screen, tmp_path):
    shown = screen()
    question(tmp_path)
    shown.tick()
    assert "fedmend party allow | refuse" in shown.text()
    assert open_question(tmp_path) is not None
