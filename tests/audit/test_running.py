"""Whole audits: of real trainings, of which they leave no trace."""

import json

import numpy as np
import pytest

import fedmend as fm
from fedmend.audit import Audit, AuditReport
from fedmend.audit.recorder import rehearsal
from fedmend.audit.running import _scores
from fedmend.audit.statement import statement
from fedmend.errors import ConfigError, DataError
from fedmend.split.labels import ask_for_noise

QUICK = {"known_labels": (10,), "repeats": 2, "known_rows": 60}


@pytest.fixture(scope="module")
def report(make_fed, make_frame):
    fed = make_fed(make_frame(240), test=make_frame(80, seed=1))
    return Audit(**QUICK).run(fed, fm.VFL(epochs=4), compare={"embedding": 1, "bottom": (4,)})


def test_a_real_training_tells_labels_by_gradients_and_columns_by_embeddings(report):
    labels = report.table().query("attack == 'labels from gradients' and score > 0.95")
    assert set(labels["role"]) == {"telco", "shop"}
    columns = report.table().query("attack == 'columns from embeddings' and role == 'coordinator'")
    assert (columns["score"] > 0.95).all() and (columns["gain_low"] > 0).all()


def test_the_other_setting_stands_beside_with_its_price(report):
    assert report.other.option == "embedding=1, bottom=(4,)"
    head, *lines = report.beside()
    assert head[3:5] == ["as given", report.other.option]
    assert len(lines) == len(report.findings) + len(report.scores)
    assert {"accuracy", "AUC"} <= {line[1] for line in lines if line[0] == "the model itself"}


def test_a_report_is_text_and_json_and_back(report, tmp_path):
    path = report.to_json(tmp_path / "audit.json")
    again = AuditReport.load(path)
    assert again.to_dict() == json.loads(path.read_text()) == report.to_dict()
    assert str(again) == str(report)
    for word in ("strong", "what lowers it", "received gradient (high)", "test rows"):
        assert word in str(report)


def test_a_model_is_scored_by_true_labels_whatever_was_told_of_them(make_fed, make_frame):
    fed = make_fed(make_frame(240), test=make_frame(80, seed=1))
    copy = rehearsal(fed, [])
    model = fm.VFL(epochs=4).fit(copy)
    true = model.evaluate(copy.on("test"))
    site = copy.engine.site(copy.label_parties[0])
    for scope in ("train", "test"):
        ask_for_noise(site, scope, 1.0, by="a test")
    told = model.evaluate(copy.on("test"))
    assert told["accuracy"] != true["accuracy"]
    assert _scores(model, copy)[0] == pytest.approx(true)


def weights_of(fed, model) -> list[np.ndarray]:
    found = []
    for name in fed.names:
        part = fed.engine.site(name).state["parts"][model.network_.model]
        for module in (part.bottom, part.top):
            if module is not None:
                found += [value.numpy() for value in module.module.state_dict().values()]
    return found


def test_a_rehearsal_is_the_ordinary_training_and_leaves_no_trace(make_fed, make_frame):
    plain, audited, heard = *(make_fed(make_frame(120)) for _ in range(2)), []
    crossings = len(audited.ledger)
    Audit(**QUICK, attacks=["gradients"]).run(audited, fm.VFL(epochs=2))
    copy = rehearsal(audited, [heard.append])
    rehearsed = fm.VFL(epochs=2).fit(copy)
    assert len(audited.ledger) == crossings
    assert not audited.engine.site("bank").state.get("parts")
    one, other = (fm.VFL(epochs=2).fit(fed) for fed in (plain, audited))
    assert one.history_ == other.history_ == rehearsed.history_
    mine, theirs = weights_of(plain, one), weights_of(audited, other)
    assert len(mine) == len(theirs) > 4
    assert all((a == b).all() for a, b in zip(mine, theirs, strict=True))
    assert copy.ledger.total_bytes() == plain.ledger.total_bytes()
    gradients = [each for each in heard if each.given.get("gradient") is not None]
    entries = [e for e in copy.ledger if e.kind == "gradient" and e.receiver != "coordinator"]
    assert len(gradients) == sum(entry.count for entry in entries) > 0
    assert all(len(each.before) == len(each.given["gradient"]) for each in gradients)


def test_a_federation_seen_in_part_is_rehearsed_in_part(make_fed, make_frame):
    fed = make_fed(make_frame(120), align=False)
    some = fed.only("bank", "telco")
    fm.align(some)
    copy = rehearsal(some, [])
    assert copy.names == ("bank", "telco")
    assert copy.alignment == some.alignment
    here, there = (each.engine.site("bank").alignments for each in (fed, copy))
    assert (there["train"].aligned == here[some.scope].aligned).all()


