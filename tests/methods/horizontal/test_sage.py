"""SAGE and its baselines over parties with the same columns and different people."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, NotFitted, Refused, ResumeError
from fedmend.federation import Federation, Party, Policy
from fedmend.methods.horizontal.baselines import (
    FedAvg,
    FedDB,
    FedDure,
    FedLabel,
    FedLoKe,
    FedMatch,
    FedProx,
    FixMatch,
    FlexMatch,
    even_mixture,
)
from fedmend.methods.horizontal.sage import SAGE
from fedmend.split.parts import MANIFEST, read_json

QUICK = {"rounds": 2, "epochs": 2, "hidden": (16,)}
BASELINES = [
    *(
        kind(**QUICK)
        for kind in (FedAvg, FedProx, FlexMatch, FedLabel, FedDB, FedMatch, FedLoKe, FedDure)
    ),
    *(kind(sage=True, **QUICK) for kind in (FlexMatch, FedDB, FedDure)),
    FixMatch(prox=1e-3, **QUICK),
    FixMatch(labels="global", **QUICK),
    SAGE(cpg=False, **QUICK),
    SAGE(cdsc=False, **QUICK),
]


# Parties that let a model that was sent in say what it makes of their rows.
LETS_OUT = Policy(foreign_predictions=3)


def frame_of(n: int, seed: int, labelled: int) -> pd.DataFrame:
    """Three classes that numbers and a nominal column tell apart, a few cells missing."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    frame = pd.DataFrame(
        {
            "age": 40 + 12 * y + rng.normal(0, 4, n),
            "pulse": 70 - 9 * y + rng.normal(0, 4, n),
            "job": np.array(["clerk", "nurse", "smith"])[
                np.where(rng.random(n) < 0.8, y, rng.integers(0, 3, n))
            ],
        }
    )
    frame.loc[rng.random(n) < 0.05, "age"] = np.nan
    said = np.array(["cold", "cough", "flu"], dtype=object)[y]
    said[labelled:] = None
    frame["illness"] = said
    return frame


def clinics_of(labelled: tuple[int, ...] = (24, 24, 24), **options: Any) -> Federation:
    parties = []
    for number, count in enumerate(labelled):
        frame, test = frame_of(90, number, count), frame_of(40, 100 + number, 40)
        names = {"label": "illness", "kinds": {"illness": "nominal"}}
        ids = 1000 * number + np.arange(130)
        parties.append(
            Party(
                f"clinic-{number}",
                Table(ids[:90], frame, **names),
                test=Table(ids[90:], test, **names),
                policy=options.pop(f"policy_{number}", LETS_OUT),
            )
        )
    return Federation(*parties, strict=True, **options)


@pytest.fixture
def clinics():
    return clinics_of()


# ---------------------------------------------------------------------------------- all methods


@pytest.mark.parametrize("model", BASELINES, ids=lambda model: repr(model)[:40])
def test_every_method_runs_over_a_strict_federation(model, clinics):
    model = clone(model).fit(clinics)
    assert [entry["round"] for entry in model.history_] == [1, 2][: len(model.history_)]
    scores = model.evaluate(clinics.on("test"))
    assert set(scores) == {"accuracy", "auc", "f1", "log_loss"}
    assert all(np.isfinite(value) for value in scores.values())
    said = model.predict(clinics.on("test"))
    assert list(said) == list(clinics.names)
    assert set(np.concatenate(list(said.values()))) <= {"cold", "cough", "flu"}
    kinds = {entry.kind for entry in clinics.ledger}
    # Masked are the sums by which the number of rounds was chosen.
    assert kinds <= {"control", "count", "statistic", "weights", "prediction", "masked"}


def test_sage_learns_from_unlabelled_rows():
    fed = clinics_of((9, 9, 9))
    model = SAGE(rounds=12).fit(fed, watch="test")
    assert model.evaluate(fed.on("test"))["accuracy"] > 0.85
    last = model.history_[-1]
    assert last["accuracy"] == model.score(fed.on("test"))
    for name, said in model.predict(fed.on("test")).items():
        right = said == fed.engine.site(name).tables["test"].y.to_numpy()
        assert last["accuracy_by_party"][name] == pytest.approx(right.mean())
    assert last["utilisation"] > 0.4
    assert last["pseudo_accuracy"] > 0.8
    assert {each["client"] for each in last["per_client"]} == set(fed.names)
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]


