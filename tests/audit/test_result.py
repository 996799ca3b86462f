"""How much of a leak is called so."""

from __future__ import annotations

import pytest

from fedmend.audit.result import AuditReport, Finding


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
def test_grades_are_shares_of_what_was_left_to_find(score, guess, grade) -> None:
    assert finding(score, guess).grade == grade


def test_what_may_be_chance_is_not_shown() -> None:
    assert finding(0.9, 0.5, gain_low=0.0).grade == "not shown"
    assert finding(0.9, 0.5, gain_low=float("nan")).grade == "not shown"


def test_settings_with_fewer_looks_stand_beside_each_other() -> None:
    fewer = finding(0.6, 0.5, from_="gradients (3 looks, direction)")
    report = AuditReport("VFL", findings=[finding(0.8, 0.5)], scores={"auc": 0.9})
    report.other = AuditReport("VFL", option="epochs=3", findings=[fewer], scores={"auc": 0.8})
    head, line, model = report.beside()
    assert head[3:5] == ["as given", "epochs=3"]
    assert line[3:5] == ["0.800 (strong)", "0.600 (some)"]
    assert model[:5] == ["the model itself", "auc", "", "0.900", "0.800"]
    report.other.findings[0] = finding(0.6, 0.5, what="votes")
    assert report.beside()[1][4] == "–"
