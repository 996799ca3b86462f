"""`label_dp`: a training knows labels through randomised response only, in whichever method."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import fedmend as fm
from fedmend.errors import ConfigError, DataError, PrivacyWarning, ResumeError
from fedmend.federation.labels import LabelRecords, keep_probability
from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config
from fedmend.learn import metrics
from fedmend.methods.annotators.inc import InC
from fedmend.methods.risa.network import Objective
from fedmend.split.labels import LabelLikelihood, ReportedLabels, ask_for_noise, keep_likelihood
from fedmend.split.workers import TopWorker

pytestmark = pytest.mark.usefixtures("steady_draws")
QUICK: dict[str, Any] = {
    "epochs": 2, "bottom": (), "embedding": 4, "top": (), "validation": 0.0,
}  # fmt: skip
EVERY: dict[str, dict[str, Any]] = {
    "VFL": {},
    "FedCVT": {},
    "SFHTL": {"pretrain_epochs": 1},
    "FewShotVFL": {"local_updates": 4, "rounds": 1},
    "RISA": {"members": 2},
}
TWO = {"bank": ["a", "b", "y"], "telco": ["c", "d"]}


TURNED = {"no": "yes", "yes": "no"}


def records_of(fed: fm.Federation, party: str = "bank") -> LabelRecords:
    """What a party keeps of labels told at random."""
    return fed.engine.site(party).labels.records


def told_of(fed: fm.Federation, party: str = "bank", dataset: str = "train") -> np.ndarray:
    """Labels as workers see them."""
    return fed.engine.site(party).table_of(dataset).y.to_numpy()


@pytest.mark.parametrize("name", EVERY)
def test_no_worker_of_a_training_meets_a_true_label(make_fed, make_frame, name):
    """Turn all true labels round and tell the same: whoever met one would train otherwise."""
    fed = make_fed(make_frame(120), aligned=80, columns=TWO)
    site = fed.engine.site("bank")
    model = getattr(fm, name)(**QUICK | EVERY[name], label_dp=2.0).fit(fed)
    assert model.privacy_ == {
        "epsilon": 2.0,
        "kept": pytest.approx(keep_probability(2.0, 2)),
        "spent": {"bank": 2.0},
        "new": {"bank": 2.0},
    }
    table = site.tables["train"]
    assert 0.7 < (told_of(fed) == table.y.to_numpy()).mean() < 1.0
    other = make_fed(make_frame(120), aligned=80, columns=TWO)
    there = other.engine.site("bank")
    there.labels._records = records_of(fed)
    there.tables["train"] = table.with_columns({"y": table.y.map(TURNED)})
    again = getattr(fm, name)(**QUICK | EVERY[name], label_dp=2.0).fit(other)
    np.testing.assert_array_equal(
        model.predict_proba(fed, rows="all"), again.predict_proba(other, rows="all")
    )
    # Nor do scores rest on them.
    assert again.evaluate(other, rows="all") == pytest.approx(model.evaluate(fed, rows="all"))


def test_evidence_learns_from_likelihoods_as_from_the_labels_they_stand_for():
    how, labels = Objective(activation="softmax"), torch.tensor([0, 1, 1, 0])
    outputs = torch.randn(4, 2, requires_grad=True)
    hard = how.rows_loss(how.opinion(outputs), labels)
    certain = how.rows_loss(how.opinion(outputs), torch.eye(2)[labels], likely=True)
    torch.testing.assert_close(certain, hard)
    # What says nothing teaches nothing.
    silent = how.rows_loss(how.opinion(outputs), torch.ones(4, 2), likely=True)
    (gradient,) = torch.autograd.grad(silent.sum(), outputs)
    assert gradient.abs().max() < 1e-6


def test_a_second_fit_and_other_methods_know_the_same_labels(make_fed):
    fed = make_fed()
    first = fm.VFL(**QUICK, label_dp=1.0).fit(fed)
    second = fm.VFL(**QUICK, label_dp=1).fit(fed)
    np.testing.assert_array_equal(first.predict_proba(fed), second.predict_proba(fed))
    fm.LocalVFL(**QUICK, label_dp=1.0).fit(fed)
    assert [each["epsilon"] for each in records_of(fed).spendings] == [1.0]
    assert second.privacy_["new"] == {"bank": 1.0}
    with pytest.warns(PrivacyWarning, match=r"ε = bank: 3\b"):
        other = fm.VFL(**QUICK, label_dp=2.0).fit(fed)
    assert other.privacy_["spent"] == {"bank": 3.0}


def test_a_fold_and_a_completed_table_are_told_as_the_first_one(make_fed):
    """Draws of their own would average out to the label, fold by fold."""
    fed = make_fed()
    site = fed.engine.site("bank")
    table = site.tables["train"]
    ask_for_noise(site, "train", 1.0, by="a test")
    first = told_of(fed)
    some = np.arange(0, len(table), 3)
    site.tables["train-fold0"] = table.take(some)
    assert told_of(fed, dataset="train-fold0").tolist() == first[some].tolist()
    # Also where somebody has put other labels there: whether they are others must not show.
    site.tables["mine"] = table.with_columns({"y": table.y.map(TURNED)})
    assert told_of(fed, dataset="mine").tolist() == first.tolist()
    assert site.labels.spent("y") == 1.0


def test_corrected_labels_are_drawn_apart_and_both_are_on_the_account(make_fed):
    """They are other labels of the same people; those corrected under label_dp hide nothing."""
    fed = make_fed()
    site = fed.engine.site("bank")
    table = site.tables["train"]
    other = table.with_columns({"y": table.y.map(TURNED)})
    site.tables["train-corrected"] = other
    keep_likelihood(
        site, "train-corrected", LabelLikelihood(("no", "yes"), np.ones((len(table), 2)))
    )
    ask_for_noise(site, "train", 1.0, by="a test")
    corrected = told_of(fed, dataset="train-corrected")
    assert 0.6 < (corrected == other.y.to_numpy()).mean() < 0.9
    assert site.labels.spent("y") == 2.0
    made = table.with_columns({"y": table.y.map(TURNED)})
    site.tables["made"] = made
    site.labels.settle("made", made)
    assert site.table_of("made") is made
    assert ReportedLabels.of(site, "made") is None
    site.tables["made"] = made.take(np.arange(20))
    assert told_of(fed, dataset="made").tolist() == told_of(fed)[:20].tolist()
    assert site.labels.spent("y") == 2.0


@pytest.mark.parametrize("secure", ["masks"])
def test_parties_of_the_same_columns_tell_theirs(make_frame, secure):
    tables = {
        name: fm.Table.from_frame(make_frame(150, seed=number), label="y")
        for number, name in enumerate(("one", "two", "three"))
    }
    silent = tables.pop("three")
    tables["three"] = silent.drop("y")
    shown = fm.Policy(foreign_predictions=1)  # for the comparison below
    fed = fm.Federation(
        *(fm.Party(name, each, policy=shown) for name, each in tables.items()), strict=True
    )
    model = fm.FedAvg(rounds=2, epochs=1, hidden=(8,), label_dp=1.0, secure=secure).fit(fed)
    assert model.privacy_ == {
        "epsilon": 1.0,
        "kept": pytest.approx(keep_probability(1.0, 2)),
        "spent": {"one": 1.0, "two": 1.0},
        "new": {"one": 1.0, "two": 1.0},
    }
    for name in ("one", "two"):
        assert 0.6 < (told_of(fed, name) == tables[name].y.to_numpy()).mean() < 0.9
    # The same where all true labels are turned round, and told the same.
    turned = {
        name: each.with_columns({"y": each.y.map(TURNED)})
        for name, each in tables.items()
        if each.label is not None
    }
    other = fm.Federation(
        *(fm.Party(name, turned.get(name, each), policy=shown) for name, each in tables.items()),
        strict=True,
    )
    for name in turned:
        other.engine.site(name).labels._records = records_of(fed, name)
    again = fm.FedAvg(rounds=2, epochs=1, hidden=(8,), label_dp=1.0, secure=secure).fit(other)
    here, there = model.predict_proba(fed), again.predict_proba(other)
    for name in tables:
        np.testing.assert_array_equal(here[name], there[name])
    assert again.evaluate(other) == pytest.approx(model.evaluate(fed))


@pytest.mark.slow
def test_validation_is_by_told_labels_and_tests_are_estimated_from_them(make_fed, make_frame):
    fed = make_fed(make_frame(600), test=make_frame(3000, seed=1))
    model = fm.VFL(epochs=20, lr=0.01, label_dp=1.0).fit(fed)
    best = model.history_[model.best_epoch_ - 1]
    scores = model.evaluate(fed.on("test"))
    # Nobody can say what is told better than it is kept.
    assert best["val_accuracy"] < keep_probability(1.0, 2) + 0.1
    site = fed.engine.site(fed.label_party)
    truth = site.tables["test"].y.to_numpy()
    assert 0.6 < (told_of(fed, dataset="test") == truth).mean() < 0.8
    p = model.predict_proba(fed.on("test"))
    order = site.alignments["test"].aligned
    exact = metrics.classification((truth[order] == "yes").astype(int), p)
    assert scores["accuracy"] > 0.7
    for name in ("accuracy", "auc", "f1"):
        assert scores[name] == pytest.approx(exact[name], abs=0.06)
    # Told labels are as likely as the model and the noise make them: no worse than the noise alone.
    noise = -sum(p * math.log(p) for p in (keep_probability(1.0, 2), 1 - keep_probability(1.0, 2)))
    # (Stopped by the loss that a temperature leaves; there a label that is surely told counts 1.)
    told = best["val_calibrated_loss"] - math.log(keep_probability(1.0, 2))
    assert noise - 0.1 < told < math.log(2)
    # Corrected: probabilities are of true classes, which told ones can never be so sure of.
    assert model.predict_proba(fed.on("test")).max() > keep_probability(1.0, 2) + 0.1


def test_a_party_may_let_a_test_table_be_scored_by_its_labels(make_fed, make_frame):
    policy = fm.Policy(true_test_labels=True)
    fed = make_fed(make_frame(200), test=make_frame(100, seed=1), policy_bank=policy)
    site = fed.engine.site("bank")
    # Rows of the first table that come by the test table's name before labels are protected.
    site.tables["held"] = site.tables["train"].take(np.arange(50))
    model = fm.VFL(**QUICK, label_dp=1.0).fit(fed)
    p = model.predict_proba(fed.on("test"))
    truth = site.tables["test"].y.to_numpy()[site.alignments["test"].aligned]
    exact = metrics.classification((truth == "yes").astype(int), p)
    assert model.evaluate(fed.on("test")) == pytest.approx(exact)
    assert told_of(fed).tolist() != site.tables["train"].y.tolist()
    assert told_of(fed, dataset="held").tolist() == told_of(fed)[:50].tolist()
    # Only the table that the party itself gave: nobody can make another one.
    made = site.tables["test"].with_ids(np.arange(100) + 5000)
    site.tables["made"] = made
    assert told_of(fed, dataset="made").tolist() != made.y.tolist()
    site.tables["test"] = site.tables["held"]
    assert told_of(fed, dataset="test").tolist() == told_of(fed)[:50].tolist()
    assert site.labels.spent("y") == 1.0


@pytest.mark.daily("VFL")
@pytest.mark.parametrize("name", ["VFL", "RISA"])
def test_a_resumed_training_goes_on_with_the_same_told_labels(make_fed, tmp_path, name):
    more = {"members": 2} if name == "RISA" else {}
    made = getattr(fm, name)
    whole = made(**QUICK | {"epochs": 3} | more, label_dp=1.0)
    before = make_fed()

    def stopped(stage: str, done: int, *_: Any) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        whole.fit(before, checkpoint=tmp_path / "c", progress=stopped)
    # A new process: what was drawn is in the folder of the party alone.
    after = make_fed()
    whole.fit(after, checkpoint=tmp_path / "c", resume=True)
    assert told_of(before).tolist() == told_of(after).tolist()
    assert whole.privacy_["spent"] == {"bank": 1.0}
    with pytest.raises(ResumeError, match="other settings"):
        made(**QUICK | {"epochs": 3} | more).fit(make_fed(), checkpoint=tmp_path / "c", resume=True)


def test_what_was_told_is_kept_with_the_model_and_named_in_the_ledger(make_fed, tmp_path):
    fed = make_fed()
    model = fm.VFL(**QUICK, label_dp=2.0).fit(fed)
    model.save(tmp_path / "model")
    assert fm.VFL.load(tmp_path / "model", fed).privacy_ == model.privacy_
    calls = [entry.call for entry in fed.ledger.entries() if "tell_labels" in entry.call]
    assert calls
    assert fm.VFL(**QUICK).fit(make_fed()).privacy_ is None


def test_a_training_after_it_learns_from_the_same_draws_and_says_so(make_fed):
    fed = make_fed()
    asked = fm.VFL(**QUICK, label_dp=2.0).fit(fed)
    with pytest.warns(PrivacyWarning, match="bank lets labels be known .* label_dp=2"):
        plain = fm.VFL(**QUICK).fit(fed)
    assert plain.privacy_ == asked.privacy_
    np.testing.assert_array_equal(plain.predict_proba(fed), asked.predict_proba(fed))


def test_a_run_says_in_words_what_was_told(workshop):
    workshop.write(method='name = "vfl"\nepochs = 1\nlabel_dp = 2')
    run = workshop.run
    execute(plan_of(load_config(workshop.config)), run)
    notes = json.loads((run / "metrics.json").read_text(encoding="utf-8"))["notes"]
    told = "bank let the training know labels through randomised response only, drawn once"
    assert [each for each in notes if each.startswith(f"{told} (label_dp = 2: ")]
    assert told in (run / "report.html").read_text(encoding="utf-8")


def test_what_cannot_be_told_at_random_is_refused_with_its_mend(make_fed, make_frame):
    with pytest.raises(DataError, match=r"classes, and the label is a number.*Mend: cut"):
        fm.VFL(**QUICK, label_dp=1.0).fit(make_fed(make_frame(60, task="regression")))
    for epsilon in (0.0, -1.0, math.inf):
        with pytest.raises(ConfigError, match="label_dp must be a positive"):
            fm.VFL(**QUICK, label_dp=epsilon).fit(make_fed())
    with pytest.raises(ConfigError, match="label_dp"):
        fm.VFL(label_dp="2").fit(make_fed())


def test_a_worker_that_was_told_has_no_other_table(make_fed):
    fed = make_fed()
    site = fed.engine.site("bank")
    worker = TopWorker(site, "train", model="m")
    account = worker.tell_labels(0.5, "auto", None)
    assert account["kept"] == pytest.approx(math.exp(0.5) / (math.exp(0.5) + 1))
    told = worker.table.y.to_numpy()
    assert (told != site.tables["train"].y.to_numpy()).any()
    found = worker._label_likelihood()
    assert found is not None
    likely = found.of(["no", "yes"])
    np.testing.assert_array_equal(likely.argmax(1), (told == "yes").astype(int))
    assert likely.min() == pytest.approx(math.exp(-0.5))


def test_inc_under_label_dp(crowd_of):
    quick = {"epochs": 16, "bottom": (), "embedding": 4, "top": (), "batch_size": 32, "lr": 0.02}
    quick |= {"crossfit": False, "patience": None}
    crowd = crowd_of(rates=(0.1, 0.2, 0.2), rows=400)
    model = InC(**quick, label_dp=2.0, secure="masks").fit(crowd.fed)
    assert model.privacy_ == {
        "epsilon": 2.0,
        "kept": pytest.approx(math.exp(2) / (math.exp(2) + 2)),
        "spent": {"p0": 2.0, "p1": 2.0, "p2": 2.0},
        "new": {"p0": 2.0, "p1": 2.0, "p2": 2.0},
    }
    assert (model.posterior_.argmax(1) == crowd.truth).mean() > 0.85
    # the noise is taken out again of what is shown: p0 is right nine times in ten
    assert model.expertise_["p0"].diagonal().mean() > 0.8
    # counts of true labels would be a further leak
    assert model.review_labels() == {"p0": None, "p1": None, "p2": None}
    # a second fit asks for the same answers, and costs nothing
    again = InC(**quick, label_dp=2.0, secure="masks").fit(crowd.fed)
    assert again.privacy_ is not None
    assert again.privacy_["spent"]["p0"] == 2.0
    np.testing.assert_array_equal(again.posterior_, model.posterior_)
