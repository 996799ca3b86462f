from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.federation import Entry
from fedmend.federation.reconcile import reconcile


def entry(call="W.step", kind="embedding", sender="bank", count=1, time=100.0, **more):
    receiver = "coordinator" if sender == "bank" else "bank"
    return Entry(
        time, time, sender, receiver, call, kind, more.pop("shape", "4x3"), "float32",
        more.pop("nbytes", 60), count, **more,
    )  # fmt: skip


BOTH = [
    entry("W.start", "control", "coordinator"),
    entry("W.start", "control"),
    entry("W.step", "gradient", "coordinator", count=9),
    entry("W.step", count=9),
    entry("W.sums", "statistic"),
]


def grades(ours, theirs):
    return sorted(each.grade for each in reconcile(ours, "bank", theirs))


def test_equal_ledgers_agree_however_their_windows_fall():
    theirs = [*BOTH[:2], *(replace(BOTH[2], count=3, time=101.0, until=102.0),) * 3, *BOTH[3:]]
    assert grades(BOTH, theirs) == []


def test_entries_of_other_parties_do_not_matter():
    other = replace(BOTH[3], sender="telco")
    assert grades([*BOTH, other], BOTH) == []


@pytest.mark.parametrize("number", range(len(BOTH)))
def test_a_missing_entry_is_found_on_either_side(number):
    fewer = BOTH[:number] + BOTH[number + 1 :]
    for ours, theirs in ((BOTH, fewer), (fewer, BOTH)):
        (found,) = reconcile(ours, "bank", theirs)
        assert found.grade == "missing"
        assert BOTH[number].call in found.words


@pytest.mark.parametrize(
    "change",
    [{"bytes": 61}, {"shape": "4x4"}, {"kind": "statistic"}, {"sealed_for": "x"}, {"note": "x"}],
    ids=str,
)
def test_an_altered_entry_is_found(change):
    theirs = [*BOTH[:3], replace(BOTH[3], **change), BOTH[4]]
    (found,) = reconcile(BOTH, "bank", theirs)
    assert found.grade == "altered"
    assert "bank has" in found.words


def test_an_altered_count_is_found():
    theirs = [*BOTH[:3], replace(BOTH[3], count=8), BOTH[4]]
    (found,) = reconcile(BOTH, "bank", theirs)
    assert "9 at coordinator, 8 at bank" in found.words


def test_an_altered_time_is_found():
    theirs = [*BOTH[:4], replace(BOTH[4], time=9000.0, until=9000.0)]
    assert grades(BOTH, theirs) == ["time"]
    # The first of them at its time, and the last not.
    longer = [*BOTH[:3], replace(BOTH[3], until=9000.0), BOTH[4]]
    assert grades(BOTH, longer) == grades(longer, BOTH) == ["time"]


SILENCE = entry("W.step", note="unanswered", shape="", nbytes=0, time=105.0)


def test_a_call_that_was_not_answered_explains_the_request():
    ours = [*BOTH, entry("W.step", "gradient", "coordinator", time=104.0), SILENCE]
    assert grades(ours, BOTH) == ["explained"]


def test_it_explains_an_answer_that_did_not_arrive():
    request = entry("W.step", "gradient", "coordinator", time=104.0)
    answer = replace(BOTH[3], count=1)
    assert grades([*BOTH, request, SILENCE], [*BOTH, request, answer]) == ["explained"]


def test_it_does_not_explain_a_statistic_that_was_left_out():
    assert grades([*BOTH, SILENCE], BOTH[:4]) == ["missing"]


def test_it_does_not_explain_an_answer_that_came_and_is_not_in_the_partys_ledger():
    """Of the very call that another time was not answered; nor a request of another call."""
    sums = replace(SILENCE, call="W.sums")
    assert grades([*BOTH, sums], BOTH[:4]) == ["missing"]
    request = entry("W.other", "control", "coordinator", time=10.0)
    assert grades([*BOTH, request, sums], BOTH) == ["missing"]


def test_it_does_not_explain_what_is_missing_from_long_before():
    old = entry("W.old", "control", "coordinator", time=10.0, count=50)
    new = entry("W.old", "control", "coordinator", time=100.0)
    assert grades([*BOTH, old, new, SILENCE], [*BOTH, new]) == ["missing"]


def test_a_party_killed_before_it_wrote_a_line_lost_no_more_than_minutes():
    lost = entry("W.step", count=5, time=50.0)
    assert grades([lost, SILENCE], []) == ["explained"]
    assert grades([replace(lost, time=-900.0, until=-900.0), SILENCE], []) == ["missing"]


