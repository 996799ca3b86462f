from __future__ import annotations

import pytest

from fedmend.federation import Entry
from fedmend.federation.kinds import KINDS
from fedmend.report.amounts import human_bytes
from fedmend.report.words import EXPOSURES, flows, verdict, what_was_seen


def crossing(sender, receiver, kind, count=1, size=100, **more):
    return Entry(0.0, 1.0, sender, receiver, "Some.call", kind, "", "", size, count, **more)


def test_every_kind_has_a_grade():
    assert {kind.exposure for kind in KINDS.values()} == set(EXPOSURES)
    for kind in KINDS.values():
        assert (kind.exposure in ("signals", "clear")) == kind.by_row


def test_flows_add_up_to_the_ledger(entries):
    found = flows(entries + entries)
    assert sum(flow.crossings for flow in found) == 2 * sum(entry.count for entry in entries)
    assert sum(flow.bytes for flow in found) == 2 * sum(entry.total_bytes for entry in entries)
    assert len(found) == len(entries)


def test_coordinator_first_and_each_role_with_what_it_received(entries):
    seen = what_was_seen(entries, ["telco", "bank", "silent"])
    assert [saw.role for saw in seen] == ["coordinator", "telco", "bank", "silent"]
    coordinator, telco, bank, silent = seen
    assert coordinator.headline == "The coordinator saw 421 messages, 5.1 MB in all."
    assert coordinator.sentences() == [
        "From telco: 1 batch of labels in the clear asked for and refused.",
        "From bank: 1 list of blinded ids (20.0 kB), sealed for telco: passed on unread; "
        "and 420 batches of embeddings (5.0 MB).",
    ]
    assert telco.sentences() == ["From the coordinator: 1 list of blinded ids (20.0 kB)."]
    assert bank.crossings == 460
    assert silent.headline == "silent received nothing."


def test_party_narrows_it_down(entries):
    assert [saw.role for saw in what_was_seen(entries, party="bank")] == ["bank"]


def test_verdict_names_what_left_in_the_clear(entries):
    assert verdict(entries) == "No row and no label left a party in the clear."
    leak = [*entries, crossing("bank", "coordinator", "label", 3, 50)]
    assert verdict(leak) == (
        "Values left in the clear: bank gave 3 batches of labels in the clear (150 B) "
        "to the coordinator."
    )


def test_a_kind_of_a_later_version_is_told_as_it_is():
    (flow,) = flows([crossing("a", "coordinator", "sketch", 3)])
    assert flow.words == "3 values of kind 'sketch' (300 B)"
    assert flow.exposure == "signals"


def test_sealed_values_tell_the_relay_nothing():
    relayed, opened = flows(
        [
            crossing("a", "coordinator", "label", sealed_for="b"),
            crossing("coordinator", "b", "label", sealed_for="b"),
        ]
    )
    assert relayed.exposure == "nothing"
    assert opened.exposure == "clear"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_949, "99.9 kB"), (99_950, "100 kB"),
     (999_499, "999 kB"), (999_500, "1.0 MB"), (5_200_000, "5.2 MB"), (3 * 10**15, "3000 TB")],
)  # fmt: skip
def test_human_bytes(size, text):
    assert human_bytes(size) == text


@pytest.mark.parametrize("note", ["unanswered", "session 0f", "closed", "cut", "head 3 ab"])
def test_what_never_crossed_is_not_told_as_seen(note):
    nothing = crossing("bank", "coordinator", "row", size=0, note=note)
    assert flows([nothing]) == []
    assert verdict([nothing]) == "No row and no label left a party in the clear."
    refused = crossing("bank", "coordinator", "row", size=0, note="refused")
    assert len(flows([nothing, refused])) == 1