def test_the_switches_are_the_methods_they_should_be(clinics):
    bare = SAGE(cpg=False, cdsc=False, **QUICK).fit(clinics)
    local = FixMatch(**QUICK).fit(clinics)
    assert torch.equal(bare.clients_.weights, local.clients_.weights)
    free = FedProx(prox=0.0, **QUICK).fit(clinics)
    assert torch.equal(free.clients_.weights, FedAvg(**QUICK).fit(clinics).clients_.weights)


def test_the_history_of_a_warm_up_tells_nothing_of_pseudo_labels(clinics):
    model = SAGE(warmup=1, **(QUICK | {"rounds": 2})).fit(clinics)
    warm, trained = model.history_
    for each in (warm, *warm["per_client"]):
        assert not {"utilisation", "pseudo_accuracy", "confidence_gap"} & set(each)
    for each in (trained, *trained["per_client"]):
        assert {"utilisation", "pseudo_accuracy", "confidence_gap"} <= set(each)
    assert warm["loss"] > 0


@pytest.mark.parametrize("secure", ["none", "masks"])
def test_a_training_that_diverges_is_named(clinics, secure):
    model = SAGE(lr=1e12, secure=secure, **(QUICK | {"rounds": 5}))
    with pytest.raises(DataError, match=r"party 'clinic-\d'.* diverged.* smaller lr than 1e\+12"):
        model.fit(clinics)


# ---------------------------------------------------------------------------------- parties


def test_a_party_without_labels_takes_part():
    fed = clinics_of((30, 30, 1))
    bare = fed.engine.site("clinic-2")
    bare.tables["train"] = bare.tables["train"].drop("illness")
    for model in (SAGE(**QUICK), FedMatch(**QUICK), FedLoKe(**QUICK), FedDure(**QUICK)):
        fitted = model.fit(fed)
        assert torch.isfinite(fitted.clients_.weights).all()
        assert fitted.evaluate(fed.on("test"))["accuracy"] > 0.3


def test_rows_are_judged_by_secure_sums():
    """What opens is the sum; a party with few rows is not in it, as others may know their parts."""
    fed = clinics_of((24, 24, 24))
    model = FedAvg(**QUICK).fit(fed)
    assert model.judge(fed.on("test")) == pytest.approx(model.evaluate(fed.on("test")), abs=1e-5)
    few = clinics_of((24, 24, 6))
    model = FedAvg(**QUICK).fit(few)
    found = model.judge(few)
    own = np.concatenate([model.predict(few.engine.site(n).tables["train"]) for n in few.names[:2]])
    said = np.concatenate([few.engine.site(n).tables["train"].y.to_numpy() for n in few.names[:2]])
    known = pd.notna(said)
    assert known.sum() == 48
    assert found["accuracy"] == pytest.approx((own[known] == said[known]).mean())
    asked = [e for e in few.ledger if e.call.startswith("SumWorker") or ".offer_" in e.call]
    told = {entry.kind for entry in asked if entry.receiver == "coordinator"}
    assert told == {"masked", "count", "control"}


def test_a_table_below_min_rows_is_left_out_where_rows_are_judged():
    fed = clinics_of((24, 24, 24))
    site = fed.engine.site("clinic-2")
    site.tables["test"] = site.tables["test"].take(np.arange(5))
    model = FedAvg(**QUICK).fit(fed)
    told = model.evaluate(fed.on("test"))
    assert model.judge(fed.on("test")) == pytest.approx(told, abs=1e-5)
    assert model.notes_[1:] == [
        "the scores are without clinic-2: no labelled row there, or fewer than its policy's "
        "min_rows"
    ]


def test_too_few_rows_at_every_party_are_not_judged():
    fed = clinics_of((9, 9, 9))
    model = FedAvg(**QUICK).fit(fed)
    assert model.judge(fed) == {}
    # That there are none to judge by is all that came to light.
    assert sum(entry.kind == "masked" for entry in fed.ledger) == 3


def test_a_policy_may_keep_weights_at_home():
    fed = clinics_of(policy_1=Policy(refuse=frozenset({"weights"})))
    with pytest.raises(Refused, match="weights"):
        SAGE(**QUICK).fit(fed)


# ---------------------------------------------------------------------------------- secure