def test_two_calls_that_one_side_has_each_are_not_one_that_was_altered():
    ours, theirs = entry("W.a", "statistic"), entry("W.b", "statistic")
    assert grades([*BOTH, ours], [*BOTH, theirs]) == ["missing", "missing"]


def test_a_killed_party_that_came_back_lost_its_last_window_only():
    """It was killed at 104, noticed at 120, and resumed at 150 in the same ledger."""
    lost = [
        entry("W.step", "gradient", "coordinator", count=12, time=103.5),
        entry("W.step", count=12, time=103.5),
        entry("W.save", "control", "coordinator", time=103.2),
    ]
    silence = replace(SILENCE, time=120.0, until=120.0)
    again = [
        entry("W.step", "gradient", "coordinator", count=30, time=160.0),
        entry("W.step", count=30, time=160.0),
        entry("W.save", "control", "coordinator", time=160.0),
    ]
    theirs = [*BOTH, entry("W.sums", "statistic", time=102.9), *again]
    ours = [*BOTH, entry("W.sums", "statistic", time=102.9), *lost, silence, *again]
    assert grades(ours, theirs) == ["explained"] * 3
    # What it took out of what it wrote after it had come back is noticed.
    assert grades(ours, [*theirs[:-2], replace(again[1], count=10), again[2]]) == [
        "explained",
        "explained",
        "missing",
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_taking_any_crossing_out_is_noticed(counts, data):
    ledger = [entry(f"W.m{number}", count=count) for number, count in enumerate(counts)]
    at = data.draw(st.integers(0, len(ledger) - 1))
    changed = list(ledger)
    changed[at] = replace(
        ledger[at], count=ledger[at].count + data.draw(st.sampled_from([-1, 1, 3]))
    )
    changed = [each for each in changed if each.count]
    assert grades(ledger, ledger) == []
    assert grades(ledger, changed) == ["missing"]


def test_one_silence_explains_one_answer_and_no_more():
    unheard = entry("W.step", time=104.5)
    assert grades([*BOTH, SILENCE], [*BOTH, unheard]) == ["explained"]
    assert grades([*BOTH, SILENCE], [*BOTH, replace(unheard, count=2)]) == ["missing"]
    other = replace(unheard, shape="9x9")
    assert grades([*BOTH, SILENCE], [*BOTH, unheard, other]) == ["explained", "missing"]
    assert grades([*BOTH, replace(SILENCE, count=2)], [*BOTH, unheard, other]) == ["explained"] * 2
    assert grades([*BOTH, SILENCE], [*BOTH, replace(unheard, call="W.other")]) == ["missing"]


RESUMED = entry("run", "control", "coordinator", note="resumed", shape="", nbytes=0, time=130.0)


def killed_and_resumed(theirs_more=(), ours_more=()):
    """The coordinator wrote last at 100, was killed at 101, and went on at 130."""
    again = [entry("W.step", "gradient", "coordinator", count=5, time=131.0)]
    again += [entry("W.step", count=5, time=131.0)]
    return grades([*BOTH, *ours_more, RESUMED, *again], [*BOTH, *theirs_more, *again])


def test_a_coordinator_that_was_killed_lost_its_last_window():
    lost = [
        entry("W.step", "gradient", "coordinator", count=40, time=100.9),
        entry("W.step", count=40, time=100.9),
    ]
    assert killed_and_resumed() == []
    assert killed_and_resumed(theirs_more=lost) == ["explained"] * 2
    # Without the note of a process that went on, nothing explains them.
    assert grades(BOTH, [*BOTH, *lost]) == ["missing"] * 2
    # Nor what lies long before or after.
    for when in (50.0, 200.0):
        old = [replace(each, time=when, until=when) for each in lost]
        assert killed_and_resumed(theirs_more=old) == ["missing"] * 2


def test_it_lost_one_answer_that_came_too_late_and_no_statistic_besides():
    late = entry("W.mean", "statistic", time=101.5)
    assert killed_and_resumed(theirs_more=[late]) == ["explained"]
    assert killed_and_resumed(theirs_more=[replace(late, count=2)]) == ["missing"]
    asked = entry("W.mean", "statistic", "coordinator", time=101.5)
    assert killed_and_resumed(theirs_more=[asked]) == ["missing"]  # it is written before it goes


def test_what_it_had_written_and_not_yet_asked_is_explained():
    asked = entry("W.mean", "statistic", "coordinator", time=100.5)
    assert killed_and_resumed(ours_more=[asked]) == ["explained"]
    assert killed_and_resumed(ours_more=[replace(asked, count=2)]) == ["missing"]
    assert killed_and_resumed(ours_more=[entry("W.mean", "statistic", time=100.5)]) == ["missing"]
