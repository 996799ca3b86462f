from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.federation import Entry
from fedmend.federation.reconcile import reconcile


def entry(call="W.step", kind="embedding", sender="bank", count=1, time=100.0, at=0, **more):
    """`at`: the number of the message, or of the first and the last of several."""
    receiver = "coordinator" if sender == "bank" else "bank"
    first, last = at if isinstance(at, tuple) else (at, at)
    return Entry(
        time, time, sender, receiver, call, kind, more.pop("shape", "4x3"), "float32",
        more.pop("nbytes", 60), count, message=first, until_message=last, **more,
    )  # fmt: skip


def begin(name="one", time=90.0):
    note = f"session {name}"
    return entry("session", "control", "coordinator", note=note, shape="", nbytes=0, time=time)


CLOSED = entry("session", "control", "coordinator", note="closed", shape="", nbytes=0, time=105.0)
BOTH = [
    entry("W.start", "control", "coordinator", at=1),
    entry("W.start", "control", at=1),
    entry("W.step", "gradient", "coordinator", count=9, at=(2, 10)),
    entry("W.step", count=9, at=(2, 10)),
    entry("W.sums", "statistic", at=11),
]


def grades(ours, theirs, closed=True):
    """Of one session, which the coordinator closed or in which it was killed."""
    ours = [begin(), *ours, *([CLOSED] if closed else [])]
    return sorted(each.grade for each in reconcile(ours, "bank", [begin(), *theirs]))


def differences(ours, theirs):
    return reconcile([begin(), *ours, CLOSED], "bank", [begin(), *theirs])


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
        (found,) = differences(ours, theirs)
        assert found.grade == "missing"
        assert BOTH[number].call in found.words


@pytest.mark.parametrize(
    "change",
    [{"bytes": 61}, {"shape": "4x4"}, {"kind": "statistic"}, {"sealed_for": "x"}, {"note": "x"}],
    ids=str,
)
def test_an_altered_entry_is_found(change):
    theirs = [*BOTH[:3], replace(BOTH[3], **change), BOTH[4]]
    (found,) = differences(BOTH, theirs)
    assert found.grade == "altered"
    assert "bank has" in found.words


def test_an_altered_count_is_found():
    theirs = [*BOTH[:3], replace(BOTH[3], count=8), BOTH[4]]
    (found,) = differences(BOTH, theirs)
    assert "9 at coordinator, 8 at bank" in found.words


def test_an_altered_time_is_found():
    theirs = [*BOTH[:4], replace(BOTH[4], time=9000.0, until=9000.0)]
    assert grades(BOTH, theirs) == ["time"]
    # The first of them at its time, and the last not.
    longer = [*BOTH[:3], replace(BOTH[3], until=9000.0), BOTH[4]]
    assert grades(BOTH, longer) == grades(longer, BOTH) == ["time"]


def test_a_session_that_one_side_does_not_have_is_missing():
    found = reconcile([begin(), *BOTH, CLOSED], "bank", [])
    assert {each.grade for each in found} == {"missing"}
    assert {each.grade for each in reconcile([], "bank", [begin(), *BOTH])} == {"missing"}


# ---------------------------------------------------------------- a party that was killed

REQUEST = entry("W.step", "gradient", "coordinator", time=104.0, at=12)
SILENCE = entry("W.step", note="unanswered", shape="", nbytes=0, time=105.0, at=12)


def test_a_call_that_was_not_answered_explains_its_request():
    assert grades([*BOTH, REQUEST, SILENCE], BOTH) == ["explained"]
    asked = entry("W.sums", "statistic", "coordinator", time=104.0, at=12)
    unanswered = replace(SILENCE, call="W.sums", kind="statistic")
    assert grades([*BOTH, asked, unanswered], BOTH) == ["explained"]
    # A request of the same call in another message, or of another call, is not its own.
    for other in (replace(asked, message=11, until_message=11), replace(asked, call="W.other")):
        assert grades([*BOTH, other, unanswered], BOTH) == ["missing"]


def test_it_explains_its_answer_and_no_more():
    answer = entry("W.step", time=104.5, at=12)
    ours, theirs = [*BOTH, REQUEST, SILENCE], [*BOTH, REQUEST]
    assert grades(ours, [*theirs, answer]) == ["explained"]
    assert grades(ours, [*theirs, replace(answer, count=2)]) == ["missing"]
    assert grades(ours, [*theirs, answer, replace(answer, shape="9x9")]) == [
        "explained",
        "missing",
    ]
    assert grades(ours, [*theirs, replace(answer, call="W.other")]) == ["missing"]
    # An answer before the message that was not answered did arrive.
    fewer = [*BOTH[:3], replace(BOTH[3], count=8), BOTH[4], REQUEST, SILENCE]
    assert grades(fewer, theirs) == ["missing"]
    sums = entry("W.sums", "statistic", time=104.5, at=12)
    assert grades([*ours, replace(SILENCE, call="W.sums")], [*theirs, sums]) == ["explained"]
    assert grades(ours, [*theirs, sums]) == ["missing"]


def test_it_does_not_explain_a_statistic_that_was_left_out():
    assert grades([*BOTH, REQUEST, SILENCE], [*BOTH[:4], REQUEST]) == ["missing"]


