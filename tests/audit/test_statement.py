"""What a ledger alone says, and how much of a leak is called so."""

import pytest

from fedmend.audit.result import AuditReport, Finding
from fedmend.audit.statement import SEVERITIES, lines_of, statement
from fedmend.federation.kinds import KINDS
from fedmend.federation.ledger import Entry


def entry(**changes) -> Entry:
    values = {
        "time": 0.0, "until": 1.0, "sender": "telco", "receiver": "coordinator",
        "call": "BottomWorker.step", "kind": "embedding", "shape": "64x32", "dtype": "float32",
        "bytes": 8192, "count": 10,
    }  # fmt: skip
    return Entry(**(values | changes))


def test_every_kind_has_its_severity():
    assert {kind.severity for kind in KINDS.values()} == set(SEVERITIES)
    for kind in KINDS.values():
        assert bool(kind.lowered_by) == (kind.severity != "none")


def test_looks_are_lines_for_each_row():
    (found,) = statement([entry(), entry(shape="20x32", count=1)], rows=66)
    assert found.lines == 660
    assert found.looks == pytest.approx(10)
    assert found.severity == "high"
    assert found.crossings == 11
    assert statement([entry()])[0].looks is None


def test_the_most_telling_comes_first_and_encrypted_messages_tell_nothing():
    found = statement(
        [
            entry(kind="control", shape=""),
            entry(kind="row", sealed_for="bank"),
            entry(kind="gradient", sender="coordinator", receiver="telco"),
            entry(kind="row", note="refused", bytes=0),
        ]
    )
    assert [(each.kind, each.severity) for each in found] == [
        ("gradient", "high"), ("control", "none"), ("row", "none"),
    ]  # fmt: skip
    assert "sealed for bank" in found[-1].tells


def test_messages_tell_their_reader_and_nobody_how_many_lines_they_hold():
    sealed = {"shape": "8300", "dtype": "sealed bytes", "sealed_for": "bank"}
    found = statement(
        [entry(**sealed), entry(**sealed, sender="coordinator", receiver="bank")], rows=100
    )
    assert [(each.role, each.severity, each.looks) for each in found] == [
        ("bank", "high", None), ("coordinator", "none", None),
    ]  # fmt: skip


def test_what_the_coordinator_only_relays_can_be_sealed():
    relayed, received = statement([entry(), entry(sender="coordinator", receiver="bank")])[::-1]
    assert "seal = true" in relayed.mend
    assert "seal" not in received.mend
    (said,) = AuditReport(method="", readings=[relayed, received]).mends()  # once
    assert said == f"embedding: {relayed.mend}"


@pytest.mark.parametrize(
    ("shape", "dtype", "lines"),
    [
        ("64x32, 60x16 …", "float32", 640),
        ("1000", "bytes", 0),
        ("1000, 1000", "sealed bytes", 0),
        ("", "", 0),
        ("7", "int64", 70),
    ],
)
def test_lines_of(shape, dtype, lines):
    assert lines_of(entry(shape=shape, dtype=dtype)) == lines


def test_calls_that_were_refused_or_not_answered_hold_no_lines():
    never = [entry(note=note, count=5) for note in ("refused", "unanswered")]
    (found,) = (each for each in statement([entry(), *never], rows=64) if each.lines)
    assert (found.lines, found.looks) == (640, 10)


def finding(score: float, guess: float, gain_low: float = 0.01, **changes) -> Finding:
    values = {
        "attack": "some", "role": "telco", "from_": "gradients (10 looks, direction)",
        "about": "bank", "what": "labels", "metric": "AUC", "score": score, "low": score,
        "high": score, "guess": guess, "gain": score - guess, "gain_low": gain_low,
        "gain_high": 1.0, "known": 0, "rows": 100, "paper": "", "mend": "less",
    }  # fmt: skip
    return Finding(**(values | changes))


@pytest.mark.parametrize(
    ("score", "guess", "grade"),
    [
        (0.76, 0.5, "strong"), (0.74, 0.5, "some"), (0.56, 0.5, "some"), (0.54, 0.5, "little"),
        # Of what there was left to find, not of all there is.
        (0.96, 0.9, "strong"), (0.94, 0.9, "some"), (0.905, 0.9, "little"),
        (1.0, 1.0, "little"),
    ],
)  # fmt: skip
def test_grades_are_shares_of_what_was_left_to_find(score, guess, grade):
    assert finding(score, guess).grade == grade


def test_what_may_be_chance_is_not_shown():
    assert finding(0.9, 0.5, gain_low=0.0).grade == "not shown"
    assert finding(0.9, 0.5, gain_low=float("nan")).grade == "not shown"


def test_settings_with_fewer_looks_stand_beside_each_other():
    fewer = finding(0.6, 0.5, from_="gradients (3 looks, direction)")
    report = AuditReport("VFL", findings=[finding(0.8, 0.5)], scores={"auc": 0.9})
    report.other = AuditReport("VFL", option="epochs=3", findings=[fewer], scores={"auc": 0.8})
    head, line, model = report.beside()
    assert head[3:5] == ["as given", "epochs=3"]
    assert line[3:5] == ["0.800 (strong)", "0.600 (some)"]
    assert model[:5] == ["the model itself", "AUC", "", "0.900", "0.800"]
    report.other.findings[0] = finding(0.6, 0.5, what="votes")
    assert report.beside()[1][4] == "–"