@pytest.mark.slow
@pytest.mark.usefixtures("steady_draws")
def test_told_labels_bound_what_gradients_can_tell(make_fed, make_frame):
    fed = make_fed(make_frame(400))
    before = fed.engine.site("bank").tables["train"]
    audit = Audit(**QUICK, attacks=["gradients"])
    report = audit.run(fed, fm.VFL(epochs=4), compare={"label_dp": 1.0, "embedding": 8})
    assert fed.engine.site("bank").tables["train"] is before
    assert report.other.option == "label_dp=1.0, embedding=8"
    # A label is told as it is with probability .73, and nobody can know it better than that.
    best = max(each.score for each in report.other.findings if "direction" in each.from_)
    assert 0.6 < best < 0.82
    assert max(each.score for each in report.findings) > 0.95


def test_a_coordinator_that_cannot_read_has_nothing_to_attack(make_fed, make_frame):
    fed = make_fed(make_frame(160), columns={"bank": ["a", "b", "y"], "telco": ["c", "d"]})
    audit = Audit(**QUICK, attacks=["gradients", "embeddings"])
    report = audit.run(fed, fm.VFL(epochs=2), compare={"seal": True})
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RISA", "FewShotVFL", "LocalVFL", "SFHTL"])
def test_other_ways_to_train_are_read_too(make_fed, make_frame, name):
    quick = {"epochs": 2} | ({"local_updates": 50} if name == "FewShotVFL" else {})
    columns = {"bank": ["a", "b", "y"], "telco": ["c", "d"]}
    fed = make_fed(make_frame(240), aligned=160, columns=columns)
    report = Audit(**QUICK).run(fed, getattr(fm, name)(**quick))
    assert {each.attack for each in report.findings} == {
        "labels from gradients",
        "labels from a trained bottom",
        "columns from embeddings",
        "rows from known weights",
    }
    assert report.table().query("attack == 'labels from gradients'")["score"].max() > 0.9
    assert not any("no attack looked" in fact for fact in report.facts)


def test_an_unaligned_federation_is_aligned_in_the_rehearsal_only(make_fed, make_frame):
    """And its readings are of the training, not of what the audit asks for itself."""
    fed, plain = make_fed(make_frame(60), align=False), make_fed(make_frame(60))
    report = Audit(**QUICK, attacks=["bottom"]).run(fed, fm.VFL(epochs=1))
    assert report.rows == 60
    assert not fed.is_aligned
    fm.VFL(epochs=1).fit(plain)
    expected = statement(plain.ledger.entries())
    told = [each for each in report.readings if each.kind != "hashed-id"]  # of the alignment
    lines = {(each.role, each.sender, each.kind): each.lines for each in told}
    assert lines == {(each.role, each.sender, each.kind): each.lines for each in expected}


@pytest.mark.slow
def test_a_number_for_a_label_leaves_the_labels_attacks_out(make_fed, make_frame):
    fed = make_fed(make_frame(120, task="regression"))
    report = Audit(**QUICK).run(fed, fm.VFL(epochs=1))
    assert "is a number" in report.left_out["labels from gradients"]
    assert {each.attack for each in report.findings} == {
        "columns from embeddings",
        "rows from known weights",
    }


def test_a_method_of_one_party_shows_nothing_to_attack(make_fed, make_frame):
    report = Audit(**QUICK).run(make_fed(make_frame(120)), fm.Local(epochs=1))
    assert not report.findings
    assert len(report.left_out) >= 3


@pytest.mark.parametrize(
    ("options", "method", "compare", "message"),
    [
        ({}, "vfl", None, "takes a method, not a str"),
        ({"attacks": ["gradient"]}, fm.VFL(), None, r"'gradient' is not one.*gradients"),
        (
            {"looks": 0, "known_labels": (1,)},
            fm.VFL(),
            None,
            r"looks must be at least 1(.|\n)*known_labels",
        ),
        ({}, fm.VFL(), {"label_dp": 0}, "positive"),
        ({}, fm.VFL(), {"embeding": 2}, "no parameter 'embeding'"),
    ],
)
def test_mistakes_are_told_with_their_mend(make_fed, make_frame, options, method, compare, message):
    with pytest.raises(ConfigError, match=message):
        Audit(**options).run(make_fed(make_frame(60)), method, compare=compare)


def test_parties_elsewhere_cannot_be_rehearsed(make_fed, make_frame):
    fed = make_fed(make_frame(60))

    class Elsewhere:
        names = fed.names
        ledger = fed.ledger

    fed.engine = Elsewhere()
    with pytest.raises(ConfigError, match="--ledger RUN"):
        Audit().run(fed, fm.VFL())
    with pytest.raises(DataError, match="takes a Federation"):
        Audit().run("bank.csv", fm.VFL())
