from __future__ import annotations

import json
import threading

import pytest

from fedmend.cli import main
from fedmend.deploy.consent import Question, ask, give_answer, open_question, party_of
from fedmend.errors import ConfigError, Refused
from fedmend.federation.engines.flare.host import Hello

HELLO = Hello("r1", "spring run", ("VFL", "Local"), 0, 0.25)


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_client.json").write_text(json.dumps({"client": {"fqsn": "bank"}}))
    return tmp_path


class Asked:
    """A party that is being asked in the background."""

    def __init__(self, kit, seconds=20.0):
        self.error = None
        self.thread = threading.Thread(target=self.ask, args=(kit, seconds))
        self.thread.start()
        while open_question(kit) is None and self.thread.is_alive():
            pass

    def ask(self, kit, seconds):
        try:
            ask(kit, HELLO, seconds)
        except Refused as error:
            self.error = error

    def outcome(self):
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.error


def test_yes(kit):
    asked = Asked(kit)
    question = open_question(kit)
    assert question.words == "run 'spring run' with VFL, Local"
    assert give_answer(kit, True) == question
    assert asked.outcome() is None
    assert open_question(kit) is None


def test_no(kit):
    asked = Asked(kit)
    give_answer(kit, False)
    assert "party 'bank' refused: the people there said no" in str(asked.outcome())


def test_silence_is_a_no(kit):
    assert "nobody there said yes within 0 s" in str(Asked(kit, 0.3).outcome())
    assert open_question(kit) is None


def test_a_yes_to_another_run_is_not_a_yes_to_this(kit):
    asked = Asked(kit)
    (kit / "answer.txt").write_text("yes r0")
    assert "said no" in str(asked.outcome())


def test_an_answer_left_from_before_is_no_answer(kit):
    (kit / "answer.txt").write_text("yes r1")
    assert "nobody there said yes" in str(Asked(kit, 0.5).outcome())


def test_a_coordinators_words_stay_on_their_line_and_move_no_cursor():
    question = Question("r1", "a\x1b[2Jb\nc", ("VFL\x1b[1A", "Local\napproved"), 0.0)
    assert not set(question.words) & {"\x1b", "\n"}
    assert "Local approved" in question.words
    assert Question("r1", "t", (), 0.0).words == "run 't' with no named method"


def test_an_answer_without_a_question(kit):
    with pytest.raises(ConfigError, match="nothing waits"):
        give_answer(kit, True)


def test_the_commands(kit, capsys):
    asked = Asked(kit)
    with pytest.raises(SystemExit) as ended:
        main(["party", "refuse", str(kit)])
    assert not ended.value.code
    assert "refused: run 'spring run'" in capsys.readouterr().out
    assert asked.outcome() is not None


def test_the_party_of_a_kit(kit):
    assert party_of(kit) == "bank"
