"""Attacks on boosted trees: columns from sides and made-up sums, labels from the cuts in use."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.audit.trees import bins_by_made_up_numbers
from fedmend.methods.boosting.bins import CutTable

N = 600


def federation(min_rows: int = 1) -> fm.Federation:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.normal(size=(N, 4)).round(3), columns=["own", "size", "noise", "age"])
    frame["town"] = rng.choice(["Ulm", "Bonn", "Kiel"], N, p=[0.5, 0.3, 0.2])
    frame.loc[::11, "age"] = np.nan
    score = frame["own"] + 2 * frame["size"] + 3 * (frame["town"] == "Bonn") - 1
    score += frame["age"].fillna(0)
    frame["y"] = np.where(score + 0.3 * rng.normal(size=N) > 0, "yes", "no")
    policy = fm.Policy(min_rows=min_rows)
    bank = fm.Table(np.arange(N), frame[["own", "y"]], label="y")
    telco = fm.Table(np.arange(N), frame[["size", "noise", "age", "town"]])
    fed = fm.Federation(
        fm.Party("bank", bank, policy=policy), fm.Party("telco", telco, policy=policy), seed=1
    )
    fm.align(fed)
    return fed


CHEATS = "made-up sums, if it cheats"
HOW: dict[str, Any] = {"trees": 12, "depth": 3, "validation": 0.0}


@pytest.fixture(scope="module")
def report():
    return fm.Audit(attacks=["trees", "cuts"], known_labels=(40,)).run(
        federation(), fm.SecureBoost(**HOW, bins=16)
    )


def scores(report: Any, from_: str) -> dict[str, Any]:
    return {each.what: each for each in report.findings if each.from_ == from_}


def test_sides_tell_the_label_party_the_order_of_used_columns(report):
    found = scores(report, "sides of used cuts")
    assert found["size"].metric == "rank correlation" and found["size"].score > 0.9
    assert found["size"].role == "bank" and found["size"].grade == "strong"
    assert found["town"].metric == "accuracy" and found["town"].score > found["town"].guess


def test_made_up_sums_tell_the_bins_of_every_row_they_reach(report):
    honest, cheat = scores(report, "sides of used cuts"), scores(report, CHEATS)
    assert cheat["noise"].score > 0.98 and cheat["town"].score == 1.0
    assert all(cheat[name].score >= honest[name].score for name in honest)
    assert any("would open the bins of 600 of 600 rows" in fact for fact in report.facts)
    few = fm.Audit(attacks=["trees"]).run(
        federation(), fm.SecureBoost(trees=1, depth=2, validation=0.0)
    )
    assert scores(few, CHEATS)["size"].rows == 2 * 46


@pytest.mark.slow
def test_wider_bins_tell_less_but_not_by_much(report):
    """Four bins of a number still have a rank correlation of √(1 − 1/16) with it."""
    wide = fm.Audit(attacks=["trees"]).run(federation(150), fm.SecureBoost(**HOW))
    told = scores(wide, CHEATS)["size"].score
    assert told == pytest.approx(np.sqrt(1 - 1 / 16), abs=0.005)
    assert told < scores(report, CHEATS)["size"].score - 0.02


def test_bins_are_read_to_the_row():
    rng = np.random.default_rng(0)
    table = CutTable([["ordered", 5, True], ["nominal", 3, True]])
    codes = np.stack([rng.integers(0, 6, 100), rng.integers(0, 4, 100)]).astype(np.int16)
    assert (bins_by_made_up_numbers(table, codes) == codes).all()


def test_which_cuts_are_used_tells_a_partner_little(report):
    (labels,) = [each for each in report.findings if each.what == "labels"]
    assert labels.role == "telco" and labels.known == 80
    assert labels.gain < 0.1
    assert any("no line a row" in fact for fact in report.facts)


def test_there_is_nothing_to_attack_without_a_partner():
    report = fm.Audit(attacks=["trees", "cuts"]).run(federation(), fm.LocalTrees(**HOW))
    assert not report.findings
    assert set(report.left_out.values()) == {"no partner's columns were cut by trees"}
