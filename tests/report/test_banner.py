"""The first lines: what left, what it can tell, what lowers it; the same wherever they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.conftest import crossing

from fedmend.audit.result import AuditReport, Finding
from fedmend.audit.statement import statement
from fedmend.federation.kinds import KINDS, SEAL
from fedmend.report.banner import banner_of, banner_of_audit
from fedmend.report.page import run_banner

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "lower-what-leaks.md"
SPLIT = [
    crossing("telco", "coordinator", "embedding", 10),
    crossing("coordinator", "bank", "embedding", 10),
    crossing("bank", "coordinator", "gradient", 10),
    crossing("coordinator", "telco", "gradient", 10),
    crossing("bank", "coordinator", "statistic", 3),
]
VFL = {"embedding": 32, "label_dp": None, "seal": None, "task": "auto"}


def finding(**changes) -> Finding:
    values = {
        "attack": "labels from gradients", "role": "telco", "from_": "gradients", "about": "bank",
        "what": "labels", "metric": "accuracy", "score": 0.998, "low": 0.99, "high": 1.0,
        "guess": 0.52, "gain": 0.478, "gain_low": 0.4, "gain_high": 0.5, "known": 0, "rows": 90,
        "paper": "", "mend": "",
    }  # fmt: skip
    return Finding(**(values | changes))


def test_signals_are_named_with_who_reads_them() -> None:
    found = banner_of(SPLIT, [("vfl", VFL)])
    assert (found.grade, found.tone) == ("high", "alarm")
    assert found.left == (
        "No row and no label left a party in the clear, but values made of them did: gradients of "
        "bank to telco and the coordinator; embeddings of telco to bank and the coordinator."
    )
    assert found.tells[0].startswith("Gradients (high) can tell labels of training rows")
    assert "fedmend audit" in found.tells[-1]
    (lowers,) = found.lowers
    assert all(each in lowers for each in ("label_dp = 2", "embedding = 4", "seal = true"))


def test_nobody_is_told_what_he_sent_himself() -> None:
    back = [crossing("bank", "coordinator", "gradient", 3, sealed_for="telco")]
    back += [crossing("coordinator", each, "gradient", 3) for each in ("bank", "telco")]
    assert "gradients of bank to telco." in banner_of(back).left
    assert "gradients to bank." in banner_of(back[:2]).left


def test_switches_that_are_on_are_not_offered() -> None:
    found = banner_of(SPLIT, [("vfl", VFL | {"label_dp": 1.0, "embedding": 4}), ("local", VFL)])
    assert found.grade == "medium"
    assert "label_dp = 1 lets" in " ".join(found.tells) and "73 %" in " ".join(found.tells)
    found = banner_of(SPLIT, [("vfl", VFL | {"label_dp": 1.0}), ("risa", VFL)])
    assert found.tells[0].startswith("Gradients (high)")  # of whom one has no bound, nobody has
    assert "label_dp" not in " ".join(banner_of(SPLIT, [("vfl", VFL | {"task": "count"})]).lowers)
    auto = {"label_dp": None, "settings": {"embedding": 4}, "task": "auto"}
    (lowers,) = banner_of(SPLIT, [("auto", auto)]).lowers
    assert "label_dp = 2" in lowers and "seal" in lowers and "embedding = 4" not in lowers
    every = {"embedding": 2, "label_dp": 2, "seal": True}
    (lowers,) = banner_of(SPLIT, [("vfl", every)]).lowers
    assert lowers.startswith("No further switch of measured price lowers it")
    assert "of embeddings, a narrower embedding" in lowers
    (lowers,) = banner_of(SPLIT, [("risa", VFL)]).lowers
    assert "embedding = 4" not in lowers, "five networks send five embeddings"


def test_sealing_is_offered_to_methods_only_that_can() -> None:
    (lowers,) = banner_of(SPLIT, [("inc", VFL), ("majority", VFL)]).lowers
    assert "seal" not in lowers and "label_dp = 2" in lowers
    (lowers,) = banner_of(SPLIT, [("inc", VFL), ("clean", VFL)]).lowers
    assert "seal = true" in lowers


def test_a_switch_for_two_kinds_is_offered_once() -> None:
    votes = crossing("bank", "coordinator", "votes", 10)
    (lowers,) = banner_of([*SPLIT, votes], [("vfl", VFL)]).lowers
    assert "label_dp = 2 lowers what gradients and " in lowers
    assert lowers.count("label_dp") == 1


def test_sealed_values_and_totals_are_no_signals() -> None:
    relayed = [
        crossing("telco", "coordinator", "embedding", sealed_for="bank"),
        crossing("coordinator", "bank", "embedding", sealed_for="bank"),
    ]
    found = banner_of(relayed)
    assert found.left.endswith("embeddings of telco to bank.") and "seal" not in found.lowers[0]
    quiet = banner_of([*relayed[:1], crossing("bank", "coordinator", "statistic", 3)])
    assert (quiet.grade, quiet.tone, quiet.tells, quiet.lowers) == ("none", "calm", [], [])
    assert quiet.left.startswith(
        "No row and no label left a party, and no value about a single row"
    )


def test_what_left_in_the_clear_comes_first() -> None:
    found = banner_of([*SPLIT, crossing("bank", "coordinator", "label", 3, 50)])
    assert found.left.startswith(
        "Values left in the clear: labels in the clear of bank to the coordinator. Besides: "
    )
    refused = crossing("bank", "coordinator", "row", size=0, note="refused")
    never = crossing("bank", "coordinator", "row", size=0, note="unanswered")
    assert banner_of([refused, never]).grade == "none"


def test_measured_figures_take_the_place_of_grades() -> None:
    report = AuditReport("VFL", dict(VFL), readings=statement(SPLIT), findings=[
        finding(), finding(score=0.6, gain=0.08, gain_low=0.01),
        finding(attack="columns", role="bank", about="telco", what="calls", metric="R²",
                score=0.7, guess=0.1, gain=0.6),
    ])  # fmt: skip
    found = banner_of(SPLIT, [("vfl", VFL)], [report])
    (told,) = found.tells
    assert told.startswith(
        "Measured by the audit of VFL: telco inferred labels of bank with accuracy 0.998, 0.520 "
        "without the messages (strong); bank inferred calls of telco with R² 0.700"
    )
    assert banner_of_audit(report) == found
    assert "label_dp = 2" in found.lowers[0]
    report.scores = {"rmse": 3.2}
    assert "label_dp" not in banner_of_audit(report).lowers[0]  # which is for classes
    report.findings = [finding(gain_low=-0.1)]
    (told,) = banner_of(SPLIT, [("vfl", VFL)], [report]).tells
    assert told.startswith("The audit of VFL showed no leak, which is no proof")


def test_prices_are_those_of_the_docs() -> None:
    page = HOW_TO.read_text(encoding="utf-8")
    for switch in {kind.switch for kind in KINDS.values() if kind.switch} | {SEAL}:
        assert f"`{switch.written.partition(' (')[0]}`" in page
    assert "[at most .002 of the AUC]" in page and "[.003 to .013 of the AUC]" in page


# ---------------------------------------------------------------- runs


METHODS = {
    "vfl": ("high", "gradients of bank to telco and the coordinator"),
    "vfl\nlabel_dp = 2": ("high", "gradients of bank to telco and the coordinator"),
    "vfl\nlabel_dp = 2\nembedding = 4": ("medium", "embeddings of telco to bank"),
    "local": ("none", "no value about a single row"),
    "boosting": ("medium", "split sides of telco to bank"),
}


PICTURES = False


@pytest.mark.parametrize("method", METHODS)
def test_a_run_says_the_same_everywhere(workshop, method, fedmend) -> None:
    name, _, more = method.partition("\n")
    length = "trees = 2" if name == "boosting" else "epochs = 2"
    workshop.write(f'[[method]]\nname = "{name}"\n{length}\n{more}\n', method="")
    code, shown, _ = fedmend("run", workshop.config)
    assert code == 0
    banner = run_banner(workshop.run)
    grade, left = METHODS[method]
    assert banner.grade == grade and left in banner.left
    page = " ".join((workshop.run / "report.html").read_text(encoding="utf-8").split())
    code, read, _ = fedmend("audit", "--ledger", workshop.run)
    assert code == 0
    for line in filter(None, banner.lines):
        assert all(line in " ".join(said.split()) for said in (shown, read))
        assert line.replace("'", "&#39;").replace('"', "&#34;") in page
    if more:
        assert "label_dp = 2 lets" in banner.lines[1]
