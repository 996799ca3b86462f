"""Numbers as people write them, and the ledger in words."""

from __future__ import annotations

import pytest
from tests.report.conftest import crossing

from fedmend.federation.kinds import KINDS
from fedmend.report.amounts import (
    about,
    human_bytes,
    human_seconds,
    in_bytes,
    in_time,
    listed,
    percent,
    pretty,
    score_text,
)
from fedmend.report.words import EXPOSURES, flows, what_was_seen

WRITTEN = {
    human_bytes: {0: "0 B", 999: "999 B", 1000: "1.0 kB", 99_949: "99.9 kB", 99_950: "100 kB",
                  999_499: "999 kB", 999_500: "1.0 MB", 5_200_000: "5.2 MB", 3 * 10**15: "3000 TB"},
    human_seconds: {0.04: "0.0 s", 9.94: "9.9 s", 12.4: "12 s", 60: "1 min", 200: "3 min 20 s",
                    7500: "2 h 5 min"},
    in_time: {0.2: "under 1 s", 14.6: "10 s", 87: "90 s", 200: "3 min", 9000: "2 h"},
    about: {14.6: "about 10 s", 0.2: "under 1 s"},
    in_bytes: {3000: "3 kB", 48e6: "50 MB", 2.2e9: "2 GB", 5e12: "5 TB"},
    percent: {
        0: "0 %", 0.0004: "under 0.1 %", 0.042: "4.2 %", 0.0996: "10 %", None: "–",
        0.994: "99 %", 0.9966: "99.7 %", 0.9999: "over 99.9 %", 1: "100 %",
    },
    score_text: {0.83649: "0.836", -0.2: "-0.200", 12.345: "12.35", 1162.369: "1,162.4",
                 45e3: "45,000"},
    pretty: {"auc": "AUC", "r2": "R²", "log_loss": "log loss", "accuracy": "accuracy"},
    listed: {("a",): "a", ("a", "b"): "a and b", ("a", "b", "c"): "a, b and c"},
}  # fmt: skip


@pytest.mark.parametrize("write", WRITTEN)
def test_amounts(write):
    assert {value: write(value) for value in WRITTEN[write]} == WRITTEN[write]


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
    assert coordinator.graded() == [
        ("signals", "420 batches of embeddings from bank (5.0 MB)."),
        ("nothing", "1 sealed value passed on unread (20.0 kB)."),
    ]
    assert [exposure for exposure, _ in bank.graded()] == ["signals", "nothing"]
    assert telco.graded() == [("nothing", "1 list of blinded ids (20.0 kB).")]
    assert silent.headline == "silent received nothing."
    assert [saw.role for saw in what_was_seen(entries, party="bank")] == ["bank"]


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


@pytest.mark.parametrize("note", ["unanswered", "session 0f", "closed", "cut", "head 3 ab"])
def test_what_never_crossed_is_not_told_as_seen(note):
    nothing = crossing("bank", "coordinator", "row", size=0, note=note)
    assert flows([nothing]) == []
    refused = crossing("bank", "coordinator", "row", size=0, note="refused")
    (flow,) = flows([nothing, refused])
    assert flow.refused and flow.exposure == "nothing"