def test_a_killed_party_lost_its_last_window_only():
    """It had written messages up to 10, was killed in a loop at 104, and noticed at 120."""
    loop = [
        entry("W.step", "gradient", "coordinator", count=12, time=103.5, at=(12, 34)),
        entry("W.step", count=12, time=103.5, at=(12, 34)),
        entry("W.save", "control", "coordinator", time=103.2, at=35),
    ]
    silence = replace(SILENCE, time=120.0, until=120.0, message=36, until_message=36)
    asked = replace(REQUEST, message=36, until_message=36)
    ours = [*BOTH, *loop, asked, silence]
    assert grades(ours, BOTH) == ["explained"] * 3
    # Nothing of what lies before that window,
    assert grades(ours, [*BOTH[:3], BOTH[4]]) == ["explained", "explained", "missing"]
    # nor of what it wrote in it: it has message 34, so all before it was written as well.
    assert grades(ours, [*BOTH, loop[1], replace(loop[0], count=2)]) == ["explained", "missing"]
    # A loop that went on for minutes was written every second, whatever the party says.
    long = [
        replace(BOTH[2], time=10.0 * n, until=10.0 * n, message=9 * n, until_message=9 * n)
        for n in range(1, 12)
    ]
    assert grades([*long, replace(SILENCE, message=100, until_message=100)], []) == ["missing"]


def test_a_crash_explains_nothing_that_lies_a_minute_later():
    """The party was killed, came back in a session of its own, and took 52 crossings out of it."""
    again = [
        entry("W.step", "gradient", "coordinator", count=60, time=165.0, at=(1, 60)),
        entry("W.step", count=60, time=165.0, at=(1, 60)),
    ]
    crashed = [begin(), *BOTH, REQUEST, SILENCE, CLOSED]
    ours = [*crashed, begin("two", 160.0), *again, CLOSED]
    theirs = [begin(), *BOTH, begin("two", 160.0), *again]
    assert [each.grade for each in reconcile(ours, "bank", theirs)] == ["explained"]
    for fewer in ([replace(again[0], count=8), again[1]], [again[0], replace(again[1], count=8)]):
        theirs = [begin(), *BOTH, begin("two", 160.0), *fewer]
        found = sorted(each.grade for each in reconcile(ours, "bank", theirs))
        assert found == ["explained", "missing"]


def test_two_calls_that_one_side_has_each_are_not_one_that_was_altered():
    ours, theirs = entry("W.a", "statistic", at=12), entry("W.b", "statistic", at=12)
    assert grades([*BOTH, ours], [*BOTH, theirs]) == ["missing", "missing"]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.booleans(), st.data())
def test_taking_any_crossing_out_is_noticed(counts, crashed, data):
    """Whether or not the same session ended in a crash, later."""
    ledger = [entry(f"W.m{number}", count=count) for number, count in enumerate(counts)]
    at = data.draw(st.integers(0, len(ledger) - 1))
    changed = list(ledger)
    changed[at] = replace(
        ledger[at], count=ledger[at].count + data.draw(st.sampled_from([-1, 1, 3]))
    )
    changed = [each for each in changed if each.count]
    tail = [REQUEST, SILENCE] if crashed else []
    assert grades([*ledger, *tail], [*ledger, *tail[:1]]) == []
    assert grades([*ledger, *tail], [*changed, *tail[:1]]) == ["missing"]


# ---------------------------------------------------------------- a coordinator that was killed


def killed_and_resumed(theirs_more=(), ours_more=()):
    """The coordinator wrote message 11 last, was killed, and went on in another session."""
    again = [entry("W.step", "gradient", "coordinator", count=5, time=131.0, at=(1, 5))]
    again += [entry("W.step", count=5, time=131.0, at=(1, 5))]
    ours = [begin(), *BOTH, *ours_more, begin("two", 130.0), *again, CLOSED]
    theirs = [begin(), *BOTH, *theirs_more, begin("two", 130.0), *again]
    return sorted(each.grade for each in reconcile(ours, "bank", theirs))


def test_a_coordinator_that_was_killed_lost_its_last_window():
    lost = [
        entry("W.step", "gradient", "coordinator", count=40, time=100.9, at=(12, 51)),
        entry("W.step", count=40, time=100.9, at=(12, 51)),
    ]
    assert killed_and_resumed() == []
    assert killed_and_resumed(theirs_more=lost) == ["explained"] * 2
    # Of a session that it closed, nothing is lost.
    assert grades(BOTH, [*BOTH, *lost]) == ["missing"] * 2
    # Nor do messages that it had passed, or seconds long before the end, explain anything.
    early = [replace(each, message=2, until_message=10) for each in lost]
    assert killed_and_resumed(theirs_more=early) == ["missing"] * 2
    old = [replace(each, time=50.0, until=50.0) for each in lost]
    assert killed_and_resumed(theirs_more=old) == ["missing"] * 2


def test_it_lost_one_answer_that_came_too_late_and_no_statistic_besides():
    late = entry("W.mean", "statistic", time=101.5, at=12)
    assert killed_and_resumed(theirs_more=[late]) == ["explained"]
    assert killed_and_resumed(theirs_more=[replace(late, count=2)]) == ["missing"]
    asked = entry("W.mean", "statistic", "coordinator", time=101.5, at=12)
    assert killed_and_resumed(theirs_more=[asked]) == ["missing"]  # it is written before it goes


def test_what_it_had_written_and_not_yet_asked_is_explained():
    asked = entry("W.mean", "statistic", "coordinator", time=100.5, at=12)
    assert killed_and_resumed(ours_more=[asked]) == ["explained"]
    assert killed_and_resumed(ours_more=[replace(asked, count=2)]) == ["missing"]
    answer = entry("W.mean", "statistic", time=100.5, at=12)
    assert killed_and_resumed(ours_more=[answer]) == ["missing"]
