"""Whole audits: of real trainings, of which they leave no trace."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import fedmend as fm
from fedmend.audit import Audit, AuditReport
from fedmend.audit.recorder import rehearsal
from fedmend.audit.statement import statement
from fedmend.errors import ConfigError, DataError

QUICK = {"known_labels": (10,), "repeats": 2, "known_rows": 60}


@pytest.fixture(scope="module")
def report(make_fed, make_frame) -> AuditReport:
    fed = make_fed(make_frame(240), test=make_frame(80, seed=1))
    return Audit(**QUICK).run(fed, fm.VFL(epochs=4), compare={"embedding": 1, "bottom": (4,)})


def test_the_gradients_of_a_real_training_tell_labels(report) -> None:
    found = report.table().query("attack == 'labels from gradients' and score > 0.95")
    assert set(found["role"]) == {"telco", "shop"}


def test_embeddings_of_a_real_training_tell_columns(report) -> None:
    found = report.table().query("attack == 'columns from embeddings' and role == 'coordinator'")
    assert (found["score"] > 0.95).all()
    assert (found["gain_low"] > 0).all()


def test_the_other_setting_stands_beside_with_its_price(report) -> None:
    assert report.other.option == "embedding=1, bottom=(4,)"
    head, *lines = report.beside()
    assert head[3:5] == ["as given", report.other.option]
    assert len(lines) == len(report.findings) + len(report.scores)
    assert {"accuracy", "auc"} <= {line[1] for line in lines if line[0] == "the model itself"}


def test_a_report_is_text_and_json_and_back(report, tmp_path) -> None:
    path = report.to_json(tmp_path / "audit.json")
    again = AuditReport.load(path)
    assert again.to_dict() == json.loads(path.read_text()) == report.to_dict()
    assert str(again) == str(report)
    for word in (
        "strong",
        "what lowers it",
        "received gradient (high)",
        "test rows",
        "embedding=1",
    ):
        assert word in str(report)


def test_fewer_looks_are_still_the_same_finding(report) -> None:
    fewer = replace(report.findings[0], from_="gradients (1 looks, direction)", score=0.25)
    given = replace(report.findings[0], from_="gradients (4 looks, direction)")
    beside = AuditReport("VFL", findings=[given], other=AuditReport("VFL", findings=[fewer]))
    assert beside.beside()[1][4].startswith("0.250")


def weights_of(fed, model) -> list[np.ndarray]:
    found = []
    for name in fed.names:
        part = fed.engine.site(name).state["parts"][model.network_.model]
        for module in (part.bottom, part.top):
            if module is not None:
                found += [value.numpy() for value in module.module.state_dict().values()]
    return found


def test_an_ordinary_run_is_the_same_with_and_without_an_audit(make_fed, make_frame) -> None:
    plain, audited = (make_fed(make_frame(120)) for _ in range(2))
    crossings = len(audited.ledger)
    Audit(**QUICK, attacks=["gradients"]).run(audited, fm.VFL(epochs=2))
    assert len(audited.ledger) == crossings
    assert not audited.engine.site("bank").state.get("parts")
    one, other = (fm.VFL(epochs=2).fit(fed) for fed in (plain, audited))
    assert one.history_ == other.history_
    mine, theirs = weights_of(plain, one), weights_of(audited, other)
    assert len(mine) == len(theirs) > 4
    assert all((a == b).all() for a, b in zip(mine, theirs, strict=True))


def test_a_rehearsed_training_is_the_ordinary_one(make_fed, make_frame) -> None:
    fed, heard = make_fed(make_frame(120)), []
    copy = rehearsal(fed, [heard.append])
    rehearsed, ordinary = fm.VFL(epochs=2).fit(copy), fm.VFL(epochs=2).fit(fed)
    assert rehearsed.history_ == ordinary.history_
    assert copy.ledger.total_bytes() == fed.ledger.total_bytes()
    gradients = [each for each in heard if each.given.get("gradient") is not None]
    entries = [e for e in copy.ledger if e.kind == "gradient" and e.receiver != "coordinator"]
    assert len(gradients) == sum(entry.count for entry in entries) > 0
    assert all(len(each.before) == len(each.given["gradient"]) for each in gradients)


def test_a_federation_seen_in_part_is_rehearsed_in_part(make_fed, make_frame) -> None:
    fed = make_fed(make_frame(120), align=False)
    some = fed.only("bank", "telco")
    fm.align(some)
    copy = rehearsal(some, [])
    assert copy.names == ("bank", "telco")
    assert copy.alignment == some.alignment
    site = copy.engine.site("bank")
    assert (
        site.alignments["train"].aligned == fed.engine.site("bank").alignments[some.scope].aligned
    ).all()


@pytest.mark.usefixtures("steady_draws")
def test_told_labels_bound_what_gradients_can_tell(make_fed, make_frame) -> None:
    fed = make_fed(make_frame(400), test=make_frame(80, seed=1))
    before = fed.engine.site("bank").tables["train"]
    audit = Audit(**QUICK, attacks=["gradients"])
    report = audit.run(fed, fm.VFL(epochs=4), compare={"label_dp": 1.0, "embedding": 8})
    assert fed.engine.site("bank").tables["train"] is before
    assert report.other.option == "label_dp=1.0, embedding=8"
    # A label is told as it is with probability .73, and nobody can know it better than that.
    best = max(each.score for each in report.other.findings if "direction" in each.from_)
    assert 0.6 < best < 0.82
    assert max(each.score for each in report.findings) > 0.95


@pytest.mark.parametrize("name", ["VFL", "FewShotVFL"])
def test_a_coordinator_that_cannot_read_has_nothing_to_attack(make_fed, make_frame, name) -> None:
    more = {"local_updates": 50} if name == "FewShotVFL" else {}
    fed = make_fed(make_frame(160), columns={"bank": ["a", "b", "y"], "telco": ["c", "d"]})
    audit = Audit(**QUICK, attacks=["gradients", "embeddings"])
    report = audit.run(fed, getattr(fm, name)(epochs=2, **more), compare={"seal": True})
    sealed = report.other
    assert {each.role for each in report.findings} == {"coordinator", "telco", "bank"}
    assert {each.role for each in sealed.findings} == {"telco", "bank"}
    assert sum("sealed" in fact for fact in sealed.facts) == 2
    # The parties open what is meant for them: for them nothing changes.
    open_ = {each.words for each in report.findings if each.role != "coordinator"}
    assert {each.words for each in sealed.findings} == open_
    told = {line[4] for line in report.beside()[1:] if line[0] == "coordinator"}
    assert told == {"sealed"}
    assert "seal=True keeps embeddings from the coordinator" in " ".join(report.mends())
    readings = [each for each in sealed.readings if each.role == "coordinator"]
    assert {each.severity for each in readings if each.kind in ("embedding", "gradient")} == {
        "none"
    }
    # The other way round the open setting's findings stand beside what was sealed.
    report.other, sealed.other = None, report
    turned = [line for line in sealed.beside()[1:] if line[0] == "coordinator"]
    assert turned
    assert {line[3] for line in turned} == {"sealed"}


@pytest.mark.parametrize("name", ["RISA", "LocalVFL", "SFHTL", "FewShotVFL"])
def test_other_ways_to_train_are_read_too(make_fed, make_frame, name: str) -> None:
    quick = {"epochs": 2}
    if name == "FewShotVFL":
        quick |= {"local_updates": 50}
    columns = {"bank": ["a", "b", "y"], "telco": ["c", "d"]}
    fed = make_fed(make_frame(240), aligned=160, columns=columns)
    report = Audit(**QUICK).run(fed, getattr(fm, name)(**quick))
    assert "labels from gradients" not in report.left_out
    assert {each.attack for each in report.findings} == {
        "labels from gradients",
        "labels from a trained bottom",
        "columns from embeddings",
        "rows from known weights",
    }
    assert report.table().query("attack == 'labels from gradients'")["score"].max() > 0.9
    assert not any("no attack looked" in fact for fact in report.facts)


def test_an_unaligned_federation_is_aligned_in_the_rehearsal_only(make_fed, make_frame) -> None:
    fed = make_fed(make_frame(120), align=False)
    report = Audit(**QUICK, attacks=["gradients"]).run(fed, fm.VFL(epochs=1))
    assert report.rows == 120
    assert not fed.is_aligned


def test_a_number_for_a_label_leaves_the_labels_attacks_out(make_fed, make_frame) -> None:
    fed = make_fed(make_frame(120, task="regression"))
    report = Audit(**QUICK).run(fed, fm.VFL(epochs=1))
    assert "is a number" in report.left_out["labels from gradients"]
    assert {each.attack for each in report.findings} == {
        "columns from embeddings",
        "rows from known weights",
    }


def test_a_method_of_one_party_shows_nothing_to_attack(make_fed, make_frame) -> None:
    report = Audit(**QUICK).run(make_fed(make_frame(120)), fm.Local(epochs=1))
    assert not report.findings
    assert len(report.left_out) >= 3


def test_mistakes_are_told_with_their_mend(make_fed, make_frame) -> None:
    fed = make_fed(make_frame(60))
    with pytest.raises(DataError, match="takes a Federation"):
        Audit().run("bank.csv", fm.VFL())
    with pytest.raises(ConfigError, match=r"takes a method, not a str"):
        Audit().run(fed, "vfl")
    with pytest.raises(ConfigError, match=r"'gradient' is not one.*gradients"):
        Audit(attacks=["gradient"]).run(fed, fm.VFL())
    with pytest.raises(ConfigError, match=r"looks must be at least 1(.|\n)*known_labels"):
        Audit(looks=0, known_labels=(1,)).run(fed, fm.VFL())
    with pytest.raises(ConfigError, match="positive"):
        Audit().run(fed, fm.VFL(), compare={"label_dp": 0})
    with pytest.raises(ConfigError, match="no parameter 'embeding'"):
        Audit().run(fed, fm.VFL(), compare={"embeding": 2})


def test_parties_elsewhere_cannot_be_rehearsed(make_fed, make_frame) -> None:
    fed = make_fed(make_frame(60))

    class Elsewhere:
        names = fed.names
        ledger = fed.ledger

    fed.engine = Elsewhere()
    with pytest.raises(ConfigError, match="--ledger RUN"):
        Audit().run(fed, fm.VFL())


def test_readings_are_of_the_training_and_not_of_what_the_audit_asks_for_itself(
    make_fed, make_frame
) -> None:
    report = Audit(**QUICK, attacks=["bottom"]).run(make_fed(make_frame(60)), fm.VFL(epochs=1))
    plain = make_fed(make_frame(60))
    fm.VFL(epochs=1).fit(plain)
    expected = statement(plain.ledger.entries())
    assert {(each.role, each.sender, each.kind): each.lines for each in report.readings} == {
        (each.role, each.sender, each.kind): each.lines for each in expected
    }
