from __future__ import annotations

import pytest

from fedmend.federation.engines.flare.events import Events, printable, read_events


@pytest.mark.parametrize("text", ["Zürich, 東京 – 1 000\u00a0€", "two\nlines", "", "a\u2009b"])
def test_words_stay_as_they_are(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    "bad", ["\x1b", "\r", "\x07", "\x00", "\t", "\u202e", "\u200b", "\udc80", "\x9b"]
)
def test_what_moves_the_cursor_or_hides_is_replaced(bad):
    assert printable(f"a{bad}b") == "a\ufffdb"


def test_events_are_read_from_where_one_left_off(tmp_path):
    events = Events(tmp_path / "events.jsonl")
    events.note("one")
    ((first, offset),) = read_events(events.path)
    assert first.words == "one"
    events.note("two\nmore", "refused")
    ((second, end),) = read_events(events.path, offset)
    assert (second.words, second.level) == ("two\n    more", "refused")
    assert list(read_events(events.path, end)) == []


def test_a_full_disk_stops_nothing(tmp_path, caplog):
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    Events(tmp_path / "events.jsonl").note("lost")
    assert "No space left" in caplog.text
