from __future__ import annotations

import io
import json
import os
import threading

import pytest
from rich.console import Console

from fedmend.cli.parties import start
from fedmend.deploy.consent import TOO_LATE, Question, ask, give_answer, open_question
from fedmend.deploy.party_screen import PartyScreen, forget_typed, keyboard_answer
from fedmend.errors import ConfigError
from fedmend.federation.engines.flare.events import Events
from fedmend.federation.engines.flare.host import Hello
from fedmend.federation.ledger import Ledger
from fedmend.federation.wire import measure

from .conftest import Asked


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


def test_a_damaged_line_of_the_ledger_is_told_and_the_next_shown(screen, tmp_path):
    shown = screen()
    ledger = Ledger(tmp_path / "ledgers" / "r1.jsonl")
    ledger.path.write_text('{"time": 1.0, "un{"time": 2.0}\n[1]\n')
    ledger.record("bank", "coordinator", "W.sums", "statistic", measure(1))
    ledger.close()
    shown.tick()
    assert shown.text().count("a damaged line in r1.jsonl") == 2
    assert "→ W.sums: statistic" in shown.text()


def test_an_answer_that_comes_too_late_is_told_and_ends_nothing(screen, tmp_path):
    def late():
        (tmp_path / "question.json").unlink()  # the coordinator has left meanwhile
        return True

    shown = screen(late)
    question(tmp_path)
    shown.tick()
    assert "too late" in shown.text()
    assert not (tmp_path / "answer.txt").exists()
    shown.tick()


def test_what_was_typed_before_a_question_does_not_answer_it(tmp_path):
    typed, asked = ["y"], []

    def answer():
        return typed.pop() == "y" if typed else None

    def forget():
        asked.append(open_question(tmp_path).run)
        typed.clear()

    shown = PartyScreen(tmp_path, Console(file=io.StringIO(), width=200), answer, forget)
    shown.tick()
    question(tmp_path)
    for _ in range(3):
        shown.tick()
    assert asked == ["r1"] and not (tmp_path / "answer.txt").exists()
    typed.append("y")
    shown.tick()
    assert (tmp_path / "answer.txt").read_text() == "yes r1"


def test_the_keyboard_is_read_by_lines_and_can_be_forgotten(monkeypatch):
    us, them = os.openpty()
    with open(them, encoding="utf-8") as terminal, open(us, "wb", buffering=0) as keys:
        monkeypatch.setattr("sys.stdin", terminal)
        assert keyboard_answer() is None
        for words, meaning in ((b"yes\n", True), (b"Y\n", True), (b"nope\n", False)):
            keys.write(words)
            assert keyboard_answer() is meaning
        keys.write(b"y\n")
        forget_typed()
        assert keyboard_answer() is None


def test_a_call_named_from_elsewhere_cannot_paint_on_the_screen(screen, tmp_path):
    shown = screen()
    ledger = Ledger(tmp_path / "ledgers" / "r1.jsonl")
    ledger.record("coordinator", "bank", "W.\x1b[2J\nsums", "control", measure(1))
    ledger.close()
    shown.tick()
    assert "← W.\ufffd[2J sums: control" in shown.text() and "\x1b" not in shown.text()


def test_what_happened_is_shown_in_order(screen, tmp_path):
    """A training loop's crossings of one second reach the file after the refusal in the middle."""
    shown = screen()
    events = Events(tmp_path / "events.jsonl")
    ledger = Ledger(tmp_path / "ledgers" / "r1.jsonl")
    ledger.record("bank", "coordinator", "W.step", "embedding", measure(b"abc"))
    ledger.record("coordinator", "bank", "W.sums", "statistic", measure(1))
    events.note("the end")
    ledger.close()
    shown.tick()
    words = [line.split("  ", 1)[1] for line in shown.text().splitlines()]
    assert [each.split(":")[0] for each in words] == ["→ W.step", "← W.sums", "the end"]


@pytest.mark.parametrize("somebody", [True, False])
def test_party_start_asks_at_the_keyboard_where_somebody_sits(workshop, monkeypatch, somebody):
    workshop.write()
    kit = workshop.folder
    (kit / "startup").mkdir()
    (kit / "startup" / "fed_client.json").write_text('{"client": {"fqsn": "bank"}}')
    (kit / "party.toml").write_text('name = "bank"\ndata = "bank.csv"\nid = "customer"\n')
    made = []

    class Screen:
        def __init__(self, *given):
            made.append(given)

        def tick(self):
            pass

    monkeypatch.setattr("fedmend.deploy.party_screen.PartyScreen", Screen)
    monkeypatch.setattr("fedmend.deploy.processes.Daemon.supervise", lambda daemon, tick: tick())
    monkeypatch.setattr("sys.stdin.isatty", lambda: somebody, raising=False)
    start(kit)
    ((_, _, answer, forget),) = made
    assert (answer, forget) == ((keyboard_answer, forget_typed) if somebody else (None, None))


# ---------------------------------------------------------------- the question before a run

HELLO = Hello("r1", "spring run", ("VFL", "Local"), 0, 0.25)


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_client.json").write_text(json.dumps({"client": {"fqsn": "bank"}}))
    return tmp_path


def asking(kit, seconds=20.0):
    return Asked(kit, lambda: ask(kit, HELLO, seconds))


def test_yes(kit):
    asked = asking(kit)
    question = open_question(kit)
    assert question.words == "run 'spring run' with VFL, Local"
    assert give_answer(kit, True) == question
    assert asked.outcome() is None
    assert open_question(kit) is None


def test_silence_is_a_no(kit):
    assert "nobody there said yes within 0 s" in str(asking(kit, 0.3).outcome())
    assert open_question(kit) is None


def test_a_question_is_withdrawn_when_the_job_ends(kit, fedmend):
    over = threading.Event()
    asked = Asked(kit, lambda: ask(kit, HELLO, 20.0, over=over.is_set))
    over.set()
    assert "nobody waits for an answer any more" in str(asked.outcome())
    assert open_question(kit) is None
    code, out, err = fedmend("party", "allow", kit)
    assert (code, out) == (2, "") and TOO_LATE in err and not (kit / "answer.txt").exists()
    asked = asking(kit)  # by the next run
    give_answer(kit, True)
    assert asked.outcome() is None
    with pytest.raises(ConfigError, match="nothing waits"):
        give_answer(kit, True)


def test_a_yes_to_another_run_is_not_a_yes_to_this(kit):
    asked = asking(kit)
    (kit / "answer.txt").write_text("yes r0")
    assert "said no" in str(asked.outcome())


def test_an_answer_left_from_before_is_no_answer(kit):
    (kit / "answer.txt").write_text("yes r1")
    assert "nobody there said yes" in str(asking(kit, 0.5).outcome())


def test_a_coordinators_words_stay_on_their_line_and_move_no_cursor():
    question = Question("r1", "a\x1b[2Jb\nc", ("VFL\x1b[1A", "Local\napproved"), 0.0)
    assert not set(question.words) & {"\x1b", "\n"}
    assert "Local approved" in question.words
    assert Question("r1", "t", (), 0.0).words == "run 't' with no named method"


def test_an_answer_without_a_question(kit):
    with pytest.raises(ConfigError, match="nothing waits"):
        give_answer(kit, True)


def test_no_by_the_command(kit, fedmend):
    asked = asking(kit)
    code, out, _ = fedmend("party", "refuse", kit)
    assert code == 0 and "refused: run 'spring run'" in out
    assert "party 'bank' refused: the people there said no" in str(asked.outcome())