@pytest.mark.parametrize("mode", ["masks", "he"])
def test_the_coordinator_may_learn_the_average_only(mode):
    rounds = QUICK | {"hidden": (8,), "per_round": 2, "rounds": 3 if mode == "masks" else 1}
    fed, clear = clinics_of(), clinics_of()
    hidden = SAGE(secure=mode, **rounds).fit(fed)
    plain = SAGE(**rounds).fit(clear)
    torch.testing.assert_close(
        hidden.clients_.weights, plain.clients_.weights, rtol=1e-4, atol=1e-6
    )
    assert [entry["clients"] for entry in hidden.history_] == [
        entry["clients"] for entry in plain.history_
    ]
    # Weights go to the parties, and never come back.
    sent = [entry for entry in fed.ledger if entry.kind == "weights"]
    assert sent and all(entry.sender == "coordinator" for entry in sent)
    assert any(entry.kind in ("masked", "ciphertext") for entry in fed.ledger)
    assert hidden.evaluate(fed.on("test"))["accuracy"] == pytest.approx(
        plain.evaluate(clear.on("test"))["accuracy"], abs=0.02
    )


def test_of_one_party_nothing_is_averaged_securely(clinics):
    with pytest.raises(ConfigError, match="at least two"):
        SAGE(secure="masks", per_round=1, **QUICK).fit(clinics)
    with pytest.raises(NotFitted):
        SAGE().to(None)


# ---------------------------------------------------------------------------------- keeping


def test_a_saved_model_predicts_the_same_elsewhere(clinics, tmp_path):
    model = SAGE(**QUICK).fit(clinics)
    model.save(tmp_path / "model")
    said = model.predict_proba(clinics.on("test"))
    back = SAGE.load(tmp_path / "model", clinics)
    assert back.history_ == model.history_
    for name, probabilities in back.predict_proba(clinics.on("test")).items():
        np.testing.assert_array_equal(probabilities, said[name])
    rows = clinics.engine.site("clinic-0").tables["test"]
    np.testing.assert_allclose(model.predict_proba(rows), said["clinic-0"], rtol=1e-5)
    newcomer = Federation(Party("new", rows, policy=LETS_OUT))
    there = SAGE.load(tmp_path / "model", newcomer)
    np.testing.assert_allclose(there.predict_proba(newcomer)["new"], said["clinic-0"], rtol=1e-5)
    moved = model.to(newcomer)
    np.testing.assert_allclose(moved.predict_proba(newcomer)["new"], said["clinic-0"], rtol=1e-5)
    assert model.hand_out(tmp_path / "model") == []
    kept = clinics.engine.site("clinic-1").folder(str(tmp_path / "model"))
    assert read_json(kept / MANIFEST, "a saved model")["history"] == []
    with pytest.raises(ConfigError, match="holds a SAGE"):
        FedAvg.load(tmp_path / "model", clinics)
    with pytest.raises(ConfigError, match="another federation"):
        model.predict(newcomer)


@pytest.mark.parametrize("secure", ["masks"])
def test_the_mean_over_rounds_is_what_is_told(secure, tmp_path):
    """Evaluated, predicted with, saved and moved is the mean; training does not know of it."""
    fed, other = clinics_of(), clinics_of()
    params = QUICK | {"rounds": 4, "per_round": 2, "secure": secure}
    plain = SAGE(**params).fit(other)
    model = SAGE(average_rounds=3, **params).fit(fed, watch="test")
    assert torch.equal(model.clients_.weights, plain.clients_.weights)
    mean = model.clients_.averaged
    assert not torch.equal(mean, plain.clients_.weights)
    said = model.predict_proba(fed.on("test"))
    plain.clients_.weights = mean
    for name, probabilities in plain.predict_proba(other.on("test")).items():
        np.testing.assert_array_equal(probabilities, said[name])
    assert plain.evaluate(other.on("test")) == model.evaluate(fed.on("test"))
    assert model.history_[-1]["accuracy"] == model.score(fed.on("test"))
    model.save(tmp_path / "model")
    for back in (SAGE.load(tmp_path / "model", fed), model.to(fed)):
        assert torch.equal(back.clients_.averaged, mean)
        np.testing.assert_array_equal(
            back.predict_proba(fed.on("test"))["clinic-1"], said["clinic-1"]
        )


@pytest.mark.daily("model0")
@pytest.mark.parametrize(
    "model", [SAGE(average_rounds=3, **QUICK), FedLoKe(**QUICK), FedMatch(**QUICK)]
)
def test_a_run_goes_on_where_it_stopped(model, tmp_path):
    labelled = (40, 40, 24)  # enough to count rounds by at two of them
    whole = clone(model).set_params(rounds=3).fit(clinics_of(labelled))
    clone(model).set_params(rounds=2).fit(clinics_of(labelled), checkpoint=tmp_path / "kept")
    calls: list[tuple[str, int]] = []
    resumed = clone(model).set_params(rounds=3)
    resumed.fit(
        clinics_of(labelled),
        checkpoint=tmp_path / "kept",
        resume=True,
        progress=lambda stage, done, total, facts: calls.append((stage, done)),
    )
    assert calls == [("length", 3), ("train", 3)]
    assert torch.equal(resumed.clients_.weights, whole.clients_.weights)
    assert torch.equal(resumed.clients_.averaged, whole.clients_.averaged)
    assert resumed.history_ == whole.history_
    other = clone(model).set_params(lr=0.2)
    with pytest.raises(ResumeError, match="another run"):
        other.fit(clinics_of(labelled), checkpoint=tmp_path / "kept", resume=True)


# ---------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SAGE(tau=2.0, kappa=-1.0, rounds=0, net="vgg", batch_size=0, epochs=0), "6 problems"),
        (SAGE(warmup=5, rounds=5), "warmup must be below rounds"),
        (SAGE(warmup=-1), "warmup must be 0 or more"),
        (SAGE(average_rounds=0), "average_rounds must be at least 1, got 0"),
        (SAGE(secure="aes"), "secure"),
        (FedDB(secure="masks"), "secure"),
        (FedMatch(secure="he"), "secure"),
        (FixMatch(labels="both"), "labels must be one of local, global"),
    ],
)
def test_all_mistakes_are_told_at_once(model, message):
    with pytest.raises(ConfigError, match=message):
        model._check()


def test_there_is_no_parameter_that_nobody_has_a_reason_to_set():
    """A further one must be worth its line in everybody's list."""
    assert max(len(model.get_params()) for model in BASELINES) <= 20
    with pytest.raises(ConfigError, match="no parameter 'labelled_batch'.*batch_size"):
        SAGE(labelled_batch=16)


def test_the_preset_holds_the_authors_values():
    paper = SAGE.paper()
    assert (paper.rounds, paper.per_round, paper.lr, paper.tau) == (300, 8, 0.1, 0.95)
    settings = paper._settings()
    assert (settings.batch_size, settings.unlabelled_batch, settings.epochs) == (128, 256, 5)
    assert paper.net == "auto"  # a ResNet-8 for images
    assert paper.average_rounds is None
    assert paper.kappa == pytest.approx(13.863, abs=1e-3)
    assert SAGE.paper(rounds=3).rounds == 3
    assert FedProx.paper().prox == 1e-3
    assert "tau" in SAGE().get_params() and "rounds" in SAGE().get_params()


def test_rows_that_are_no_federation_are_refused_with_the_mend():
    frame = frame_of(40, 0, 30)
    fed = clinics_of()
    model = FedAvg(rounds=1, epochs=1, patience=None).fit(fed)
    for rows in (frame, frame.to_numpy()):
        for use in (model.predict, model.predict_proba, model.predict_table):
            with pytest.raises(DataError, match=f"not of a {type(rows).__name__}. Mend: fm.Table"):
                use(rows)
    for use in (model.evaluate, model.judge, model.uncertainty_report, model.predict_here):
        with pytest.raises(DataError, match="takes a Federation, not a Table. Mend: fm.Feder"):
            use(Table.from_frame(frame, label="illness"))


def test_feddb_mixes_priors_to_an_even_one():
    rng = np.random.default_rng(0)
    for _ in range(5):
        priors = rng.dirichlet(np.full(6, 0.5), 8)
        shares = even_mixture(priors, np.ones(8))
        assert shares.sum() == pytest.approx(1.0)
        assert (shares >= 0).all()
        best = np.linalg.norm(shares @ priors - 1 / 6)
        others = rng.dirichlet(np.ones(8), 3000) @ priors
        assert best <= np.linalg.norm(others - 1 / 6, axis=1).min() + 1e-3
    # Where all are even already, the rows decide.
    even = np.full((3, 4), 0.25)
    np.testing.assert_allclose(even_mixture(even, np.array([1.0, 2.0, 1.0])), [0.25, 0.5, 0.25])
